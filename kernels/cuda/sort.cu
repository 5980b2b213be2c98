/* sort and topk along one dimension. Elements become unsigned keys of the same order (NaN above all numbers, -0 as
 * 0), complemented for descending order. Pairs of key and position are sorted, so that each of these gives the
 * results of kernels/cpu/sort.c:
 *   up to SHORT elements a row: bitonic networks in shared memory, several rows a block;
 *   topk with a small k: a row's k-th key is found digit by digit, and the elements up to it are sorted;
 *   else a radix sort of all rows at once, with the row's number above the key. */
#include "kernels/cuda/index_map.h"
#include "kernels/cuda/split.h"
#include "unpack/sort.h"

namespace {

enum { THREADS = 256, SHORT = 1024, PICK_THREADS = 512 };

/* How the bits of an element become a key. */
struct KeyRule {
  uint64_t sign, inf, flip;
  bool floats;
};
KeyRule key_rule(MothDType dtype, bool descending) {
  int64_t width = moth_dtype_size(dtype) * 8;
  uint64_t all = width == 64 ? ~(uint64_t)0 : ((uint64_t)1 << width) - 1;
  KeyRule r = {(uint64_t)1 << (width - 1), 0, descending ? all : 0, moth_dtype_is_float(dtype)};
  if (dtype == MOTH_FLOAT64)
    r.inf = 0x7ff0000000000000ull;
  else if (dtype == MOTH_FLOAT32)
    r.inf = 0x7f800000;
  else
    r.inf = dtype == MOTH_FLOAT16 ? 0x7c00 : 0x7f80;
  if (dtype == MOTH_BOOL || dtype == MOTH_UINT8)
    r.sign = 0;
  return r;
}

template <class T> struct KeyOf { typedef uint32_t type; };
template <> struct KeyOf<uint64_t> { typedef uint64_t type; };
template <class T, class U = typename KeyOf<T>::type>
__device__ __forceinline__ U key_of(T bits, const KeyRule &r) {
  T sign = (T)r.sign, key;
  if (r.floats) {
    T size = (T)(bits & (T)~sign);
    key = size == 0         ? sign
          : size > (T)r.inf ? (T) ~(T)0
          : (bits & sign)   ? (T)~bits
                            : (T)(bits | sign);
  } else {
    key = (T)(bits ^ sign);
  }
  return (U)(T)(key ^ (T)r.flip);
}

/* Rows of n elements `inner` apart, and the results, the first k of each. */
template <class T> struct Rows {
  const T *in;
  T *values;
  int64_t *pos;
  int64_t rows, n, k, base;
  WideDiv inner;
  KeyRule rule;

  __device__ __forceinline__ int64_t from(int64_t row, int64_t i, int64_t length) const {
    int64_t o = div_wide(row, inner);
    return (o * length + i) * inner.d + (row - o * inner.d);
  }
  __device__ __forceinline__ void put(int64_t row, int64_t i, int64_t at) const {
    int64_t to = from(row, i, k);
    values[to] = in[from(row, at, n)];
    pos[to] = at + base;
  }
};

template <class U>
__device__ __forceinline__ void order_pair(U *key, int *pos, int a, int b, bool up) {
  U x = key[a], y = key[b];
  int p = pos[a], q = pos[b];
  if ((x > y || (x == y && p > q)) == up) {
    key[a] = y;
    key[b] = x;
    pos[a] = q;
    pos[b] = p;
  }
}
/* Sorts each run of `size` (a power of 2) pairs. All threads of the block must call it; each has 2 pairs. */
template <class U> __device__ __forceinline__ void bitonic(U *key, int *pos, int size) {
  int t = (int)threadIdx.x;
  for (int run = 2; run <= size; run *= 2)
    for (int apart = run / 2; apart; apart /= 2) {
      int a = (t / apart) * apart * 2 + t % apart;
      __syncthreads();
      order_pair(key, pos, a, a + apart, run == size || !(a & run));
    }
  __syncthreads();
}

/* Short rows, `each` (a power of 2) slots a row. */
template <class T>
__global__ void __launch_bounds__(SHORT / 2) short_kernel(const Rows<T> r, int each) {
  typedef typename KeyOf<T>::type U;
  __shared__ U key[SHORT];
  __shared__ int pos[SHORT];
  int slots = 2 * (int)blockDim.x, lines = slots / each;
  int64_t first = (int64_t)blockIdx.x * lines;
  for (int s = (int)threadIdx.x; s < slots; s += (int)blockDim.x) {
    bool transposed = r.inner.d > 1; /* neighbours in memory belong to neighbouring rows */
    int line = transposed ? s % lines : s / each, i = transposed ? s / lines : s % each;
    bool there = first + line < r.rows && i < r.n;
    key[line * each + i] =
        there ? key_of<T>(r.in[r.from(first + line, i, r.n)], r.rule) : (U) ~(U)0;
    pos[line * each + i] = i;
  }
  bitonic(key, pos, each);
  for (int s = (int)threadIdx.x; s < slots; s += (int)blockDim.x) {
    bool transposed = r.inner.d > 1;
    int line = transposed ? s % lines : s / each, i = transposed ? s / lines : s % each;
    if (first + line < r.rows && i < r.k)
      r.put(first + line, i, pos[line * each + i]);
  }
}

/* The first k <= SHORT of a row of contiguous elements: a block each. */
template <class T> __global__ void __launch_bounds__(PICK_THREADS) pick_kernel(const Rows<T> r) {
  typedef typename KeyOf<T>::type U;
  enum { WARPS = PICK_THREADS / 32 };
  __shared__ U key[SHORT];
  __shared__ int pos[SHORT];
  __shared__ unsigned count[256];
  __shared__ unsigned before[WARPS];
  __shared__ unsigned taken;   /* length of the list */
  __shared__ unsigned digit;   /* of the k-th key */
  __shared__ unsigned lacking; /* number to take of the keys that agree with its digits so far */
  int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
  const T *in = r.in + (int64_t)blockIdx.x * r.n;
  U prefix = 0, known = 0; /* the k-th key's digits so far, and the mask of their bits */
  unsigned need = (unsigned)r.k;
  for (int shift = (int)sizeof(T) * 8 - 8; shift >= 0; shift -= 8) {
    if (t < 256)
      count[t] = 0;
    __syncthreads();
    for (int64_t i = t; i < r.n; i += PICK_THREADS) {
      U k = key_of<T>(in[i], r.rule);
      if ((k & known) == prefix)
        atomicAdd(&count[(unsigned)(k >> shift) & 255u], 1u);
    }
    __syncthreads();
    if (t == 0) {
      unsigned d = 0, left = need;
      while (count[d] < left)
        left -= count[d++];
      digit = d;
      lacking = left;
    }
    __syncthreads();
    prefix |= (U)digit << shift;
    known |= (U)255 << shift;
    need = lacking;
  }
  /* Take all keys below the k-th, in any order, and the first `need` equal to it. */
  unsigned equal = 0, below = (unsigned)r.k - need;
  if (t == 0)
    taken = 0;
  for (int s = t; s < SHORT; s += PICK_THREADS) {
    key[s] = (U) ~(U)0;
    pos[s] = 0x7fffffff;
  }
  __syncthreads();
  for (int64_t begin = 0; begin < r.n; begin += PICK_THREADS) {
    int64_t i = begin + t;
    U k = i < r.n ? key_of<T>(in[i], r.rule) : (U) ~(U)0;
    if (i < r.n && k < prefix) {
      unsigned at = atomicAdd(&taken, 1u);
      key[at] = k;
      pos[at] = (int)i;
    }
    bool same = i < r.n && k == prefix;
    if (equal < need && __syncthreads_or(same)) { /* all threads agree on both */
      unsigned bits = __ballot_sync(0xffffffffu, same);
      if (lane == 0)
        before[warp] = (unsigned)__popc(bits);
      __syncthreads();
      unsigned at = equal + (unsigned)__popc(bits & ((1u << lane) - 1));
      for (int w = 0; w < WARPS; w++) {
        equal += before[w];
        at += w < warp ? before[w] : 0;
      }
      if (same && at < need) {
        key[below + at] = k;
        pos[below + at] = (int)i;
      }
      __syncthreads();
    }
  }
  int size = 2;
  while (size < (int)r.k)
    size *= 2;
  bitonic(key, pos, size);
  for (int64_t i = t; i < r.k; i += PICK_THREADS)
    r.put(blockIdx.x, i, pos[i]);
}

/* Pairs in the order of memory; with `lines`, the row's number in the bits above the key. */
template <class T, class U>
__global__ void __launch_bounds__(THREADS)
    pairs_kernel(U *key, U *pos, const Rows<T> r, WideDiv length, bool lines) {
  int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (at >= r.rows * r.n)
    return;
  U k = (U)key_of<T>(r.in[at], r.rule);
  if (lines) {
    int64_t q = div_wide(at, r.inner), o = div_wide(q, length);
    uint64_t row = (uint64_t)(o * r.inner.d + (at - q * r.inner.d));
    k |= (U)(row << (sizeof(T) * 8 % 64));
  }
  key[at] = k;
  pos[at] = (U)at;
}
/* Replaces keys by row numbers. */
__global__ void __launch_bounds__(THREADS)
    lines_kernel(uint64_t *key, const uint64_t *pos, int64_t n, WideDiv inner, WideDiv length) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n)
    return;
  int64_t at = (int64_t)pos[i], q = div_wide(at, inner), o = div_wide(q, length);
  key[i] = (uint64_t)(o * inner.d + (at - q * inner.d));
}
template <class T, class U>
__global__ void __launch_bounds__(THREADS)
    put_kernel(const U *pos, const Rows<T> r, WideDiv length, WideDiv first) {
  int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (at >= r.rows * r.k)
    return;
  int64_t row = div_wide(at, first), i = at - row * r.k;
  int64_t q = div_wide((int64_t)pos[row * r.n + i], r.inner);
  r.put(row, i, q - div_wide(q, length) * r.n);
}

