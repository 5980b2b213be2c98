/* What the CTC kernels of every device share: the arguments in host memory are checked before anything is computed. */
#ifndef MOTH_COMMON_CTC_H
#define MOTH_COMMON_CTC_H
#include <stdint.h>

#include "core/error.h"

/* Lengths (N) and targets (N, S), counted from `base`, for T steps of C classes. */
static inline MothStatus moth_ctc_check(const int64_t *input_lengths, const int64_t *target_lengths,
                                        const int64_t *targets, int64_t N, int64_t T, int64_t S,
                                        int64_t C, int64_t blank, int64_t base) {
  for (int64_t n = 0; n < N; n++) {
    int64_t t = input_lengths[n], s = target_lengths[n];
    if (t < 0 || t > T)
      return moth_fail(MOTH_ERR_VALUE,
                       "an input length of %lld: expected 0 to %lld, the steps of log_probs",
                       (long long)t, (long long)T);
    if (s < 0 || s > S)
      return moth_fail(MOTH_ERR_VALUE,
                       "a target length of %lld: expected 0 to %lld, the columns of target",
                       (long long)s, (long long)S);
    for (int64_t i = 0; i < s; i++) {
      int64_t given = targets[n * S + i];
      if (given < base || given - base >= C)
        return moth_fail(MOTH_ERR_INDEX, "class %lld is out of range: expected %lld to %lld",
                         (long long)given, (long long)base, (long long)(C - 1 + base));
      if (given - base == blank)
        return moth_fail(MOTH_ERR_VALUE, "target %lld is the blank, class %lld",
                         (long long)(i + base), (long long)given);
    }
  }
  return MOTH_OK;
}
#endif
