/* The form of a graph: all that a backend sees of it but its sizes, and these apart: graphs of one form differ in sizes
 * alone. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "graph/graph.h"

bool moth_arg_is_open(const MothGraphNode *n, int i) {
  const MothTraceArg *a = &n->args[i];
  if (n->op->defined || (a->number && a->free))
    return false;
  switch ((MothType)n->op->args[i].type) {
  case MOTH_T_OPERAND:
  case MOTH_T_SCALAR:
  case MOTH_T_INT:
  case MOTH_T_INDEX:
  case MOTH_T_FLOAT:
  case MOTH_T_INTS:
    return a->value.tag == MOTH_V_INT || a->value.tag == MOTH_V_FLOAT ||
           a->value.tag == MOTH_V_INTS;
  default:
    return false;
  }
}

typedef struct Form {
  MothGraphForm *f;
  uint32_t text_cap, sizes_cap;
  bool failed;
} Form;

static void put(Form *t, const void *bytes, size_t n) {
  t->failed = t->failed || !moth_grow(&t->f->text, &t->text_cap, t->f->length + n, 1);
  if (t->failed || !n)
    return;
  memcpy(t->f->text + t->f->length, bytes, n);
  t->f->length += n;
}

static void put_number(Form *t, int64_t n) {
  put(t, &n, sizeof n);
}

static void put_string(Form *t, const char *s) {
  s = s ? s : "";
  put_number(t, (int64_t)strlen(s));
  put(t, s, strlen(s));
}

static void put_size(Form *t, double size) {
  t->failed = t->failed || !moth_grow(&t->f->sizes, &t->sizes_cap, t->f->nsizes + 1, sizeof size);
  if (!t->failed)
    t->f->sizes[t->f->nsizes++] = size;
}

static void put_meta(Form *t, const MothTraceMeta *m) {
  int64_t facts[] = {m->keys,         m->dtype,      m->ndim, m->device.type,
                     m->device.index, m->contiguous, m->place};
  put(t, facts, sizeof facts);
  for (int i = 0; i < 2 * m->ndim; i++)
    put_size(t, (double)m->dims[i]);
}

static void put_arg(Form *t, const MothGraphNode *n, int i) {
  const MothArg *a = &n->op->args[i];
  const MothTraceArg *given = &n->args[i];
  const MothValue *v = &given->value;
  put_number(t, v->tag);
  if (moth_arg_is_open(n, i)) {
    put_number(t, v->tag == MOTH_V_INTS ? v->n : 0);
    for (uint32_t k = 0; v->tag == MOTH_V_INTS && k < v->n; k++)
      put_size(t, (double)v->u.ints[k]);
    if (v->tag == MOTH_V_INT)
      put_size(t, (double)moth_as_lua_counts(a, v->u.i));
    else if (v->tag == MOTH_V_FLOAT)
      put_size(t, v->u.d);
    return;
  }
  put_number(t, given->number);
  if (v->tag == MOTH_V_STRING) {
    put_string(t, v->u.s);
  } else if (v->tag == MOTH_V_INTS) {
    put_number(t, v->n);
    put(t, v->u.ints, sizeof *v->u.ints * v->n);
  } else if (v->tag == MOTH_V_TENSORS) {
    put_number(t, v->n);
  } else if (v->tag != MOTH_V_TENSOR && v->tag != MOTH_V_NONE && !given->number) {
    put_number(t, v->tag == MOTH_V_BOOL ? v->u.b : v->u.i);
  }
}

static void put_node(Form *t, const MothGraphNode *n) {
  int64_t facts[] = {n->id, n->kind, n->variant, n->nresults, n->nrefs, n->backward};
  put(t, facts, sizeof facts);
  put(t, &n->op, sizeof n->op);
  for (uint32_t i = 0; i < n->nrefs; i++) {
    put_number(t, n->refs[i].node->id);
    put_number(t, n->refs[i].result);
  }
  if (n->op) {
    const MothTraceModes *m = &n->modes;
    int64_t modes[] = {m->include, m->exclude, m->no_grad, m->dtype};
    put(t, modes, sizeof modes);
    put(t, m->autocast, sizeof m->autocast);
    put_string(t, n->place);
  }
  for (int i = 0; n->op && i < n->op->nargs; i++)
    put_arg(t, n, i);
  for (int i = 0; i < n->nresults; i++)
    put_meta(t, &n->metas[i]);
}

MothStatus moth_graph_form(const MothGraph *g, const MothGraphNode *only, MothGraphForm *out) {
  Form t = {.f = out};
  *out = (MothGraphForm){0};
  if (!only) {
    put_number(&t, g->next_id);
    put_number(&t, g->nnumbers);
    for (uint32_t k = 0; k < g->nnumbers; k++)
      put_number(&t, g->pinned[k]);
  }
  for (const MothGraphNode *n = g->first; n; n = n->next) {
    if (!only)
      put_node(&t, n);
    for (int i = 0; n == only && i < n->nresults; i++)
      put_meta(&t, &n->metas[i]);
  }
  if (!t.failed)
    return MOTH_OK;
  moth_graph_form_free(out);
  return moth_no_memory(out->length);
}

void moth_graph_form_free(MothGraphForm *f) {
  free(f->text);
  free(f->sizes);
  *f = (MothGraphForm){0};
}
