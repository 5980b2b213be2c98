/* Units of fully_shard.
 *
 * The whole parameters of a unit are leaves whose memory is there only while it is used: their storages are released and
 * allocated again, so that what autograd has saved (a parameter, a view of it) is whole again when backward comes. The
 * unit fills them behind the graph's back: versions do not change.
 *
 * Gathering: the shards of all parameters, one after the other, padded to the rows of rank 0, in one call, into a
 * buffer, from which they are copied to where they belong. Reducing: a hook on each parameter counts its gradient. When
 * all are there, they are copied into a buffer [ranks, rows of each parameter, flags], rank by rank, and freed on the way;
 * a reduce_scatter leaves this rank's part, of which the gradients of its shards are views. A flag says whether a
 * parameter took part; one that took part on no rank keeps the gradient that it had.
 *
 * Between forward and backward a part may be kept that is larger than a shard (moth_unit_set_part), and which fewer ranks,
 * those of one host, have to put together.
 *
 * What is alive at once, beside shards and their gradients: at most three units. Gradients of one unit are in flight at a
 * time (`Chain`), and the next unit's parameters are gathered once they have arrived; whole parameters are released
 * before their gradients are copied. Which call comes when may differ between ranks, the order of calls does not. */
#include "comm/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/reducer.h"
#include "core/alloc.h"
#include "core/error.h"
#include "core/tensor.h"
#include "dispatch/steps.h"

/* Shared by the units of a group. */
typedef struct Chain {
  MothCommBefore before; /* the program's own calls in the group come after `later` on all ranks */
  int refs;
  MothUnit *reducing;  /* its gradients are in flight */
  MothUnit *averaging; /* so are they, among the replicas; its part of the result waits for them */
  MothUnit *later;     /* to be gathered when they have arrived */
} Chain;

typedef struct Part {
  MothUnit *unit;
  MothTensor *full, *shard;  /* retained */
  int64_t rows, each, width; /* rows of the whole, of rank 0; elements of a row */
  int64_t at_bytes, at;      /* in the buffers: bytes of parameters, elements of gradients */
  int64_t hook;
  int flag; /* its number among those whose gradients are in the buffers; -1: not there */
  bool ready, is_trained;
} Part;

struct MothUnit {
  MothGroup *group, *replicas;
  MothGroup *part;       /* in which `kept` is gathered; may be NULL */
  MothTensor *kept;      /* this rank's part of the gathered bytes; NULL: none */
  int64_t kept_versions; /* of the shards, when it was kept */
  bool by_part;          /* what is being gathered */
  Chain *chain;
  Part *parts;
  char name[64];
  int n, ntrained, pending;
  int state;
  bool is_alias; /* one rank: whole parameters and shards are the same memory */
  bool reduce, reshard, reduced;
  int64_t versions;        /* of the shards, when they were gathered */
  int64_t bytes, elements; /* of each rank in the buffers */
  MothDType grad_dtype;
  MothTensor *flat, *buffer,
      *result; /* of the parameters; of the gradients; this rank's part of them */
  MothWork *gathering, *reducing, *averaging;
};

static const MothDevice host = {MOTH_CPU, 0};

/* --- copies ------------------------------------------------------------------------------------- */

static bool is_plain(const MothTensor *t) {
  return t->contiguous && t->device.type == MOTH_CPU;
}

/* Converts and moves; versions and history stay as they are. */
static MothStatus copy(MothTensor *to, MothTensor *from) {
  if (to->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_tensor_ready(from));
  if (to->dtype == from->dtype && is_plain(to) && is_plain(from)) {
    memcpy(to->data, from->data, (size_t)(to->numel * moth_itemsize(to)));
    return MOTH_OK;
  }
  int64_t version = *moth_version_of(to);
  bool was = moth_set_grad_enabled(false);
  MothValue args[2] = {moth_v_tensor(to), moth_v_tensor(from)}, result[MOTH_MAX_RESULTS];
  MothStatus s = moth_op_call(moth_op_find("copy_"), 2, args, result);
  if (s == MOTH_OK)
    moth_tensor_release(result[0].u.t);
  moth_set_grad_enabled(was);
  *moth_version_of(to) = version;
  return s;
}

