/* softmax and log_softmax along rows and columns, and other functions of x, the largest x of its row and the sum of
 * exp(x - largest) (loss.cuh).
 *
 * Memory is read once: rows of up to 1024 elements stay in the registers of 1 to 32 lanes, longer ones in a block's
 * shared memory, in stored form. Rows beyond that, and columns, are read twice. */

#if MOTH_IS_FLOAT
/* WRITES: packs that a thread has read before it writes, since in and out may be one. */
enum {
  WRITES = 2,
  SHORT_SOFT = 1024,
  SHARED_USED = 2048 /* by join_block and the driver */
};

/* A function of a row: open() prepares the row's statistics for at(); at() gets x, or exp(x - max) if EXP. */
template <bool LOG> struct SoftmaxOf {
  static constexpr bool EXP = !LOG;
  struct Row {
    real max, k;
  };
  __device__ __forceinline__ Row open(int64_t, real max, real sum) const {
    sum = max - max == 0 ? sum : m_nan();
    return {max, LOG ? (real)log((double)sum) : 1 / sum};
  }
  __device__ __forceinline__ real at(const Row &r, real x, int64_t) const {
    return LOG ? x - r.max - r.k : x * r.k;
  }
};
template <class F>
__device__ __forceinline__ real apply(const F &f, const typename F::Row &r, real x, int64_t i) {
  return f.at(r, F::EXP ? soft_exp(x - r.max) : x, i);
}

/* Element (p * width + lane) * V + v of a row is x[p * V + v]; -inf beyond its end. */
template <int R, int V>
__device__ __forceinline__ void load_row(real *x, const stored *in, int n, int lane, int width,
                                         real rest) {
#pragma unroll
  for (int p = 0; p < R / V; p++) {
    int i = (p * width + lane) * V;
    if (i < n) {
      load_pack<V>(in + i, x + p * V);
    } else {
#pragma unroll
      for (int v = 0; v < V; v++)
        x[p * V + v] = rest;
    }
  }
}

template <class F, int R, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    soft_short(F f, stored *out, const stored *in, int64_t rows, int n, int shift) {
  int width = 1 << shift, lane = threadIdx.x & (width - 1);
  int64_t row = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) >> shift;
  int64_t first = ((int64_t)blockIdx.x * ROW_THREADS + (threadIdx.x & ~31u)) >> shift;
  int64_t step = (int64_t)gridDim.x * ROW_THREADS >> shift;
  for (; first < rows; first += step, row += step) {
    real x[R], max = m_lowest(), sum = 0;
    load_row<R, V>(x, in + row * n, row < rows ? n : 0, lane, width, m_lowest());
#pragma unroll
    for (int k = 0; k < R; k++)
      max = m_join_max(max, x[k]);
    max = join_group<Reduce_max>(max, width);
#pragma unroll
    for (int k = 0; k < R; k++) {
      real e = soft_exp(x[k] - max);
      sum += e;
      if (F::EXP)
        x[k] = e;
    }
    sum = join_group<Reduce_sum>(sum, width);
    if (row >= rows)
      continue;
    auto r = f.open(row, max, sum);
#pragma unroll
    for (int p = 0; p < R / V; p++) {
      int i = (p * width + lane) * V;
#pragma unroll
      for (int v = 0; v < V; v++)
        x[p * V + v] = f.at(r, x[p * V + v], i + v);
      if (i < n)
        store_pack<V>(out + row * n + i, x + p * V);
    }
  }
}

/* The cut of a row: `head` elements up to an aligned one, `packs` packs, and a rest. Of head and rest thread t has
 * element single(t), or none (-1). */
struct Cut {
  int64_t head, packs, n;
  __device__ __forceinline__ Cut(const void *p, int64_t count, int width) {
    n = count;
    head = (int64_t)(-(uintptr_t)p & 15) / (int)sizeof(stored);
    head = width == 1 ? 0 : head < n ? head : n;
    packs = (n - head) / width;
  }
  template <int V> __device__ __forceinline__ int64_t single() const {
    int64_t t = threadIdx.x, i = t < head ? t : head + packs * V + (t - head);
    return V > 1 && i < n ? i : -1;
  }
};

