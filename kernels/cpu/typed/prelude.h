/* Shared by the kernels of this folder. A file of them, a family, is compiled once for each dtype and instruction set,
 * by a generated file (src/ops/kernels.lua) that has defined
 *   stored          C type of an element in memory
 *   real            C type that is computed in
 *   MOTH_REAL_KIND  1 float32, 2 float64, 3 signed, 4 unsigned, 5 bool
 *   MOTH_STORED     0 stored is real, 1 float16, 2 bfloat16
 *   MOTH_SELF       the MothDType
 *   MOTH_FORMULAS   the header with those formulas of kernels/math*.h that the family uses
 * Everything is static: names need no dtype. A generated file has several families, so no two of them have a name in common.
 * The macro before a definition makes it a member of MothKernels (kernels/cpu/table.h), NULL for other dtypes:
 *   MOTH_TYPED        all dtypes but those for storage and exchange (those of copy.h: all)
 *   MOTH_TYPED_FLOAT  float32, float64, float16, bfloat16
 *   MOTH_TYPED_REAL   float32 and float64
 *   MOTH_TYPED_HALF   float16 and bfloat16 */
#ifndef MOTH_CPU_TYPED_PRELUDE_H
#define MOTH_CPU_TYPED_PRELUDE_H
#include <string.h>

#include "kernels/cpu/loop.h"
#include "moth_dtypes.h"

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wsign-conversion"

#include "kernels/math_libm.h"
#include MOTH_FORMULAS

/* A vector register of the instruction set. gcc takes longer vectors apart lane by lane, into code that is long and slow. */
#if defined(__AVX512F__)
#define MOTH_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define MOTH_VECTOR_BYTES 32
#else
#define MOTH_VECTOR_BYTES 16
#endif

#define MOTH_TYPED       static
#define MOTH_TYPED_FLOAT static
#define MOTH_TYPED_REAL  static
#define MOTH_TYPED_HALF  static __attribute__((noinline))

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

/* Rows that are summed before they are written: while one is written, a chunk at a time, the memory of the
 * next one is prefetched. Otherwise stores wait for their cache lines; layer_norm of 16 MB took 1.36 times a
 * memcpy, and takes 1.08. */
enum { CHUNK = 256 };
/* The distance of prefetches: see STRETCHES. */
enum { STRETCH = 1024 / sizeof(stored), AHEAD = STRETCH };

/* [*from, *to): the i in [0, n) with first + i * stride in [0, size). */
MOTH_FN void inside(int64_t first, int64_t stride, int64_t size, int64_t n, int64_t *from,
                    int64_t *to) {
  int64_t lo = first < 0 ? (-first + stride - 1) / stride : 0;
  int64_t hi = first < size ? (size - 1 - first) / stride + 1 : 0;
  *from = lo < n ? lo : n;
  hi = hi < n ? hi : n;
  *to = hi > *from ? hi : *from;
}
#endif
