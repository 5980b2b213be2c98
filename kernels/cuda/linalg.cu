/* Linear algebra on CUDA devices: by the CPU's kernels, on copies of the arguments (MOTH_LOGS=linalg says so). Derivatives and
 * composites run on the device, as they are made of products. */
#include "kernels/cuda/util.h"
extern "C" {
#include "core/log.h"
#include "ops/create.h"
}

namespace {

struct Host {
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  int nargs = 0, nresults = 0;
  ~Host() {
    for (int i = 0; i < nargs; i++)
      if (args[i].tag == MOTH_V_TENSOR)
        moth_tensor_release(args[i].u.t);
    for (int i = 0; i < nresults; i++)
      if (results[i].tag == MOTH_V_TENSOR)
        moth_tensor_release(results[i].u.t);
  }
};

/* dst = src, of another device. */
MothStatus copy(MothTensor *dst, MothTensor *src) {
  return moth_copy_(dst, src, false);
}

MothStatus on_host(MothCall *c) {
  Host h;
  MothDevice cpu = {MOTH_CPU, 0};
  if (moth_log_on("linalg"))
    moth_log_write("linalg", "%s runs on the CPU: arguments and results are copied", c->op->name);
  for (; h.nargs < c->op->nargs; h.nargs++) {
    MothValue v = c->args[h.nargs];
    h.args[h.nargs] = v;
    if (v.tag != MOTH_V_TENSOR)
      continue;
    MothTensor *t = nullptr;
    h.args[h.nargs] = moth_v_none();
    MOTH_TRY(moth_tensor_new(v.u.t->ndim, v.u.t->shape, (MothDType)v.u.t->dtype, cpu, &t));
    h.args[h.nargs] = moth_v_tensor(t);
    MothStatus s = copy(t, v.u.t);
    if (s != MOTH_OK) {
      h.nargs++;
      return s;
    }
  }
  for (; h.nresults < c->op->nresults; h.nresults++) {
    MothTensor *r = c->results[h.nresults].u.t, *t = nullptr;
    MOTH_TRY(moth_tensor_new(r->ndim, r->shape, (MothDType)r->dtype, cpu, &t));
    h.results[h.nresults] = moth_v_tensor(t);
  }
  MothCall call = *c;
  call.device = cpu;
  call.args = h.args;
  call.results = h.results;
  MOTH_TRY(c->op->kernels[MOTH_CPU](&call));
  for (int i = 0; i < h.nresults; i++)
    MOTH_TRY(copy(c->results[i].u.t, h.results[i].u.t));
  return MOTH_OK;
}

} // namespace

MothStatus moth_cuda_linalg_cholesky_ex(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_solve_triangular(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_linalg_lu_factor_ex(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_lu_rows(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_lu_solve(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_qr(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_geqrf(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_householder_product(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_ormqr(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_eigh(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_eig(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_svd(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_lstsq(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_linalg_ldl_factor_ex(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_ldl_solve(MothCall *c) {
  return on_host(c);
}
