/* Random fills, with the bits of kernels/cpu/random.c. */
#include <math.h>

#include "kernels/common/random.h"
#include "kernels/cuda/index_map.h"
#include "unpack/random.h"

namespace {

MothRandom job(int what, double a = 0, double b = 1, int64_t lo = 0, int64_t hi = 0) {
  return MothRandom{what, nullptr, 0, a, b, lo, hi, nullptr, nullptr};
}

/* Fills t; a strided t through a row-major temporary, so that the values do not depend on strides. */
MothStatus fill(const MothCall *c, MothRandom r, MothTensor *t, MothGenerator *g) {
  MothCudaRun run;
  MothOwned whole;
  MOTH_TRY(moth_cuda_run(c, &run));
  bool wide = t->dtype == MOTH_FLOAT64 && r.what != MOTH_RANDOM_BERNOULLI;
  int64_t words = r.what == MOTH_RANDOM_INTEGERS || wide ? 2 : 1;
  MothCudaPhilox p = moth_cuda_philox(t->device.index, g, t->numel * words);
  if (t->numel == 0)
    return MOTH_OK;
  if (!t->contiguous)
    MOTH_TRY(moth_tensor_new(t->ndim, t->shape, (MothDType)t->dtype, t->device, &whole.t));
  r.out = t->contiguous ? t->data : whole->data;
  r.n = t->numel;
  MOTH_TRY(moth_cuda_kernels[t->dtype]->random_fill(&run, &r, p));
  return t->contiguous ? MOTH_OK : moth_cuda_copy(t, whole);
}

} // namespace

MothStatus moth_cuda_rand(MothCall *c) {
  return fill(c, job(MOTH_RANDOM_UNIFORM), c->results[0].u.t, c->args[3].u.g);
}

MothStatus moth_cuda_randn(MothCall *c) {
  return fill(c, job(MOTH_RANDOM_NORMAL), c->results[0].u.t, c->args[3].u.g);
}

MothStatus moth_cuda_randint(MothCall *c) {
  MOTH_UNPACK_RANDINT(c)
  return fill(c, job(MOTH_RANDOM_INTEGERS, 0, 1, low, high), c->results[0].u.t, generator);
}

MothStatus moth_cuda_uniform_(MothCall *c) {
  MOTH_UNPACK_UNIFORM_(c)
  return fill(c, job(MOTH_RANDOM_UNIFORM, from, to), self, generator);
}

MothStatus moth_cuda_normal_(MothCall *c) {
  MOTH_UNPACK_NORMAL_(c)
  return fill(c, job(MOTH_RANDOM_NORMAL, mean, std), self, generator);
}

MothStatus moth_cuda_bernoulli_(MothCall *c) {
  MOTH_UNPACK_BERNOULLI_(c)
  return fill(c, job(MOTH_RANDOM_BERNOULLI, p), self, generator);
}

MothStatus moth_cuda_bernoulli(MothCall *c) {
  MOTH_UNPACK_BERNOULLI(c)
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  MothOwned p;
  MOTH_TRY(moth_cuda_run(c, &run));
  MothCudaPhilox philox = moth_cuda_philox(run.device, generator, out->numel * 2);
  MOTH_TRY(moth_cuda_contiguous(self, &p.t));
  MothRandom r = job(MOTH_RANDOM_BERNOULLI);
  r.out = out->data;
  r.n = out->numel;
  r.in = p->data;
  MOTH_TRY(moth_cuda_kernels[out->dtype]->bernoulli_each(&run, &r, philox));
  return moth_cuda_leave(c);
}

/* --- multinomial
 * --------------------------------------------------------------------------------
 */

