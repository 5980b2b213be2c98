/* Attention on tiles of TILE x TILE scores that never leave the block. Three kernels of one plan: a block
 * owns TILE rows of its result (queries: the output, or their gradient; keys: the gradients of keys and values) and
 * loops over the tiles of the other operand. A tile's scores are a product over the head's elements, EDGE of them
 * at a time in shared memory; they become weights in registers, are written to shared memory, and a second product
 * adds weighted rows to the block's rows, which stay in registers. Forward keeps each row's maximum and sum so far
 * (Milakov and Gimelshein, "Online normalizer calculation for softmax"); backward recomputes the weights from the
 * log-sum-exp (Dao et al., "FlashAttention"). Every element has one writer and one order of sums: the same bits in
 * every run.
 *
 * 16 x 16 threads; a thread has MICRO x MICRO scores, of rows ty * MICRO and columns tx * MICRO on, so
 * that the 16 threads of a row are half a warp. Heads are up to WIDTH (64, 128 or 256) columns wide; of wider ones
 * a block computes WIDTH columns, and each block computes the scores again. */

constexpr int ATT_THREADS = 256, EDGE = 32;
constexpr int MICRO = 16 / (int)sizeof(real); /* reals of a 16-byte access */
constexpr int TILE = 16 * MICRO;
constexpr int ATT_STRIDE = TILE + MICRO; /* of a row of a tile in shared memory */
typedef Pack<real, MICRO> Quad;

/* The results of a kernel: the output, the queries' gradient, or the gradients of keys and values. */
enum { ATT_FORWARD, ATT_QUERIES, ATT_KEYS };

template <int WIDTH> struct AttShared {
  enum {
    DEPTH = 4096 / WIDTH < TILE ? 4096 / WIDTH : TILE
  }; /* rows of the second factor at a time */
  union {
    struct {
      alignas(16) real a[EDGE * ATT_STRIDE], b[EDGE * ATT_STRIDE];
    } in;
    alignas(16) real x[DEPTH * WIDTH];
  };
  alignas(16) real weight[TILE * ATT_STRIDE];
};

struct AttMatrix {
  const stored *p;
  int64_t row; /* stride */
  int rows, cols;
  bool packs;
};
__device__ __forceinline__ AttMatrix att_matrix(const MothHeads &h, int64_t b, int64_t head,
                                                int64_t rows, int64_t cols, bool packs) {
  return {static_cast<const stored *>(h.data) + b * h.batch + head * h.head, h.row, (int)rows,
          (int)cols, packs};
}

/* to[e][r] = rows first.. and columns e.. of m, EDGE x TILE, zeros beyond its edges. */
__device__ __forceinline__ void att_load_edge(real *to, const AttMatrix &m, int first, int e) {
  if (m.packs) {
    constexpr int LINE = EDGE / PACK;
#pragma unroll 1
    for (int i = threadIdx.x; i < LINE * TILE; i += ATT_THREADS) {
      int r = i / LINE, c = i % LINE * PACK;
      real x[PACK] = {};
      if (first + r < m.rows && e + c < m.cols) /* whole packs: cols divides by PACK */
        load_pack<PACK>(m.p + (int64_t)(first + r) * m.row + e + c, x);
#pragma unroll
      for (int k = 0; k < PACK; k++)
        to[(c + k) * ATT_STRIDE + r] = x[k];
    }
    return;
  }
  for (int i = threadIdx.x; i < EDGE * TILE; i += ATT_THREADS) {
    int r = i / EDGE, c = i % EDGE;
    bool in = first + r < m.rows && e + c < m.cols;
    to[c * ATT_STRIDE + r] = in ? (real)LOAD(m.p[(int64_t)(first + r) * m.row + e + c]) : (real)0;
  }
}
/* to[r][c] = rows first.. and columns c0.. of m, DEPTH x WIDTH. */
template <int WIDTH>
__device__ __forceinline__ void att_load_rows(real *to, const AttMatrix &m, int first, int c0) {
  constexpr int DEPTH = AttShared<WIDTH>::DEPTH;
  if (m.packs) {
    constexpr int LINE = WIDTH / PACK;
#pragma unroll 2
    for (int i = threadIdx.x; i < LINE * DEPTH; i += ATT_THREADS) {
      int r = i / LINE, c = i % LINE * PACK;
      real x[PACK] = {};
      if (first + r < m.rows && c0 + c < m.cols)
        load_pack<PACK>(m.p + (int64_t)(first + r) * m.row + c0 + c, x);
#pragma unroll
      for (int k = 0; k < PACK; k += MICRO) {
        Quad q;
#pragma unroll
        for (int w = 0; w < MICRO; w++)
          q.v[w] = x[k + w];
        *reinterpret_cast<Quad *>(to + r * WIDTH + c + k) = q;
      }
    }
    return;
  }
  for (int i = threadIdx.x; i < DEPTH * WIDTH; i += ATT_THREADS) {
    int r = i / WIDTH, c = i % WIDTH;
    bool in = first + r < m.rows && c0 + c < m.cols;
    to[i] = in ? (real)LOAD(m.p[(int64_t)(first + r) * m.row + c0 + c]) : (real)0;
  }
}

