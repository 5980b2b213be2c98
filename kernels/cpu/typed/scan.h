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
#endif
