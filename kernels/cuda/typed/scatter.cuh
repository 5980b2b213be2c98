/* Sums by key. Sorted pairs are cut into chunks; a thread has a chunk for one column (or LANES of them). A run of
 * equal keys inside one chunk is added to its target at once; parts of longer runs go to `head` (the run began in an
 * earlier chunk) or `tail` (it continues), which the thread of the run's first chunk adds in a second launch. So
 * every target has one writer and sums have one order. */
enum {
  SEGMENT_THREADS = 256,
  SEGMENT_CHUNK = 32,
  SEGMENT_UNROLL = 4,
  SEGMENT_LANES = sizeof(stored) == 1 ? 8 : 16 / (int)sizeof(stored)
};

template <int V> struct alignas(sizeof(stored) * V) SegmentLanes { stored v[V]; };
template <int V> struct SegmentSums { accum v[V]; };

/* In units of V elements. */
template <class U> struct SegmentPlan {
  const U *key, *pos;
  int64_t n, columns, inner, keys, positions;
};

template <int V>
__device__ __forceinline__ void segment_add(SegmentLanes<V> *out, const SegmentSums<V> &sum) {
  SegmentLanes<V> x = *out;
#pragma unroll
  for (int k = 0; k < V; k++) {
    accum y = (accum)LOAD(x.v[k]) + sum.v[k];
#if MOTH_REAL_KIND == 5
    x.v[k] = (stored)(y != 0);
#else
    x.v[k] = STORE((real)y);
#endif
  }
  *out = x;
}

template <int V, class U>
__global__ void __launch_bounds__(SEGMENT_THREADS)
    segment_sums(SegmentLanes<V> *out, const SegmentLanes<V> *src, const SegmentPlan<U> s,
                 SegmentSums<V> *head, SegmentSums<V> *tail) {
  int64_t at = (int64_t)blockIdx.x * SEGMENT_THREADS + threadIdx.x;
  int64_t chunk = at / s.columns, column = at - chunk * s.columns, begin = chunk * SEGMENT_CHUNK;
  if (begin >= s.n)
    return;
  int64_t o = column / s.inner, c = column - o * s.inner;
  int64_t end = begin + SEGMENT_CHUNK < s.n ? begin + SEGMENT_CHUNK : s.n;
  out += o * s.keys * s.inner + c;
  src += o * s.positions * s.inner + c;
  U key = s.key[begin];
  bool earlier = begin > 0 && s.key[begin - 1] == key;
  SegmentSums<V> sum = {};
  if (key >= (U)s.keys)
    return;
  for (int64_t j = begin; j < end; j += SEGMENT_UNROLL) {
    U k[SEGMENT_UNROLL];
    SegmentLanes<V> x[SEGMENT_UNROLL];
#pragma unroll
    for (int u = 0; u < SEGMENT_UNROLL; u++) {
      k[u] = j + u < end ? s.key[j + u] : (U)s.keys;
      if (k[u] < (U)s.keys)
        x[u] = src[(int64_t)s.pos[j + u] * s.inner];
    }
#pragma unroll
    for (int u = 0; u < SEGMENT_UNROLL; u++) {
      if (k[u] >= (U)s.keys)
        continue; /* the end, or pairs to be left out, which come last */
      if (k[u] != key) {
        if (earlier)
          head[at] = sum;
        else
          segment_add(out + (int64_t)key * s.inner, sum);
        earlier = false;
        key = k[u];
        sum = SegmentSums<V>{};
      }
#pragma unroll
      for (int l = 0; l < V; l++)
        sum.v[l] += (accum)LOAD(x[u].v[l]);
    }
  }
  if (earlier)
    head[at] = sum;
  else if (end < s.n && s.key[end] == key)
    tail[at] = sum;
  else
    segment_add(out + (int64_t)key * s.inner, sum);
}

template <int V, class U>
__global__ void __launch_bounds__(SEGMENT_THREADS)
    segment_joins(SegmentLanes<V> *out, const SegmentPlan<U> s, const SegmentSums<V> *head,
                  const SegmentSums<V> *tail) {
  int64_t at = (int64_t)blockIdx.x * SEGMENT_THREADS + threadIdx.x;
  int64_t chunk = at / s.columns, column = at - chunk * s.columns;
  int64_t begin = chunk * SEGMENT_CHUNK, end = begin + SEGMENT_CHUNK;
  if (end >= s.n)
    return;
  U key = s.key[end - 1];
  if (key >= (U)s.keys || s.key[end] != key || (begin > 0 && s.key[begin - 1] == key))
    return;
  int64_t lo = end, hi = s.n; /* key[lo] == key; key[hi], if there is one, is not */
  while (hi - lo > 1) {
    int64_t mid = lo + (hi - lo) / 2;
    if (s.key[mid] == key)
      lo = mid;
    else
      hi = mid;
  }
  int64_t last = lo / SEGMENT_CHUNK;
  SegmentSums<V> sum = tail[at];
#pragma unroll 4
  for (int64_t i = chunk + 1; i <= last; i++) {
    SegmentSums<V> x = head[i * s.columns + column];
#pragma unroll
    for (int l = 0; l < V; l++)
      sum.v[l] += x.v[l];
  }
  int64_t o = column / s.inner, c = column - o * s.inner;
  segment_add(out + (o * s.keys + (int64_t)key) * s.inner + c, sum);
}

