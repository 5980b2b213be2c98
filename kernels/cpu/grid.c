/* grid_sample and its derivatives: kernels/common/grid.h. Each element of a result is one sum, in one order. */
#include "kernels/common/grid.h"

#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/near.h"

typedef struct Work {
  MothGrid q;
  void (*kernel)(const MothGrid *);
  int64_t parts, each; /* of an image; how many places or channels a part has */
  bool by_channels;
} Work;

static void work_range(void *ctx, int64_t begin, int64_t end) {
  const Work *w = ctx;
  MothGrid q = w->q;
  for (int64_t i = begin; i < end && !moth_stopped(); i++) {
    int64_t first = i % w->parts * w->each;
    q.image = i / w->parts;
    if (w->by_channels) {
      q.channel = first;
      q.channels_to = moth_min64(first + w->each, q.channels);
    } else {
      q.from = first;
      q.to = moth_min64(first + w->each, q.points);
    }
    w->kernel(&q);
  }
}

typedef struct Grid {
  MothTensor *input, *grid, *grad, *out; /* row-major, of one dtype; NULL: not of this op */
  MothTensor *result;
} Grid;

static MothStatus grid_open(Grid *t, MothCall *c, const MothTensor *input, const MothTensor *grid,
                            const MothTensor *grad) {
  MothTensor *out = c->results[0].u.t;
  MothDType dtype = out->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  t->result = out;
  if (input)
    MOTH_TRY(moth_cpu_contiguous_as(input, dtype, &t->input));
  if (grad)
    MOTH_TRY(moth_cpu_contiguous_as(grad, dtype, &t->grad));
  MOTH_TRY(moth_cpu_contiguous_as(grid, dtype, &t->grid));
  if (out->dtype != dtype)
    return moth_tensor_new(out->ndim, out->shape, dtype, out->device, &t->out);
  t->out = out;
  moth_tensor_retain(out);
  return MOTH_OK;
}

static MothStatus grid_close(Grid *t, MothStatus status) {
  if (status == MOTH_OK && t->out != t->result)
    moth_cpu_copy(t->result, t->out);
  moth_tensor_release(t->input);
  moth_tensor_release(t->grad);
  moth_tensor_release(t->grid);
  moth_tensor_release(t->out);
  return status;
}

/* `image`: the shape of the input. */
static void run(Grid *t, const int64_t *image, const MothTensor *grid, int64_t mode,
                int64_t padding, bool align, const int *order, int what) {
  const MothKernels *k = moth_cpu_kernels(t->out->dtype);
  Work w = {.by_channels = what == 1};
  moth_grid_geometry(&w.q, grid->ndim, image, grid->shape, mode, padding, align, order);
  w.q.input = t->input ? t->input->data : NULL;
  w.q.places = t->grid->data;
  w.q.grad = t->grad ? t->grad->data : NULL;
  w.q.out = t->out->data;
  w.kernel = what == 0 ? k->grid_sample : what == 1 ? k->grid_sample_input : k->grid_sample_places;
  int64_t all = w.by_channels ? w.q.channels : w.q.points;
  w.each = w.by_channels ? 16 : k->grid_places(&w.q);
  w.parts = (all + w.each - 1) / w.each;
  moth_parallel_for(w.q.batch * w.parts,
                    moth_cpu_grain(w.each * 8 * (w.by_channels ? w.q.points : w.q.channels)),
                    work_range, &w);
}

MothStatus moth_cpu_native_grid_sample(MothCall *c) {
  MOTH_UNPACK_NATIVE_GRID_SAMPLE(c)
  Grid t = {0};
  const int order[3] = {(int)order_x, (int)order_y, (int)order_z};
  MothStatus status;
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  MOTH_GO(grid_open(&t, c, input, grid, NULL));
  run(&t, input->shape, grid, mode, padding_mode, align_corners, order, 0);
done:
  return grid_close(&t, status);
}
MothStatus moth_cpu_native_grid_sample_input(MothCall *c) {
  MOTH_UNPACK_NATIVE_GRID_SAMPLE_INPUT(c)
  Grid t = {0};
  const int order[3] = {(int)order_x, (int)order_y, (int)order_z};
  MothStatus status;
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  MOTH_GO(grid_open(&t, c, NULL, grid, grad_output));
  run(&t, c->results[0].u.t->shape, grid, mode, padding_mode, align_corners, order, 1);
done:
  return grid_close(&t, status);
}
MothStatus moth_cpu_native_grid_sample_places(MothCall *c) {
  MOTH_UNPACK_NATIVE_GRID_SAMPLE_PLACES(c)
  Grid t = {0};
  const int order[3] = {(int)order_x, (int)order_y, (int)order_z};
  MothStatus status;
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  MOTH_GO(grid_open(&t, c, input, grid, grad_output));
  run(&t, input->shape, grid, mode, padding_mode, align_corners, order, 2);
done:
  return grid_close(&t, status);
}