/* Rows of a buffer in the host's memory as a tensor, and rows of a parameter (or gradient) as one; owned. */
static MothStatus rows_at(void *data, int64_t rows, int64_t width, MothDType dtype,
                          MothTensor **out) {
  return moth_tensor_from_ptr(data, 2, (int64_t[]){rows, width}, dtype, NULL, NULL, out);
}
static MothStatus rows_of(MothTensor *t, int64_t first, int64_t rows, int64_t width,
                          MothTensor **out) {
  return moth_tensor_view(t, 2, (int64_t[]){rows, width}, (int64_t[]){width, 1},
                          t->offset + first * width, out);
}

/* Rows of a contiguous tensor to memory of the host, or back. */
static MothStatus copy_rows(MothTensor *t, int64_t first, int64_t rows, int64_t width, void *data,
                            MothDType dtype, bool back) {
  MothTensor *a = NULL, *b = NULL;
  MothStatus status = MOTH_OK;
  int64_t n = rows * width;
  if (n == 0)
    return MOTH_OK;
  MOTH_TRY(moth_tensor_ready(t));
  if ((MothDType)t->dtype == dtype && is_plain(t)) {
    char *own = t->data + first * width * moth_itemsize(t);
    memcpy(back ? own : data, back ? data : own, (size_t)(n * moth_itemsize(t)));
    return MOTH_OK;
  }
  MOTH_GO(rows_of(t, first, rows, width, &a));
  MOTH_GO(rows_at(data, rows, width, dtype, &b));
  status = back ? copy(a, b) : copy(b, a);
done:
  moth_tensor_release(a);
  moth_tensor_release(b);
  return status;
}

static int64_t rows_of_rank(const Part *p, int rank) {
  int64_t first = rank * p->each;
  return first >= p->rows ? 0 : p->rows - first < p->each ? p->rows - first : p->each;
}

/* Which gradients the next backward gives: of those that are trained now. */
static void reset(MothUnit *u) {
  u->pending = 0;
  for (int i = 0; i < u->n; i++) {
    Part *p = &u->parts[i];
    p->ready = false;
    p->is_trained = moth_tensor_requires_grad(p->shard);
    u->pending += p->is_trained;
  }
}

/* --- gathering ---------------------------------------------------------------------------------- */

static int64_t versions(const MothUnit *u) {
  int64_t sum = 0;
  for (int i = 0; i < u->n; i++)
    sum += *moth_version_of(u->parts[i].shard);
  return sum;
}

static void forget_kept(MothUnit *u) {
  moth_tensor_release(u->kept);
  u->kept = NULL;
}

static MothStatus keep(MothUnit *u) {
  int64_t n = u->bytes * (u->group->size / u->part->size);
  forget_kept(u);
  MOTH_TRY(moth_tensor_new(1, &n, MOTH_UINT8, host, &u->kept));
  memcpy(u->kept->data, u->flat->data + u->part->rank * n, (size_t)n);
  u->kept_versions = u->versions;
  return MOTH_OK;
}

MothStatus moth_unit_set_part(MothUnit *u, MothGroup *part) {
  int n = part ? part->size : 1, first = part ? u->group->rank - part->rank : 0;
  if (u->group->size % n != 0 || first % n != 0)
    return moth_fail(MOTH_ERR_VALUE,
                     "fully_shard: %d ranks from rank %d on are no part of %d ranks", n, first,
                     u->group->size);
  if (part)
    moth_group_retain(part);
  moth_group_release(u->part);
  u->part = part;
  forget_kept(u);
  return MOTH_OK;
}

static void forget_later(Chain *c, MothGroup *g) {
  c->later = NULL;
  if (atomic_load(&g->before) == &c->before)
    atomic_store(&g->before, NULL);
}

static MothStatus start_later(Chain *c, const MothUnit *but) {
  MothUnit *u = c->later;
  if (u)
    forget_later(c, u->group);
  return u && u != but ? moth_unit_gather(u) : MOTH_OK;
}

