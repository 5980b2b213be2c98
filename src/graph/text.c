/* A graph as text: a line for each call, with dtype, sizes and the line of the program. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/memory.h"
#include "graph/graph.h"

typedef MothGrownText Text;

void moth_text_put(MothGrownText *t, const char *fmt, ...) {
  va_list ap, again;
  va_start(ap, fmt);
  va_copy(again, ap);
  int n = vsnprintf(NULL, 0, fmt, ap);
  t->failed = t->failed || n < 0 || !moth_grow(&t->s, &t->cap, (size_t)t->n + (size_t)n + 1, 1);
  if (!t->failed)
    t->n += (uint32_t)vsnprintf(t->s + t->n, t->cap - t->n, fmt, again);
  va_end(again);
  va_end(ap);
}

char *moth_text_end(MothGrownText *t) {
  if (!t->failed)
    return t->s;
  free(t->s);
  return NULL;
}

static void put_meta(Text *t, const MothTraceMeta *m) {
  char buf[256];
  moth_text_put(t, "%s%s", moth_dtype_name((MothDType)m->dtype),
                moth_shape_format(m->ndim, m->dims, buf, sizeof buf));
}

static void put_ref(Text *t, const MothGraphRef *r) {
  if (r->node->kind == MOTH_NODE_CALL)
    moth_text_put(t, "%%%u", r->node->slot + r->result);
  else
    moth_text_put(t, "%s", r->node->name);
}

void moth_text_value(MothGrownText *t, const MothArg *a, const MothValue *v) {
  switch ((MothTag)v->tag) {
  case MOTH_V_NONE:
    moth_text_put(t, "nil");
    break;
  case MOTH_V_BOOL:
    moth_text_put(t, v->u.b ? "true" : "false");
    break;
  case MOTH_V_INT:
    if (a->type == MOTH_T_ENUM)
      moth_text_put(t, "'%s'", a->values[v->u.i]);
    else
      moth_text_put(t, "%lld", (long long)moth_as_lua_counts(a, v->u.i));
    break;
  case MOTH_V_FLOAT:
    moth_text_put(t, "%.14g", v->u.d);
    break;
  case MOTH_V_INTS:
    moth_text_put(t, "{");
    for (uint32_t i = 0; i < v->n; i++)
      moth_text_put(t, i ? ", %lld" : "%lld", (long long)moth_as_lua_counts(a, v->u.ints[i]));
    moth_text_put(t, "}");
    break;
  case MOTH_V_STRING:
    moth_text_put(t, "'%s'", v->u.s);
    break;
  case MOTH_V_DTYPE:
    moth_text_put(t, "%s", moth_dtype_name((MothDType)v->u.i));
    break;
  case MOTH_V_DEVICE: {
    char buf[64];
    moth_text_put(
        t, "'%s'",
        moth_device_format((MothDevice){(uint8_t)(v->u.i >> 8), (uint8_t)v->u.i}, buf, sizeof buf));
    break;
  }
  case MOTH_V_GENERATOR:
    moth_text_put(t, "a generator");
    break;
  case MOTH_V_TENSOR:
  case MOTH_V_TENSORS:
    moth_text_put(t, "a tensor");
    break;
  }
}

/* "k1 = 2", with what it was when the graph was made, for each number. */
static void put_numbers(Text *t, const MothGraph *g, uint32_t inputs) {
  for (const MothGraphNode *n = g->first; n; n = n->next)
    for (int i = 0; n->args && i < n->op->nargs; i++)
      if (n->args[i].number) {
        moth_text_put(t, inputs++ ? ", k%u = " : "k%u = ", n->args[i].number);
        moth_text_value(t, &n->op->args[i], &n->args[i].value);
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
    MothValue v = n->args[i].value;
    moth_text_put(t, i ? ", " : "");
    if (n->args[i].number)
      moth_text_put(t, "k%u", n->args[i].number);
    else if (v.tag == MOTH_V_TENSOR)
      put_ref(t, ref++);
    else if (v.tag != MOTH_V_TENSORS)
      moth_text_value(t, &n->op->args[i], &v);
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++) {
      moth_text_put(t, k ? ", " : "{");
      put_ref(t, ref++);
    }
    if (v.tag == MOTH_V_TENSORS)
      moth_text_put(t, v.n ? "}" : "{}");
  }
  if (n->variant == MOTH_OUT) {
    moth_text_put(t, ", out = ");
    put_ref(t, &n->refs[n->nrefs - 1]);
  }
}

static void put_call(Text *t, const MothGraphNode *n) {
  uint32_t begin = t->n;
  moth_text_put(t, "  ");
  for (int i = 0; i < n->nresults; i++)
    moth_text_put(t, i ? ", %%%u" : "%%%u", n->slot + (uint32_t)i);
  moth_text_put(t, "%s%s%s(", n->nresults ? " = " : "", n->op->name,
                n->variant == MOTH_INPLACE && !n->op->returns_self ? "_" : "");
  put_args(t, n);
  moth_text_put(t, ")");
  moth_text_put(t, "%*s", (int)(t->n - begin < 50 ? 50 - (t->n - begin) : 2), "");
  for (int i = 0; i < n->nresults; i++) {
    moth_text_put(t, i ? ", " : "");
    put_meta(t, &n->metas[i]);
  }
  if (n->modes.no_grad)
    moth_text_put(t, "  no_grad");
  if (n->place && n->place[0])
    moth_text_put(t, "  %s", n->place);
  moth_text_put(t, "\n");
}

char *moth_graph_text(MothGraph *g) {
  Text t = {0};
  uint32_t number = 1, inputs = 0;
  for (MothGraphNode *n = g->first; n; n = n->next)
    if (n->kind == MOTH_NODE_CALL) {
      n->slot = number;
      number += n->nresults;
    }
  moth_text_put(&t, "graph(");
  for (const MothGraphNode *n = g->first; n; n = n->next) {
    if (n->kind != MOTH_NODE_PLACEHOLDER)
      continue;
    moth_text_put(&t, inputs++ ? ", %s: " : "%s: ", n->name);
    put_meta(&t, &n->metas[0]);
  }
  put_numbers(&t, g, inputs);
  moth_text_put(&t, ")  -- %s%s\n", g->name ? g->name : "", g->dynamic ? ", any sizes" : "");
  for (const MothGraphNode *n = g->first; n; n = n->next) {
    if (n->kind == MOTH_NODE_GET_ATTR) {
      moth_text_put(&t, "  %s: ", n->name);
      put_meta(&t, &n->metas[0]);
      moth_text_put(&t, "\n");
    } else if (n->kind == MOTH_NODE_CALL) {
      put_call(&t, n);
    } else if (n->kind == MOTH_NODE_OUTPUT) {
      moth_text_put(&t, "  return ");
      for (uint32_t i = 0; i < n->nrefs; i++) {
        moth_text_put(&t, i ? ", " : "");
        put_ref(&t, &n->refs[i]);
      }
    }
  }
  return moth_text_end(&t);
}
