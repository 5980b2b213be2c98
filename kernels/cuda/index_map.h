/* Where the elements of an index tensor point to: coordinates of a flat number, and what they mean in
 * the index, in the tensor that it points into (far) and in the one that goes along with it (near). */
#ifndef MOTH_CUDA_PLACES_H
#define MOTH_CUDA_PLACES_H
#include <initializer_list>

#include "kernels/cuda/fastdiv.h"
#include "kernels/cuda/scatter.h"
#include "kernels/cuda/util.h"

typedef struct MothPlaces {
  int ndim;
  int64_t n; /* elements in all */
  WideDiv size[MOTH_MAX_DIMS];
  int64_t index[MOTH_MAX_DIMS], far[MOTH_MAX_DIMS], near[MOTH_MAX_DIMS]; /* steps, in elements */
  int64_t far_step; /* of the dimension that the index points into */
  const int64_t *at;
  int64_t base, bound; /* bound -1: `at` was checked and holds offsets, -1 for what is left out */
  int dim, op;
  MothFault *fault;
} MothPlaces;

/* A dimension that the shape rule has found in range, from 0. */
static inline int moth_dim_of(int64_t dim, int ndim) {
  return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim);
}
struct MothPlace {
  int64_t index, far, near;
};
static __device__ __forceinline__ MothPlace moth_place(const MothPlaces &p, int64_t i) {
  MothPlace r = {0, 0, 0};
  for (int d = p.ndim - 1; d >= 0; d--) {
    int64_t q = div_wide(i, p.size[d]), x = i - q * p.size[d].d;
    r.index += x * p.index[d];
    r.far += x * p.far[d];
    r.near += x * p.near[d];
    i = q;
  }
  return r;
}
/* The place with its index value read: false if that is out of range. */
static __device__ __forceinline__ bool moth_place_find(const MothPlaces &p, MothPlace *r) {
  int64_t k = p.at[r->index];
  if (p.bound >= 0)
    k = moth_index(p.fault, p.op, MOTH_FAULT_INDEX, p.dim, k, p.base, p.bound);
  r->far += k * p.far_step;
  return k >= 0;
}

/* Dimension d of a shape, with its steps; merged with the one before where all three step evenly. */
static inline void moth_places_add(MothPlaces *p, int64_t size, int64_t index, int64_t far,
                                   int64_t near) {
  int k = p->ndim - 1;
  if (size == 1)
    return;
  if (k >= 0 && p->index[k] == index * size && p->far[k] == far * size &&
      p->near[k] == near * size) {
    size *= p->size[k].d;
  } else {
    k = p->ndim++;
  }
  p->size[k] = wide_div(size);
  p->index[k] = index;
  p->far[k] = far;
  p->near[k] = near;
}

/* out[i] = in[far of i] for all elements of the index, in units of 1 to 16 bytes; out is row-major. */
MothStatus moth_cuda_gather_places(const char *name, cudaStream_t stream, void *out, const void *in,
                                   int64_t unit, const MothPlaces *p);

/* out[far of i] = src[near of i], of several writes to one place the last; `reach`: far offsets lie below
 * it. src NULL: all are `number`, of out's dtype. */
MothStatus moth_cuda_scatter_places(const MothCall *c, cudaStream_t stream, MothTensor *out,
                                    int64_t reach, const MothTensor *src, const void *number,
                                    const MothPlaces *p);
/* out[far of i] += src[near of i], in the order of i. src_reach: near offsets lie below it. */
MothStatus moth_cuda_add_places(const MothCall *c, cudaStream_t stream, MothTensor *out,
                                int64_t reach, const MothTensor *src, int64_t src_reach,
                                const MothPlaces *p);
/* One more than the largest offset of an element of t, which has some. */
static inline int64_t moth_reach(const MothTensor *t) {
  int64_t reach = 1;
  for (int i = 0; i < t->ndim; i++)
    reach += (t->shape[i] - 1) * t->stride[i];
  return reach;
}

/* For gather, scatter and scatter_add: near NULL is one number for all. */
static inline void moth_places_of(MothPlaces *p, const MothCall *c, const MothTensor *far,
                                  const MothTensor *index, const MothTensor *near, int dim,
                                  int64_t base) {
  *p = MothPlaces{};
  p->n = index->numel;
  p->at = (const int64_t *)index->data;
  p->far_step = far->ndim ? far->stride[dim] : 1;
  p->base = base;
  p->bound = far->ndim ? far->shape[dim] : 1;
  p->dim = dim;
  p->op = c->op->id;
  p->fault = moth_cuda_fault(c->device.index);
  for (int i = 0; i < index->ndim; i++)
    moth_places_add(p, index->shape[i], index->stride[i],
                    i == dim || !far->ndim ? 0 : far->stride[i],
                    near && near->ndim ? near->stride[i] : 0);
}

/* Room for n pairs and their spare. */
static inline MothStatus moth_pairs_take(MothScratch *room, int device, int64_t n, bool wide,
                                         MothPairs *pairs, MothPairs *spare) {
  size_t each = ((size_t)n * (wide ? 8 : 4) + 255) / 256 * 256;
  MOTH_TRY(room->take(device, 4 * each));
  char *p = room->as<char>();
  *pairs = MothPairs{wide, n, p, p + each};
  *spare = MothPairs{wide, n, p + 2 * each, p + 3 * each};
  return MOTH_OK;
}
/* Bits of keys 0 to x. */
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
