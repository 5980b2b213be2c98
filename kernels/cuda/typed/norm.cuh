/* Normalisation. A block has a row (a group, a channel) and computes its statistics in two passes, of which the
 * second reads from the L1 cache if the row fits. Rows that fit in up to 4 packs per thread (layer_norm's, as a
 * rule) are read once. Sums are joined in a fixed order. */
#if MOTH_IS_FLOAT
enum { NORM_ROWS = 8, NORM_COLS = 32, NORM_CHUNKS = 128 };

__device__ __forceinline__ double block_sum(double x) {
  return join_block<Reduce_sum>(x);
}
static inline dim3 norm_threads(int64_t n) {
  return dim3(n <= 256 ? 64 : n <= 2048 ? 128 : n <= 8192 ? 256 : 512);
}

/* The elements of a statistic: `count` runs of `len` elements, `step` apart. */
struct Runs {
  const stored *p;
  int64_t count, len, step;
  /* The sum of f(x) over all elements, the same in all threads. */
  template <class F> __device__ __forceinline__ double sum(F f) const {
    double total = 0;
    for (int64_t r = 0, k = 0; r < count; r++)
      if (len >= blockDim.x) {
        accum part = 0;
        for (int64_t i = threadIdx.x; i < len; i += blockDim.x) {
          part += f(r * step + i);
          if (++k % 64 == 0) {
            total += part;
            part = 0;
          }
        }
        total += part;
      }
    if (len < blockDim.x) /* short runs: threads walk over all of them */
      for (int64_t k = threadIdx.x; k < count * len; k += blockDim.x)
        total += f(k / len * step + k % len);
    return block_sum(total);
  }
};

__device__ __forceinline__ void runs_moments(const Runs &r, bool rms, double *mean, double *var) {
  const stored *p = r.p;
  double n = (double)(r.count * r.len);
  *mean = rms ? 0 : r.sum([=](int64_t i) { return (accum)LOAD(p[i]); }) / n;
  real c = (real)*mean;
  double off = *mean - (double)c; /* the rounding error of c */
  double v = r.sum([=](int64_t i) {
    real d = LOAD(p[i]) - c;
    return (accum)(d * d);
  }) / n - off * off;
  *var = v < 0 ? 0 : v;
}

__global__ void norm_rows_kernel(MothNorm m) {
  const real *w = (const real *)m.weight, *b = (const real *)m.bias;
  for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x) {
    const stored *x = (const stored *)m.in + row * m.n;
    stored *o = (stored *)m.out + row * m.n;
    double mean, var;
    runs_moments(Runs{x, 1, m.n, 0}, m.rms, &mean, &var);
    real c = (real)mean, s = (real)(1 / sqrt(var + m.eps));
    for (int64_t i = threadIdx.x; i < m.n; i += blockDim.x) {
      real y = (LOAD(x[i]) - c) * s;
      y = w ? y * w[i] : y;
      o[i] = STORE(b ? y + b[i] : y);
    }
    if (threadIdx.x == 0) {
      ((real *)m.rstd)[row] = s;
      if (m.mean)
        ((real *)m.mean)[row] = c;
    }
  }
}

__global__ void norm_back_rows_kernel(MothNorm m) {
  const real *w = (const real *)m.weight, *mean = (const real *)m.mean;
  for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x) {
    const stored *x = (const stored *)m.in + row * m.n, *g = (const stored *)m.grad + row * m.n;
    stored *o = (stored *)m.out + row * m.n;
    real c = mean ? mean[row] : 0, s = ((const real *)m.rstd)[row];
    Runs r = {x, 1, m.n, 0};
    double s1 = m.rms ? 0 : r.sum([=](int64_t i) { return (accum)(LOAD(g[i]) * (w ? w[i] : 1)); });
    double s2 = r.sum(
        [=](int64_t i) { return (accum)(LOAD(g[i]) * (w ? w[i] : 1) * ((LOAD(x[i]) - c) * s)); });
    real k1 = (real)(s1 / (double)m.n), k2 = (real)(s2 / (double)m.n);
    for (int64_t i = threadIdx.x; i < m.n; i += blockDim.x)
      o[i] = STORE(s * (LOAD(g[i]) * (w ? w[i] : 1) - k1 - (LOAD(x[i]) - c) * s * k2));
  }
}

