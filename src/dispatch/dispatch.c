/* The steps of a call. See dispatch.h. */
#include "dispatch/dispatch.h"
#include "dispatch/parts.h"

#include <string.h>

#include "core/defaults.h"
#include "core/dtype.h"
#include "core/log.h"
#include "core/parallel.h"
#include "device/device.h"
#include "dispatch/async.h"
#include "dispatch/autocast.h"
#include "dispatch/batch.h"
#include "dispatch/define.h"
#include "dispatch/lazy.h"
#include "dispatch/steps.h"
#include "dispatch/subclass.h"

MothStatus (*moth_autograd_step)(MothCall *c);
MothStatus (*moth_tangent_step)(MothCall *c);
MothStatus (*moth_subclass_step)(MothCall *c);
MothStatus (*moth_lazy_revive)(MothTensor *t);
bool (*moth_follow)(MothCall *c, MothStatus *status);
const MothObserver *moth_observer;

enum {
  SLOW_KEYS = MOTH_KEY_SUBCLASS | MOTH_KEY_BELOW | MOTH_KEY_AUTOGRAD | MOTH_KEY_AUTOCAST |
              MOTH_KEY_ABOVE | MOTH_KEY_LAZY | MOTH_KEY_BATCH | MOTH_KEY_TANGENT
};

/* --- below all steps: shape rule, kernel, target ---------------------------------------------------- */

static void release_results(MothCall *c) {
  for (int i = 0; i < c->op->nresults; i++) {
    if (c->results[i].tag == MOTH_V_TENSOR)
      moth_tensor_release(c->results[i].u.t);
    c->results[i] = moth_v_none();
  }
}

static const char *backend_name(int device_type) {
  return moth_memory(device_type)->name;
}

static MothStatus no_kernel(MothCall *c) {
  MothKernel fallback = moth_device_ops((MothDeviceType)c->device.type)->fallback;
  if (fallback)
    return fallback(c);
  char have[64 * MOTH_NDEVICES] = "";
  for (int i = 0; i < MOTH_NDEVICES; i++)
    if (moth_kernel_of(c->op, i)) {
      strcat(have, have[0] ? ", " : "");
      strcat(have, backend_name(i));
    }
  return moth_fail(
      MOTH_ERR_TYPE,
      "could not run 'moth::%s' with arguments from the '%s' backend; there are kernels "
      "for: %s",
      c->op->name, backend_name(c->device.type), have[0] ? have : "none");
}

/* Copies results to targets of another dtype or layout, by the kernel of copy_. */
static MothStatus copy_to(MothTensor *target, MothTensor *result) {
  MothValue args[MOTH_MAX_ARGS] = {moth_v_tensor(target), moth_v_tensor(result)};
  MothValue out[1] = {moth_v_none()};
  uint32_t exclude = moth_thread.exclude;
  int64_t version = *moth_version_of(target);
  moth_thread.exclude |= SLOW_KEYS;
  MothStatus s = moth_op_call(MOTH_OP(copy_), 2, args, out);
  moth_thread.exclude = exclude;
  *moth_version_of(target) = version; /* one write, which the caller notes */
  if (s == MOTH_OK)
    moth_tensor_release(out[0].u.t);
  return s;
}

static MothStatus put_in_target(MothCall *c, int i) {
  MothTensor *target = c->target[i], *result = c->results[i].u.t;
  char a[200], b[200];
  if (result == target)
    return MOTH_OK;
  if (target->ndim != result->ndim ||
      memcmp(target->shape, result->shape, sizeof(int64_t) * result->ndim) != 0)
    return moth_fail(MOTH_ERR_VALUE,
                     "the result has shape %s but is to be written to a tensor of shape %s",
                     moth_shape_format(result->ndim, result->shape, a, sizeof a),
                     moth_shape_format(target->ndim, target->shape, b, sizeof b));
  if (moth_dtype_class((MothDType)result->dtype) > moth_dtype_class((MothDType)target->dtype))
    return moth_fail(MOTH_ERR_TYPE, "result type %s can't be cast to the desired output type %s",
                     moth_dtype_name((MothDType)result->dtype),
                     moth_dtype_name((MothDType)target->dtype));
  if (!(c->keys & MOTH_KEY_FAKE))
    MOTH_TRY(copy_to(target, result));
  moth_tensor_retain(target);
  c->results[i] = moth_v_tensor(target);
  moth_tensor_release(result);
  return MOTH_OK;
}

