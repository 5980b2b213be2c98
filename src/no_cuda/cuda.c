#include "no_cuda/cuda.h"

#include "core/error.h"

const char *moth_cuda_why(void) {
  return "moth was built without CUDA";
}

static const char *why_not(int index) {
  (void)index;
  return moth_cuda_why();
}
static void *no_alloc(int index, size_t n) {
  (void)index;
  (void)n;
  return NULL;
}
static void no_free(int index, void *p, size_t n) {
  (void)index;
  (void)p;
  (void)n;
}
static MothStatus no_copy(void *to, const void *from, size_t n) {
  (void)to;
  (void)from;
  (void)n;
  return moth_fail(MOTH_ERR_STATE, "%s", moth_cuda_why());
}

const MothDeviceOps moth_cuda_device = {"cuda", why_not, no_alloc, no_free, no_copy, no_copy};
