/* A call as a line of text, for MOTH_LOGS=dispatch and moth.dispatch.trace. Positions count from 1, as in Lua (messages
 * of errors count from 0 in C). */
#include <stdarg.h>
#include <stdio.h>

#include "core/dtype.h"
#include "core/tensor.h"
#include "device/device.h"
#include "dispatch/dispatch.h"

typedef struct Text {
  char *at, *end;
} Text;

static __attribute__((format(printf, 2, 3))) void put(Text *t, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(t->at, (size_t)(t->end - t->at), fmt, ap);
  va_end(ap);
  t->at = n < t->end - t->at ? t->at + n : t->end - 1;
}

static void put_tensor(Text *t, const MothTensor *x) {
  char buf[256];
  put(t, "%s", x ? moth_tensor_format(x, buf, sizeof buf) : "none");
}

static void put_int(Text *t, const MothArg *a, int64_t i) {
  put(t, "%lld", (long long)moth_as_lua_counts(a, i));
}

static void put_value(Text *t, const MothArg *a, MothValue v) {
  char buf[64];
  switch ((MothTag)v.tag) {
  case MOTH_V_NONE:
    break;
  case MOTH_V_BOOL:
    put(t, "%s", v.u.b ? "true" : "false");
    break;
  case MOTH_V_INT:
    if (a->type == MOTH_T_ENUM)
      put(t, "'%s'", a->values[v.u.i]);
    else
      put_int(t, a, v.u.i);
    break;
  case MOTH_V_FLOAT:
    put(t, "%g", v.u.d);
    break;
  case MOTH_V_TENSOR:
    put_tensor(t, v.u.t);
    break;
  case MOTH_V_INTS:
  case MOTH_V_TENSORS:
    put(t, "{");
    for (uint32_t i = 0; i < v.n; i++) {
      put(t, "%s", i ? ", " : "");
      if (v.tag == MOTH_V_INTS)
        put_int(t, a, v.u.ints[i]);
      else
        put_tensor(t, v.u.tensors[i]);
    }
    put(t, "}");
    break;
  case MOTH_V_STRING:
    put(t, "'%s'", v.u.s);
    break;
  case MOTH_V_DTYPE:
    put(t, "%s", moth_dtype_name((MothDType)v.u.i));
    break;
  case MOTH_V_DEVICE:
    put(t, "%s",
        moth_device_format((MothDevice){(uint8_t)(v.u.i >> 8), (uint8_t)v.u.i}, buf, sizeof buf));
    break;
  case MOTH_V_GENERATOR:
    put(t, "a generator");
    break;
  }
}

void moth_call_describe(const MothCall *c, char *text, size_t n) {
  static const struct {
    uint32_t key;
    const char *name;
  } keys[] = {{MOTH_KEY_AUTOCAST, "Autocast"}, {MOTH_KEY_AUTOGRAD, "Autograd"},
              {MOTH_KEY_BELOW, "Intercept"},   {MOTH_KEY_FAKE, "Fake"},
              {MOTH_KEY_CPU, "CPU"},           {MOTH_KEY_CUDA, "CUDA"},
              {MOTH_KEY_USER, "User"}};
  const MothOp *op = c->op;
  Text t = {text, text + n};
  put(&t, "%s%s [", op->name, c->variant == MOTH_INPLACE && !op->returns_self ? "_" : "");
  const char *between = "";
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (c->keys & keys[i].key) {
      put(&t, "%s%s", between, keys[i].name);
      between = ", ";
    }
  put(&t, "]%s", op->composite && !op->keep ? " composite" : "");
  between = "  ";
  for (int i = 0; i < op->nargs; i++)
    if (c->args[i].tag != MOTH_V_NONE && op->args[i].type != MOTH_T_INDEX_BASE) {
      put(&t, "%s%s: ", between, op->args[i].name);
      put_value(&t, &op->args[i], c->args[i]);
      between = ", ";
    }
}
