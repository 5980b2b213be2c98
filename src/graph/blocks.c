/* The block machine. See blocks.h.
 *
 * The elements of the group's shape are numbered row-major. A block of them goes through all instructions before the next
 * one begins; what only the group reads lies in registers, pieces of one buffer on the stack. Results and row-major operands
 * are used where they are. Other operands, broadcast or strided, are walked in pieces of rows; where these are short, or
 * their elements apart, they are gathered into a register first. */
#include "graph/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/behind.h"
#include "core/dtype.h"
#include "kernels/common/iter.h"
#include "kernels/cpu/util.h"

MothStatus moth_cpu_pointwise(MothCall *c);

enum {
  MOST_OPERANDS = MOTH_ITER_OPERANDS,
  REGISTER_BYTES = 32768, /* of all registers together: they stay in the first cache */
  LONGEST = 2048,         /* elements of a block, */
  LONGEST_FAR =
      1024, /* and where values are of LARGE bytes, so that what is asked for ahead stays, too */
  LARGE = 4 << 20,
  SHORT_ROW = 64
};

typedef enum Where { IN_REGISTER, OUTSIDE, NUMBER } Where;

typedef struct Operand {
  uint8_t where;
  uint32_t index; /* of a register, of an outside operand, of a number */
  int64_t stride; /* bytes, of rows: along the row */
} Operand;

typedef enum What { LOOP, CONVERT, GATHER } What;

typedef struct Instruction {
  uint8_t what, dtype, from; /* dtypes: of the loop, or to and from which it converts */
  bool by_rows;
  uint8_t n;
  const void *loops;
  uint32_t params;
  Operand operand[MOST_OPERANDS]; /* the first is written */
} Instruction;

typedef enum Lie { FLAT, ONE, ROWS } Lie;

typedef struct Outside {
  uint8_t lie;
  uint32_t value;
  int64_t size;                   /* bytes of an element */
  int64_t stride[MOTH_MAX_DIMS];  /* of rows: bytes, by dimension of the walk */
  uint32_t gathered;              /* its register; UINT32_MAX: none */
  uint32_t last_read, written_by; /* instructions */
} Outside;

/* An operand or a parameter that is a number of the graph. */
typedef struct Varying {
  const MothOp *op;
  uint32_t number, index;
  uint8_t argument, dtype;
  bool is_param;
} Varying;

struct MothBlocks {
  int64_t numel, block, register_bytes, widest;
  uint32_t ninstructions, nresults, noutside, nnumbers, nparams, nregisters;
  uint32_t instructions_cap, outside_cap, numbers_cap, params_cap, nvarying, varying_cap;
  Varying *varying;
  Instruction *instructions;
  Outside *outside; /* results, then operands */
  double *numbers;  /* 8 bytes each, of any dtype */
  MothParam *params;
  int ndim; /* of the walk over rows */
  int64_t shape[MOTH_MAX_DIMS];
};

bool moth_blocks_takes(const MothPlan *p, const MothPlanCall *c) {
  if (!c->direct || c->op->kind != MOTH_KIND_POINTWISE || c->kernel != moth_cpu_pointwise ||
      c->op->nresults != 1)
    return false;
  const MothTensor *result = p->values[c->result[0]].fake;
  bool stored =
      moth_dtype_is_opt_in((MothDType)result->dtype) || moth_dtype_is_opt_in((MothDType)c->compute);
  for (uint32_t i = 0; i < c->nrefs; i++)
    stored = stored || moth_dtype_is_opt_in((MothDType)p->values[c->refs[i]].fake->dtype);
  return !stored && result->contiguous;
}

void moth_blocks_free(MothBlocks *b) {
  if (!b)
    return;
  free(b->instructions);
  free(b->outside);
  free(b->numbers);
  free(b->params);
  free(b->varying);
  free(b);
}

bool moth_blocks_may_replace(const MothBlocks *b, uint32_t k, uint32_t r) {
  const Outside *operand = &b->outside[b->nresults + r];
  return operand->lie == FLAT && operand->last_read <= b->outside[k].written_by;
}

uint32_t moth_blocks_operand(const MothBlocks *b, uint32_t id) {
  for (uint32_t k = b->nresults; k < b->noutside; k++)
    if (b->outside[k].value == id && b->outside[k].lie == FLAT)
      return k - b->nresults;
  return UINT32_MAX;
}