/* V numbers from p[i] on, 16 bytes at a time; p NULL: `none` for all. */
template <int V>
__device__ __forceinline__ void load_reals(const real *p, int64_t i, real none, real *x) {
  constexpr int W = 16 / (int)sizeof(real) < V ? 16 / (int)sizeof(real) : V;
#pragma unroll
  for (int k = 0; k < V; k += W) {
    Pack<real, W> q;
    if (p)
      q = *reinterpret_cast<const Pack<real, W> *>(p + i + k);
#pragma unroll
    for (int w = 0; w < W; w++)
      x[k + w] = p ? q.v[w] : none;
  }
}
/* Rows held in registers, R packs a thread. */
template <int R>
__global__ void __launch_bounds__(512) norm_short(const __grid_constant__ MothNorm m) {
  int packs = (int)(m.n / PACK);
  for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x) {
    const stored *in = (const stored *)m.in + row * m.n;
    stored *out = (stored *)m.out + row * m.n;
    real x[R][PACK];
    double sum = 0, mean = 0;
#pragma unroll
    for (int u = 0; u < R; u++) {
      int j = (int)threadIdx.x + u * (int)blockDim.x;
      accum part = 0;
#pragma unroll
      for (int k = 0; k < PACK; k++)
        x[u][k] = 0;
      if (j < packs)
        load_pack<PACK>(in + j * PACK, x[u]);
#pragma unroll
      for (int k = 0; k < PACK; k++)
        part += x[u][k];
      sum += (double)part;
    }
    if (!m.rms)
      mean = block_sum(sum) / (double)m.n;
    real c = (real)mean;
    double off = mean - (double)c; /* the rounding error of c */
    sum = 0;
#pragma unroll
    for (int u = 0; u < R; u++) {
      accum part = 0;
#pragma unroll
      for (int k = 0; k < PACK; k++) {
        x[u][k] -= c;
        part += x[u][k] * x[u][k];
      }
      if ((int)threadIdx.x + u * (int)blockDim.x < packs)
        sum += (double)part;
    }
    double var = block_sum(sum) / (double)m.n - off * off;
    real s = (real)(1 / sqrt((var < 0 ? 0 : var) + m.eps));
#pragma unroll
    for (int u = 0; u < R; u++) {
      int j = (int)threadIdx.x + u * (int)blockDim.x;
      if (j >= packs)
        continue;
      real w[PACK], b[PACK];
      load_reals<PACK>((const real *)m.weight, (int64_t)j * PACK, 1, w);
      load_reals<PACK>((const real *)m.bias, (int64_t)j * PACK, 0, b);
#pragma unroll
      for (int k = 0; k < PACK; k++)
        x[u][k] = x[u][k] * s * w[k] + b[k];
      store_pack<PACK>(out + j * PACK, x[u]);
    }
    if (threadIdx.x == 0) {
      ((real *)m.rstd)[row] = s;
      if (m.mean)
        ((real *)m.mean)[row] = c;
    }
  }
}
template <int R>
__global__ void __launch_bounds__(512) norm_back_short(const __grid_constant__ MothNorm m) {
  const real *mean = (const real *)m.mean;
  int packs = (int)(m.n / PACK);
  for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x) {
    real x[R][PACK], g[R][PACK], c = mean ? mean[row] : 0, s = ((const real *)m.rstd)[row];
    double s1 = 0, s2 = 0;
#pragma unroll
    for (int u = 0; u < R; u++) {
      int j = (int)threadIdx.x + u * (int)blockDim.x;
      if (j >= packs)
        continue;
      real w[PACK];
      accum p1 = 0, p2 = 0;
      load_pack<PACK>((const stored *)m.in + row * m.n + j * PACK, x[u]);
      load_pack<PACK>((const stored *)m.grad + row * m.n + j * PACK, g[u]);
      load_reals<PACK>((const real *)m.weight, (int64_t)j * PACK, 1, w);
#pragma unroll
      for (int k = 0; k < PACK; k++) {
        g[u][k] *= w[k];
        x[u][k] = (x[u][k] - c) * s;
        p1 += g[u][k];
        p2 += g[u][k] * x[u][k];
      }
      s1 += (double)p1;
      s2 += (double)p2;
    }
    real k1 = m.rms ? 0 : (real)(block_sum(s1) / (double)m.n);
    real k2 = (real)(block_sum(s2) / (double)m.n);
#pragma unroll
    for (int u = 0; u < R; u++) {
      int j = (int)threadIdx.x + u * (int)blockDim.x;
      if (j >= packs)
        continue;
#pragma unroll
      for (int k = 0; k < PACK; k++)
        g[u][k] = s * (g[u][k] - k1 - x[u][k] * k2);
      store_pack<PACK>((stored *)m.out + row * m.n + j * PACK, g[u]);
    }
  }
}
/* The number of threads that hold a row in up to 4 packs each; 0: the row does not fit, or is not aligned. */
static int norm_short_threads(const MothNorm *m) {
  uintptr_t all = (uintptr_t)m->in | (uintptr_t)m->grad | (uintptr_t)m->out | (uintptr_t)m->weight |
                  (uintptr_t)m->bias;
  int threads = 32;
  if (m->n % PACK || all % 16 || m->n == 0 || m->n / PACK > 4 * 512)
    return 0;
  while (threads < 512 && threads * (threads < 128 ? 1 : 2) < m->n / PACK)
    threads *= 2;
  return threads;
}