namespace {

enum { DRAW_THREADS = 256 };

struct Draw {
  double *weight; /* rows of `classes`; those that were drawn become 0 */
  const double *u;
  int64_t *out;
  int64_t classes, samples;
  bool replacement;
  int64_t base;
  MothFault *fault;
  int op;
};

/* A block for each row. A thread keeps the sum of a range of the classes; a draw finds the range, and
 * in it the class, by subtracting weights in order, as on the CPU. */
__global__ void __launch_bounds__(DRAW_THREADS) multinomial_kernel(Draw d) {
  __shared__ double sum[DRAW_THREADS];
  __shared__ long long positive[DRAW_THREADS];
  __shared__ long long drawn;
  __shared__ bool bad;
  int t = (int)threadIdx.x;
  double *p = d.weight + (int64_t)blockIdx.x * d.classes;
  const double *u = d.u + (int64_t)blockIdx.x * d.samples;
  int64_t *out = d.out + (int64_t)blockIdx.x * d.samples;
  int64_t size = (d.classes + DRAW_THREADS - 1) / DRAW_THREADS;
  int64_t begin = size * t < d.classes ? size * t : d.classes;
  int64_t end = begin + size < d.classes ? begin + size : d.classes;
  if (t == 0)
    bad = false;
  __syncthreads();
  double mine = 0;
  long long count = 0;
  for (int64_t k = begin; k < end; k++) {
    double x = p[k];
    if (!(x >= 0 && x <= 1.7976931348623157e308)) {
      moth_fault_number(d.fault, d.op, MOTH_FAULT_WEIGHT, x);
      bad = true;
    }
    mine += x;
    count += x > 0;
  }
  sum[t] = mine;
  positive[t] = count;
  __syncthreads();
  for (int64_t i = 0; i < d.samples; i++) {
    if (t == 0) {
      double total = 0;
      long long left = 0;
      for (int k = 0; k < DRAW_THREADS; k++) {
        total += sum[k];
        left += positive[k];
      }
      if (i == 0 && !bad && (total <= 0 || (!d.replacement && left < d.samples))) {
        moth_fault(d.fault, d.op, MOTH_FAULT_SAMPLES, -1, d.samples, 0, left);
        bad = true;
      }
      double x = u[i] * total;
      int at = 0, last = 0;
      for (; at < DRAW_THREADS; at++) {
        if (positive[at])
          last = at;
        if (x < sum[at])
          break;
        x -= sum[at];
      }
      if (at == DRAW_THREADS) { /* rounding */
        at = last;
        x = sum[at];
      }
      int64_t from = size * at < d.classes ? size * at : d.classes;
      int64_t to = from + size < d.classes ? from + size : d.classes, k = from, choice = from;
      for (; k < to; k++) {
        if (p[k] > 0)
          choice = k;
        if (x < p[k])
          break;
        x -= p[k];
      }
      drawn = bad ? 0 : choice;
      out[i] = drawn + d.base;
    }
    __syncthreads();
    if (!d.replacement && drawn >= begin && drawn < end) {
      p[drawn] = 0;
      mine = 0;
      for (int64_t k = begin; k < end; k++)
        mine += p[k];
      sum[t] = mine;
      positive[t]--;
    }
    __syncthreads();
  }
}

} // namespace

