/* Products of sparse matrices in rows: threads share the rows, by their elements. */
#include "kernels/common/sparse.h"

#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/sparse.h"

typedef struct Product {
  MothSparse p;
  void (*kernel)(const struct MothSparse *);
} Product;

/* Rows are counted by the elements before them and their number, so that long and empty ones share the work fairly. The
 * first row whose count is at least n. */
static int64_t row_at(const MothSparse *p, int64_t n) {
  int64_t low = 0, high = p->rows;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (p->crow[middle] - p->base + middle < n)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}
static void product_range(void *ctx, int64_t begin, int64_t end) {
  const Product *q = ctx;
  MothSparse p = q->p;
  p.from = row_at(&p, begin);
  p.to = row_at(&p, end);
  q->kernel(&p);
}

/* Complex tensors come as pairs of floats, in a last dimension (dispatch/parts.c). */
static MothStatus run(MothCall *c, const MothTensor *crow, const MothTensor *cols,
                      const MothTensor *values, const MothTensor *a, const MothTensor *b,
                      int64_t base) {
  MothTensor *out = c->results[0].u.t, *row = NULL, *col = NULL, *v = NULL, *x = NULL, *y = NULL;
  const MothKernels *kernels = moth_cpu_kernels(out->dtype);
  bool pairs = b->ndim == 3;
  MothStatus status;
  MOTH_GO(moth_cpu_index_checked(crow, base, cols->numel + 1, -1, "index", &row));
  MOTH_GO(moth_cpu_index_checked(cols, base, b->shape[0], -1, "index", &col));
  if (values)
    MOTH_GO(moth_cpu_contiguous(values, &v));
  else
    MOTH_GO(moth_cpu_contiguous(a, &x));
  MOTH_GO(moth_cpu_contiguous(b, &y));
  Product q = {.p = {.crow = (const int64_t *)row->data,
                     .cols = (const int64_t *)col->data,
                     .base = base,
                     .rows = crow->numel - 1,
                     .nnz = cols->numel,
                     .k = b->shape[1] * (pairs ? 2 : 1),
                     .pairs = pairs,
                     .values = v ? v->data : NULL,
                     .a = x ? x->data : NULL,
                     .b = y->data,
                     .out = out->data},
               .kernel = values ? kernels->sparse_mm : kernels->sparse_dot};
  bool rises = q.p.crow[0] == base && q.p.crow[q.p.rows] == base + q.p.nnz;
  for (int64_t r = 0; r < q.p.rows && rises; r++)
    rises = q.p.crow[r] <= q.p.crow[r + 1];
  if (!rises)
    status = moth_fail(MOTH_ERR_VALUE, "crow must rise from %lld to %lld", (long long)base,
                       (long long)(q.p.nnz + base));
  else
    moth_parallel_for(q.p.rows + q.p.nnz, moth_cpu_grain(q.p.k + 1), product_range, &q);
done:
  moth_tensor_release(row);
  moth_tensor_release(col);
  moth_tensor_release(v);
  moth_tensor_release(x);
  moth_tensor_release(y);
  return status;
}

MothStatus moth_cpu_native_sparse_mm(MothCall *c) {
  MOTH_UNPACK_NATIVE_SPARSE_MM(c)
  return run(c, crow, cols, values, NULL, dense, index_base);
}
MothStatus moth_cpu_native_sparse_dot(MothCall *c) {
  MOTH_UNPACK_NATIVE_SPARSE_DOT(c)
  return run(c, crow, cols, NULL, mat1, mat2, index_base);
}
