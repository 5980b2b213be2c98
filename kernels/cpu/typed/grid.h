/* grid_sample and its derivatives. Places are taken in blocks: for each tap a list of elements and one of weights, which all
 * channels of the image share. Of math.h: m_floor, m_round. */
#include "kernels/cpu/typed/prelude.h"

#include "kernels/common/grid.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { GRID_TAPS = 16, GRID_LIST = 2048 }; /* a block has GRID_LIST / taps places */

enum { GRID_V = MOTH_VECTOR_BYTES / sizeof(real) };
typedef real grid_vec
    __attribute__((vector_size(MOTH_VECTOR_BYTES), aligned(sizeof(real)), may_alias));

/* Lists of `line` elements, a multiple of a vector; behind the last place nothing is read. */
typedef struct GridTaps {
  int n; /* taps */
  int line;
  int32_t at[GRID_LIST];
  real weight[GRID_LIST];
} GridTaps;

/* The elements at a vector of places; 0 where there is none. */
MOTH_FN grid_vec grid_load(const real *plane, const int32_t *at) {
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1
  __m512i i = _mm512_loadu_si512(at);
  return (grid_vec)_mm512_mask_i32gather_ps(
      _mm512_setzero_ps(), _mm512_cmpge_epi32_mask(i, _mm512_setzero_si512()), i, plane, 4);
#elif defined(__AVX512F__)
  __m256i i = _mm256_loadu_si256((const __m256i *)at);
  return (grid_vec)_mm512_mask_i32gather_pd(
      _mm512_setzero_pd(), _mm256_cmpge_epi32_mask(i, _mm256_setzero_si256()), i, plane, 8);
#elif defined(__AVX2__) && MOTH_REAL_KIND == 1
  __m256i i = _mm256_loadu_si256((const __m256i *)at);
  return (grid_vec)_mm256_mask_i32gather_ps(
      _mm256_setzero_ps(), plane, i,
      _mm256_castsi256_ps(_mm256_cmpgt_epi32(i, _mm256_set1_epi32(-1))), 4);
#elif defined(__AVX2__)
  __m128i i = _mm_loadu_si128((const __m128i *)at);
  return (grid_vec)_mm256_mask_i32gather_pd(
      _mm256_setzero_pd(), plane, i,
      _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm_cmpgt_epi32(i, _mm_set1_epi32(-1)))), 8);
#else
  grid_vec v;
  for (int l = 0; l < GRID_V; l++)
    v[l] = at[l] >= 0 ? plane[at[l]] : 0;
  return v;
#endif
}

MOTH_FN int grid_all_taps(const struct MothGrid *q) {
  return q->dims == 2 ? q->taps * q->taps : q->taps * q->taps * q->taps;
}

/* Elements and weights along dimension d for `count` places. */
MOTH_FN void grid_line(const struct MothGrid *q, const real *places, int count, int line, int d,
                       int taps, int padding, int32_t *at, real *weight) {
  real first[GRID_LIST], t[GRID_LIST], turn[GRID_LIST];
  const int dims = q->dims, align = q->align, order = q->order[d];
  const real n = (real)q->size[d];
  MOTH_VECTOR for (int j = 0; j < count; j++) first[j] =
      moth_grid_first(places[j * dims + d], n, taps, padding, align, t + j, turn + j);
  if (order % 2 == 0)
    MOTH_VECTOR for (int j = 0; j < count; j++) turn[j] = order ? turn[j] * turn[j] : 1;
  for (int k = 0; k < taps; k++, at += line, weight += line) {
    const real c0 = (real)q->weight[d][k][0], c1 = (real)q->weight[d][k][1],
               c2 = (real)q->weight[d][k][2], c3 = (real)q->weight[d][k][3];
    MOTH_VECTOR for (int j = 0; j < count; j++) {
      at[j] = moth_grid_place(first[j] + (real)k, n, taps, padding, align);
      weight[j] = (((c3 * t[j] + c2) * t[j] + c1) * t[j] + c0) * turn[j];
    }
  }
}
static void grid_line_of(const struct MothGrid *q, const real *places, int count, int line, int d,
                         int32_t *at, real *weight) {
  if (q->taps == 1)
    grid_line(q, places, count, line, d, 1, q->padding, at, weight);
  else if (q->taps == 2 && q->padding == MOTH_GRID_ZEROS)
    grid_line(q, places, count, line, d, 2, MOTH_GRID_ZEROS, at, weight);
  else if (q->taps == 2)
    grid_line(q, places, count, line, d, 2, q->padding, at, weight);
  else if (q->padding == MOTH_GRID_ZEROS)
    grid_line(q, places, count, line, d, 4, MOTH_GRID_ZEROS, at, weight);
  else
    grid_line(q, places, count, line, d, 4, q->padding, at, weight);
}

