/* What src/io and src/comm need of the core, so that they can be tested without the rest of moth. There are no tensors:
 * making one is refused. */
#include "core/alloc.h"
#include "core/error.h"
#include "core/parallel.h"

int64_t moth_dtype_size(MothDType d) {
  static const int64_t sizes[MOTH_NDTYPES] = {
#define MOTH_X(upper, name, type, ...) sizeof(type),
      MOTH_DTYPE_LIST(MOTH_X)
#undef MOTH_X
  };
  return (unsigned)d < MOTH_NDTYPES ? sizes[d] : 0;
}

const char *moth_dtype_name(MothDType d) {
  static const char *const names[MOTH_NDTYPES] = {
#define MOTH_X(upper, name, type, ...) #name,
      MOTH_DTYPE_LIST(MOTH_X)
#undef MOTH_X
  };
  return (unsigned)d < MOTH_NDTYPES ? names[d] : "?";
}

const volatile sig_atomic_t *moth_interrupt_flag(void) {
  return NULL;
}

MothStatus moth_no_memory(size_t bytes) {
  return moth_fail(MOTH_ERR_MEMORY, "out of memory: could not allocate %zu bytes", bytes);
}

MothStatus moth_interrupted(void) {
  return moth_fail(MOTH_ERR_INTERRUPTED, "interrupted");
}

void moth_parallel_for(int64_t n, int64_t grain, MothRange fn, void *ctx) {
  (void)grain;
  if (n > 0)
    fn(ctx, 0, n);
}

bool moth_dtype_is_float(MothDType d) {
  return d == MOTH_FLOAT32 || d == MOTH_FLOAT64 || d == MOTH_FLOAT16 || d == MOTH_BFLOAT16;
}

MothStatus moth_tensor_new(int ndim, const int64_t *shape, MothDType dtype, MothDevice device,
                           MothTensor **out) {
  (void)ndim, (void)shape, (void)dtype, (void)device, (void)out;
  return moth_fail(MOTH_ERR_MEMORY, "no tensors");
}

MothStatus moth_tensor_from_ptr(void *data, int ndim, const int64_t *shape, MothDType dtype,
                                void (*release)(void *ctx), void *ctx, MothTensor **out) {
  (void)data, (void)ndim, (void)shape, (void)dtype, (void)release, (void)ctx, (void)out;
  return moth_fail(MOTH_ERR_MEMORY, "no tensors");
}

void moth_tensor_retain(MothTensor *t) {
  (void)t;
}
void moth_tensor_release(MothTensor *t) {
  (void)t;
}