MothStatus moth_unit_gather(MothUnit *u) {
  MOTH_TRY(start_later(u->chain, u));
  if (u->n == 0 || u->state == MOTH_UNIT_GATHERING || u->is_alias ||
      (u->state == MOTH_UNIT_FULL && u->versions == versions(u)))
    return MOTH_OK;
  int64_t size = u->group->size, total = u->bytes * size;
  u->by_part = u->kept && u->kept_versions == versions(u);
  if (!u->by_part)
    forget_kept(u);
  MOTH_TRY(moth_tensor_new(1, &total, MOTH_UINT8, host, &u->flat));
  MothGroup *group = u->by_part ? u->part : u->group;
  int64_t each = u->by_part ? u->kept->numel : u->bytes;
  char *own = u->flat->data + group->rank * each, where[96];
  MothStatus status = MOTH_OK;
  if (u->by_part)
    memcpy(own, u->kept->data, (size_t)each);
  for (int i = 0; i < u->n && !u->by_part; i++) {
    const Part *p = &u->parts[i];
    if (moth_tensor_is_fake(p->shard)) {
      status = moth_fail(
          MOTH_ERR_STATE,
          "[fully_shard] parameters of %s are fake: they have no memory to be gathered", u->name);
      goto done;
    }
    MOTH_GO(copy_rows(p->shard, 0, rows_of_rank(p, u->group->rank), p->width, own + p->at_bytes,
                      (MothDType)p->full->dtype, false));
  }
  u->versions = versions(u);
  snprintf(where, sizeof where, "fully_shard (parameters of %s)", u->name);
  MothCommRequest r = {.op = MOTH_COMM_ALL_GATHER,
                       .dtype = MOTH_UINT8,
                       .ndim = 1,
                       .shape = &each,
                       .in = own,
                       .out = u->flat->data,
                       .nin = each,
                       .nout = total,
                       .tensors = {u->flat, NULL},
                       .where = where};
  MOTH_GO(moth_comm_start(group, &r, &u->gathering));
  if (u->state == MOTH_UNIT_SHARDED)
    u->state = MOTH_UNIT_GATHERING;
done:
  if (status != MOTH_OK) {
    moth_tensor_release(u->flat);
    u->flat = NULL;
  }
  return status;
}

static void forget_gather(MothUnit *u) {
  moth_work_release(u->gathering);
  moth_tensor_release(u->flat);
  u->gathering = NULL;
  u->flat = NULL;
}

MothStatus moth_unit_ready(MothUnit *u) {
  MOTH_TRY(moth_unit_gather(u));
  bool begun = false;
  for (int i = 0; i < u->n; i++) { /* who freezes a parameter does so by its shard */
    const Part *p = &u->parts[i];
    begun |= p->ready;
    if (moth_tensor_requires_grad(p->full) != moth_tensor_requires_grad(p->shard))
      MOTH_TRY(moth_tensor_set_requires_grad(p->full, moth_tensor_requires_grad(p->shard)));
  }
  if (!begun)
    reset(u);
  if (!u->gathering)
    return MOTH_OK;
  MothStatus status = moth_work_wait(u->gathering, -1, NULL);
  for (int i = 0; i < u->n && status == MOTH_OK; i++) {
    const Part *p = &u->parts[i];
    MothTensor *full = p->full;
    if (full->numel > 0)
      MOTH_GO(moth_storage_resize(full, (int64_t)full->storage->nbytes));
    MOTH_GO(moth_tensor_check_memory(full));
    for (int rank = 0; rank < u->group->size; rank++)
      MOTH_GO(copy_rows(full, rank * p->each, rows_of_rank(p, rank), p->width,
                        u->flat->data + rank * u->bytes + p->at_bytes, (MothDType)full->dtype,
                        true));
  }
  if (status == MOTH_OK && u->part && !u->by_part)
    status = keep(u);
  if (status == MOTH_OK)
    u->state = MOTH_UNIT_FULL;
done:
  if (status != MOTH_OK && u->state == MOTH_UNIT_GATHERING)
    u->state = MOTH_UNIT_SHARDED;
  forget_gather(u);
  return status;
}

MothStatus moth_unit_reshard(MothUnit *u) {
  if (u->chain->later == u) /* other ranks may have started it */
    MOTH_TRY(start_later(u->chain, NULL));
  if (u->is_alias)
    return MOTH_OK;
  MothStatus s = u->gathering ? moth_work_wait(u->gathering, -1, NULL) : MOTH_OK;
  forget_gather(u);
  for (int i = 0; i < u->n; i++)
    if (u->parts[i].full->numel > 0)
      moth_storage_resize(u->parts[i].full, 0);
  u->state = MOTH_UNIT_SHARDED;
  return s;
}

