// The functions that are taken from libm, by the names that math.h uses for them. An includer may define
// its own before.

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define MOTH_LIBM_(name) name
#else
#define MOTH_LIBM_(name) __builtin_##name
#endif
#ifndef moth_libm_sqrt
#define moth_libm_sqrt MOTH_LIBM_(sqrt)
#endif
#ifndef moth_libm_sqrtf
#define moth_libm_sqrtf MOTH_LIBM_(sqrtf)
#endif
#ifndef moth_libm_fmaf
#define moth_libm_fmaf MOTH_LIBM_(fmaf)
#endif
#ifndef moth_libm_fabs
#define moth_libm_fabs MOTH_LIBM_(fabs)
#endif
#ifndef moth_libm_fabsf
#define moth_libm_fabsf MOTH_LIBM_(fabsf)
#endif
#ifndef moth_libm_floor
#define moth_libm_floor MOTH_LIBM_(floor)
#endif
#ifndef moth_libm_floorf
#define moth_libm_floorf MOTH_LIBM_(floorf)
#endif
#ifndef moth_libm_ceil
#define moth_libm_ceil MOTH_LIBM_(ceil)
#endif
#ifndef moth_libm_ceilf
#define moth_libm_ceilf MOTH_LIBM_(ceilf)
#endif
#ifndef moth_libm_trunc
#define moth_libm_trunc MOTH_LIBM_(trunc)
#endif
#ifndef moth_libm_truncf
#define moth_libm_truncf MOTH_LIBM_(truncf)
#endif
#ifndef moth_libm_rint
#define moth_libm_rint MOTH_LIBM_(rint)
#endif
#ifndef moth_libm_rintf
#define moth_libm_rintf MOTH_LIBM_(rintf)
#endif
#ifndef moth_libm_copysign
#define moth_libm_copysign MOTH_LIBM_(copysign)
#endif
#ifndef moth_libm_copysignf
#define moth_libm_copysignf MOTH_LIBM_(copysignf)
#endif
#ifndef moth_libm_nextafter
#define moth_libm_nextafter MOTH_LIBM_(nextafter)
#endif
#ifndef moth_libm_nextafterf
#define moth_libm_nextafterf MOTH_LIBM_(nextafterf)
#endif
#ifndef moth_libm_sin
#define moth_libm_sin MOTH_LIBM_(sin)
#endif
#ifndef moth_libm_cos
#define moth_libm_cos MOTH_LIBM_(cos)
#endif
#ifndef moth_libm_tan
#define moth_libm_tan MOTH_LIBM_(tan)
#endif
#ifndef moth_libm_asin
#define moth_libm_asin MOTH_LIBM_(asin)
#endif
#ifndef moth_libm_acos
#define moth_libm_acos MOTH_LIBM_(acos)
#endif
#ifndef moth_libm_atan
#define moth_libm_atan MOTH_LIBM_(atan)
#endif
#ifndef moth_libm_atan2
#define moth_libm_atan2 MOTH_LIBM_(atan2)
#endif
#ifndef moth_libm_erf
#define moth_libm_erf MOTH_LIBM_(erf)
#endif
#ifndef moth_libm_erfc
#define moth_libm_erfc MOTH_LIBM_(erfc)
#endif
#ifndef moth_libm_hypot
#define moth_libm_hypot MOTH_LIBM_(hypot)
#endif
#ifndef moth_libm_pow
#define moth_libm_pow MOTH_LIBM_(pow)
#endif
#ifndef moth_libm_exp
#define moth_libm_exp MOTH_LIBM_(exp)
#endif
#ifndef moth_libm_log1p
#define moth_libm_log1p MOTH_LIBM_(log1p)
#endif
#ifndef moth_libm_log
#define moth_libm_log MOTH_LIBM_(log)
#endif
#ifndef moth_libm_fmod
#define moth_libm_fmod MOTH_LIBM_(fmod)
#endif
#ifndef moth_libm_fmodf
#define moth_libm_fmodf MOTH_LIBM_(fmodf)
#endif
#ifndef moth_libm_lgamma
#define moth_libm_lgamma MOTH_LIBM_(lgamma)
#endif
#ifndef moth_libm_sinh
#define moth_libm_sinh MOTH_LIBM_(sinh)
#endif
#ifndef moth_libm_cosh
#define moth_libm_cosh MOTH_LIBM_(cosh)
#endif
#ifndef moth_libm_expm1
#define moth_libm_expm1 MOTH_LIBM_(expm1)
#endif
#ifndef moth_libm_asinh
#define moth_libm_asinh MOTH_LIBM_(asinh)
#endif
#ifndef moth_libm_exp2
#define moth_libm_exp2 MOTH_LIBM_(exp2)
#endif
