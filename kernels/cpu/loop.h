/* Macros of the loops of pointwise kernels (src/codegen/c.lua), and of other kernels that are compiled for each dtype
 * and instruction set. */
#ifndef MOTH_CPU_LOOP_H
#define MOTH_CPU_LOOP_H
#include <stdbool.h>
#include <stdint.h>

#include "kernels/common/param.h"

/* The Makefile's ISAS, in its order. Where there is one alone, the others are names of none. */
#if defined(__x86_64__)
enum { MOTH_ISA_GENERIC, MOTH_ISA_AVX2, MOTH_ISA_AVX512, MOTH_NISAS };
#else
enum { MOTH_ISA_GENERIC, MOTH_NISAS, MOTH_ISA_AVX2, MOTH_ISA_AVX512 };
#endif
extern int moth_isa; /* the level in use: kernels/cpu/level.c */

/* p[0] is written, p[1..] are read; strides in bytes. */
typedef void (*MothLoop)(char **p, const int64_t *stride, int64_t n, const MothParam *params);

/* The loops of one pointwise op, by instruction set, then by dtype: from MOTH_FLOAT32, from MOTH_INT8, and from
 * MOTH_UINT16 on, whose loops are compiled for one set, and from MOTH_COMPLEX64. NULL where the op has not the dtypes, or
 * not the dtype. */
typedef struct MothLoops {
  const MothLoop *of_float[MOTH_NISAS], *of_int[MOTH_NISAS], *of_uint, *of_complex[MOTH_NISAS];
} MothLoops;

#define MOTH_FN static inline __attribute__((always_inline, unused))

/* No dependence between iterations: out may be an input exactly, never partly. */
#define MOTH_VECTOR _Pragma("GCC ivdep")
/* For long formulas: four vectors side by side, in a function whose instructions are scheduled before register
 * allocation, so that the processor, which looks ahead by only one or two formulas, finds independent work. Not for the
 * whole file: matrix products would spill, and take twice as long. */
#if defined(__OPTIMIZE__) && defined(__GNUC__) && !defined(__clang__)
#define MOTH_VECTOR_LONG MOTH_VECTOR _Pragma("GCC unroll 4")
#define MOTH_ROW         __attribute__((noinline, optimize("schedule-insns", "sched-pressure")))
#else
#define MOTH_VECTOR_LONG MOTH_VECTOR
#define MOTH_ROW         __attribute__((noinline))
#endif

/* Prefetches the cache lines of p[from .. end), for reading or writing. */
#define FETCH_AS(p, from, end, write)                                                              \
  for (const char *line_ = (const char *)((p) + (from)); line_ < (const char *)((p) + (end));      \
       line_ += 64)                                                                                \
  __builtin_prefetch(line_, write)
#define FETCH(p, from, end)          FETCH_AS(p, from, end, 0)
#define FETCH_TO_WRITE(p, from, end) FETCH_AS(p, from, end, 1)

/* Iterates over [0, n) in chunks [from, end). */
#define FOR_CHUNKS(chunk, n, from, end)                                                            \
  for (int64_t from = 0, end; from < (n); from = end)                                              \
    if (end = (n)-from < (chunk) ? (n) : from + (chunk), 1)

/* Memory-bound loops: results of FAR bytes and more are written in stretches, while the memory one stretch ahead is
 * prefetched, of operands and result. The processor prefetches by itself, but not across pages, and hardly for stores; in
 * stretches, since gcc does not vectorise a loop with prefetches. A ReLU of 4 MB takes 0.7 to 0.8 of the time, an addition
 * 0.7 to 0.9; data in the second-level cache would take longer. */
enum { FAR = 1 << 20 };
#define STRETCHES(o, n, from, end, stretch, near)                                                  \
  const bool far = (n) >= FAR / (int64_t)sizeof *(o);                                              \
  FOR_CHUNKS(far ? (stretch) : (near), n, from, end)
/* Fills a block with min(n, most) equal elements, from which a scalar operand is read. */
#define REPEATED(block, x, n, most)                                                                \
  for (int64_t i_ = 0, m_ = (n) < (most) ? (n) : (most); i_ < m_; i_++)                            \
  (block)[i_] = (x)
#define ASK_AHEAD(p, from, stretch) FETCH(p, (from) + (stretch), (from) + 2 * (stretch))
#define ASK_AHEAD_OUT(p, from, stretch)                                                            \
  FETCH_TO_WRITE(p, (from) + (stretch), (from) + 2 * (stretch))
#endif
