/* Included first by every generated kernel file, which has defined
 *   stored          C type of an element in memory
 *   real            C type that is computed in
 *   MOTH_REAL_KIND  1 float32, 2 float64, 3 signed, 4 unsigned, 5 bool
 *   MOTH_STORED     0 stored is real, 1 float16, 2 bfloat16
 *   MOTH_SELF       the MothDType
 * Everything in kernels/cpu/typed is static: its names need no dtype, the file has one. */
#ifdef __SSE2__
#include <immintrin.h>
#endif
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/table.h"

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wsign-conversion"

#define MOTH_FN static inline __attribute__((always_inline, unused))
#include "kernels/math.h"

#if MOTH_STORED == 1
#define LOAD(x)      m_f16_to_f32(x)
#define STORE(x)     m_f32_to_f16(x)
#define STORE_F64(x) m_f64_to_f16(x)
#define STORE_I64(x) m_f64_to_f16(m_i64_to_odd(x))
#define STORE_U64(x) m_f64_to_f16(m_u64_to_odd(x))
#elif MOTH_STORED == 2
#define LOAD(x)      m_bf16_to_f32(x)
#define STORE(x)     m_f32_to_bf16(x)
#define STORE_F64(x) m_f64_to_bf16(x)
#define STORE_I64(x) m_f64_to_bf16(m_i64_to_odd(x))
#define STORE_U64(x) m_f64_to_bf16(m_u64_to_odd(x))
#elif MOTH_REAL_KIND == 5
#define LOAD(x)  (x)
#define STORE(x) ((x) != 0)
#else
#define LOAD(x)  (x)
#define STORE(x) (x)
#endif
/* From wider than real, rounded once. */
#ifndef STORE_F64
#define STORE_F64(x) STORE((real)(x))
#define STORE_I64(x) STORE((real)(x))
#define STORE_U64(x) STORE((real)(x))
#endif

#define MOTH_IS_FLOAT (MOTH_REAL_KIND <= 2)
#if MOTH_IS_FLOAT
#define PARAM(k) ((real)(k).d)
#else
#define PARAM(k) ((real)(k).i)
#endif

/* No dependence between iterations: out may be an input exactly, never partly. */
#define MOTH_VECTOR _Pragma("GCC ivdep")
/* And the formula may be long: four vectors side by side, in a function whose instructions are ordered before
 * registers are given out, so that the processor, which looks ahead by one or two formulas only, finds the next
 * ones. Not for all of the file: products of matrices spill then, and take twice as long. */
#if MOTH_IS_FLOAT && defined(__OPTIMIZE__) && defined(__GNUC__) && !defined(__clang__)
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

/* Rows that are summed up before they are written: while one is written, a piece at a time, the memory of
 * the next one is asked for. Otherwise the stores' lines are fetched only when their time has come;
 * layer_norm of 16 MB took 1.36 times a memcpy, and takes 1.08. */
enum { PIECE = 256 };
#define PIECES(piece, n, from, end)                                                                \
  for (int64_t from = 0, end; from < (n); from = end)                                              \
    if (end = (n)-from < (piece) ? (n) : from + (piece), 1)

/* Loops that wait for memory: a result of FAR bytes and more is written by stretches, while the memory AHEAD is
 * asked for, of operands and result. The processor does so by itself, but not beyond a page, and hardly for what
 * will be written; by stretches, since gcc makes no vectors of a loop that asks. A ReLU of 4 MB takes 0.7 to 0.8 of
 * the time, an addition 0.7 to 0.9; what lies in the second cache would take longer. */
enum {
  STRETCH = 1024 / sizeof(stored),
  AHEAD = 1024 / sizeof(stored),
  FAR = 1 << 20,
  REPEAT = 4096 / sizeof(stored)
};
#define STRETCHES(o, n, from, end, repeated)                                                       \
  const bool far = (n) >= FAR / (int64_t)sizeof *(o);                                              \
  PIECES(far ? STRETCH : (repeated) ? REPEAT : (n), n, from, end)
/* A block of equal elements, which an operand that is one number is read from: REPEAT of them, or n. */
#define REPEATED(block, x, n)                                                                      \
  for (int64_t i_ = 0, m_ = (n) < REPEAT ? (n) : REPEAT; i_ < m_; i_++)                            \
  (block)[i_] = (x)
#define ASK_AHEAD(p, from)     FETCH(p, (from) + AHEAD, (from) + AHEAD + STRETCH)
#define ASK_AHEAD_OUT(p, from) FETCH_TO_WRITE(p, (from) + AHEAD, (from) + AHEAD + STRETCH)

/* Which i of [0, n) have first + i * step in [0, size): [*from, *to). */
MOTH_FN void inside(int64_t first, int64_t step, int64_t size, int64_t n, int64_t *from,
                    int64_t *to) {
  int64_t lo = first < 0 ? (-first + step - 1) / step : 0;
  int64_t hi = first < size ? (size - 1 - first) / step + 1 : 0;
  *from = lo < n ? lo : n;
  hi = hi < n ? hi : n;
  *to = hi > *from ? hi : *from;
}
