/* Kernels on streams of the CPU (device/stream.h). If a thread has made one current, a kernel whose results are
 * allocated by its shape rule is queued with aliases of its tensors and copies of its lists, and the results are
 * pending. All other kernels run in the calling thread, after the queue and the tensors that they read are done:
 * those whose sizes depend on data, random ones (the generator is used in the order of calls), and those whose result
 * is copied to a target afterwards. */
#include <string.h>

#include "core/alloc.h"
#include "device/stream.h"
#include "dispatch/async.h"

typedef struct Queued {
  MothCall call;
  MothKernel kernel;
  MothTensor **mine; /* aliases that are released when it is done */
  int nmine;
  size_t size; /* of this block */
  MothTensor *targets[MOTH_MAX_RESULTS];
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  max_align_t rest[]; /* lists, strings, mine */
} Queued;

static void changed(bool queued) {
  MothThread *t = moth_thread_state();
  if (queued)
    t->include |= MOTH_KEY_PENDING;
  else
    t->include &= ~(uint32_t)MOTH_KEY_PENDING;
}
__attribute__((constructor)) static void async_init(void) {
  moth_cpu_stream_changed = changed;
}

typedef MothStatus (*Each)(MothTensor *t, bool written, void *ctx);

/* Calls fn for all tensors of a call, its targets and results among them. */
static MothStatus each_tensor(const MothCall *c, Each fn, void *ctx) {
  for (int i = 0; i < c->op->nargs; i++) {
    bool written = c->op->args[i].mutated;
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR)
      MOTH_TRY(fn(v.u.t, written, ctx));
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      MOTH_TRY(fn(v.u.tensors[k], written, ctx));
  }
  for (int i = 0; i < c->op->nresults; i++) {
    if (c->target)
      MOTH_TRY(fn(c->target[i], true, ctx));
    if (c->results[i].tag == MOTH_V_TENSOR)
      MOTH_TRY(fn(c->results[i].u.t, true, ctx));
  }
  return MOTH_OK;
}

static MothStatus ready(MothTensor *t, bool written, void *ctx) {
  (void)written;
  (void)ctx;
  return moth_tensor_ready(t);
}

/* Whether the kernel can run later, on another thread. Kernels of ops that were defined at run time may be Lua
 * functions. */
static bool can_queue(const MothCall *c) {
  if (c->device.type != MOTH_CPU || c->op->draws || c->op->defined)
    return false;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR && v.u.t->device.type != MOTH_CPU)
      return false;
  }
  for (int i = 0; i < c->op->nresults; i++)
    if (c->results[i].tag != MOTH_V_TENSOR || c->results[i].u.t->device.type != MOTH_CPU ||
        (c->target && c->target[i] != c->results[i].u.t))
      return false;
  return true;
}

/* --- the copy of a call ---------------------------------------------------------------------------- */

