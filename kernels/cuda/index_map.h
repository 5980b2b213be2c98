/* The index map of gather, scatter and their kin: from the flat number i of an element of the index to offsets in
 * the index, in the tensor that it points into (self) and in the values of the index's shape (the result of gather,
 * the source of scatter). */
#ifndef MOTH_CUDA_INDEX_MAP_H
#define MOTH_CUDA_INDEX_MAP_H
#include <initializer_list>

#include "kernels/cuda/fastdiv.h"
#include "kernels/cuda/scatter.h"
#include "kernels/cuda/util.h"

typedef struct MothIndexMap {
  int ndim;
  int64_t n; /* elements in all */
  WideDiv size[MOTH_MAX_DIMS];
  int64_t index[MOTH_MAX_DIMS], self[MOTH_MAX_DIMS],
      value[MOTH_MAX_DIMS]; /* strides, in elements */
  int64_t self_stride;      /* along the dimension that the index points into */
  const int64_t *at;        /* the index */
  int64_t base, bound;      /* bound -1: `at` has checked offsets, -1 for elements to skip */
  int dim, op;
  MothFault *fault;
} MothIndexMap;

/* A dimension, which the shape rule has checked, from 0. */
static inline int moth_dim_of(int64_t dim, int ndim) {
  return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim);
}
struct MothMapped {
  int64_t index, self, value;
};
static __device__ __forceinline__ MothMapped moth_index_map_at(const MothIndexMap &p, int64_t i) {
  MothMapped r = {0, 0, 0};
  for (int d = p.ndim - 1; d >= 0; d--) {
    int64_t q = div_wide(i, p.size[d]), x = i - q * p.size[d].d;
    r.index += x * p.index[d];
    r.self += x * p.self[d];
    r.value += x * p.value[d];
    i = q;
  }
  return r;
}
/* Reads the index at r and adds it to r->self. Returns false if it is out of range, which is a fault. */
static __device__ __forceinline__ bool moth_index_map_read(const MothIndexMap &p, MothMapped *r) {
  int64_t k = p.at[r->index];
  if (p.bound >= 0)
    k = moth_index(p.fault, p.op, MOTH_FAULT_INDEX, p.dim, k, p.base, p.bound);
  r->self += k * p.self_stride;
  return k >= 0;
}

/* Adds a dimension with its three strides; merges it with the last one where all strides allow that. */
static inline void moth_index_map_add(MothIndexMap *p, int64_t size, int64_t index, int64_t self,
                                      int64_t value) {
  int k = p->ndim - 1;
  if (size == 1)
    return;
  if (k >= 0 && p->index[k] == index * size && p->self[k] == self * size &&
      p->value[k] == value * size) {
    size *= p->size[k].d;
  } else {
    k = p->ndim++;
  }
  p->size[k] = wide_div(size);
  p->index[k] = index;
  p->self[k] = self;
  p->value[k] = value;
}

/* out[i] = in[self offset of i] for all elements of the index, in units of 1 to 16 bytes; out is row-major. */
MothStatus moth_cuda_gather_mapped(const char *name, cudaStream_t stream, void *out, const void *in,
                                   int64_t unit, const MothIndexMap *p);

/* out[self offset of i] = src[value offset of i]; of several writes to one element the last wins. `reach`: more than
 * the largest self offset. src NULL: all are `number`, of out's dtype. */
MothStatus moth_cuda_scatter_mapped(const MothCall *c, cudaStream_t stream, MothTensor *out,
                                    int64_t reach, const MothTensor *src, const void *number,
                                    const MothIndexMap *p);
/* out[self offset of i] += src[value offset of i], in the order of i. src_reach: more than the largest value offset. */
MothStatus moth_cuda_add_mapped(const MothCall *c, cudaStream_t stream, MothTensor *out,
                                int64_t reach, const MothTensor *src, int64_t src_reach,
                                const MothIndexMap *p);
/* One more than the largest offset of an element of t, which must not be empty. */
static inline int64_t moth_reach(const MothTensor *t) {
  int64_t reach = 1;
  for (int i = 0; i < t->ndim; i++)
    reach += (t->shape[i] - 1) * t->stride[i];
  return reach;
}

/* The map for gather, scatter and scatter_add; value NULL: one number for all. */
static inline void moth_index_map_of(MothIndexMap *p, const MothCall *c, const MothTensor *self,
                                     const MothTensor *index, const MothTensor *value, int dim,
                                     int64_t base) {
  *p = MothIndexMap{};
  p->n = index->numel;
  p->at = (const int64_t *)index->data;
  p->self_stride = self->ndim ? self->stride[dim] : 1;
  p->base = base;
  p->bound = self->ndim ? self->shape[dim] : 1;
  p->dim = dim;
  p->op = c->op->id;
  p->fault = moth_cuda_fault(c->device.index);
  for (int i = 0; i < index->ndim; i++)
    moth_index_map_add(p, index->shape[i], index->stride[i],
                       i == dim || !self->ndim ? 0 : self->stride[i],
                       value && value->ndim ? value->stride[i] : 0);
}

/* Allocates n pairs and as many spare ones. */
static inline MothStatus moth_pairs_take(MothScratch *workspace, int device, int64_t n, bool wide,
                                         MothPairs *pairs, MothPairs *spare) {
  size_t each = ((size_t)n * (wide ? 8 : 4) + 255) / 256 * 256;
  MOTH_TRY(workspace->take(device, 4 * each));
  char *p = workspace->as<char>();
  *pairs = MothPairs{wide, n, p, p + each};
  *spare = MothPairs{wide, n, p + 2 * each, p + 3 * each};
  return MOTH_OK;
}
/* The number of bits of keys 0 to x. */
static inline int moth_key_bits(int64_t x) {
  int bits = 0;
  while (bits < 63 && x >> bits)
    bits++;
  return bits;
}

/* The largest number of bytes, up to 16, that divides all of a list. */
static inline int64_t moth_unit_of(std::initializer_list<uint64_t> list) {
  uint64_t all = 16;
  for (uint64_t x : list)
    all |= x;
  return (int64_t)(all & -all);
}
/* Runs call(T()) with a type of 1, 2, 4, 8 or 16 bytes. */
struct alignas(16) MothBytes16 {
  uint64_t v[2];
};
template <class F> static inline MothStatus moth_by_size(int64_t size, const F &call) {
  switch (size) {
  case 1:
    return call(uint8_t());
  case 2:
    return call(uint16_t());
  case 4:
    return call(uint32_t());
  case 8:
    return call(uint64_t());
  default:
    return call(MothBytes16());
  }
}
#endif
