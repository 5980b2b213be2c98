/* Layers of an LSTM or a GRU: all time steps of one direction. The projection of the inputs is a product of its own,
 * before; here each step is a small product with a weight that is packed once, and one pass over its gates. Sequences do
 * not depend on each other: threads take some of them, through all steps. Backward the weight is packed the other way;
 * its own derivative is one product over all steps. */
#include "kernels/cpu/recurrent.h"

#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/util.h"
#include "unpack/nn.h"

enum {
  INPUT,
  WEIGHT,
  BIAS,
  H0,
  C0,
  OUT,
  CELLS,
  GATES,
  GRAD_OUT,
  GRAD_CELLS,
  GRAD_GATES,
  DIN,
  DHIDDEN,
  DH,
  DC,
  DWEIGHT,
  DBIAS,
  OWNED
};

static const MothDevice HOST = {MOTH_CPU, 0};

typedef struct Layer {
  const MothRecurrentRows *rows;
  MothDType dtype;              /* that is computed in */
  int64_t size, T, N, H, gates; /* gates: of the weight, 4 or 3 */
  bool reverse, lstm;
  MothTensor *t[OWNED]; /* row-major, of dtype; NULL: none */
  char *packed;
  size_t packed_bytes;
  volatile bool failed;
} Layer;

static char *at(const Layer *l, int which, int64_t element) {
  return l->t[which] ? (char *)l->t[which]->data + element * l->size : NULL;
}

static MothStatus take(Layer *l, int which, MothTensor *t) {
  return t ? moth_cpu_contiguous_as(t, l->dtype, &l->t[which]) : MOTH_OK;
}

/* A tensor for a result: itself where it has the dtype that is computed in, else a new one, which `give` copies. */
static MothStatus make(Layer *l, int which, MothTensor *result) {
  if (result->dtype != l->dtype)
    return moth_tensor_new(result->ndim, result->shape, l->dtype, HOST, &l->t[which]);
  moth_tensor_retain(result);
  l->t[which] = result;
  return MOTH_OK;
}
static void give(const Layer *l, int which, MothTensor *result) {
  if (l->t[which] != result)
    moth_cpu_copy(result, l->t[which]);
}

static MothStatus layer_open(Layer *l, const MothTensor *x, const MothTensor *h0, bool lstm,
                             bool reverse) {
  memset(l, 0, sizeof *l);
  l->dtype = x->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  l->size = l->dtype == MOTH_FLOAT64 ? 8 : 4;
  l->rows = moth_recurrent_rows[l->dtype == MOTH_FLOAT64][moth_isa];
  l->T = x->shape[0];
  l->N = h0->shape[0];
  l->H = h0->shape[1];
  l->lstm = lstm;
  l->gates = lstm ? 4 : 3;
  l->reverse = reverse;
  return MOTH_OK;
}

static void layer_close(Layer *l) {
  for (int i = 0; i < OWNED; i++)
    moth_tensor_release(l->t[i]);
  if (l->packed)
    moth_free(l->packed, l->packed_bytes);
}

static MothStatus pack_weight(Layer *l, bool backward) {
  int64_t G = l->gates * l->H;
  l->packed_bytes =
      (size_t)((backward ? l->rows->packed(l->H, G) : l->rows->packed(G, l->H)) * l->size);
  l->packed = moth_alloc(l->packed_bytes);
  if (!l->packed)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes", l->packed_bytes);
  if (backward)
    l->rows->pack_columns(l->packed, at(l, WEIGHT, 0), l->H, G);
  else
    l->rows->pack_transposed(l->packed, at(l, WEIGHT, 0), G, l->H);
  return MOTH_OK;
}

/* Sequences are worth a thread each with some 10 us of products, in groups as the product takes rows. */
static int64_t grain(const Layer *l) {
  double flops = 2.0 * (double)(l->gates * l->H) * (double)l->H * (double)l->T;
  return (moth_cpu_flops_grain(flops) + 7) / 8 * 8;
}

/* The time step that comes k-th, and the place of the state before it: a row of OUT, or -1 for the initial one. */
static int64_t step_at(const Layer *l, int64_t k) {
  return l->reverse ? l->T - 1 - k : k;
}

