/* cross_entropy of rows of n logits. A row with class t and class weights w (without: all 1) has the loss
 *   (1 - s) w[t] (lse - x[t]) + s / n sum_c w[c] (lse - x[c]),   lse = log(sum(exp(x)))
 * with the label smoothing s. Forward: one reduction gives each row's largest logit, sum of exp and, with smoothing,
 * plain sum; then the losses and their sum. Backward: softmax's kernels read a row once and write its gradient.
 * Weights and smoothing together read the logits twice. */

#if MOTH_IS_FLOAT
/* Numerator and denominator of the mean. */
struct LossSum {
  double loss, weight;
};
struct LossSumOp {
  template <class T> static __device__ __forceinline__ T none() { return T{0, 0}; }
  static __device__ __forceinline__ LossSum join(LossSum a, LossSum b) {
    return {a.loss + b.loss, a.weight + b.weight};
  }
};

/* And where a class out of range is reported. */
struct LossAt : MothLoss {
  int op;
  MothFault *fault;
};
static LossAt loss_at(const MothCudaRun *run, const MothLoss *l) {
  return LossAt{*l, run->op, moth_cuda_fault(run->device)};
}

/* The class of a row, from 0; -1: ignored. */
__device__ __forceinline__ long long class_of(const LossAt &l, int64_t row) {
  long long t = l.target[row];
  return t == l.ignore ? -1 : moth_index(l.fault, l.op, 1, -1, t, l.base, l.n);
}

/* Each row's sum of logits times the weights of their classes. */
__global__ void __launch_bounds__(ROW_THREADS)
    loss_weighted_sums(const stored *in, const double *weight, double *sums, int64_t rows,
                       int64_t n) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS)
      sum += weight[i] * (double)LOAD(in[row * n + i]);
    sum = join_block<Reduce_sum>(sum);
    if (threadIdx.x == 0)
      sums[row] = sum;
  }
}

/* *out = the sum of n numbers, by one block. */
__global__ void __launch_bounds__(ROW_THREADS)
    loss_total(const double *numbers, int64_t n, double *out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS)
    sum += numbers[i];
  sum = join_block<Reduce_sum>(sum);
  if (threadIdx.x == 0)
    *out = sum;
}

/* The statistics with a plain sum. */
struct SmoothOp {
  struct lane {
    SumExp<real> e;
    real sum;
  };
  struct total {
    SumExp<double> e;
    double sum;
  };
  template <class T> static __device__ __forceinline__ T none() {
    return T{SumExpOp::none<decltype(T::e)>(), 0};
  }
  template <class T> static __device__ __forceinline__ T join(const T &a, const T &b) {
    return {SumExpOp::join(a.e, b.e), a.sum + b.sum};
  }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    real a[V * U];
#pragma unroll
    for (int k = 0; k < V * U; k++)
      a[k] = x[k];
    return {SumExpOp::chunk<V, U>(x, 0, 0), tree_sum<V * U>(a)};
  }
  static __device__ __forceinline__ total widen(const lane &a) {
    return {SumExpOp::widen(a.e), (double)a.sum};
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    static_cast<total *>(out.values)[i] = a;
  }
};

/* stats: SmoothOp's totals if `smooth`, else Stats, or NULL if only the weights are needed. */
__global__ void __launch_bounds__(ROW_THREADS)
    loss_rows(const __grid_constant__ LossAt l, const void *stats, bool smooth, const double *sums,
              const double *total, LossSum *parts) {
  LossSum acc = {0, 0};
  int64_t step = (int64_t)gridDim.x * ROW_THREADS;
  for (int64_t row = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x; row < l.rows; row += step) {
    long long t = class_of(l, row);
    double w = t < 0 ? 0 : l.weight ? l.weight[t] : 1, loss = 0;
    if (t >= 0 && stats) {
      SmoothOp::total s = {};
      if (smooth)
        s = static_cast<const SmoothOp::total *>(stats)[row];
      else
        s.e = static_cast<const Stats *>(stats)[row];
      double x = (double)LOAD(static_cast<const stored *>(l.in)[row * l.n + t]);
      double lse = s.e.max - s.e.max == 0 ? log(s.e.sum) + s.e.max : (double)m_nan();
      loss = (1 - l.smoothing) * w * (lse - x);
      if (l.smoothing > 0)
        loss += l.smoothing / (double)l.n *
                ((total ? *total : (double)l.n) * lse - (sums ? sums[row] : s.sum));
    }
    if (l.none && stats)
      static_cast<stored *>(l.out)[row] = STORE((real)loss);
    acc.loss += loss;
    acc.weight += w;
  }
  if (!parts)
    return;
  acc = join_block<LossSumOp>(acc);
  if (threadIdx.x == 0)
    parts[blockIdx.x] = acc;
}

/* Sums the blocks' partial results: to out[0] as the loss, or to *weight. */
__global__ void __launch_bounds__(ROW_THREADS)
    loss_end(const LossSum *parts, int64_t n, bool mean, stored *out, double *weight) {
  LossSum acc = {0, 0};
  for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS)
    acc = LossSumOp::join(acc, parts[i]);
  acc = join_block<LossSumOp>(acc);
  if (threadIdx.x)
    return;
  if (out)
    *out = STORE((real)(mean ? acc.loss / acc.weight : acc.loss));
  else
    *weight = acc.weight;
}