/* s[i][j] = row ty * MICRO + i from `first` of a, times row tx * MICRO + j from `other` of b. */
template <int WIDTH>
__device__ __forceinline__ void att_scores(real (&s)[MICRO][MICRO], AttShared<WIDTH> &shared,
                                           const AttMatrix &a, int first, const AttMatrix &b,
                                           int other) {
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < MICRO; i++)
#pragma unroll
    for (int j = 0; j < MICRO; j++)
      s[i][j] = 0;
  for (int e = 0; e < a.cols; e += EDGE) {
    __syncthreads(); /* the last operands have been read */
    att_load_edge(shared.in.a, a, first, e);
    att_load_edge(shared.in.b, b, other, e);
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < EDGE; k++) {
      Quad x = *reinterpret_cast<const Quad *>(shared.in.a + k * ATT_STRIDE + ty * MICRO);
      Quad y = *reinterpret_cast<const Quad *>(shared.in.b + k * ATT_STRIDE + tx * MICRO);
#pragma unroll
      for (int i = 0; i < MICRO; i++)
#pragma unroll
        for (int j = 0; j < MICRO; j++)
          s[i][j] += x.v[i] * y.v[j];
    }
  }
}

/* acc += w x, where w are the weights of the thread's rows and x the rows from `other` of m, columns c0
 * on. A thread's columns are those of quads tx, tx + 16, ... */
template <int WIDTH>
__device__ __forceinline__ void att_add(real (&acc)[MICRO][WIDTH / 16], AttShared<WIDTH> &shared,
                                        const real (&w)[MICRO][MICRO], const AttMatrix &m,
                                        int other, int count, int c0) {
  constexpr int DEPTH = AttShared<WIDTH>::DEPTH, QUADS = WIDTH / 16 / MICRO;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  __syncwarp(); /* the last weights have been read */
#pragma unroll
  for (int i = 0; i < MICRO; i++) {
    Quad q;
#pragma unroll
    for (int j = 0; j < MICRO; j++)
      q.v[j] = w[i][j];
    *reinterpret_cast<Quad *>(shared.weight + (ty * MICRO + i) * ATT_STRIDE + tx * MICRO) = q;
  }
  __syncwarp(); /* one half warp has all weights of a row */
  for (int from = 0; from < count; from += DEPTH) {
    __syncthreads();
    att_load_rows<WIDTH>(shared.x, m, other + from, c0);
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < DEPTH; k += MICRO) {
      Quad p[MICRO];
#pragma unroll
      for (int i = 0; i < MICRO; i++)
        p[i] = *reinterpret_cast<const Quad *>(shared.weight + (ty * MICRO + i) * ATT_STRIDE +
                                               from + k);
#pragma unroll
      for (int u = 0; u < MICRO; u++)
#pragma unroll
        for (int g = 0; g < QUADS; g++) {
          Quad x =
              *reinterpret_cast<const Quad *>(shared.x + (k + u) * WIDTH + (g * 16 + tx) * MICRO);
#pragma unroll
          for (int i = 0; i < MICRO; i++)
#pragma unroll
            for (int c = 0; c < MICRO; c++)
              acc[i][g * MICRO + c] += p[i].v[u] * x.v[c];
        }
    }
  }
}

