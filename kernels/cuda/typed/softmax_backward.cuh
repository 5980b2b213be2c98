/* The derivatives: softmax (g - sum(g y)) y, log_softmax g - exp(y) sum(g). Kernels as in softmax.cuh. */

#if MOTH_IS_FLOAT
template <bool LOG> struct BackOf {
  static __device__ __forceinline__ real term(real g, real y) { return LOG ? g : g * y; }
  static __device__ __forceinline__ real at(real g, real y, real sum) {
    return LOG ? g - m_exp(y) * sum : (g - sum) * y;
  }
};

template <class F, int R, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    back_short(stored *out, const stored *grad, const stored *back, int64_t rows, int n,
               int shift) {
  int width = 1 << shift, lane = threadIdx.x & (width - 1);
  int64_t row = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) >> shift;
  int64_t first = ((int64_t)blockIdx.x * ROW_THREADS + (threadIdx.x & ~31u)) >> shift;
  int64_t step = (int64_t)gridDim.x * ROW_THREADS >> shift;
  for (; first < rows; first += step, row += step) {
    real g[R], y[R], sum = 0;
    int m = row < rows ? n : 0;
    load_row<R, V>(g, grad + row * n, m, lane, width, 0);
    load_row<R, V>(y, back + row * n, m, lane, width, 0);
#pragma unroll
    for (int k = 0; k < R; k++)
      sum += F::term(g[k], y[k]);
    sum = join_group<Reduce_sum>(sum, width);
#pragma unroll
    for (int p = 0; p < R / V; p++) {
      int i = (p * width + lane) * V;
#pragma unroll
      for (int v = 0; v < V; v++)
        g[p * V + v] = F::at(g[p * V + v], y[p * V + v], sum);
      if (i < m)
        store_pack<V>(out + row * n + i, g + p * V);
    }
  }
}

/* The sum over packs j, j + step, ... of one row, in chunks of a fixed size for accuracy. */
template <class F, int V, bool KEEP>
__device__ __forceinline__ double back_sum(const stored *grad, const stored *back,
                                           Pack<stored, V> *keep_g, Pack<stored, V> *keep_y,
                                           int64_t packs) {
  typedef Pack<stored, V> P;
  double total = 0;
#pragma unroll 2
  for (int64_t j = threadIdx.x; j < packs; j += blockDim.x) {
    P g = reinterpret_cast<const P *>(grad)[j], y = reinterpret_cast<const P *>(back)[j];
    real a[V];
    if (KEEP) {
      keep_g[j] = g;
      keep_y[j] = y;
    }
#pragma unroll
    for (int v = 0; v < V; v++)
      a[v] = F::term(LOAD(g.v[v]), LOAD(y.v[v]));
    total += (double)tree_sum<V>(a);
  }
  return total;
}

template <class F, int V>
__global__ void __launch_bounds__(1024)
    back_shared(stored *out, const stored *grad, const stored *back, int64_t rows, int64_t n) {
  typedef Pack<stored, V> P;
  MOTH_SHARED(P, keep_g);
  P *keep_y = keep_g + n / V;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const stored *a = grad + row * n, *b = back + row * n;
    stored *o = out + row * n;
    Cut cut(a, n, V);
    double total = back_sum<F, V, true>(a + cut.head, b + cut.head, keep_g, keep_y, cut.packs);
    int64_t one = cut.single<V>();
    real g = 0, y = 0;
    if (one >= 0) {
      g = LOAD(a[one]);
      y = LOAD(b[one]);
      total += (double)F::term(g, y);
    }
    real sum = (real)join_block<Reduce_sum>(total);
    if (one >= 0)
      o[one] = STORE(F::at(g, y, sum));
    for (int64_t j = threadIdx.x; j < cut.packs; j += blockDim.x) {
      P p = keep_g[j], q = keep_y[j];
#pragma unroll
      for (int v = 0; v < V; v++)
        p.v[v] = STORE(F::at(LOAD(p.v[v]), LOAD(q.v[v]), sum));
      put_pack(o + cut.head + j * V, p);
    }
  }
}

