/* Runs of a plan: a frame, the arena, the steps. See plan.h. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/kept.h"
#include "device/cuda.h"
#include "dispatch/lazy.h"
#include "dispatch/subclass.h"
#include "graph/blocks.h"
#include "graph/plan_steps.h"
#include "ops/create.h"

/* --- frames --------------------------------------------------------------------------------------------- */

static void free_frame(MothPlanFrame *f) {
  free(f->values);
  free(f->headers);
  free(f->lists);
  free(f->args);
  free(f->slots);
  free(f->apart);
  free(f);
}

void moth_plan_free_frames(MothPlan *p) {
  while (p->frames) {
    MothPlanFrame *f = p->frames;
    p->frames = f->next;
    free_frame(f);
  }
}

/* A header for a value of the arena, or for a view. */
static void set_header(MothPlanFrame *f, const MothPlanValue *v) {
  MothTensor *t = &f->headers[v->header];
  const MothTensor *fake = v->fake;
  atomic_init(&t->refs, 1);
  t->keys = fake->keys & (MOTH_KEYS_DEVICE | MOTH_KEY_OPT_IN);
  t->dtype = fake->dtype;
  t->device = fake->device;
  t->ndim = fake->ndim;
  t->contiguous = fake->contiguous;
  t->numel = fake->numel;
  t->storage = v->apart ? &f->apart[v->buffer] : &f->arena;
  memcpy(t->shape, fake->shape, sizeof t->shape);
  memcpy(t->stride, fake->stride, sizeof t->stride);
}

static MothPlanFrame *new_frame(const MothPlan *p) {
  MothPlanFrame *f = calloc(1, sizeof *f);
  if (!f)
    return NULL;
  f->values = calloc((size_t)p->nvalues + 1, sizeof *f->values);
  f->headers = calloc((size_t)p->nheaders + 1, sizeof *f->headers);
  f->lists = calloc((size_t)p->nlists + 1, sizeof *f->lists);
  f->args = calloc((size_t)p->nargs + 1, sizeof *f->args);
  f->slots = calloc((size_t)p->nslots + 1, sizeof *f->slots);
  f->apart = calloc((size_t)p->napart + 1, sizeof *f->apart);
  if (!f->values || !f->headers || !f->lists || !f->args || !f->slots || !f->apart) {
    free_frame(f);
    return NULL;
  }
  atomic_init(&f->arena.refs, 1);
  for (uint32_t k = 0; k < p->napart; k++)
    atomic_init(&f->apart[k].refs, 1);
  for (uint32_t i = 0; i < p->nvalues; i++)
    if (p->values[i].header != UINT32_MAX) {
      set_header(f, &p->values[i]);
      f->values[i] = &f->headers[p->values[i].header];
    } else if (p->values[i].held) {
      f->values[i] = p->values[i].held;
    }
  for (uint32_t i = 0; i < p->ncalls; i++)
    memcpy(f->args + p->calls[i].args_at, p->calls[i].args,
           sizeof(MothValue) * p->calls[i].op->nargs);
  if (p->nslots)
    memcpy(f->slots, p->slots, sizeof *f->slots * p->nslots);
  return f;
}

static MothPlanFrame *take_frame(MothPlan *p) {
  pthread_mutex_lock(&p->lock);
  MothPlanFrame *f = p->frames;
  if (f)
    p->frames = f->next;
  pthread_mutex_unlock(&p->lock);
  return f ? f : new_frame(p);
}

static void give_frame(MothPlan *p, MothPlanFrame *f) {
  pthread_mutex_lock(&p->lock);
  f->next = p->frames;
  p->frames = f;
  pthread_mutex_unlock(&p->lock);
}

static MothStatus take_memory(size_t bytes, char **out) {
  *out = moth_alloc(bytes);
  if (!*out && moth_alloc_collect && moth_alloc_collect())
    *out = moth_alloc(bytes);
  return *out ? MOTH_OK : moth_no_memory(bytes);
}

