/* Running results along a dimension of a row-major tensor, seen as outer x n x inner: for every device. */
#ifndef MOTH_COMMON_SCAN_H
#define MOTH_COMMON_SCAN_H
#include <stdint.h>

typedef struct MothScan {
  int op; /* MOTH_SCAN_... of reductions.h */
  const void *in;
  void *out;
  int64_t outer, n, inner;
  int64_t
      cols; /* on the CPU: of the inner ones those from in and out on that are meant, of one outer */
  const void *grad; /* of cumprod's backward */
} MothScan;
#endif