static MothStep step_of(const Layer *l, int64_t k, int64_t begin, int64_t n) {
  int64_t t = step_at(l, k), row = t * l->N + begin, H = l->H, before = -1;
  if (k > 0)
    before = step_at(l, k - 1) * l->N + begin;
  return (MothStep){
      .n = n,
      .H = H,
      .before = before < 0 ? at(l, H0, begin * H) : at(l, OUT, before * H),
      .cell_before = before < 0 ? at(l, C0, begin * H) : at(l, CELLS, before * H),
      .bias = at(l, BIAS, 0),
      .input = at(l, INPUT, row * l->gates * H),
      .gates = at(l, GATES, row * 4 * H),
      .out = at(l, OUT, row * H),
      .cell = at(l, CELLS, row * H),
      .grad_out = at(l, GRAD_OUT, row * H),
      .grad_cell = at(l, GRAD_CELLS, row * H),
      .grad_gates = at(l, GRAD_GATES, row * 4 * H),
      .dh = at(l, DH, begin * H),
      .dc = at(l, DC, begin * H),
      .dgates = at(l, DIN, row * l->gates * H),
      .dhidden = at(l, DHIDDEN, row * l->gates * H),
  };
}

static void forward_range(void *ctx, int64_t begin, int64_t end) {
  Layer *l = ctx;
  int64_t n = end - begin, G = l->gates * l->H;
  size_t bytes = (size_t)(n * G * l->size);
  char *hidden = l->lstm ? NULL : moth_alloc(bytes);
  if (!l->lstm && !hidden) {
    l->failed = true;
    return;
  }
  for (int64_t k = 0; k < l->T && !moth_stopped(); k++) {
    MothStep s = step_of(l, k, begin, n);
    if (l->lstm) {
      memcpy(s.gates, s.input, bytes);
      l->rows->multiply(s.gates, s.before, l->packed, n, G, l->H, true);
      l->rows->lstm(&s);
    } else {
      s.hidden = hidden;
      l->rows->multiply(hidden, s.before, l->packed, n, G, l->H, false);
      l->rows->gru(&s);
    }
  }
  if (hidden)
    moth_free(hidden, bytes);
}

static MothStatus forward(Layer *l) {
  MOTH_TRY(pack_weight(l, false));
  moth_parallel_for(l->N, grain(l), forward_range, l);
  return l->failed ? moth_no_memory(0) : MOTH_OK;
}

MothStatus moth_cpu_lstm_layer(MothCall *c) {
  MOTH_UNPACK_LSTM_LAYER(c)
  MothTensor *out = c->results[0].u.t, *cells = c->results[1].u.t, *gates = c->results[2].u.t;
  Layer l;
  MothStatus status;
  MOTH_GO(layer_open(&l, input, h0, true, reverse));
  MOTH_GO(take(&l, INPUT, input));
  MOTH_GO(take(&l, WEIGHT, weight));
  MOTH_GO(take(&l, H0, h0));
  MOTH_GO(take(&l, C0, c0));
  MOTH_GO(make(&l, OUT, out));
  MOTH_GO(make(&l, CELLS, cells));
  MOTH_GO(make(&l, GATES, gates));
  MOTH_GO(forward(&l));
  give(&l, OUT, out);
  give(&l, CELLS, cells);
  give(&l, GATES, gates);
done:
  layer_close(&l);
  return status;
}

MothStatus moth_cpu_gru_layer(MothCall *c) {
  MOTH_UNPACK_GRU_LAYER(c)
  MothTensor *out = c->results[0].u.t, *gates = c->results[1].u.t;
  Layer l;
  MothStatus status;
  MOTH_GO(layer_open(&l, input, h0, false, reverse));
  MOTH_GO(take(&l, INPUT, input));
  MOTH_GO(take(&l, WEIGHT, weight));
  MOTH_GO(take(&l, BIAS, bias));
  MOTH_GO(take(&l, H0, h0));
  MOTH_GO(make(&l, OUT, out));
  MOTH_GO(make(&l, GATES, gates));
  MOTH_GO(forward(&l));
  give(&l, OUT, out);
  give(&l, GATES, gates);
done:
  layer_close(&l);
  return status;
}

static void backward_range(void *ctx, int64_t begin, int64_t end) {
  Layer *l = ctx;
  int64_t n = end - begin, G = l->gates * l->H;
  for (int64_t k = l->T - 1; k >= 0 && !moth_stopped(); k--) {
    MothStep s = step_of(l, k, begin, n);
    if (l->lstm) {
      l->rows->lstm_backward(&s);
      l->rows->multiply(s.dh, s.dgates, l->packed, n, l->H, G, false);
    } else {
      l->rows->gru_backward(&s);
      l->rows->multiply(s.dh, s.dhidden, l->packed, n, l->H, G, true);
    }
  }
}

/* dweight (G, H) = the sum over all steps of d (N, G)' times the state before (N, H). */
static void weight_gradient(const Layer *l, int which, MothTensor *dweight) {
  int64_t N = l->N, H = l->H, G = l->gates * H, first = step_at(l, 0);
  MothGemm g = {.dtype = (int)l->dtype,
                .m = G,
                .n = H,
                .k = N,
                .a_row = 1,
                .a_col = G,
                .b_row = H,
                .b_col = 1,
                .c_row = H};
  g.alpha = 1;
  g.c = dweight->data;
  g.a = at(l, which, first * N * G);
  g.b = at(l, H0, 0);
  moth_gemm(&g, true);
  if (l->T == 1)
    return;
  g.beta = 1;
  g.k = (l->T - 1) * N;
  g.a = at(l, which, l->reverse ? 0 : N * G);
  g.b = at(l, OUT, l->reverse ? N * H : 0);
  moth_gemm(&g, true);
}