/* --- making --------------------------------------------------------------------------------------------------- */

typedef struct Maker {
  const MothPlan *p;
  MothBlocks *b;
  const bool *kept;
  uint32_t *made; /* by value: its register + 1; or 0 */
  uint32_t *at;   /* by value: its place outside + 1; or 0 */
  uint32_t nvirtual;
  int64_t widest;
} Maker;

static Instruction *add_instruction(Maker *m, What what) {
  MothBlocks *b = m->b;
  if (!moth_grow(&b->instructions, &b->instructions_cap, b->ninstructions + 1,
                 sizeof *b->instructions))
    return NULL;
  Instruction *i = &b->instructions[b->ninstructions++];
  memset(i, 0, sizeof *i);
  i->what = (uint8_t)what;
  return i;
}

static MothStatus add_outside(Maker *m, uint32_t value, const MothTensor *shape) {
  MothBlocks *b = m->b;
  if (!moth_grow(&b->outside, &b->outside_cap, b->noutside + 1, sizeof *b->outside))
    return MOTH_ERR_MEMORY;
  const MothTensor *t = m->p->values[value].fake;
  Outside *o = &b->outside[b->noutside++];
  *o = (Outside){.value = value, .size = moth_itemsize(t), .gathered = UINT32_MAX};
  o->lie = t->contiguous && t->numel == shape->numel ? FLAT : t->numel == 1 ? ONE : ROWS;
  for (int i = 0; i < shape->ndim && o->lie == ROWS; i++) {
    int own = i - (shape->ndim - t->ndim);
    o->stride[i] = own < 0 || t->shape[own] == 1 ? 0 : t->stride[own] * o->size;
  }
  m->at[value] = b->noutside;
  m->widest = o->size > m->widest ? o->size : m->widest;
  return MOTH_OK;
}

/* Dimensions of the walk: those of the shape, with neighbours that are one in all operands of rows joined. */
static void join_dimensions(MothBlocks *b, const MothTensor *shape) {
  int n = 0;
  for (int i = 0; i < shape->ndim; i++) {
    if (shape->shape[i] == 1)
      continue;
    bool joined = n > 0;
    for (uint32_t k = 0; k < b->noutside && joined; k++) {
      const Outside *o = &b->outside[k];
      joined = o->lie != ROWS || o->stride[n - 1] == o->stride[i] * shape->shape[i];
    }
    if (joined)
      b->shape[n - 1] *= shape->shape[i];
    else
      b->shape[n++] = shape->shape[i];
    for (uint32_t k = 0; k < b->noutside; k++)
      b->outside[k].stride[n - 1] = b->outside[k].stride[i];
  }
  if (n == 0)
    b->shape[n++] = 1;
  b->ndim = n;
}

static int64_t add_register(Maker *m, int64_t size) {
  m->widest = size > m->widest ? size : m->widest;
  return m->nvirtual++;
}

/* The operand that value `id` is, of this shape. */
static MothStatus operand_of(Maker *m, uint32_t id, Operand *to) {
  MothBlocks *b = m->b;
  int64_t size = moth_itemsize(m->p->values[id].fake);
  if (m->made[id]) {
    *to = (Operand){IN_REGISTER, m->made[id] - 1, size};
    return MOTH_OK;
  }
  uint32_t k = m->at[id] - 1;
  Outside *o = &b->outside[k];
  int64_t along = o->stride[b->ndim - 1];
  if (o->lie == ROWS && (b->shape[b->ndim - 1] < SHORT_ROW || (along != 0 && along != size))) {
    Instruction *i = add_instruction(m, GATHER);
    if (!i)
      return moth_no_memory(0);
    uint32_t reg = (uint32_t)add_register(m, size);
    i->n = 2;
    i->operand[0] = (Operand){IN_REGISTER, reg, size};
    i->operand[1] = (Operand){OUTSIDE, k, along};
    m->made[id] = reg + 1;
    *to = i->operand[0];
    return MOTH_OK;
  }
  *to = (Operand){OUTSIDE, k, o->lie == FLAT ? size : o->lie == ONE ? 0 : along};
  return MOTH_OK;
}

static bool is_by_rows(const Maker *m, const Operand *o) {
  return o->where == OUTSIDE && m->b->outside[o->index].lie == ROWS;
}