static size_t padded(size_t n) {
  return (n + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
}
static size_t bytes_of(MothValue v) {
  switch ((MothTag)v.tag) {
  case MOTH_V_INTS:
    return padded(v.n * sizeof *v.u.ints);
  case MOTH_V_TENSORS:
    return padded(v.n * sizeof(MothTensor *));
  case MOTH_V_STRING:
    return padded(strlen(v.u.s) + 1);
  default:
    return 0;
  }
}

static void drop(void *ctx) {
  Queued *q = ctx;
  for (int i = 0; i < q->nmine; i++)
    moth_tensor_release(q->mine[i]);
  moth_free(q, q->size);
}

static MothStatus alias(Queued *q, MothTensor *t, MothTensor **out) {
  MOTH_TRY(moth_tensor_alias(t, false, out));
  q->mine[q->nmine++] = *out;
  return MOTH_OK;
}

static MothStatus copy_value(Queued *q, MothValue from, MothValue *to, char **rest) {
  *to = from;
  size_t n = bytes_of(from);
  void *place = *rest;
  *rest += n;
  if (from.tag == MOTH_V_TENSOR)
    return alias(q, from.u.t, &to->u.t);
  if (from.tag == MOTH_V_INTS) {
    if (from.n) /* a list without elements may have no address */
      memcpy(place, from.u.ints, from.n * sizeof *from.u.ints);
    to->u.ints = place;
  } else if (from.tag == MOTH_V_STRING) {
    memcpy(place, from.u.s, strlen(from.u.s) + 1);
    to->u.s = place;
  } else if (from.tag == MOTH_V_TENSORS) {
    to->u.tensors = place;
    for (uint32_t i = 0; i < from.n; i++)
      MOTH_TRY(alias(q, from.u.tensors[i], &to->u.tensors[i]));
  }
  return MOTH_OK;
}

/* The alias of the argument t, or NULL: in place, kernels compare results with arguments. */
static MothTensor *alias_of(const MothCall *c, const Queued *q, const MothTensor *t) {
  for (int i = 0; i < c->op->nargs; i++)
    if (c->args[i].tag == MOTH_V_TENSOR && c->args[i].u.t == t)
      return q->args[i].u.t;
  return NULL;
}

static MothStatus copy_call(const MothCall *c, MothKernel kernel, Queued **out) {
  const MothOp *op = c->op;
  size_t lists = 0, n = op->nresults;
  for (int i = 0; i < op->nargs; i++) {
    MothValue v = c->args[i];
    lists += bytes_of(v);
    n += v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
  }
  size_t size = sizeof(Queued) + lists + n * sizeof(MothTensor *);
  Queued *q = *out = moth_alloc(size);
  if (!q)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: the call cannot be queued");
  char *rest = (char *)q->rest;
  q->size = size;
  q->mine = (MothTensor **)(rest + lists);
  q->nmine = 0;
  q->kernel = kernel;
  q->call = *c;
  q->call.args = q->args;
  q->call.results = q->results;
  q->call.target = c->target ? q->targets : NULL;
  q->call.keys &= MOTH_KEYS_DATA & ~(uint32_t)MOTH_KEY_PENDING;
  MothStatus s = MOTH_OK;
  for (int i = 0; i < op->nargs && s == MOTH_OK; i++)
    s = copy_value(q, c->args[i], &q->args[i], &rest);
  for (int i = 0; i < op->nresults && s == MOTH_OK; i++) {
    q->results[i] = c->results[i];
    q->results[i].u.t = alias_of(c, q, c->results[i].u.t);
    if (!q->results[i].u.t)
      s = alias(q, c->results[i].u.t, &q->results[i].u.t);
    q->targets[i] = q->results[i].u.t;
  }
  if (s != MOTH_OK)
    drop(q);
  return s;
}

static MothStatus run(void *ctx) {
  Queued *q = ctx;
  moth_thread_state()->exclude =
      ~(uint32_t)MOTH_KEYS_DATA; /* ops that the kernel calls must run here */
  MothStatus s = q->kernel(&q->call);
  if (s != MOTH_OK && s != MOTH_ERR_INTERRUPTED)
    moth_call_failed(&q->call);
  return s;
}

/* --- queueing it ----------------------------------------------------------------------------------- */

/* The stream waits for what other streams write. */
static MothStatus wait_in_stream(MothTensor *t, bool written, void *ctx) {
  (void)written;
  if (!(t->keys & MOTH_KEY_PENDING))
    return MOTH_OK;
  MothTicket *ticket = moth_tensor_ticket(t);
  MothStatus s = ticket ? moth_cpu_wait_for(ctx, ticket) : MOTH_OK;
  moth_ticket_release(ticket);
  return s;
}
static MothStatus set_pending(MothTensor *t, bool written, void *ctx) {
  if (written)
    moth_tensor_set_pending(t, ctx);
  if (written && t->base)
    t->base->keys |= MOTH_KEY_PENDING;
  return MOTH_OK;
}

MothStatus moth_queue_kernel(MothCall *c, MothKernel kernel, bool *queued) {
  MothStream *stream = moth_cpu_stream_now();
  *queued = stream && can_queue(c);
  if (!*queued) {
    if (stream)
      MOTH_TRY(moth_stream_synchronize(stream));
    return each_tensor(c, ready, NULL);
  }
  Queued *q = NULL;
  MothTicket *ticket;
  MOTH_TRY(each_tensor(c, wait_in_stream, stream));
  MOTH_TRY(copy_call(c, kernel, &q));
  MothStatus s = moth_cpu_submit(stream, run, drop, q, &ticket);
  if (s != MOTH_OK) {
    drop(q);
    return s;
  }
  each_tensor(c, set_pending, ticket);
  moth_ticket_release(ticket);
  return MOTH_OK;
}
