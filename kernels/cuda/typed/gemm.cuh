/* A plain tiled matrix product: without cuBLASLt, and for dtypes that it does not support.
 *
 * A block computes 64 x 64 elements of C from slices of 16 columns of A and rows of B in shared memory; each of its
 * 256 threads has 4 x 4 of them, 16 apart. Sums are in the order of k, in parts of GEMM_PART: rounding errors grow
 * with the length of a part and the number of parts, not with k. */

#if MOTH_IS_FLOAT
typedef accum gemm_sum;
#define GEMM_LOAD(x)  ((gemm_sum)LOAD(x))
#define GEMM_SCALE(x) ((gemm_sum)(x))
#else
typedef unsigned long long gemm_sum; /* wraps */
#define GEMM_LOAD(x)  ((gemm_sum)(long long)LOAD(x))
#define GEMM_SCALE(x) ((gemm_sum)(long long)(x))
#endif

enum { GEMM_TILE = 64, GEMM_STEP = 16, GEMM_THREADS = 256, GEMM_EACH = 4, GEMM_PART = 256 };

/* GEMM_STEP x GEMM_TILE elements of an operand into shared memory, zero beyond its edges. `along` is
 * the stride between elements of the tile, `deep` the one along k; neighbours in memory go to neighbouring
 * threads. */
__device__ __forceinline__ void gemm_slice(gemm_sum (*to)[GEMM_TILE + 1], const stored *p,
                                           int64_t along, int64_t deep, int64_t first, int64_t size,
                                           int64_t k, int64_t depth) {
  bool k_first = deep == 1;
#pragma unroll
  for (int i = threadIdx.x; i < GEMM_TILE * GEMM_STEP; i += GEMM_THREADS) {
    int kk = k_first ? i % GEMM_STEP : i / GEMM_TILE, r = k_first ? i / GEMM_STEP : i % GEMM_TILE;
    bool in = first + r < size && k + kk < depth;
    to[kk][r] = in ? GEMM_LOAD(p[(first + r) * along + (k + kk) * deep]) : (gemm_sum)0;
  }
}

__global__ void __launch_bounds__(GEMM_THREADS)
    gemm_kernel(const __grid_constant__ MothGemm g, int64_t tiles_m, int64_t tiles_n) {
  __shared__ gemm_sum a_slice[GEMM_STEP][GEMM_TILE + 1], b_slice[GEMM_STEP][GEMM_TILE + 1];
  int x = threadIdx.x % 16, y = threadIdx.x / 16;
  int64_t tiles = tiles_m * tiles_n;
  for (int64_t t = blockIdx.x; t < tiles * g.batch; t += gridDim.x) {
    int64_t batch = t / tiles, row = t % tiles / tiles_n * GEMM_TILE, col = t % tiles_n * GEMM_TILE;
    const stored *a = static_cast<const stored *>(g.a) + batch * g.a_batch;
    const stored *b = static_cast<const stored *>(g.b) + batch * g.b_batch;
    gemm_sum sum[GEMM_EACH][GEMM_EACH] = {}, part[GEMM_EACH][GEMM_EACH] = {};
    for (int64_t k = 0; k < g.k; k += GEMM_STEP) {
      gemm_slice(a_slice, a, g.a_row, g.a_col, row, g.m, k, g.k);
      gemm_slice(b_slice, b, g.b_col, g.b_row, col, g.n, k, g.k);
      __syncthreads();
#pragma unroll
      for (int kk = 0; kk < GEMM_STEP; kk++) {
        gemm_sum left[GEMM_EACH], right[GEMM_EACH];
#pragma unroll
        for (int i = 0; i < GEMM_EACH; i++) {
          left[i] = a_slice[kk][y + 16 * i];
          right[i] = b_slice[kk][x + 16 * i];
        }
#pragma unroll
        for (int i = 0; i < GEMM_EACH; i++)
#pragma unroll
          for (int j = 0; j < GEMM_EACH; j++)
            part[i][j] += left[i] * right[j];
      }
      if (k % GEMM_PART == GEMM_PART - GEMM_STEP || k + GEMM_STEP >= g.k)
#pragma unroll
        for (int i = 0; i < GEMM_EACH; i++)
#pragma unroll
          for (int j = 0; j < GEMM_EACH; j++) {
            sum[i][j] += part[i][j];
            part[i][j] = 0;
          }
      __syncthreads();
    }
    stored *c = static_cast<stored *>(g.c) + batch * g.c_batch;
    const stored *bias = static_cast<const stored *>(g.bias);
#pragma unroll
    for (int i = 0; i < GEMM_EACH; i++)
#pragma unroll
      for (int j = 0; j < GEMM_EACH; j++) {
        int64_t r = row + y + 16 * i, q = col + x + 16 * j;
        if (r >= g.m || q >= g.n)
          continue;
        gemm_sum out = GEMM_SCALE(g.alpha) * sum[i][j];
        if (g.beta != 0)
          out += GEMM_SCALE(g.beta) * GEMM_LOAD(c[r * g.c_row + q]);
        if (bias)
          out += GEMM_LOAD(bias[q]);
        c[r * g.c_row + q] = STORE(out);
      }
  }
}

MOTH_TYPED MothStatus gemm(const MothCudaRun *run, const MothGemm *g) {
  int64_t tiles_m = moth_ceil_div(g->m, GEMM_TILE), tiles_n = moth_ceil_div(g->n, GEMM_TILE);
  int64_t blocks = tiles_m * tiles_n * g->batch, most = (int64_t)1 << 20;
  return moth_launch("gemm", gemm_kernel, dim3((unsigned)(blocks < most ? blocks : most)),
                     dim3(GEMM_THREADS), 0, run->stream, *g, tiles_m, tiles_n);
}
