/* The gradient reducer of DistributedDataParallel.
 *
 * A hook in C on each parameter runs when its gradient has been added to. It copies the gradient into the bucket's buffer
 * (or finds it there, if gradients are views of the buffers) and counts. A bucket whose gradients are all there is sent
 * as soon as the buckets before it have been: all ranks send them in this order, in whatever order their gradients come.
 * The group's thread reduces while backward goes on. A callback at the end of backward waits for the buckets, and puts
 * the averages into the gradients. */
#include "comm/reducer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/tensor.h"

typedef struct Param {
  MothReducer *reducer;
  MothTensor *t;    /* retained */
  MothTensor *view; /* its part of the buffer */
  char *name;
  int bucket;
  int64_t hook, fired; /* times in this backward */
  int64_t expected;    /* static graphs: times in the first one */
  bool ready;
} Param;

typedef struct Bucket {
  MothTensor *buffer,
      *host; /* host: a copy in the host's memory of one on another device; NULL: not needed */
  int pending, size;
  bool sent;
  MothWork *work;
} Bucket;

struct MothReducer {
  MothGroup *group;
  Param *params;
  Bucket *buckets;
  int nparams, nbuckets, next; /* next: the bucket to be sent next */
  int *order, norder;
  int64_t passes;
  MothReducerOptions options;
  MothReducerHook hook;
  bool armed, sync, freed;
  int32_t *used; /* find_unused: whether a parameter took part, on any rank */
};

static MothStatus copy(MothTensor *to, MothTensor *from) {
  if (to->contiguous && from->contiguous && to->dtype == from->dtype &&
      to->device.type == MOTH_CPU && from->device.type == MOTH_CPU) {
    MOTH_TRY(moth_tensor_ready(from));
    if (to->numel > 0 && to->data != from->data)
      memcpy(to->data, from->data, (size_t)(to->numel * moth_itemsize(to)));
    ++*moth_version_of(to);
    return MOTH_OK;
  }
  bool was = moth_set_grad_enabled(false);
  MothValue args[2] = {moth_v_tensor(to), moth_v_tensor(from)}, result[MOTH_MAX_RESULTS];
  MothStatus s = moth_op_call(moth_op_find("copy_"), 2, args, result);
  if (s == MOTH_OK)
    moth_tensor_release(result[0].u.t);
  moth_set_grad_enabled(was);
  return s;
}

static MothStatus fill_zero(MothTensor *t) {
  bool was = moth_set_grad_enabled(false);
  MothValue args[2] = {moth_v_tensor(t), moth_v_int(0)}, result[MOTH_MAX_RESULTS];
  MothStatus s = moth_op_call(moth_op_find("fill_"), 2, args, result);
  if (s == MOTH_OK)
    moth_tensor_release(result[0].u.t);
  moth_set_grad_enabled(was);
  return s;
}

/* --- one backward ------------------------------------------------------------------------------- */

static void reset(MothReducer *r) {
  r->next = 0;
  r->armed = false;
  for (int i = 0; i < r->nparams; i++) {
    r->params[i].ready = false;
    r->params[i].fired = 0;
  }
  for (int i = 0; i < r->nbuckets; i++) {
    Bucket *b = &r->buckets[i];
    b->pending = b->size;
    b->sent = false;
    moth_work_release(b->work);
    b->work = NULL;
  }
}

static MothStatus send_bucket(MothReducer *r, int index) {
  Bucket *b = &r->buckets[index];
  b->sent = true;
  if (r->hook.start)
    return r->hook.start(r->hook.ctx, index);
  MothTensor *memory = b->host ? b->host : b->buffer;
  if (b->host)
    MOTH_TRY(copy(b->host, b->buffer));
  MothCommRequest request = {.op = MOTH_COMM_ALL_REDUCE,
                             .reduce = MOTH_COMM_AVG,
                             .dtype = (MothDType)memory->dtype,
                             .device = memory->device,
                             .ndim = memory->ndim,
                             .shape = memory->shape,
                             .in = memory->data,
                             .out = memory->data,
                             .nin = memory->numel,
                             .nout = memory->numel,
                             .tensors = {memory, NULL},
                             .where = "DistributedDataParallel"};
  return moth_comm_start(r->group, &request, &b->work);
}

static MothStatus send_ready(MothReducer *r) {
  while (r->next < r->nbuckets && r->buckets[r->next].pending == 0)
    MOTH_TRY(send_bucket(r, r->next++));
  return MOTH_OK;
}

static MothStatus mark_ready(MothReducer *r, Param *p) {
  p->ready = true;
  r->buckets[p->bucket].pending--;
  return send_ready(r);
}

