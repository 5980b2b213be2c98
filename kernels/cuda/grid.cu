/* grid_sample and its derivatives, as kernels/cpu/grid.c: a thread for each place, which goes through the channels; of the
 * derivative by the image a thread for each channel, which goes through the places in order: no atomics. */
#include "kernels/cuda/formulas.h"
#include "kernels/cuda/util.h"
#include "unpack/near.h"

#define real           double
#define MOTH_REAL_KIND 2
#include "kernels/math.h"
/* behind math.h, whose functions it calls */
#include "kernels/common/grid.h"

namespace {

enum { THREADS = 128, TAPS = 16 };

/* The elements and weights of a place. */
__device__ __forceinline__ int taps_of(const MothGrid &q, const double *place, int64_t *at,
                                       double *weight) {
  int where[3][4], n = 0;
  double each[3][4];
  for (int d = 0; d < q.dims; d++) {
    double t, turn, size = (double)q.size[d];
    double first = moth_grid_first(place[d], size, q.taps, q.padding, q.align, &t, &turn);
    double factor = q.order[d] == 0 ? 1 : q.order[d] % 2 ? turn : turn * turn;
    for (int k = 0; k < q.taps; k++) {
      const double *c = q.weight[d][k];
      where[d][k] = moth_grid_place(first + k, size, q.taps, q.padding, q.align);
      each[d][k] = (((c[3] * t + c[2]) * t + c[1]) * t + c[0]) * factor;
    }
  }
  for (int z = 0; z < (q.dims == 3 ? q.taps : 1); z++)
    for (int y = 0; y < q.taps; y++)
      for (int x = 0; x < q.taps; x++, n++) {
        bool out = (where[0][x] | where[1][y] | (q.dims == 3 ? where[2][z] : 0)) < 0;
        at[n] =
            ((q.dims == 3 ? where[2][z] : 0) * q.size[1] + where[1][y]) * q.size[0] + where[0][x];
        at[n] = out ? -1 : at[n];
        weight[n] = each[0][x] * each[1][y] * (q.dims == 3 ? each[2][z] : 1);
      }
  return n;
}
template <class R>
__device__ __forceinline__ void place_of(const MothGrid &q, int64_t i, double *place) {
  for (int d = 0; d < q.dims; d++)
    place[d] = (double)((const R *)q.places)[i * q.dims + d];
}

template <class R> __global__ void __launch_bounds__(THREADS) sample(const MothGrid q) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, at[TAPS];
  if (i >= q.batch * q.points)
    return;
  double place[3], weight[TAPS];
  place_of<R>(q, i, place);
  int n = taps_of(q, place, at, weight);
  for (int64_t c = 0; c < q.channels; c++) {
    int64_t plane = i / q.points * q.channels + c;
    double sum = 0;
    for (int k = 0; k < n; k++)
      sum += at[k] >= 0 ? weight[k] * (double)((const R *)q.input)[plane * q.plane + at[k]] : 0;
    ((R *)q.out)[plane * q.points + i % q.points] = (R)sum;
  }
}

template <class R> __global__ void __launch_bounds__(THREADS) sample_input(const MothGrid q) {
  int64_t plane = (int64_t)blockIdx.x * THREADS + threadIdx.x, at[TAPS];
  if (plane >= q.batch * q.channels)
    return;
  R *out = (R *)q.out + plane * q.plane;
  double place[3], weight[TAPS];
  for (int64_t i = 0; i < q.plane; i++)
    out[i] = 0;
  for (int64_t i = 0; i < q.points; i++) {
    place_of<R>(q, plane / q.channels * q.points + i, place);
    int n = taps_of(q, place, at, weight);
    double g = (double)((const R *)q.grad)[plane * q.points + i];
    for (int k = 0; k < n; k++)
      if (at[k] >= 0)
        out[at[k]] += (R)(weight[k] * g);
  }
}