/* Gradients of parameters: NORM_COLS columns of a chunk of rows by a block; parts [chunks][2][n]. */
__global__ void norm_params_kernel(MothNorm m, double *parts, int64_t each) {
  __shared__ double sw[NORM_ROWS][NORM_COLS], sb[NORM_ROWS][NORM_COLS];
  const real *mean = (const real *)m.mean, *rstd = (const real *)m.rstd;
  int tx = threadIdx.x % NORM_COLS, ty = threadIdx.x / NORM_COLS;
  int64_t first = (int64_t)blockIdx.y * each, end = first + each < m.rows ? first + each : m.rows;
  for (int64_t tile = blockIdx.x; tile * NORM_COLS < m.n; tile += gridDim.x) {
    int64_t i = tile * NORM_COLS + tx;
    double dw = 0, db = 0;
    for (int64_t r = first + ty; i < m.n && r < end; r += NORM_ROWS) {
      real g = LOAD(((const stored *)m.grad)[r * m.n + i]);
      real x = LOAD(((const stored *)m.in)[r * m.n + i]) - (mean ? mean[r] : 0);
      dw += (double)(g * (x * rstd[r]));
      db += (double)g;
    }
    __syncthreads();
    sw[ty][tx] = dw;
    sb[ty][tx] = db;
    __syncthreads();
    if (ty == 0 && i < m.n) {
      for (int k = 1; k < NORM_ROWS; k++) {
        dw += sw[k][tx];
        db += sb[k][tx];
      }
      parts[((int64_t)blockIdx.y * 2) * m.n + i] = dw;
      parts[((int64_t)blockIdx.y * 2 + 1) * m.n + i] = db;
    }
  }
}
__global__ void norm_params_join(MothNorm m, const double *parts, int64_t chunks) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < m.n;
       i += (int64_t)gridDim.x * blockDim.x) {
    double dw = 0, db = 0;
    for (int64_t k = 0; k < chunks; k++) {
      dw += parts[2 * k * m.n + i];
      db += parts[(2 * k + 1) * m.n + i];
    }
    if (m.dweight)
      ((real *)m.dweight)[i] = (real)dw;
    if (m.dbias)
      ((real *)m.dbias)[i] = (real)db;
  }
}

MOTH_TYPED MothStatus norm_rows(const MothCudaRun *run, const MothNorm *m) {
  int threads = norm_short_threads(m);
  if (threads) {
    int64_t each = moth_ceil_div(m->n / PACK, threads);
    return moth_launch("norm_rows",
                       each <= 1   ? norm_short<1>
                       : each <= 2 ? norm_short<2>
                                   : norm_short<4>,
                       dim3(grid_of(m->rows)), dim3((unsigned)threads), 0, run->stream, *m);
  }
  return moth_launch("norm_rows", norm_rows_kernel, dim3(grid_of(m->rows)), norm_threads(m->n), 0,
                     run->stream, *m);
}
MOTH_TYPED MothStatus norm_back_rows(const MothCudaRun *run, const MothNorm *m) {
  int threads = m->out ? norm_short_threads(m) : 0;
  int64_t packs = threads ? moth_ceil_div(m->n / PACK, threads) : 0;
  if (threads)
    MOTH_TRY(moth_launch("norm_back_rows",
                         packs <= 1   ? norm_back_short<1>
                         : packs <= 2 ? norm_back_short<2>
                                      : norm_back_short<4>,
                         dim3(grid_of(m->rows)), dim3((unsigned)threads), 0, run->stream, *m));
  else if (m->out)
    MOTH_TRY(moth_launch("norm_back_rows", norm_back_rows_kernel, dim3(grid_of(m->rows)),
                         norm_threads(m->n), 0, run->stream, *m));
  if (!m->dweight && !m->dbias)
    return MOTH_OK;
  int64_t each = moth_max64(moth_ceil_div(m->rows, NORM_CHUNKS), 4 * NORM_ROWS);
  int64_t chunks = moth_ceil_div(m->rows, each);
  MothScratch parts;
  MOTH_TRY(parts.take(run->device, (size_t)(chunks * 2 * m->n + 1) * sizeof(double)));
  MOTH_TRY(moth_launch("norm_params", norm_params_kernel,
                       dim3(grid_of(moth_ceil_div(m->n, NORM_COLS)), (unsigned)chunks),
                       dim3(NORM_ROWS * NORM_COLS), 0, run->stream, *m, (double *)parts.p, each));
  return moth_launch("norm_params_join", norm_params_join, dim3(grid_of(moth_ceil_div(m->n, 128))),
                     dim3(128), 0, run->stream, *m, (const double *)parts.p, chunks);
}

