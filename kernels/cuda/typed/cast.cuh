/* Conversions into this dtype from each of the others: as kernels/cpu/typed/copy.h. */

#if MOTH_IS_FLOAT
#define FROM_FLOAT(x) STORE((real)(x))
#define FROM_F64(x)   STORE((real)(x))
#define FROM_INT(x)   STORE((real)(x))
#elif MOTH_REAL_KIND == 5
#define FROM_FLOAT(x) ((stored)((x) != 0))
#define FROM_F64(x)   ((stored)((x) != 0))
#define FROM_INT(x)   ((stored)((x) != 0))
#else
#define FROM_FLOAT(x) ((stored)m_from_f32(x))
#define FROM_F64(x)   ((stored)m_from_f64(x))
#define FROM_INT(x)   ((stored)(x))
#endif
#define FROM_F16(x)  FROM_FLOAT(m_f16_to_f32(x))
#define FROM_BF16(x) FROM_FLOAT(m_bf16_to_f32(x))

#define CAST(name, from_t, convert)                                                                \
  struct name##_f {                                                                                \
    __device__ __forceinline__ stored operator()(from_t x) const { return convert(x); }            \
  };                                                                                               \
  static MothStatus name(const MothPointwise *p) {                                                 \
    return pointwise<name##_f, stored, from_t>(#name, p, name##_f());                              \
  }
CAST(cast_from_float32, float, FROM_FLOAT)
CAST(cast_from_float64, double, FROM_F64)
CAST(cast_from_float16, uint16_t, FROM_F16)
CAST(cast_from_bfloat16, uint16_t, FROM_BF16)
CAST(cast_from_int8, int8_t, FROM_INT)
CAST(cast_from_uint8, uint8_t, FROM_INT)
CAST(cast_from_int16, int16_t, FROM_INT)
CAST(cast_from_int32, int32_t, FROM_INT)
CAST(cast_from_int64, int64_t, FROM_INT)
CAST(cast_from_bool, uint8_t, FROM_INT)
CAST(cast_from_uint16, uint16_t, FROM_INT)
CAST(cast_from_uint32, uint32_t, FROM_INT)
CAST(cast_from_uint64, uint64_t, FROM_INT)
struct cast_same_f {
  __device__ __forceinline__ stored operator()(stored x) const { return x; }
};
static MothStatus cast_same(const MothPointwise *p) {
  return pointwise<cast_same_f, stored, stored>("copy", p, cast_same_f());
}
