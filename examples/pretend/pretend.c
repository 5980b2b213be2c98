/* A device of one's own, in one file of C: a type of device "pretend" with 64 MB of memory that the host cannot read, and
 * kernels for some ops. All other ops run on the CPU, on copies. pretend.lua compiles it and trains with it.
 *
 * The device is played by host memory: its addresses have the highest bit flipped, so that whoever reads or writes there
 * but the device crashes. */
#include <moth.h>
#include <stdlib.h>
#include <string.h>

static const size_t memory_size = (size_t)64 << 20;
static _Atomic size_t in_use;
static _Atomic int64_t launches;

static void *address(const void *p) {
  return (void *)((uintptr_t)p ^ (uintptr_t)1 << 63);
}

static void *device_alloc(int index, size_t n) {
  (void)index;
  void *p = in_use + n <= memory_size ? malloc(n ? n : 1) : NULL;
  if (!p) {
    moth_fail(MOTH_ERR_MEMORY, "the device 'pretend' has no %zu bytes left", n);
    return NULL;
  }
  in_use += n;
  return address(p);
}
static void device_free(int index, void *p, size_t n) {
  (void)index;
  in_use -= n;
  free(address(p));
}
static MothStatus to_host(int index, void *host, const void *device, size_t n) {
  (void)index;
  memcpy(host, address(device), n);
  return MOTH_OK;
}
static MothStatus from_host(int index, void *device, const void *host, size_t n) {
  (void)index;
  memcpy(address(device), host, n);
  return MOTH_OK;
}

/* The elements of a row-major float32 tensor, or NULL: the kernels below are for those. */
static float *elements(MothTensor *t) {
  bool plain = moth_tensor_dtype(t) == MOTH_FLOAT32 && moth_tensor_is_contiguous(t);
  return plain ? address(moth_tensor_data(t)) : NULL;
}

/* x + alpha * y, of the same shape. */
static MothStatus add(MothCall *c) {
  MothValue x = moth_call_arg(c, 0), y = moth_call_arg(c, 1), alpha = moth_call_arg(c, 2);
  MothTensor *out = moth_call_result(c, 0);
  float *o = elements(out), *a = x.tag == MOTH_V_TENSOR ? elements(x.u.t) : NULL,
        *b = y.tag == MOTH_V_TENSOR ? elements(y.u.t) : NULL;
  int64_t n = moth_tensor_numel(out);
  if (!o || !a || !b || moth_tensor_numel(x.u.t) != n || moth_tensor_numel(y.u.t) != n)
    return moth_call_on_cpu(c);
  float by = alpha.tag == MOTH_V_FLOAT ? (float)alpha.u.d : (float)alpha.u.i;
  launches++;
  for (int64_t i = 0; i < n; i++)
    o[i] = a[i] + by * b[i];
  return MOTH_OK;
}

/* (n, k) times (k, m) */
static MothStatus mm(MothCall *c) {
  MothTensor *x = moth_call_arg(c, 0).u.t, *y = moth_call_arg(c, 1).u.t,
             *out = moth_call_result(c, 0);
  float *a = elements(x), *b = elements(y), *o = elements(out);
  if (!a || !b || !o)
    return moth_call_on_cpu(c);
  int64_t n = moth_tensor_shape(x)[0], k = moth_tensor_shape(x)[1], m = moth_tensor_shape(y)[1];
  launches++;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < m; j++) {
      float sum = 0;
      for (int64_t l = 0; l < k; l++)
        sum += a[i * k + l] * b[l * m + j];
      o[i * m + j] = sum;
    }
  return MOTH_OK;
}

static MothStatus count(MothCall *c) {
  MothTensor *t;
  MothStatus s = moth_tensor_new(0, NULL, MOTH_INT64, moth_call_device(c), &t);
  if (s)
    return s;
  *(int64_t *)moth_tensor_data(t) = launches;
  return moth_call_set_result(c, 0, t);
}

MOTH_LIBRARY(pretend, m) {
  moth_def_backend(m, &(MothBackend){.name = "pretend",
                                     .alloc = device_alloc,
                                     .free = device_free,
                                     .to_host = to_host,
                                     .from_host = from_host,
                                     .fallback = moth_call_on_cpu});
  moth_impl(m, "add", "pretend", add);
  moth_impl(m, "mm", "pretend", mm);
  moth_def(m, "launches() -> Tensor", count); /* how many of its kernels have run */
}
