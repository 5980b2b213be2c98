/* Pooling: a thread for every result. The backward kernels gather for every pixel from the windows that contain it,
 * in order: no atomics, the same bits every time. */
#if MOTH_IS_FLOAT
struct PoolSpan {
  int64_t begin, end, count; /* positions inside the image; the divisor of a mean */
};

__device__ __forceinline__ PoolSpan pool_span(const MothPool &p, int i, int64_t o) {
  int64_t in = i ? p.w : p.h, out = i ? p.ow : p.oh;
  if (p.adaptive) {
    int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    return {begin, end, end - begin};
  }
  int64_t d = p.dilation[i], first = o * p.stride[i] - p.padding[i];
  int64_t past = first + d * (p.kernel[i] - 1) + 1;
  PoolSpan s;
  s.begin = first < 0 ? first + (-first + d - 1) / d * d : first;
  s.end = past < in ? past : in;
  int64_t padded = (past < in + p.padding[i] ? past : in + p.padding[i]) - first;
  s.count = p.divisor ? (i ? 1 : p.divisor) : p.include_pad ? padded : s.end - s.begin;
  return s;
}

/* The windows [from, to] along a dimension that may contain position x. */
__device__ __forceinline__ void pool_windows(const MothPool &p, int i, int64_t x, int64_t *from,
                                             int64_t *to) {
  int64_t in = i ? p.w : p.h, out = i ? p.ow : p.oh;
  if (p.adaptive) {
    *from = x * out / in;
    *to = ((x + 1) * out + in - 1) / in - 1;
    return;
  }
  int64_t s = p.stride[i], reach = p.dilation[i] * (p.kernel[i] - 1), at = x + p.padding[i];
  *from = at <= reach ? 0 : (at - reach + s - 1) / s;
  *to = at / s < out - 1 ? at / s : out - 1;
}
__device__ __forceinline__ bool pool_has(const MothPool &p, int i, int64_t x, int64_t o) {
  return p.adaptive || (x + p.padding[i] - o * p.stride[i]) % p.dilation[i] == 0;
}

__global__ void __launch_bounds__(256)
    max_pool_kernel(const __grid_constant__ MothPool p, const stored *in, stored *out, int64_t *at,
                    int64_t base, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  PoolSpan y = pool_span(p, 0, i / p.ow % p.oh), x = pool_span(p, 1, i % p.ow);
  int64_t dy = p.adaptive ? 1 : p.dilation[0], dx = p.adaptive ? 1 : p.dilation[1];
  const stored *plane = in + i / (p.oh * p.ow) * p.h * p.w;
  real best = -(real)__builtin_inf();
  int64_t where = y.begin * p.w + x.begin;
  for (int64_t r = y.begin; r < y.end; r += dy)
    for (int64_t c = x.begin; c < x.end; c += dx) {
      real v = LOAD(plane[r * p.w + c]);
      if (v > best || v != v) {
        best = v;
        where = r * p.w + c;
      }
    }
  out[i] = STORE(best);
  at[i] = where + base;
}
MOTH_TYPED MothStatus max_pool(const MothCudaRun *run, const MothPoolPlanes *q) {
  const MothPool *p = q->shape;
  int64_t n = p->planes * p->oh * p->ow;
  return moth_launch("max_pool", max_pool_kernel, dim3((unsigned)moth_ceil_div(n, 256)), dim3(256),
                     0, run->stream, *p, (const stored *)q->in, (stored *)q->out, q->positions,
                     q->base, n);
}