dim3 grid_of(int64_t n) {
  return dim3((unsigned)moth_ceil_div(n, THREADS));
}

template <class T, class U>
MothStatus radix_rows(const char *name, int device, cudaStream_t stream, const Rows<T> &r) {
  MothScratch workspace;
  MothPairs pairs, spare, sorted;
  int64_t n = r.rows * r.n;
  int bits = (int)sizeof(T) * 8, above = moth_key_bits(r.rows - 1);
  bool lines = r.rows > 1 && bits + above <= (int)sizeof(U) * 8;
  WideDiv length = wide_div(r.n);
  MOTH_TRY(moth_pairs_take(&workspace, device, n, sizeof(U) == 8, &pairs, &spare));
  MOTH_TRY(moth_launch(name, pairs_kernel<T, U>, grid_of(n), dim3(THREADS), 0, stream,
                       (U *)pairs.key, (U *)pairs.pos, r, length, lines));
  MOTH_TRY(
      moth_cuda_sort_pairs(device, stream, &pairs, &spare, lines ? bits + above : bits, &sorted));
  if (r.rows > 1 && !lines) { /* 64-bit elements: sort again, by row; stable within a row */
    MothPairs other = sorted.key == pairs.key ? spare : pairs;
    pairs = sorted;
    MOTH_TRY(moth_launch(name, lines_kernel, grid_of(n), dim3(THREADS), 0, stream,
                         (uint64_t *)pairs.key, (const uint64_t *)pairs.pos, n, r.inner, length));
    MOTH_TRY(moth_cuda_sort_pairs(device, stream, &pairs, &other, above, &sorted));
  }
  return moth_launch(name, put_kernel<T, U>, grid_of(r.rows * r.k), dim3(THREADS), 0, stream,
                     (const U *)sorted.pos, r, length, wide_div(r.k));
}

