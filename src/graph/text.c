/* A graph as text: a line for each call, with dtype, sizes and the line of the program. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/memory.h"
#include "graph/graph.h"

typedef struct Text {
  char *s;
  size_t n, cap;
  bool failed;
} Text;

__attribute__((format(printf, 2, 3))) static void put(Text *t, const char *fmt, ...) {
  va_list ap;
  for (int i = 0; i < 2 && !t->failed; i++) {
    va_start(ap, fmt);
    int n = vsnprintf(t->s ? t->s + t->n : NULL, t->cap - t->n, fmt, ap);
    va_end(ap);
    if (n < 0)
      return;
    if (t->n + (size_t)n < t->cap) {
      t->n += (size_t)n;
      return;
    }
    size_t cap = (t->n + (size_t)n + 1) * 2;
    char *more = realloc(t->s, cap);
    t->failed = !more;
    if (more) {
      t->s = more;
      t->cap = cap;
    }
  }
}

static void put_meta(Text *t, const MothTraceMeta *m) {
  char buf[256];
  put(t, "%s%s", moth_dtype_name((MothDType)m->dtype),
      moth_shape_format(m->ndim, m->dims, buf, sizeof buf));
}

static void put_ref(Text *t, const MothGraphRef *r) {
  if (r->node->kind == MOTH_NODE_CALL)
    put(t, "%%%u", r->node->slot + r->result);
  else
    put(t, "%s", r->node->name);
}

static void put_value(Text *t, const MothArg *a, const MothValue *v, const MothGraphRef **ref) {
  switch ((MothTag)v->tag) {
  case MOTH_V_NONE:
    put(t, "nil");
    break;
  case MOTH_V_BOOL:
    put(t, v->u.b ? "true" : "false");
    break;
  case MOTH_V_INT:
    if (a->type == MOTH_T_ENUM)
      put(t, "'%s'", a->values[v->u.i]);
    else
      put(t, "%lld", (long long)moth_as_lua_counts(a, v->u.i));
    break;
  case MOTH_V_FLOAT:
    put(t, "%.14g", v->u.d);
    break;
  case MOTH_V_TENSOR:
    put_ref(t, (*ref)++);
    break;
  case MOTH_V_INTS:
  case MOTH_V_TENSORS:
    put(t, "{");
    for (uint32_t i = 0; i < v->n; i++) {
      put(t, i ? ", " : "");
      if (v->tag == MOTH_V_TENSORS)
        put_ref(t, (*ref)++);
      else
        put(t, "%lld", (long long)moth_as_lua_counts(a, v->u.ints[i]));
    }
    put(t, "}");
    break;
  case MOTH_V_STRING:
    put(t, "'%s'", v->u.s);
    break;
  case MOTH_V_DTYPE:
    put(t, "%s", moth_dtype_name((MothDType)v->u.i));
    break;
  case MOTH_V_DEVICE: {
    char buf[64];
    put(t, "'%s'",
        moth_device_format((MothDevice){(uint8_t)(v->u.i >> 8), (uint8_t)v->u.i}, buf, sizeof buf));
    break;
  }
  case MOTH_V_GENERATOR:
    put(t, "a generator");
    break;
  }
}

/* "k1 = 2", with what it was when the graph was made, for each number. */
static void put_numbers(Text *t, const MothGraph *g, uint32_t inputs) {
  for (const MothGraphNode *n = g->first; n; n = n->next)
    for (int i = 0; n->args && i < n->op->nargs; i++)
      if (n->args[i].number) {
        put(t, inputs++ ? ", k%u = " : "k%u = ", n->args[i].number);
        put_value(t, &n->op->args[i], &n->args[i].value, NULL);
      }
}

/* The arguments up to the last that is not its default. */
static void put_args(Text *t, const MothGraphNode *n) {
  const MothGraphRef *ref = n->refs;
  int count = n->op->nargs;
  while (count > 0) {
    const MothArg *a = &n->op->args[count - 1];
    const MothValue *v = &n->args[count - 1].value;
    bool dull =
        !n->args[count - 1].number &&
        (a->type == MOTH_T_INDEX_BASE || (v->tag == MOTH_V_NONE && a->optional) ||
         (a->has_default && v->tag == a->def.tag && v->tag != MOTH_V_INTS && v->u.i == a->def.u.i));
    if (!dull)
      break;
    count--;
  }
  for (int i = 0; i < count; i++) {
    put(t, i ? ", " : "");
    if (n->args[i].number)
      put(t, "k%u", n->args[i].number);
    else
      put_value(t, &n->op->args[i], &n->args[i].value, &ref);
  }
  if (n->variant == MOTH_OUT) {
    put(t, ", out = ");
    put_ref(t, &n->refs[n->nrefs - 1]);
  }
}

static void put_call(Text *t, const MothGraphNode *n) {
  size_t begin = t->n;
  put(t, "  ");
  for (int i = 0; i < n->nresults; i++)
    put(t, i ? ", %%%u" : "%%%u", n->slot + (uint32_t)i);
  put(t, "%s%s%s(", n->nresults ? " = " : "", n->op->name,
      n->variant == MOTH_INPLACE && !n->op->returns_self ? "_" : "");
  put_args(t, n);
  put(t, ")");
  put(t, "%*s", (int)(t->n - begin < 50 ? 50 - (t->n - begin) : 2), "");
  for (int i = 0; i < n->nresults; i++) {
    put(t, i ? ", " : "");
    put_meta(t, &n->metas[i]);
  }
  if (n->modes.no_grad)
    put(t, "  no_grad");
  if (n->place && n->place[0])
    put(t, "  %s", n->place);
  put(t, "\n");
}

char *moth_graph_text(MothGraph *g) {
  Text t = {NULL, 0, 0, false};
  uint32_t number = 1, inputs = 0;
  for (MothGraphNode *n = g->first; n; n = n->next)
    if (n->kind == MOTH_NODE_CALL) {
      n->slot = number;
      number += n->nresults;
    }
  put(&t, "graph(");
  for (const MothGraphNode *n = g->first; n; n = n->next) {
    if (n->kind != MOTH_NODE_PLACEHOLDER)
      continue;
    put(&t, inputs++ ? ", %s: " : "%s: ", n->name);
    put_meta(&t, &n->metas[0]);
  }
  put_numbers(&t, g, inputs);
  put(&t, ")  -- %s%s\n", g->name ? g->name : "", g->dynamic ? ", any sizes" : "");
  for (const MothGraphNode *n = g->first; n; n = n->next) {
    if (n->kind == MOTH_NODE_GET_ATTR) {
      put(&t, "  %s: ", n->name);
      put_meta(&t, &n->metas[0]);
      put(&t, "\n");
    } else if (n->kind == MOTH_NODE_CALL) {
      put_call(&t, n);
    } else if (n->kind == MOTH_NODE_OUTPUT) {
      put(&t, "  return ");
      for (uint32_t i = 0; i < n->nrefs; i++) {
        put(&t, i ? ", " : "");
        put_ref(&t, &n->refs[i]);
      }
    }
  }
  if (t.failed) {
    free(t.s);
    return NULL;
  }
  return t.s;
}
