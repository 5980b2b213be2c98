/* The program in a file of moth.edge.export: JSON with its parts in this order.
 *
 *     {"dims": [["batch", min, max or -1, step, example], …],
 *      "inputs": [["x", "float32", [size, …]], …],        values 0, 1, …
 *      "tensors": ["0.weight", …],                        those of the file: the values behind the inputs
 *      "written": [which of the tensors, …],              calls write to them; may be left out
 *      "ops": [["linear", hash of its schema], …],
 *      "calls": [[which of the ops, argument, …], …],     each makes as many values as its op has results; -1, -2, …:
 *                                                         generated code (fused.h) with its operands
 *                ["if", value, n, m], the next n calls if it is true (not 0), the m behind these if not;
 *                ["while", value, n, m], the next n calls, then, while it is true, the m behind these and the n again
 *      "outputs": [["y", value], …]}
 *
 * "guards": [[expression, text], …] behind "dims" may be left out: those that are 0 at some sizes refuse them.
 *
 * An expression (core/expression.h) is a list of integers and of operations on what stands before them: [3, 0, "dim", "mul"]
 * is 3 * dims[0], "bits" makes an integer the double of these bits. A size is an integer or {"x": expression}. An argument is
 * null, true, false, an integer, {"x": …}, {"r": expression} that is a real number, {"f": the bits of a double}, {"s": text},
 * {"d": dtype}, {"dev": "cpu"}, {"i": [sizes]}, {"v": value}, {"vs": [values]}. Arguments are canonical
 * (dispatch/canonical.c). A value is used behind the call that makes it, in the same block of calls or in those in it: what a
 * block gives, it copies to values from before.
 *
 * Files of the formats 1 and 2 have {"e": [[[coefficient, factor, …], …], add, div, of]} for expressions, where a factor is a
 * dim or such a sum, of is one of none, reciprocal, sqrt, rsqrt; the bits of a double may follow, a scale. */
#include <string.h>

#include "core/dtype.h"
#include "edge/model.h"
#include "edge/ops.h"
#include "io/json.h"

enum { MOST_FACTORS = 8, MOST_NESTED = 3 }; /* of sums in sums */

typedef struct Reader {
  MothModel *m;
  MothJson json;
  const MothOp **ops;
  uint32_t nops;
  bool *written;   /* by tensor */
  uint32_t *until; /* by value: the call at which the block of its maker ends */
  uint32_t at;     /* the call that is read */
  uint32_t ends[MOTH_EDGE_MOST_DEPTH], depth; /* of the blocks around it */
  MothExprStep steps[MOTH_EXPR_MOST_STEPS];   /* the expression that is read, and its open values */
  uint32_t nsteps;
  int open;
} Reader;

static MothStatus bad(const char *what) {
  return moth_fail(MOTH_ERR_VALUE, "[edge] the program is damaged: %s", what);
}

/* ---- pieces -------------------------------------------------------------------------------------------- */

static MothStatus member(Reader *r, const char *what) {
  bool more;
  MOTH_TRY(moth_json_next(&r->json, &more));
  return more ? MOTH_OK : bad(what);
}

static MothStatus finish(Reader *r, const char *what) {
  bool more;
  MOTH_TRY(moth_json_next(&r->json, &more));
  return more ? bad(what) : MOTH_OK;
}

/* The next member of an array, an integer in a range. */
static MothStatus integer(Reader *r, int64_t low, int64_t high, const char *what, int64_t *out) {
  MOTH_TRY(member(r, what));
  MOTH_TRY(moth_json_integer(&r->json, out));
  return *out >= low && *out <= high ? MOTH_OK : bad(what);
}

/* The next member, a text that stays as long as the model. */
static MothStatus text(Reader *r, const char **out) {
  MothText t;
  MOTH_TRY(moth_json_string(&r->json, &t));
  *out = t.text;
  return strlen(t.text) == t.n ? MOTH_OK : bad("a text with a NUL");
}

static MothStatus key(Reader *r, const char *expected) {
  MothText t;
  MOTH_TRY(member(r, expected));
  MOTH_TRY(moth_json_key(&r->json, &t));
  return strcmp(t.text, expected) == 0 ? MOTH_OK : bad(expected);
}

