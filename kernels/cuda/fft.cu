/* native_fft_c2c, native_fft_r2c and native_fft_c2r on the host: copies of the tensors, and the CPU's kernels. */
#include "kernels/cuda/util.h"

static MothStatus on_host(MothCall *c) {
  MothValue in = moth_v_none(), made = moth_v_none();
  MothValue args[MOTH_MAX_ARGS], cpu[3] = {c->args[0], moth_v_none(), moth_v_device({MOTH_CPU, 0})};
  uint32_t exclude = moth_thread_state()->exclude;
  moth_thread_state()->exclude |= MOTH_KEY_AUTOGRAD | MOTH_KEY_ABOVE | MOTH_KEY_BELOW;
  MothStatus s = moth_op_call(MOTH_OP(to), 3, cpu, &in);
  if (s == MOTH_OK) {
    for (int i = 0; i < c->op->nargs; i++)
      args[i] = c->args[i];
    args[0] = in;
    s = moth_op_call(c->op, c->op->nargs, args, &made);
  }
  moth_thread_state()->exclude = exclude;
  if (s == MOTH_OK)
    s = moth_cuda_copy_across(c->results[0].u.t, made.u.t, false);
  moth_tensor_release(in.u.t);
  moth_tensor_release(made.u.t);
  return s;
}

MothStatus moth_cuda_native_fft_c2c(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_fft_r2c(MothCall *c) {
  return on_host(c);
}
MothStatus moth_cuda_native_fft_c2r(MothCall *c) {
  return on_host(c);
}
