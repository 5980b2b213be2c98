/* Pooling: lists the windows along each dimension once; threads share the planes. */
#include "kernels/common/pool.h"

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/window.h"
#include "kernels/cpu/util.h"
#include "unpack/conv.h"

typedef struct Job {
  MothPoolPlanes p;
  void (*run)(const struct MothPoolPlanes *p);
  int64_t in_stride, out_stride, positions_stride; /* of planes: bytes, bytes, elements */
} Job;

static void axis(const MothPool *p, int i, MothPoolAxis *a, int64_t *lists) {
  int64_t in = i ? p->w : p->h, out = i ? p->ow : p->oh;
  int64_t *begin = lists, *end = lists + out, *count = lists + 2 * out;
  *a = (MothPoolAxis){
      .in = in, .out = out, .dilation = 1, .begin = begin, .end = end, .count = count};
  if (!p->adaptive) {
    a->kernel = p->kernel[i];
    a->stride = p->stride[i];
    a->padding = p->padding[i];
    a->dilation = p->dilation[i];
  }
  for (int64_t o = 0; o < out; o++) {
    if (p->adaptive) {
      begin[o] = o * in / out;
      end[o] = ((o + 1) * in + out - 1) / out;
      count[o] = end[o] - begin[o];
      continue;
    }
    int64_t first = o * a->stride - a->padding, past = first + a->dilation * (a->kernel - 1) + 1;
    int64_t padded = moth_min64(past, in + a->padding) - first;
    begin[o] = first < 0 ? first + (-first + a->dilation - 1) / a->dilation * a->dilation : first;
    end[o] = moth_min64(past, in);
    count[o] = p->divisor ? (i ? 1 : p->divisor) : p->include_pad ? padded : end[o] - begin[o];
  }
}

static void range(void *ctx, int64_t begin, int64_t end) {
  const Job *job = ctx;
  MothPoolPlanes p = job->p;
  p.planes = end - begin;
  p.in = (const char *)p.in + begin * job->in_stride;
  p.out = (char *)p.out + begin * job->out_stride;
  if (p.positions)
    p.positions += begin * job->positions_stride;
  job->run(&p);
}

/* in and out are row-major. */
static MothStatus run(const MothPool *g, const MothTensor *in, MothTensor *out, bool backward,
                      int64_t *positions, int64_t base,
                      void (*fn)(const struct MothPoolPlanes *p)) {
  size_t bytes = (size_t)(3 * (g->oh + g->ow)) * sizeof(int64_t);
  int64_t *lists = moth_alloc(bytes), size = g->h * g->w, pooled = g->oh * g->ow;
  if (!lists)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes of windows", bytes);
  Job job = {
      .p = {.shape = g, .in = in->data, .out = out->data, .positions = positions, .base = base},
      .run = fn,
      .in_stride = (backward ? pooled : size) * moth_itemsize(in),
      .out_stride = (backward ? size : pooled) * moth_itemsize(out),
      .positions_stride = pooled};
  axis(g, 0, &job.p.y, lists);
  axis(g, 1, &job.p.x, lists + 3 * g->oh);
  int64_t each = size + pooled * (g->adaptive ? 1 : g->kernel[0] * g->kernel[1]);
  moth_parallel_for(g->planes, moth_cpu_grain(each), range, &job);
  moth_free(lists, bytes);
  return MOTH_OK;
}

static MothStatus forward(MothCall *c, bool max) {
  MothTensor *self = c->args[0].u.t, *in, *out = c->results[0].u.t;
  MothPool g;
  moth_pool_geometry(c, self->ndim, self->shape, &g);
  if (!out->numel)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_contiguous(self, &in));
  const MothKernels *k = moth_cpu_kernels(in->dtype);
  int64_t base = max ? c->args[c->op->nargs - 1].u.i : 0; /* index_base is the last argument */
  MothStatus s = run(&g, in, out, false, max ? (int64_t *)c->results[1].u.t->data : NULL, base,
                     max ? k->max_pool_planes : k->avg_pool_planes);
  moth_tensor_release(in);
  return s;
}

/* Sums of float16 and bfloat16 are kept in float32. */
static MothStatus backward(MothCall *c, const MothTensor *positions, int64_t base) {
  MothTensor *out = c->results[0].u.t, *in = NULL, *sums = NULL;
  MothStatus status = MOTH_OK;
  MothPool g;
  moth_pool_geometry(c, out->ndim, out->shape, &g);
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(moth_cpu_sums_as(out, true, &sums));
  MOTH_GO(moth_cpu_contiguous_as(c->args[0].u.t, (MothDType)sums->dtype, &in));
  const MothKernels *k = moth_cpu_kernels(sums->dtype);
  MOTH_GO(run(&g, in, sums, true, positions ? (int64_t *)positions->data : NULL, base,
              positions ? k->max_pool_planes_backward : k->avg_pool_planes_backward));
  if (sums != out)
    moth_cpu_copy(out, sums);
done:
  moth_tensor_release(in);
  moth_tensor_release(sums);
  return status;
}

MothStatus moth_cpu_max_pool2d_with_indices(MothCall *c) {
  return forward(c, true);
}
MothStatus moth_cpu_adaptive_max_pool2d_with_indices(MothCall *c) {
  return forward(c, true);
}
MothStatus moth_cpu_avg_pool2d(MothCall *c) {
  return forward(c, false);
}
MothStatus moth_cpu_adaptive_avg_pool2d(MothCall *c) {
  return forward(c, false);
}
MothStatus moth_cpu_avg_pool2d_backward(MothCall *c) {
  return backward(c, NULL, 0);
}
MothStatus moth_cpu_adaptive_avg_pool2d_backward(MothCall *c) {
  return backward(c, NULL, 0);
}

MothStatus moth_cpu_max_pool2d_backward(MothCall *c) {
  MOTH_UNPACK_MAX_POOL2D_BACKWARD(c)
  const MothTensor *out = c->results[0].u.t;
  int64_t size = out->shape[out->ndim - 2] * out->shape[out->ndim - 1];
  MothTensor *positions;
  MOTH_TRY(moth_cpu_index_checked(indices, index_base, size, -1, "index", &positions));
  MothStatus s = backward(c, positions, index_base);
  moth_tensor_release(positions);
  return s;
}