/* Copies a row to shared memory and returns its statistics. */
template <int V, int U>
__device__ __forceinline__ SumExp<real> soft_stage(const stored *in, Pack<stored, V> *row,
                                                   int64_t packs, int64_t j) {
  typedef Pack<stored, V> P;
  auto acc = SumExpOp::none<SumExp<real>>();
  int step = blockDim.x;
  for (; j + (U - 1) * step < packs; j += U * step) {
    P q[U];
    real x[U * V];
#pragma unroll
    for (int u = 0; u < U; u++)
      q[u] = reinterpret_cast<const P *>(in)[j + u * step];
#pragma unroll
    for (int u = 0; u < U; u++) {
      row[j + u * step] = q[u];
#pragma unroll
      for (int v = 0; v < V; v++)
        x[u * V + v] = LOAD(q[u].v[v]);
    }
    acc = SumExpOp::join(acc, SumExpOp::chunk<V, U>(x, 0, 0));
  }
  if constexpr (U > 1)
    acc = SumExpOp::join(acc, soft_stage<V, 1>(in, row, packs, j));
  return acc;
}

/* Each thread reads from shared memory only elements that it wrote. */
template <class F, int V>
__global__ void __launch_bounds__(1024)
    soft_shared(F f, stored *out, const stored *in, int64_t rows, int64_t n) {
  typedef Pack<stored, V> P;
  constexpr int U = V >= 8 ? 2 : 4;
  MOTH_SHARED(P, packs);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const stored *a = in + row * n;
    stored *o = out + row * n;
    Cut cut(a, n, V);
    auto acc = soft_stage<V, U>(a + cut.head, packs, cut.packs, threadIdx.x);
    int64_t one = cut.single<V>();
    real x[V];
    if (one >= 0) {
      x[0] = LOAD(a[one]);
      acc = SumExpOp::join(acc, SumExpOp::chunk<1, 1>(x, 0, 0));
    }
    auto t = join_block<SumExpOp>(SumExpOp::widen(acc));
    auto r = f.open(row, (real)t.max, (real)t.sum);
    if (one >= 0)
      o[one] = STORE(apply(f, r, x[0], one));
    for (int64_t j = threadIdx.x; j < cut.packs; j += blockDim.x) {
      int64_t i = cut.head + j * V;
      P q = packs[j];
#pragma unroll
      for (int v = 0; v < V; v++)
        q.v[v] = STORE(apply(f, r, LOAD(q.v[v]), i + v));
      put_pack(o + i, q);
    }
  }
}

/* The statistics themselves as the result of a reduction. */
struct StatsOp : SumExpOp {
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    static_cast<total *>(out.values)[i] = a;
  }
};
typedef SumExp<double> Stats;

/* [rows] statistics of rows of n elements side by side. */
template <class Op>
static MothStatus row_stats(const char *name, const MothCudaRun *run, const void *in, int64_t rows,
                            int64_t n, void *stats) {
  MothReduceLayout k = {};
  MothReduce r = {};
  k.rows = true;
  k.outs = rows;
  k.count = n;
  k.nred = 1;
  k.red[0] = MothReduceDim{n, (int64_t)sizeof(stored), 0};
  k.nkept = rows > 1;
  k.kept[0] = MothReduceDim{rows, n * (int64_t)sizeof(stored), 1};
  r.in = static_cast<const char *>(in);
  r.layout = &k;
  r.out.values = stats;
  return reduce_of<Op>(name, run, &r);
}

/* Rows with known statistics: block (row, chunk of `each` packs). */
template <class F, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    soft_write(F f, stored *out, const stored *in, const Stats *stats, int64_t rows, int64_t n,
               int64_t each) {
  constexpr int U = WRITES;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    auto r = f.open(row, (real)stats[row].max, (real)stats[row].sum);
    const stored *a = in + row * n;
    stored *o = out + row * n;
    Cut cut(a, n, V);
    int64_t one = blockIdx.y ? -1 : cut.single<V>();
    if (one >= 0)
      o[one] = STORE(apply(f, r, LOAD(a[one]), one));
    for (int64_t p = (int64_t)blockIdx.y * each; p < cut.packs; p += gridDim.y * each) {
      int64_t end = p + each < cut.packs ? p + each : cut.packs;
      for (int64_t j = p + threadIdx.x; j < end; j += U * ROW_THREADS) {
        real x[U][V];
#pragma unroll
        for (int u = 0; u < U; u++)
          if (j + u * ROW_THREADS < end)
            load_pack<V>(a + cut.head + (j + u * ROW_THREADS) * V, x[u]);
#pragma unroll
        for (int u = 0; u < U; u++) {
          int64_t i = cut.head + (j + u * ROW_THREADS) * V;
          if (j + u * ROW_THREADS >= end)
            break;
#pragma unroll
          for (int v = 0; v < V; v++)
            x[u][v] = apply(f, r, x[u][v], i + v);
          store_pack<V>(o + i, x[u]);
        }
      }
    }
  }
}