/* Which parameters took part on any rank: behind all buckets, so that the order of calls does not depend on it. */
static MothStatus agree_on_used(MothReducer *r) {
  const int64_t n = r->nparams;
  MothDevice where = moth_group_device(r->group);
  MothTensor *own = NULL, *there = NULL;
  MOTH_TRY(moth_tensor_from_ptr(r->used, 1, &n, MOTH_INT32, NULL, NULL, &own));
  MothStatus status = MOTH_OK;
  if (where.type == MOTH_CPU)
    moth_tensor_retain(there = own);
  else
    MOTH_GO(moth_tensor_new(1, &n, MOTH_INT32, where, &there));
  MOTH_GO(copy(there, own));
  MothCommRequest request = {.op = MOTH_COMM_ALL_REDUCE,
                             .reduce = MOTH_COMM_MAX,
                             .dtype = MOTH_INT32,
                             .device = where,
                             .ndim = 1,
                             .shape = &n,
                             .in = there->data,
                             .out = there->data,
                             .nin = n,
                             .nout = n,
                             .where = "DistributedDataParallel (unused parameters)"};
  MOTH_GO(moth_comm_run(r->group, &request));
  MOTH_GO(copy(own, there));
done:
  moth_tensor_release(own);
  moth_tensor_release(there);
  return status;
}

/* Those without a gradient in this backward: an error that names them, or zeros. */
static MothStatus complete(MothReducer *r) {
  char names[700] = "";
  int missing = 0;
  for (int i = 0; i < r->nparams; i++) {
    const Param *p = &r->params[i];
    if (p->ready || (r->options.is_static && r->passes > 0 && p->expected == 0))
      continue;
    missing++;
    size_t at = strlen(names);
    if (at < 600)
      snprintf(names + at, sizeof names - at, "%s%.90s", at ? ", " : "", p->name);
    else if (names[at - 1] != '.')
      strcat(names, " ...");
  }
  if (missing > 0 && !r->options.find_unused && !(r->options.is_static && r->passes == 0))
    return moth_fail(
        MOTH_ERR_STATE,
        "DistributedDataParallel: %d parameter%s took no part in this backward on rank %d: "
        "%s; the other ranks wait for %s. Give find_unused_parameters = true, or leave "
        "out what the loss does not depend on",
        missing, missing == 1 ? "" : "s", r->group->rank, names, missing == 1 ? "it" : "them");
  for (int i = 0; i < r->nparams; i++) {
    Param *p = &r->params[i];
    if (r->used)
      r->used[i] = p->ready;
    if (p->ready)
      continue;
    MothTensor *grad = moth_tensor_grad(p->t);
    if (!grad)
      MOTH_TRY(fill_zero(p->view));
    else if (grad->data !=
             p->view->data) /* of backwards without sync, or of a static graph's first */
      MOTH_TRY(copy(p->view, grad));
    MOTH_TRY(mark_ready(r, p));
  }
  return r->used ? agree_on_used(r) : MOTH_OK;
}

static MothStatus finish_bucket(MothReducer *r, int index) {
  Bucket *b = &r->buckets[index];
  if (!b->work)
    return r->hook.finish ? r->hook.finish(r->hook.ctx, index) : MOTH_OK;
  MOTH_TRY(moth_work_wait(b->work, -1, NULL));
  if (b->host)
    return copy(b->buffer, b->host);
  ++*moth_version_of(b->buffer);
  return MOTH_OK;
}

/* A gradient that is a view of the buffer, without its history. */
static MothStatus set_view(Param *p) {
  MothTensor *own = NULL;
  MOTH_TRY(moth_tensor_alias(p->view, false, &own));
  MothStatus s = moth_tensor_set_grad(p->t, own);
  moth_tensor_release(own);
  return s;
}

static MothStatus hand_out(MothReducer *r) {
  for (int i = 0; i < r->nbuckets; i++)
    MOTH_TRY(finish_bucket(r, i));
  for (int i = 0; i < r->nparams; i++) {
    Param *p = &r->params[i];
    MothTensor *grad = moth_tensor_grad(p->t);
    if (r->used && !r->used[i] && !p->fired)
      continue; /* no rank used it: its gradient stays as it is */
    if (r->options.is_static && p->fired == 0 && !grad)
      continue;
    if (r->options.as_view) {
      if (!grad || grad->data != p->view->data)
        MOTH_TRY(set_view(p));
    } else if (grad) {
      MOTH_TRY(copy(grad, p->view));
    } else {
      MothTensor *own = NULL;
      MOTH_TRY(
          moth_tensor_new(p->t->ndim, p->t->shape, (MothDType)p->t->dtype, p->t->device, &own));
      MothStatus s = copy(own, p->view);
      if (s == MOTH_OK)
        s = moth_tensor_set_grad(p->t, own);
      moth_tensor_release(own);
      MOTH_TRY(s);
    }
  }
  return MOTH_OK;
}

