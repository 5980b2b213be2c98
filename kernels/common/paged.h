/* What the kernels of a paged key-value cache share on every device. */
#ifndef MOTH_COMMON_PAGED_H
#define MOTH_COMMON_PAGED_H
#include <stdint.h>

#include "core/error.h"

/* Queries (N, H, D); keys (B, K, P, D) and values (B, K, P, V), row-major; K divides H. Sequence s has the counts[s] queries
 * behind those of the sequences before it; they are its last tokens. Its token t lies at place t % P of block
 * table[s * M + t / P]. Keys and values are of any float dtype, or rows of blocks of GGUF's Q8_0. */
typedef struct MothPaged {
  int64_t N, H, D, B, K, P, V, S, M;
  const int64_t *table, *lengths, *counts; /* (S, M) from base, (S), (S) */
  int64_t base, window;                    /* window: the tokens that one sees, itself included */
  double scale;
} MothPaged;

/* Bytes of a row of blocks of Q8_0. */
static inline int64_t moth_q8_0_bytes(int64_t elements) {
  return elements / 32 * 34;
}

/* table, lengths and counts in host memory. */
static inline MothStatus moth_paged_check(const MothPaged *p, const int64_t *table,
                                          const int64_t *lengths, const int64_t *counts) {
  int64_t rows = 0;
  for (int64_t s = 0; s < p->S; s++) {
    int64_t n = lengths[s], count = counts[s];
    if (n < 0 || n > p->M * p->P)
      return moth_fail(MOTH_ERR_VALUE,
                       "a length of %lld: expected 0 to %lld, the tokens of a row of table",
                       (long long)n, (long long)(p->M * p->P));
    if (count < 0 || count > n)
      return moth_fail(MOTH_ERR_VALUE,
                       "a count of %lld: expected 0 to %lld, the length of its sequence",
                       (long long)count, (long long)n);
    if (count > p->N - rows)
      return moth_fail(MOTH_ERR_VALUE, "counts are more than the %lld rows of query",
                       (long long)p->N);
    rows += count;
    for (int64_t i = 0; i * p->P < n && count; i++) {
      int64_t block = table[s * p->M + i];
      if (block < p->base || block - p->base >= p->B)
        return moth_fail(MOTH_ERR_INDEX, "block %lld is out of range: expected %lld to %lld",
                         (long long)block, (long long)p->base, (long long)(p->B - 1 + p->base));
    }
  }
  if (rows != p->N)
    return moth_fail(MOTH_ERR_VALUE, "counts add up to %lld, query has %lld rows", (long long)rows,
                     (long long)p->N);
  return MOTH_OK;
}
#endif