/* Memory for the arena. The headers' addresses are kept while it comes where it was. */
static MothStatus make_arena(const MothPlan *p, MothPlanFrame *f) {
  if (!p->arena_bytes)
    return MOTH_OK;
  size_t bytes = (size_t)p->arena_bytes;
  char *base;
  MOTH_TRY(take_memory(bytes, &base));
  f->arena.nbytes = bytes;
  if (base == f->arena.data)
    return MOTH_OK;
  f->arena.data = base;
  for (uint32_t i = 0; i < p->nvalues; i++) {
    const MothPlanValue *v = &p->values[i];
    if (v->place != MOTH_PLACE_ARENA || v->apart || v->header == UINT32_MAX)
      continue;
    MothTensor *t = f->values[i];
    t->data = base + v->offset;
    t->offset = v->offset / moth_itemsize(t);
  }
  return MOTH_OK;
}

static void drop_arena(const MothPlan *p, MothPlanFrame *f) {
  if (f->arena.data && f->arena.nbytes)
    moth_free(f->arena.data, (size_t)p->arena_bytes);
  f->arena.nbytes = 0;
}

static void free_apart(const MothPlan *p, MothPlanFrame *f, uint32_t k) {
  if (f->apart[k].data)
    moth_free(f->apart[k].data, (size_t)p->apart[k].bytes);
  f->apart[k].data = NULL;
}

/* Memory for buffer k, and its address to the values that lie in it. */
static MothStatus make_apart(const MothPlan *p, MothPlanFrame *f, uint32_t k) {
  const MothPlanApart *a = &p->apart[k];
  size_t bytes = (size_t)a->bytes;
  char *data;
  MOTH_TRY(take_memory(bytes, &data));
  f->apart[k].data = data;
  f->apart[k].nbytes = bytes;
  for (uint32_t i = 0; i < a->nvalues; i++)
    if (f->values[a->values[i]]) /* no temporary */
      f->values[a->values[i]]->data = data;
  return MOTH_OK;
}

/* --- steps ---------------------------------------------------------------------------------------------------- */

/* Tensors for those results, and temporaries, that are not in the arena. */
static MothStatus make_fresh(const MothPlan *p, MothPlanFrame *f, const MothPlanStep *s) {
  for (uint32_t i = 0; i < s->nresults + s->nreads; i++) {
    uint32_t id = s->values[i];
    const MothPlanValue *v = &p->values[id];
    if (v->place == MOTH_PLACE_FRESH && !f->values[id])
      MOTH_TRY(moth_tensor_new(v->fake->ndim, v->fake->shape, (MothDType)v->fake->dtype,
                               v->fake->device, &f->values[id]));
  }
  return MOTH_OK;
}

/* Gives the call's arguments, at args_at, the tensors of this run; returns its targets. */
static MothTensor **bind(const MothPlanCall *c, MothPlanFrame *f) {
  MothValue *args = f->args + c->args_at;
  for (uint32_t i = 0; i < c->nrefs; i++)
    f->lists[i] = f->values[c->refs[i]];
  for (int i = 0; c->numbers && i < c->op->nargs; i++)
    if (c->numbers[i])
      args[i] = f->numbers ? f->numbers[c->numbers[i] - 1] : c->args[i];
  return moth_args_fill(c->op, args, f->lists);
}

static MothStatus run_direct(const MothPlanCall *call, MothPlanFrame *f) {
  MothValue results[MOTH_MAX_RESULTS];
  for (int i = 0; i < call->op->nresults; i++)
    results[i] = moth_v_tensor(f->values[call->result[i]]);
  MothCall c = {.op = call->op,
                .keys = MOTH_KEY_CPU,
                .dtype = call->compute,
                .args = f->args + call->args_at,
                .results = results};
  bind(call, f);
  return moth_run_bound(&c, call->kernel);
}