/* --- groups and channels ------------------------------------------------------------------------ */

__device__ __forceinline__ Runs stat_runs(const MothNorm &m, const void *p, int64_t s) {
  const stored *a = (const stored *)p;
  int64_t len = m.groups ? m.channels / m.groups * m.inner : m.inner;
  return m.groups ? Runs{a + s * len, 1, len, 0}
                  : Runs{a + s * len, m.batch, len, m.channels * m.inner};
}

/* Block s computes statistic s and updates the running ones. */
__global__ void norm_stats_kernel(MothNorm m, int64_t stats) {
  for (int64_t s = blockIdx.x; s < stats; s += gridDim.x) {
    Runs r = stat_runs(m, m.in, s);
    double mean, var, n = (double)(r.count * r.len);
    runs_moments(r, false, &mean, &var);
    if (threadIdx.x)
      continue;
    ((real *)m.mean)[s] = (real)mean;
    ((real *)m.rstd)[s] = (real)(1 / sqrt(var + m.eps));
    if (m.running_mean) {
      real *rm = (real *)m.running_mean + s, *rv = (real *)m.running_var + s;
      *rm = (real)((1 - m.momentum) * (double)*rm + m.momentum * mean);
      *rv = (real)((1 - m.momentum) * (double)*rv + m.momentum * (var * n / (n - 1)));
    }
  }
}
/* Statistics from the running ones. */
__global__ void norm_given_kernel(MothNorm m) {
  for (int64_t s = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; s < m.channels;
       s += (int64_t)gridDim.x * blockDim.x) {
    ((real *)m.mean)[s] = ((const real *)m.running_mean)[s];
    ((real *)m.rstd)[s] = (real)(1 / sqrt((double)((const real *)m.running_var)[s] + m.eps));
  }
}
__device__ __forceinline__ int64_t stat_of(const MothNorm &m, int64_t line) {
  return m.groups ? line / (m.channels / m.groups) : line % m.channels;
}
__global__ void norm_apply_kernel(MothNorm m, int64_t total) {
  const real *w = (const real *)m.weight, *b = (const real *)m.bias;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < total;
       i += (int64_t)gridDim.x * blockDim.x) {
    int64_t line = i / m.inner, ch = line % m.channels, s = stat_of(m, line);
    real y = (LOAD(((const stored *)m.in)[i]) - ((const real *)m.mean)[s]) *
             (((const real *)m.rstd)[s] * (w ? w[ch] : 1));
    ((stored *)m.out)[i] = STORE(b ? y + b[ch] : y);
  }
}

