/* The lab's training step by hand: MLP 784-256-256-10, batch 64, bias + ReLU + dropout in one pass with a
 * counter RNG, softmax cross-entropy, backward, Adam over all parameters in one pass. */
#include "floor.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define MOTH_FN        static inline __attribute__((always_inline, unused))
#define MOTH_REAL_KIND 1
typedef float real;
#include "kernels/math.h"

enum { BATCH = 64, IN = 784, HIDDEN = 256, OUT = 10, ROW_MAJOR = 101, N = 111, T = 112 };
enum {
  W1 = 0,
  B1 = W1 + HIDDEN * IN,
  W2 = B1 + HIDDEN,
  B2 = W2 + HIDDEN * HIDDEN,
  W3 = B2 + HIDDEN,
  B3 = W3 + OUT * HIDDEN,
  ALL = B3 + OUT
};

typedef struct Step {
  float *p, *g, *m, *v; /* parameters, gradients, moments */
  float *h1, *h2, *d1, *d2, *z;
  uint32_t counter;
  int step;
} Step;
static Step s;

/* Each array begins at a different offset of its page: streams exactly 4 KB apart (as large blocks of the system are)
 * conflict in the cache, which doubled the time of adam. */
static float *floats(int64_t n) {
  static size_t arrays;
  size_t shift = ++arrays % 12 * 320, bytes = (size_t)n * 4;
  char *p = aligned_alloc(64, (shift + bytes + 63) & ~(size_t)63);
  return memset(p + shift, 0, bytes);
}

int64_t floor_step_size(void) {
  return ALL;
}

/* Starts from these parameters: weight and bias of layers 1, 2, 3, one after another. */
void floor_step_init(const float *params) {
  if (!s.p) {
    s.p = floats(ALL), s.g = floats(ALL), s.m = floats(ALL), s.v = floats(ALL);
    s.h1 = floats(BATCH * HIDDEN), s.h2 = floats(BATCH * HIDDEN), s.z = floats(BATCH * OUT);
    s.d1 = floats(BATCH * HIDDEN), s.d2 = floats(BATCH * HIDDEN);
  }
  memcpy(s.p, params, ALL * sizeof *s.p);
  memset(s.m, 0, ALL * sizeof *s.m);
  memset(s.v, 0, ALL * sizeof *s.v);
  s.step = 0;
}
void floor_step_params(float *params) {
  memcpy(params, s.p, ALL * sizeof *params);
}

static void gemm(int ta, int tb, int m, int n, int k, const float *a, const float *b, float *c) {
  floor_sgemm(ROW_MAJOR, ta, tb, m, n, k, 1, a, ta == N ? k : m, b, tb == N ? n : k, 0, c, n);
}

/* Bijective mixing of a counter (lowbias32), enough for dropout. */
static inline uint32_t mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352dU;
  x = (x ^ x >> 15) * 0x846ca68bU;
  return x ^ x >> 16;
}

static void bias_relu_dropout(float *h, const float *bias, float p) {
  float scale = 1 / (1 - p);
  int32_t limit = (int32_t)((1 - (double)p) * 0x7fffffff);
  uint32_t first = s.counter;
  s.counter += BATCH * HIDDEN;
  for (int r = 0; r < BATCH; r++)
    for (int i = 0; i < HIDDEN; i++) {
      float x = h[r * HIDDEN + i] + bias[i];
      int32_t bits = (int32_t)(mix(first + (uint32_t)(r * HIDDEN + i)) >> 1);
      h[r * HIDDEN + i] = (x > 0) & (bits <= limit) ? x * scale : 0;
    }
}

/* Elements that passed both ReLU and dropout are not 0 in h. The bias's gradient in the same pass. */
static void back_relu_dropout(float *d, const float *h, float *db, float p) {
  float scale = 1 / (1 - p);
  memset(db, 0, HIDDEN * sizeof *db);
  for (int r = 0; r < BATCH; r++)
    for (int i = 0; i < HIDDEN; i++) {
      float x = h[r * HIDDEN + i] > 0 ? d[r * HIDDEN + i] * scale : 0;
      d[r * HIDDEN + i] = x;
      db[i] += x;
    }
}

/* The mean loss; z becomes its gradient. Labels count from 1. */
static float cross_entropy(float *z, const float *bias, const int64_t *label, float *db) {
  double loss = 0;
  memset(db, 0, OUT * sizeof *db);
  for (int r = 0; r < BATCH; r++) {
    float *row = z + r * OUT, max = -INFINITY, sum = 0, at;
    for (int i = 0; i < OUT; i++)
      row[i] += bias[i], max = row[i] > max ? row[i] : max;
    at = row[label[r] - 1] - max;
    for (int i = 0; i < OUT; i++)
      row[i] = m_exp(row[i] - max), sum += row[i];
    loss += m_log(sum) - at;
    for (int i = 0; i < OUT; i++)
      row[i] = (row[i] / sum - (float)(i == label[r] - 1)) / BATCH, db[i] += row[i];
  }
  return (float)(loss / BATCH);
}

static void adam_range(float *restrict p, const float *restrict g, float *restrict m,
                       float *restrict v, int n, float size, float root) {
  for (int i = 0; i < n; i++) {
    float mean = m[i] + 0.1f * (g[i] - m[i]), square = 0.999f * v[i] + 0.001f * g[i] * g[i];
    m[i] = mean, v[i] = square;
    p[i] -= size * mean / (sqrtf(square) * root + 1e-8f);
  }
}

static void adam(int threads) {
  s.step++;
  float size = (float)(1e-3 / (1 - pow(0.9, s.step)));
  float root = (float)(1 / sqrt(1 - pow(0.999, s.step)));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int i = 0; i < ALL; i += 4096)
    adam_range(s.p + i, s.g + i, s.m + i, s.v + i, ALL - i < 4096 ? ALL - i : 4096, size, root);
}

float floor_step(const float *x, const int64_t *label, float p, int threads, int64_t times) {
  float loss = 0;
  int keep = omp_get_max_threads();
  floor_blas_threads(threads);
  for (int64_t t = 0; t < times; t++) {
    gemm(N, T, BATCH, HIDDEN, IN, x, s.p + W1, s.h1);
    bias_relu_dropout(s.h1, s.p + B1, p);
    gemm(N, T, BATCH, HIDDEN, HIDDEN, s.h1, s.p + W2, s.h2);
    bias_relu_dropout(s.h2, s.p + B2, p);
    gemm(N, T, BATCH, OUT, HIDDEN, s.h2, s.p + W3, s.z);
    loss = cross_entropy(s.z, s.p + B3, label, s.g + B3);
    gemm(T, N, OUT, HIDDEN, BATCH, s.z, s.h2, s.g + W3);
    gemm(N, N, BATCH, HIDDEN, OUT, s.z, s.p + W3, s.d2);
    back_relu_dropout(s.d2, s.h2, s.g + B2, p);
    gemm(T, N, HIDDEN, HIDDEN, BATCH, s.d2, s.h1, s.g + W2);
    gemm(N, N, BATCH, HIDDEN, HIDDEN, s.d2, s.p + W2, s.d1);
    back_relu_dropout(s.d1, s.h1, s.g + B1, p);
    gemm(T, N, HIDDEN, IN, BATCH, s.d1, x, s.g + W1);
    adam(threads);
  }
  omp_set_num_threads(keep);
  return loss;
}
