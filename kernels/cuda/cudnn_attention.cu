/* Attention by cuDNN: the graph of matrix products, masking and softmax that its flash-attention engines
 * recognise, for float16 and bfloat16 without an additive mask or dropout. Intermediate tensors are virtual.
 * Keys, and values in backward, are passed as their transposes.
 *
 * Backward: the fast engines sum the queries' gradient in a float32 tensor of ours by atomics; where results must
 * be the same in every run, the graph without it is used. Graphs that cuDNN refuses go to
 * kernels/cuda/typed/attention.cuh. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cudnn.h"

#ifdef __CUDACC__
#include <float.h>
extern "C" {
#include "core/log.h"
}

namespace {

enum { Q = 1, K, V, O, STATS, GRAD, DQ, DK, DV, DQ_SUM, SCALE, LOWEST, ONE, IDS };

struct Shape {
  int64_t size[4], stride[4];
};
Shape rows(int64_t a, int64_t b, int64_t c, int64_t d) {
  return {{a, b, c, d}, {b * c * d, c * d, d, 1}};
}
Shape transposed(const Shape &s) { /* swaps the last two dimensions */
  return {{s.size[0], s.size[1], s.size[3], s.size[2]},
          {s.stride[0], s.stride[1], s.stride[3], s.stride[2]}};
}

/* A graph under construction: owns its tensors and operations. */
struct Graph {
  typedef cudnnBackendDescriptor_t T;
  enum { MOST = 128 };
  T all[MOST], ops[MOST];
  int n = 0, nops = 0;
  int64_t next = 100; /* ids of virtual tensors */
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;

  ~Graph() {
    while (n > 0)
      dnn.cudnnBackendDestroyDescriptor(all[--n]);
  }
  T keep(Desc *d) {
    d->finish();
    if (status == CUDNN_STATUS_SUCCESS)
      status = d->status;
    return all[n++] = d->take();
  }
  /* id 0: a virtual tensor. */
  T tensor(int64_t id, cudnnDataType_t type, const Shape &s, bool number = false,
           bool reordered = false) {
    Desc d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool yes = true;
    cudnnBackendTensorReordering_t order = CUDNN_TENSOR_REORDERING_F16x16;
    moth_dnn_tensor(&d, id ? id : next++, type, 16, s.size, s.stride);
    if (!id)
      d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (number)
      d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (reordered)
      d.set(CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1, &order);
    return keep(&d);
  }
  T number(int64_t id) { return tensor(id, CUDNN_DATA_FLOAT, {{1, 1, 1, 1}, {1, 1, 1, 1}}, true); }