/* slopes: q with one more derivative along each dimension. */
struct Slopes {
  MothGrid along[3];
};
template <class R>
__global__ void __launch_bounds__(THREADS) sample_places(const MothGrid q, const Slopes s) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, at[TAPS];
  if (i >= q.batch * q.points)
    return;
  double place[3], weight[TAPS], sum[TAPS] = {};
  place_of<R>(q, i, place);
  int n = taps_of(q, place, at, weight);
  for (int64_t c = 0; c < q.channels; c++) {
    int64_t plane = i / q.points * q.channels + c;
    double g = (double)((const R *)q.grad)[plane * q.points + i % q.points];
    for (int k = 0; k < n; k++)
      sum[k] += at[k] >= 0 ? g * (double)((const R *)q.input)[plane * q.plane + at[k]] : 0;
  }
  for (int d = 0; d < q.dims; d++) {
    double total = 0;
    taps_of(s.along[d], place, at, weight);
    for (int k = 0; k < n; k++)
      total += at[k] >= 0 ? weight[k] * sum[k] : 0;
    ((R *)q.out)[i * q.dims + d] = (R)total;
  }
}

template <class R>
MothStatus run(MothCall *c, const int64_t *image, const MothTensor *input, const MothTensor *grad,
               const MothTensor *grid, int64_t mode, int64_t padding, bool align,
               const int *order) {
  const MothDType dtype = sizeof(R) == 8 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothTensor *out = c->results[0].u.t;
  MothCudaRun on;
  MothOwned x, g, places, wide;
  MothGrid q = {};
  MOTH_TRY(moth_cuda_run(c, &on));
  if (out->numel == 0)
    return MOTH_OK;
  moth_grid_geometry(&q, grid->ndim, image, grid->shape, mode, padding, align, order);
  MOTH_TRY(moth_cuda_contiguous_as(grid, dtype, &places.t));
  MOTH_TRY(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &wide.t));
  if (input)
    MOTH_TRY(moth_cuda_contiguous_as(input, dtype, &x.t));
  if (grad)
    MOTH_TRY(moth_cuda_contiguous_as(grad, dtype, &g.t));
  q.input = input ? x->data : nullptr;
  q.grad = grad ? g->data : nullptr;
  q.places = places->data;
  q.out = wide->data;
  int64_t threads = q.batch * (input ? q.points : q.channels);
  dim3 blocks((unsigned)moth_ceil_div(threads, (int64_t)THREADS));
  if (!grad) {
    MOTH_TRY(moth_launch(c->op->name, sample<R>, blocks, dim3(THREADS), 0, on.stream, q));
  } else if (!input) {
    MOTH_TRY(moth_launch(c->op->name, sample_input<R>, blocks, dim3(THREADS), 0, on.stream, q));
  } else {
    Slopes s = {};
    for (int d = 0; d < q.dims; d++) {
      int more[3] = {order[0], order[1], order[2]};
      more[d]++;
      s.along[d] = q;
      moth_grid_weights(&s.along[d], more);
    }
    MOTH_TRY(moth_launch(c->op->name, sample_places<R>, blocks, dim3(THREADS), 0, on.stream, q, s));
  }
  return moth_cuda_copy(out, wide);
}

MothStatus run_as(MothCall *c, const int64_t *image, const MothTensor *input,
                  const MothTensor *grad, const MothTensor *grid, int64_t mode, int64_t padding,
                  bool align, int64_t x, int64_t y, int64_t z) {
  const int order[3] = {(int)x, (int)y, (int)z};
  return c->results[0].u.t->dtype == MOTH_FLOAT64
             ? run<double>(c, image, input, grad, grid, mode, padding, align, order)
             : run<float>(c, image, input, grad, grid, mode, padding, align, order);
}

} // namespace

MothStatus moth_cuda_native_grid_sample(MothCall *c) {
  MOTH_UNPACK_NATIVE_GRID_SAMPLE(c)
  return run_as(c, input->shape, input, nullptr, grid, mode, padding_mode, align_corners, order_x,
                order_y, order_z);
}
MothStatus moth_cuda_native_grid_sample_input(MothCall *c) {
  MOTH_UNPACK_NATIVE_GRID_SAMPLE_INPUT(c)
  return run_as(c, c->results[0].u.t->shape, nullptr, grad_output, grid, mode, padding_mode,
                align_corners, order_x, order_y, order_z);
}
MothStatus moth_cuda_native_grid_sample_places(MothCall *c) {
  MOTH_UNPACK_NATIVE_GRID_SAMPLE_PLACES(c)
  return run_as(c, input->shape, input, grad_output, grid, mode, padding_mode, align_corners,
                order_x, order_y, order_z);
}
