/* The collective ops of src/ops/collective.lua: one kernel for all devices, which copies elements where the group wants
 * them: to the host, or to the device of its NCCL. */
#include <string.h>

#include "comm/comm.h"
#include "dispatch/dispatch.h"
#include "ops/view.h"
#include "unpack/collective.h"

static bool is_there(const MothTensor *t, MothDevice d) {
  return t->device.type == d.type && t->device.index == d.index && t->contiguous;
}

/* t's elements, contiguous, on the device d; owned. */
static MothStatus elements_on(MothTensor *t, MothDevice d, MothTensor **out) {
  if (is_there(t, d)) {
    moth_tensor_retain(t);
    *out = t;
    return MOTH_OK;
  }
  MOTH_TRY(moth_tensor_new(t->ndim, t->shape, (MothDType)t->dtype, d, out));
  MothValue args[2] = {moth_v_tensor(*out), moth_v_tensor(t)}, result[MOTH_MAX_RESULTS];
  MothStatus s = moth_op_call(moth_op_find("copy_"), 2, args, result);
  if (s == MOTH_OK)
    moth_tensor_release(result[0].u.t);
  else
    moth_tensor_release(*out);
  return s;
}

static MothStatus put_back(MothTensor *from, MothTensor *to) {
  if (from == to)
    return MOTH_OK;
  MothValue args[2] = {moth_v_tensor(to), moth_v_tensor(from)}, result[MOTH_MAX_RESULTS];
  MOTH_TRY(moth_op_call(moth_op_find("copy_"), 2, args, result));
  moth_tensor_release(result[0].u.t);
  return MOTH_OK;
}

/* Group 0: a process alone. */
static MothStatus run_alone(const MothCommRequest *r) {
  MothGroup alone = {.size = 1};
  MOTH_TRY(moth_comm_check(&alone, r));
  if (r->nout > 0)
    memcpy(r->out, r->in, (size_t)(r->nout * moth_dtype_size(r->dtype)));
  return MOTH_OK;
}

/* Runs a collective from `self` into the result of c. */
static MothStatus run(MothCall *c, MothCommRequest r, MothTensor *self, int64_t group,
                      int64_t size) {
  MothTensor *result = c->results[0].u.t, *in = NULL, *out = NULL;
  MothStatus status = MOTH_OK;
  MothGroup *g = group ? moth_group_find(group) : NULL;
  if (group ? !g || g->size != size : size != 1) {
    status = !group ? moth_fail(MOTH_ERR_VALUE, "group 0 is one process, not %lld", (long long)size)
             : !g   ? moth_fail(MOTH_ERR_VALUE, "there is no process group %lld: it was destroyed",
                                (long long)group)
                  : moth_fail(MOTH_ERR_VALUE, "group %lld has %d ranks, not %lld", (long long)group,
                              g->size, (long long)size);
    moth_group_release(g);
    return status;
  }
  r.device = g ? moth_group_device(g) : (MothDevice){MOTH_CPU, 0};
  MOTH_GO(elements_on(self, r.device, &in));
  if (is_there(result, r.device)) {
    moth_tensor_retain(result);
    out = result;
  } else {
    MOTH_GO(moth_tensor_new(result->ndim, result->shape, (MothDType)result->dtype, r.device, &out));
  }
  r.dtype = (MothDType)in->dtype;
  r.in = in->data;
  r.nin = in->numel;
  r.out = out->data;
  r.nout = out->numel;
  if (r.ndim == 0) {
    const MothTensor *like = r.op == MOTH_COMM_REDUCE_SCATTER ? out : in;
    r.ndim = like->ndim;
    r.shape = like->shape;
  }
  MOTH_GO(g ? moth_comm_run(g, &r) : run_alone(&r));
  MOTH_GO(put_back(out, result));
done:
  moth_tensor_release(in);
  moth_tensor_release(out);
  moth_group_release(g);
  return status;
}