static MothStatus at_end(void *ctx, MothStatus status) {
  MothReducer *r = ctx;
  if (r->freed || !r->armed)
    return MOTH_OK;
  MothStatus s = status == MOTH_OK ? complete(r) : MOTH_OK;
  if (status == MOTH_OK && s == MOTH_OK) {
    s = hand_out(r);
    for (int i = 0; i < r->nparams && r->passes == 0; i++)
      r->params[i].expected = r->params[i].fired;
    r->passes++;
  }
  if (status != MOTH_OK || s != MOTH_OK) { /* the other ranks wait for buckets that do not come */
    char text[800];
    snprintf(text, sizeof text, "%s", moth_last_error());
    moth_group_fault(r->group, "backward failed on rank %d: %s",
                     moth_group_world_rank(r->group, r->group->rank),
                     text[0] ? text : "a function of the program raised an error");
    for (int i = 0; i < r->nbuckets; i++) /* their memory must not go while it is written to */
      if (r->buckets[i].work)
        moth_work_wait(r->buckets[i].work, 5, &(bool){false});
    if (s != MOTH_OK)
      moth_fail(s, "%s", text);
  }
  reset(r);
  return s;
}

static MothStatus on_gradient(void *ctx, MothTensor *leaf) {
  Param *p = ctx;
  MothReducer *r = p->reducer;
  if (!r->sync)
    return MOTH_OK;
  if (!r->armed) {
    MOTH_TRY(moth_queue_callback(at_end, NULL, r));
    r->armed = true;
  }
  p->fired++;
  if (r->options.is_static && r->passes > 0 && p->fired < p->expected)
    return MOTH_OK; /* it will come again */
  if (p->ready)
    return moth_fail(
        MOTH_ERR_STATE,
        "DistributedDataParallel: the gradient of %s came a second time in one backward, after "
        "it was sent: it is used in several checkpointed parts; give static_graph = true",
        p->name);
  if (r->passes == 0 && r->norder < r->nparams)
    r->order[r->norder++] = (int)(p - r->params);
  if (r->options.is_static && r->passes == 0)
    return MOTH_OK; /* all at the end: how often each comes is not known yet */
  MothTensor *grad = moth_tensor_grad(leaf);
  if (!grad)
    return moth_fail(
        MOTH_ERR_TYPE,
        "DistributedDataParallel: %s has a sparse gradient: make it dense (sparse = false)",
        p->name);
  if (grad->data != p->view->data)
    MOTH_TRY(copy(p->view, grad));
  return mark_ready(r, p);
}

/* --- making it ---------------------------------------------------------------------------------- */

static MothStatus make_buckets(MothReducer *r) {
  int64_t *length = calloc((size_t)r->nbuckets, sizeof *length);
  if (!length)
    return moth_no_memory((size_t)r->nbuckets * sizeof *length);
  for (int i = 0; i < r->nparams; i++) {
    Bucket *b = &r->buckets[r->params[i].bucket];
    length[r->params[i].bucket] += r->params[i].t->numel;
    b->size++;
  }
  MothStatus status = MOTH_OK;
  for (int i = 0; i < r->nbuckets; i++) {
    const MothTensor *like = NULL;
    for (int k = 0; k < r->nparams && !like; k++)
      like = r->params[k].bucket == i ? r->params[k].t : NULL;
    if (!like)
      MOTH_GO(moth_fail(MOTH_ERR_VALUE, "a bucket has no parameters"));
    MothDType dtype = (MothDType)like->dtype;
    MOTH_GO(moth_tensor_new(1, &length[i], dtype, like->device, &r->buckets[i].buffer));
    MothDevice wanted = moth_group_device(r->group);
    if (like->device.type != wanted.type)
      MOTH_GO(moth_tensor_new(1, &length[i], dtype, wanted, &r->buckets[i].host));
    length[i] = 0;
  }
  for (int i = 0; i < r->nparams; i++) {
    Param *p = &r->params[i];
    MothTensor *buffer = r->buckets[p->bucket].buffer;
    int64_t stride[MOTH_MAX_DIMS];
    if (buffer->dtype != p->t->dtype || buffer->device.type != p->t->device.type)
      MOTH_GO(moth_fail(MOTH_ERR_VALUE, "the parameters of a bucket differ in dtype or device"));
    moth_contiguous_strides(p->t->ndim, p->t->shape, stride);
    MOTH_GO(moth_tensor_view(buffer, p->t->ndim, p->t->shape, stride, length[p->bucket], &p->view));
    length[p->bucket] += p->t->numel;
  }
done:
  free(length);
  return status;
}

