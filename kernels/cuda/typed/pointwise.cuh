/* One function of up to a few elements, over whole tensors.
 *
 * A flat kernel for operands that are row-major or one number: 16 bytes a thread and access, UNROLL
 * accesses in flight. A strided one for everything else, whose positions are found by division with
 * constants made on the host (fastdiv.h). */
enum { BLOCK = 256, UNROLL = 2 };

template <class T, int V> struct alignas(sizeof(T) * V) Lane { T v[V]; };

/* An operand of the flat kernel: p[i * stride], or bits where p is NULL. */
struct FlatIn {
  const void *p;
  int stride;
  unsigned long long bits[2];
};
template <int N> struct Flat {
  void *out;
  FlatIn in[N];
};

template <class T> __device__ __forceinline__ T from_bits(const unsigned long long *bits) {
  T x;
  memcpy(&x, bits, sizeof x);
  return x;
}

template <class T, int V> struct Lanes { Lane<T, V> u[UNROLL]; };

template <class T, int V>
__device__ __forceinline__ Lanes<T, V> load_lanes(const FlatIn &in, int64_t first, int64_t nvec) {
  Lanes<T, V> r;
  if (in.stride) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
      if (first + u * BLOCK < nvec)
        r.u[u] = static_cast<const Lane<T, V> *>(in.p)[first + u * BLOCK];
  } else {
    T x = in.p ? *static_cast<const T *>(in.p) : from_bits<T>(in.bits);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
      for (int k = 0; k < V; k++)
        r.u[u].v[k] = x;
  }
  return r;
}

template <class T> __device__ __forceinline__ T load_one(const FlatIn &in, int64_t i) {
  return in.p ? static_cast<const T *>(in.p)[i * in.stride] : from_bits<T>(in.bits);
}

template <int V, class Out, class F, class... L>
__device__ __forceinline__ void store_lanes(const F &f, void *out, int64_t first, int64_t nvec,
                                            const L &...in) {
#pragma unroll
  for (int u = 0; u < UNROLL; u++)
    if (first + u * BLOCK < nvec) {
      Lane<Out, V> r;
#pragma unroll
      for (int k = 0; k < V; k++)
        r.v[k] = f(in.u[u].v[k]...);
      static_cast<Lane<Out, V> *>(out)[first + u * BLOCK] = r;
    }
}

template <int V, class F, class Out, class... In, size_t... I>
__device__ __forceinline__ void flat_body(const F &f, const Flat<(int)sizeof...(In)> &a, int64_t n,
                                          std::index_sequence<I...>) {
  int64_t nvec = n / V, first = (int64_t)blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
  store_lanes<V, Out>(f, a.out, first, nvec, load_lanes<In, V>(a.in[I], first, nvec)...);
  int64_t tail = nvec * V + threadIdx.x;
  if (blockIdx.x == 0 && tail < n)
    static_cast<Out *>(a.out)[tail] = f(load_one<In>(a.in[I], tail)...);
}

template <int V, class F, class Out, class... In>
__global__ void __launch_bounds__(BLOCK)
    pointwise_flat(F f, Flat<(int)sizeof...(In)> a, int64_t n) {
  flat_body<V, F, Out, In...>(f, a, n, std::index_sequence_for<In...>());
}

template <int N> struct Strided {
  int ndim;
  FastDiv size[MOTH_MAX_DIMS];
  int64_t stride[N + 1][MOTH_MAX_DIMS]; /* bytes; 0 is the output */
  char *out;
  FlatIn in[N];
};

template <class T> __device__ __forceinline__ T load_at(const FlatIn &in, int64_t at) {
  return in.p ? *reinterpret_cast<const T *>(static_cast<const char *>(in.p) + at)
              : from_bits<T>(in.bits);
}

