/* Fourier transforms of lines, V at a time: plans, and the arguments of the typed kernel (kernels/cpu/typed/fft.h). */
#ifndef MOTH_COMMON_FFT_H
#define MOTH_COMMON_FFT_H
#include <stdbool.h>
#include <stdint.h>

enum { MOTH_FFT_C2C, MOTH_FFT_R2C, MOTH_FFT_C2R };
enum { MOTH_FFT_STAGES = 40, MOTH_FFT_LANES = 16 };

/* A complex transform of n elements. Tables are pairs of the compute type, re and im. */
typedef struct MothFftPlan {
  int64_t n;
  int stages;
  int radix[MOTH_FFT_STAGES];
  const void *
      twiddles; /* for each stage of radix r and m = rest / r: exp(-2 pi i p k / (r m)), p < m, 1 <= k < r */
  const void *half; /* exp(-pi i k / n), k <= n: for real transforms of 2 n elements */
  /* Bluestein, where n has a prime factor that no stage has: a convolution of inner->n elements. */
  const struct MothFftPlan *inner;
  const void *chirp;  /* exp(-pi i k^2 / n), k < n */
  const void *filter; /* the transform of the conjugate chirp, divided by inner->n */
} MothFftPlan;

/* Up to 64 bytes / sizeof(real) lines. Offsets and strides count elements: complex ones, or real ones of the real side. */
typedef struct MothFft {
  const MothFftPlan *plan; /* for n elements; of real transforms of even n for n / 2 */
  int kind;
  bool backward; /* c2c */
  int64_t n;
  const void *in;
  void *out;
  int64_t in_stride, out_stride;
  int lines;
  const int64_t *in_at, *out_at; /* the first element of each line */
  double scale;
  const void
      *turn; /* NULL, or factors: element k of line v is multiplied by turn[k * turn_row + v] */
  int64_t turn_row;
  void *work; /* moth_fft_work(f->plan) elements of 64 bytes, aligned to these */
} MothFft;

static inline int64_t moth_fft_work(const MothFftPlan *p) {
  int64_t most = p->inner ? p->inner->n : p->n;
  return 4 * (most > 2 * p->n + 2 ? most : 2 * p->n + 2);
}
#endif