/* dots[u] = { sum of g, sum of g xhat } of unit u: line (n, c) of groups, else channel. */
__global__ void norm_dots_kernel(MothNorm m, int64_t units, double *dots) {
  for (int64_t u = blockIdx.x; u < units; u += gridDim.x) {
    Runs r =
        m.groups ? Runs{(const stored *)m.in + u * m.inner, 1, m.inner, 0} : stat_runs(m, m.in, u);
    const stored *x = r.p, *g = (const stored *)m.grad + (x - (const stored *)m.in);
    int64_t st = stat_of(m, u);
    real c = ((const real *)m.mean)[st], s = ((const real *)m.rstd)[st];
    double s1 = r.sum([=](int64_t i) { return (accum)LOAD(g[i]); });
    double s2 = r.sum([=](int64_t i) { return (accum)(LOAD(g[i]) * ((LOAD(x[i]) - c) * s)); });
    if (threadIdx.x == 0) {
      dots[2 * u] = s1;
      dots[2 * u + 1] = s2;
    }
  }
}
/* Thread c: the parameters of channel c. Thread s: means[s] of statistic s, weighted. */
__global__ void norm_join_kernel(MothNorm m, int64_t stats, const double *dots, double *means) {
  const real *w = (const real *)m.weight;
  int64_t each = m.groups ? m.channels / m.groups : 1, rows = m.groups ? m.batch : 1;
  double n = (double)((m.groups ? each : m.batch) * m.inner);
  for (int64_t t = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; t < stats || t < m.channels;
       t += (int64_t)gridDim.x * blockDim.x) {
    double a = 0, b = 0;
    for (int64_t r = 0; t < m.channels && r < rows; r++) {
      b += dots[2 * (r * m.channels + t)];
      a += dots[2 * (r * m.channels + t) + 1];
    }
    if (t < m.channels && m.dweight)
      ((real *)m.dweight)[t] = (real)a;
    if (t < m.channels && m.dbias)
      ((real *)m.dbias)[t] = (real)b;
    a = b = 0;
    for (int64_t k = 0; t < stats && k < each; k++) {
      int64_t u = t * each + k;
      double wc = w ? (double)w[u % m.channels] : 1;
      b += wc * dots[2 * u];
      a += wc * dots[2 * u + 1];
    }
    if (t < stats) {
      means[2 * t] = m.own ? b / n : 0;
      means[2 * t + 1] = m.own ? a / n : 0;
    }
  }
}
__global__ void norm_back_kernel(MothNorm m, int64_t total, const double *means) {
  const real *w = (const real *)m.weight;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < total;
       i += (int64_t)gridDim.x * blockDim.x) {
    int64_t line = i / m.inner, ch = line % m.channels, s = stat_of(m, line);
    real r = ((const real *)m.rstd)[s];
    real xhat = (LOAD(((const stored *)m.in)[i]) - ((const real *)m.mean)[s]) * r;
    real g = LOAD(((const stored *)m.grad)[i]) * (w ? w[ch] : 1);
    ((stored *)m.out)[i] = STORE(r * (g - (real)means[2 * s] - xhat * (real)means[2 * s + 1]));
  }
}

MOTH_TYPED MothStatus norm_channels(const MothCudaRun *run, const MothNorm *m) {
  int64_t stats = m->groups ? m->batch * m->groups : m->channels;
  int64_t total = m->batch * m->channels * m->inner;
  if (m->own)
    MOTH_TRY(moth_launch("norm_stats", norm_stats_kernel, dim3(total ? grid_of(stats) : 0),
                         dim3(256), 0, run->stream, *m, stats));
  else
    MOTH_TRY(moth_launch("norm_given", norm_given_kernel, dim3(grid_of(moth_ceil_div(stats, 128))),
                         dim3(128), 0, run->stream, *m));
  return moth_launch("norm_apply", norm_apply_kernel, dim3(grid_of(moth_ceil_div(total, 256))),
                     dim3(256), 0, run->stream, *m, total);
}
MOTH_TYPED MothStatus norm_back_channels(const MothCudaRun *run, const MothNorm *m) {
  int64_t stats = m->groups ? m->batch * m->groups : m->channels;
  int64_t units = m->groups ? m->batch * m->channels : m->channels;
  int64_t total = m->batch * m->channels * m->inner;
  MothScratch scratch;
  MOTH_TRY(scratch.take(run->device, (size_t)(2 * units + 2 * stats + 1) * sizeof(double)));
  double *dots = (double *)scratch.p, *means = dots + 2 * units;
  MOTH_TRY(moth_launch("norm_dots", norm_dots_kernel, dim3(grid_of(units)), dim3(256), 0,
                       run->stream, *m, units, dots));
  MOTH_TRY(moth_launch("norm_join", norm_join_kernel,
                       dim3(grid_of(moth_ceil_div(moth_max64(stats, m->channels), 128))), dim3(128),
                       0, run->stream, *m, stats, (const double *)dots, means));
  if (!m->out)
    return MOTH_OK;
  return moth_launch("norm_back", norm_back_kernel, dim3(grid_of(moth_ceil_div(total, 256))),
                     dim3(256), 0, run->stream, *m, total, (const double *)means);
}
#else
static MothStatus norm_rows(const MothCudaRun *, const MothNorm *) {
  return moth_fail(MOTH_ERR_STATE, "norms are of float dtypes");
}
static MothStatus norm_back_rows(const MothCudaRun *, const MothNorm *) {
  return moth_fail(MOTH_ERR_STATE, "norms are of float dtypes");
}
static MothStatus norm_channels(const MothCudaRun *, const MothNorm *) {
  return moth_fail(MOTH_ERR_STATE, "norms are of float dtypes");
}
static MothStatus norm_back_channels(const MothCudaRun *, const MothNorm *) {
  return moth_fail(MOTH_ERR_STATE, "norms are of float dtypes");
}
#endif