MothStatus moth_put_in_targets(MothCall *c) {
  for (int i = 0; c->target && i < c->op->nresults; i++) {
    MothTensor *result = c->results[i].u.t;
    if (result != c->target[i] && moth_tensor_overlap(result, c->target[i]) == 1) {
      moth_tensor_retain(c->target[i]); /* an alias of it */
      c->results[i] = moth_v_tensor(c->target[i]);
      moth_tensor_release(result);
    }
    MothStatus s = put_in_target(c, i);
    if (s != MOTH_OK) {
      release_results(c);
      return s;
    }
  }
  return MOTH_OK;
}

/* Notes that t was written to; under fake mode a real tensor was not. */
static void bump(const MothCall *c, MothTensor *t) {
  if (!(c->keys & MOTH_KEY_FAKE) || t->keys & MOTH_KEY_FAKE)
    ++*moth_version_of(t);
}

/* A batch norm by its running statistics leaves them as they are. */
static bool only_reads(const MothCall *c) {
  return c->op == MOTH_OP(native_batch_norm) && !c->args[5].u.b;
}

static void bump_versions(MothCall *c) {
  if (c->target)
    for (int i = 0; i < c->op->nresults; i++)
      bump(c, c->target[i]);
  for (int i = 0; i < c->op->nargs && !only_reads(c); i++) {
    if (!c->op->args[i].mutated || (c->target && i == 0))
      continue;
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR)
      bump(c, v.u.t);
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      bump(c, v.u.tensors[k]);
  }
}

/* Composites that write to arguments run to their end: Ctrl-C must not stop one between two writes. */
static _Thread_local int writers;

static bool writes(const MothCall *c) {
  bool any = c->target || c->op->returns_self;
  for (int i = 0; i < c->op->nargs; i++)
    any = any || c->op->args[i].mutated;
  return any;
}

/* Runs a composite. Its parts allocate the results; the out variant copies them. */
static MothStatus expand(MothCall *c) {
  bool writer = moth_defaults()->interrupt && writes(c);
  writers += writer;
  MothStatus made = c->op->composite(c);
  writers -= writer;
  if (made == MOTH_OK && c->op->defined && (made = moth_check_defined(c)) != MOTH_OK)
    release_results(c);
  MOTH_TRY(made);
  if (c->variant != MOTH_OUT)
    return MOTH_OK;
  MothStatus s = MOTH_OK;
  for (int i = 0; i < c->op->nresults && s == MOTH_OK; i++) {
    if (((c->results[i].u.t->keys | c->target[i]->keys) & MOTH_KEY_AUTOGRAD) &&
        !moth_thread.no_grad)
      s = moth_fail(MOTH_ERR_STATE, "functions with out arguments don't support automatic "
                                    "differentiation, but one of the arguments requires grad");
    else
      s = put_in_target(c, i);
  }
  if (s == MOTH_OK)
    bump_versions(c);
  else
    release_results(c);
  return s;
}

static MothStatus run_composite(MothCall *c) {
  /* Without Autograd: its parts must not be recorded a second time. */
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= MOTH_KEY_AUTOGRAD;
  MothStatus s = expand(c);
  moth_thread.exclude = exclude;
  return s;
}

