#include "kernels/cpu/util.h"
#include "kernels/cpu/rearrange.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/iter.h"
#include "kernels/common/scatter.h"

void moth_cpu_see_part(const MothTensor *t, int which, MothTensor *out) {
  MothDType part = moth_dtype_real((MothDType)t->dtype);
  *out = *t;
  out->dtype = (uint8_t)part;
  for (int i = 0; i < t->ndim; i++)
    out->stride[i] = t->stride[i] * 2;
  out->offset = t->offset * 2 + (which == 1);
  out->data = t->data ? t->data + (which == 1) * moth_dtype_size(part) : NULL;
  if (which == 2) {
    out->shape[out->ndim] = 2;
    out->stride[out->ndim++] = 1;
    out->numel *= 2;
  } else {
    out->contiguous = t->numel <= 1;
  }
}

#define IS_TRUE(name, type)                                                                        \
  static void name(char **p, const int64_t *s, int64_t n, const MothParam *k) {                    \
    (void)k;                                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                              \
      const type *z = (const type *)(p[1] + i * s[1]);                                             \
      *(uint8_t *)(p[0] + i * s[0]) = z->re != 0 || z->im != 0;                                    \
    }                                                                                              \
  }
IS_TRUE(complex64_is_true, MothComplex64)
IS_TRUE(complex128_is_true, MothComplex128)

static void copy_complex(MothTensor *dst, const MothTensor *src) {
  bool to = moth_dtype_is_complex((MothDType)dst->dtype),
       from = moth_dtype_is_complex((MothDType)src->dtype);
  static const float nothing = 0;
  MothTensor d, s,
      zero = {.dtype = MOTH_FLOAT32,
              .numel = 1,
              .contiguous = true,
              .data = (char *)(uintptr_t)&nothing};
  if (dst->dtype == MOTH_BOOL) {
    MothIter it;
    moth_iter_init(&it, dst->ndim, dst->shape);
    moth_iter_add(&it, dst);
    moth_iter_add(&it, src);
    moth_iter_prepare(&it);
    moth_iter_run(&it, src->dtype == MOTH_COMPLEX64 ? complex64_is_true : complex128_is_true, NULL,
                  MOTH_GRAIN);
    return;
  }
  if (to && from && dst->ndim == src->ndim && dst->ndim < MOTH_MAX_DIMS) {
    moth_cpu_see_part(dst, 2, &d);
    moth_cpu_see_part(src, 2, &s);
    moth_cpu_copy(&d, &s);
    return;
  }
  for (int which = 0; which < (to ? 2 : 1); which++) {
    if (to)
      moth_cpu_see_part(dst, which, &d);
    if (from)
      moth_cpu_see_part(src, which, &s);
    moth_cpu_copy(to ? &d : dst, from ? &s : which == 0 ? src : &zero);
  }
}

void moth_cpu_copy(MothTensor *dst, const MothTensor *src) {
  MothIter it;
  if (dst->data == src->data && dst->dtype == src->dtype && moth_tensor_overlap(dst, src) == 1)
    return;
  if (!dst->numel)
    return;
  if (dst->dtype != src->dtype &&
      __builtin_expect(dst->dtype >= MOTH_COMPLEX64 || src->dtype >= MOTH_COMPLEX64, 0)) {
    copy_complex(dst, src);
    return;
  }
  moth_iter_init(&it, dst->ndim, dst->shape);
  moth_iter_add(&it, dst);
  moth_iter_add(&it, src);
  moth_iter_prepare(&it);
  if (dst->dtype == src->dtype)
    moth_rearrange(&it, moth_itemsize(dst));
  else
    moth_iter_run(&it, moth_cpu_kernels(dst->dtype)->copy_from[src->dtype], NULL, MOTH_GRAIN);
}

MothStatus moth_cpu_broadcast_as(const MothTensor *t, MothDType dtype, int ndim,
                                 const int64_t *shape, MothTensor **out) {
  bool same = ndim == t->ndim && !memcmp(shape, t->shape, sizeof(int64_t) * (size_t)ndim);
  if (same && t->contiguous && t->dtype == dtype) {
    *out = (MothTensor *)t;
    moth_tensor_retain(*out);
    return MOTH_OK;
  }
  MOTH_TRY(moth_tensor_new(ndim, shape, dtype, t->device, out));
  moth_cpu_copy(*out, t);
  return MOTH_OK;
}