/* Rows that do not fit in shared memory: block (row, chunk of `each` packs) writes a partial sum; a second kernel of
 * the same blocks adds all of a row's and writes the result. */
template <class F, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    back_parts(const stored *grad, const stored *back, double *parts, int64_t rows, int64_t n,
               int64_t each) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Cut cut(grad + row * n, n, V);
    int64_t from = (int64_t)blockIdx.y * each,
            m = cut.packs - from < each ? cut.packs - from : each;
    int64_t at = row * n + cut.head + from * V, one = blockIdx.y ? -1 : cut.single<V>();
    double total = back_sum<F, V, false>(grad + at, back + at, (Pack<stored, V> *)nullptr,
                                         (Pack<stored, V> *)nullptr, m);
    if (one >= 0)
      total += (double)F::term(LOAD(grad[row * n + one]), LOAD(back[row * n + one]));
    total = join_block<Reduce_sum>(total);
    if (threadIdx.x == 0)
      parts[row * gridDim.y + blockIdx.y] = total;
  }
}
template <class F, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    back_write(stored *out, const stored *grad, const stored *back, const double *parts,
               int64_t rows, int64_t n, int64_t each) {
  constexpr int U = WRITES;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    double total = 0;
    for (unsigned p = threadIdx.x; p < gridDim.y; p += ROW_THREADS)
      total += parts[row * gridDim.y + p];
    real sum = (real)join_block<Reduce_sum>(total);
    Cut cut(grad + row * n, n, V);
    int64_t from = (int64_t)blockIdx.y * each, one = blockIdx.y ? -1 : cut.single<V>();
    int64_t to = cut.packs - from < each ? cut.packs : from + each;
    if (one >= 0)
      out[row * n + one] = STORE(F::at(LOAD(grad[row * n + one]), LOAD(back[row * n + one]), sum));
    for (int64_t j = from + threadIdx.x; j < to; j += U * ROW_THREADS) {
      real g[U][V], y[U][V];
#pragma unroll
      for (int u = 0; u < U; u++) {
        int64_t i = row * n + cut.head + (j + u * ROW_THREADS) * V;
        if (j + u * ROW_THREADS < to) {
          load_pack<V>(grad + i, g[u]);
          load_pack<V>(back + i, y[u]);
        }
      }
#pragma unroll
      for (int u = 0; u < U; u++) {
        if (j + u * ROW_THREADS >= to)
          break;
#pragma unroll
        for (int v = 0; v < V; v++)
          g[u][v] = F::at(g[u][v], y[u][v], sum);
        store_pack<V>(out + row * n + cut.head + (j + u * ROW_THREADS) * V, g[u]);
      }
    }
  }
}

template <class F, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    back_cols(stored *out, const stored *grad, const stored *back, int64_t slots, int64_t n,
              int64_t inner, WideDiv packs, int shift) {
  __shared__ double buf[ROW_THREADS];
  int tx = 1 << shift, x = threadIdx.x & (tx - 1), y = threadIdx.x >> shift;
  int ty = ROW_THREADS >> shift;
  for (int64_t tile = blockIdx.x; tile << shift < slots; tile += gridDim.x) {
    int64_t slot = (tile << shift) + x, o = div_wide(slot, packs);
    int64_t at = o * n * inner + (slot - o * packs.d) * V;
    bool live = slot < slots;
    double total[V] = {};
    real sum[V];
#pragma unroll 4
    for (int64_t i = live ? y : n; i < n; i += ty) {
      real g[V], b[V];
      load_pack<V>(grad + at + i * inner, g);
      load_pack<V>(back + at + i * inner, b);
#pragma unroll
      for (int k = 0; k < V; k++)
        total[k] += (double)F::term(g[k], b[k]);
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
      join_columns<Reduce_sum>(total[k], buf, shift);
      __syncthreads();
      sum[k] = (real)buf[x];
    }
#pragma unroll 2
    for (int64_t i = live ? y : n; i < n; i += ty) {
      real g[V], b[V];
      load_pack<V>(grad + at + i * inner, g);
      load_pack<V>(back + at + i * inner, b);
#pragma unroll
      for (int k = 0; k < V; k++)
        g[k] = F::at(g[k], b[k], sum[k]);
      store_pack<V>(out + at + i * inner, g);
    }
  }
}

