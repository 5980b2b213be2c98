/* Running results along rows and down columns, in double or 64 bits where they are sums or products. The loops, one for
 * each join and map of a record of kind "scan", are printed by src/codegen/reduce.lua into scan_loops.h. */
#ifndef MOTH_CPU_TYPED_SCAN_H
#define MOTH_CPU_TYPED_SCAN_H
#include "core/parallel.h"
#include "kernels/common/scan.h"
#include "kernels/cpu/typed/join.h"
#include "reductions.h"

enum { SCAN_COLS = 256, SCAN_BLOCK = 1 << 20 };
#if MOTH_IS_FLOAT
typedef stored wide_stored;
#define STORE_WIDE(x) STORE((real)(x))
#else
typedef int64_t wide_stored;
#define STORE_WIDE(x) (x)
#endif
#include "scan_loops.h"

MOTH_TYPED void scan(const struct MothScan *s) {
  if (s->inner == 1)
    scans_of_rows[s->op](s->out, s->in, s->outer, s->n);
  else
    scans_of_columns[s->op](s->out, s->in, s->n, s->inner, s->cols);
}

/* The derivative of running products, for `outer` lots of `cols` lines beside each other: that by element k is the product
 * of those before it times h[k], the sum over j >= k of grad[j] times those between k and j: h[k] = grad[k] + x[k + 1]
 * h[k + 1]. No division: zeros are like other numbers. */
MOTH_TYPED_REAL void cumprod_backward(const struct MothScan *s) {
  enum { LINES = 8 };
  const int64_t n = s->n, step = s->inner;
  const int64_t line = s->inner == 1 ? n : 1, lines = s->inner == 1 ? s->outer : s->cols;
  for (int64_t from = 0; from < lines && !moth_stopped(); from += LINES) {
    const int m = lines - from < LINES ? (int)(lines - from) : LINES;
    const real *x = (const real *)s->in + from * line, *g = (const real *)s->grad + from * line;
    real *o = (real *)s->out + from * line;
    double h[LINES] = {0}, before[LINES];
    for (int c = 0; c < m; c++)
      before[c] = 1;
    for (int64_t k = n - 1; k >= 0; k--)
      for (int c = 0; c < m; c++) {
        int64_t at = k * step + c * line;
        h[c] = (double)g[at] + (k + 1 < n ? (double)x[at + step] * h[c] : 0);
        o[at] = (real)h[c];
      }
    for (int64_t k = 0; k < n; k++)
      for (int c = 0; c < m; c++) {
        int64_t at = k * step + c * line;
        o[at] = (real)((double)o[at] * before[c]);
        before[c] *= (double)x[at];
      }
  }
}
#endif