template <class F, class Out, class... In, size_t... I>
__device__ __forceinline__ void strided_body(const F &f, const Strided<(int)sizeof...(In)> &a,
                                             unsigned n, std::index_sequence<I...>) {
  unsigned i = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < UNROLL; u++, i += BLOCK) {
    if (i >= n)
      return;
    int64_t at[sizeof...(In) + 1] = {};
    unsigned rest = i;
    for (int d = a.ndim - 1; d >= 0; d--) {
      unsigned q = div_fast(rest, a.size[d]), r = rest - q * a.size[d].d;
#pragma unroll
      for (int k = 0; k <= (int)sizeof...(In); k++)
        at[k] += (int64_t)r * a.stride[k][d];
      rest = q;
    }
    *reinterpret_cast<Out *>(a.out + at[0]) = f(load_at<In>(a.in[I], at[I + 1])...);
  }
}

template <class F, class Out, class... In>
__global__ void __launch_bounds__(BLOCK)
    pointwise_strided(F f, const __grid_constant__ Strided<(int)sizeof...(In)> a, unsigned n) {
  strided_body<F, Out, In...>(f, a, n, std::index_sequence_for<In...>());
}

template <class Out, class... In> constexpr int lane_width() {
  size_t largest = sizeof(Out);
  ((largest = sizeof(In) > largest ? sizeof(In) : largest), ...);
  return (int)(16 / largest);
}

/* Runs f over the operands of p: flat where it can. */
template <class F, class Out, class... In>
static MothStatus pointwise(const char *name, const MothPointwise *p, const F &f) {
  constexpr int N = sizeof...(In), V = lane_width<Out, In...>();
  const size_t size[] = {sizeof(Out), sizeof(In)...};
  const MothIter *it = p->it;
  if (it->numel == 0)
    return MOTH_OK;
  FlatIn in[N];
  bool flat = it->ndim <= 1;
  for (int k = 0; k <= N; k++) {
    int64_t stride = it->ndim == 1 ? it->stride[k][0] : 0;
    if (it->ndim == 0 && k == 0)
      stride = (int64_t)size[0];
    flat = flat && (stride == (int64_t)size[k] || (stride == 0 && k > 0)) &&
           (stride == 0 || (uintptr_t)it->data[k] % (size[k] * V) == 0);
    if (k == 0)
      continue;
    in[k - 1] = {it->data[k], stride ? 1 : 0, {0, 0}};
    memcpy(in[k - 1].bits, p->number[k], 16);
  }
  if (flat) {
    Flat<N> a;
    a.out = it->data[0];
    memcpy(a.in, in, sizeof in);
    int64_t blocks = moth_ceil_div(it->numel, (int64_t)BLOCK * UNROLL * V);
    return moth_launch(name, pointwise_flat<V, F, Out, In...>, dim3((unsigned)blocks), dim3(BLOCK),
                       0, p->stream, f, a, it->numel);
  }
  /* Parts of less than 2^31 elements: a range of the outermost dimensions at a time. */
  const int64_t limit = (int64_t)1 << 31;
  int split = 0; /* dimensions outside of it are walked here */
  int64_t inner = it->numel;
  while (inner >= limit)
    inner /= it->shape[split++];
  int64_t outer = it->numel / inner, index[MOTH_MAX_DIMS] = {0};
  Strided<N> a;
  a.ndim = it->ndim - split;
  for (int d = 0; d < a.ndim; d++) {
    a.size[d] = fast_div((unsigned)it->shape[split + d]);
    for (int k = 0; k <= N; k++)
      a.stride[k][d] = it->stride[k][split + d];
  }
  for (int64_t o = 0; o < outer; o++) {
    int64_t at[N + 1] = {0};
    for (int d = 0; d < split; d++)
      for (int k = 0; k <= N; k++)
        at[k] += index[d] * it->stride[k][d];
    a.out = it->data[0] + at[0];
    for (int k = 0; k < N; k++) {
      a.in[k] = in[k];
      if (in[k].p)
        a.in[k].p = static_cast<const char *>(in[k].p) + at[k + 1];
    }
    int64_t blocks = moth_ceil_div(inner, BLOCK * UNROLL);
    MOTH_TRY(moth_launch(name, pointwise_strided<F, Out, In...>, dim3((unsigned)blocks),
                         dim3(BLOCK), 0, p->stream, f, a, (unsigned)inner));
    for (int d = split - 1; d >= 0 && ++index[d] == it->shape[d]; d--)
      index[d] = 0;
  }
  return MOTH_OK;
}
