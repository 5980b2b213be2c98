/* Ops defined at run time, from Lua (src/lua/library.c) and from libraries of C. */
#include "dispatch/define.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/stream.h"
#include "dispatch/registry.h"

MothStatus (*moth_schema_reader)(const MothOpDef *def, MothOp **out);

/* --- calls as kernels get them --------------------------------------------------------------------------- */

const char *moth_call_op(const MothCall *c) {
  return c ? c->op->name : "?";
}
void *moth_call_ctx(const MothCall *c) {
  return c ? c->op->ctx : NULL;
}
MothDevice moth_call_device(const MothCall *c) {
  return c ? c->device : (MothDevice){MOTH_CPU, 0};
}
MothValue moth_call_arg(const MothCall *c, int i) {
  return c && i >= 0 && i < c->op->nargs ? c->args[i] : moth_v_none();
}

void *moth_call_stream(const MothCall *c) {
  const MothStreamOps *s = c ? moth_device_ops((MothDeviceType)c->device.type)->streams : NULL;
  MothStream *now = s && c->device.type != MOTH_CPU ? s->current(c->device.index) : NULL;
  return now ? s->handle(now) : NULL;
}

MothTensor *moth_call_result(const MothCall *c, int i) {
  return c && i >= 0 && i < c->op->nresults && c->results[i].tag == MOTH_V_TENSOR
             ? c->results[i].u.t
             : NULL;
}

MothStatus moth_call_set_result(MothCall *c, int i, MothTensor *t) {
  MothStatus s = MOTH_OK;
  if (!c || !t)
    s = moth_fail(MOTH_ERR_TYPE, "moth_call_set_result: the %s is NULL", c ? "tensor" : "call");
  else if (i < 0 || i >= c->op->nresults || c->op->returns_self)
    s = moth_fail(MOTH_ERR_INDEX, "'%s' has no result %d to set: %s", c->op->name, i,
                  c->op->schema);
  if (s) {
    moth_tensor_release(t);
    return s;
  }
  if (c->results[i].tag == MOTH_V_TENSOR)
    moth_tensor_release(c->results[i].u.t);
  c->results[i] = moth_v_tensor(t);
  return MOTH_OK;
}

static MothStatus check_result(const MothCall *c, int i) {
  MothTensor *t = c->results[i].tag == MOTH_V_TENSOR ? c->results[i].u.t : NULL;
  bool fake = c->keys & MOTH_KEY_FAKE;
  if (!t)
    return moth_fail(MOTH_ERR_TYPE, "the kernel has not set result %d of %d: %s", i + 1,
                     c->op->nresults, c->op->schema);
  if (fake != moth_tensor_is_fake(t) && !(t->keys & MOTH_KEY_LAZY)) /* not computed yet: compile */
    return moth_fail(MOTH_ERR_TYPE, "result %d is a %s tensor, where a %s one is due", i + 1,
                     fake ? "real" : "fake", fake ? "fake" : "real");
  if (c->op->memory != MOTH_MEMORY_NEW)
    return MOTH_OK;
  for (int k = 0; k < c->op->nargs; k++) {
    MothValue v = c->args[k];
    uint32_t n = v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
    for (uint32_t j = 0; j < n; j++)
      if ((v.tag == MOTH_V_TENSOR ? v.u.t : v.u.tensors[j])->storage == t->storage)
        return moth_fail(MOTH_ERR_VALUE,
                         "result %d lies in the memory of argument '%s': a kernel gives new "
                         "tensors; clone() it",
                         i + 1, c->op->args[k].name);
  }
  return MOTH_OK;
}

MothStatus moth_check_defined(const MothCall *c) {
  for (int i = 0; i < c->op->nresults; i++)
    MOTH_TRY(check_result(c, i));
  return MOTH_OK;
}

/* --- defining ----------------------------------------------------------------------------------- */

/* The arguments and results that a list names, as bits: those of MothOp.saves_for. */
static MothStatus named(const MothOp *op, const char *what, const char *list, uint32_t *mask) {
  char word[64];
  int n, at = 0;
  *mask = 0;
  while (list && sscanf(list + at, " %63[^ ,]%n", word, &n) == 1) {
    uint32_t bit = 0;
    for (int i = 0; i < op->nargs; i++)
      if (!strcmp(op->args[i].name, word))
        bit = 1u << i;
    for (int i = 0; i < op->nresults && !bit; i++) {
      char result[32];
      snprintf(result, sizeof result, i ? "result%d" : "result", i);
      if (!strcmp(result, word))
        bit = 1u << (16 + i);
    }
    if (!bit)
      return moth_fail(MOTH_ERR_VALUE, "%s: %s names '%s', which is no argument and no result: %s",
                       op->name, what, word, op->schema);
    *mask |= bit;
    at += n;
    while (list[at] == ',' || list[at] == ' ')
      at++;
  }
  return MOTH_OK;
}

