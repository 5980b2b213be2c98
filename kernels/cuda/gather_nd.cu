/* gather_nd and scatter_nd_: the index is first checked, wrapped and turned into offsets into self; then they are
 * gather and scatter with an index of one dimension. */
#include "kernels/cuda/index_map.h"
extern "C" {
#include "dispatch/shape.h"
}
#include "unpack/index.h"

namespace {

enum { THREADS = 256 };

typedef struct NdDims {
  int k, dim[MOTH_MAX_DIMS];
  int64_t size[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
} NdDims;

__global__ void __launch_bounds__(THREADS)
    offsets_kernel(int64_t *out, const int64_t *at, int64_t n, int64_t base,
                   const __grid_constant__ NdDims d, int op, MothFault *f) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n)
    return;
  int64_t offset = 0;
  for (int j = 0; j < d.k; j++) {
    int64_t x = at[i * d.k + j];
    int64_t k = x < 0 ? x + d.size[j] : (int64_t)((uint64_t)x - (uint64_t)base);
    if (k < 0 || k >= d.size[j]) {
      moth_fault(f, op, MOTH_FAULT_INDEX, d.dim[j], x, base, d.size[j]);
      offset = -1;
      break;
    }
    offset += k * d.stride[j];
  }
  out[i] = offset;
}

/* Offsets as pairs for the sums of whole rows of `inner` elements; skipped ones get the last key, `rows`. */
template <class U>
__global__ void __launch_bounds__(THREADS)
    rows_kernel(U *key, U *pos, const int64_t *at, int64_t n, int64_t inner, int64_t rows) {
  int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (j >= n)
    return;
  key[j] = (U)(at[j] >= 0 ? at[j] / inner : rows);
  pos[j] = (U)j;
}

dim3 grid_of(int64_t n) {
  return dim3((unsigned)moth_ceil_div(n, (int64_t)THREADS));
}

/* Computes offsets into `self`, in units of `unit` elements. */
MothStatus offsets(const MothCall *c, cudaStream_t stream, const MothNd *nd, const MothTensor *self,
                   const MothTensor *index, int64_t base, int64_t unit, MothScratch *at) {
  MothOwned wide;
  NdDims d = {};
  MOTH_TRY(moth_cuda_contiguous_as(index, MOTH_INT64, &wide.t));
  MOTH_TRY(at->take(c->device.index, (size_t)nd->count * 8));
  d.k = nd->k;
  for (int j = 0; j < nd->k; j++) {
    d.dim[j] = nd->dims[j];
    d.size[j] = self->shape[nd->dims[j]];
    d.stride[j] = self->stride[nd->dims[j]] / unit;
  }
  return moth_launch(c->op->name, offsets_kernel, grid_of(nd->count), dim3(THREADS), 0, stream,
                     at->as<int64_t>(), (const int64_t *)wide->data, nd->count, base, d, c->op->id,
                     moth_cuda_fault(c->device.index));
}

/* The index map over nd->shape: `at` are offsets into self, value the strides of the values, in elements. The last
 * dimension counts in units of `unit` elements. */
void map_of(MothIndexMap *p, const MothCall *c, const MothNd *nd, const MothTensor *self,
            const int64_t *value, int64_t unit, const int64_t *at) {
  int n = nd->ndim - nd->nrest;
  *p = MothIndexMap{};
  p->at = at;
  p->bound = -1;
  p->self_stride = 1;
  p->op = c->op->id;
  p->fault = moth_cuda_fault(c->device.index);
  p->n = 1;
  int64_t stride = 1; /* of the index's dimensions, from the last */
  int64_t strides[MOTH_MAX_DIMS];
  for (int i = n - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= nd->shape[nd->before + i];
  }
  for (int i = 0; i < nd->ndim; i++) {
    int r = i < nd->before ? i : i - n;
    bool of_index = i >= nd->before && i < nd->before + n, last = i == nd->ndim - 1;
    int64_t size = nd->shape[i], u = last && unit > 1 ? 1 : unit;
    if (last)
      size /= unit;
    p->n *= size;
    moth_index_map_add(p, size, of_index ? strides[i - nd->before] : 0,
                       of_index ? 0 : self->stride[nd->rest[r]] / u, value[i] / u);
  }
}

/* The most elements that can be moved as one unit: the last dimension is not indexed and contiguous, and all other
 * strides are multiples of the unit. */