/* A register with the operand's elements in another dtype. */
static MothStatus convert(Maker *m, MothDType to, MothDType from, Operand *o) {
  Instruction *i = add_instruction(m, CONVERT);
  if (!i)
    return moth_no_memory(0);
  int64_t size = moth_dtype_size(to);
  uint32_t reg = (uint32_t)add_register(m, size);
  i->dtype = (uint8_t)to;
  i->from = (uint8_t)from;
  i->n = 2;
  i->operand[0] = (Operand){IN_REGISTER, reg, size};
  i->operand[1] = *o;
  i->by_rows = is_by_rows(m, o);
  *o = i->operand[0];
  return MOTH_OK;
}

static MothStatus add_number(Maker *m, MothDType dtype, MothValue v, Operand *o) {
  MothBlocks *b = m->b;
  if (!moth_grow(&b->numbers, &b->numbers_cap, b->nnumbers + 1, sizeof *b->numbers))
    return MOTH_ERR_MEMORY;
  moth_dtype_store(dtype, &b->numbers[b->nnumbers], v);
  *o = (Operand){NUMBER, b->nnumbers++, 0};
  return MOTH_OK;
}

/* Notes that a number is one of the graph. */
static MothStatus add_varying(Maker *m, const MothPlanCall *c, int i, uint32_t index,
                              bool is_param) {
  MothBlocks *b = m->b;
  if (!c->numbers || !c->numbers[i])
    return MOTH_OK;
  if (!moth_grow(&b->varying, &b->varying_cap, b->nvarying + 1, sizeof *b->varying))
    return MOTH_ERR_MEMORY;
  b->varying[b->nvarying++] = (Varying){.op = c->op,
                                        .number = c->numbers[i] - 1,
                                        .index = index,
                                        .argument = (uint8_t)i,
                                        .dtype = c->compute,
                                        .is_param = is_param};
  return MOTH_OK;
}

static MothStatus add_call(Maker *m, const MothPlanCall *c) {
  MothBlocks *b = m->b;
  MothDType dtype = (MothDType)c->compute;
  Operand list[MOST_OPERANDS];
  int n = 1;
  uint32_t params = b->nparams;
  const uint32_t *ref = c->refs;
  bool by_rows = false;
  if (!moth_grow(&b->params, &b->params_cap, b->nparams + c->op->nargs, sizeof *b->params))
    return MOTH_ERR_MEMORY;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (c->op->args[i].type == MOTH_T_SCALAR) {
      MOTH_TRY(add_varying(m, c, i, b->nparams, true));
      b->params[b->nparams++] = moth_pointwise_param(c->op, i, v, dtype);
      continue;
    }
    if (n == MOST_OPERANDS)
      return moth_fail(MOTH_ERR_STATE, "[%s] too many operands", c->op->name);
    if (v.tag == MOTH_V_TENSOR) {
      MothDType from = (MothDType)m->p->values[*ref].fake->dtype;
      MOTH_TRY(operand_of(m, *ref++, &list[n]));
      if (from != dtype && i != c->op->cond)
        MOTH_TRY(convert(m, dtype, from, &list[n]));
    } else {
      MOTH_TRY(add_varying(m, c, i, b->nnumbers, false));
      MOTH_TRY(add_number(m, dtype, v, &list[n]));
    }
    by_rows = by_rows || is_by_rows(m, &list[n]);
    n++;
  }
  uint32_t id = c->result[0];
  int64_t size = moth_itemsize(m->p->values[id].fake);
  if (m->kept[id]) {
    list[0] = (Operand){OUTSIDE, m->at[id] - 1, size};
  } else {
    uint32_t reg = (uint32_t)add_register(m, size);
    list[0] = (Operand){IN_REGISTER, reg, size};
    m->made[id] = reg + 1;
  }
  Instruction *i = add_instruction(m, LOOP);
  if (!i)
    return moth_no_memory(0);
  i->dtype = (uint8_t)dtype;
  i->loops = c->op->loops[MOTH_CPU];
  i->params = params;
  i->n = (uint8_t)n;
  i->by_rows = by_rows;
  memcpy(i->operand, list, sizeof *list * (size_t)n);
  return MOTH_OK;
}

/* Registers that are used one after the other become one, and outside operands know who reads them last. A register that an
 * instruction reads last may be the one that it writes, if elements are as wide. */
