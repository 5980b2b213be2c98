/* The dtypes. Included by moth.h; a header of its own since the kernels, which take minutes to compile, need nothing
 * else of moth.h. */
#ifndef MOTH_DTYPES_H
#define MOTH_DTYPES_H

/* Every dtype, once: X(ENUM, name, C type of an element, compute type, class). Ordered by promotion
 * within a class. From uint16 on ops have a dtype only if their records name its class: uint16, uint32 and uint64 are
 * for storage and exchange, the complex ones are pairs of floats. */
#define MOTH_DTYPE_LIST(X)                                                                         \
  X(FLOAT32, float32, float, float, FLOAT)                                                         \
  X(FLOAT64, float64, double, double, FLOAT)                                                       \
  X(FLOAT16, float16, uint16_t, float, FLOAT)                                                      \
  X(BFLOAT16, bfloat16, uint16_t, float, FLOAT)                                                    \
  X(INT8, int8, int8_t, int8_t, INT)                                                               \
  X(UINT8, uint8, uint8_t, uint8_t, INT)                                                           \
  X(INT16, int16, int16_t, int16_t, INT)                                                           \
  X(INT32, int32, int32_t, int32_t, INT)                                                           \
  X(INT64, int64, int64_t, int64_t, INT)                                                           \
  X(BOOL, bool, uint8_t, uint8_t, BOOL)                                                            \
  X(UINT16, uint16, uint16_t, uint16_t, INT)                                                       \
  X(UINT32, uint32, uint32_t, uint32_t, INT)                                                       \
  X(UINT64, uint64, uint64_t, uint64_t, INT)                                                       \
  X(COMPLEX64, complex64, MothComplex64, MothComplex64, COMPLEX)                                   \
  X(COMPLEX128, complex128, MothComplex128, MothComplex128, COMPLEX)

typedef struct MothComplex64 {
  float re, im;
} MothComplex64;
typedef struct MothComplex128 {
  double re, im;
} MothComplex128;

typedef enum MothDType {
#define MOTH_X(E, name, ctype, compute, cls) MOTH_##E,
  MOTH_DTYPE_LIST(MOTH_X)
#undef MOTH_X
      MOTH_NDTYPES
} MothDType;
#endif
