/* kv_write_ and paged_attention: a block of threads has one query of one head and goes through its keys in pieces, with an
 * online softmax. float16 and bfloat16 are read as float32. Table, lengths and counts are read on the host first, to
 * check them: a call waits for the device, and cannot be captured into a graph. */
#include "kernels/common/paged.h"

#include <math.h>

#include <vector>

#include "kernels/cuda/formulas.h"
#include "kernels/cuda/util.h"
#include "unpack/paged.h"

#include "kernels/math_bits.h"

#include "kernels/blocks.h"

namespace {

enum { THREADS = 128 };

/* T: R, or uint8_t for blocks of Q8_0. */
template <class R, class T> struct Paged {
  MothPaged p;
  const int64_t *sequence, *position; /* per row of query */
  const R *q, *sinks;                 /* sinks: (H), or NULL */
  const T *k, *v;
  R *out;
};

template <class R> __device__ R element(const R *pool, int64_t row, int64_t n, int64_t d) {
  return pool[row * n + d];
}
template <class R> __device__ R element(const uint8_t *pool, int64_t row, int64_t n, int64_t d) {
  const uint8_t *b = pool + row * moth_q8_0_bytes(n) + d / 32 * 34;
  return (R)m_block_half(b) * (R)(int8_t)b[2 + d % 32];
}

template <class R, class T> __global__ void __launch_bounds__(THREADS) paged_kernel(Paged<R, T> a) {
  __shared__ R score[THREADS];
  __shared__ R best, total;
  const MothPaged &p = a.p;
  int64_t row = blockIdx.x, h = blockIdx.y, head = h / (p.H / p.K);
  int64_t s = a.sequence[row], keys = a.position[row] + 1;
  const R *q = a.q + (row * p.H + h) * p.D;
  R *out = a.out + (row * p.H + h) * p.V;
  for (int64_t d = threadIdx.x; d < p.V; d += THREADS)
    out[d] = 0;
  R top = -INFINITY, sum = 0; /* the same in all threads */
  for (int64_t from = keys > p.window ? keys - p.window : 0; from < keys; from += THREADS) {
    int64_t t = from + threadIdx.x;
    R x = -INFINITY;
    if (t < keys) {
      int64_t block = p.table[s * p.M + t / p.P] - p.base;
      int64_t k = (block * p.K + head) * p.P + t % p.P;
      x = 0;
      for (int64_t d = 0; d < p.D; d++)
        x += q[d] * element<R>(a.k, k, p.D, d);
      x *= (R)p.scale;
    }
    score[threadIdx.x] = x;
    __syncthreads();
    int n = keys - from < THREADS ? (int)(keys - from) : THREADS;
    if (threadIdx.x == 0) {
      R m = top;
      for (int i = 0; i < n; i++)
        m = score[i] > m ? score[i] : m;
      best = m;
    }
    __syncthreads();
    R m = best, by = top == -INFINITY ? (R)0 : exp(top - m);
    score[threadIdx.x] = t < keys ? exp(x - m) : (R)0;
    __syncthreads();
    if (threadIdx.x == 0) {
      R y = 0;
      for (int i = 0; i < n; i++)
        y += score[i];
      total = y;
    }
    for (int64_t d = threadIdx.x; d < p.V; d += THREADS) {
      R y = out[d] * by;
      for (int i = 0; i < n; i++) {
        int64_t at = from + i, block = p.table[s * p.M + at / p.P] - p.base;
        y += score[i] * element<R>(a.v, (block * p.K + head) * p.P + at % p.P, p.V, d);
      }
      out[d] = y;
    }
    __syncthreads();
    sum = sum * by + total;
    top = m;
  }
  if (a.sinks)
    sum += exp(a.sinks[h] - top);
  for (int64_t d = threadIdx.x; d < p.V; d += THREADS)
    out[d] = sum > 0 ? out[d] / sum : (R)0;
}

template <class R, class T> struct Call {
  static constexpr MothDType DTYPE = sizeof(R) == 8 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  static constexpr MothDType POOL = sizeof(T) == 1 ? MOTH_UINT8 : DTYPE;
  MothCudaRun run;
  MothOwned table, lengths, counts, q, k, v, out, rows, sinks;

  MothStatus read(const MothTensor *t, MothOwned *own, std::vector<int64_t> *host) {
    MOTH_TRY(moth_cuda_contiguous_as(t, MOTH_INT64, &own->t));
    host->resize((size_t)t->numel);
    if (t->numel == 0)
      return MOTH_OK;
    return moth_cuda_memcpy(run.device, host->data(), own->t->data,
                            (size_t)t->numel * sizeof(int64_t), cudaMemcpyDeviceToHost);
  }

  MothStatus go(MothCall *c) {
    MOTH_UNPACK_PAGED_ATTENTION(c)
    MothTensor *result = c->results[0].u.t;
    std::vector<int64_t> table_host, lengths_host, counts_host, row_host;
    MOTH_TRY(moth_cuda_run(c, &run));
    if (moth_cuda_is_capturing(run.stream))
      return moth_fail(MOTH_ERR_STATE, "lengths are read on the host: this cannot be captured into "
                                       "a CUDA graph");
    Paged<R, T> a = {};
    a.p.N = query->shape[0], a.p.H = query->shape[1], a.p.D = query->shape[2];
    a.p.B = k_pool->shape[0], a.p.K = k_pool->shape[1], a.p.P = k_pool->shape[2];
    a.p.V = result->shape[2], a.p.S = table->shape[0], a.p.M = table->shape[1];
    a.p.base = index_base;
    a.p.window = window.tag == MOTH_V_NONE ? INT64_MAX : window.u.i;
    a.p.scale = scale.tag == MOTH_V_NONE ? 1 / sqrt((double)a.p.D) : moth_as_double(scale);
    MOTH_TRY(read(table, &this->table, &table_host));
    MOTH_TRY(read(lengths, &this->lengths, &lengths_host));
    MOTH_TRY(read(counts, &this->counts, &counts_host));
    MOTH_TRY(moth_paged_check(&a.p, table_host.data(), lengths_host.data(), counts_host.data()));
    if (result->numel == 0)
      return MOTH_OK;
    row_host.resize((size_t)(2 * a.p.N));
    int64_t row = 0;
    for (int64_t s = 0; s < a.p.S; s++)
      for (int64_t i = 0; i < counts_host[(size_t)s]; i++, row++) {
        row_host[(size_t)row] = s;
        row_host[(size_t)(a.p.N + row)] = lengths_host[(size_t)s] - counts_host[(size_t)s] + i;
      }
    int64_t n = 2 * a.p.N;
    MOTH_TRY(moth_tensor_new(1, &n, MOTH_INT64, query->device, &rows.t));
    MOTH_TRY(moth_cuda_memcpy(run.device, rows->data, row_host.data(), (size_t)n * sizeof(int64_t),
                              cudaMemcpyHostToDevice));
    MOTH_TRY(moth_cuda_contiguous_as(query, DTYPE, &q.t));
    if (sinks) {
      MOTH_TRY(moth_cuda_contiguous_as(sinks, DTYPE, &this->sinks.t));
      a.sinks = reinterpret_cast<const R *>(this->sinks->data);
    }
    MOTH_TRY(moth_cuda_contiguous_as(k_pool, POOL, &k.t));
    MOTH_TRY(moth_cuda_contiguous_as(v_pool, POOL, &v.t));
    MOTH_TRY(moth_tensor_new(3, result->shape, DTYPE, result->device, &out.t));
    a.p.table = reinterpret_cast<const int64_t *>(this->table->data);
    a.sequence = reinterpret_cast<const int64_t *>(rows->data);
    a.position = a.sequence + a.p.N;
    a.q = reinterpret_cast<const R *>(q->data);
    a.k = reinterpret_cast<const T *>(k->data);
    a.v = reinterpret_cast<const T *>(v->data);
    a.out = reinterpret_cast<R *>(out->data);
    MOTH_TRY(moth_launch(c->op->name, paged_kernel<R, T>, dim3((unsigned)a.p.N, (unsigned)a.p.H),
                         dim3(THREADS), 0, run.stream, a));
    return moth_cuda_copy(result, out);
  }
};

} // namespace