/* Results first have their positions checked, by the same threads. */
__global__ void __launch_bounds__(256)
    max_pool_backward_kernel(const __grid_constant__ MothPool p, const stored *g, const int64_t *at,
                             int64_t base, stored *out, int64_t n, MothFault *fault, int op) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t pooled = p.oh * p.ow;
  for (int64_t k = i; k < p.planes * pooled; k += n)
    moth_index(fault, op, 0, -1, at[k], base, p.h * p.w);
  int64_t x = i % p.w, y = i / p.w % p.h, plane = i / (p.w * p.h), want = y * p.w + x + base;
  int64_t y0, y1, x0, x1;
  pool_windows(p, 0, y, &y0, &y1);
  pool_windows(p, 1, x, &x0, &x1);
  accum sum = 0;
  for (int64_t oy = y0; oy <= y1; oy++)
    for (int64_t ox = x0; ox <= x1; ox++) {
      int64_t k = plane * pooled + oy * p.ow + ox;
      if (at[k] == want)
        sum += (accum)LOAD(g[k]);
    }
  out[i] = STORE((real)sum);
}
MOTH_TYPED MothStatus max_pool_backward(const MothCudaRun *run, const MothPoolPlanes *q) {
  const MothPool *p = q->shape;
  int64_t n = p->planes * p->h * p->w;
  return moth_launch("max_pool_backward", max_pool_backward_kernel,
                     dim3((unsigned)moth_ceil_div(n, 256)), dim3(256), 0, run->stream, *p,
                     (const stored *)q->in, (const int64_t *)q->positions, q->base,
                     (stored *)q->out, n, moth_cuda_fault(run->device), run->op);
}

__global__ void __launch_bounds__(256)
    avg_pool_kernel(const __grid_constant__ MothPool p, const stored *in, stored *out, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  PoolSpan y = pool_span(p, 0, i / p.ow % p.oh), x = pool_span(p, 1, i % p.ow);
  const stored *plane = in + i / (p.oh * p.ow) * p.h * p.w;
  accum sum = 0;
  for (int64_t r = y.begin; r < y.end; r++)
    for (int64_t c = x.begin; c < x.end; c++)
      sum += (accum)LOAD(plane[r * p.w + c]);
  out[i] = STORE((real)(sum / (accum)(y.count * x.count)));
}
MOTH_TYPED MothStatus avg_pool(const MothCudaRun *run, const MothPoolPlanes *q) {
  const MothPool *p = q->shape;
  int64_t n = p->planes * p->oh * p->ow;
  return moth_launch("avg_pool", avg_pool_kernel, dim3((unsigned)moth_ceil_div(n, 256)), dim3(256),
                     0, run->stream, *p, (const stored *)q->in, (stored *)q->out, n);
}

__global__ void __launch_bounds__(256)
    avg_pool_backward_kernel(const __grid_constant__ MothPool p, const stored *g, stored *out,
                             int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t x = i % p.w, y = i / p.w % p.h, plane = i / (p.w * p.h), y0, y1, x0, x1;
  pool_windows(p, 0, y, &y0, &y1);
  pool_windows(p, 1, x, &x0, &x1);
  accum sum = 0;
  for (int64_t oy = y0; oy <= y1; oy++) {
    PoolSpan sy = pool_span(p, 0, oy);
    for (int64_t ox = x0; ox <= x1; ox++) {
      if (!pool_has(p, 0, y, oy) || !pool_has(p, 1, x, ox))
        continue;
      int64_t count = sy.count * pool_span(p, 1, ox).count;
      sum += (accum)LOAD(g[(plane * p.oh + oy) * p.ow + ox]) / (accum)count;
    }
  }
  out[i] = STORE((real)sum);
}
MOTH_TYPED MothStatus avg_pool_backward(const MothCudaRun *run, const MothPoolPlanes *q) {
  const MothPool *p = q->shape;
  int64_t n = p->planes * p->h * p->w;
  return moth_launch("avg_pool_backward", avg_pool_backward_kernel,
                     dim3((unsigned)moth_ceil_div(n, 256)), dim3(256), 0, run->stream, *p,
                     (const stored *)q->in, (stored *)q->out, n);
}
#else
static MothStatus max_pool(const MothCudaRun *, const MothPoolPlanes *) {
  return moth_fail(MOTH_ERR_TYPE, "not implemented for integers");
}
static MothStatus max_pool_backward(const MothCudaRun *, const MothPoolPlanes *) {
  return moth_fail(MOTH_ERR_TYPE, "not implemented for integers");
}
static MothStatus avg_pool(const MothCudaRun *, const MothPoolPlanes *) {
  return moth_fail(MOTH_ERR_TYPE, "not implemented for integers");
}
static MothStatus avg_pool_backward(const MothCudaRun *, const MothPoolPlanes *) {
  return moth_fail(MOTH_ERR_TYPE, "not implemented for integers");
}
#endif
