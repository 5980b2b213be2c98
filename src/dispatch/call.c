/* Calls of ops from outside of the dispatcher: their arguments are checked and completed. See dispatch.h. */
#include <string.h>

#include "dispatch/dispatch.h"
#include "dispatch/registry.h"
#include "dispatch/steps.h"

MothStatus moth_call1(const MothOp *op, int nargs, const MothValue *args, MothTensor **out) {
  MothValue full[MOTH_MAX_ARGS], result[MOTH_MAX_RESULTS];
  for (int i = 0; i < op->nargs; i++)
    full[i] = i < nargs ? args[i] : op->args[i].def;
  MothTensor *self = op->returns_self ? full[0].u.t : NULL;
  MothCall c = {.op = op,
                .args = full,
                .results = result,
                .variant = self ? MOTH_INPLACE : MOTH_FUNCTIONAL,
                .target = self ? &self : NULL};
  MOTH_TRY(moth_dispatch(&c));
  *out = result[0].u.t;
  for (int i = 1; i < op->nresults; i++)
    moth_tensor_release(result[i].u.t);
  return MOTH_OK;
}

MothStatus moth_call_arguments(const MothOp *op, int nargs, const MothValue *args,
                               const void *results, MothValue *full) {
  if (!op || moth_registry_at(op->id) != op)
    return moth_fail(MOTH_ERR_TYPE, "op_call: there is no such op");
  if (nargs < 0 || nargs > op->nargs)
    return moth_fail(MOTH_ERR_TYPE, "[%s] %d arguments are too %s: %s", op->name, nargs,
                     nargs < 0 ? "few" : "many", op->schema);
  if ((nargs && !args) || (op->nresults && !results))
    return moth_fail(MOTH_ERR_TYPE, "[%s] the %s are NULL", op->name,
                     nargs && !args ? "arguments" : "results");
  if (nargs)
    memcpy(full, args, sizeof(MothValue) * (size_t)nargs);
  return moth_op_check(op, nargs, full);
}

MothStatus moth_op_call(const MothOp *op, int nargs, const MothValue *args, MothValue *results) {
  return moth_op_call_variant(op, MOTH_FUNCTIONAL, nargs, args, NULL, results);
}

MothStatus moth_op_call_variant(const MothOp *op, MothVariant variant, int nargs,
                                const MothValue *args, MothTensor **targets, MothValue *results) {
  MothValue full[MOTH_MAX_ARGS];
  MOTH_TRY(moth_call_arguments(op, nargs, args, results, full));
  MothTensor *self;
  if (op->returns_self) {
    variant = MOTH_INPLACE;
  } else if (variant == MOTH_INPLACE && !op->inplace) {
    return moth_fail(MOTH_ERR_TYPE, "[%s] there is no in-place variant", op->name);
  }
  if (variant == MOTH_INPLACE) {
    if (full[0].tag != MOTH_V_TENSOR)
      return moth_fail(MOTH_ERR_TYPE, "[%s_] the first argument must be a tensor", op->name);
    self = full[0].u.t;
    targets = &self;
  } else if (variant == MOTH_OUT) {
    for (int i = 0; i < op->nresults; i++)
      if (!targets || !targets[i])
        return moth_fail(MOTH_ERR_TYPE, "[%s] the tensor to write to is NULL", op->name);
  }
  MothCall c = {.op = op,
                .args = full,
                .results = results,
                .variant = (uint8_t)variant,
                .target = variant == MOTH_FUNCTIONAL ? NULL : targets};
  return moth_dispatch(&c);
}

/* Whether n is a valid length of a list: a negative int of the C API becomes huge. */
static bool is_list(const void *list, uint32_t n) {
  return (list || !n) && n <= INT32_MAX;
}

/* Whether i is a size or position whose sums, negatives and differences cannot overflow. */
static bool is_whole(int64_t i) {
  return i >= INT64_MIN / 2 && i <= INT64_MAX / 2;
}

/* Whether v, from a C user, is a valid value for argument a. */
static bool fits(const MothArg *a, const MothValue *v) {
  uint32_t tag = v->tag;
  if (tag == MOTH_V_NONE)
    return a->optional;
  switch ((MothType)a->type) {
  case MOTH_T_TENSOR:
    return tag == MOTH_V_TENSOR && v->u.t;
  case MOTH_T_OPERAND:
    return (tag == MOTH_V_TENSOR && v->u.t) || (tag >= MOTH_V_BOOL && tag <= MOTH_V_FLOAT);
  case MOTH_T_SCALAR:
    return tag >= MOTH_V_BOOL && tag <= MOTH_V_FLOAT;
  case MOTH_T_INT:
  case MOTH_T_DIM:
  case MOTH_T_INDEX:
    return tag == MOTH_V_INT && is_whole(v->u.i);
  case MOTH_T_INDEX_BASE:
    return tag == MOTH_V_INT && (v->u.i == 0 || v->u.i == 1);
  case MOTH_T_FLOAT:
    return tag == MOTH_V_FLOAT;
  case MOTH_T_BOOL:
    return tag == MOTH_V_BOOL;
  case MOTH_T_INTS:
  case MOTH_T_DIMS:
    if (tag != MOTH_V_INTS || !is_list(v->u.ints, v->n))
      return false;
    for (uint32_t i = 0; i < v->n; i++)
      if (!is_whole(v->u.ints[i]))
        return false;
    return true;
  case MOTH_T_TENSORS:
    if (tag != MOTH_V_TENSORS || !is_list(v->u.tensors, v->n))
      return false;
    for (uint32_t i = 0; i < v->n; i++)
      if (!v->u.tensors[i])
        return false;
    return true;
  case MOTH_T_STRING:
    return tag == MOTH_V_STRING && v->u.s;
  case MOTH_T_ENUM:
    return (tag == MOTH_V_STRING && v->u.s) || tag == MOTH_V_INT;
  case MOTH_T_DTYPE:
    return tag == MOTH_V_DTYPE && v->u.i >= 0 && v->u.i < MOTH_NDTYPES;
  case MOTH_T_DEVICE:
    return tag == MOTH_V_DEVICE && v->u.i >= 0 && v->u.i < MOTH_NDEVICES << 8;
  case MOTH_T_GENERATOR:
    return tag == MOTH_V_GENERATOR && v->u.g;
  }
  return false;
}

MothStatus moth_op_check(const MothOp *op, int given, MothValue *args) {
  for (int i = 0; i < op->nargs; i++) {
    if (i >= given || (args[i].tag == MOTH_V_NONE && op->args[i].has_default)) {
      if (i >= given && !op->args[i].has_default && !op->args[i].optional)
        return moth_fail(MOTH_ERR_TYPE, "[%s] argument '%s' is missing: %s", op->name,
                         op->args[i].name, op->schema);
      args[i] = op->args[i].def;
    }
    if (op->args[i].type == MOTH_T_FLOAT && args[i].tag == MOTH_V_INT)
      args[i] = moth_v_float((double)args[i].u.i);
    if (!fits(&op->args[i], &args[i]))
      return moth_fail(MOTH_ERR_TYPE,
                       "[%s] argument '%s' is NULL, of a wrong type or out of range: %s", op->name,
                       op->args[i].name, op->schema);
  }
  return MOTH_OK;
}