/* The thread's part of rows from `first`, columns c0 on, of h, times by[i]. */
template <int WIDTH>
__device__ __forceinline__ void att_store(const MothHeads &h, int64_t b, int64_t head, int first,
                                          int64_t rows, int c0, int64_t cols, bool packs,
                                          real (&acc)[MICRO][WIDTH / 16], const real (&by)[MICRO]) {
  constexpr int QUADS = WIDTH / 16 / MICRO;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  stored *out = static_cast<stored *>(h.data) + b * h.batch + head * h.head;
#pragma unroll
  for (int i = 0; i < MICRO; i++) {
    int r = first + ty * MICRO + i;
    if (r >= rows)
      continue;
#pragma unroll
    for (int g = 0; g < QUADS; g++) {
      int c = c0 + (g * 16 + tx) * MICRO;
      real x[MICRO];
#pragma unroll
      for (int k = 0; k < MICRO; k++)
        x[k] = acc[i][g * MICRO + k] * by[i];
      if (packs && c < cols) {
        store_pack<MICRO>(out + (int64_t)r * h.row + c, x);
        continue;
      }
#pragma unroll
      for (int k = 0; k < MICRO; k++)
        if (c + k < cols)
          out[(int64_t)r * h.row + c + k] = STORE(x[k]);
    }
  }
}

/* Which operands are accessed in packs: where sizes and addresses allow that. */
struct AttWays {
  bool q, k, v, grad, out, dq, dk, dv;
};

/* The score of query i and key j after mask and causality; -inf if excluded. PLAIN: no mask and no dropout. */
template <bool PLAIN>
__device__ __forceinline__ real att_masked(const MothAttention &a, int64_t mask_at, int i, int j,
                                           real s) {
  const real none = -m_inf();
  if (i >= (int)a.L || j >= (int)a.S || (a.causal && j > i))
    return none;
  s *= (real)a.scale;
  if (!PLAIN && a.mask_bool)
    return a.mask_bool[mask_at + i * a.mask[2] + j * a.mask[3]] ? s : none;
  if (!PLAIN && a.mask_add)
    s += static_cast<const real *>(a.mask_add)[mask_at + i * a.mask[2] + j * a.mask[3]];
  return s;
}

/* Dropout's random numbers: word j of a row of keys; each row has its own counters. */
struct AttDrop {
  unsigned limit;
  bool all;
  /* Whether keys j.. (a multiple of MICRO) of a row are kept. */
  __device__ __forceinline__ void row(const MothAttention &a, bool (&keep)[MICRO], uint64_t row,
                                      int j) const {
    uint64_t seed = a.state[0],
             block = a.state[1] + row * ((uint64_t)(a.S + 3) / 4) + (uint64_t)j / 4;
    struct m_philox x = m_philox((unsigned)seed, (unsigned)(seed >> 32), (unsigned)block,
                                 (unsigned)(block >> 32), 0, 0);
#pragma unroll
    for (int k = 0; k < MICRO; k++) {
      unsigned word = MICRO == 4 || !(j & 2) ? x.v[k] : x.v[(k + 2) % 4];
      keep[k] = all || word < limit;
    }
  }
};

/* Backward's weights of a thread's part of a tile: w after dropout, d the gradient of the scores before scaling.
 * QUERIES: rows are queries; else columns are. */