  void operation(Desc *d) { ops[nops++] = keep(d); }
  static void give(Desc *d, cudnnBackendAttributeName_t name, T t) {
    if (t)
      d->set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &t);
  }
  /* y = mode(x, b, t); axis is for GEN_INDEX. */
  T pointwise(cudnnPointwiseMode_t mode, T x, T b, T t, T y,
              cudnnDataType_t compute = CUDNN_DATA_FLOAT, int64_t axis = -1) {
    Desc what(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    what.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    what.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (axis >= 0)
      what.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    give(&op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, keep(&what));
    give(&op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    give(&op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    give(&op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    give(&op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    operation(&op);
    return y;
  }
  T matmul(T a, T b, T c) {
    Desc what(CUDNN_BACKEND_MATMUL_DESCRIPTOR), op(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    what.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    give(&op, CUDNN_ATTR_OPERATION_MATMUL_DESC, keep(&what));
    give(&op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    give(&op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    give(&op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    operation(&op);
    return c;
  }
  T reduce(cudnnReduceTensorOp_t how, T x, T y) {
    Desc what(CUDNN_BACKEND_REDUCTION_DESCRIPTOR), op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    what.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    what.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    give(&op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, keep(&what));
    give(&op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    give(&op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    operation(&op);
    return y;
  }
  T reshape(T x, T y) {
    Desc op(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    give(&op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    give(&op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    operation(&op);
    return y;
  }

  /* Replaces scores of keys after the query (column number above the row's) by `lowest`. */
  T causal(T s, const Shape &shape, T lowest) {
    T row = pointwise(CUDNN_POINTWISE_GEN_INDEX, s, nullptr, nullptr,
                      tensor(0, CUDNN_DATA_INT32, shape), CUDNN_DATA_INT32, 2);
    T col = pointwise(CUDNN_POINTWISE_GEN_INDEX, s, nullptr, nullptr,
                      tensor(0, CUDNN_DATA_INT32, shape), CUDNN_DATA_INT32, 3);
    T seen = pointwise(CUDNN_POINTWISE_CMP_GE, row, col, nullptr,
                       tensor(0, CUDNN_DATA_BOOLEAN, shape), CUDNN_DATA_BOOLEAN);
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, s, lowest, seen,
                     tensor(0, CUDNN_DATA_FLOAT, shape));
  }

  bool finish(Desc *graph, cudnnHandle_t handle) {
    if (graph->status == CUDNN_STATUS_SUCCESS)
      graph->status = status;
    graph->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    graph->set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, nops, ops);
    return graph->finish();
  }
};

Shape heads(const MothHeads &h, int64_t b, int64_t n, int64_t rows, int64_t cols) {
  return {{b, n, rows, cols}, {h.batch, h.head, h.row, 1}};
}

void forward_graph(Graph *g, const MothAttention *a, cudnnDataType_t io) {
  typedef Graph::T T;
  const cudnnDataType_t real = CUDNN_DATA_FLOAT;
  Shape scores = rows(a->B, a->H, a->L, a->S), line = rows(a->B, a->H, a->L, 1);
  T q = g->tensor(Q, io, heads(a->q, a->B, a->H, a->L, a->E));
  T k = g->tensor(K, io, transposed(heads(a->k, a->B, a->K, a->S, a->E)));
  T v = g->tensor(V, io, heads(a->v, a->B, a->K, a->S, a->V));
  T o = g->tensor(O, io, heads(a->o, a->B, a->H, a->L, a->V));
  T s = g->matmul(q, k, g->tensor(0, real, scores));
  s = g->pointwise(CUDNN_POINTWISE_MUL, s, g->number(SCALE), nullptr, g->tensor(0, real, scores));
  if (a->causal)
    s = g->causal(s, scores, g->number(LOWEST));
  T max = g->reduce(CUDNN_REDUCE_TENSOR_MAX, s, g->tensor(0, real, line));
  s = g->pointwise(CUDNN_POINTWISE_SUB, s, max, nullptr, g->tensor(0, real, scores));
  s = g->pointwise(CUDNN_POINTWISE_EXP, s, nullptr, nullptr, g->tensor(0, real, scores));
  T sum = g->reduce(CUDNN_REDUCE_TENSOR_ADD, s, g->tensor(0, real, line));
  T log = g->pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, nullptr, g->tensor(0, real, line));
  g->pointwise(CUDNN_POINTWISE_ADD, max, log, nullptr, g->tensor(STATS, real, line));
  T p = g->pointwise(CUDNN_POINTWISE_DIV, s, sum, nullptr, g->tensor(0, io, scores));
  g->matmul(p, v, o);
}

/* to = x' y, summed over the heads that share a head of `to`. */
void group_product(Graph *g, const MothAttention *a, Graph::T x, Graph::T y, Graph::T to,
                   int64_t cols, cudnnDataType_t io) {
  if (a->H == a->K) {
    g->matmul(x, y, to);
    return;
  }
  Graph::T each = g->matmul(x, y, g->tensor(0, io, rows(a->B, a->H, a->S, cols)));
  g->reduce(CUDNN_REDUCE_TENSOR_ADD, each, to);
}

void backward_graph(Graph *g, const MothAttention *a, cudnnDataType_t io, bool any_order) {
  typedef Graph::T T;
  const cudnnDataType_t real = CUDNN_DATA_FLOAT;
  Shape scores = rows(a->B, a->H, a->L, a->S), line = rows(a->B, a->H, a->L, 1);
  Shape keys = heads(a->k, a->B, a->K, a->S, a->E), queries = heads(a->q, a->B, a->H, a->L, a->E);
  Shape across = transposed(scores);
  T q = g->tensor(Q, io, queries), k = g->tensor(K, io, transposed(keys));
  T v = g->tensor(V, io, transposed(heads(a->v, a->B, a->K, a->S, a->V)));
  T o = g->tensor(O, io, heads(a->o, a->B, a->H, a->L, a->V));
  T grad = g->tensor(GRAD, io, heads(a->grad, a->B, a->H, a->L, a->V));
  T dq = g->tensor(DQ, io, heads(a->dq, a->B, a->H, a->L, a->E));
  T dk = g->tensor(DK, io, heads(a->dk, a->B, a->K, a->S, a->E));
  T dv = g->tensor(DV, io, heads(a->dv, a->B, a->K, a->S, a->V));
  T scale = g->number(SCALE), one = g->number(ONE);

  T delta = g->pointwise(CUDNN_POINTWISE_MUL, grad, o, nullptr,
                         g->tensor(0, real, rows(a->B, a->H, a->L, a->V)));
  delta = g->reduce(CUDNN_REDUCE_TENSOR_ADD, delta, g->tensor(0, real, line));
  delta = g->pointwise(CUDNN_POINTWISE_MUL, delta, one, nullptr, g->tensor(0, real, line));

  T s = g->matmul(q, k, g->tensor(0, real, scores));
  s = g->pointwise(CUDNN_POINTWISE_MUL, s, scale, nullptr, g->tensor(0, real, scores));
  if (a->causal)
    s = g->causal(s, scores, g->number(LOWEST));
  s = g->pointwise(CUDNN_POINTWISE_SUB, s, g->tensor(STATS, real, line), nullptr,
                   g->tensor(0, real, scores));
  T p = g->pointwise(CUDNN_POINTWISE_EXP, s, nullptr, nullptr, g->tensor(0, real, scores));
  group_product(g, a, g->reshape(p, g->tensor(0, io, across)), grad, dv, a->V, io);

  T d = g->matmul(grad, v, g->tensor(0, real, scores));
  d = g->pointwise(CUDNN_POINTWISE_MUL, d, one, nullptr, g->tensor(0, real, scores));
  d = g->pointwise(CUDNN_POINTWISE_SUB, d, delta, nullptr, g->tensor(0, real, scores));
  d = g->pointwise(CUDNN_POINTWISE_MUL, d, p, nullptr, g->tensor(0, real, scores));
  d = g->pointwise(CUDNN_POINTWISE_MUL, d, scale, nullptr, g->tensor(0, real, scores));
  group_product(g, a, g->reshape(d, g->tensor(0, io, across)), q, dk, a->E, io);

  T straight = g->reshape(k, g->tensor(0, real, keys));
  if (!any_order) {
    g->matmul(d, straight, dq);
    return;
  }
  T sum = g->tensor(DQ_SUM, real, rows(a->B, a->H, a->L, a->E), false, true);
  g->matmul(d, straight, sum);
  g->pointwise(CUDNN_POINTWISE_IDENTITY, sum, nullptr, nullptr, dq);
}

void make_plan(MothDnnSession *session, const MothAttention *a, cudnnDataType_t io, bool backward,
               bool any_order, MothDnnPlan *p) {
  Graph g;
  Desc graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (backward)
    backward_graph(&g, a, io, any_order);
  else
    forward_graph(&g, a, io);
  if (!g.finish(&graph, session->handle))
    moth_log_write("cuda", "cuDNN refuses an attention: %s", dnn.cudnnGetErrorString(graph.status));
  else if (!session->choose(graph, {false, false, any_order}, p))
    moth_log_write("cuda", "cuDNN has no engine for attention%s of %lld heads of %lld columns",
                   backward ? "'s gradients" : "", (long long)a->H, (long long)a->E);
}

/* Whether rows begin at multiples of 16 bytes and no stride is 0. */
bool fits(const MothHeads &h, int64_t cols) {
  return cols % 8 == 0 && h.row % 8 == 0 && h.head % 8 == 0 && h.batch % 8 == 0 && h.row > 0 &&
         h.head > 0 && h.batch > 0 && (uintptr_t)h.data % 16 == 0;
}

} // namespace

MothStatus moth_cudnn_attention(const MothCudaRun *run, MothDType dtype, const MothAttention *a,
                                bool backward, bool *done) {
  *done = false;
  const MothHeads *wide[5] = {&a->v, &a->o, &a->grad, &a->dv, nullptr};
  const MothHeads *narrow[5] = {&a->q, &a->k, &a->dq, &a->dk, nullptr};
  if ((backward && a->grad_lse) || (uintptr_t)a->lse % 16 || !moth_dnn_open())
    return MOTH_OK;
  for (int i = 0; i < (backward ? 4 : 2); i++)
    if (!fits(*wide[i], a->V) || !fits(*narrow[i], a->E))
      return MOTH_OK;
  bool any_order = backward && !moth_cuda_deterministic();
  MothDnnKey key = {{2, run->device, dtype, backward, a->causal, any_order, a->B, a->H, a->K, a->L,
                     a->S, a->E, a->V}};
  int n = 13;
  for (int i = 0; i < (backward ? 4 : 2); i++)
    for (const MothHeads *h : {wide[i], narrow[i]}) {
      key.number[n++] = h->batch;
      key.number[n++] = h->head;
      key.number[n++] = h->row;
    }
  alignas(16) float scale = (float)a->scale;
  alignas(16) float lowest = -FLT_MAX, one = 1;
  MothScratch sum;
  if (any_order) {
    size_t bytes = (size_t)(a->B * a->H * a->L * a->E) * sizeof(float);
    MOTH_TRY(sum.take(run->device, bytes));
    MOTH_CUDA_TRY(cudaMemsetAsync(sum.p, 0, bytes, run->stream));
  }
  const void *data[IDS] = {};
  data[Q] = a->q.data, data[K] = a->k.data, data[V] = a->v.data, data[O] = a->o.data;
  data[STATS] = a->lse, data[SCALE] = &scale;
  if (a->causal)
    data[LOWEST] = &lowest;
  if (backward) {
    data[GRAD] = a->grad.data, data[ONE] = &one, data[DQ_SUM] = sum.p;
    data[DQ] = a->dq.data, data[DK] = a->dk.data, data[DV] = a->dv.data;
  }
  int64_t ids[IDS];
  const void *used[IDS];
  int count = 0;
  for (int i = 1; i < IDS; i++)
    if (data[i]) {
      ids[count] = i;
      used[count++] = data[i];
    }
  MothDnnSession session(run->device, run->stream);
  MOTH_TRY(session.status);
  MothDnnPlan *p = session.find(key);
  if (!p->used)
    make_plan(&session, a, moth_dnn_type(dtype), backward, any_order, p);
  p->used = true;
  if (!p->plan)
    return MOTH_OK;
  MOTH_TRY(session.run(run->device, p, count, ids, used));
  *done = true;
  return MOTH_OK;
}
#else
MothStatus moth_cudnn_attention(const MothCudaRun *, MothDType, const MothAttention *, bool,
                                bool *done) {
  *done = false;
  return MOTH_OK;
}
#endif