/* The lists of the places from `first` on. */
static void grid_taps(const struct MothGrid *q, int64_t first, int count, GridTaps *to) {
  int32_t at[3][GRID_LIST];
  real weight[3][GRID_LIST];
  const real *places = (const real *)q->places + (q->image * q->points + first) * q->dims;
  const int taps = q->taps, line = (count + GRID_V - 1) / GRID_V * GRID_V;
  for (int d = 0; d < q->dims; d++)
    grid_line_of(q, places, count, line, d, at[d], weight[d]);
  to->n = 0;
  to->line = line;
  for (int z = 0; z < (q->dims == 3 ? taps : 1); z++)
    for (int y = 0; y < taps; y++)
      for (int x = 0; x < taps; x++, to->n++) {
        int32_t *o = to->at + to->n * line;
        real *w = to->weight + to->n * line;
        const int32_t *ax = at[0] + x * line, *ay = at[1] + y * line, *az = at[2] + z * line;
        const real *wx = weight[0] + x * line, *wy = weight[1] + y * line,
                   *wz = weight[2] + z * line;
        const int32_t width = (int32_t)q->size[0], height = (int32_t)q->size[1];
        if (q->dims == 2)
          MOTH_VECTOR for (int j = 0; j < count; j++) {
            o[j] = (ax[j] | ay[j]) < 0 ? -1 : ay[j] * width + ax[j];
            w[j] = wx[j] * wy[j];
          }
        else
          MOTH_VECTOR for (int j = 0; j < count; j++) {
            o[j] = (ax[j] | ay[j] | az[j]) < 0 ? -1 : (az[j] * height + ay[j]) * width + ax[j];
            w[j] = wx[j] * wy[j] * wz[j];
          }
        for (int j = count; j < line; j++) {
          o[j] = -1;
          w[j] = 0;
        }
      }
}

MOTH_FN int grid_block(const struct MothGrid *q) {
  return GRID_LIST / grid_all_taps(q);
}
/* How many places a block has. */
MOTH_TYPED_REAL int64_t grid_places(const struct MothGrid *q) {
  return grid_block(q);
}

/* out (batch, channels, points): channels of an image at the places [from, to). */
MOTH_TYPED_REAL void grid_sample(const struct MothGrid *q) {
  GridTaps taps;
  for (int64_t i = q->from; i < q->to; i += grid_block(q)) {
    int count = (int)(q->to - i < grid_block(q) ? q->to - i : grid_block(q));
    grid_taps(q, i, count, &taps);
    for (int64_t c = q->image * q->channels; c < (q->image + 1) * q->channels; c++) {
      const real *plane = (const real *)q->input + c * q->plane;
      real *o = (real *)q->out + c * q->points + i;
      for (int j = 0; j < count; j += GRID_V) {
        grid_vec sum = *(const grid_vec *)(taps.weight + j) * grid_load(plane, taps.at + j);
        for (int k = 1; k < taps.n; k++)
          sum += *(const grid_vec *)(taps.weight + k * taps.line + j) *
                 grid_load(plane, taps.at + k * taps.line + j);
        if (j + GRID_V <= count)
          *(grid_vec *)(o + j) = sum;
        else
          memcpy(o + j, &sum, (size_t)(count - j) * sizeof(real));
      }
    }
  }
}

/* out (batch, channels, plane): of channels [channel, channels_to) of an image, the gradients of all places added up. */
MOTH_TYPED_REAL void grid_sample_input(const struct MothGrid *q) {
  GridTaps taps;
  int64_t first = q->image * q->channels;
  memset((real *)q->out + (first + q->channel) * q->plane, 0,
         (size_t)((q->channels_to - q->channel) * q->plane) * sizeof(real));
  for (int64_t i = 0; i < q->points; i += grid_block(q)) {
    int count = (int)(q->points - i < grid_block(q) ? q->points - i : grid_block(q));
    grid_taps(q, i, count, &taps);
    for (int64_t c = first + q->channel; c < first + q->channels_to; c++) {
      real *plane = (real *)q->out + c * q->plane;
      const real *g = (const real *)q->grad + c * q->points + i;
      for (int k = 0; k < taps.n; k++) {
        const int32_t *at = taps.at + k * taps.line;
        const real *weight = taps.weight + k * taps.line;
        for (int j = 0; j < count; j++)
          if (at[j] >= 0)
            plane[at[j]] += weight[j] * g[j];
      }
    }
  }
}

/* out (batch, points, dims): the gradients by the places [from, to). Sums over channels come first, for each tap. */
MOTH_TYPED_REAL void grid_sample_places(const struct MothGrid *q) {
  GridTaps taps;
  real sum[GRID_LIST];
  for (int64_t i = q->from; i < q->to; i += grid_block(q)) {
    int count = (int)(q->to - i < grid_block(q) ? q->to - i : grid_block(q));
    real *o = (real *)q->out + (q->image * q->points + i) * q->dims;
    grid_taps(q, i, count, &taps);
    memset(sum, 0, sizeof sum);
    for (int64_t c = q->image * q->channels; c < (q->image + 1) * q->channels; c++) {
      const real *plane = (const real *)q->input + c * q->plane,
                 *g = (const real *)q->grad + c * q->points + i;
      real padded[GRID_LIST];
      if (count < taps.line) {
        memset(padded, 0, (size_t)taps.line * sizeof(real));
        g = memcpy(padded, g, (size_t)count * sizeof(real));
      }
      for (int k = 0; k < taps.n; k++)
        for (int j = 0; j < taps.line; j += GRID_V)
          *(grid_vec *)(sum + k * taps.line + j) +=
              *(const grid_vec *)(g + j) * grid_load(plane, taps.at + k * taps.line + j);
    }
    for (int d = 0; d < q->dims; d++) {
      MothGrid slope = *q;
      int order[3] = {q->order[0], q->order[1], q->order[2]};
      order[d]++;
      moth_grid_weights(&slope, order);
      grid_taps(&slope, i, count, &taps);
      for (int j = 0; j < count; j++) {
        real total = 0;
        for (int k = 0; k < taps.n; k++)
          total += taps.at[k * taps.line + j] >= 0
                       ? taps.weight[k * taps.line + j] * sum[k * taps.line + j]
                       : 0;
        o[j * q->dims + d] = total;
      }
    }
  }
}
