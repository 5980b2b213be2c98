/* Shared by the structured kernels: packs of elements (one memory access each), shuffles of values of any size, and
 * joins of the values of a group, warp or block of threads in a fixed order. */

template <class T, int V> struct alignas(sizeof(T) * V) Pack { T v[V]; };

/* Elements of a 16-byte access. */
constexpr int PACK = 16 / (int)sizeof(stored);

template <int V> __device__ __forceinline__ void load_pack(const void *p, real *x) {
  Pack<stored, V> q = *static_cast<const Pack<stored, V> *>(p);
#pragma unroll
  for (int k = 0; k < V; k++)
    x[k] = LOAD(q.v[k]);
}
/* *p = q in one access: nvcc splits some stores of packs. */
template <class T, int V> __device__ __forceinline__ void put_pack(void *p, const Pack<T, V> &q) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof q == 16) {
    uint4 w;
    memcpy(&w, &q, sizeof w);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
                 "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
                 : "memory");
    return;
  }
  if constexpr (sizeof q == 8) {
    unsigned long long w;
    memcpy(&w, &q, sizeof w);
    asm volatile("st.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "l"(w) : "memory");
    return;
  }
#endif
  *static_cast<Pack<T, V> *>(p) = q;
}
template <int V> __device__ __forceinline__ void store_pack(void *p, const real *x) {
  Pack<stored, V> q;
#pragma unroll
  for (int k = 0; k < V; k++)
    q.v[k] = STORE(x[k]);
  put_pack(p, q);
}

/* x of lane (lane xor m). All 32 lanes must call it. */
template <class W, class T> __device__ __forceinline__ T shuffle_words(T x, int m) {
  constexpr int N = (int)((sizeof(T) + sizeof(W) - 1) / sizeof(W));
  W w[N] = {};
  memcpy(w, &x, sizeof x);
#pragma unroll
  for (int i = 0; i < N; i++)
    w[i] = __shfl_xor_sync(0xffffffffu, w[i], m);
  memcpy(&x, w, sizeof x);
  return x;
}
template <class T> __device__ __forceinline__ T shuffle_xor(T x, int m) {
  if constexpr (sizeof(T) % 8 == 0)
    return shuffle_words<unsigned long long>(x, m);
  else
    return shuffle_words<unsigned>(x, m);
}

/* The join over groups of `width` (a power of 2) neighbouring lanes, returned in all of them. */
template <class Op, class T> __device__ __forceinline__ T join_group(T x, int width) {
  for (int m = width / 2; m; m /= 2)
    x = Op::join(x, shuffle_xor(x, m));
  return x;
}

/* The join over a block of at most 32 warps; all threads must call it, and all get the result. */
template <class Op, class T> __device__ __forceinline__ T join_block(T x) {
  __shared__ T part[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  x = join_group<Op>(x, 32);
  if (warps == 1)
    return x;
  __syncthreads(); /* the result of the last join has been read */
  if (lane == 0)
    part[warp] = x;
  __syncthreads();
  x = lane < warps ? part[lane] : Op::template none<T>();
  return join_group<Op>(x, 32);
}

/* The join over the threads of a block whose numbers agree in the lowest `shift` bits; the first of them gets it.
 * buf: workspace of a value for each thread; the results are left at its beginning. */
template <class Op, class T> __device__ __forceinline__ T join_columns(T x, T *buf, int shift) {
  int y = (int)threadIdx.x >> shift;
  __syncthreads();
  buf[threadIdx.x] = x;
  for (int h = (int)blockDim.x >> shift >> 1; h; h >>= 1) {
    __syncthreads();
    if (y < h)
      buf[threadIdx.x] = x = Op::join(x, buf[threadIdx.x + (h << shift)]);
  }
  return x;
}

/* The exponent of the largest (smallest) power of 2 not above (below) x, up to a limit. */
static inline int log2_floor(int64_t x, int most) {
  int p = 0;
  while (p < most && (int64_t)2 << p <= x)
    p++;
  return p;
}
static inline int log2_ceil(int64_t x, int most) {
  int p = 0;
  while (p < most && (int64_t)1 << p < x)
    p++;
  return p;
}
static inline unsigned grid_of(int64_t blocks) {
  const int64_t most = 1 << 30; /* larger grids are walked by loops in the kernels */
  return (unsigned)(blocks < most ? blocks : most);
}