template <int V, class U>
static MothStatus segment_run(const MothCudaRun *run, const MothScatter *s) {
  typedef SegmentLanes<V> Lanes;
  typedef SegmentSums<V> Sums;
  SegmentPlan<U> p = {(const U *)s->pairs->key,
                      (const U *)s->pairs->pos,
                      s->pairs->n,
                      s->outer * s->inner / V,
                      s->inner / V,
                      s->keys,
                      s->positions};
  int64_t threads = moth_ceil_div(p.n, SEGMENT_CHUNK) * p.columns;
  dim3 grid((unsigned)moth_ceil_div(threads, SEGMENT_THREADS));
  MothScratch parts;
  if (p.n > SEGMENT_CHUNK)
    MOTH_TRY(parts.take(run->device, (size_t)threads * 2 * sizeof(Sums)));
  Sums *head = parts.as<Sums>(), *tail = head ? head + threads : nullptr;
  MOTH_TRY(moth_launch("segment_sums", segment_sums<V, U>, grid, dim3(SEGMENT_THREADS), 0,
                       run->stream, (Lanes *)s->out, (const Lanes *)s->src, p, head, tail));
  if (p.n <= SEGMENT_CHUNK)
    return MOTH_OK;
  return moth_launch("segment_joins", segment_joins<V, U>, grid, dim3(SEGMENT_THREADS), 0,
                     run->stream, (Lanes *)s->out, p, (const Sums *)head, (const Sums *)tail);
}

/* By pairs in the order of their keys. */
MOTH_TYPED MothStatus scatter_sorted(const MothCudaRun *run, const MothScatter *s) {
  if (s->pairs->n == 0 || s->outer * s->inner == 0)
    return MOTH_OK;
  bool lanes = s->inner % SEGMENT_LANES == 0 &&
               ((uintptr_t)s->out | (uintptr_t)s->src) % (SEGMENT_LANES * sizeof(stored)) == 0;
  if (s->pairs->wide)
    return lanes ? segment_run<SEGMENT_LANES, uint64_t>(run, s) : segment_run<1, uint64_t>(run, s);
  return lanes ? segment_run<SEGMENT_LANES, uint32_t>(run, s) : segment_run<1, uint32_t>(run, s);
}

/* The same by atomic sums: pairs in any order, a thread for each element of the source. *done is false, and nothing
 * was queued, if the dtype has none or they are not allowed. */
#if MOTH_STORED == 0 && MOTH_REAL_KIND <= 3
template <class T> __device__ __forceinline__ void segment_add_atomic(T *p, T x) {
  if constexpr (sizeof(T) == 8 && MOTH_REAL_KIND == 3)
    atomicAdd(reinterpret_cast<unsigned long long *>(p), (unsigned long long)x);
  else if constexpr (sizeof(T) >= 4)
    atomicAdd(p, x);
}
template <class U>
__global__ void __launch_bounds__(SEGMENT_THREADS)
    segment_atomics(stored *out, const stored *src, const SegmentPlan<U> s, WideDiv columns,
                    WideDiv inner) {
  int64_t at = (int64_t)blockIdx.x * SEGMENT_THREADS + threadIdx.x;
  int64_t j = div_wide(at, columns), column = at - j * columns.d;
  if (j >= s.n || s.key[j] >= (U)s.keys)
    return;
  int64_t o = div_wide(column, inner), c = column - o * inner.d;
  segment_add_atomic(out + (o * s.keys + (int64_t)s.key[j]) * s.inner + c,
                     src[(o * s.positions + (int64_t)s.pos[j]) * s.inner + c]);
}
template <class U>
static MothStatus segment_atomic_run(const MothCudaRun *run, const MothScatter *s) {
  SegmentPlan<U> p = {(const U *)s->pairs->key,
                      (const U *)s->pairs->pos,
                      s->pairs->n,
                      s->outer * s->inner,
                      s->inner,
                      s->keys,
                      s->positions};
  return moth_launch("segment_atomics", segment_atomics<U>,
                     dim3((unsigned)moth_ceil_div(p.n * p.columns, SEGMENT_THREADS)),
                     dim3(SEGMENT_THREADS), 0, run->stream, (stored *)s->out,
                     (const stored *)s->src, p, wide_div(p.columns), wide_div(p.inner));
}
#endif
MOTH_TYPED MothStatus scatter_atomic(const MothCudaRun *run, const MothScatter *s, bool *done) {
  *done = false;
#if MOTH_STORED == 0 && MOTH_REAL_KIND <= 3
  if (sizeof(stored) < 4 || (MOTH_IS_FLOAT && moth_cuda_deterministic()))
    return MOTH_OK;
  *done = true;
  if (s->pairs->n > 0 && s->outer * s->inner > 0)
    return s->pairs->wide ? segment_atomic_run<uint64_t>(run, s)
                          : segment_atomic_run<uint32_t>(run, s);
#endif
  (void)run, (void)s;
  return MOTH_OK;
}
