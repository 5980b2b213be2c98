#include "io/elements.h"

#include <math.h>
#include <string.h>

void moth_elements_copy(MothDType dtype, bool swap, void *out, const uint8_t *from,
                        int64_t nbytes) {
  uint8_t *to = out;
  bool is_complex = dtype == MOTH_COMPLEX64 || dtype == MOTH_COMPLEX128;
  int64_t item = moth_dtype_size(dtype) / (is_complex ? 2 : 1);
  if (nbytes <= 0)
    return;
  if (dtype == MOTH_BOOL) {
    for (int64_t i = 0; i < nbytes; i++)
      to[i] = from[i] != 0;
  } else if (!swap || item == 1) {
    if (to != from)
      memcpy(to, from, (size_t)nbytes);
  } else {
    for (int64_t i = 0; i < nbytes; i += item) {
      uint8_t element[8];
      memcpy(element, from + i, (size_t)item);
      for (int64_t k = 0; k < item; k++)
        to[i + k] = element[item - 1 - k];
    }
  }
}

bool moth_elements_count(MothDType dtype, int ndim, const int64_t *shape, int64_t *nbytes) {
  int64_t n = moth_dtype_size(dtype);
  for (int d = 0; d < ndim; d++)
    if (shape[d] == 0)
      n = 0;
  for (int d = 0; d < ndim && n > 0; d++)
    if (shape[d] < 0 || __builtin_mul_overflow(n, shape[d], &n))
      return false;
  *nbytes = n;
  return true;
}

/* ---- small floats ----------------------------------------------------------------------------- */

static const MothSmallFloat small_floats[] = {
    {.name = "F8_E4M3", .bits = 8, .exponent = 4, .mantissa = 3, .bias = 7},
    {.name = "F8_E5M2", .bits = 8, .exponent = 5, .mantissa = 2, .bias = 15, .has_infinity = true},
    {.name = "F8_E4M3FNUZ",
     .bits = 8,
     .exponent = 4,
     .mantissa = 3,
     .bias = 8,
     .is_unsigned_zero = true},
    {.name = "F8_E5M2FNUZ",
     .bits = 8,
     .exponent = 5,
     .mantissa = 2,
     .bias = 16,
     .is_unsigned_zero = true},
    {.name = "F8_E8M0", .bits = 8, .exponent = 8, .bias = 127},
    {.name = "F4", .bits = 4, .exponent = 2, .mantissa = 1, .bias = 1, .is_finite = true},
};

const MothSmallFloat *moth_small_float(const char *name, size_t n) {
  for (size_t i = 0; i < sizeof small_floats / sizeof *small_floats; i++)
    if (strlen(small_floats[i].name) == n && memcmp(small_floats[i].name, name, n) == 0)
      return &small_floats[i];
  return NULL;
}

static float value_of(const MothSmallFloat *k, int code) {
  int sign = code >> (k->exponent + k->mantissa) & 1;
  int rest = code & ((1 << (k->exponent + k->mantissa)) - 1);
  int exponent = rest >> k->mantissa, mantissa = rest & ((1 << k->mantissa) - 1);
  int most = (1 << k->exponent) - 1, largest = (1 << (k->exponent + k->mantissa)) - 1;
  if (k->has_infinity && exponent == most && mantissa == 0)
    return sign ? -INFINITY : INFINITY;
  if (k->is_unsigned_zero ? sign && rest == 0
      : k->has_infinity   ? exponent == most
                          : !k->is_finite && rest == largest)
    return NAN;
  float value =
      k->mantissa == 0 || exponent /* a power alone has no 0 */
          ? ldexpf((float)((1 << k->mantissa) + mantissa), exponent - k->bias - k->mantissa)
          : ldexpf((float)mantissa, 1 - k->bias - k->mantissa);
  return sign ? -value : value;
}

void moth_small_float_copy(const MothSmallFloat *kind, uint16_t *out, const uint8_t *from,
                           int64_t n) {
  uint16_t table[256];
  int codes = 1 << kind->bits;
  for (int code = 0; code < codes; code++) {
    float value = value_of(kind, code);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    table[code] = (uint16_t)(bits >> 16);
  }
  if (kind->bits == 8)
    for (int64_t i = 0; i < n; i++)
      out[i] = table[from[i]];
  else
    for (int64_t i = 0; i < n; i++) {
      out[2 * i] = table[from[i] & 15];
      out[2 * i + 1] = table[from[i] >> 4];
    }
}