/* All tensors of a call must be on one device, but for a 0-dim tensor of the CPU in a pointwise op. */
static MothStatus check_devices(MothCall *c) {
  const MothOp *op = c->op;
  const MothTensor *first = NULL, *other = NULL;
  const char *first_name = "", *other_name = "";
  int nlists = op->nargs + (c->target ? op->nresults : 0);
  for (int i = 0; i < nlists && !other; i++) {
    bool target = i >= op->nargs;
    const char *name = target ? "out" : op->args[i].name;
    MothValue v = target ? moth_v_tensor(c->target[i - op->nargs]) : c->args[i];
    uint32_t n = v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
    for (uint32_t k = 0; k < n && !other; k++) {
      const MothTensor *t = v.tag == MOTH_V_TENSOR ? v.u.t : v.u.tensors[k];
      bool number = op->kind == MOTH_KIND_POINTWISE && t->ndim == 0 && t->device.type == MOTH_CPU;
      if (number && !target && !(c->target && c->target[0] == t))
        continue;
      if (!first) {
        first = t;
        first_name = name;
      } else if (t->device.type != first->device.type || t->device.index != first->device.index) {
        other = t;
        other_name = name;
      }
    }
  }
  if (!other) {
    c->device = first->device;
    return MOTH_OK;
  }
  char a[32], b[32];
  return moth_fail(
      MOTH_ERR_VALUE,
      "Expected all tensors to be on the same device, but found %s on %s and %s on %s; "
      "move them with x:to(device)",
      first_name, moth_device_format(first->device, a, sizeof a), other_name,
      moth_device_format(other->device, b, sizeof b));
}

/* The device of a call with tensors that are not on the CPU. The parts of a composite find theirs. */
static MothStatus settle_device(MothCall *c) {
  const MothOp *op = c->op;
  uint32_t devices = c->keys & MOTH_KEYS_DEVICE;
  if (op->composite && !op->keep)
    return MOTH_OK;
  if (!devices && op->factory) {
    for (int i = 0; i < op->nargs; i++)
      if (op->args[i].type == MOTH_T_DEVICE && c->args[i].tag == MOTH_V_DEVICE)
        c->device = (MothDevice){(uint8_t)(c->args[i].u.i >> 8), (uint8_t)c->args[i].u.i};
    if (c->device.type == MOTH_META)
      c->keys |= MOTH_KEY_FAKE;
  } else if (devices & (devices - 1) || devices == MOTH_KEY_CUDA) {
    if (!op->cross_device)
      return check_devices(c);
    c->device.type = (uint8_t)__builtin_ctz(devices & ~(uint32_t)MOTH_KEY_CPU);
  } else if (devices) {
    c->device.type = (uint8_t)__builtin_ctz(devices);
  }
  return MOTH_OK;
}

/* Ctrl-C stops a kernel in the middle if nothing but fresh results is lost: core/parallel.h. */
static inline MothStatus run_kernel(MothCall *c, MothKernel kernel) {
  const volatile sig_atomic_t *flag = moth_defaults()->interrupt;
  if (__builtin_expect(c->keys & MOTH_KEY_PENDING, 0)) {
    bool queued;
    MOTH_TRY(moth_queue_kernel(c, kernel, &queued));
    if (queued)
      return MOTH_OK;
  }
  if (__builtin_expect(!flag, 1))
    return kernel(c);
  bool fresh = !writers && !writes(c);
  const volatile sig_atomic_t *outer = moth_stop;
  moth_stop = fresh ? flag : NULL;
  MothStatus s = kernel(c);
  moth_stop = outer;
  return fresh && *flag ? moth_interrupted() : s; /* skipped parts may be why it failed */
}

/* Tensors of a dtype for storage are allowed in ops whose records name it, and in views. */
static MothStatus check_opt_in(const MothCall *c) {
  const MothOp *op = c->op;
  if (op->kind == MOTH_KIND_POINTWISE || op->kind == MOTH_KIND_VIEW ||
      op->kind == MOTH_KIND_COMPOSITE)
    return MOTH_OK;
  for (int i = 0; i < op->nargs; i++) {
    MothValue v = c->args[i];
    uint32_t n = v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
    for (uint32_t k = 0; k < n; k++)
      MOTH_TRY(moth_check_opt_in(
          op, (MothDType)(v.tag == MOTH_V_TENSOR ? v.u.t : v.u.tensors[k])->dtype));
  }
  return MOTH_OK;
}