template <class F, int R>
static MothStatus launch_back(const char *name, const MothCudaRun *run, const MothSoftmax *s) {
  constexpr int V = PACK < R ? PACK : R;
  int shift = log2_ceil(moth_ceil_div(s->n, R), 5);
  bool packs =
      s->n % V == 0 && (((uintptr_t)s->in | (uintptr_t)s->back | (uintptr_t)s->out) & 15) == 0;
  dim3 grid(grid_of(moth_ceil_div(s->outer, ROW_THREADS >> shift)));
  return moth_launch(name, packs ? back_short<F, R, V> : back_short<F, R, 1>, grid,
                     dim3(ROW_THREADS), 0, run->stream, (stored *)s->out, (const stored *)s->in,
                     (const stored *)s->back, s->outer, (int)s->n, shift);
}

template <class F>
static MothStatus back_all(const char *name, const MothCudaRun *run, const MothSoftmax *s) {
  stored *out = static_cast<stored *>(s->out);
  const stored *in = static_cast<const stored *>(s->in);
  const stored *back = static_cast<const stored *>(s->back);
  const MothCudaProps *props = moth_cuda_props(run->device);
  if (s->inner != 1) {
    ColumnCut cut(s, (uintptr_t)in | (uintptr_t)back | (uintptr_t)out);
    return moth_launch(name, cut.packs ? back_cols<F, COL_PACK> : back_cols<F, 1>, cut.grid,
                       dim3(ROW_THREADS), 0, run->stream, out, in, back, cut.slots, s->n, s->inner,
                       cut.width, cut.shift);
  }
  if (s->n <= SHORT_SOFT)
    return s->n <= 128   ? launch_back<F, 4>(name, run, s)
           : s->n <= 256 ? launch_back<F, 8>(name, run, s)
           : s->n <= 512 ? launch_back<F, 16>(name, run, s)
                         : launch_back<F, 32>(name, run, s);
  size_t bytes = 2 * (size_t)s->n * sizeof(stored) + 16;
  bool few = s->outer < props->multiprocessors / 4 && s->n > 65536;
  bool packs = same_alignment(in, out) && same_alignment(in, back);
  if (!few && bytes <= props->shared_per_block - SHARED_USED) {
    auto kernel = packs ? back_shared<F, PACK> : back_shared<F, 1>;
    MOTH_TRY(allow_shared(kernel, bytes));
    return moth_launch(name, kernel, dim3(grid_of(s->outer)), soft_threads(s->n), bytes,
                       run->stream, out, in, back, s->outer, s->n);
  }
  /* Chunks: enough for all multiprocessors, few enough for a row's blocks to sum. */
  int64_t most = s->n / (packs ? PACK : 1);
  int64_t each = moth_max64(4 * ROW_THREADS, moth_ceil_div(most, 4096));
  int64_t pieces = moth_max64(moth_ceil_div(most, each), 1);
  MothScratch parts;
  MOTH_TRY(parts.take(run->device, (size_t)(s->outer * pieces) * sizeof(double)));
  dim3 grid(grid_of(s->outer), (unsigned)pieces);
  MOTH_TRY(moth_launch(name, packs ? back_parts<F, PACK> : back_parts<F, 1>, grid,
                       dim3(ROW_THREADS), 0, run->stream, in, back, parts.as<double>(), s->outer,
                       s->n, each));
  return moth_launch(name, packs ? back_write<F, PACK> : back_write<F, 1>, grid, dim3(ROW_THREADS),
                     0, run->stream, out, in, back, parts.as<double>(), s->outer, s->n, each);
}

MOTH_TYPED MothStatus softmax_backward(const MothCudaRun *run, const MothSoftmax *s) {
  return s->log ? back_all<BackOf<true>>("log_softmax_backward", run, s)
                : back_all<BackOf<false>>("softmax_backward", run, s);
}
#else
static MothStatus softmax_backward(const MothCudaRun *, const MothSoftmax *) {
  return moth_fail(MOTH_ERR_STATE, "softmax is of float dtypes");
}
#endif