static MothStatus loss_weights(const MothCudaRun *run, const MothLoss *l, double *total) {
  return moth_launch("cross_entropy", loss_total, dim3(1), dim3(ROW_THREADS), 0, run->stream,
                     l->weight, l->n, total);
}
static int64_t loss_blocks(const MothCudaRun *run, const MothLoss *l) {
  return moth_max64(1, moth_min64(moth_ceil_div(l->rows, ROW_THREADS),
                                  (int64_t)moth_cuda_props(run->device)->multiprocessors * 8));
}

MOTH_TYPED MothStatus cross_entropy(const MothCudaRun *run, const MothLoss *l) {
  const char *name = "cross_entropy";
  MothScratch stats, sums, parts, total;
  bool smooth = l->smoothing > 0 && !l->weight;
  int64_t blocks = loss_blocks(run, l);
  MOTH_TRY(stats.take(run->device,
                      (size_t)l->rows * (smooth ? sizeof(SmoothOp::total) : sizeof(Stats))));
  MOTH_TRY(parts.take(run->device, (size_t)blocks * sizeof(LossSum)));
  if (l->rows > 0)
    MOTH_TRY(smooth ? row_stats<SmoothOp>(name, run, l->in, l->rows, l->n, stats.p)
                    : row_stats<StatsOp>(name, run, l->in, l->rows, l->n, stats.p));
  if (l->smoothing > 0 && l->weight) {
    MOTH_TRY(sums.take(run->device, (size_t)l->rows * sizeof(double)));
    MOTH_TRY(total.take(run->device, sizeof(double)));
    MOTH_TRY(loss_weights(run, l, total.as<double>()));
    MOTH_TRY(moth_launch(name, loss_weighted_sums, dim3(grid_of(l->rows)), dim3(ROW_THREADS), 0,
                         run->stream, (const stored *)l->in, l->weight, sums.as<double>(), l->rows,
                         l->n));
  }
  MOTH_TRY(moth_launch(name, loss_rows, dim3((unsigned)blocks), dim3(ROW_THREADS), 0, run->stream,
                       loss_at(run, l), stats.p, smooth, sums.as<double>(), total.as<double>(),
                       l->none ? nullptr : parts.as<LossSum>()));
  if (l->none)
    return MOTH_OK;
  return moth_launch(name, loss_end, dim3(1), dim3(ROW_THREADS), 0, run->stream,
                     parts.as<LossSum>(), blocks, l->mean, (stored *)l->out, nullptr);
}

/* The gradient as a function of a row: of exp(x - max). */
struct LossGrad {
  static constexpr bool EXP = true;
  LossAt l;
  const double *total, *counted; /* sums of the weights of all classes, of the targets; or NULL */
  struct Row {
    real max, scale, even, at_target;
    long long t;
  };
  __device__ __forceinline__ Row open(int64_t row, real max, real sum) const {
    long long t = class_of(l, row);
    double g = l.grad[l.none ? row : 0];
    if (counted)
      g /= *counted;
    double even = g * l.smoothing / (double)l.n;
    double at = t < 0 ? 0 : g * (1 - l.smoothing) * (l.weight ? l.weight[t] : 1);
    sum = max - max == 0 ? sum : m_nan();
    real scale = (real)((at + even * (total ? *total : (double)l.n)) / (double)sum);
    return {max, scale, (real)even, (real)at, t};
  }
  __device__ __forceinline__ real at(const Row &r, real e, int64_t i) const {
    real less = total ? r.even * (real)l.weight[i < l.n ? i : 0] : r.even;
    real y = e * r.scale - less - (i == r.t ? r.at_target : (real)0);
    return r.t < 0 ? (real)0 : y;
  }
};

MOTH_TYPED MothStatus cross_entropy_backward(const MothCudaRun *run, const MothLoss *l) {
  const char *name = "cross_entropy_backward";
  MothScratch parts, sums;
  LossGrad f = {loss_at(run, l), nullptr, nullptr};
  MOTH_TRY(sums.take(run->device, 2 * sizeof(double)));
  double *sum = sums.as<double>();
  if (l->smoothing > 0 && l->weight) {
    MOTH_TRY(loss_weights(run, l, sum));
    f.total = sum;
  }
  if (l->mean) {
    int64_t blocks = loss_blocks(run, l);
    MOTH_TRY(parts.take(run->device, (size_t)blocks * sizeof(LossSum)));
    MOTH_TRY(moth_launch(name, loss_rows, dim3((unsigned)blocks), dim3(ROW_THREADS), 0, run->stream,
                         loss_at(run, l), nullptr, false, nullptr, nullptr, parts.as<LossSum>()));
    MOTH_TRY(moth_launch(name, loss_end, dim3(1), dim3(ROW_THREADS), 0, run->stream,
                         parts.as<LossSum>(), blocks, false, nullptr, sum + 1));
    f.counted = sum + 1;
  }
  MothSoftmax s = {};
  s.out = l->out;
  s.in = l->in;
  s.outer = l->rows;
  s.n = l->n;
  s.inner = 1;
  return soft_rows(name, f, run, &s);
}
#else
static MothStatus cross_entropy(const MothCudaRun *, const MothLoss *) {
  return moth_fail(MOTH_ERR_STATE, "cross_entropy is of float dtypes");
}
static MothStatus cross_entropy_backward(const MothCudaRun *run, const MothLoss *l) {
  return cross_entropy(run, l);
}
#endif