static MothStatus complete(const MothOpDef *def, MothOp *op) {
  uint32_t saves, constant = 0;
  bool composite = op->kind == MOTH_KIND_COMPOSITE;
  if (composite && (def->cpu || def->cuda || def->all || def->fake))
    return moth_fail(MOTH_ERR_VALUE, "%s: a composite has no kernels: what it is made of has",
                     op->name);
  if (!composite && def->composite)
    return moth_fail(MOTH_ERR_VALUE, "%s: only an op of kind composite is made of others",
                     op->name);
  if (composite && def->inplace)
    return moth_fail(MOTH_ERR_VALUE, "%s: a composite has no in-place variant", op->name);
  MOTH_TRY(named(op, "saves", def->saves, &saves));
  if (def->constant && !strcmp(def->constant, "all"))
    constant = UINT32_MAX;
  else
    MOTH_TRY(named(op, "constant", def->constant, &constant));
  op->differentiable &= ~constant;
  op->keep = composite && def->backward; /* a derivative of its own in place of its parts' */
  uint32_t *saves_for = (uint32_t *)op->saves_for; /* of the same block */
  for (int i = 0; i < op->nargs; i++) {
    saves_for[i] = saves;
    if (op->args[i].mutated && !(i == 0 && op->returns_self))
      op->differentiable &= ~(1u << i);
  }
  op->backward = def->backward;
  op->composite = def->composite;
  op->fake = def->fake;
  op->inplace = def->inplace;
  op->ctx = def->ctx;
  op->defined = true;
  for (int i = 0; i < MOTH_NDEVICES; i++)
    op->kernels[i] = def->all;
  if (def->cpu)
    op->kernels[MOTH_CPU] = def->cpu;
  if (def->cuda)
    op->kernels[MOTH_CUDA] = def->cuda;
  return moth_registry_add(op);
}

MothStatus moth_op_complete(const MothOpDef *def, MothOp *op) {
  MothStatus s = complete(def, op);
  if (s)
    free(op);
  return s;
}

MothStatus moth_op_define(const MothOpDef *def, const MothOp **out) {
  MothOp *op;
  if (!def || !def->schema)
    return moth_fail(MOTH_ERR_TYPE, "moth_op_define: the %s is NULL",
                     def ? "schema" : "definition");
  if (!moth_schema_reader)
    return moth_fail(MOTH_ERR_STATE, "moth_op_define: schemas are read by moth's Lua modules; load "
                                     "the library by moth.library.load");
  MOTH_TRY(moth_schema_reader(def, &op));
  MOTH_TRY(moth_op_complete(def, op));
  if (out)
    *out = op;
  return MOTH_OK;
}

static MothStatus gone_kernel(MothCall *c) {
  return moth_fail(MOTH_ERR_STATE, "'%s' is not defined any more: its library was destroyed",
                   c->op->name);
}
MothStatus moth_op_undefine(const MothOp *which) {
  MothOp *op = (MothOp *)which;
  if (!op || moth_registry_at(op->id) != op || !op->defined)
    return moth_fail(MOTH_ERR_VALUE, "moth_op_undefine: %s was not defined at run time",
                     op ? op->name : "NULL");
  MOTH_TRY(moth_registry_remove(op));
  op->composite = op->autograd = NULL;
  op->kind = MOTH_KIND_EXTERN;
  op->fake = gone_kernel;
  op->differentiable = 0;
  for (int i = 0; i < MOTH_NDEVICES; i++)
    __atomic_store_n(&op->kernels[i], gone_kernel, __ATOMIC_RELEASE);
  return MOTH_OK;
}

/* --- libraries of C ----------------------------------------------------------------------------- */

struct MothLibrary {
  const char *name, *place;
  int first; /* the count of ops before it */
  MothStatus status;
};

static _Thread_local char *error, *said;

const char *moth_library_error(void) {
  free(said);
  said = error;
  error = NULL;
  return said;
}

void moth_def_op(MothLibrary *m, const MothOpDef *def) {
  if (!m || m->status)
    return;
  char name[1024];
  MothOpDef full = def ? *def : (MothOpDef){0};
  const char *args = full.schema ? strchr(full.schema, '(') : NULL;
  if (args && !memmem(full.schema, (size_t)(args - full.schema), "::", 2)) {
    int n = snprintf(name, sizeof name, "%s::%s", m->name, full.schema);
    if (n >= 0 && (size_t)n < sizeof name)
      full.schema = name;
  }
  if (!full.place)
    full.place = m->place;
  m->status = moth_op_define(&full, NULL);
}

void moth_def(MothLibrary *m, const char *schema, MothKernel kernel) {
  moth_def_op(m, &(MothOpDef){.schema = schema, .all = kernel});
}

void moth_def_backend(MothLibrary *m, const MothBackend *b) {
  if (m && !m->status)
    m->status = moth_backend_add(b, NULL);
}

void moth_impl(MothLibrary *m, const char *op, const char *device, MothKernel kernel) {
  if (!m || m->status)
    return;
  int type = device ? moth_device_find(device) : -1;
  m->status = type < 0 ? moth_fail(MOTH_ERR_VALUE, "there is no type of device '%s'",
                                   device ? device : "NULL")
                       : moth_op_register(op, (MothDeviceType)type, kernel);
}

void moth_library_run(const char *name, const char *place, const char *version,
                      void (*define)(MothLibrary *)) {
  if (!name || !place || !version || !define)
    return;
  MothLibrary m = {name, place, moth_registry_count(), MOTH_OK};
  if (strcmp(version, MOTH_VERSION) != 0)
    m.status = moth_fail(MOTH_ERR_STATE, "it was compiled for moth %s, and this is " MOTH_VERSION,
                         version);
  else
    define(&m);
  if (!m.status)
    return;
  free(error);
  if (asprintf(&error, "%s: %s", name, moth_last_error()) < 0)
    error = NULL;
  for (int i = m.first; i < moth_registry_count(); i++) {
    MothOp *op = moth_registry_at(i);
    if (op->defined && !op->gone && op->place && !strcmp(op->place, place))
      moth_op_undefine(op);
  }
}