MothStatus moth_cpu_contiguous_as(const MothTensor *t, MothDType dtype, MothTensor **out) {
  return moth_cpu_broadcast_as(t, dtype, t->ndim, t->shape, out);
}

MothStatus moth_cpu_contiguous(const MothTensor *t, MothTensor **out) {
  return moth_cpu_broadcast_as(t, (MothDType)t->dtype, t->ndim, t->shape, out);
}

MothStatus moth_cpu_sums_as(MothTensor *out, bool add, MothTensor **sums) {
  if (add && (out->dtype == MOTH_FLOAT16 || out->dtype == MOTH_BFLOAT16))
    return moth_tensor_new(out->ndim, out->shape, MOTH_FLOAT32, out->device, sums);
  moth_tensor_retain(out);
  *sums = out;
  return MOTH_OK;
}

typedef struct IndexRange {
  const int64_t *in;
  int64_t *out;
  int64_t base, size;
  _Atomic int64_t first_bad; /* the least i with in[i] out of range */
} IndexRange;

static void index_range(void *ctx, int64_t begin, int64_t end) {
  IndexRange *r = ctx;
  const int64_t *in = r->in;
  uint64_t base = (uint64_t)r->base, size = (uint64_t)r->size;
  MothIndexCheck check = {in + begin, end - begin, r->base, r->size,
                          r->out ? r->out + begin : NULL};
  if (!moth_cpu_kernels(MOTH_INT64)->index_outside(&check))
    return;
  for (int64_t i = begin; i < end; i++)
    if ((uint64_t)in[i] - base >= size) {
      int64_t old = atomic_load(&r->first_bad);
      while (i < old && !atomic_compare_exchange_weak(&r->first_bad, &old, i))
        ;
      return;
    }
}

MothStatus moth_cpu_index_fail(const char *what, int64_t value, int64_t base, int64_t size,
                               int dim) {
  char where[80] = "";
  if (dim >= 0)
    snprintf(where, sizeof where, " (dimension %lld has size %lld)", (long long)(dim + base),
             (long long)size);
  if (!size)
    return moth_fail(MOTH_ERR_INDEX, "%s %lld is out of range: there are no positions%s", what,
                     (long long)value, where);
  return moth_fail(MOTH_ERR_INDEX, "%s %lld is out of range: expected %lld to %lld%s", what,
                   (long long)value, (long long)base, (long long)(size - 1 + base), where);
}

/* Checks the values of t. *wide: the values, row-major int64 (the caller releases it); from_0: the same, counted
 * from 0, unless NULL. */
static MothStatus check_index(const MothTensor *t, int64_t base, int64_t size, int dim,
                              const char *what, int64_t *from_0, MothTensor **wide) {
  MOTH_TRY(moth_cpu_contiguous_as(t, MOTH_INT64, wide));
  IndexRange r = {(const int64_t *)(*wide)->data, from_0, base, size, INT64_MAX};
  moth_parallel_for(t->numel, MOTH_GRAIN, index_range, &r);
  if (moth_stopped()) { /* not all are checked */
    moth_tensor_release(*wide);
    *wide = NULL;
    return moth_interrupted();
  }
  if (r.first_bad == INT64_MAX)
    return MOTH_OK;
  int64_t bad = r.in[r.first_bad];
  moth_tensor_release(*wide);
  *wide = NULL;
  return moth_cpu_index_fail(what, bad, base, size, dim);
}

MothStatus moth_cpu_index_checked(const MothTensor *t, int64_t base, int64_t size, int dim,
                                  const char *what, MothTensor **out) {
  return check_index(t, base, size, dim, what, NULL, out);
}

MothStatus moth_cpu_index(const MothTensor *t, int64_t base, int64_t size, int dim,
                          const char *what, int64_t **out) {
  MothTensor *wide;
  int64_t *index = moth_alloc((size_t)t->numel * sizeof(int64_t));
  *out = NULL;
  if (!index)
    return moth_no_memory(0);
  MothStatus s = check_index(t, base, size, dim, what, index, &wide);
  if (s != MOTH_OK) {
    moth_cpu_index_free(t, index);
    return s;
  }
  moth_tensor_release(wide);
  *out = index;
  return MOTH_OK;
}

void moth_cpu_index_free(const MothTensor *t, int64_t *index) {
  if (index)
    moth_free(index, (size_t)t->numel * sizeof(int64_t));
}