int moth_unit_state(const MothUnit *u) {
  return u->state;
}

/* --- reducing ----------------------------------------------------------------------------------- */

static MothStatus put_flag(void *at, MothDType dtype, bool on) {
  MothTensor *one = NULL;
  MOTH_TRY(moth_tensor_from_ptr(at, 0, NULL, dtype, NULL, NULL, &one));
  MothValue args[2] = {moth_v_tensor(one), moth_v_int(on)}, result[MOTH_MAX_RESULTS];
  MothStatus s = moth_op_call(moth_op_find("fill_"), 2, args, result);
  if (s == MOTH_OK)
    moth_tensor_release(result[0].u.t);
  moth_tensor_release(one);
  return s;
}

/* The gradients into the buffer; they are freed. */
static MothStatus fill_buffer(MothUnit *u) {
  int64_t itemsize = moth_dtype_size(u->grad_dtype);
  for (int i = 0; i < u->n; i++) {
    Part *p = &u->parts[i];
    if (p->flag < 0)
      continue;
    MothTensor *grad = moth_tensor_grad(p->full), *plain = NULL;
    MothStatus s = MOTH_OK;
    if (grad && !grad->contiguous) {
      s = moth_tensor_new(grad->ndim, grad->shape, (MothDType)grad->dtype, grad->device, &plain);
      s = s == MOTH_OK ? copy(plain, grad) : s;
    }
    for (int rank = 0; rank < u->group->size && s == MOTH_OK; rank++) {
      char *of_rank = u->buffer->data + rank * u->elements * itemsize;
      char *at = of_rank + p->at * itemsize;
      int64_t rows = grad ? rows_of_rank(p, rank) : 0;
      if (grad)
        s = copy_rows(plain ? plain : grad, rank * p->each, rows, p->width, at, u->grad_dtype,
                      false);
      memset(at + rows * p->width * itemsize, 0, (size_t)((p->each - rows) * p->width * itemsize));
      if (s == MOTH_OK)
        s = put_flag(of_rank + (u->elements - u->ntrained + p->flag) * itemsize, u->grad_dtype,
                     grad != NULL);
    }
    moth_tensor_release(plain);
    MOTH_TRY(s);
    MOTH_TRY(moth_tensor_set_grad(p->full, NULL));
  }
  return MOTH_OK;
}

/* Where each parameter's gradient lies in the buffer. */
static void lay_out_gradients(MothUnit *u) {
  u->elements = u->ntrained = 0;
  for (int i = 0; i < u->n; i++) {
    Part *p = &u->parts[i];
    p->at = u->elements;
    u->elements += p->is_trained ? p->each * p->width : 0;
    p->flag = p->is_trained ? u->ntrained : -1;
    u->ntrained += p->is_trained;
  }
  u->elements += u->ntrained;
}

static MothStatus start_reduce(MothUnit *u) {
  char where[MOTH_COMM_WHERE + 8];
  lay_out_gradients(u);
  int64_t total = u->elements * u->group->size;
  MOTH_TRY(moth_unit_finish(u)); /* of a round before in the same backward */
  MOTH_TRY(moth_tensor_new(1, &total, u->grad_dtype, host, &u->buffer));
  bool was = moth_set_grad_enabled(false);
  MothStatus s = fill_buffer(u);
  moth_set_grad_enabled(was);
  if (s == MOTH_OK)
    s = moth_tensor_new(1, &u->elements, u->grad_dtype, host, &u->result);
  snprintf(where, sizeof where, "fully_shard (gradients of %s)", u->name);
  if (s == MOTH_OK) {
    MothCommRequest r = {.op = MOTH_COMM_REDUCE_SCATTER,
                         .reduce = MOTH_COMM_AVG,
                         .dtype = u->grad_dtype,
                         .ndim = 1,
                         .shape = &u->elements,
                         .in = u->buffer->data,
                         .out = u->result->data,
                         .nin = total,
                         .nout = u->elements,
                         .tensors = {u->buffer, u->result},
                         .where = where};
    s = moth_comm_start(u->group, &r, &u->reducing);
  }
  if (s == MOTH_OK) {
    u->chain->reducing = u;
  } else {
    moth_tensor_release(u->buffer);
    moth_tensor_release(u->result);
    u->buffer = u->result = NULL;
  }
  reset(u);
  return s;
}