MothStatus moth_cpu_comm_all_reduce(MothCall *c) {
  MOTH_UNPACK_COMM_ALL_REDUCE(c)
  return run(c, (MothCommRequest){.op = MOTH_COMM_ALL_REDUCE}, self, group, size);
}
MothStatus moth_cpu_comm_reduce_from(MothCall *c) {
  MOTH_UNPACK_COMM_REDUCE_FROM(c)
  return run(c, (MothCommRequest){.op = MOTH_COMM_ALL_REDUCE}, self, group, size);
}
MothStatus moth_cpu_comm_reduce_by(MothCall *c) {
  MOTH_UNPACK_COMM_REDUCE_BY(c)
  return run(c, (MothCommRequest){.op = MOTH_COMM_ALL_REDUCE, .reduce = by}, self, group, size);
}
MothStatus moth_cpu_comm_all_gather(MothCall *c) {
  MOTH_UNPACK_COMM_ALL_GATHER(c)
  return run(c, (MothCommRequest){.op = MOTH_COMM_ALL_GATHER}, self, group, size);
}
MothStatus moth_cpu_comm_unshard(MothCall *c) {
  MOTH_UNPACK_COMM_UNSHARD(c)
  (void)ranks, (void)dtype, (void)reduce;
  const MothTensor *result = c->results[0].u.t;
  MothTensor *shard;
  if (self->dtype == result->dtype) {
    moth_tensor_retain(self);
    shard = self;
  } else {
    MOTH_TRY(
        moth_tensor_new(self->ndim, self->shape, (MothDType)result->dtype, self->device, &shard));
    MothStatus s = put_back(self, shard);
    if (s != MOTH_OK) {
      moth_tensor_release(shard);
      return s;
    }
  }
  MothStatus s = run(c, (MothCommRequest){.op = MOTH_COMM_ALL_GATHER}, shard, group, size);
  moth_tensor_release(shard);
  return s;
}
MothStatus moth_cpu_comm_reduce_scatter(MothCall *c) {
  MOTH_UNPACK_COMM_REDUCE_SCATTER(c)
  return run(c, (MothCommRequest){.op = MOTH_COMM_REDUCE_SCATTER}, self, group, size);
}
MothStatus moth_cpu_comm_broadcast(MothCall *c) {
  MOTH_UNPACK_COMM_BROADCAST(c)
  return run(c, (MothCommRequest){.op = MOTH_COMM_BROADCAST, .root = (int)root}, self, group, size);
}
/* The result of the other ranks is zero. */
MothStatus moth_cpu_comm_reduce(MothCall *c) {
  MOTH_UNPACK_COMM_REDUCE(c)
  MothTensor *result = c->results[0].u.t;
  MothValue args[2] = {moth_v_tensor(result), moth_v_int(0)}, filled[MOTH_MAX_RESULTS];
  MOTH_TRY(moth_op_call(moth_op_find("fill_"), 2, args, filled));
  moth_tensor_release(filled[0].u.t);
  return run(c, (MothCommRequest){.op = MOTH_COMM_REDUCE, .root = (int)root}, self, group, size);
}

enum { RANKS = 4096 };

MothStatus moth_cpu_comm_all_to_all(MothCall *c) {
  MOTH_UNPACK_COMM_ALL_TO_ALL(c)
  int64_t in[RANKS], out[RANKS], width = 1;
  if (size > RANKS)
    return moth_fail(MOTH_ERR_VALUE, "at most %d ranks", RANKS);
  for (int i = 1; i < self->ndim; i++)
    width *= self->shape[i];
  for (int64_t i = 0; i < size; i++) {
    in[i] = send.u.ints[i] * width;
    out[i] = receive.u.ints[i] * width;
  }
  (void)rows;
  MothCommRequest r = {.op = MOTH_COMM_ALL_TO_ALL, .ndim = -1, .in_splits = in, .out_splits = out};
  return run(c, r, self, group, size);
}

MothStatus moth_cpu_comm_permute(MothCall *c) {
  MOTH_UNPACK_COMM_PERMUTE(c)
  int64_t to[RANKS] = {target}, from[RANKS] = {source};
  if (size > RANKS)
    return moth_fail(MOTH_ERR_VALUE, "at most %d ranks", RANKS);
  MothCommRequest r = {.op = MOTH_COMM_PERMUTE, .in_splits = to, .out_splits = from};
  return run(c, r, self, group, size);
}

MothStatus moth_cpu_comm_copy_to(MothCall *c) {
  MOTH_UNPACK_COMM_COPY_TO(c)
  (void)group, (void)size;
  return put_back(self, c->results[0].u.t);
}