/* DH and DC: workspaces that begin as zeros, and end as the gradients of the initial state. */
static MothStatus backward(Layer *l, MothTensor *dweight) {
  MOTH_TRY(pack_weight(l, true));
  memset(at(l, DH, 0), 0, (size_t)(l->N * l->H * l->size));
  if (l->lstm)
    memset(at(l, DC, 0), 0, (size_t)(l->N * l->H * l->size));
  moth_parallel_for(l->N, grain(l), backward_range, l);
  MOTH_TRY(make(l, DWEIGHT, dweight));
  weight_gradient(l, l->lstm ? DIN : DHIDDEN, l->t[DWEIGHT]);
  give(l, DWEIGHT, dweight);
  return MOTH_OK;
}

MothStatus moth_cpu_lstm_layer_backward(MothCall *c) {
  MOTH_UNPACK_LSTM_LAYER_BACKWARD(c)
  MothTensor *dinput = c->results[0].u.t, *dweight = c->results[1].u.t, *dh0 = c->results[2].u.t,
             *dc0 = c->results[3].u.t;
  Layer l;
  MothStatus status;
  MOTH_GO(layer_open(&l, gates, h0, true, reverse));
  MOTH_GO(take(&l, GRAD_OUT, grad_output));
  MOTH_GO(take(&l, GRAD_CELLS, grad_cells));
  MOTH_GO(take(&l, GRAD_GATES, grad_gates));
  MOTH_GO(take(&l, WEIGHT, weight));
  MOTH_GO(take(&l, H0, h0));
  MOTH_GO(take(&l, C0, c0));
  MOTH_GO(take(&l, OUT, output));
  MOTH_GO(take(&l, CELLS, cells));
  MOTH_GO(take(&l, GATES, gates));
  MOTH_GO(make(&l, DIN, dinput));
  MOTH_GO(make(&l, DH, dh0));
  MOTH_GO(make(&l, DC, dc0));
  MOTH_GO(backward(&l, dweight));
  give(&l, DIN, dinput);
  give(&l, DH, dh0);
  give(&l, DC, dc0);
done:
  layer_close(&l);
  return status;
}

/* dbias: the sums over the rows (T N, G) of DHIDDEN, in order. */
static MothStatus bias_gradient(Layer *l, MothTensor *dbias) {
  int64_t G = l->gates * l->H, rows = l->T * l->N;
  size_t bytes = (size_t)G * sizeof(double);
  MOTH_TRY(make(l, DBIAS, dbias));
  const char *d = at(l, DHIDDEN, 0);
  double *sums = moth_alloc(bytes);
  if (!sums)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes", bytes);
  memset(sums, 0, bytes);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < G; j++)
      sums[j] +=
          l->size == 8 ? ((const double *)d)[i * G + j] : (double)((const float *)d)[i * G + j];
  for (int64_t j = 0; j < G; j++)
    moth_dtype_store(l->dtype, at(l, DBIAS, j), moth_v_float(sums[j]));
  moth_free(sums, bytes);
  give(l, DBIAS, dbias);
  return MOTH_OK;
}

MothStatus moth_cpu_gru_layer_backward(MothCall *c) {
  MOTH_UNPACK_GRU_LAYER_BACKWARD(c)
  MothTensor *dinput = c->results[0].u.t, *dweight = c->results[1].u.t, *dbias = c->results[2].u.t,
             *dh0 = c->results[3].u.t;
  Layer l;
  MothStatus status;
  MOTH_GO(layer_open(&l, gates, h0, false, reverse));
  MOTH_GO(take(&l, GRAD_OUT, grad_output));
  MOTH_GO(take(&l, GRAD_GATES, grad_gates));
  MOTH_GO(take(&l, WEIGHT, weight));
  MOTH_GO(take(&l, H0, h0));
  MOTH_GO(take(&l, OUT, output));
  MOTH_GO(take(&l, GATES, gates));
  MOTH_GO(make(&l, DIN, dinput));
  MOTH_GO(make(&l, DH, dh0));
  MOTH_GO(moth_tensor_new(dinput->ndim, dinput->shape, l.dtype, HOST, &l.t[DHIDDEN]));
  MOTH_GO(backward(&l, dweight));
  MOTH_GO(bias_gradient(&l, dbias));
  give(&l, DIN, dinput);
  give(&l, DH, dh0);
done:
  layer_close(&l);
  return status;
}