/* The gradient of a shard from its part of the result. The shard's hooks are called as backward calls those of leaves. */
static MothStatus hand_out(MothUnit *u, const Part *p) {
  MothTensor *view = NULL, *own = NULL, *shard = p->shard;
  int64_t stride[MOTH_MAX_DIMS];
  MothStatus status = MOTH_OK;
  moth_contiguous_strides(shard->ndim, shard->shape, stride);
  MOTH_GO(moth_tensor_view(u->result, shard->ndim, shard->shape, stride, p->at, &view));
  if (u->grad_dtype == (MothDType)shard->dtype && shard->device.type == MOTH_CPU) {
    MOTH_GO(moth_tensor_alias(view, false, &own));
  } else {
    MOTH_GO(
        moth_tensor_new(shard->ndim, shard->shape, (MothDType)shard->dtype, shard->device, &own));
    MOTH_GO(copy(own, view));
  }
  MOTH_GO(moth_leaf_receive(shard, &own));
done:
  moth_tensor_release(view);
  moth_tensor_release(own);
  return status;
}

/* Whether flag i of the result is not 0. */
static MothStatus took_part(MothUnit *u, int flag, bool *yes) {
  MothTensor *one = NULL;
  int64_t n = 1;
  MOTH_TRY(moth_tensor_view(u->result, 1, &n, &n, u->elements - u->ntrained + flag, &one));
  MothValue v;
  MothStatus s = moth_tensor_item(one, &v);
  *yes = s == MOTH_OK && v.u.d > 0;
  moth_tensor_release(one);
  return s;
}

/* Adds the result to the gradients of the shards. */
static MothStatus finish_result(MothUnit *u) {
  if (u->chain->averaging == u)
    u->chain->averaging = NULL;
  if (!u->result)
    return MOTH_OK;
  MothStatus status = MOTH_OK;
  if (u->averaging)
    status = moth_work_wait(u->averaging, -1, NULL);
  moth_work_release(u->averaging);
  u->averaging = NULL;
  bool was = moth_set_grad_enabled(false);
  for (int i = 0; i < u->n && status == MOTH_OK; i++) {
    bool used;
    if (u->parts[i].flag < 0)
      continue;
    MOTH_GO(took_part(u, u->parts[i].flag, &used));
    if (used)
      MOTH_GO(hand_out(u, &u->parts[i]));
  }
done:
  moth_set_grad_enabled(was);
  moth_tensor_release(u->result);
  u->result = NULL;
  return status;
}

/* Waits for the reduce_scatter, and adds what came to the gradients of the shards, so that no two sets of these are
 * there; or starts the average over replicas, and does that for the unit before. */
static MothStatus receive(MothUnit *u) {
  if (u->chain->reducing == u)
    u->chain->reducing = NULL;
  if (!u->reducing)
    return MOTH_OK;
  MothStatus s = moth_work_wait(u->reducing, -1, NULL);
  moth_work_release(u->reducing);
  moth_tensor_release(u->buffer);
  u->reducing = NULL;
  u->buffer = NULL;
  MOTH_TRY(s);
  if (!u->replicas)
    return finish_result(u);
  if (u->chain->averaging)
    MOTH_TRY(finish_result(u->chain->averaging));
  u->chain->averaging = u;
  char where[MOTH_COMM_WHERE + 8];
  snprintf(where, sizeof where, "fully_shard (gradients of %s, replicas)", u->name);
  MothCommRequest r = {.op = MOTH_COMM_ALL_REDUCE,
                       .reduce = MOTH_COMM_AVG,
                       .dtype = u->grad_dtype,
                       .ndim = 1,
                       .shape = &u->elements,
                       .in = u->result->data,
                       .out = u->result->data,
                       .nin = u->elements,
                       .nout = u->elements,
                       .tensors = {u->result, NULL},
                       .where = where};
  return moth_comm_start(u->replicas, &r, &u->averaging);
}