/* More than 48 KiB of shared memory for a block must be requested. */
template <class K> static MothStatus allow_shared(K *kernel, size_t bytes) {
  if (bytes <= (48 << 10))
    return MOTH_OK;
  MOTH_CUDA_TRY(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
  return MOTH_OK;
}
static inline dim3 soft_threads(int64_t n) {
  return dim3(n <= 4096 ? 256 : n <= 16384 ? 512 : 1024);
}
static inline bool same_alignment(const void *a, const void *b) {
  return (((uintptr_t)a ^ (uintptr_t)b) & 15) == 0;
}

template <class F, int R>
static MothStatus launch_short(const char *name, const F &f, const MothCudaRun *run,
                               const MothSoftmax *s) {
  constexpr int V = PACK < R ? PACK : R;
  int shift = log2_ceil(moth_ceil_div(s->n, R), 5);
  bool packs = s->n % V == 0 && (uintptr_t)s->in % 16 == 0 && (uintptr_t)s->out % 16 == 0;
  dim3 grid(grid_of(moth_ceil_div(s->outer, ROW_THREADS >> shift)));
  return moth_launch(name, packs ? soft_short<F, R, V> : soft_short<F, R, 1>, grid,
                     dim3(ROW_THREADS), 0, run->stream, f, (stored *)s->out, (const stored *)s->in,
                     s->outer, (int)s->n, shift);
}

/* f of all rows: s->outer of them, s->n long. */
template <class F>
static MothStatus soft_rows(const char *name, const F &f, const MothCudaRun *run,
                            const MothSoftmax *s) {
  stored *out = static_cast<stored *>(s->out);
  const stored *in = static_cast<const stored *>(s->in);
  const MothCudaProps *props = moth_cuda_props(run->device);
  if (s->n <= SHORT_SOFT)
    return s->n <= 128   ? launch_short<F, 4>(name, f, run, s)
           : s->n <= 256 ? launch_short<F, 8>(name, f, run, s)
           : s->n <= 512 ? launch_short<F, 16>(name, f, run, s)
                         : launch_short<F, 32>(name, f, run, s);
  size_t bytes = (size_t)s->n * sizeof(stored) + 16;
  bool few = s->outer < props->multiprocessors / 4 && s->n > 65536;
  if (!few && bytes <= props->shared_per_block - SHARED_USED) {
    auto kernel = same_alignment(in, out) ? soft_shared<F, PACK> : soft_shared<F, 1>;
    MOTH_TRY(allow_shared(kernel, bytes));
    return moth_launch(name, kernel, dim3(grid_of(s->outer)), soft_threads(s->n), bytes,
                       run->stream, f, out, in, s->outer, s->n);
  }
  MothScratch stats;
  MOTH_TRY(stats.take(run->device, (size_t)s->outer * sizeof(Stats)));
  MOTH_TRY(row_stats<StatsOp>(name, run, in, s->outer, s->n, stats.p));
  bool packs = same_alignment(in, out);
  int64_t each = 8 * ROW_THREADS, most = s->n / (packs ? PACK : 1);
  int64_t pieces = moth_min64(moth_max64(moth_ceil_div(most, each), 1), 65535);
  return moth_launch(name, packs ? soft_write<F, PACK> : soft_write<F, 1>,
                     dim3(grid_of(s->outer), (unsigned)pieces), dim3(ROW_THREADS), 0, run->stream,
                     f, out, in, stats.as<Stats>(), s->outer, s->n, each);
}

/* --- columns
 * ------------------------------------------------------------------------------------
 */

/* `slots` packs of V columns, n elements `inner` apart each. Unless columns are very long the second loop reads from
 * a cache. */
template <class F, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    soft_cols(F f, stored *out, const stored *in, int64_t slots, int64_t n, int64_t inner,
              WideDiv packs, int shift) {
  constexpr int U = COL_UNROLL;
  __shared__ Stats buf[ROW_THREADS];
  int tx = 1 << shift, x = threadIdx.x & (tx - 1), y = threadIdx.x >> shift;
  int ty = ROW_THREADS >> shift;
  for (int64_t tile = blockIdx.x; tile << shift < slots; tile += gridDim.x) {
    int64_t slot = (tile << shift) + x, o = div_wide(slot, packs);
    int64_t at = o * n * inner + (slot - o * packs.d) * V;
    bool live = slot < slots;
    SumExp<real> acc[V];
#pragma unroll
    for (int k = 0; k < V; k++)
      acc[k] = SumExpOp::none<SumExp<real>>();
    int64_t i = live ? y : n;
    for (; i + (U - 1) * ty < n; i += U * ty) {
      real a[U][V];
#pragma unroll
      for (int u = 0; u < U; u++)
        load_pack<V>(in + at + (i + u * ty) * inner, a[u]);
#pragma unroll
      for (int k = 0; k < V; k++) {
        real c[U];
#pragma unroll
        for (int u = 0; u < U; u++)
          c[u] = a[u][k];
        acc[k] = SumExpOp::join(acc[k], SumExpOp::chunk<1, U>(c, 0, 0));
      }
    }
#pragma unroll 1
    for (; i < n; i += ty) {
      real a[V];
      load_pack<V>(in + at + i * inner, a);
#pragma unroll
      for (int k = 0; k < V; k++)
        acc[k] = SumExpOp::join(acc[k], SumExpOp::chunk<1, 1>(a + k, 0, 0));
    }
    typename F::Row r[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
      join_columns<SumExpOp>(SumExpOp::widen(acc[k]), buf, shift);
      __syncthreads();
      r[k] = f.open(0, (real)buf[x].max, (real)buf[x].sum);
    }
    for (i = live ? y : n; i < n; i += WRITES * ty) {
      real a[WRITES][V];
#pragma unroll
      for (int u = 0; u < WRITES; u++)
        if (i + u * ty < n)
          load_pack<V>(in + at + (i + u * ty) * inner, a[u]);
#pragma unroll
      for (int u = 0; u < WRITES; u++) {
        if (i + u * ty >= n)
          break;
#pragma unroll
        for (int k = 0; k < V; k++)
          a[u][k] = apply(f, r[k], a[u][k], i + u * ty);
        store_pack<V>(out + at + (i + u * ty) * inner, a[u]);
      }
    }
  }
}

/* The launch of a columns kernel. */
struct ColumnCut {
  bool packs;
  int64_t slots;
  int shift;
  WideDiv width;
  dim3 grid;
  ColumnCut(const MothSoftmax *s, uintptr_t addresses) {
    packs = s->inner % COL_PACK == 0 && addresses % (COL_PACK * sizeof(stored)) == 0;
    int64_t v = packs ? COL_PACK : 1;
    slots = s->outer * (s->inner / v);
    shift = log2_ceil(slots, 8 - log2_floor(s->n / 4, 3));
    width = wide_div(s->inner / v);
    grid = dim3(grid_of(moth_ceil_div(slots, 1 << shift)));
  }
};

template <class F>
static MothStatus soft_all(const char *name, const F &f, const MothCudaRun *run,
                           const MothSoftmax *s) {
  if (s->inner == 1)
    return soft_rows(name, f, run, s);
  ColumnCut cut(s, (uintptr_t)s->in | (uintptr_t)s->out);
  return moth_launch(name, cut.packs ? soft_cols<F, COL_PACK> : soft_cols<F, 1>, cut.grid,
                     dim3(ROW_THREADS), 0, run->stream, f, (stored *)s->out, (const stored *)s->in,
                     cut.slots, s->n, s->inner, cut.width, cut.shift);
}

MOTH_TYPED MothStatus softmax(const MothCudaRun *run, const MothSoftmax *s) {
  return s->log ? soft_all("log_softmax", SoftmaxOf<true>(), run, s)
                : soft_all("softmax", SoftmaxOf<false>(), run, s);
}
#else
static MothStatus softmax(const MothCudaRun *, const MothSoftmax *) {
  return moth_fail(MOTH_ERR_STATE, "softmax is of float dtypes");
}
#endif
