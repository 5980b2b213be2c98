/* What the loops of pointwise kernels are made of (src/codegen/c.lua), and the kernels that are compiled once for each
 * dtype and instruction set, too. */
#ifndef MOTH_CPU_LOOP_H
#define MOTH_CPU_LOOP_H
#include <stdbool.h>
#include <stdint.h>

#include "kernels/common/param.h"

enum { MOTH_ISA_GENERIC, MOTH_ISA_AVX2, MOTH_ISA_AVX512, MOTH_NISAS };
extern int moth_isa; /* the level in use: kernels/cpu/level.c */

/* p[0] is written, p[1..] are read; strides in bytes. */
typedef void (*MothLoop)(char **p, const int64_t *stride, int64_t n, const MothParam *params);

/* The loops of one pointwise op, by instruction set, then by dtype: from MOTH_FLOAT32, from MOTH_INT8, and from
 * MOTH_UINT16 on, whose loops are compiled for one set. NULL where the op has not the dtypes, or not the dtype. */
typedef struct MothLoops {
  const MothLoop *of_float[MOTH_NISAS], *of_int[MOTH_NISAS], *of_uint;
} MothLoops;

#define MOTH_FN static inline __attribute__((always_inline, unused))

/* No dependence between iterations: out may be an input exactly, never partly. */
#define MOTH_VECTOR _Pragma("GCC ivdep")
/* And the formula may be long: four vectors side by side, in a function whose instructions are ordered before
 * registers are given out, so that the processor, which looks ahead by one or two formulas only, finds the next
 * ones. Not for all of the file: products of matrices spill then, and take twice as long. */
#if defined(__OPTIMIZE__) && defined(__GNUC__) && !defined(__clang__)
#define MOTH_VECTOR_LONG MOTH_VECTOR _Pragma("GCC unroll 4")
#define MOTH_ROW         __attribute__((noinline, optimize("schedule-insns", "sched-pressure")))
#else
#define MOTH_VECTOR_LONG MOTH_VECTOR
#define MOTH_ROW         __attribute__((noinline))
#endif

/* Asks for the lines of p[from .. end): to be read, or written. */
#define FETCH_AS(p, from, end, write)                                                              \
  for (const char *line_ = (const char *)((p) + (from)); line_ < (const char *)((p) + (end));      \
       line_ += 64)                                                                                \
  __builtin_prefetch(line_, write)
#define FETCH(p, from, end)          FETCH_AS(p, from, end, 0)
#define FETCH_TO_WRITE(p, from, end) FETCH_AS(p, from, end, 1)

/* [from, end) over [0, n) in pieces. */
#define PIECES(piece, n, from, end)                                                                \
  for (int64_t from = 0, end; from < (n); from = end)                                              \
    if (end = (n)-from < (piece) ? (n) : from + (piece), 1)

/* Loops that wait for memory: a result of FAR bytes and more is written by stretches, while the memory as far ahead as
 * a stretch is asked for, of operands and result. The processor does so by itself, but not beyond a page, and hardly for
 * what will be written; by stretches, since gcc makes no vectors of a loop that asks. A ReLU of 4 MB takes 0.7 to 0.8 of
 * the time, an addition 0.7 to 0.9; what lies in the second cache would take longer. */
enum { FAR = 1 << 20 };
#define STRETCHES(o, n, from, end, stretch, near)                                                  \
  const bool far = (n) >= FAR / (int64_t)sizeof *(o);                                              \
  PIECES(far ? (stretch) : (near), n, from, end)
/* A block of equal elements, which an operand that is one number is read from: `most` of them, or n. */
#define REPEATED(block, x, n, most)                                                                \
  for (int64_t i_ = 0, m_ = (n) < (most) ? (n) : (most); i_ < m_; i_++)                            \
  (block)[i_] = (x)
#define ASK_AHEAD(p, from, stretch) FETCH(p, (from) + (stretch), (from) + 2 * (stretch))
#define ASK_AHEAD_OUT(p, from, stretch)                                                            \
  FETCH_TO_WRITE(p, (from) + (stretch), (from) + 2 * (stretch))
#endif