/* An op that was defined at run time may give something else than its fake function said, on which later steps rely: other
 * strides are a copy, another shape or dtype is an error. */
static MothStatus match(const MothOp *op, int i, MothTensor **result, const MothTensor *fake) {
  char got[256], said[256];
  MothTensor *t = *result, *copy;
  bool same = t->dtype == fake->dtype && t->ndim == fake->ndim, layout = true;
  for (int d = 0; d < fake->ndim && same; d++) {
    same = t->shape[d] == fake->shape[d];
    layout = layout && (t->shape[d] <= 1 || t->stride[d] == fake->stride[d]);
  }
  if (same && (layout || !fake->numel))
    return MOTH_OK;
  if (same && fake->contiguous) {
    MOTH_TRY(moth_tensor_new(t->ndim, t->shape, (MothDType)t->dtype, t->device, &copy));
    MothStatus s = moth_copy_(copy, t, false);
    *result = s == MOTH_OK ? copy : t;
    moth_tensor_release(s == MOTH_OK ? t : copy);
    return s;
  }
  moth_shape_format(t->ndim, same ? t->stride : t->shape, got, sizeof got);
  moth_shape_format(fake->ndim, same ? fake->stride : fake->shape, said, sizeof said);
  return moth_fail(MOTH_ERR_TYPE,
                   "[%s] result " MOTH_AT "%d is %s %s%s, where the op's fake function gave %s %s; "
                   "mend that function: moth.library.opcheck finds the difference",
                   op->name, i, moth_dtype_name((MothDType)t->dtype), same ? "with strides " : "",
                   got, moth_dtype_name((MothDType)fake->dtype), said);
}

static MothStatus run_dispatched(const MothPlan *p, const MothPlanCall *call, MothPlanFrame *f) {
  MothValue results[MOTH_MAX_RESULTS];
  MothTensor **target = bind(call, f);
  MothCall c = {.op = call->op,
                .args = f->args + call->args_at,
                .results = results,
                .variant = call->variant,
                .target = call->ntargets ? target : NULL};
  MOTH_TRY(moth_dispatch(&c));
  MothStatus status = MOTH_OK;
  for (int i = 0; i < call->op->nresults; i++) {
    uint32_t id = call->result[i];
    if (call->op->defined && call->op->memory == MOTH_MEMORY_NEW && status == MOTH_OK)
      status = match(call->op, i, &results[i].u.t, p->values[id].fake);
    MothTensor *t = results[i].u.t;
    if (p->values[id].place != MOTH_PLACE_GIVEN || f->values[id] == t)
      moth_tensor_release(t); /* an argument */
    else
      f->values[id] = t;
  }
  return status;
}

static void run_view(const MothPlan *p, const MothPlanCall *call, MothPlanFrame *f) {
  uint32_t id = call->result[0];
  MothTensor *t = f->values[id];
  const MothTensor *self = f->values[call->refs[0]];
  t->storage = self->storage;
  t->data = self->data ? self->data + p->values[id].offset : NULL;
  t->offset = (self->offset * moth_itemsize(self) + p->values[id].offset) / moth_itemsize(t);
}

static char *address_of(const MothPlan *p, const MothPlanFrame *f, uint32_t id) {
  const MothPlanValue *v = &p->values[id];
  if (f->values[id])
    return f->values[id]->data;
  return v->apart ? (char *)f->apart[v->buffer].data
                  : (char *)f->arena.data + v->offset; /* a temporary */
}

/* How many elements generated code may touch from the address of a value on: those that its sizes and strides reach over,
 * as far as there is memory. */
static int64_t reach_of(const MothPlan *p, const MothPlanFrame *f, uint32_t id) {
  const MothTensor *t = f->values[id];
  if (!t)
    return p->values[id].bytes / 8; /* a temporary, of float64 or int64 */
  if (!t->numel)
    return 0;
  int64_t last = 0, bytes = t->data ? moth_storage_nbytes(t) : 0;
  for (int d = 0; d < t->ndim; d++)
    last += (t->shape[d] - 1) * t->stride[d];
  int64_t there = (bytes - (t->data - (char *)t->storage->data)) / moth_itemsize(t);
  return last < there ? last + 1 : there < 0 ? 0 : there;
}

