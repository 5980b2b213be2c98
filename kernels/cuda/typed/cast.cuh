/* Conversions into this dtype from each of the others: as kernels/cpu/typed/copy.h. */

#if MOTH_IS_FLOAT
#define FROM_FLOAT(x) STORE((real)(x))
#define FROM_INT(x)   STORE((real)(x))
#elif MOTH_REAL_KIND == 5
#define FROM_FLOAT(x) ((stored)((x) != 0))
#define FROM_INT(x)   ((stored)((x) != 0))
#else
/* Towards zero, NaN is 0, out of range wraps through int64 saturated. */
__device__ __forceinline__ long long float_to_int(double x) {
  x = x == x ? x : 0.0;
  x = x > -9223372036854775808.0 ? x : -9223372036854775808.0;
  return x < 9223372036854774784.0 ? (long long)x : 9223372036854774784LL;
}
#define FROM_FLOAT(x) ((stored)float_to_int((double)(x)))
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
CAST(cast_from_float64, double, FROM_FLOAT)
CAST(cast_from_float16, uint16_t, FROM_F16)
CAST(cast_from_bfloat16, uint16_t, FROM_BF16)
CAST(cast_from_int8, int8_t, FROM_INT)
CAST(cast_from_uint8, uint8_t, FROM_INT)
CAST(cast_from_int16, int16_t, FROM_INT)
CAST(cast_from_int32, int32_t, FROM_INT)
CAST(cast_from_int64, int64_t, FROM_INT)
CAST(cast_from_bool, uint8_t, FROM_INT)
struct cast_same_f {
  __device__ __forceinline__ stored operator()(stored x) const { return x; }
};
static MothStatus cast_same(const MothPointwise *p) {
  return pointwise<cast_same_f, stored, stored>("copy", p, cast_same_f());
}