template <class T>
MothStatus sort_rows(const char *name, int device, cudaStream_t stream, MothDType dtype,
                     Rows<T> r) {
  if (r.n <= SHORT) {
    int each = 1;
    while (each < r.n)
      each *= 2;
    int threads = 32;
    while (threads < SHORT / 2 && (2 * threads < each || 2 * threads < r.rows * each))
      threads *= 2;
    return moth_launch(name, short_kernel<T>,
                       dim3((unsigned)moth_ceil_div(r.rows, 2 * threads / each)), dim3(threads), 0,
                       stream, r, each);
  }
  /* A block per row is slow for very long rows, unless there are many. */
  bool pick = r.k <= SHORT && r.k < r.n / 4 && r.n < 0x7fffffff &&
              (r.n <= 1 << 18 || r.rows >= moth_cuda_props(device)->multiprocessors);
  if (pick && r.inner.d == 1)
    return moth_launch(name, pick_kernel<T>, dim3((unsigned)r.rows), dim3(PICK_THREADS), 0, stream,
                       r);
  if (pick) {
    MothScratch transposed, values, pos;
    int64_t inner = r.inner.d, outer = r.rows / inner;
    MothSplit whole = {outer, r.n, inner}, part = {outer, r.k, inner};
    Rows<T> s = r;
    MOTH_TRY(transposed.take(device, (size_t)(r.rows * r.n) * sizeof(T)));
    MOTH_TRY(values.take(device, (size_t)(r.rows * r.k) * sizeof(T)));
    MOTH_TRY(pos.take(device, (size_t)(r.rows * r.k) * 8));
    MOTH_TRY(moth_cuda_transpose(device, dtype, transposed.p, r.in, whole, false));
    s.in = transposed.as<T>();
    s.values = values.as<T>();
    s.pos = pos.as<int64_t>();
    s.inner = wide_div(1);
    MOTH_TRY(moth_launch(name, pick_kernel<T>, dim3((unsigned)r.rows), dim3(PICK_THREADS), 0,
                         stream, s));
    MOTH_TRY(moth_cuda_transpose(device, dtype, r.values, values.p, part, true));
    return moth_cuda_transpose(device, MOTH_INT64, r.pos, pos.p, part, true);
  }
  int bits = (int)sizeof(T) * 8 + (r.rows > 1 ? moth_key_bits(r.rows - 1) : 0);
  return bits <= 32 && r.rows * r.n < 0xffffffff ? radix_rows<T, uint32_t>(name, device, stream, r)
                                                 : radix_rows<T, uint64_t>(name, device, stream, r);
}