/* A call with a fake tensor computes nothing: outside fake mode, a real tensor that it should write to would silently
 * not change. */
static MothStatus check_written(const MothCall *c) {
  const MothTensor *real = NULL;
  for (int i = 0; c->target && i < c->op->nresults; i++)
    if (!(c->target[i]->keys & MOTH_KEY_FAKE))
      real = c->target[i];
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (!c->op->args[i].mutated)
      continue;
    if (v.tag == MOTH_V_TENSOR && !(v.u.t->keys & MOTH_KEY_FAKE))
      real = v.u.t;
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      if (!(v.u.tensors[k]->keys & MOTH_KEY_FAKE))
        real = v.u.tensors[k];
  }
  return real ? moth_fail(MOTH_ERR_STATE,
                          "a real tensor cannot take the values of a fake one, which has none")
              : MOTH_OK;
}

static MothStatus check_lasts(const MothTensor *t) {
  return t->storage->computed
             ? moth_fail(MOTH_ERR_STATE,
                         "what is written to this tensor is lost: a module computes it each time "
                         "its field is read (nn.utils.parametrize, nn.utils.prune). Assign a value "
                         "to the field, write to the parameter that it is computed from, or to a "
                         "clone()")
             : MOTH_OK;
}

/* An error if a call writes to a tensor of which nobody would see it. */
static MothStatus check_lost(const MothCall *c) {
  for (int i = 0; c->target && i < c->op->nresults; i++)
    MOTH_TRY(check_lasts(c->target[i]));
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (!c->op->args[i].mutated)
      continue;
    if (v.tag == MOTH_V_TENSOR)
      MOTH_TRY(check_lasts(v.u.t));
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      MOTH_TRY(check_lasts(v.u.tensors[k]));
  }
  return MOTH_OK;
}

/* An error if the memory of a storage was released, or has moved. */
static MothStatus check_memory(const MothCall *c) {
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    uint32_t n = v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
    for (uint32_t k = 0; k < n; k++)
      MOTH_TRY(moth_tensor_check_memory(v.tag == MOTH_V_TENSOR ? v.u.t : v.u.tensors[k]));
  }
  for (int i = 0; c->target && i < c->op->nresults; i++)
    MOTH_TRY(moth_tensor_check_memory(c->target[i]));
  return MOTH_OK;
}

/* Whether a kernel for floats is to compute complex results, or from complex arguments. */
static inline bool sees_parts(const MothCall *c) {
  const MothOp *op = c->op;
  bool made = op->nresults && c->results[0].tag == MOTH_V_TENSOR;
  if (__builtin_expect(
          !((c->keys | (made ? c->results[0].u.t->keys : 0)) & (uint32_t)MOTH_KEY_OPT_IN), 1))
    return false;
  bool any = made && moth_dtype_is_complex((MothDType)c->results[0].u.t->dtype);
  for (int i = 0; i < op->nargs && !any; i++) {
    MothValue v = c->args[i];
    uint32_t n = v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
    for (uint32_t k = 0; k < n; k++)
      any |= moth_dtype_is_complex(
          (MothDType)(v.tag == MOTH_V_TENSOR ? v.u.t : v.u.tensors[k])->dtype);
  }
  return any;
}

static MothStatus no_rule(const MothOp *op);
static MothStatus wait_for_lazy(MothCall *c);

/* A call with tensors of the device meta, or whose results are there: it computes nothing. Results elsewhere need values,
 * but for those of factories (zeros_like), unless all new tensors are fake. */