MothStatus moth_cuda_paged_attention(MothCall *c) {
  bool blocks = c->args[1].u.t->dtype == MOTH_UINT8;
  if (c->args[0].u.t->dtype == MOTH_FLOAT64)
    return blocks ? Call<double, uint8_t>().go(c) : Call<double, double>().go(c);
  return blocks ? Call<float, uint8_t>().go(c) : Call<float, float>().go(c);
}

namespace {

/* T: any type of the elements' size. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    write_kernel(T *pool, const T *tokens, const int64_t *slots, int64_t n, int64_t K, int64_t P,
                 int64_t D, int64_t places, int64_t base, int op, MothFault *f) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n)
    return;
  int64_t d = i % D, h = i / D % K, token = i / D / K;
  long long at = moth_index(f, op, MOTH_FAULT_INDEX, -1, slots[token], base, places);
  if (at >= 0)
    pool[((at / P * K + h) * P + at % P) * D + d] = tokens[i];
}

/* A thread makes a block of Q8_0; n blocks. */
__global__ void __launch_bounds__(THREADS)
    pack_kernel(uint8_t *pool, const float *tokens, const int64_t *slots, int64_t n, int64_t K,
                int64_t P, int64_t blocks, int64_t places, int64_t base, int op, MothFault *f) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n)
    return;
  int64_t d = i % blocks, h = i / blocks % K, token = i / blocks / K;
  long long at = moth_index(f, op, MOTH_FAULT_INDEX, -1, slots[token], base, places);
  if (at >= 0)
    m_pack_q8_0(tokens + i * 32, pool + (((at / P * K + h) * P + at % P) * blocks + d) * 34);
}

