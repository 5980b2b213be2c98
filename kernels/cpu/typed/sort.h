/* Keys for sorting: unsigned numbers whose order is that of the elements, NaN above all, -0 as 0; and short rows, sorted by
 * them: the place of an element is the number of those before it, which vectors count. */
#include "kernels/cpu/sort.h"
#include "kernels/cpu/typed/prelude.h"
#if MOTH_STORED != 0
typedef uint16_t sort_bits;
enum { SORT_INF = MOTH_STORED == 1 ? 0x7c00 : 0x7f80 };
#define SORT_IS_NAN(bits) (((bits)&0x7fff) > SORT_INF)
#elif MOTH_REAL_KIND == 1
typedef uint32_t sort_bits;
#define SORT_IS_NAN(bits) (((bits)&0x7fffffff) > 0x7f800000)
#elif MOTH_REAL_KIND == 2
typedef uint64_t sort_bits;
#define SORT_IS_NAN(bits) (((bits)&INT64_MAX) > (uint64_t)0x7ff << 52)
#else
typedef __typeof__(__builtin_choose_expr(
    sizeof(stored) == 1, (uint8_t)0,
    __builtin_choose_expr(
        sizeof(stored) == 2, (uint16_t)0,
        __builtin_choose_expr(sizeof(stored) == 4, (uint32_t)0, (uint64_t)0)))) sort_bits;
#endif

/* The first element in the requested order has the least key. */
MOTH_FN sort_bits sort_key(const stored *a, sort_bits flip) {
  sort_bits u;
  memcpy(&u, a, sizeof u);
#if MOTH_IS_FLOAT
  const sort_bits sign = (sort_bits)((sort_bits)1 << (8 * sizeof(sort_bits) - 1));
  u = (sort_bits)(u << 1) ? u : 0;
  sort_bits key = (sort_bits)(u & sign ? ~u : u | sign);
  key = SORT_IS_NAN(u) ? (sort_bits)-1 : key;
  return (sort_bits)(key ^ flip);
#else
  return (sort_bits)(u ^ flip);
#endif
}
MOTH_FN sort_bits sort_flip(bool descending) {
  const sort_bits sign = MOTH_REAL_KIND == 3 ? (sort_bits)1 << (8 * sizeof(stored) - 1) : 0;
  return (sort_bits)((descending ? (sort_bits)-1 : 0) ^ sign);
}

MOTH_TYPED void sort_keys(const struct MothSortKeys *q) {
  uint64_t *keys = q->keys;
  const stored *a = q->in;
  const int64_t stride = q->stride, n = q->n;
  const sort_bits flip = sort_flip(q->descending);
  if (stride == 1)
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) keys[i] = sort_key(a + i, flip);
  else
    for (int64_t i = 0; i < n; i++)
      keys[i] = sort_key(a + i * stride, flip);
}

MOTH_TYPED void sort_short(const struct MothShortRow *q) {
  const stored *a = q->in;
  stored *values = q->values;
  int64_t *pos = q->pos;
  const int64_t n = q->n, k = q->k, stride = q->stride, all = (n + 15) & ~(int64_t)15;
  const sort_bits flip = sort_flip(q->descending);
  sort_bits keys[MOTH_SORT_SHORT], before[MOTH_SORT_SHORT], place[MOTH_SORT_SHORT];
  if (stride == 1)
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) keys[i] = sort_key(a + i, flip);
  else
    for (int64_t i = 0; i < n; i++)
      keys[i] = sort_key(a + i * stride, flip);
  for (int64_t i = n; i < all; i++)
    keys[i] = 0;
  MOTH_VECTOR for (int64_t i = 0; i < all; i++) {
    before[i] = 0;
    place[i] = (sort_bits)i;
  }
  for (int64_t j = 0; j < n; j++) {
    const sort_bits key = keys[j], at = (sort_bits)j;
    MOTH_VECTOR for (int64_t i = 0; i < all; i++) before[i] +=
        (key < keys[i]) | ((key == keys[i]) & (at < place[i]));
  }
  for (int64_t i = 0; i < n; i++) {
    const int64_t to = (int64_t)before[i];
    if (to < k) {
      values[to * stride] = a[i * stride];
      pos[to * stride] = i + q->base;
    }
  }
}