int64_t unit_of(const MothNd *nd, const MothTensor *self, const MothTensor *value) {
  int last = self->ndim - 1;
  int64_t size = moth_itemsize(self);
  uint64_t all = 16 | (uint64_t)self->data | (uint64_t)value->data;
  if (nd->nrest == nd->before || nd->rest[nd->nrest - 1] != last || self->stride[last] != 1)
    return 1;
  all |= (uint64_t)(self->shape[last] * size);
  for (int i = 0; i < last; i++)
    if (self->shape[i] > 1)
      all |= (uint64_t)(self->stride[i] * size);
  int64_t bytes = (int64_t)(all & -all);
  return bytes > size ? bytes / size : 1;
}

} // namespace

MothStatus moth_cuda_gather_nd(MothCall *c) {
  MOTH_UNPACK_GATHER_ND(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothScratch at;
  MothIndexMap p;
  MothNd nd;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  MOTH_TRY(moth_nd(self, dims, index, &nd));
  if (nd.count == 0)
    return MOTH_OK;
  int64_t unit = out->numel ? unit_of(&nd, self, out) : 1;
  MOTH_TRY(offsets(c, stream, &nd, self, index, index_base, unit, &at));
  if (out->numel) {
    map_of(&p, c, &nd, self, out->stride, unit, at.as<int64_t>());
    MOTH_TRY(moth_cuda_gather_mapped("gather_nd", stream, out->data, self->data,
                                     unit * moth_itemsize(out), &p));
  }
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_scatter_nd_(MothCall *c) {
  MOTH_UNPACK_SCATTER_ND_(c)
  cudaStream_t stream;
  MothScratch at, workspace;
  MothOwned values;
  MothIndexMap p;
  MothPairs pairs, spare;
  MothNd nd;
  int device = c->device.index;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  MOTH_TRY(moth_nd(self, dims, index, &nd));
  if (nd.count == 0)
    return MOTH_OK;
  MOTH_TRY(offsets(c, stream, &nd, self, index, index_base, 1, &at));
  MOTH_TRY(moth_cuda_broadcast_as(src, (MothDType)src->dtype, nd.ndim, nd.shape, &values.t));
  if (values->numel == 0)
    return moth_cuda_leave(c);
  if (moth_tensor_overlap(self, values)) { /* read all of the source before writing */
    MothOwned whole;
    MOTH_TRY(moth_tensor_new(nd.ndim, nd.shape, (MothDType)src->dtype, values->device, &whole.t));
    MOTH_TRY(moth_cuda_copy(whole, values));
    MothTensor *t = values.t;
    values.t = whole.t;
    whole.t = t;
  }
  if (accumulate && nd.together && self->contiguous) { /* whole rows, as index_add */
    int64_t rows = 1, outer = 1, inner = 1, n = nd.count;
    for (int j = 0; j < nd.k; j++)
      rows *= self->shape[nd.dims[j]];
    for (int i = 0; i < nd.before; i++)
      outer *= self->shape[i];
    for (int i = nd.dims[nd.k - 1] + 1; i < self->ndim; i++)
      inner *= self->shape[i];
    bool wide = n >= 0xffffffff || rows >= 0xffffffff;
    MOTH_TRY(moth_pairs_take(&workspace, device, n, wide, &pairs, &spare));
    if (wide)
      MOTH_TRY(moth_launch("scatter_nd_", rows_kernel<uint64_t>, grid_of(n), dim3(THREADS), 0,
                           stream, (uint64_t *)pairs.key, (uint64_t *)pairs.pos, at.as<int64_t>(),
                           n, inner, rows));
    else
      MOTH_TRY(moth_launch("scatter_nd_", rows_kernel<uint32_t>, grid_of(n), dim3(THREADS), 0,
                           stream, (uint32_t *)pairs.key, (uint32_t *)pairs.pos, at.as<int64_t>(),
                           n, inner, rows));
    MothCudaRun run = {device, stream, c->op->id};
    MothScatter s = {self->data, values->data, outer, rows, n, inner, &pairs};
    MOTH_TRY(moth_cuda_scatter_pairs(&run, (MothDType)self->dtype, &s, &spare));
    return moth_cuda_leave(c);
  }
  map_of(&p, c, &nd, self, values->stride, 1, at.as<int64_t>());
  if (accumulate)
    MOTH_TRY(moth_cuda_add_mapped(c, stream, self, moth_reach(self), values, values->numel, &p));
  else
    MOTH_TRY(moth_cuda_scatter_mapped(c, stream, self, moth_reach(self), values, nullptr, &p));
  return moth_cuda_leave(c);
}