static MothStatus settle_meta(MothCall *c) {
  if (c->device.type == MOTH_META) {
    c->keys |= MOTH_KEY_FAKE;
    return MOTH_OK;
  }
  if (moth_thread.include & MOTH_KEY_FAKE)
    return MOTH_OK;
  if (c->op->kind != MOTH_KIND_FACTORY)
    return moth_fail(MOTH_ERR_STATE,
                     "a tensor of the device meta has no values that could be copied; make one of "
                     "its size by empty_like(x, { device = \"cpu\" }), the tensors of a module by "
                     "to_empty { device = \"cpu\" }");
  c->keys &= ~(uint32_t)MOTH_KEY_FAKE;
  return MOTH_OK;
}

static MothStatus run_backend(MothCall *c) {
  const MothOp *op = c->op;
  if (__builtin_expect((c->keys & ~moth_thread.include) & MOTH_KEY_FAKE, 0))
    MOTH_TRY(check_written(c));
  if (c->target || !op->drops)
    MOTH_TRY(check_lost(c));
  if (op->composite && !moth_kernel_of(op, c->device.type))
    return run_composite(c);
  if (__builtin_expect(c->keys & MOTH_KEY_OPT_IN, 0))
    MOTH_TRY(check_opt_in(c));
  bool computes = op->kind != MOTH_KIND_VIEW && !(c->keys & MOTH_KEY_FAKE);
  if (__builtin_expect(
          computes && atomic_load_explicit(&moth_released_storages, memory_order_relaxed) != 0, 0))
    MOTH_TRY(check_memory(c));
  MothStatus s = MOTH_OK;
  if (__builtin_expect(op->shape != NULL, 1)) {
    MothMeta metas[MOTH_MAX_RESULTS];
    metas[0].compute = 0;
    metas[0].device = c->device;
    for (int i = 1; i < op->nresults; i++)
      metas[i].device = c->device;
    MOTH_TRY(op->shape(c, metas));
    c->dtype = metas[0].compute;
    c->device = metas[0].device;
    if (__builtin_expect((c->keys & MOTH_KEY_META) || c->device.type == MOTH_META, 0)) {
      MOTH_TRY(settle_meta(c));
      computes = op->kind != MOTH_KIND_VIEW && !(c->keys & MOTH_KEY_FAKE);
    }
    s = moth_make_results(c, metas);
    if (__builtin_expect(s != MOTH_OK, 0)) {
      release_results(c); /* the first of two may be allocated */
      return s;
    }
  } else if (op->returns_self) {
    moth_tensor_retain(c->target[0]);
    c->results[0] = moth_v_tensor(c->target[0]);
  } else if (op->fake && (c->keys & MOTH_KEY_FAKE)) {
    s = op->fake(c);
    if (s != MOTH_OK) {
      release_results(c);
      return s;
    }
  }
  if (computes) {
    MothKernel kernel = moth_kernel_of(op, c->device.type);
    if (__builtin_expect(op->cpu_complex && c->device.type != MOTH_CPU, 0) && sees_parts(c))
      s = moth_call_on_cpu(c);
    else if (kernel && __builtin_expect(!op->own_complex, 0) && sees_parts(c))
      s = moth_run_parts(c, kernel);
    else
      s = kernel ? run_kernel(c, kernel) : no_kernel(c);
  } else if (op->defined && !op->fake && op->nresults && !op->returns_self) {
    s = moth_fail(MOTH_ERR_STATE, "the op has no fake function, which gives shape and dtype of the "
                                  "results; define it with `fake` or `shape`");
  } else if (!op->shape && !op->defined) {
    s = no_rule(op);
  }
  if (op->defined && s == MOTH_OK)
    s = moth_check_defined(c);
  if (c->target && s == MOTH_OK)
    for (int i = 0; i < op->nresults && s == MOTH_OK; i++)
      s = put_in_target(c, i);
  if (s != MOTH_OK) {
    release_results(c);
    return s;
  }
  if (c->target || !op->drops) /* it writes to tensors */
    bump_versions(c);
  return MOTH_OK;
}

