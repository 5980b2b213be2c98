/* Included first by every generated kernel file, which has defined, as for the CPU,
 *   stored          type of an element in memory
 *   real            type that is computed in
 *   MOTH_REAL_KIND  1 float32, 2 float64, 3 signed, 4 unsigned, 5 bool
 *   MOTH_STORED     0 stored is real, 1 float16, 2 bfloat16
 *   MOTH_SELF       the MothDType
 *   MOTH_FORMULAS   the header with those formulas of kernels/math*.h that the kernels use
 * Everything after it stands in a nameless namespace: its names need no dtype, the file has one. */
#include "kernels/cuda/formulas.h"
#include MOTH_FORMULAS

/* A definition that begins with it is a member of MothCudaKernels: the generator reads it. */
#define MOTH_TYPED static

#if MOTH_STORED == 1
#define LOAD(x)  f16_load(x)
#define STORE(x) f16_store(x)
#elif MOTH_STORED == 2
#define LOAD(x)  m_bf16_to_f32(x)
#define STORE(x) m_f32_to_bf16(x)
#elif MOTH_REAL_KIND == 5
#define LOAD(x)  (x)
#define STORE(x) ((stored)((x) != 0))
#else
#define LOAD(x)  (x)
#define STORE(x) ((stored)(x))
#endif

#define MOTH_IS_FLOAT (MOTH_REAL_KIND <= 2)
#if MOTH_IS_FLOAT
#define PARAM(k) ((real)(k).d)
#else
#define PARAM(k) ((real)(k).i)
#endif

/* What sums are kept in. */
#if MOTH_REAL_KIND == 1
typedef float accum;
#elif MOTH_REAL_KIND == 2
typedef double accum;
#else
typedef long long accum;
#endif