/* The name `expected`; what comes before it by the name `other`, which may be left out, is read by fn. */
static MothStatus key_behind(Reader *r, const char *other, MothStatus (*fn)(Reader *),
                             const char *expected) {
  MothText t;
  MOTH_TRY(member(r, expected));
  MOTH_TRY(moth_json_key(&r->json, &t));
  if (strcmp(t.text, other) != 0)
    return strcmp(t.text, expected) == 0 ? MOTH_OK : bad(expected);
  MOTH_TRY(fn(r));
  return key(r, expected);
}

/* How many members the array has that comes next. */
static MothStatus count(const Reader *r, uint32_t most, uint32_t *n) {
  MothJson ahead = r->json;
  bool more;
  ahead.arena = NULL;
  MOTH_TRY(moth_json_begin(&ahead, '['));
  for (*n = 0;; ++*n) {
    MOTH_TRY(moth_json_next(&ahead, &more));
    if (!more)
      return MOTH_OK;
    if (*n == most)
      return bad("a list is too long");
    MOTH_TRY(moth_json_skip(&ahead));
  }
}

/* Begins the array that comes next; *out: memory of `size` bytes for each of its members. */
static MothStatus begin(Reader *r, uint32_t most, uint32_t *n, size_t size, void *out) {
  MOTH_TRY(count(r, most, n));
  void *list = moth_edge_take(r->m, *n, size);
  memcpy(out, &list, sizeof list);
  return list ? moth_json_begin(&r->json, '[') : MOTH_ERR_MEMORY;
}

/* The next member, an array whose first member is a text. */
static MothStatus named(Reader *r, const char *what, const char **out) {
  MOTH_TRY(member(r, what));
  MOTH_TRY(moth_json_begin(&r->json, '['));
  MOTH_TRY(member(r, what));
  return text(r, out);
}

static MothStatus dtype(Reader *r, MothDType *out) {
  const char *name;
  MOTH_TRY(text(r, &name));
  for (int d = 0; d < MOTH_NDTYPES; d++)
    if (strcmp(moth_dtype_name((MothDType)d), name) == 0) {
      *out = (MothDType)d;
      return MOTH_OK;
    }
  return bad("an unknown dtype");
}

static uint32_t nfused(const Reader *r) {
  return r->m->fused ? r->m->fused->count : 0;
}