static MothStatus outside(const MothPlan *p, const MothPlanStep *s, const MothPlanFrame *f,
                          const MothPlanLaunched *l, const uint64_t *noted) {
  static const char *const done[] = {"load of", "store to", "atomic on"};
  uint64_t which = noted[0] - 1;
  uint32_t i = 0, n = s->nresults + s->nreads;
  while (i < n && l->at[i] != (int32_t)(which / 3) + 1) /* the first slot is the kernel's number */
    i++;
  const MothTensor *t = i < n ? f->values[s->values[i]] : NULL;
  char buf[256];
  return moth_fail(
      MOTH_ERR_STATE,
      "[compile] the generated kernel of %s: %s %s %u (%s), element %lld (from 0), program %lld, "
      "is "
      "outside of its memory, which has %lld elements; this is a mistake of moth, please report it",
      s->text ? s->text : "?", done[which % 3], i < s->nresults ? "result" : "operand",
      i < s->nresults ? i + 1 : i - s->nresults + 1,
      t ? moth_tensor_format(t, buf, sizeof buf) : "a temporary", (long long)noted[1],
      (long long)noted[3], (long long)(i < n ? reach_of(p, f, s->values[i]) : 0));
}

/* What a kernel has noted of an access outside of its memory: `out`, on the GPU. */
static MothStatus look_outside(const MothPlan *p, const MothPlanStep *s, const MothPlanFrame *f,
                               const MothPlanLaunched *l, MothTensor *out) {
  uint64_t noted[4];
  MothTensor *here;
  MOTH_TRY(moth_tensor_new(1, out->shape, MOTH_INT64, (MothDevice){MOTH_CPU, 0}, &here));
  MothStatus status = moth_copy_(here, out, false);
  if (status == MOTH_OK)
    memcpy(noted, here->data, sizeof noted);
  moth_tensor_release(here);
  return status != MOTH_OK ? status : noted[0] ? outside(p, s, f, l, noted) : MOTH_OK;
}

static MothStatus launch_on_gpu(const MothPlan *p, const MothPlanStep *s, const MothPlanFrame *f,
                                const MothPlanLaunched *l, uint64_t *slots) {
  void *args[MOTH_PLAN_PARAMETERS];
  MothTensor *out = NULL;
  MothDevice device = p->values[s->values[0]].fake->device;
  unsigned grid[3] = {(unsigned)l->n, 1, 1}, block[3] = {l->threads, 1, 1};
  if (l->reach) {
    int64_t four = 4;
    MOTH_TRY(moth_zeros(&four, 1, moth_v_dtype(MOTH_INT64), moth_v_device(device), &out));
    slots[l->outside] = (uint64_t)(uintptr_t)out->data;
  }
  for (uint32_t i = 1; i < l->nslots; i++)
    args[i - 1] = &slots[i];
  MothStatus status =
      moth_cuda_api()->launch(l->kernel, device.index, grid, block, l->shared, args);
  if (status == MOTH_OK && out)
    status = look_outside(p, s, f, l, out);
  moth_tensor_release(out);
  return status;
}