MothStatus moth_reducer_new(MothGroup *g, int nparams, MothTensor **params,
                            const char *const *names, const int *bucket_of, int nbuckets,
                            MothReducerOptions options, MothReducer **out) {
  MothReducer *r = calloc(1, sizeof *r);
  if (!r)
    return moth_no_memory(sizeof *r);
  moth_group_retain(g);
  *r = (MothReducer){
      .group = g, .nparams = nparams, .nbuckets = nbuckets, .options = options, .sync = true};
  r->params = calloc((size_t)nparams + 1, sizeof *r->params);
  r->buckets = calloc((size_t)nbuckets + 1, sizeof *r->buckets);
  r->order = calloc((size_t)nparams + 1, sizeof *r->order);
  r->used = options.find_unused ? calloc((size_t)nparams + 1, sizeof *r->used) : NULL;
  MothStatus status = MOTH_OK;
  if (!r->params || !r->buckets || !r->order || (options.find_unused && !r->used)) {
    r->nparams = r->nbuckets = 0;
    MOTH_GO(moth_no_memory(0));
  }
  for (int i = 0; i < nparams; i++) {
    Param *p = &r->params[i];
    p->reducer = r;
    p->t = params[i];
    moth_tensor_retain(p->t);
    p->name = strdup(names[i]);
    p->bucket = bucket_of[i];
    if (!p->name)
      MOTH_GO(moth_no_memory(strlen(names[i]) + 1));
    if (p->bucket < 0 || p->bucket >= nbuckets)
      MOTH_GO(moth_fail(MOTH_ERR_VALUE, "there is no bucket %d", p->bucket));
  }
  MOTH_GO(make_buckets(r));
  for (int i = 0; i < nparams; i++)
    MOTH_GO(moth_hook_gradient(r->params[i].t, on_gradient, &r->params[i], &r->params[i].hook));
  reset(r);
  *out = r;
done:
  if (status != MOTH_OK)
    moth_reducer_free(r);
  return status;
}

MothStatus moth_hook_gradient(MothTensor *leaf, MothLeafHook run, void *ctx, int64_t *id) {
  bool frozen = !moth_tensor_requires_grad(leaf);
  if (frozen)
    MOTH_TRY(moth_tensor_set_requires_grad(leaf, true));
  MothStatus s = moth_tensor_register_post_accumulate_grad_hook(leaf, run, NULL, ctx, id);
  if (frozen)
    moth_tensor_set_requires_grad(leaf, false);
  return s;
}

void moth_reducer_free(MothReducer *r) {
  if (!r)
    return;
  for (int i = 0; i < r->nbuckets;
       i++) { /* a bucket in flight is waited for: its memory is written to */
    if (r->buckets[i].work)
      moth_work_wait(r->buckets[i].work, 5, &(bool){false});
    moth_work_release(r->buckets[i].work);
    moth_tensor_release(r->buckets[i].buffer);
    moth_tensor_release(r->buckets[i].host);
  }
  for (int i = 0; i < r->nparams; i++) {
    Param *p = &r->params[i];
    if (p->t && p->hook)
      moth_tensor_remove_hook(p->t, p->hook);
    moth_tensor_release(p->t);
    moth_tensor_release(p->view);
    free(p->name);
  }
  moth_group_release(r->group);
  free(r->params);
  free(r->buckets);
  free(r->order);
  free(r->used);
  free(r);
}

/* Under join: this rank has no more inputs. */
MothStatus moth_reducer_shadow(MothReducer *r) {
  for (int i = 0; i < r->nbuckets; i++) {
    MOTH_TRY(fill_zero(r->buckets[i].buffer));
    MOTH_TRY(send_bucket(r, i));
  }
  if (r->used) {
    memset(r->used, 0, (size_t)r->nparams * sizeof *r->used);
    MOTH_TRY(agree_on_used(r));
  }
  for (int i = 0; i < r->nbuckets; i++)
    MOTH_TRY(finish_bucket(r, i));
  reset(r);
  return MOTH_OK;
}

bool moth_reducer_set_sync(MothReducer *r, bool on) {
  bool was = r->sync;
  r->sync = on;
  return was;
}
void moth_reducer_set_hook(MothReducer *r, MothReducerHook hook) {
  r->hook = hook;
}
MothTensor *moth_reducer_buffer(MothReducer *r, int bucket) {
  return bucket >= 0 && bucket < r->nbuckets ? r->buckets[bucket].buffer : NULL;
}
int64_t moth_reducer_order(const MothReducer *r, const int **order, int *n) {
  *order = r->order;
  *n = r->norder;
  return r->passes;
}