template <bool QUERIES, bool PLAIN>
__device__ __forceinline__ void
att_backward_weights(const MothAttention &a, const AttDrop &drop, int64_t mask_at, int64_t head_row,
                     int first, int other, real (&s)[MICRO][MICRO], real (&d)[MICRO][MICRO]) {
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  int r0 = first + ty * MICRO, c0 = other + tx * MICRO;
  int i0 = QUERIES ? r0 : c0, j0 = QUERIES ? c0 : r0;
  real by = a.p < 1 ? (real)(1 / (1 - a.p)) : (real)0, scale = (real)a.scale;
#pragma unroll
  for (int x = 0; x < MICRO; x++) { /* queries */
    int i = i0 + x;
    bool there = i < (int)a.L;
    real lse = there ? static_cast<const real *>(a.lse)[head_row + i] : m_inf();
    real delta = there ? static_cast<const real *>(a.delta)[head_row + i] : (real)0;
    bool keep[MICRO];
    if (!PLAIN && a.p > 0)
      drop.row(a, keep, (uint64_t)(head_row + i), j0);
#pragma unroll
    for (int y = 0; y < MICRO; y++) { /* keys */
      real &score = QUERIES ? s[x][y] : s[y][x], &grad = QUERIES ? d[x][y] : d[y][x];
      real m = att_masked<PLAIN>(a, mask_at, i, j0 + y, score);
      bool seen = lse != m_inf() && m != -m_inf();
      real p = seen ? m_exp_down(m - lse) : (real)0, k = (real)1;
      if (!PLAIN && a.p > 0)
        k = keep[y] ? by : (real)0;
      score = p * k;
      grad = seen ? p * (k * grad - delta) * scale : (real)0;
    }
  }
}

/* The number of resident blocks per multiprocessor to compile for: limits their registers. Before sm_90 two would
 * spill. */
