/* Calls that a device leaves to the CPU: its kernel runs on copies of the arguments, and what it writes is copied back.
 *
 * A tensor is copied with the bytes between its elements, so that the copy has its strides and what is not written stays
 * as it was: the device only moves bytes. */
#include "dispatch/on_cpu.h"

#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/tensor.h"
#include "device/device.h"
#include "dispatch/dispatch.h"

enum { MOST = MOTH_MAX_ARGS + MOTH_MAX_RESULTS };
typedef MothHostCopy Copy;

/* The bytes that the elements of t lie in: their number, and where the first element is among them. */
static int64_t extent(const MothTensor *t, int64_t *first) {
  int64_t low = 0, high = 0;
  *first = 0;
  if (t->numel == 0)
    return 0;
  for (int i = 0; i < t->ndim; i++) {
    int64_t reach = t->stride[i] * (t->shape[i] - 1);
    low += reach < 0 ? reach : 0;
    high += reach > 0 ? reach : 0;
  }
  *first = -low;
  return high - low + 1;
}

MothStatus moth_host_fetch(Copy *c, MothTensor *t, bool elements) {
  MothDevice cpu = {MOTH_CPU, 0};
  int64_t n = extent(t, &c->first), size = moth_itemsize(t);
  c->of = t;
  MOTH_TRY(moth_tensor_new(1, &n, (MothDType)t->dtype, cpu, &c->whole));
  if (n && (elements || n != t->numel))
    MOTH_TRY(moth_memory(t->device.type)
                 ->to_host(t->device.index, c->whole->data, (char *)t->data - c->first * size,
                           (size_t)(n * size)));
  return moth_tensor_view(c->whole, t->ndim, t->shape, t->stride, c->first, &c->view);
}

MothStatus moth_host_send(const Copy *c) {
  MothTensor *t = c->of;
  int64_t size = moth_itemsize(t);
  if (!c->whole->numel)
    return MOTH_OK;
  return moth_memory(t->device.type)
      ->from_host(t->device.index, (char *)t->data - c->first * size, c->whole->data,
                  (size_t)(c->whole->numel * size));
}

void moth_host_drop(Copy *c) {
  moth_tensor_release(c->view);
  moth_tensor_release(c->whole);
}

/* A result that the kernel has made itself, as its sizes depend on elements. */
static MothStatus move_result(MothCall *c, int i, MothTensor *made) {
  MothTensor *t;
  MOTH_TRY(moth_tensor_new(made->ndim, made->shape, (MothDType)made->dtype, c->device, &t));
  size_t bytes = (size_t)(made->numel * moth_itemsize(made));
  MothStatus s =
      bytes && !made->contiguous
          ? moth_fail(MOTH_ERR_STATE, "the kernel of the CPU made a strided result")
      : bytes ? moth_memory(t->device.type)->from_host(t->device.index, t->data, made->data, bytes)
              : MOTH_OK;
  if (s != MOTH_OK) {
    moth_tensor_release(t);
    return s;
  }
  c->results[i] = moth_v_tensor(t);
  return MOTH_OK;
}

MothStatus moth_call_on_cpu(MothCall *c) {
  if (!c)
    return moth_fail(MOTH_ERR_VALUE, "call_on_cpu: an argument is NULL");
  const MothOp *op = c->op;
  MothKernel kernel = moth_kernel_of(op, MOTH_CPU);
  MothCall call = *c;
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  Copy copies[MOST] = {{0}}, *lists = NULL;
  int n = 0, nlists = 0, at = 0;
  size_t size = 0;
  MothTensor **listed = NULL;
  MothStatus status = MOTH_OK;
  if (!kernel)
    return moth_fail(MOTH_ERR_TYPE, "'%s' has no kernel for the CPU either", op->name);
  if (moth_log_on("device"))
    moth_log_write("device", "%s runs on the CPU: arguments and results are copied", op->name);
  call.device = (MothDevice){MOTH_CPU, 0};
  call.args = args;
  call.results = results;
  for (int i = 0; i < op->nargs; i++)
    nlists += c->args[i].tag == MOTH_V_TENSORS ? (int)c->args[i].n : 0;
  if (nlists) {
    size = (size_t)nlists * (sizeof *lists + sizeof *listed);
    lists = moth_alloc(size);
    if (!lists)
      return moth_no_memory(size);
    memset(lists, 0, size);
    listed = (MothTensor **)(lists + nlists);
  }
  for (int i = 0; i < op->nresults; i++)
    results[i] = moth_v_none();
  for (int i = 0; i < op->nargs; i++) {
    args[i] = c->args[i];
    if (args[i].tag == MOTH_V_TENSOR) {
      Copy *copy = &copies[n++];
      MOTH_GO(moth_host_fetch(copy, args[i].u.t, true));
      args[i].u.t = copy->view;
    } else if (args[i].tag == MOTH_V_TENSORS) {
      args[i].u.tensors = listed + at;
      for (uint32_t k = 0; k < args[i].n; k++, at++) {
        MOTH_GO(moth_host_fetch(&lists[at], c->args[i].u.tensors[k], true));
        listed[at] = lists[at].view;
      }
    }
  }
  int nargs = n;
  for (int i = 0; i < op->nresults; i++) {
    MothTensor *r = c->results[i].tag == MOTH_V_TENSOR ? c->results[i].u.t : NULL;
    Copy *copy = NULL;
    for (int k = 0; r && k < nargs && !copy; k++)
      if (copies[k].of == r)
        copy = &copies[k]; /* an argument that is written to, and returned */
    if (r && !copy) {
      copy = &copies[n++];
      MOTH_GO(moth_host_fetch(copy, r, false));
    }
    if (copy)
      results[i] = moth_v_tensor(copy->view);
  }
  MOTH_GO(kernel(&call));
  for (int i = 0; i < op->nresults; i++) {
    if (c->results[i].tag != MOTH_V_TENSOR && results[i].tag == MOTH_V_TENSOR) {
      MothTensor *made = results[i].u.t;
      status = move_result(c, i, made);
      moth_tensor_release(made);
      results[i] = moth_v_none();
      if (status != MOTH_OK)
        goto done;
    }
  }
  at = 0;
  for (int i = 0, k = 0; i < op->nargs; i++) {
    bool mutated = op->args[i].mutated;
    if (args[i].tag == MOTH_V_TENSOR) {
      if (mutated)
        MOTH_GO(moth_host_send(&copies[k]));
      k++;
    }
    for (uint32_t j = 0; args[i].tag == MOTH_V_TENSORS && j < args[i].n; j++, at++)
      if (mutated)
        MOTH_GO(moth_host_send(&lists[at]));
  }
  for (int k = nargs; k < n; k++)
    MOTH_GO(moth_host_send(&copies[k]));
done:
  for (int k = 0; k < n; k++)
    moth_host_drop(&copies[k]);
  for (int k = 0; k < nlists; k++)
    moth_host_drop(&lists[k]);
  moth_free(lists, size);
  return status;
}