static MothStatus assign_registers(Maker *m) {
  MothBlocks *b = m->b;
  size_t n = (size_t)m->nvirtual + 1;
  uint32_t *last = calloc(3 * n, sizeof *last), *real = last + n, *owner = last + 2 * n;
  int64_t *width = calloc(n, sizeof *width);
  if (!last || !width) {
    free(last);
    free(width);
    return moth_no_memory((size_t)(3 * n) * sizeof *last + (size_t)n * sizeof *width);
  }
  for (uint32_t k = 0; k < b->ninstructions; k++)
    for (int i = 0; i < b->instructions[k].n; i++) {
      const Operand *o = &b->instructions[k].operand[i];
      if (o->where == IN_REGISTER)
        last[o->index] = k;
      if (o->where == IN_REGISTER && i == 0)
        width[o->index] = o->stride;
      if (o->where == OUTSIDE && i == 0)
        b->outside[o->index].written_by = k;
      else if (o->where == OUTSIDE)
        b->outside[o->index].last_read = k;
    }
  for (uint32_t k = 0; k < b->ninstructions; k++) {
    Instruction *in = &b->instructions[k];
    Operand *out = &in->operand[0];
    for (int i = 1; i < in->n; i++)
      if (in->operand[i].where == IN_REGISTER)
        in->operand[i].index = real[in->operand[i].index];
    if (out->where != IN_REGISTER)
      continue;
    uint32_t r = 0, own = out->index;
    for (; r < b->nregisters; r++) {
      uint32_t end = last[owner[r]];
      if (end < k || (end == k && width[owner[r]] == width[own]))
        break;
    }
    owner[r] = own;
    real[own] = r;
    out->index = r;
    b->nregisters = r + 1 > b->nregisters ? r + 1 : b->nregisters;
  }
  free(last);
  free(width);
  return MOTH_OK;
}

static MothStatus make(Maker *m, const uint32_t *calls, uint32_t ncalls, MothPlanStep *s) {
  const MothPlan *p = m->p;
  MothBlocks *b = m->b;
  const MothTensor *shape = p->values[p->calls[calls[0]].result[0]].fake;
  b->numel = shape->numel;
  for (uint32_t i = 0; i < ncalls; i++)
    if (m->kept[p->calls[calls[i]].result[0]])
      MOTH_TRY(add_outside(m, p->calls[calls[i]].result[0], shape));
    else
      m->made[p->calls[calls[i]].result[0]] = UINT32_MAX; /* of the group */
  b->nresults = b->noutside;
  for (uint32_t i = 0; i < ncalls; i++)
    for (uint32_t k = 0; k < p->calls[calls[i]].nrefs; k++) {
      uint32_t id = p->calls[calls[i]].refs[k];
      if (!m->made[id] && !m->at[id])
        MOTH_TRY(add_outside(m, id, shape));
    }
  join_dimensions(b, shape);
  for (uint32_t i = 0; i < ncalls; i++)
    MOTH_TRY(add_call(m, &p->calls[calls[i]]));
  MOTH_TRY(assign_registers(m));
  int64_t most = REGISTER_BYTES / m->widest / (b->nregisters ? b->nregisters : 1) / 64 * 64;
  int64_t longest = b->numel * m->widest >= LARGE ? LONGEST_FAR : LONGEST;
  b->block = most > longest ? longest : most < 64 ? 64 : most;
  b->register_bytes = b->block * m->widest;
  b->widest = m->widest;
  s->values = malloc(sizeof *s->values * ((size_t)b->noutside + 1));
  if (!s->values)
    return moth_no_memory(sizeof *s->values * ((size_t)b->noutside + 1));
  for (uint32_t i = 0; i < b->noutside; i++)
    s->values[i] = b->outside[i].value;
  s->nresults = b->nresults;
  s->nreads = b->noutside - b->nresults;
  s->call = calls[0];
  s->ncalls = ncalls;
  s->in_place = true;
  s->blocks = b;
  return MOTH_OK;
}

MothStatus moth_blocks_new(const MothPlan *p, const uint32_t *calls, uint32_t ncalls,
                           const bool *kept, MothPlanStep *s) {
  Maker m = {.p = p, .b = calloc(1, sizeof *m.b), .kept = kept};
  m.made = calloc((size_t)p->nvalues + 1, sizeof *m.made);
  m.at = calloc((size_t)p->nvalues + 1, sizeof *m.at);
  MothStatus status = m.b && m.made && m.at ? make(&m, calls, ncalls, s) : moth_no_memory(0);
  free(m.made);
  free(m.at);
  if (status != MOTH_OK)
    moth_blocks_free(m.b);
  return status;
}