constexpr int att_blocks(int width, int mode, bool plain) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  plain = false;
#endif
  return plain && (width == 64 || (width == 128 && mode != ATT_KEYS)) ? 2 : 1;
}
template <int WIDTH, int MODE, bool PLAIN>
__global__ void __launch_bounds__(ATT_THREADS, att_blocks(WIDTH, MODE, PLAIN))
    attention_kernel(const __grid_constant__ MothAttention a, const AttWays ways,
                     const AttDrop drop) {
  __shared__ AttShared<WIDTH> shared;
  constexpr int MINE = WIDTH / 16;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  int64_t owned = MODE == ATT_KEYS ? a.S : a.L, heads = MODE == ATT_KEYS ? a.K : a.H;
  unsigned blocks = (unsigned)((owned + TILE - 1) / TILE);
  int64_t bh = blockIdx.x / blocks;
  int at = (int)(blockIdx.x % blocks);
  /* with a causal mask late queries have the most keys, and early keys the most queries: start with these */
  int first = (MODE == ATT_KEYS ? at : (int)blocks - 1 - at) * TILE;
  int64_t b = bh / heads, head = bh - b * heads, group = a.H / a.K;
  int c0 = (int)blockIdx.y * WIDTH;
  real acc[MICRO][MINE] = {};
  real one[MICRO];
#pragma unroll
  for (int i = 0; i < MICRO; i++)
    one[i] = 1;
  if constexpr (MODE != ATT_KEYS) {
    AttMatrix q = att_matrix(a.q, b, head, a.L, a.E, ways.q);
    AttMatrix k = att_matrix(a.k, b, head / group, a.S, a.E, ways.k);
    AttMatrix v = att_matrix(a.v, b, head / group, a.S, a.V, ways.v);
    int64_t head_row = bh * a.L, mask_at = b * a.mask[0] + head * a.mask[1];
    int end = a.causal && first + TILE < a.S ? first + TILE : (int)a.S;
    if constexpr (MODE == ATT_FORWARD) {
      real max[MICRO], sum[MICRO];
#pragma unroll
      for (int i = 0; i < MICRO; i++) {
        max[i] = -m_inf();
        sum[i] = 0;
      }
      for (int other = 0; other < end; other += TILE) {
        real s[MICRO][MICRO];
        att_scores<WIDTH>(s, shared, q, first, k, other);
#pragma unroll
        for (int i = 0; i < MICRO; i++) {
          int row = first + ty * MICRO + i;
          real top = max[i];
#pragma unroll
          for (int j = 0; j < MICRO; j++) {
            s[i][j] = att_masked<PLAIN>(a, mask_at, row, other + tx * MICRO + j, s[i][j]);
            top = s[i][j] > top ? s[i][j] : top;
          }
#pragma unroll
          for (int m = 8; m; m /= 2) {
            real x = shuffle_xor(top, m);
            top = x > top ? x : top;
          }
          real shift = top == -m_inf() ? (real)0 : top; /* all keys excluded: any shift will do */
          real factor = max[i] == -m_inf() ? (real)0 : m_exp_down(max[i] - shift);
          real part = 0;
          bool keep[MICRO];
          if (!PLAIN && a.p > 0)
            drop.row(a, keep, (uint64_t)(head_row + row), other + tx * MICRO);
#pragma unroll
          for (int j = 0; j < MICRO; j++) {
            s[i][j] = m_exp_down(s[i][j] - shift);
            part += s[i][j];
            if (!PLAIN && a.p > 0 && !keep[j])
              s[i][j] = 0;
          }
          sum[i] = sum[i] * factor + part;
          max[i] = top;
#pragma unroll
          for (int c = 0; c < MINE; c++)
            acc[i][c] *= factor;
        }
        int count = end - other < TILE ? end - other : TILE;
        att_add<WIDTH>(acc, shared, s, v, other, count, c0);
      }
      real by[MICRO];
      double keep_scale = a.p < 1 ? 1 / (1 - a.p) : 0;
#pragma unroll
      for (int i = 0; i < MICRO; i++) {
        int row = first + ty * MICRO + i;
#pragma unroll
        for (int m = 8; m; m /= 2)
          sum[i] += shuffle_xor(sum[i], m);
        bool seen = max[i] != -m_inf();
        by[i] = (real)(seen ? keep_scale / (double)sum[i] : 0);
        if (tx == 0 && blockIdx.y == 0 && row < a.L)
          static_cast<real *>(a.lse)[head_row + row] =
              seen ? (real)((double)max[i] + log((double)sum[i])) : m_inf();
      }
      att_store<WIDTH>(a.o, b, head, first, a.L, c0, a.V, ways.out, acc, by);
    } else {
      AttMatrix g = att_matrix(a.grad, b, head, a.L, a.V, ways.grad);
      for (int other = 0; other < end; other += TILE) {
        real s[MICRO][MICRO], d[MICRO][MICRO];
        att_scores<WIDTH>(s, shared, q, first, k, other);
        att_scores<WIDTH>(d, shared, g, first, v, other);
        att_backward_weights<true, PLAIN>(a, drop, mask_at, head_row, first, other, s, d);
        int count = end - other < TILE ? end - other : TILE;
        att_add<WIDTH>(acc, shared, d, k, other, count, c0);
      }
      att_store<WIDTH>(a.dq, b, head, first, a.L, c0, a.E, ways.dq, acc, one);
    }
  } else {
    real more[MICRO][MINE] = {}; /* gradient of the values */
    AttMatrix k = att_matrix(a.k, b, head, a.S, a.E, ways.k);
    AttMatrix v = att_matrix(a.v, b, head, a.S, a.V, ways.v);
    for (int64_t h = head * group; h < (head + 1) * group; h++) {
      AttMatrix q = att_matrix(a.q, b, h, a.L, a.E, ways.q);
      AttMatrix g = att_matrix(a.grad, b, h, a.L, a.V, ways.grad);
      int64_t head_row = (b * a.H + h) * a.L, mask_at = b * a.mask[0] + h * a.mask[1];
      for (int other = a.causal ? first : 0; other < (int)a.L; other += TILE) {
        real s[MICRO][MICRO], d[MICRO][MICRO];
        att_scores<WIDTH>(s, shared, k, first, q, other);
        att_scores<WIDTH>(d, shared, v, first, g, other);
        att_backward_weights<false, PLAIN>(a, drop, mask_at, head_row, first, other, s, d);
        int count = (int)a.L - other < TILE ? (int)a.L - other : TILE;
        att_add<WIDTH>(more, shared, s, g, other, count, c0);
        att_add<WIDTH>(acc, shared, d, q, other, count, c0);
      }
    }
    att_store<WIDTH>(a.dk, b, head, first, a.S, c0, a.E, ways.dk, acc, one);
    att_store<WIDTH>(a.dv, b, head, first, a.S, c0, a.V, ways.dv, more, one);
  }
}

