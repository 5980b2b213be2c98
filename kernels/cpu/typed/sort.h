/* Keys for sorting: unsigned numbers whose order is that of the elements, NaN above all, -0 as 0. */
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
#endif

/* The first element in the requested order has the least key. */
MOTH_TYPED void sort_keys(const struct MothSortKeys *q) {
  uint64_t *keys = q->keys;
  const stored *a = q->in;
  const int64_t stride = q->stride, n = q->n;
  const bool descending = q->descending;
#if MOTH_IS_FLOAT
  const sort_bits sign = (sort_bits)((sort_bits)1 << (8 * sizeof(sort_bits) - 1));
  const sort_bits flip = descending ? (sort_bits)-1 : 0;
#define SORT_KEY(at)                                                                               \
  {                                                                                                \
    sort_bits u;                                                                                   \
    memcpy(&u, &a[at], sizeof u);                                                                  \
    u = (sort_bits)(u << 1) ? u : 0;                                                               \
    sort_bits key = (sort_bits)(u & sign ? ~u : u | sign);                                         \
    key = SORT_IS_NAN(u) ? (sort_bits)-1 : key;                                                    \
    keys[i] = (sort_bits)(key ^ flip);                                                             \
  }
#else
  const uint64_t sign = MOTH_REAL_KIND == 3 ? (uint64_t)1 << (8 * sizeof(stored) - 1) : 0;
  const uint64_t mask = UINT64_MAX >> (64 - 8 * sizeof(stored));
  const uint64_t flip = (descending ? mask : 0) ^ sign;
#define SORT_KEY(at) keys[i] = ((uint64_t)a[at] & mask) ^ flip;
#endif
  if (stride == 1)
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) SORT_KEY(i) else for (int64_t i = 0; i < n; i++)
        SORT_KEY(i * stride)
}
