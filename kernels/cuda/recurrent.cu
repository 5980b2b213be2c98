/* Layers of an LSTM or a GRU, as kernels/cpu/recurrent.c: at each step a product with the weight and one kernel for all
 * gates. Backward the weight's derivative is one product over all steps. float16 and bfloat16 are computed in float32. */
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/util.h"
#include "unpack/nn.h"

namespace {

enum { THREADS = 128, COLS = 32, ROWS = 8 };

template <class T> __device__ __forceinline__ T sigmoid(T x) {
  return 1 / (1 + exp(-x));
}

/* One step of n sequences of H elements; the pointers are those of MothStep. */
template <class T> struct Step {
  int64_t n, H;
  const T *before, *cell_before, *bias, *input, *hidden, *grad_out, *grad_cell, *grad_gates;
  T *gates, *out, *cell, *dh, *dc, *dgates, *dhidden;
};

/* This thread's element: false behind the last one. */
template <class T>
__device__ __forceinline__ bool element(const Step<T> &s, int64_t *i, int64_t *row, int64_t *col) {
  *i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  *row = *i / s.H;
  *col = *i % s.H;
  return *i < s.n * s.H;
}

template <class T> __global__ void __launch_bounds__(THREADS) lstm_step(Step<T> s) {
  int64_t i, row, col, H = s.H;
  if (!element(s, &i, &row, &col))
    return;
  T *g = s.gates + row * 4 * H + col;
  T in = sigmoid(g[0]), forget = sigmoid(g[H]), fresh = tanh(g[2 * H]), out = sigmoid(g[3 * H]);
  T c = forget * s.cell_before[i] + in * fresh;
  g[0] = in;
  g[H] = forget;
  g[2 * H] = fresh;
  g[3 * H] = out;
  s.cell[i] = c;
  s.out[i] = out * tanh(c);
}

template <class T> __global__ void __launch_bounds__(THREADS) lstm_step_backward(Step<T> s) {
  int64_t i, row, col, H = s.H;
  if (!element(s, &i, &row, &col))
    return;
  int64_t at = row * 4 * H + col;
  const T *g = s.gates + at;
  T in = g[0], forget = g[H], fresh = g[2 * H], out = g[3 * H];
  T dh = s.dh[i] + (s.grad_out ? s.grad_out[i] : 0), t = tanh(s.cell[i]);
  T dc = s.dc[i] + (s.grad_cell ? s.grad_cell[i] : 0) + dh * out * (1 - t * t);
  T d[4] = {dc * fresh, dc * s.cell_before[i], dc * in, dh * t};
  if (s.grad_gates)
    for (int k = 0; k < 4; k++)
      d[k] += s.grad_gates[at + k * H];
  T *to = s.dgates + at;
  to[0] = d[0] * in * (1 - in);
  to[H] = d[1] * forget * (1 - forget);
  to[2 * H] = d[2] * (1 - fresh * fresh);
  to[3 * H] = d[3] * out * (1 - out);
  s.dc[i] = dc * forget;
}

template <class T> __global__ void __launch_bounds__(THREADS) gru_step(Step<T> s) {
  int64_t i, row, col, H = s.H;
  if (!element(s, &i, &row, &col))
    return;
  const T *x = s.input + row * 3 * H + col, *y = s.hidden + row * 3 * H + col;
  T *g = s.gates + row * 4 * H + col, part[3];
  for (int k = 0; k < 3; k++)
    part[k] = y[k * H] + (s.bias ? s.bias[k * H + col] : 0);
  T r = sigmoid(x[0] + part[0]), z = sigmoid(x[H] + part[1]), n = tanh(x[2 * H] + r * part[2]);
  g[0] = r;
  g[H] = z;
  g[2 * H] = n;
  g[3 * H] = part[2];
  s.out[i] = n + z * (s.before[i] - n);
}

template <class T> __global__ void __launch_bounds__(THREADS) gru_step_backward(Step<T> s) {
  int64_t i, row, col, H = s.H;
  if (!element(s, &i, &row, &col))
    return;
  const T *g = s.gates + row * 4 * H + col, *more = nullptr;
  if (s.grad_gates)
    more = s.grad_gates + row * 4 * H + col;
  T r = g[0], z = g[H], n = g[2 * H], hidden = g[3 * H];
  T dh = s.dh[i] + (s.grad_out ? s.grad_out[i] : 0);
  T dn = dh * (1 - z), dz = dh * (s.before[i] - n);
  s.dh[i] = dh * z;
  if (more)
    dn += more[2 * H], dz += more[H];
  dn *= 1 - n * n;
  T dr = dn * hidden + (more ? more[0] : 0);
  T *d = s.dgates + row * 3 * H + col, *y = s.dhidden + row * 3 * H + col;
  d[0] = y[0] = dr * r * (1 - r);
  d[H] = y[H] = dz * z * (1 - z);
  d[2 * H] = dn;
  y[2 * H] = dn * r + (more ? more[3 * H] : 0);
}

/* out (n) = the sums of the columns of x (rows, n), in an order of their own that does not change. */
template <class T>
__global__ void __launch_bounds__(COLS *ROWS)
    column_sums(const T *x, int64_t rows, int64_t n, T *out) {
  __shared__ double part[ROWS][COLS];
  int col = threadIdx.x % COLS, row = threadIdx.x / COLS;
  int64_t j = (int64_t)blockIdx.x * COLS + col;
  double sum = 0;
  if (j < n)
    for (int64_t i = row; i < rows; i += ROWS)
      sum += (double)x[i * n + j];
  part[row][col] = sum;
  __syncthreads();
  if (row || j >= n)
    return;
  for (int k = 1; k < ROWS; k++)
    sum += part[k][col];
  out[j] = (T)sum;
}

template <class T> struct Layer {
  const char *name;
  MothCudaRun run;
  int64_t n_steps = 0, n = 0, H = 0, gates = 0; /* gates: of the weight, 4 or 3 */
  bool reverse = false;
  MothOwned input, weight, bias, h0, c0, out, cells, active, grad_out, grad_cells, grad_gates, din,
      dhidden, dh, dc, dweight, dbias;

  static constexpr MothDType DTYPE = sizeof(T) == 8 ? MOTH_FLOAT64 : MOTH_FLOAT32;

  MothStatus open(MothCall *c, const MothTensor *x, const MothTensor *h, int of_weight, bool back) {
    name = c->op->name;
    n_steps = x->shape[0], n = h->shape[0], H = h->shape[1];
    gates = of_weight, reverse = back;
    return moth_cuda_run(c, &run);
  }
  static MothStatus take(MothOwned &to, const MothTensor *t) {
    return t ? moth_cuda_contiguous_as(t, DTYPE, &to.t) : MOTH_OK;
  }
  /* A tensor for a result: itself where it has the dtype that is computed in, else a new one, which `give` copies. */
  static MothStatus make(MothOwned &to, MothTensor *result) {
    if (result->dtype != DTYPE || !result->contiguous)
      return moth_tensor_new(result->ndim, result->shape, DTYPE, result->device, &to.t);
    moth_tensor_retain(result);
    to.t = result;
    return MOTH_OK;
  }
  static MothStatus give(const MothOwned &from, MothTensor *result) {
    return from.t == result ? MOTH_OK : moth_cuda_copy(result, from);
  }
  static T *at(const MothOwned &o, int64_t i) {
    return o.t ? reinterpret_cast<T *>(o->data) + i : nullptr;
  }
  /* The time step that comes k-th. */
  int64_t time(int64_t k) const { return reverse ? n_steps - 1 - k : k; }

  Step<T> step(int64_t k) const {
    int64_t row = time(k) * n, last = k > 0 ? time(k - 1) * n : 0;
    Step<T> s = {};
    s.n = n;
    s.H = H;
    s.before = k > 0 ? at(out, last * H) : at(h0, 0);
    s.cell_before = k > 0 ? at(cells, last * H) : at(c0, 0);
    s.bias = at(bias, 0);
    s.input = at(input, row * gates * H);
    s.gates = at(active, row * 4 * H);
    s.out = at(out, row * H);
    s.cell = at(cells, row * H);
    s.grad_out = at(grad_out, row * H);
    s.grad_cell = at(grad_cells, row * H);
    s.grad_gates = at(grad_gates, row * 4 * H);
    s.dh = at(dh, 0);
    s.dc = at(dc, 0);
    s.dgates = at(din, row * gates * H);
    s.dhidden = at(dhidden, row * gates * H);
    return s;
  }

  MothStatus launch(void (*kernel)(Step<T>), const Step<T> &s) const {
    dim3 grid((unsigned)moth_ceil_div(n * H, (int64_t)THREADS));
    return moth_launch(name, kernel, grid, dim3(THREADS), 0, run.stream, s);
  }

  /* c (rows, cols) = beta c + a (rows, k) b (k, cols); a and b by their strides */
  MothStatus multiply(T *c, const T *a, const T *b, int64_t rows, int64_t cols, int64_t k,
                      int64_t a_row, int64_t a_col, int64_t b_row, int64_t b_col,
                      double beta) const {
    MothGemm g = {};
    g.dtype = DTYPE;
    g.batch = 1;
    g.m = rows, g.n = cols, g.k = k;
    g.a = a, g.a_row = a_row, g.a_col = a_col;
    g.b = b, g.b_row = b_row, g.b_col = b_col;
    g.c = c, g.c_row = cols;
    g.alpha = 1;
    g.beta = beta;
    return moth_cuda_gemm(&run, &g);
  }
  /* to (n, G) = beta to + h (n, H) times the transposed weight */
  MothStatus project(T *to, const T *h, double beta) const {
    return multiply(to, h, at(weight, 0), n, gates * H, H, H, 1, 1, H, beta);
  }
  /* dh (n, H) = beta dh + d (n, G) times the weight */
  MothStatus project_back(const T *d, double beta) const {
    int64_t G = gates * H;
    return multiply(at(dh, 0), d, at(weight, 0), n, H, G, G, 1, H, 1, beta);
  }

  /* dweight (G, H): the sum over all steps of the gradients' transpose times the state before. */
  MothStatus weight_gradient(const MothOwned &grads) const {
    int64_t G = gates * H;
    T *to = at(dweight, 0);
    MOTH_TRY(multiply(to, at(grads, time(0) * n * G), at(h0, 0), G, H, n, 1, G, H, 1, 0));
    if (n_steps == 1)
      return MOTH_OK;
    return multiply(to, at(grads, reverse ? 0 : n * G), at(out, reverse ? n * H : 0), G, H,
                    (n_steps - 1) * n, 1, G, H, 1, 1);
  }
};

template <class T> MothStatus lstm_forward(MothCall *c) {
  MOTH_UNPACK_LSTM_LAYER(c)
  MothTensor *out = c->results[0].u.t, *cells = c->results[1].u.t, *gates = c->results[2].u.t;
  Layer<T> l;
  MOTH_TRY(l.open(c, input, h0, 4, reverse));
  MOTH_TRY(l.take(l.weight, weight));
  MOTH_TRY(l.take(l.h0, h0));
  MOTH_TRY(l.take(l.c0, c0));
  MOTH_TRY(l.make(l.out, out));
  MOTH_TRY(l.make(l.cells, cells));
  MOTH_TRY(l.make(l.active, gates));
  if (l.n * l.H == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_copy(l.active, input));
  for (int64_t k = 0; k < l.n_steps; k++) {
    Step<T> s = l.step(k);
    MOTH_TRY(l.project(s.gates, s.before, 1));
    MOTH_TRY(l.launch(lstm_step<T>, s));
  }
  MOTH_TRY(l.give(l.out, out));
  MOTH_TRY(l.give(l.cells, cells));
  return l.give(l.active, gates);
}

template <class T> MothStatus lstm_backward(MothCall *c) {
  MOTH_UNPACK_LSTM_LAYER_BACKWARD(c)
  MothTensor *dinput = c->results[0].u.t, *dweight = c->results[1].u.t, *dh0 = c->results[2].u.t,
             *dc0 = c->results[3].u.t;
  Layer<T> l;
  MOTH_TRY(l.open(c, gates, h0, 4, reverse));
  MOTH_TRY(l.take(l.weight, weight));
  MOTH_TRY(l.take(l.h0, h0));
  MOTH_TRY(l.take(l.c0, c0));
  MOTH_TRY(l.take(l.out, output));
  MOTH_TRY(l.take(l.cells, cells));
  MOTH_TRY(l.take(l.active, gates));
  MOTH_TRY(l.take(l.grad_out, grad_output));
  MOTH_TRY(l.take(l.grad_cells, grad_cells));
  MOTH_TRY(l.take(l.grad_gates, grad_gates));
  MOTH_TRY(l.make(l.din, dinput));
  MOTH_TRY(l.make(l.dweight, dweight));
  MOTH_TRY(l.make(l.dh, dh0));
  MOTH_TRY(l.make(l.dc, dc0));
  MOTH_TRY(moth_cuda_fill(l.dh, moth_v_float(0)));
  MOTH_TRY(moth_cuda_fill(l.dc, moth_v_float(0)));
  if (l.n * l.H == 0)
    return moth_cuda_fill(dweight, moth_v_float(0));
  for (int64_t k = l.n_steps - 1; k >= 0; k--) {
    Step<T> s = l.step(k);
    MOTH_TRY(l.launch(lstm_step_backward<T>, s));
    MOTH_TRY(l.project_back(s.dgates, 0));
  }
  MOTH_TRY(l.weight_gradient(l.din));
  MOTH_TRY(l.give(l.din, dinput));
  MOTH_TRY(l.give(l.dweight, dweight));
  MOTH_TRY(l.give(l.dh, dh0));
  return l.give(l.dc, dc0);
}

template <class T> MothStatus gru_forward(MothCall *c) {
  MOTH_UNPACK_GRU_LAYER(c)
  MothTensor *out = c->results[0].u.t, *gates = c->results[1].u.t;
  Layer<T> l;
  MothScratch hidden;
  MOTH_TRY(l.open(c, input, h0, 3, reverse));
  MOTH_TRY(l.take(l.input, input));
  MOTH_TRY(l.take(l.weight, weight));
  MOTH_TRY(l.take(l.bias, bias));
  MOTH_TRY(l.take(l.h0, h0));
  MOTH_TRY(l.make(l.out, out));
  MOTH_TRY(l.make(l.active, gates));
  if (l.n * l.H == 0)
    return MOTH_OK;
  MOTH_TRY(hidden.take(l.run.device, (size_t)(l.n * 3 * l.H) * sizeof(T)));
  for (int64_t k = 0; k < l.n_steps; k++) {
    Step<T> s = l.step(k);
    MOTH_TRY(l.project(hidden.as<T>(), s.before, 0));
    s.hidden = hidden.as<T>();
    MOTH_TRY(l.launch(gru_step<T>, s));
  }
  MOTH_TRY(l.give(l.out, out));
  return l.give(l.active, gates);
}

template <class T> MothStatus gru_backward(MothCall *c) {
  MOTH_UNPACK_GRU_LAYER_BACKWARD(c)
  MothTensor *dinput = c->results[0].u.t, *dweight = c->results[1].u.t, *dbias = c->results[2].u.t,
             *dh0 = c->results[3].u.t;
  Layer<T> l;
  MOTH_TRY(l.open(c, gates, h0, 3, reverse));
  MOTH_TRY(l.take(l.weight, weight));
  MOTH_TRY(l.take(l.h0, h0));
  MOTH_TRY(l.take(l.out, output));
  MOTH_TRY(l.take(l.active, gates));
  MOTH_TRY(l.take(l.grad_out, grad_output));
  MOTH_TRY(l.take(l.grad_gates, grad_gates));
  MOTH_TRY(l.make(l.din, dinput));
  MOTH_TRY(l.make(l.dweight, dweight));
  MOTH_TRY(l.make(l.dbias, dbias));
  MOTH_TRY(l.make(l.dh, dh0));
  MOTH_TRY(moth_tensor_new(dinput->ndim, dinput->shape, l.DTYPE, dinput->device, &l.dhidden.t));
  MOTH_TRY(moth_cuda_fill(l.dh, moth_v_float(0)));
  if (l.n * l.H == 0) {
    MOTH_TRY(moth_cuda_fill(dbias, moth_v_float(0)));
    return moth_cuda_fill(dweight, moth_v_float(0));
  }
  for (int64_t k = l.n_steps - 1; k >= 0; k--) {
    Step<T> s = l.step(k);
    MOTH_TRY(l.launch(gru_step_backward<T>, s));
    MOTH_TRY(l.project_back(s.dhidden, 1));
  }
  int64_t G = 3 * l.H;
  MOTH_TRY(l.weight_gradient(l.dhidden));
  MOTH_TRY(moth_launch(l.name, column_sums<T>, dim3((unsigned)moth_ceil_div(G, (int64_t)COLS)),
                       dim3(COLS * ROWS), 0, l.run.stream, (const T *)l.dhidden->data,
                       l.n_steps * l.n, G, l.at(l.dbias, 0)));
  MOTH_TRY(l.give(l.din, dinput));
  MOTH_TRY(l.give(l.dweight, dweight));
  MOTH_TRY(l.give(l.dbias, dbias));
  return l.give(l.dh, dh0);
}

} // namespace

MothStatus moth_cuda_lstm_layer(MothCall *c) {
  bool wide = c->results[0].u.t->dtype == MOTH_FLOAT64;
  return wide ? lstm_forward<double>(c) : lstm_forward<float>(c);
}
MothStatus moth_cuda_lstm_layer_backward(MothCall *c) {
  bool wide = c->results[0].u.t->dtype == MOTH_FLOAT64;
  return wide ? lstm_backward<double>(c) : lstm_backward<float>(c);
}
MothStatus moth_cuda_gru_layer(MothCall *c) {
  bool wide = c->results[0].u.t->dtype == MOTH_FLOAT64;
  return wide ? gru_forward<double>(c) : gru_forward<float>(c);
}
MothStatus moth_cuda_gru_layer_backward(MothCall *c) {
  bool wide = c->results[0].u.t->dtype == MOTH_FLOAT64;
  return wide ? gru_backward<double>(c) : gru_backward<float>(c);
}