MothStatus moth_cuda_multinomial(MothCall *c) {
  MOTH_UNPACK_MULTINOMIAL(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned w, u;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  int64_t classes = self->shape[self->ndim - 1], rows = classes ? self->numel / classes : 0;
  int device = out->device.index;
  MOTH_TRY(moth_tensor_new(self->ndim, self->shape, MOTH_FLOAT64, self->device, &w.t));
  MOTH_TRY(moth_cuda_copy(w, self));
  MOTH_TRY(moth_tensor_new(1, &out->numel, MOTH_FLOAT64, self->device, &u.t));
  MOTH_TRY(fill(c, job(MOTH_RANDOM_UNIFORM), u, generator));
  Draw d = {(double *)w->data,
            (const double *)u->data,
            (int64_t *)out->data,
            classes,
            num_samples,
            replacement,
            index_base,
            moth_cuda_fault(device),
            c->op->id};
  MOTH_TRY(moth_launch("multinomial", multinomial_kernel, dim3((unsigned)rows), dim3(DRAW_THREADS),
                       0, stream, d));
  return moth_cuda_leave(c);
}

/* --- randperm
 * -----------------------------------------------------------------------------------
 */

/* The CPU swaps elements i and h(i) <= i for i from n - 1 down to 1. Before swap i position k has the element that
 * the last swap into it, the smallest m > i with h(m) = k, moved there from position m; or k itself if there was no
 * such swap. So with the swaps of each position in order, a thread finds an element by following swaps: at most
 * log(n) of them are expected. */
namespace {

enum { PERM_THREADS = 256 };

template <class U>
__global__ void __launch_bounds__(PERM_THREADS)
    swaps_kernel(U *target, U *number, const uint64_t *random, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * PERM_THREADS + threadIdx.x;
  if (i >= n)
    return;
  uint64_t high = __umul64hi(random[i], (uint64_t)(i + 1));
  uint64_t low = random[i] * (uint64_t)(i + 1);
  target[i] = (U)(high << 1 | low >> 63);
  number[i] = (U)i;
}
/* first[k]: the smallest m > k with h(m) = k; next[i]: the smallest m > i with h(m) = h(i); -1: none. */
template <class U>
__global__ void __launch_bounds__(PERM_THREADS)
    chains_kernel(int64_t *first, int64_t *next, const U *target, const U *number, int64_t n) {
  int64_t s = (int64_t)blockIdx.x * PERM_THREADS + threadIdx.x;
  if (s >= n)
    return;
  int64_t k = (int64_t)target[s], i = (int64_t)number[s];
  int64_t after = s + 1 < n && (int64_t)target[s + 1] == k ? (int64_t)number[s + 1] : -1;
  next[i] = after;
  if (s == 0 || (int64_t)target[s - 1] != k)
    first[k] = i == k ? after : i;
}
__global__ void __launch_bounds__(PERM_THREADS)
    perm_kernel(int64_t *out, const int64_t *first, const int64_t *next, const uint64_t *random,
                int64_t n, int64_t base) {
  int64_t i = (int64_t)blockIdx.x * PERM_THREADS + threadIdx.x;
  if (i >= n)
    return;
  int64_t at = next[i];
  if (at < 0) {
    uint64_t low = random[i] * (uint64_t)(i + 1);
    at = (int64_t)(__umul64hi(random[i], (uint64_t)(i + 1)) << 1 | low >> 63);
  } else {
    while (first[at] >= 0)
      at = first[at];
  }
  out[i] = at + base;
}

template <class U>
MothStatus permute(int device, cudaStream_t stream, int64_t *out, const uint64_t *random, int64_t n,
                   int64_t base) {
  MothScratch workspace, links;
  MothPairs pairs, spare, sorted;
  dim3 grid((unsigned)moth_ceil_div(n, PERM_THREADS)), block(PERM_THREADS);
  MOTH_TRY(moth_pairs_take(&workspace, device, n, sizeof(U) == 8, &pairs, &spare));
  MOTH_TRY(links.take(device, (size_t)n * 16));
  int64_t *first = links.as<int64_t>(), *next = first + n;
  MOTH_CUDA_TRY(cudaMemsetAsync(first, 0xff, (size_t)n * 8, stream));
  MOTH_TRY(moth_launch("randperm", swaps_kernel<U>, grid, block, 0, stream, (U *)pairs.key,
                       (U *)pairs.pos, random, n));
  MOTH_TRY(moth_cuda_sort_pairs(device, stream, &pairs, &spare, moth_key_bits(n - 1), &sorted));
  MOTH_TRY(moth_launch("randperm", chains_kernel<U>, grid, block, 0, stream, first, next,
                       (const U *)sorted.key, (const U *)sorted.pos, n));
  return moth_launch("randperm", perm_kernel, grid, block, 0, stream, out, (const int64_t *)first,
                     (const int64_t *)next, random, n, base);
}

} // namespace

MothStatus moth_cuda_randperm(MothCall *c) {
  MOTH_UNPACK_RANDPERM(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned random, whole;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  MOTH_TRY(moth_tensor_new(1, &n, MOTH_INT64, out->device, &random.t));
  MOTH_TRY(fill(c, job(MOTH_RANDOM_INTEGERS, 0, 1, 0, INT64_MAX), random, generator));
  if (n == 0)
    return MOTH_OK;
  MOTH_TRY(moth_tensor_new(1, &n, MOTH_INT64, out->device, &whole.t));
  const uint64_t *numbers = (const uint64_t *)random->data;
  int64_t *to = (int64_t *)whole->data;
  int on = out->device.index;
  MOTH_TRY(n < 0xffffffff ? permute<uint32_t>(on, stream, to, numbers, n, index_base)
                          : permute<uint64_t>(on, stream, to, numbers, n, index_base));
  return moth_cuda_copy(out, whole);
}