static MothStatus run_launches(const MothPlan *p, const MothPlanStep *s, MothPlanFrame *f) {
  uint32_t n = s->nresults + s->nreads;
  for (uint32_t k = 0; k < s->nlaunches; k++) {
    const MothPlanLaunched *l = &s->launches[k];
    uint64_t *slots = f->slots + l->slots_at;
    for (uint32_t i = 0; i < n; i++)
      if (l->at[i] >= 0)
        slots[l->at[i]] = (uint64_t)(uintptr_t)address_of(p, f, s->values[i]);
    if (l->no_memory)
      slots[l->no_memory] = 0;
    if (l->reach) {
      slots[l->outside] = 0;
      for (uint32_t i = 0; i < n; i++)
        if (l->at[i] >= 0)
          slots[(uint32_t)l->at[i] + l->reach] = (uint64_t)reach_of(p, f, s->values[i]);
    }
    for (uint32_t i = 0; i < l->nnumbers && f->numbers; i++) {
      MothValue v = f->numbers[l->numbers[i].number - 1];
      double d = moth_as_double(v);
      int64_t whole = moth_as_whole(v);
      memcpy(&slots[l->numbers[i].slot], l->numbers[i].is_float ? (void *)&d : (void *)&whole,
             sizeof *slots);
    }
    if (l->program) {
      MOTH_TRY(launch_on_gpu(p, s, f, l, slots));
      continue;
    }
    moth_parallel_for(l->n, l->grain, l->fn, slots);
    if (l->no_memory && slots[l->no_memory])
      return moth_fail(MOTH_ERR_MEMORY, "out of memory: none for the blocks of a generated kernel");
    if (l->reach && slots[l->outside])
      return outside(p, s, f, l, slots + l->outside);
  }
  return MOTH_OK;
}

enum { MOST_ADDRESSES = 256 };

typedef struct Head {
  const MothPlan *p;
  const MothPlanStep *s;
  MothPlanFrame *f;
} Head;

static MothStatus run_head(void *ctx) {
  const Head *h = ctx;
  return run_direct(&h->p->calls[h->s->head], h->f);
}

static MothStatus run_blocks(const MothPlan *p, const MothPlanStep *s, MothPlanFrame *f) {
  char *addresses[MOST_ADDRESSES];
  Head head = {p, s, f};
  uint32_t n = 0;
  bool has_head = s->head != UINT32_MAX;
  for (uint32_t i = 0; i + has_head < s->nresults; i++)
    addresses[n++] = address_of(p, f, s->values[i]);
  for (uint32_t i = 0; i < s->nown; i++)
    addresses[n++] = address_of(p, f, s->values[s->nresults + i]);
  return moth_blocks_run_behind(s->blocks, addresses, f->numbers, has_head ? run_head : NULL,
                                &head);
}

static MothStatus run_step(const MothPlan *p, const MothPlanStep *s, MothPlanFrame *f) {
  const volatile sig_atomic_t *outer;
  MothStatus status, stopped;
  switch ((MothPlanStepKind)s->kind) {
  case MOTH_STEP_DIRECT:
    MOTH_TRY(make_fresh(p, f, s));
    return run_direct(&p->calls[s->call], f);
  case MOTH_STEP_DISPATCHED:
    return run_dispatched(p, &p->calls[s->call], f);
  case MOTH_STEP_VIEW:
    run_view(p, &p->calls[s->call], f);
    return MOTH_OK;
  case MOTH_STEP_BLOCKS:
  case MOTH_STEP_LAUNCHES:
    MOTH_TRY(make_fresh(p, f, s));
    outer = moth_stoppable_begin();
    status = s->kind == MOTH_STEP_BLOCKS ? run_blocks(p, s, f) : run_launches(p, s, f);
    stopped = moth_stoppable_end(outer);
    return stopped ? stopped : status;
  }
  return MOTH_OK;
}

static MothStatus fail_at(const MothPlan *p, const MothPlanStep *s, MothStatus status) {
  const char *place = s->call < p->ncalls ? p->calls[s->call].place : "";
  if (status == MOTH_ERR_HOST || status == MOTH_ERR_INTERRUPTED || !moth_trace_host.failed)
    return status;
  return moth_trace_host.failed(place, status);
}

