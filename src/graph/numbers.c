/* What differs from call to call: the numbers of a segment, and which of a backend's codes holds for them: the guards that
 * each call tests, before there is a graph. Kernels for any sizes are told apart behind it, once for each new set of sizes
 * (lua/moth/compile/templates.lua). */
#include <stdlib.h>
#include <string.h>

#include "graph/trace.h"

static bool varies(const MothRecord *r, int i, bool sizes) {
  const MothTraceArg *a = &r->args[i];
  uint8_t type = r->op->args[i].type;
  if (a->value.tag == MOTH_V_INTS)
    return sizes && type == MOTH_T_INTS;
  if (a->value.tag != MOTH_V_INT && a->value.tag != MOTH_V_FLOAT)
    return false;
  return a->free || (sizes && type != MOTH_T_DIM && type != MOTH_T_ENUM &&
                     type != MOTH_T_INDEX_BASE && type != MOTH_T_DTYPE);
}

void moth_record_vary(MothRecord *r) {
  for (int sizes = 0; sizes < 2; sizes++)
    for (int i = 0; i < r->op->nargs; i++)
      r->varying[sizes] |= (uint16_t)(varies(r, i, sizes) << i);
}

uint32_t moth_segment_numbers(const MothSegment *s, bool sizes, MothValue *out) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    for (uint32_t left = r->varying[sizes]; left; left &= left - 1, n++)
      if (out)
        out[n] = r->args[__builtin_ctz(left)].value;
  }
  return n;
}

bool moth_trace_value_same(const MothValue *a, const MothValue *b) {
  if (a->tag != b->tag)
    return false;
  switch ((MothTag)a->tag) {
  case MOTH_V_NONE:
  case MOTH_V_TENSOR:
    return true;
  case MOTH_V_TENSORS:
    return a->n == b->n;
  case MOTH_V_BOOL:
    return a->u.b == b->u.b;
  case MOTH_V_INTS:
    return a->n == b->n && (!a->n || !memcmp(a->u.ints, b->u.ints, sizeof(int64_t) * a->n));
  case MOTH_V_STRING:
    return !strcmp(a->u.s, b->u.s);
  default:
    return a->u.i == b->u.i && a->n == b->n; /* a float's bits, too */
  }
}

/* Adds ints to a list; out NULL: counts. */
static void put(int64_t *out, uint32_t *n, const int64_t *ints, uint32_t count) {
  if (out && count)
    memcpy(out + *n, ints, sizeof *ints * count);
  *n += count;
}

/* All that belongs to the sizes of a segment: those of the tensors from outside, and of arguments. */
static uint32_t list_sizes(const MothSegment *s, int64_t *out) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    for (uint32_t i = 0; i < r->nnew; i++)
      put(out, &n, r->inputs[i].dims, 2u * r->inputs[i].ndim);
    for (uint32_t left = r->varying[1] & ~r->varying[0]; left; left &= left - 1) {
      const MothValue *v = &r->args[__builtin_ctz(left)].value;
      if (v->tag == MOTH_V_INTS)
        put(out, &n, v->u.ints, v->n);
      else
        put(out, &n, &v->u.i, 1);
    }
  }
  return n;
}

/* The sizes of a call, listed when a code first asks for them. */
typedef struct Sizes {
  int64_t few[256], *list;
  uint32_t n;
} Sizes;

static bool has_sizes(const MothSegment *s, MothTraceCode *c, Sizes *now) {
  if (!c->sized || c->stamp == s->last->sizes)
    return true;
  if (!now->list) {
    now->n = list_sizes(s, NULL);
    now->list = now->n > 256 ? malloc(sizeof *now->list * now->n) : now->few;
    if (!now->list)
      return false;
    list_sizes(s, now->list);
  }
  if (now->n != c->nsizes || memcmp(now->list, c->sizes, sizeof *now->list * now->n) != 0)
    return false;
  c->stamp = s->last->sizes;
  return true;
}