MothStatus write_tokens(MothCall *c, cudaStream_t stream, MothTensor *pool,
                        const MothTensor *tokens, const int64_t *slots, int64_t base) {
  MothOwned in, own;
  if (tokens->numel == 0)
    return MOTH_OK;
  bool pack = pool->dtype == MOTH_UINT8;
  MOTH_TRY(moth_cuda_contiguous_as(tokens, pack ? MOTH_FLOAT32 : (MothDType)pool->dtype, &in.t));
  MOTH_TRY(moth_cuda_contiguous(pool, &own.t));
  int64_t K = pool->shape[1], P = pool->shape[2], D = pool->shape[3], n = tokens->numel;
  int64_t places = pool->shape[0] * P;
  dim3 grid((unsigned)moth_ceil_div(n, (int64_t)THREADS));
  MothFault *fault = moth_cuda_fault(c->device.index);
#define WRITE(T)                                                                                   \
  MOTH_TRY(moth_launch(c->op->name, write_kernel<T>, grid, dim3(THREADS), 0, stream,               \
                       (T *)own->data, (const T *)in->data, slots, n, K, P, D, places, base,       \
                       (int)c->op->id, fault))
  switch (moth_itemsize(pool)) {
  case 1:
    n /= 32;
    MOTH_TRY(moth_launch(c->op->name, pack_kernel,
                         dim3((unsigned)moth_ceil_div(n, (int64_t)THREADS)), dim3(THREADS), 0,
                         stream, (uint8_t *)own->data, (const float *)in->data, slots, n, K, P,
                         D / 34, places, base, (int)c->op->id, fault));
    break;
  case 2:
    WRITE(uint16_t);
    break;
  case 4:
    WRITE(uint32_t);
    break;
  default:
    WRITE(uint64_t);
  }
  return own.t == pool ? MOTH_OK : moth_cuda_copy(pool, own);
}

} // namespace

MothStatus moth_cuda_kv_write_(MothCall *c) {
  MOTH_UNPACK_KV_WRITE_(c)
  cudaStream_t stream;
  MothOwned at;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  MOTH_TRY(moth_cuda_contiguous_as(slots, MOTH_INT64, &at.t));
  const int64_t *where = reinterpret_cast<const int64_t *>(at->data);
  MOTH_TRY(write_tokens(c, stream, k_pool, k, where, index_base));
  MOTH_TRY(write_tokens(c, stream, v_pool, v, where, index_base));
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_rope(MothCall *c) {
  return c->op->decomposed(c);
}