/* --- the steps above -------------------------------------------------------------------------- */

MothStatus moth_redispatch(MothCall *c) {
  if (__builtin_expect(!(c->keys & SLOW_KEYS), 1))
    return c->op->composite && !c->op->keep ? expand(c) : run_backend(c);
  if (c->keys & MOTH_KEY_ABOVE)
    return moth_intercept(c, true);
  if (c->keys & MOTH_KEY_LAZY)
    return wait_for_lazy(c);
  if (c->keys & MOTH_KEY_AUTOCAST)
    return moth_autocast(c);
  if (c->op->composite && !c->op->keep) /* expanded here: its parts come through the dispatcher */
    return expand(c);
  if (c->keys & MOTH_KEY_TANGENT) {
    c->keys &= ~(uint32_t)MOTH_KEY_TANGENT;
    return moth_tangent_step(c);
  }
  if (c->keys & MOTH_KEY_AUTOGRAD) {
    c->keys &= ~(uint32_t)MOTH_KEY_AUTOGRAD;
    if (moth_autograd_step)
      return moth_autograd_step(c);
    return moth_redispatch(c);
  }
  if (c->keys & MOTH_KEY_BELOW)
    return moth_intercept(c, false);
  if (c->keys & MOTH_KEY_BATCH) {
    c->keys &= ~(uint32_t)MOTH_KEY_BATCH;
    return moth_batch_step(c);
  }
  c->keys &= ~(uint32_t)MOTH_KEY_SUBCLASS;
  if (!moth_subclass_step)
    return moth_redispatch(c);
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= MOTH_KEY_SUBCLASS;
  MothStatus s = moth_subclass_step(c);
  moth_thread.exclude = exclude;
  return s;
}

/* "; got self: float32 [2, 3] cpu, other: 3" behind the message. */
static void describe_args(const MothCall *c) {
  char buf[256];
  bool first = true;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (v.tag != MOTH_V_TENSOR && v.tag != MOTH_V_TENSORS)
      continue;
    for (uint32_t k = 0; k < (v.tag == MOTH_V_TENSORS ? v.n : 1) && k < 4; k++) {
      MothTensor *t = v.tag == MOTH_V_TENSORS ? v.u.tensors[k] : v.u.t;
      moth_error_append("%s%s: %s", first ? "; got " : ", ", c->op->args[i].name,
                        moth_tensor_format(t, buf, sizeof buf));
      first = false;
    }
  }
}

/* Puts name and arguments of the outermost call into the message: the user called conv1d, not the conv2d inside. */
void moth_call_failed(const MothCall *c) {
  moth_error_prefix("[%s%s] ", c->op->name,
                    c->variant == MOTH_INPLACE && !c->op->returns_self ? "_" : "");
  describe_args(c);
}
static MothStatus failed(const MothCall *c, MothStatus s) {
  if (s != MOTH_ERR_HOST && s != MOTH_ERR_INTERRUPTED)
    moth_call_failed(c);
  return s;
}

MothStatus moth_run_bound(MothCall *c, MothKernel kernel) {
  const MothObserver *o = moth_observed();
  int64_t at = o ? o->begin_call(c) : -1;
  MothStatus s = run_kernel(c, kernel);
  if (o)
    o->end_call(at, c, s);
  return __builtin_expect(s == MOTH_OK, 1) ? MOTH_OK : failed(c, s);
}

const volatile sig_atomic_t *moth_stoppable_begin(void) {
  const volatile sig_atomic_t *outer = moth_stop;
  moth_stop = writers ? NULL : moth_interrupt_flag();
  return outer;
}

MothStatus moth_stoppable_end(const volatile sig_atomic_t *outer) {
  bool stopped = moth_stopped();
  moth_stop = outer;
  return stopped ? moth_interrupted() : MOTH_OK;
}