/* k < 0: all. */
MothStatus run(MothCall *c, const MothTensor *self, int64_t dim, int64_t k, bool descending,
               int64_t base) {
  MothTensor *out = c->results[0].u.t;
  MothDType dtype = (MothDType)self->dtype;
  int d = (int)dim;
  cudaStream_t stream;
  MothOwned in;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  MothSplit s = moth_split(self, d);
  auto go = [&](auto t) {
    typedef decltype(t) T;
    Rows<T> r = {(const T *)in->data,
                 (T *)out->data,
                 (int64_t *)c->results[1].u.t->data,
                 s.outer * s.inner,
                 s.n,
                 k < 0 ? s.n : k,
                 base,
                 wide_div(s.inner),
                 key_rule(dtype, descending)};
    return sort_rows<T>(c->op->name, c->device.index, stream, dtype, r);
  };
  switch (moth_dtype_size(dtype)) {
  case 1:
    return go(uint8_t());
  case 2:
    return go(uint16_t());
  case 4:
    return go(uint32_t());
  default:
    return go(uint64_t());
  }
}

} // namespace

MothStatus moth_cuda_sort(MothCall *c) {
  MOTH_UNPACK_SORT(c)
  return run(c, self, dim, -1, descending, index_base);
}
MothStatus moth_cuda_topk(MothCall *c) {
  MOTH_UNPACK_TOPK(c)
  return run(c, self, dim, k, largest, index_base);
}
