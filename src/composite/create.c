/* Composites of src/ops/create.lua and random.lua. */
#include "ops/create.h"
#include "composite/composite.h"
#include "ops/random.h"

static MothValue dtype_or(MothValue v, const MothTensor *self) {
  return v.tag == MOTH_V_DTYPE ? v : moth_v_dtype((MothDType)self->dtype);
}
static MothValue device_or(MothValue v, const MothTensor *self) {
  return v.tag == MOTH_V_DEVICE ? v : moth_v_device(self->device);
}

#define LIKE(expr)                                                                                 \
  MothTensor *out;                                                                                 \
  uint32_t keep = moth_enter_as(self);                                                             \
  MothStatus s = moth_leave_as(keep, self, expr, &out);                                            \
  return s ? s : moth_give(c, out)

MothStatus moth_composite_empty_like(MothCall *c) {
  MOTH_UNPACK_EMPTY_LIKE(c)
  LIKE(moth_empty(self->shape, self->ndim, dtype_or(dtype, self), device_or(device, self), &out));
}
MothStatus moth_composite_zeros_like(MothCall *c) {
  MOTH_UNPACK_ZEROS_LIKE(c)
  LIKE(moth_zeros(self->shape, self->ndim, dtype_or(dtype, self), device_or(device, self), &out));
}
MothStatus moth_composite_ones_like(MothCall *c) {
  MOTH_UNPACK_ONES_LIKE(c)
  LIKE(moth_ones(self->shape, self->ndim, dtype_or(dtype, self), device_or(device, self), &out));
}
MothStatus moth_composite_full_like(MothCall *c) {
  MOTH_UNPACK_FULL_LIKE(c)
  LIKE(moth_full(self->shape, self->ndim, value, dtype_or(dtype, self), device_or(device, self),
                 &out));
}
MothStatus moth_composite_rand_like(MothCall *c) {
  MOTH_UNPACK_RAND_LIKE(c)
  LIKE(moth_rand(self->shape, self->ndim, dtype_or(dtype, self), device_or(device, self), generator,
                 &out));
}
MothStatus moth_composite_randn_like(MothCall *c) {
  MOTH_UNPACK_RANDN_LIKE(c)
  LIKE(moth_randn(self->shape, self->ndim, dtype_or(dtype, self), device_or(device, self),
                  generator, &out));
}

MothStatus moth_composite_contiguous(MothCall *c) {
  MOTH_UNPACK_CONTIGUOUS(c)
  if (self->contiguous)
    return moth_give_same(c, self);
  MothTensor *out;
  MOTH_TRY(moth_clone(self, &out));
  return moth_give(c, out);
}

MothStatus moth_composite_to(MothCall *c) {
  MOTH_UNPACK_TO(c)
  bool same = !copy && (dtype.tag != MOTH_V_DTYPE || dtype.u.i == self->dtype);
  if (device.tag == MOTH_V_DEVICE)
    same = same && device.u.i == moth_v_device(self->device).u.i;
  if (same)
    return moth_give_same(c, self);
  MothTensor *out;
  MOTH_TRY(moth_to_copy(self, dtype, device, non_blocking, &out));
  return moth_give(c, out);
}