static void *take(Reader *r, size_t n, size_t size) {
  return moth_edge_take(r->m, n, size);
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

static MothStatus step(Reader *r, MothExprStep s) {
  int arity = moth_expr_arity((MothExprOp)s.op);
  r->open += 1 - arity;
  bool ok = r->nsteps < MOTH_EXPR_MOST_STEPS && r->open >= 1 && r->open <= MOTH_EXPR_MOST_OPEN;
  if (ok)
    r->steps[r->nsteps++] = s;
  return ok ? MOTH_OK : bad("an expression");
}

static MothStatus number(Reader *r, int64_t n) {
  return step(r, (MothExprStep){.op = MOTH_EXPR_NUMBER, .number = (double)n});
}

static MothStatus op(Reader *r, MothExprOp o) {
  return step(r, (MothExprStep){.op = (uint8_t)o});
}

static MothStatus dim(Reader *r, int64_t d) {
  return d >= 0 && d < r->m->ndims ? step(r, (MothExprStep){.op = MOTH_EXPR_DIM, .dim = (int32_t)d})
                                   : bad("an expression");
}

/* The list of an expression. */
static MothStatus expression(Reader *r) {
  int64_t n = 0;
  bool more, is_last = false; /* n is the step before */
  MOTH_TRY(moth_json_begin(&r->json, '['));
  for (MothText name;;) {
    MOTH_TRY(moth_json_next(&r->json, &more));
    if (!more)
      return MOTH_OK;
    if (moth_json_peek(&r->json) != '"') {
      MOTH_TRY(moth_json_integer(&r->json, &n));
      MOTH_TRY(number(r, n));
      is_last = true;
      continue;
    }
    MOTH_TRY(moth_json_string(&r->json, &name));
    MothExprOp o = moth_expr_op(name.text);
    if (o != MOTH_NEXPR) {
      MOTH_TRY(op(r, o));
    } else if (is_last && !strcmp(name.text, "bits")) {
      memcpy(&r->steps[r->nsteps - 1].number, &n, sizeof n);
    } else if (is_last && !strcmp(name.text, "dim")) {
      r->nsteps--, r->open--;
      MOTH_TRY(dim(r, n));
    } else {
      return bad("an expression");
    }
    is_last = false;
  }
}

static MothStatus sum(Reader *r, int depth, bool *whole);

/* [coefficient, factor, …] */
static MothStatus term(Reader *r, int depth) {
  uint32_t n;
  int64_t i;
  MothText name;
  bool whole;
  MOTH_TRY(count(r, MOST_FACTORS + 1, &n));
  MOTH_TRY(moth_json_begin(&r->json, '['));
  MOTH_TRY(integer(r, INT64_MIN, INT64_MAX, "an expression", &i));
  MOTH_TRY(number(r, i));
  while (n-- > 1) {
    MOTH_TRY(member(r, "an expression"));
    if (moth_json_peek(&r->json) != '{') {
      MOTH_TRY(moth_json_integer(&r->json, &i));
      MOTH_TRY(dim(r, i));
    } else {
      MOTH_TRY(moth_json_begin(&r->json, '{'));
      MOTH_TRY(member(r, "an expression"));
      MOTH_TRY(moth_json_key(&r->json, &name));
      if (strcmp(name.text, "e") != 0 || depth == MOST_NESTED)
        return bad("an expression");
      MOTH_TRY(sum(r, depth + 1, &whole));
      MOTH_TRY(whole ? finish(r, "an expression") : bad("an expression"));
    }
    MOTH_TRY(op(r, MOTH_EXPR_MUL));
  }
  return finish(r, "an expression");
}

/* [[term, …], add, div, of, scale], of files of the formats 1 and 2. */
static MothStatus sum(Reader *r, int depth, bool *whole) {
  int64_t n, of;
  bool more;
  MOTH_TRY(moth_json_begin(&r->json, '['));
  MOTH_TRY(member(r, "an expression"));
  MOTH_TRY(moth_json_begin(&r->json, '['));
  MOTH_TRY(number(r, 0));
  for (;;) {
    MOTH_TRY(moth_json_next(&r->json, &more));
    if (!more)
      break;
    MOTH_TRY(term(r, depth));
    MOTH_TRY(op(r, MOTH_EXPR_ADD));
  }
  MOTH_TRY(integer(r, INT64_MIN, INT64_MAX, "an expression", &n));
  MOTH_TRY(number(r, n));
  MOTH_TRY(op(r, MOTH_EXPR_ADD));
  MOTH_TRY(integer(r, 1, INT64_MAX, "an expression", &n));
  if (n > 1) {
    MOTH_TRY(number(r, n));
    MOTH_TRY(op(r, MOTH_EXPR_DIV));
    MOTH_TRY(op(r, MOTH_EXPR_FLOOR));
  }
  MOTH_TRY(integer(r, 0, 3, "an expression", &of));
  if (of >= 2)
    MOTH_TRY(op(r, MOTH_EXPR_SQRT));
  if (of % 2 == 1)
    MOTH_TRY(op(r, MOTH_EXPR_RECIPROCAL));
  *whole = of == 0;
  MOTH_TRY(moth_json_next(&r->json, &more));
  if (!more)
    return MOTH_OK;
  MothExprStep scale = {.op = MOTH_EXPR_NUMBER};
  *whole = false;
  MOTH_TRY(moth_json_integer(&r->json, &n));
  memcpy(&scale.number, &n, sizeof n);
  MOTH_TRY(step(r, scale));
  MOTH_TRY(op(r, MOTH_EXPR_MUL));
  return finish(r, "an expression");
}

/* Behind the name, "x", "r" or "e", of an expression: what it is. */
static MothStatus steps(Reader *r, const char *name, MothEdgeSize *s) {
  bool whole = strcmp(name, "r") != 0;
  r->nsteps = 0;
  r->open = 0;
  if (!strcmp(name, "e"))
    MOTH_TRY(sum(r, 1, &whole));
  else
    MOTH_TRY(expression(r));
  MothExprStep *list = r->open == 1 ? take(r, r->nsteps, sizeof *list) : NULL;
  if (!list)
    return r->open == 1 ? MOTH_ERR_MEMORY : bad("an expression");
  memcpy(list, r->steps, sizeof *list * r->nsteps);
  *s = (MothEdgeSize){.steps = list, .nsteps = r->nsteps, .real = !whole};
  return MOTH_OK;
}

static bool is_expression(const char *name) {
  return strlen(name) == 1 && strchr("xre", *name);
}

static MothStatus size(Reader *r, MothEdgeSize *s) {
  MothText name;
  if (moth_json_peek(&r->json) != '{')
    return moth_json_integer(&r->json, &s->value);
  MOTH_TRY(moth_json_begin(&r->json, '{'));
  MOTH_TRY(member(r, "a size"));
  MOTH_TRY(moth_json_key(&r->json, &name));
  if (!is_expression(name.text))
    return bad("a size");
  MOTH_TRY(steps(r, name.text, s));
  return s->real ? bad("a size that is no whole number") : finish(r, "a size");
}

static MothStatus sizes(Reader *r, uint32_t most, uint32_t *n, MothEdgeSize **out) {
  MOTH_TRY(begin(r, most, n, sizeof **out, out));
  for (uint32_t i = 0; i < *n; i++) {
    MOTH_TRY(member(r, "a list of sizes"));
    MOTH_TRY(size(r, &(*out)[i]));
  }
  return finish(r, "a list of sizes");
}

/* ---- dims, inputs, ops ----------------------------------------------------------------------------------- */

static MothStatus read_dims(Reader *r) {
  MothModel *m = r->m;
  MOTH_TRY(begin(r, MOTH_EDGE_MOST_DIMS, &m->ndims, sizeof *m->dims, &m->dims));
  for (uint32_t i = 0; i < m->ndims; i++) {
    MothDim *d = &m->dims[i];
    MOTH_TRY(named(r, "a dimension", &d->name));
    MOTH_TRY(integer(r, 0, INT64_MAX, "a dimension", &d->min));
    MOTH_TRY(integer(r, -1, INT64_MAX, "a dimension", &d->max));
    MOTH_TRY(integer(r, 1, INT64_MAX, "a dimension", &d->step));
    MOTH_TRY(integer(r, 0, INT64_MAX, "a dimension", &d->example));
    MOTH_TRY(finish(r, "a dimension"));
  }
  return finish(r, "the dimensions");
}

static void make_value(MothModel *m, uint32_t id, MothEdgeKind kind) {
  MothEdgeValue *v = &m->values[id];
  atomic_init(&v->t.refs, 1);
  atomic_init(&v->storage.refs, 1);
  v->storage.foreign = true;
  v->t.storage = &v->storage;
  v->kind = (uint8_t)kind;
}

/* Which of the dims a size is; -1: none. */
static int dim_of(const MothEdgeSize *s) {
  const MothExprStep *a = s->steps; /* formats 1 and 2: 0 + 1 * dim + 0 */
  if (a && s->nsteps == 7 && a[0].number == 0 && a[1].number == 1 && a[5].number == 0 &&
      a[2].op == MOTH_EXPR_DIM && a[3].op == MOTH_EXPR_MUL)
    a += 2;
  else if (s->nsteps != 1)
    return -1;
  return a->op == MOTH_EXPR_DIM ? a->dim : -1;
}

static MothStatus read_guards(Reader *r) {
  MothModel *m = r->m;
  MOTH_TRY(begin(r, MOTH_EDGE_MOST_CALLS, &m->nguards, sizeof *m->guards, &m->guards));
  for (uint32_t i = 0; i < m->nguards; i++) {
    MOTH_TRY(member(r, "a guard"));
    MOTH_TRY(moth_json_begin(&r->json, '['));
    MOTH_TRY(member(r, "a guard"));
    MOTH_TRY(steps(r, "r", &m->guards[i].is));
    MOTH_TRY(member(r, "a guard"));
    MOTH_TRY(text(r, &m->guards[i].text));
    MOTH_TRY(finish(r, "a guard"));
  }
  return finish(r, "the guards");
}

static MothStatus read_inputs(Reader *r, MothDType *dtypes) {
  MothModel *m = r->m;
  MOTH_TRY(moth_json_begin(&r->json, '['));
  for (uint32_t i = 0; i < m->ninputs; i++) {
    MothEdgeIo *e = &m->inputs[i];
    uint32_t ndim;
    MOTH_TRY(named(r, "an input", &e->io.name));
    MOTH_TRY(member(r, "an input"));
    MOTH_TRY(dtype(r, &dtypes[i]));
    MOTH_TRY(member(r, "an input"));
    MOTH_TRY(sizes(r, MOTH_MAX_DIMS, &ndim, &e->shape));
    MOTH_TRY(finish(r, "an input"));
    e->io.ndim = (int)ndim;
    e->value = i;
    if (!(e->dim = take(r, ndim, sizeof *e->dim)))
      return MOTH_ERR_MEMORY;
    for (uint32_t k = 0; k < ndim; k++)
      e->dim[k] = dim_of(&e->shape[k]);
    e->io.dim = e->dim;
  }
  return finish(r, "the inputs");
}

static MothStatus read_ops(Reader *r) {
  MOTH_TRY(begin(r, MOTH_EDGE_MOST_CALLS, &r->nops, sizeof *r->ops, &r->ops));
  for (uint32_t i = 0; i < r->nops; i++) {
    const char *name;
    int64_t said;
    uint32_t hash;
    MOTH_TRY(named(r, "an op", &name));
    MOTH_TRY(integer(r, 0, UINT32_MAX, "an op", &said));
    MOTH_TRY(finish(r, "an op"));
    const MothOp *op = r->ops[i] = moth_edge_find_op(name, &hash);
    bool runs = op && (op->memory == MOTH_MEMORY_VIEW || moth_kernel_of(op, MOTH_CPU)) &&
                (op->shape || op->returns_self) && op->kind != MOTH_KIND_COMPOSITE;
    if (!runs)
      return moth_fail(MOTH_ERR_VALUE,
                       "[edge] this library has no op %.80s; build it with "
                       "OPS_OF naming the model's file",
                       name);
    if (hash != (uint32_t)said)
      return moth_fail(MOTH_ERR_VALUE,
                       "[edge] op %.80s has other arguments in this library than in the moth that "
                       "wrote the file: export it again",
                       name);
  }
  return finish(r, "the ops");
}

/* ---- calls --------------------------------------------------------------------------------------------- */

static MothStatus value_id(Reader *r, uint32_t known, uint32_t *out) {
  int64_t id;
  MOTH_TRY(moth_json_integer(&r->json, &id));
  *out = (uint32_t)id;
  bool made = id >= 0 && id < known && (id < r->m->ninputs + r->m->nstate || r->at < r->until[id]);
  return made ? MOTH_OK : bad("a value is used before it is made");
}

static MothStatus value_list(Reader *r, uint32_t known, MothEdgeArg *a) {
  MOTH_TRY(count(r, MOTH_EDGE_MOST_CALLS, &a->n));
  a->values = take(r, a->n, sizeof *a->values);
  a->tensors = take(r, a->n, sizeof *a->tensors);
  if (!a->values || !a->tensors)
    return MOTH_ERR_MEMORY;
  MOTH_TRY(moth_json_begin(&r->json, '['));
  for (uint32_t i = 0; i < a->n; i++) {
    MOTH_TRY(member(r, "a list of values"));
    MOTH_TRY(value_id(r, known, &a->values[i]));
  }
  a->kind = MOTH_ARG_VALUES;
  return finish(r, "a list of values");
}

static MothStatus named_arg(Reader *r, const char *name, uint32_t known, MothEdgeArg *a) {
  if (!strcmp(name, "v")) {
    a->kind = MOTH_ARG_VALUE;
    return value_id(r, known, &a->value);
  }
  if (!strcmp(name, "vs"))
    return value_list(r, known, a);
  if (!strcmp(name, "i")) {
    a->kind = MOTH_ARG_SIZES;
    MOTH_TRY(sizes(r, MOTH_EDGE_MOST_CALLS, &a->n, &a->sizes));
    return (a->ints = take(r, a->n, sizeof *a->ints)) ? MOTH_OK : MOTH_ERR_MEMORY;
  }
  if (!strcmp(name, "f")) {
    a->plain = moth_v_float(0);
    return moth_json_integer(&r->json, &a->plain.u.i); /* the bits */
  }
  if (!strcmp(name, "d")) {
    MothDType d;
    MOTH_TRY(dtype(r, &d));
    a->plain = moth_v_dtype(d);
    return MOTH_OK;
  }
  const char *s;
  bool device = !strcmp(name, "dev");
  if (!device && strcmp(name, "s") != 0)
    return bad("an argument");
  MOTH_TRY(text(r, &s));
  a->plain = device ? moth_v_device((MothDevice){MOTH_CPU, 0}) : moth_v_string(s);
  return device && strcmp(s, "cpu") != 0 ? bad("a device") : MOTH_OK;
}

static MothStatus read_arg(Reader *r, uint32_t known, MothEdgeArg *a) {
  MothText name;
  int c = moth_json_peek(&r->json);
  if (c == 'n' || c == 't' || c == 'f') {
    if (c != 'n')
      a->plain = moth_v_bool(c == 't');
    return moth_json_skip(&r->json);
  }
  if (c != '{') {
    int64_t i;
    MOTH_TRY(moth_json_integer(&r->json, &i));
    a->plain = moth_v_int(i);
    return MOTH_OK;
  }
  MOTH_TRY(moth_json_begin(&r->json, '{'));
  MOTH_TRY(member(r, "an argument"));
  MOTH_TRY(moth_json_key(&r->json, &name));
  if (is_expression(name.text)) {
    a->kind = MOTH_ARG_SIZE;
    if (!(a->sizes = take(r, 1, sizeof *a->sizes)))
      return MOTH_ERR_MEMORY;
    MOTH_TRY(steps(r, name.text, a->sizes));
  } else {
    MOTH_TRY(named_arg(r, name.text, known, a));
  }
  return finish(r, "an argument");
}

/* The arguments of a call, whose values are the next ones. */
static MothStatus read_args(Reader *r, MothEdgeCall *c, uint32_t nargs, uint32_t nresults,
                            uint32_t *known) {
  if (!(c->args = take(r, nargs, sizeof *c->args)))
    return MOTH_ERR_MEMORY;
  for (uint32_t i = 0; i < nargs; i++) {
    MOTH_TRY(member(r, "a call has too few arguments"));
    MOTH_TRY(read_arg(r, *known, &c->args[i]));
  }
  c->result = *known;
  c->nargs = nargs;
  c->nresults = nresults;
  *known += nresults;
  return finish(r, "a call has too many arguments");
}

/* A call of generated code: its operands. */
static MothStatus read_fused(Reader *r, MothEdgeCall *c, const MothFusedKernel *k,
                             uint32_t *known) {
  c->fused = k;
  c->slots = take(r, k->nslots, sizeof *c->slots);
  return c->slots ? read_args(r, c, k->noperands, k->nresults, known) : MOTH_ERR_MEMORY;
}

/* The end of the block that the call lies in. */
static uint32_t block_end(const Reader *r) {
  return r->depth ? r->ends[r->depth - 1] : UINT32_MAX;
}

static MothStatus read_control(Reader *r, MothEdgeCall *c, uint32_t known) {
  const char *name;
  int64_t first, second;
  MOTH_TRY(text(r, &name));
  c->control = !strcmp(name, "if") ? MOTH_CONTROL_IF : MOTH_CONTROL_WHILE;
  if (c->control == MOTH_CONTROL_WHILE && strcmp(name, "while") != 0)
    return bad("a call");
  MOTH_TRY(member(r, "a block"));
  MOTH_TRY(value_id(r, known, &c->pred));
  MOTH_TRY(integer(r, 0, MOTH_EDGE_MOST_CALLS, "a block", &first));
  MOTH_TRY(integer(r, 0, MOTH_EDGE_MOST_CALLS, "a block", &second));
  c->blocks[0] = (uint32_t)first;
  c->blocks[1] = (uint32_t)second;
  uint32_t middle = r->at + 1 + c->blocks[0], end = middle + c->blocks[1];
  if (end > r->m->ncalls || end > block_end(r) || r->depth + 2 > MOTH_EDGE_MOST_DEPTH)
    return bad("a block ends outside the one that it is in, or blocks lie too deep");
  r->ends[r->depth++] = end;
  r->ends[r->depth++] = middle;
  return finish(r, "a block");
}

static MothStatus read_call(Reader *r, MothEdgeCall *c, uint32_t *known) {
  int64_t which;
  bool more;
  MOTH_TRY(moth_json_begin(&r->json, '['));
  MothJson ahead = r->json;
  ahead.arena = NULL;
  MOTH_TRY(moth_json_next(&ahead, &more));
  if (more && moth_json_peek(&ahead) == '"') {
    MOTH_TRY(member(r, "a call"));
    return read_control(r, c, *known);
  }
  MOTH_TRY(integer(r, -(int64_t)nfused(r), (int64_t)r->nops - 1, "a call", &which));
  if (which < 0)
    return read_fused(r, c, &r->m->fused->kernels[-1 - which], known);
  const MothOp *op = c->op = r->ops[which];
  c->values = take(r, 2 * (size_t)op->nargs, sizeof *c->values);
  c->workspace = take(r, MOTH_CANONICAL_WORKSPACE, sizeof *c->workspace);
  return c->values && c->workspace ? read_args(r, c, op->nargs, op->nresults, known)
                                   : MOTH_ERR_MEMORY;
}

/* How many values the calls make, from the first number in each. */
static MothStatus count_values(Reader *r, uint32_t *n) {
  MothJson ahead = r->json;
  bool more;
  ahead.arena = NULL;
  MOTH_TRY(moth_json_begin(&ahead, '['));
  for (;;) {
    int64_t which = 0;
    MOTH_TRY(moth_json_next(&ahead, &more));
    if (!more)
      return MOTH_OK;
    MOTH_TRY(moth_json_begin(&ahead, '['));
    MOTH_TRY(moth_json_next(&ahead, &more));
    bool control = more && moth_json_peek(&ahead) == '"';
    MOTH_TRY(control ? moth_json_skip(&ahead) : moth_json_integer(&ahead, &which));
    if (!control && (!more || which < -(int64_t)nfused(r) || which >= (int64_t)r->nops))
      return bad("a call");
    if (!control)
      *n += which < 0 ? r->m->fused->kernels[-1 - which].nresults : r->ops[which]->nresults;
    while (more) {
      MOTH_TRY(moth_json_next(&ahead, &more));
      if (more)
        MOTH_TRY(moth_json_skip(&ahead));
    }
  }
}

static MothStatus read_tensors(Reader *r, const MothSafetensorsEntry ***out) {
  MothModel *m = r->m;
  const MothSafetensorsEntry **list;
  MOTH_TRY(begin(r, MOTH_EDGE_MOST_CALLS, &m->nstate, sizeof *list, &list));
  *out = list;
  for (uint32_t i = 0; i < m->nstate; i++) {
    const char *name;
    MOTH_TRY(member(r, "a tensor's name"));
    MOTH_TRY(text(r, &name));
    if (i < m->file->count && !strcmp(m->file->entries[i].name, name))
      list[i] = &m->file->entries[i];
    for (int64_t k = 0; k < m->file->count && !list[i]; k++)
      if (!strcmp(m->file->entries[k].name, name))
        list[i] = &m->file->entries[k];
    if (!list[i])
      return moth_fail(MOTH_ERR_VALUE, "[edge] the file has no tensor '%.80s'", name);
  }
  return finish(r, "the tensors");
}

/* Which tensors calls write to. */
static MothStatus read_written(Reader *r) {
  uint32_t n;
  MOTH_TRY(count(r, MOTH_EDGE_MOST_CALLS, &n));
  MOTH_TRY(moth_json_begin(&r->json, '['));
  while (n-- > 0) {
    int64_t id;
    MOTH_TRY(integer(r, 0, (int64_t)r->m->nstate - 1, "a tensor that is written to", &id));
    r->written[id] = true;
  }
  return finish(r, "the tensors that are written to");
}

/* A copy of a tensor that calls write to. */
static MothStatus make_written(MothModel *m, MothEdgeValue *v, size_t bytes) {
  char *copy = moth_edge_take(m, bytes + MOTH_EDGE_ALIGN, 1);
  if (!copy)
    return MOTH_ERR_MEMORY;
  copy += -(uintptr_t)copy % MOTH_EDGE_ALIGN;
  v->initial = v->storage.data;
  v->storage.data = copy;
  memcpy(copy, v->initial, bytes);
  return MOTH_OK;
}

/* Values of the file's tensors, behind the inputs. */
static MothStatus make_state(Reader *r, const MothSafetensorsEntry *const *list) {
  MothModel *m = r->m;
  for (uint32_t i = 0; i < m->nstate; i++) {
    const MothSafetensorsEntry *e = list[i];
    MothEdgeValue *v = &m->values[m->ninputs + i];
    uint8_t *data = (uint8_t *)(uintptr_t)m->bytes + e->begin;
    make_value(m, m->ninputs + i, MOTH_EDGE_STATE);
    v->t.dtype = (uint8_t)e->dtype;
    v->t.ndim = (uint8_t)e->ndim;
    memcpy(v->t.shape, e->shape, sizeof v->t.shape);
    v->storage.data = data;
    if ((uintptr_t)data % (uintptr_t)moth_dtype_size(e->dtype) != 0)
      return bad("a tensor begins at an address that does not suit its dtype");
    for (const uint8_t *b = data; e->dtype == MOTH_BOOL && b < m->bytes + e->end; b++)
      if (*b > 1)
        return bad("a bool that is neither 0 nor 1");
    if (r->written[i])
      MOTH_TRY(make_written(m, v, (size_t)(e->end - e->begin)));
  }
  return MOTH_OK;
}

static MothStatus read_calls(Reader *r, const MothDType *dtypes,
                             const MothSafetensorsEntry *const *tensors) {
  MothModel *m = r->m;
  uint32_t known = m->ninputs + m->nstate;
  m->nvalues = known;
  MOTH_TRY(count(r, MOTH_EDGE_MOST_CALLS, &m->ncalls));
  MOTH_TRY(count_values(r, &m->nvalues));
  m->calls = take(r, m->ncalls, sizeof *m->calls);
  m->values = take(r, m->nvalues, sizeof *m->values);
  m->order = take(r, 2 * (size_t)m->nvalues, sizeof *m->order);
  r->until = take(r, m->nvalues, sizeof *r->until);
  if (!m->calls || !m->values || !m->order || !r->until)
    return MOTH_ERR_MEMORY;
  for (uint32_t i = 0; i < m->ninputs; i++) {
    make_value(m, i, MOTH_EDGE_INPUT);
    m->values[i].t.dtype = (uint8_t)dtypes[i];
  }
  MOTH_TRY(make_state(r, tensors));
  MOTH_TRY(moth_json_begin(&r->json, '['));
  for (uint32_t i = 0; i < m->ncalls; i++) {
    MothEdgeCall *c = &m->calls[i];
    r->at = i;
    while (r->depth && r->ends[r->depth - 1] == i)
      r->depth--;
    MOTH_TRY(member(r, "a call"));
    MOTH_TRY(read_call(r, c, &known));
    bool self = c->op && (c->op->returns_self || c->op->memory == MOTH_MEMORY_SELF);
    for (uint32_t k = 0; k < c->nresults; k++) {
      bool alias = c->op && (c->op->memory == MOTH_MEMORY_VIEW || (self && k == 0));
      if (alias && (!c->op->nargs || c->args[0].kind != MOTH_ARG_VALUE))
        return bad("a call without its first argument");
      make_value(m, c->result + k, alias ? MOTH_EDGE_ALIAS : MOTH_EDGE_MADE);
      r->until[c->result + k] = block_end(r);
    }
  }
  r->at = UINT32_MAX - 1; /* behind all blocks */
  return finish(r, "the calls");
}

static MothStatus read_outputs(Reader *r) {
  MothModel *m = r->m;
  MOTH_TRY(begin(r, MOTH_EDGE_MOST_CALLS, &m->noutputs, sizeof *m->outputs, &m->outputs));
  for (uint32_t i = 0; i < m->noutputs; i++) {
    MOTH_TRY(named(r, "an output", &m->outputs[i].io.name));
    MOTH_TRY(member(r, "an output"));
    MOTH_TRY(value_id(r, m->nvalues, &m->outputs[i].value));
    MOTH_TRY(finish(r, "an output"));
  }
  return finish(r, "the outputs");
}

MothStatus moth_edge_read(MothModel *m, const char *program) {
  Reader r = {.m = m};
  size_t n = strlen(program);
  char *arena = moth_edge_take(m, n + 1, 1);
  if (!arena)
    return MOTH_ERR_MEMORY;
  moth_json_init(&r.json, (const uint8_t *)program, n, arena);
  const MothSafetensorsEntry **tensors;
  if (m->file->count > MOTH_EDGE_MOST_CALLS)
    return bad("too many tensors");
  MOTH_TRY(moth_json_begin(&r.json, '{'));
  MOTH_TRY(key(&r, "dims"));
  MOTH_TRY(read_dims(&r));
  MOTH_TRY(key_behind(&r, "guards", read_guards, "inputs"));
  MOTH_TRY(count(&r, MOTH_EDGE_MOST_CALLS, &m->ninputs));
  m->inputs = moth_edge_take(m, m->ninputs, sizeof *m->inputs);
  MothDType *dtypes = moth_edge_take(m, m->ninputs, sizeof *dtypes);
  if (!m->inputs || !dtypes)
    return MOTH_ERR_MEMORY;
  MOTH_TRY(read_inputs(&r, dtypes));
  MOTH_TRY(key(&r, "tensors"));
  MOTH_TRY(read_tensors(&r, &tensors));
  r.written = moth_edge_take(m, m->nstate, sizeof *r.written);
  if (!r.written)
    return MOTH_ERR_MEMORY;
  MOTH_TRY(key_behind(&r, "written", read_written, "ops"));
  MOTH_TRY(read_ops(&r));
  MOTH_TRY(key(&r, "calls"));
  MOTH_TRY(read_calls(&r, dtypes, tensors));
  MOTH_TRY(key(&r, "outputs"));
  MOTH_TRY(read_outputs(&r));
  MOTH_TRY(finish(&r, "the program"));
  return moth_json_end(&r.json);
}