MothStatus moth_unit_finish(MothUnit *u) {
  MOTH_TRY(receive(u));
  return finish_result(u);
}

/* As far as it can be done without waiting. */
static MothStatus advance(Chain *c) {
  if (c->reducing && c->reducing->reducing) {
    int state = atomic_load(&c->reducing->reducing->state);
    if (state == MOTH_WORK_DONE || state == MOTH_WORK_FAILED)
      MOTH_TRY(receive(c->reducing));
  }
  return c->reducing ? MOTH_OK : start_later(c, NULL);
}

/* Gradients that are not to be reduced stay with the whole parameters, whose memory is released. */
static MothStatus release(MothUnit *u) {
  reset(u);
  if (!u->reshard)
    return MOTH_OK;
  forget_kept(u);
  return moth_unit_reshard(u);
}

static MothStatus complete(MothUnit *u) {
  if (u->reshard) {
    MOTH_TRY(moth_unit_reshard(u));
    forget_kept(u);
  }
  if (u->chain->reducing)
    MOTH_TRY(receive(u->chain->reducing));
  MOTH_TRY(start_later(u->chain, NULL));
  return start_reduce(u);
}

static MothStatus on_gradient(void *ctx, MothTensor *leaf) {
  Part *p = ctx;
  MothUnit *u = p->unit;
  MOTH_TRY(advance(u->chain));
  if (!moth_tensor_grad(leaf))
    return moth_fail(MOTH_ERR_TYPE,
                     "fully_shard: a parameter of %s has a sparse gradient: make it dense "
                     "(sparse = false)",
                     u->name);
  if (!p->ready && p->is_trained) {
    p->ready = true;
    u->pending--;
  }
  return u->pending > 0 ? MOTH_OK : u->reduce ? complete(u) : release(u);
}

static MothStatus before_call(MothCommBefore *b) {
  return start_later((Chain *)b, NULL);
}

MothStatus moth_unit_gather_later(MothUnit *u) {
  MOTH_TRY(start_later(u->chain, u));
  if (u->state != MOTH_UNIT_SHARDED || u->is_alias)
    return MOTH_OK;
  MothCommBefore *other = atomic_load(&u->group->before);
  if (other && other != &u->chain->before)
    MOTH_TRY(other->run(other));
  u->chain->later = u;
  u->chain->before = (MothCommBefore){.run = before_call, .thread = pthread_self()};
  atomic_store(&u->group->before, &u->chain->before);
  return advance(u->chain);
}

MothStatus moth_unit_flush(MothUnit *u) {
  bool any = false; /* also of a backward before that did not reduce */
  for (int i = 0; i < u->n; i++)
    any |= u->parts[i].ready || moth_tensor_grad(u->parts[i].full);
  if (!u->reduce)
    reset(u);
  return any && u->reduce ? complete(u) : MOTH_OK;
}

void moth_unit_set_name(MothUnit *u, const char *name) {
  snprintf(u->name, sizeof u->name, "%s", name);
}

void moth_unit_set_after_backward(MothUnit *u, bool reduce, bool reshard) {
  u->reduce = reduce;
  u->reshard = reshard;
}

static void drop(MothWork *w) {
  if (w)
    moth_work_wait(w, 5, &(bool){false}); /* its memory is written to */
  moth_work_release(w);
}

void moth_unit_abandon(MothUnit *u) {
  if (u->chain->reducing == u)
    u->chain->reducing = NULL;
  if (u->chain->averaging == u)
    u->chain->averaging = NULL;
  if (u->chain->later == u)
    forget_later(u->chain, u->group);
  drop(u->gathering);
  drop(u->reducing);
  drop(u->averaging);
  moth_tensor_release(u->flat);
  moth_tensor_release(u->buffer);
  moth_tensor_release(u->result);
  forget_kept(u);
  u->gathering = u->reducing = u->averaging = NULL;
  u->flat = u->buffer = u->result = NULL;
  for (int i = 0; i < u->n && !u->is_alias; i++)
    if (u->parts[i].full->numel > 0)
      moth_storage_resize(u->parts[i].full, 0);
  u->state = MOTH_UNIT_SHARDED;
  reset(u);
}