static bool holds(const MothSegment *s, MothTraceCode *c, Sizes *now) {
  for (uint32_t i = 0; i < c->npins; i++) {
    const MothTracePin *p = &c->pins[i];
    if (!moth_trace_value_same(&s->records[p->record]->args[p->arg].value, &p->value))
      return false;
  }
  return has_sizes(s, c, now);
}

void moth_end_select(const MothSegment *s, MothTraceEnd *end) {
  Sizes now;
  now.list = NULL;
  if (end->code && holds(s, end->code, &now))
    goto done;
  end->code = end->codes;
  while (end->code && !holds(s, end->code, &now))
    end->code = end->code->older;
done:
  if (end->code)
    end->code->used = end->runs;
  if (now.list && now.list != now.few)
    free(now.list);
}

static void free_code(MothTraceCode *c) {
  for (uint32_t i = 0; i < c->npins; i++)
    moth_trace_value_free(c->pins[i].value);
  free(c->pins);
  free(c->sizes);
  free(c);
}

void moth_end_forget(MothTraceEnd *end) {
  while (end->codes) {
    MothTraceCode *c = end->codes;
    end->codes = c->older;
    free_code(c);
  }
  end->code = NULL;
  end->ncodes = 0;
  end->compile_ns = 0;
}

static bool add_pins(const MothSegment *s, MothTraceCode *c, const bool *pinned) {
  uint32_t number = 0;
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    for (int i = 0; i < r->op->nargs; i++) {
      if (!moth_arg_varies(r, i, c->dynamic) || !pinned[number++])
        continue;
      MothTracePin *p = &c->pins[c->npins];
      *p = (MothTracePin){.record = k, .arg = (uint32_t)i};
      if (!moth_trace_value_copy(&p->value, &r->args[i].value))
        return false;
      c->npins++;
    }
  }
  return true;
}

MothTraceCode *moth_end_add_code(const MothSegment *s, MothTraceEnd *end, bool dynamic, bool sized,
                                 const bool *pinned) {
  MothTraceCode *c = calloc(1, sizeof *c);
  if (!c)
    return NULL;
  c->dynamic = dynamic;
  c->sized = sized;
  c->nnumbers = moth_segment_numbers(s, dynamic, NULL);
  c->stamp = s->last->sizes;
  c->nsizes = sized ? list_sizes(s, NULL) : 0;
  c->pins = calloc((size_t)c->nnumbers + 1, sizeof *c->pins);
  c->sizes = malloc(sizeof *c->sizes * ((size_t)c->nsizes + 1));
  if (!c->pins || !c->sizes || (pinned && !add_pins(s, c, pinned))) {
    free_code(c);
    return NULL;
  }
  if (sized)
    list_sizes(s, c->sizes);
  c->id = ++end->ncodes;
  c->made = c->used = end->runs;
  c->older = end->codes;
  end->codes = end->code = c;
  return c;
}

bool moth_end_is_resized(const MothSegment *s, const MothTraceEnd *end) {
  uint32_t n = list_sizes(s, NULL);
  int64_t *now = malloc(sizeof *now * ((size_t)n + 1));
  bool all = now && end->codes && end->trace->dynamic;
  if (all)
    list_sizes(s, now);
  for (const MothTraceCode *c = end->codes; c && all; c = c->older)
    all = c->sized && (c->nsizes != n || memcmp(c->sizes, now, sizeof *now * n) != 0);
  free(now);
  return all;
}

int moth_end_drop_oldest(MothTraceEnd *end) {
  MothTraceCode **oldest = NULL;
  for (MothTraceCode **at = &end->codes; *at; at = &(*at)->older)
    if (!oldest || (*at)->used < (*oldest)->used)
      oldest = at;
  MothTraceCode *gone = *oldest;
  int id = gone->id;
  *oldest = gone->older;
  if (end->code == gone)
    end->code = NULL;
  free_code(gone);
  return id;
}