/* An interceptor that runs Lua may free the call's tensors: arguments and targets are retained until it returns. */
static void each_argument(const MothCall *c, void (*each)(MothTensor *t)) {
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR)
      each(v.u.t);
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      each(v.u.tensors[k]);
  }
  for (int i = 0; c->target && i < c->op->nresults; i++)
    each(c->target[i]);
}

enum {
  INTERCEPTED = MOTH_KEY_ABOVE | MOTH_KEY_BELOW | MOTH_KEY_SUBCLASS | MOTH_KEY_LAZY |
                MOTH_KEY_BATCH | MOTH_KEY_TANGENT
};

/* Runs a call that is not all on the CPU, is intercepted, or whose arguments are not canonical, with copies of the
 * arguments. */
static __attribute__((noinline)) MothStatus run_prepared(MothCall *c) {
  MothValue args[MOTH_MAX_ARGS], *given = c->args;
  int64_t workspace[MOTH_CANONICAL_WORKSPACE];
  MothStatus s = MOTH_OK;
  if ((c->keys & MOTH_KEYS_DEVICE) != MOTH_KEY_CPU)
    s = settle_device(c);
  if (c->op->canonical && s == MOTH_OK)
    s = moth_canonical(c, args, workspace);
  bool held = c->keys & INTERCEPTED && s == MOTH_OK &&
              !(moth_unrun && c->keys & MOTH_KEY_ABOVE && moth_follow(c, &s));
  if (held) {
    each_argument(c, moth_tensor_retain);
    s = moth_redispatch(c);
  } else if (s == MOTH_OK && !(c->keys & INTERCEPTED)) {
    s = moth_redispatch(c);
  }
  c->args = given;
  if (s != MOTH_OK)
    s = failed(c, s);
  if (held)
    each_argument(c, moth_tensor_release);
  return s;
}

/* Sets keys and device of a call from its tensors. */
static inline __attribute__((always_inline)) void look_at_tensors(MothCall *c) {
  uint32_t keys = moth_thread.include;
  MothDevice device = {MOTH_CPU, 0};
  for (int i = 0; i < c->op->nargs; i++) {
    const MothValue *v = &c->args[i];
    if (v->tag == MOTH_V_TENSOR) {
      keys |= v->u.t->keys;
      if (v->u.t->base) /* the base may have given the view a history */
        keys |= v->u.t->base->keys & MOTH_KEY_AUTOGRAD;
      if (v->u.t->device.type != MOTH_CPU)
        device = v->u.t->device;
    } else if (v->tag == MOTH_V_TENSORS) {
      for (uint32_t k = 0; k < v->n; k++) {
        keys |= v->u.tensors[k]->keys;
        if (v->u.tensors[k]->base)
          keys |= v->u.tensors[k]->base->keys & MOTH_KEY_AUTOGRAD;
        if (v->u.tensors[k]->device.type != MOTH_CPU)
          device = v->u.tensors[k]->device;
      }
    }
  }
  if (c->target)
    for (int i = 0; i < c->op->nresults; i++)
      keys |= c->target[i]->keys;
  c->keys = keys & ~moth_thread.exclude;
  c->device = device;
}

MothStatus moth_redispatch_anew(MothCall *c) {
  MothDevice device = c->device;
  uint32_t passed = c->keys & MOTH_KEY_ABOVE ? 0 : MOTH_KEY_ABOVE;
  look_at_tensors(c);
  c->device = device;
  c->keys &= ~passed;
  return moth_redispatch(c);
}

static MothStatus revive(MothTensor *t) {
  return t->keys & MOTH_KEY_LAZY && moth_lazy_revive ? moth_lazy_revive(t) : MOTH_OK;
}

/* Makes those that a segment has left. */
static MothStatus revive_arguments(const MothCall *c) {
  for (int i = 0; i < c->op->nargs; i++) {
    const MothValue *v = &c->args[i];
    if (v->tag == MOTH_V_TENSOR)
      MOTH_TRY(revive(v->u.t));
    for (uint32_t k = 0; v->tag == MOTH_V_TENSORS && k < v->n; k++)
      MOTH_TRY(revive(v->u.tensors[k]));
  }
  for (int i = 0; c->target && i < c->op->nresults; i++)
    MOTH_TRY(revive(c->target[i]));
  return MOTH_OK;
}