/* --- running ---------------------------------------------------------------------------------------------------- */

typedef struct Run {
  const MothBlocks *b;
  char *const *addresses;
  const MothLoop *loops;
  const double *numbers;
  const MothParam *params;
  bool far, walks; /* what comes is asked for ahead; some operands lie in rows */
} Run;

/* A piece of a row: elements from `at` on. */
typedef struct Walk {
  int64_t index[MOTH_MAX_DIMS];
} Walk;

static void walk_to(const MothBlocks *b, int64_t element, Walk *w) {
  for (int i = b->ndim - 1; i >= 0; i--) {
    w->index[i] = element % b->shape[i];
    element /= b->shape[i];
  }
}

/* How many of n elements lie in this row. */
static inline int64_t piece(const MothBlocks *b, const Walk *w, int64_t n) {
  int64_t left = b->shape[b->ndim - 1] - w->index[b->ndim - 1];
  return left < n ? left : n;
}

static inline void walk_on(const MothBlocks *b, Walk *w, int64_t n) {
  int i = b->ndim - 1;
  w->index[i] += n;
  for (; i > 0 && w->index[i] == b->shape[i]; i--) {
    w->index[i] = 0;
    w->index[i - 1]++;
  }
}

static inline int64_t offset_in(const MothBlocks *b, const Outside *o, const Walk *w) {
  int64_t at = 0;
  for (int i = 0; i < b->ndim; i++)
    at += w->index[i] * o->stride[i];
  return at;
}

#define GATHER_AS(type)                                                                            \
  for (int64_t k = 0; k < n; k++)                                                                  \
  ((type *)to)[k] = *(const type *)(from + k * along)

static void gather_piece(char *to, const char *from, int64_t n, int64_t along, int64_t size) {
  if (along == size)
    memcpy(to, from, (size_t)(n * size));
  else if (size == 4)
    GATHER_AS(uint32_t);
  else if (size == 8)
    GATHER_AS(uint64_t);
  else if (size == 2)
    GATHER_AS(uint16_t);
  else
    GATHER_AS(uint8_t);
}

static void gather(const MothBlocks *b, const Outside *o, const char *from, Walk w, char *to,
                   int64_t n) {
  while (n > 0) {
    int64_t m = piece(b, &w, n);
    gather_piece(to, from + offset_in(b, o, &w), m, o->stride[b->ndim - 1], o->size);
    to += m * o->size;
    n -= m;
    walk_on(b, &w, m);
  }
}

static void run_by_rows(const Run *r, const Instruction *in, MothLoop loop, Walk w, char **p,
                        const int64_t *stride, int64_t n) {
  const MothBlocks *b = r->b;
  char *q[MOST_OPERANDS];
  for (int64_t done = 0, m; done < n; done += m) {
    m = piece(b, &w, n - done);
    for (int i = 0; i < in->n; i++) {
      const Operand *o = &in->operand[i];
      bool rows = o->where == OUTSIDE && b->outside[o->index].lie == ROWS;
      q[i] = rows ? r->addresses[o->index] + offset_in(b, &b->outside[o->index], &w)
                  : p[i] + done * stride[i];
    }
    loop(q, stride, m, r->params + in->params);
    walk_on(b, &w, m);
  }
}

static void run_instruction(const Run *r, const Instruction *in, MothLoop loop, int64_t from,
                            int64_t n, const Walk *w, char *registers) {
  const MothBlocks *b = r->b;
  char *p[MOST_OPERANDS];
  int64_t stride[MOST_OPERANDS];
  for (int i = 0; i < in->n; i++) {
    const Operand *o = &in->operand[i];
    stride[i] = o->stride;
    p[i] = o->where == IN_REGISTER ? registers + o->index * b->register_bytes
           : o->where == OUTSIDE   ? r->addresses[o->index] + from * o->stride
                                   : (char *)(uintptr_t)&r->numbers[o->index];
  }
  if (in->what == GATHER)
    gather(b, &b->outside[in->operand[1].index], r->addresses[in->operand[1].index], *w, p[0], n);
  else if (in->by_rows)
    run_by_rows(r, in, loop, *w, p, stride, n);
  else
    loop(p, stride, n, r->params + in->params);
}

