/* Linear algebra on CUDA devices: by the CPU's kernels, on copies of the arguments (MOTH_LOGS=device says so). Derivatives and
 * composites run on the device, as they are made of products. */
#include "kernels/cuda/util.h"

MothStatus moth_cuda_linalg_cholesky_ex(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_solve_triangular(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_linalg_lu_factor_ex(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_lu_rows(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_lu_solve(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_qr(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_geqrf(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_householder_product(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_ormqr(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_eigh(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_eig(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_svd(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_lstsq(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_linalg_ldl_factor_ex(MothCall *c) {
  return moth_call_on_cpu(c);
}
MothStatus moth_cuda_native_ldl_solve(MothCall *c) {
  return moth_call_on_cpu(c);
}
