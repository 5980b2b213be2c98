/* Ops that run on the host, as their records say (cuda = "host"): arguments and results travel. */
#include "kernels/cuda/util.h"

static MothStatus to_cpu(MothTensor *t, MothTensor **out) {
  MothDevice cpu = {MOTH_CPU, 0};
  MOTH_TRY(moth_tensor_new(t->ndim, t->shape, (MothDType)t->dtype, cpu, out));
  MothStatus s = moth_device_ops(MOTH_CUDA)->copy(*out, t, false);
  if (s != MOTH_OK) {
    moth_tensor_release(*out);
    *out = NULL;
  }
  return s;
}

/* Tensors of one call as they lie on the host; those that the op writes go back. */
struct Guests {
  enum { MAX = 64 };
  MothTensor *there[MAX], *here[MAX];
  int n = 0;
  ~Guests() {
    for (int i = 0; i < n; i++)
      moth_tensor_release(here[i]);
  }
  MothStatus bring(MothTensor *t, MothTensor **out) {
    for (int i = 0; i < n; i++)
      if (there[i] == t) {
        *out = here[i];
        return MOTH_OK;
      }
    if (t->device.type == MOTH_CPU) {
      *out = t;
      return MOTH_OK;
    }
    if (n == MAX)
      return moth_fail(MOTH_ERR_STATE, "too many tensors for a kernel that runs on the host");
    MOTH_TRY(to_cpu(t, &here[n]));
    there[n] = t;
    *out = here[n++];
    return MOTH_OK;
  }
};

MothStatus moth_cuda_via_host(MothCall *c) {
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  MothTensor *lists[Guests::MAX];
  int nlists = 0;
  Guests guests;
  cudaStream_t stream;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  for (int i = 0; i < c->op->nargs; i++) {
    args[i] = c->args[i];
    if (args[i].tag == MOTH_V_TENSOR)
      MOTH_TRY(guests.bring(args[i].u.t, &args[i].u.t));
    if (args[i].tag == MOTH_V_TENSORS) {
      if (nlists + (int)args[i].n > Guests::MAX)
        return moth_fail(MOTH_ERR_STATE, "too many tensors for a kernel that runs on the host");
      for (uint32_t k = 0; k < args[i].n; k++)
        MOTH_TRY(guests.bring(args[i].u.tensors[k], &lists[nlists + (int)k]));
      args[i].u.tensors = &lists[nlists];
      nlists += (int)args[i].n;
    }
  }
  for (int i = 0; i < c->op->nresults; i++) {
    results[i] = c->results[i];
    if (results[i].tag == MOTH_V_TENSOR)
      MOTH_TRY(guests.bring(results[i].u.t, &results[i].u.t));
  }
  MothCall here = *c;
  here.device = MothDevice{MOTH_CPU, 0};
  here.args = args;
  here.results = results;
  MOTH_TRY(c->op->kernels[MOTH_CPU](&here));
  const MothDeviceOps *ops = moth_device_ops(MOTH_CUDA);
  for (int i = 0; i < c->op->nresults; i++) {
    MothTensor *got = results[i].u.t;
    if (c->results[i].tag == MOTH_V_TENSOR) {
      MOTH_TRY(ops->copy(c->results[i].u.t, got, false));
      continue;
    }
    /* A result whose shape only the kernel knew. */
    MothTensor *there;
    MothStatus s = moth_tensor_new(got->ndim, got->shape, (MothDType)got->dtype, c->device, &there);
    if (s == MOTH_OK) {
      s = ops->copy(there, got, false);
      c->results[i] = moth_v_tensor(there);
    }
    moth_tensor_release(got);
    MOTH_TRY(s);
  }
  for (int i = 0; i < c->op->nargs; i++) {
    if (!c->op->args[i].mutated)
      continue;
    if (c->args[i].tag == MOTH_V_TENSOR && c->args[i].u.t != args[i].u.t)
      MOTH_TRY(ops->copy(c->args[i].u.t, args[i].u.t, false));
    for (uint32_t k = 0; c->args[i].tag == MOTH_V_TENSORS && k < c->args[i].n; k++)
      if (c->args[i].u.tensors[k] != args[i].u.tensors[k])
        MOTH_TRY(ops->copy(c->args[i].u.tensors[k], args[i].u.tensors[k], false));
  }
  return MOTH_OK;
}