/* owned: the inputs, if they are the plan's to release. */
static MothStatus run_steps(const MothPlan *p, MothPlanFrame *f, MothTensor **owned,
                            MothKeeping *keeping) {
  uint32_t made = 0;
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const MothPlanStep *s = &p->steps[i];
    for (; made < p->napart && p->apart[made].first == i; made++)
      MOTH_TRY(make_apart(p, f, made));
    if (keeping)
      moth_keeping_call(keeping, moth_plan_kept(p, i));
    MothStatus status = run_step(p, s, f);
    if (__builtin_expect(status == MOTH_ERR_MEMORY, 0) && moth_alloc_collect &&
        moth_alloc_collect())
      status = run_step(p, s, f);
    if (__builtin_expect(status != MOTH_OK, 0))
      return fail_at(p, s, status);
    if (keeping)
      moth_keeping_made(keeping);
    for (uint32_t k = 0; k < s->ndrops; k++) {
      MothTensor **t = &f->values[s->drops[k]];
      moth_tensor_release(*t);
      *t = NULL;
    }
    for (uint32_t k = 0; k < s->nends && owned; k++) {
      moth_tensor_release(owned[s->ends[k]]);
      owned[s->ends[k]] = NULL;
    }
    for (uint32_t k = 0; k < made; k++)
      if (p->apart[k].last == i)
        free_apart(p, f, k);
  }
  return MOTH_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

typedef enum Fit { FITS, OTHERWISE, WRONG } Fit;

static Fit fits(const MothTensor *want, const MothTensor *t) {
  if (t->dtype != want->dtype || t->ndim != want->ndim || t->device.type != want->device.type ||
      t->device.index != want->device.index ||
      memcmp(t->shape, want->shape, sizeof *t->shape * t->ndim) != 0)
    return WRONG;
  return moth_same_strides(t->ndim, t->numel, t->shape, t->stride, want->stride) ? FITS : OTHERWISE;
}

/* Whether the steps can run with these inputs; OTHERWISE: the graph can. With `any` inputs may have other sizes. */
static MothStatus check(const MothPlan *p, bool any, MothTensor *const *inputs, uint32_t n,
                        bool checked, Fit *fit) {
  const MothThread *t = &moth_thread;
  char a[256], b[256];
  *fit = FITS;
  if (n != p->ninputs)
    return moth_fail(MOTH_ERR_VALUE, "the graph has %u inputs, got %u", p->ninputs, n);
  if (t->include & (MOTH_KEY_FAKE | MOTH_KEY_PENDING | MOTH_KEY_BATCH) || moth_released_storages ||
      ((t->nabove || t->nbelow) && moth_is_traced()))
    *fit = OTHERWISE;
  for (uint32_t i = 0; i < n; i++) {
    const MothTensor *want = p->values[p->inputs[i]].fake;
    if (inputs[i]->keys & (MOTH_KEY_FAKE | MOTH_KEY_SUBCLASS | MOTH_KEY_PENDING | MOTH_KEY_LAZY |
                           MOTH_KEY_BATCH | MOTH_KEY_TANGENT))
      *fit = OTHERWISE;
    Fit one = checked ? FITS : fits(want, inputs[i]);
    if (one == WRONG && any && inputs[i]->dtype == want->dtype && inputs[i]->ndim == want->ndim &&
        inputs[i]->device.type == want->device.type)
      one = FITS;
    if (one == WRONG)
      return moth_fail(MOTH_ERR_VALUE, "input %u of the graph: expected %s, got %s", i + 1,
                       moth_tensor_format(want, a, sizeof a),
                       moth_tensor_format(inputs[i], b, sizeof b));
    if (one == OTHERWISE)
      *fit = OTHERWISE;
  }
  for (uint32_t i = 0; i < p->nsteps; i++)
    if (p->steps[i].kind == MOTH_STEP_DIRECT || p->steps[i].head != UINT32_MAX) {
      const MothPlanCall *c = &p->calls[p->steps[i].call];
      if (moth_kernel_of(c->op, MOTH_CPU) != c->kernel)
        *fit = OTHERWISE;
    }
  return MOTH_OK;
}