/* A tensor of the call is still to be made by calls that were recorded: they run first. */
static MothStatus wait_for_lazy(MothCall *c) {
  if (moth_run_unrun)
    MOTH_TRY(moth_run_unrun(c->op->name));
  MOTH_TRY(revive_arguments(c));
  MothCall now = *c;
  look_at_tensors(&now);
  if (now.keys & MOTH_KEY_LAZY)
    return moth_fail(MOTH_ERR_STATE,
                     "a tensor has no values: the recorded call that was to make it failed, or was "
                     "captured only");
  return moth_redispatch_anew(c);
}

static inline __attribute__((always_inline)) MothStatus dispatch(MothCall *c) {
  look_at_tensors(c);
  for (int i = 0; i < c->op->nresults; i++)
    c->results[i] = moth_v_none();
  c->above_at = moth_thread.nabove;
  c->below_at = moth_thread.nbelow;
  if ((((c->keys & MOTH_KEYS_DEVICE) ^ MOTH_KEY_CPU) | c->op->canonical |
       (c->keys & INTERCEPTED)) != 0)
    return run_prepared(c);
  MothStatus s = moth_redispatch(c);
  return __builtin_expect(s == MOTH_OK, 1) ? MOTH_OK : failed(c, s);
}

static __attribute__((noinline)) MothStatus dispatch_observed(const MothObserver *o, MothCall *c) {
  int64_t at = o->begin_call(c);
  MothStatus s = dispatch(c);
  o->end_call(at, c, s);
  return s;
}

MothStatus moth_dispatch(MothCall *c) {
  const MothObserver *o = moth_observed();
  return __builtin_expect(o != NULL, 0) ? dispatch_observed(o, c) : dispatch(c);
}

/* --- shape rules alone ------------------------------------------------------------------------- */

static MothStatus no_rule(const MothOp *op) {
  if (op->composite)
    return moth_fail(MOTH_ERR_STATE,
                     "%s is made of other ops: call it with fake tensors to see its results",
                     op->name);
  return moth_fail(MOTH_ERR_STATE,
                   "the shape of the result depends on data, which a fake tensor has not");
}

MothStatus moth_op_infer(const MothOp *op, int nargs, const MothValue *args, MothMeta *out) {
  MothValue full[MOTH_MAX_ARGS];
  int64_t workspace[MOTH_CANONICAL_WORKSPACE], numel;
  MOTH_TRY(moth_call_arguments(op, nargs, args, out, full));
  MothCall c = {.op = op, .args = full};
  MothValue own[MOTH_MAX_ARGS];
  look_at_tensors(&c);
  MothStatus status = op->shape ? settle_device(&c) : no_rule(op);
  for (int i = 0; i < op->nresults; i++)
    out[i] = (MothMeta){.device = c.device};
  if (status == MOTH_OK)
    status = moth_canonical(&c, own, workspace);
  if (status == MOTH_OK)
    status = op->shape(&c, out);
  for (int i = 0; i < op->nresults && status == MOTH_OK; i++) {
    status = moth_shape_numel(out[i].ndim, out[i].shape, moth_dtype_size((MothDType)out[i].dtype),
                              &numel);
    const MothTensor *self = full[0].u.t;
    if (op->memory == MOTH_MEMORY_SELF)
      status = moth_meta_set_view(out, self, self->ndim, self->shape, self->stride, self->offset);
    else if (op->memory != MOTH_MEMORY_VIEW)
      moth_contiguous_strides(out[i].ndim, out[i].shape, out[i].stride);
  }
  return status == MOTH_OK ? MOTH_OK : failed(&c, status);
}