/* Asks for a part of the memory that the next block reads and writes: the k-th of as many parts as there are instructions. The
 * processor prefetches by itself, but not across pages, and hardly for stores. */
static void ask_ahead(const Run *r, uint32_t k, int64_t from, int64_t n) {
  const MothBlocks *b = r->b;
  int64_t begin = from + n * k / b->ninstructions, end = from + n * (k + 1) / b->ninstructions;
  for (uint32_t i = 0; i < b->noutside; i++) {
    const Outside *o = &b->outside[i];
    const char *p = r->addresses[i];
    if (o->lie == FLAT && i < b->nresults)
      FETCH_TO_WRITE(p, begin * o->size, end * o->size);
    else if (o->lie == FLAT)
      FETCH(p, begin * o->size, end * o->size);
  }
}

static void run_range(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  const MothBlocks *b = r->b;
  _Alignas(64) char registers[REGISTER_BYTES];
  Walk w = {{0}};
  for (int64_t from = begin; from < end; from += b->block) {
    int64_t n = end - from < b->block ? end - from : b->block;
    int64_t next = end - from - n < b->block ? end - from - n : b->block;
    if (r->walks)
      walk_to(b, from, &w);
    for (uint32_t k = 0; k < b->ninstructions; k++) {
      if (r->far)
        ask_ahead(r, k, from + n, next);
      run_instruction(r, &b->instructions[k], r->loops[k], from, n, &w, registers);
    }
  }
}

static MothLoop loop_of(const Instruction *in) {
  if (in->what == LOOP)
    return moth_cpu_loop(in->loops, in->dtype);
  return in->what == CONVERT ? moth_cpu_kernels(in->dtype)->copy_from[in->from] : NULL;
}

/* What numbers of this run become. */
typedef struct Numbers {
  double own[MOTH_BLOCKS_MOST];
  MothParam params[MOTH_BLOCKS_MOST];
} Numbers;

static void put_numbers(Run *r, const MothValue *numbers, Numbers *to) {
  const MothBlocks *b = r->b;
  if (b->nnumbers)
    memcpy(to->own, b->numbers, sizeof *to->own * b->nnumbers);
  if (b->nparams)
    memcpy(to->params, b->params, sizeof *to->params * b->nparams);
  for (uint32_t i = 0; i < b->nvarying; i++) {
    const Varying *v = &b->varying[i];
    MothDType dtype = (MothDType)v->dtype;
    if (v->is_param)
      to->params[v->index] = moth_pointwise_param(v->op, v->argument, numbers[v->number], dtype);
    else
      moth_dtype_store(dtype, &to->own[v->index], numbers[v->number]);
  }
  r->numbers = to->own;
  r->params = to->params;
}

MothStatus moth_blocks_run_behind(const MothBlocks *b, char *const *addresses,
                                  const MothValue *numbers, MothStatus (*call)(void *ctx),
                                  void *ctx) {
  MothLoop loops[MOTH_BLOCKS_MOST];
  Numbers own;
  for (uint32_t k = 0; k < b->ninstructions; k++)
    loops[k] = loop_of(&b->instructions[k]);
  Run r = {b, addresses, loops, b->numbers, b->params, .far = !call && b->numel * b->widest >= FAR};
  for (uint32_t i = 0; i < b->noutside; i++)
    r.walks = r.walks || b->outside[i].lie == ROWS;
  if (numbers && b->nvarying)
    put_numbers(&r, numbers, &own);
  MothBehind behind = {.run = run_range, .ctx = &r};
  if (call) {
    moth_behind = &behind;
    MothStatus s = call(ctx);
    moth_behind = NULL;
    if (s != MOTH_OK)
      return s;
  }
  int64_t grain = (MOTH_GRAIN / b->ninstructions + b->block) / b->block * b->block;
  if (b->numel && !behind.taken)
    moth_parallel_for(b->numel, grain, run_range, &r);
  return MOTH_OK;
}

void moth_blocks_run(const MothBlocks *b, char *const *addresses, const MothValue *numbers) {
  moth_blocks_run_behind(b, addresses, numbers, NULL, NULL);
}