static void finish(const MothPlan *p, MothPlanFrame *f, MothTensor **outputs, bool ok) {
  for (uint32_t i = 0; ok && i < p->noutputs; i++)
    moth_tensor_retain(outputs[i] = f->values[p->outputs[i]]);
  for (uint32_t i = 0; i < p->nvalues; i++) {
    const MothPlanValue *v = &p->values[i];
    if (v->place != MOTH_PLACE_FRESH && v->place != MOTH_PLACE_GIVEN)
      continue;
    moth_tensor_release(f->values[i]);
    f->values[i] = NULL;
  }
  for (uint32_t k = 0; k < p->napart; k++)
    free_apart(p, f, k);
  drop_arena(p, f);
}

static MothStatus run_here(MothPlan *p, MothTensor *const *inputs, MothTensor **owned,
                           const MothValue *numbers, MothTensor **outputs) {
  MothThread *t = &moth_thread;
  MothPlanFrame *f = take_frame(p);
  if (!f)
    return moth_no_memory(0);
  uint32_t exclude = t->exclude, include = t->include;
  t->exclude |= MOTH_KEY_AUTOGRAD | MOTH_KEY_ABOVE;
  t->include &= ~(uint32_t)MOTH_KEY_AUTOCAST;
  MothStatus status = make_arena(p, f);
  if (status == MOTH_OK) {
    f->numbers = numbers;
    for (uint32_t i = 0; i < p->ninputs; i++)
      f->values[p->inputs[i]] = inputs[i];
    MothKeeping own, *keeping = moth_plan_keep_begin(p, &own);
    status = run_steps(p, f, owned, keeping);
    moth_plan_keep_end(p, keeping);
  }
  t->include = include;
  t->exclude = exclude;
  finish(p, f, outputs, status == MOTH_OK);
  give_frame(p, f);
  MothTraceCounters *counters = moth_trace_counters();
  if (status == MOTH_OK && p->peak_bytes > counters->peak_bytes)
    counters->peak_bytes = p->peak_bytes;
  return status;
}

static MothStatus run(MothPlan *p, MothTensor *const *inputs, MothTensor **owned, uint32_t ninputs,
                      const MothValue *numbers, MothTensor **outputs, bool checked) {
  Fit fit;
  MothThread *t = &moth_thread;
  if (!p->finished)
    return moth_fail(MOTH_ERR_STATE, "the plan is not finished");
  MOTH_TRY(check(p, p->any_sizes, inputs, ninputs, checked || p->any_sizes, &fit));
  bool no_grad = t->no_grad;
  t->no_grad = true;
  MothPlan *other = NULL;
  if (p->any_sizes && fit == FITS && !moth_plan_is_for(p, inputs, numbers)) {
    other = moth_plan_for(p, inputs, numbers);
    fit = other ? FITS : OTHERWISE;
  }
  MothStatus status = fit == FITS ? run_here(other ? other : p, inputs, owned, numbers, outputs)
                                  : moth_graph_run(p->graph, inputs, ninputs, numbers, outputs);
  t->no_grad = no_grad;
  moth_plan_release(other);
  return status;
}

MothStatus moth_plan_run(MothPlan *p, MothTensor *const *inputs, uint32_t ninputs,
                         const MothValue *numbers, MothTensor **outputs, bool checked) {
  return run(p, inputs, NULL, ninputs, numbers, outputs, checked);
}

MothStatus moth_plan_consume(MothPlan *p, MothTensor **inputs, uint32_t ninputs,
                             const MothValue *numbers, MothTensor **outputs) {
  MothStatus status = run(p, inputs, inputs, ninputs, numbers, outputs, true);
  for (uint32_t i = 0; i < ninputs; i++) {
    moth_tensor_release(inputs[i]);
    inputs[i] = NULL;
  }
  return status;
}