/* delta = grad . o - grad_lse of each query: a warp each. */
__global__ void __launch_bounds__(ATT_THREADS)
    attention_delta(const __grid_constant__ MothAttention a, int64_t rows) {
  int64_t row = ((int64_t)blockIdx.x * ATT_THREADS + threadIdx.x) / 32;
  int lane = threadIdx.x % 32;
  if (row >= rows)
    return;
  int64_t bh = row / a.L, i = row - bh * a.L, b = bh / a.H, h = bh - b * a.H;
  const stored *g = static_cast<const stored *>(a.grad.data) + b * a.grad.batch + h * a.grad.head +
                    i * a.grad.row;
  const stored *o =
      static_cast<const stored *>(a.o.data) + b * a.o.batch + h * a.o.head + i * a.o.row;
  real sum = 0;
  for (int64_t c = lane; c < a.V; c += 32)
    sum += (real)LOAD(g[c]) * (real)LOAD(o[c]);
#pragma unroll
  for (int m = 16; m; m /= 2)
    sum += shuffle_xor(sum, m);
  if (lane == 0)
    static_cast<real *>(a.delta)[row] =
        sum - (a.grad_lse ? static_cast<const real *>(a.grad_lse)[row] : (real)0);
}

static bool att_packs(const MothHeads &h, int64_t cols, int n) {
  uintptr_t bytes = (uintptr_t)n * sizeof(stored);
  return cols % n == 0 && h.row % n == 0 && h.head % n == 0 && h.batch % n == 0 &&
         (uintptr_t)h.data % bytes == 0;
}

template <int MODE, bool PLAIN>
static MothStatus attention_run(const char *name, const MothCudaRun *run, const MothAttention *a,
                                int64_t width) {
  AttWays ways = {att_packs(a->q, a->E, PACK),   att_packs(a->k, a->E, PACK),
                  att_packs(a->v, a->V, PACK),   att_packs(a->grad, a->V, PACK),
                  att_packs(a->o, a->V, MICRO),  att_packs(a->dq, a->E, MICRO),
                  att_packs(a->dk, a->E, MICRO), att_packs(a->dv, a->V, MICRO)};
  uint64_t limit = (uint64_t)((1 - a->p) * 4294967296.0);
  AttDrop drop = {(unsigned)limit, limit > 0xffffffffu};
  int64_t owned = MODE == ATT_KEYS ? a->S : a->L, heads = MODE == ATT_KEYS ? a->K : a->H;
  int64_t step = width <= 64 ? 64 : width <= 128 ? 128 : 256;
  dim3 grid((unsigned)(moth_ceil_div(owned, TILE) * heads * a->B),
            (unsigned)moth_max64(1, moth_ceil_div(width, step)));
  auto kernel = step == 64    ? attention_kernel<64, MODE, PLAIN>
                : step == 128 ? attention_kernel<128, MODE, PLAIN>
                              : attention_kernel<256, MODE, PLAIN>;
  return moth_launch(name, kernel, grid, dim3(ATT_THREADS), 0, run->stream, *a, ways, drop);
}
template <int MODE>
static MothStatus attention_run(const char *name, const MothCudaRun *run, const MothAttention *a,
                                int64_t width) {
  return a->p > 0 || a->mask_bool || a->mask_add ? attention_run<MODE, false>(name, run, a, width)
                                                 : attention_run<MODE, true>(name, run, a, width);
}

static MothStatus forward(const MothCudaRun *run, const MothAttention *a) {
  return attention_run<ATT_FORWARD>("attention_forward", run, a, a->V);
}
static MothStatus backward(const MothCudaRun *run, const MothAttention *a) {
  int64_t rows = a->B * a->H * a->L;
  MOTH_TRY(moth_launch("attention_backward", attention_delta,
                       dim3((unsigned)moth_ceil_div(rows, ATT_THREADS / 32)), dim3(ATT_THREADS), 0,
                       run->stream, *a, rows));
  MOTH_TRY(attention_run<ATT_QUERIES>("attention_backward", run, a, a->E));
  return attention_run<ATT_KEYS>("attention_backward", run, a, moth_max64(a->E, a->V));
}