/* --- making it ---------------------------------------------------------------------------------- */

static MothStatus add_part(MothUnit *u, Part *p, MothTensor *full, MothTensor *shard) {
  char a[128], b[128];
  p->unit = u;
  p->full = full;
  p->shard = shard;
  moth_tensor_retain(full);
  moth_tensor_retain(shard);
  p->rows = full->ndim > 0 ? full->shape[0] : 1;
  p->each = (p->rows + u->group->size - 1) / u->group->size;
  p->width = 1;
  for (int i = 1; i < full->ndim; i++)
    p->width *= full->shape[i];
  int64_t rows = rows_of_rank(p, u->group->rank);
  if (!full->contiguous || !shard->contiguous || shard->numel != rows * p->width)
    return moth_fail(MOTH_ERR_VALUE,
                     "fully_shard: %s, of which rank %d of %d has %lld rows, and its shard %s do "
                     "not fit, or are not contiguous",
                     moth_tensor_format(full, a, sizeof a), u->group->rank, u->group->size,
                     (long long)rows, moth_tensor_format(shard, b, sizeof b));
  p->at_bytes = u->bytes;
  u->bytes += (p->each * p->width * moth_itemsize(full) + 15) / 16 * 16;
  return MOTH_OK;
}

static MothStatus add_hooks(MothUnit *u) {
  for (int i = 0; i < u->n; i++) {
    Part *p = &u->parts[i];
    if (moth_dtype_is_float((MothDType)p->full->dtype))
      MOTH_TRY(moth_hook_gradient(p->full, on_gradient, p, &p->hook));
  }
  return MOTH_OK;
}

MothStatus moth_unit_new(MothGroup *group, MothGroup *replicas, int n, MothTensor **full,
                         MothTensor **shards, MothUnitOptions options, MothUnit **out) {
  MothUnit *u = calloc(1, sizeof *u);
  if (!u)
    return moth_no_memory(sizeof *u);
  MothStatus status = MOTH_OK;
  *u = (MothUnit){.group = group, .replicas = replicas, .reduce = true, .reshard = true};
  moth_group_retain(group);
  if (replicas)
    moth_group_retain(replicas);
  snprintf(u->name, sizeof u->name, "%s", options.name);
  MothUnit *other = options.neighbor;
  u->chain = other && other->group == group ? other->chain : calloc(1, sizeof *u->chain);
  u->parts = calloc((size_t)n + 1, sizeof *u->parts);
  if (u->chain)
    u->chain->refs++;
  if (!u->chain || !u->parts)
    MOTH_GO(moth_no_memory(0));
  u->is_alias = group->size == 1;
  int dtype = options.reduce_dtype;
  for (int i = 0; i < n; i++) {
    u->n = i + 1;
    MOTH_GO(add_part(u, &u->parts[i], full[i], shards[i]));
    MothDType own = (MothDType)full[i]->dtype;
    if (options.reduce_dtype < 0 && moth_dtype_is_float(own))
      dtype = dtype < 0 ? (int)own : (int)moth_dtype_promote((MothDType)dtype, own);
    u->is_alias &= full[i]->storage == shards[i]->storage;
  }
  u->grad_dtype = dtype < 0 ? MOTH_FLOAT32 : (MothDType)dtype;
  MOTH_GO(add_hooks(u));
  reset(u);
  if (!u->is_alias)
    MOTH_GO(moth_unit_reshard(u));
  *out = u;
done:
  if (status != MOTH_OK)
    moth_unit_free(u);
  return status;
}

void moth_unit_free(MothUnit *u) {
  if (!u)
    return;
  if (u->chain)
    moth_unit_abandon(u);
  for (int i = 0; i < u->n; i++) {
    Part *p = &u->parts[i];
    if (p->hook)
      moth_tensor_remove_hook(p->full, p->hook);
    moth_tensor_release(p->full);
    moth_tensor_release(p->shard);
  }
  if (u->chain && --u->chain->refs == 0)
    free(u->chain);
  moth_group_release(u->group);
  moth_group_release(u->replicas);
  moth_group_release(u->part);
  free(u->parts);
  free(u);
}
