/* How the machine keeps to its limits: values have 16 bytes and no memory of their own (strings
 * stay where they lie); containers are lists of cells in one array; all arrays grow through
 * reserve(), which counts their bytes and refuses beyond a budget of the file's size. Work is
 * linear: an operation takes from the stack what some other has put there, but for finding the last
 * MARK, for which the marks' places are kept in the marks themselves. What a container holds is
 * followed once, at the end, for its depth and for cycles. */
#include "io/pickle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "io/json.h"

/* Names that are known. Each dtype has two, too: torch.FloatStorage and torch.float32. */
typedef enum Global {
  ORDERED_DICT,
  REBUILD_TENSOR,
  REBUILD_TENSOR_V2,
  REBUILD_PARAMETER,
  SIZE,
  DEVICE,
  NGLOBALS
} Global;

static const char *const globals[NGLOBALS] = {
    [ORDERED_DICT] = "collections.OrderedDict",
    [REBUILD_TENSOR] = "torch._utils._rebuild_tensor",
    [REBUILD_TENSOR_V2] = "torch._utils._rebuild_tensor_v2",
    [REBUILD_PARAMETER] = "torch._utils._rebuild_parameter",
    [SIZE] = "torch.Size",
    [DEVICE] = "torch.device",
};

static const struct {
  const char *storage;
  MothDType dtype;
  const char *name;
} dtypes[] = {
    {"torch.FloatStorage", MOTH_FLOAT32, "torch.float32"},
    {"torch.DoubleStorage", MOTH_FLOAT64, "torch.float64"},
    {"torch.HalfStorage", MOTH_FLOAT16, "torch.float16"},
    {"torch.BFloat16Storage", MOTH_BFLOAT16, "torch.bfloat16"},
    {"torch.CharStorage", MOTH_INT8, "torch.int8"},
    {"torch.ByteStorage", MOTH_UINT8, "torch.uint8"},
    {"torch.ShortStorage", MOTH_INT16, "torch.int16"},
    {"torch.IntStorage", MOTH_INT32, "torch.int32"},
    {"torch.LongStorage", MOTH_INT64, "torch.int64"},
    {"torch.BoolStorage", MOTH_BOOL, "torch.bool"},
};

/* Names that PyTorch itself writes for what moth does not have. */
static const struct {
  const char *start, *why;
} refusals[] = {
    {"torch._utils._rebuild_tensor_v3", "a tensor of a dtype that moth does not have"},
    {"torch.storage.UntypedStorage", "a storage without a dtype; save tensors"},
    {"torch._utils._rebuild_sparse", "a sparse tensor; save x.to_dense()"},
    {"torch._utils._rebuild_qtensor", "a quantized tensor; save x.dequantize()"},
    {"torch._utils._rebuild_", "a kind of tensor that moth does not have"},
    {"torch.Complex", "complex numbers; save torch.view_as_real(x)"},
    {"torch.complex", "a dtype that moth does not have"},
    {"torch.Q", "a quantized tensor; save x.dequantize()"},
    {"torch.uint", "a dtype that moth does not have"},
    {"torch.float8", "a dtype that moth does not have"},
    {"numpy.", "a NumPy value; save .item() of it, or a tensor"},
    {"__builtin__.set", "a set; save a list"},
    {"builtins.set", "a set; save a list"},
};

enum {
  NAME_MAX_BYTES = 200,
  STORED_TUPLE = 5 /* ("storage", class, key, place, numel) */
};
#define BUDGET (24ll << 20)

typedef struct Machine {
  const uint8_t *bytes, *at, *end;
  int64_t budget; /* bytes of arrays that may still be made */
  MothPickleValue *stack, *memo;
  uint32_t stack_count, memo_count, mark; /* mark: above the last MARK; 0: there is none */
  uint32_t stack_room, memo_room, cell_room, container_room, storage_room, tensor_room, dim_room;
  MothPickle *out;
} Machine;

static MothStatus damaged(const Machine *m, const char *what) {
  return moth_fail(MOTH_ERR_VALUE, "pickle: %s at byte %td (damaged?)", what, m->at - m->bytes);
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Makes room for `more` items of an array. */
static MothStatus reserve(Machine *m, void *array_pointer, uint32_t count, uint32_t *room,
                          uint32_t more, size_t item) {
  void *array;
  if (count + (uint64_t)more <= *room)
    return MOTH_OK;
  uint64_t larger = *room + *room / 2 + (uint64_t)more + 16;
  int64_t bytes = (int64_t)((larger - *room) * item);
  if (larger >= UINT32_MAX || bytes > m->budget)
    return moth_fail(MOTH_ERR_VALUE,
                     "pickle: what %zu bytes of it build needs more memory than moth gives it; "
                     "many numbers are better saved as a tensor",
                     (size_t)(m->end - m->bytes));
  memcpy(&array, array_pointer, sizeof array);
  array = realloc(array, larger * item);
  if (!array)
    return moth_fail(MOTH_ERR_MEMORY, "pickle: no memory for %" PRIu64 " bytes", larger * item);
  memcpy(array_pointer, &array, sizeof array);
  *room = (uint32_t)larger;
  m->budget -= bytes;
  return MOTH_OK;
}

static MothStatus push(Machine *m, MothPickleValue value) {
  MOTH_TRY(reserve(m, &m->stack, m->stack_count, &m->stack_room, 1, sizeof *m->stack));
  m->stack[m->stack_count++] = value;
  return MOTH_OK;
}

/* Items above the last MARK. */
static uint32_t available(const Machine *m) {
  return m->stack_count - m->mark;
}

static MothStatus pop(Machine *m, MothPickleValue *out) {
  *out = (MothPickleValue){0};
  if (available(m) == 0)
    return damaged(m, "nothing on the stack");
  *out = m->stack[--m->stack_count];
  return MOTH_OK;
}

/* The topmost item, or NULL. */
static const MothPickleValue *top(const Machine *m) {
  return available(m) > 0 ? &m->stack[m->stack_count - 1] : NULL;
}

/* A MARK keeps in n the former value of m->mark. */
static MothStatus push_mark(Machine *m) {
  MOTH_TRY(push(m, (MothPickleValue){.kind = MOTH_PICKLE_MARK, .n = m->mark}));
  m->mark = m->stack_count;
  return MOTH_OK;
}

/* Ends the items above the last MARK: they are stack[*first] and the *count - 1 behind it, until
 * the next push. */
static MothStatus take_marked(Machine *m, uint32_t *first, uint32_t *count) {
  *first = *count = 0;
  if (m->mark == 0)
    return damaged(m, "no mark on the stack");
  *first = m->mark;
  *count = available(m);
  m->stack_count = m->mark - 1;
  m->mark = m->stack[m->stack_count].n;
  return MOTH_OK;
}

/* ---- containers -------------------------------------------------------------------------------
 */

static MothStatus new_container(Machine *m, MothPickleKind kind, MothPickleValue *out) {
  *out = (MothPickleValue){0};
  MothPickle *p = m->out;
  MOTH_TRY(
      reserve(m, &p->containers, p->container_count, &m->container_room, 1, sizeof *p->containers));
  p->containers[p->container_count] =
      (MothPickleContainer){kind, MOTH_PICKLE_END, MOTH_PICKLE_END, 0};
  *out = (MothPickleValue){.kind = kind, .n = p->container_count++};
  return MOTH_OK;
}

/* Appends stack items, which the stack no longer counts. */
static MothStatus append(Machine *m, uint32_t container, uint32_t first, uint32_t count) {
  MothPickle *p = m->out;
  MOTH_TRY(reserve(m, &p->cells, p->cell_count, &m->cell_room, count, sizeof *p->cells));
  MothPickleContainer *c = &p->containers[container];
  for (uint32_t i = 0; i < count; i++) {
    MothPickleValue value = m->stack[first + i];
    if (value.kind == MOTH_PICKLE_MARK)
      return damaged(m, "a mark as a value");
    if ((c->kind == MOTH_PICKLE_DICT || c->kind == MOTH_PICKLE_ORDERED) && c->count % 2 == 0 &&
        value.kind != MOTH_PICKLE_STRING && value.kind != MOTH_PICKLE_INT &&
        value.kind != MOTH_PICKLE_FLOAT && value.kind != MOTH_PICKLE_BOOL)
      return moth_fail(MOTH_ERR_VALUE,
                       "pickle: a dictionary's key is neither a string nor a number, at byte %td",
                       m->at - m->bytes);
    p->cells[p->cell_count] = (MothPickleCell){value, MOTH_PICKLE_END};
    if (c->count++ == 0)
      c->first = p->cell_count;
    else
      p->cells[c->last].next = p->cell_count;
    c->last = p->cell_count++;
  }
  return MOTH_OK;
}

static MothStatus push_tuple(Machine *m, MothPickleKind kind, uint32_t first, uint32_t count) {
  MothPickleValue tuple;
  MOTH_TRY(new_container(m, kind, &tuple));
  MOTH_TRY(append(m, tuple.n, first, count));
  return push(m, tuple);
}

/* TUPLE1 to TUPLE3 */
static MothStatus make_tuple(Machine *m, uint32_t count) {
  if (available(m) < count)
    return damaged(m, "too few values for a tuple");
  m->stack_count -= count;
  return push_tuple(m, MOTH_PICKLE_TUPLE, m->stack_count, count);
}

/* Appends the items [first, first + count) to the container that is now on top. */
static MothStatus extend(Machine *m, bool dictionary, uint32_t first, uint32_t count) {
  const MothPickleValue *c = top(m);
  bool fits = c && (dictionary ? c->kind == MOTH_PICKLE_DICT || c->kind == MOTH_PICKLE_ORDERED
                               : c->kind == MOTH_PICKLE_LIST);
  if (!fits || (dictionary && count % 2 != 0))
    return damaged(m, dictionary ? "no dictionary to fill" : "no list to fill");
  return append(m, c->n, first, count);
}

static MothStatus extend_marked(Machine *m, bool dictionary) {
  uint32_t first, count;
  MOTH_TRY(take_marked(m, &first, &count));
  return extend(m, dictionary, first, count);
}

/* APPEND, SETITEM: the container is below `count` values. */
static MothStatus extend_top(Machine *m, bool dictionary, uint32_t count) {
  if (available(m) <= count)
    return damaged(m, "too few values");
  m->stack_count -= count;
  return extend(m, dictionary, m->stack_count, count);
}

static MothStatus make_marked(Machine *m, MothPickleKind kind) {
  uint32_t first, count;
  MOTH_TRY(take_marked(m, &first, &count));
  if (kind == MOTH_PICKLE_DICT && count % 2 != 0)
    return damaged(m, "a key without a value");
  return push_tuple(m, kind, first, count);
}

/* ---- names ------------------------------------------------------------------------------------
 */

static bool starts(const char *name, const char *start) {
  return strncmp(name, start, strlen(start)) == 0;
}

static MothStatus push_global(Machine *m, const char *module, size_t module_n, const char *name,
                              size_t name_n) {
  char whole[NAME_MAX_BYTES + 2];
  if (module_n + name_n > NAME_MAX_BYTES || !moth_utf8_is_valid(module, module_n) ||
      !moth_utf8_is_valid(name, name_n))
    return damaged(m, "a name that is too long or no text");
  memcpy(whole, module, module_n);
  whole[module_n] = '.';
  memcpy(whole + module_n + 1, name, name_n);
  whole[module_n + 1 + name_n] = 0;
  for (uint32_t i = 0; i < NGLOBALS; i++)
    if (strcmp(whole, globals[i]) == 0)
      return push(m, (MothPickleValue){.kind = MOTH_PICKLE_GLOBAL, .n = i});
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    if (strcmp(whole, dtypes[i].storage) == 0)
      return push(m, (MothPickleValue){.kind = MOTH_PICKLE_CLASS, .n = dtypes[i].dtype});
    if (strcmp(whole, dtypes[i].name) == 0)
      return push(m, (MothPickleValue){.kind = MOTH_PICKLE_DTYPE, .n = dtypes[i].dtype});
  }
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
    if (starts(whole, refusals[i].start))
      return moth_fail(MOTH_ERR_VALUE, "pickle: the file has %s (%s, at byte %td)", refusals[i].why,
                       whole, m->at - m->bytes);
  return moth_fail(MOTH_ERR_VALUE,
                   "pickle: the file asks for %s, at byte %td, which is not among the names of "
                   "tensors and plain values; nothing was run. HINT: in Python, save "
                   "model.state_dict() alone",
                   whole, m->at - m->bytes);
}

/* Bytes up to a newline, which is left out. */
static MothStatus read_line(Machine *m, const char **text, size_t *n) {
  *text = "";
  *n = 0;
  const uint8_t *newline = memchr(m->at, '\n', (size_t)(m->end - m->at));
  if (!newline)
    return damaged(m, "a name without end");
  *text = (const char *)m->at;
  *n = (size_t)(newline - m->at);
  m->at = newline + 1;
  return MOTH_OK;
}

static MothStatus read_global(Machine *m) {
  const char *module, *name;
  size_t module_n, name_n;
  MOTH_TRY(read_line(m, &module, &module_n));
  MOTH_TRY(read_line(m, &name, &name_n));
  return push_global(m, module, module_n, name, name_n);
}

static MothStatus stack_global(Machine *m) {
  MothPickleValue name, module;
  MOTH_TRY(pop(m, &name));
  MOTH_TRY(pop(m, &module));
  if (name.kind != MOTH_PICKLE_STRING || module.kind != MOTH_PICKLE_STRING)
    return damaged(m, "a name that is no string");
  return push_global(m, module.u.text, module.n, name.u.text, name.n);
}

/* ---- tensors ----------------------------------------------------------------------------------
 */

/* The items of a tuple, at most `max` of them; their number, or -1. */
static int items_of(const Machine *m, MothPickleValue tuple, MothPickleValue *items, int max) {
  const MothPickle *p = m->out;
  if (tuple.kind != MOTH_PICKLE_TUPLE || p->containers[tuple.n].count > (uint32_t)max)
    return -1;
  int n = 0;
  for (uint32_t i = p->containers[tuple.n].first; i != MOTH_PICKLE_END; i = p->cells[i].next)
    items[n++] = p->cells[i].value;
  return n;
}

static bool is_empty(const Machine *m, MothPickleValue v) {
  return v.kind == MOTH_PICKLE_NONE ||
         ((v.kind == MOTH_PICKLE_DICT || v.kind == MOTH_PICKLE_ORDERED) &&
          m->out->containers[v.n].count == 0);
}

static MothStatus load_storage(Machine *m) {
  MothPickleValue id, item[STORED_TUPLE];
  MothPickle *p = m->out;
  MOTH_TRY(pop(m, &id));
  if (items_of(m, id, item, STORED_TUPLE) != STORED_TUPLE || item[0].kind != MOTH_PICKLE_STRING ||
      item[0].n != 7 || memcmp(item[0].u.text, "storage", 7) != 0 ||
      item[1].kind != MOTH_PICKLE_CLASS || item[2].kind != MOTH_PICKLE_STRING ||
      item[3].kind != MOTH_PICKLE_STRING || item[4].kind != MOTH_PICKLE_INT || item[4].u.i < 0 ||
      item[4].u.i > INT64_MAX / 16 || item[2].n > NAME_MAX_BYTES ||
      memchr(item[2].u.text, 0, item[2].n))
    return damaged(m, "something else than a storage outside of the pickle");
  MOTH_TRY(reserve(m, &p->storages, p->storage_count, &m->storage_room, 1, sizeof *p->storages));
  p->storages[p->storage_count] = (MothPickleStorage){.key = item[2].u.text,
                                                      .key_n = item[2].n,
                                                      .same = p->storage_count,
                                                      .dtype = (MothDType)item[1].n,
                                                      .numel = item[4].u.i};
  return push(m, (MothPickleValue){.kind = MOTH_PICKLE_STORAGE, .n = p->storage_count++});
}

/* Whether the elements of a tensor all lie within the storage. The offset of one that has none may be
 * anything in PyTorch: it is made 0. */
static bool reaches_within(MothPickleTensor *t, const int64_t *dims, int64_t numel) {
  int64_t last = t->offset, count = 1;
  bool empty = false, sound = t->offset >= 0;
  for (int d = 0; d < t->ndim; d++) {
    int64_t size = dims[d], stride = dims[t->ndim + d], reach = 0;
    sound &= size >= 0 && stride >= 0 && !__builtin_mul_overflow(count, size ? size : 1, &count);
    sound &= !__builtin_mul_overflow(size ? size - 1 : 0, stride, &reach) &&
             !__builtin_add_overflow(last, reach, &last);
    empty |= size == 0;
  }
  if (empty)
    t->offset = 0;
  return sound && count <= INT64_MAX / 16 && (empty || last < numel);
}

/* (storage, offset, sizes, strides, requires_grad, hooks, metadata); the old function has four */
static MothStatus rebuild_tensor(Machine *m, MothPickleValue arguments) {
  MothPickleValue item[7], size[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  MothPickle *p = m->out;
  int n = items_of(m, arguments, item, 7);
  if (n < 4 || n == 5 || item[0].kind != MOTH_PICKLE_STORAGE || item[1].kind != MOTH_PICKLE_INT ||
      item[2].kind != MOTH_PICKLE_TUPLE || item[3].kind != MOTH_PICKLE_TUPLE ||
      (n > 4 && item[4].kind != MOTH_PICKLE_BOOL))
    return damaged(m, "a tensor that is not described as PyTorch does");
  if ((n > 5 && !is_empty(m, item[5])) || (n > 6 && !is_empty(m, item[6])))
    return moth_fail(MOTH_ERR_VALUE,
                     "pickle: a tensor with hooks or metadata at byte %td; save x.detach().clone()",
                     m->at - m->bytes);
  int ndim = items_of(m, item[2], size, MOTH_MAX_DIMS);
  if (ndim < 0)
    return moth_fail(MOTH_ERR_VALUE, "pickle: a tensor of more than %d dimensions at byte %td",
                     MOTH_MAX_DIMS, m->at - m->bytes);
  if (items_of(m, item[3], stride, MOTH_MAX_DIMS) != ndim)
    return damaged(m, "a tensor with other than one stride for each size");
  MOTH_TRY(reserve(m, &p->tensors, p->tensor_count, &m->tensor_room, 1, sizeof *p->tensors));
  MOTH_TRY(reserve(m, &p->dims, p->dim_count, &m->dim_room, 2 * (uint32_t)ndim, sizeof *p->dims));
  MothPickleTensor t = {.storage = item[0].n,
                        .dims = p->dim_count,
                        .ndim = (uint8_t)ndim,
                        .requires_grad = n > 4 && item[4].u.i,
                        .offset = item[1].u.i};
  int64_t *dims = p->dims ? p->dims + p->dim_count : NULL;
  for (int d = 0; d < ndim; d++) {
    if (size[d].kind != MOTH_PICKLE_INT || stride[d].kind != MOTH_PICKLE_INT)
      return damaged(m, "a size or stride that is no integer");
    dims[d] = size[d].u.i;
    dims[ndim + d] = stride[d].u.i;
  }
  if (!reaches_within(&t, dims, p->storages[t.storage].numel))
    return moth_fail(MOTH_ERR_VALUE,
                     "pickle: a tensor reaches beyond the %" PRId64
                     " elements of its storage, at byte %td",
                     p->storages[t.storage].numel, m->at - m->bytes);
  p->dim_count += 2 * (uint32_t)ndim;
  p->tensors[p->tensor_count] = t;
  return push(m, (MothPickleValue){.kind = MOTH_PICKLE_TENSOR, .n = p->tensor_count++});
}

/* (tensor, requires_grad, hooks): the tensor, which may be said to require gradients. */
static MothStatus rebuild_parameter(Machine *m, MothPickleValue arguments) {
  MothPickleValue item[3];
  MothPickle *p = m->out;
  if (items_of(m, arguments, item, 3) != 3 || item[0].kind != MOTH_PICKLE_TENSOR ||
      item[1].kind != MOTH_PICKLE_BOOL || !is_empty(m, item[2]))
    return damaged(m, "a parameter that is not described as PyTorch does");
  MOTH_TRY(reserve(m, &p->tensors, p->tensor_count, &m->tensor_room, 1, sizeof *p->tensors));
  MothPickleTensor t = p->tensors[item[0].n];
  t.requires_grad = item[1].u.i;
  p->tensors[p->tensor_count] = t;
  return push(m, (MothPickleValue){.kind = MOTH_PICKLE_TENSOR, .n = p->tensor_count++});
}

/* REDUCE: calls one of the known names. */
static MothStatus reduce(Machine *m) {
  MothPickleValue arguments, callee, item[2], made;
  MOTH_TRY(pop(m, &arguments));
  MOTH_TRY(pop(m, &callee));
  if (callee.kind != MOTH_PICKLE_GLOBAL || arguments.kind != MOTH_PICKLE_TUPLE)
    return damaged(m, "a call of something that cannot be called");
  switch ((Global)callee.n) {
  case ORDERED_DICT:
    if (items_of(m, arguments, item, 0) != 0)
      return damaged(m, "an OrderedDict that is not made empty");
    MOTH_TRY(new_container(m, MOTH_PICKLE_ORDERED, &made));
    return push(m, made);
  case REBUILD_TENSOR:
  case REBUILD_TENSOR_V2:
    return rebuild_tensor(m, arguments);
  case REBUILD_PARAMETER:
    return rebuild_parameter(m, arguments);
  case SIZE:
    if (items_of(m, arguments, item, 1) != 1 || item[0].kind != MOTH_PICKLE_TUPLE)
      return damaged(m, "a torch.Size of something else than a tuple");
    return push(m, item[0]);
  case DEVICE: {
    int n = items_of(m, arguments, item, 2);
    if (n < 1 || item[0].kind != MOTH_PICKLE_STRING)
      return damaged(m, "a torch.device without a name");
    return push(m, item[0]);
  }
  case NGLOBALS:
    break;
  }
  return damaged(m, "a call of something that cannot be called");
}

/* BUILD sets attributes. PyTorch writes it for the versions of a state dict's modules, which have no
 * place in a plain table: they are dropped. */
static MothStatus build(Machine *m) {
  MothPickleValue state;
  MOTH_TRY(pop(m, &state));
  if (!top(m) || top(m)->kind != MOTH_PICKLE_ORDERED || state.kind != MOTH_PICKLE_DICT)
    return damaged(m, "attributes for something else than an OrderedDict");
  return MOTH_OK;
}

/* ---- operations -------------------------------------------------------------------------------
 */

/* An unsigned little-endian number of `size` bytes. */
static MothStatus read_number(Machine *m, int size, uint64_t *out) {
  *out = 0;
  if (m->end - m->at < size)
    return damaged(m, "the data ends too early");
  for (int i = 0; i < size; i++)
    *out |= (uint64_t)m->at[i] << (8 * i);
  m->at += size;
  return MOTH_OK;
}

static MothStatus push_integer(Machine *m, int64_t value) {
  return push(m, (MothPickleValue){.kind = MOTH_PICKLE_INT, .u.i = value});
}

static MothStatus push_plain(Machine *m, MothPickleKind kind, int64_t value) {
  return push(m, (MothPickleValue){.kind = kind, .u.i = value});
}

static MothStatus load_integer(Machine *m, int size) {
  uint64_t value;
  MOTH_TRY(read_number(m, size, &value));
  return push_integer(m, size == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

/* LONG1, LONG4: `size` bytes that say how many bytes the number has */
static MothStatus load_long(Machine *m, int size) {
  uint64_t n, value;
  MOTH_TRY(read_number(m, size, &n));
  if (n > 8)
    return moth_fail(MOTH_ERR_VALUE, "pickle: an integer of more than 64 bits at byte %td",
                     m->at - m->bytes);
  MOTH_TRY(read_number(m, (int)n, &value));
  if (n > 0 && n < 8 && value >> (8 * n - 1))
    value |= ~(uint64_t)0 << (8 * n);
  return push_integer(m, (int64_t)value);
}

/* Big-endian, unlike all else. */
static MothStatus load_float(Machine *m) {
  uint64_t bits;
  MothPickleValue value = {.kind = MOTH_PICKLE_FLOAT};
  MOTH_TRY(read_number(m, 8, &bits));
  bits = __builtin_bswap64(bits);
  memcpy(&value.u.d, &bits, sizeof bits);
  return push(m, value);
}

static MothStatus load_string(Machine *m, int size, bool text) {
  uint64_t n;
  MOTH_TRY(read_number(m, size, &n));
  if (n > (uint64_t)(m->end - m->at) || n >= UINT32_MAX)
    return damaged(m, "a string that is longer than the data");
  MothPickleValue value = {
      .kind = MOTH_PICKLE_STRING, .n = (uint32_t)n, .u.text = (const char *)m->at};
  if (text && !moth_utf8_is_valid(value.u.text, n))
    return damaged(m, "a text that is not UTF-8");
  m->at += n;
  return push(m, value);
}

static MothStatus put(Machine *m, uint64_t id) {
  const MothPickleValue *value = top(m);
  if (!value)
    return damaged(m, "nothing to remember");
  if (id > m->memo_count) /* Python numbers them in order */
    return damaged(m, "a value remembered under a number out of order");
  if (id == m->memo_count) {
    MOTH_TRY(reserve(m, &m->memo, m->memo_count, &m->memo_room, 1, sizeof *m->memo));
    m->memo_count++;
  }
  m->memo[id] = *value;
  return MOTH_OK;
}

static MothStatus put_numbered(Machine *m, int size) {
  uint64_t id;
  MOTH_TRY(read_number(m, size, &id));
  return put(m, id);
}

static MothStatus get_numbered(Machine *m, int size) {
  uint64_t id;
  MOTH_TRY(read_number(m, size, &id));
  return id < m->memo_count ? push(m, m->memo[id]) : damaged(m, "a value that was not remembered");
}

static MothStatus pop_one(Machine *m) {
  MothPickleValue value;
  uint32_t first, count;
  return available(m) > 0 ? pop(m, &value) : take_marked(m, &first, &count);
}

static MothStatus pop_marked(Machine *m) {
  uint32_t first, count;
  return take_marked(m, &first, &count);
}

static MothStatus skip_frame(Machine *m) {
  uint64_t n;
  MOTH_TRY(read_number(m, 8, &n));
  return n <= (uint64_t)(m->end - m->at) ? MOTH_OK : damaged(m, "a frame longer than the data");
}

static MothStatus new_and_push(Machine *m, MothPickleKind kind) {
  MothPickleValue made;
  MOTH_TRY(new_container(m, kind, &made));
  return push(m, made);
}

static MothStatus step(Machine *m, uint8_t op) {
  switch (op) {
  case '(':
    return push_mark(m);
  case '0':
    return pop_one(m);
  case '1':
    return pop_marked(m);
  case 'N':
    return push_plain(m, MOTH_PICKLE_NONE, 0);
  case 0x88:
    return push_plain(m, MOTH_PICKLE_BOOL, 1);
  case 0x89:
    return push_plain(m, MOTH_PICKLE_BOOL, 0);
  case 'K':
    return load_integer(m, 1);
  case 'M':
    return load_integer(m, 2);
  case 'J':
    return load_integer(m, 4);
  case 0x8a:
    return load_long(m, 1);
  case 0x8b:
    return load_long(m, 4);
  case 'G':
    return load_float(m);
  case 'X':
    return load_string(m, 4, true);
  case 0x8c:
    return load_string(m, 1, true);
  case 0x8d:
    return load_string(m, 8, true);
  case 'B':
  case 'T':
    return load_string(m, 4, false);
  case 'C':
  case 'U':
    return load_string(m, 1, false);
  case 0x8e:
    return load_string(m, 8, false);
  case ')':
    return make_tuple(m, 0);
  case 0x85:
    return make_tuple(m, 1);
  case 0x86:
    return make_tuple(m, 2);
  case 0x87:
    return make_tuple(m, 3);
  case 't':
    return make_marked(m, MOTH_PICKLE_TUPLE);
  case ']':
    return new_and_push(m, MOTH_PICKLE_LIST);
  case 'l':
    return make_marked(m, MOTH_PICKLE_LIST);
  case 'a':
    return extend_top(m, false, 1);
  case 'e':
    return extend_marked(m, false);
  case '}':
    return new_and_push(m, MOTH_PICKLE_DICT);
  case 'd':
    return make_marked(m, MOTH_PICKLE_DICT);
  case 's':
    return extend_top(m, true, 2);
  case 'u':
    return extend_marked(m, true);
  case 'q':
    return put_numbered(m, 1);
  case 'r':
    return put_numbered(m, 4);
  case 0x94:
    return put(m, m->memo_count);
  case 'h':
    return get_numbered(m, 1);
  case 'j':
    return get_numbered(m, 4);
  case 'c':
    return read_global(m);
  case 0x93:
    return stack_global(m);
  case 'Q':
    return load_storage(m);
  case 'R':
    return reduce(m);
  case 'b':
    return build(m);
  case 0x95:
    return skip_frame(m);
  default:
    m->at--;
    return moth_fail(MOTH_ERR_VALUE,
                     "pickle: operation 0x%02x at byte %td, which no file of tensors needs; "
                     "nothing was run",
                     op, m->at - m->bytes);
  }
}

static MothStatus run(Machine *m) {
  if (m->end - m->at < 2 || m->at[0] != 0x80 || m->at[1] < 2 || m->at[1] > 5)
    return damaged(m, "no pickle of protocol 2 to 5");
  m->at += 2;
  for (;;) {
    if (m->at == m->end)
      return damaged(m, "the data ends too early");
    uint8_t op = *m->at++;
    if (op == '.')
      break;
    MOTH_TRY(step(m, op));
  }
  if (m->stack_count != 1 || m->mark != 0)
    return damaged(m, "more or less than one value at the end");
  if (m->at != m->end)
    return damaged(m, "something follows the end");
  m->out->root = m->stack[0];
  return MOTH_OK;
}

/* ---- checking the result ----------------------------------------------------------------------
 */

/* One container that is being followed. */
typedef struct Frame {
  uint32_t container, cell;
} Frame;

static bool is_container(MothPickleValue v) {
  return v.kind >= MOTH_PICKLE_TUPLE && v.kind <= MOTH_PICKLE_ORDERED;
}

/* Follows what the root holds. height[i] is that of containers[i] once it is known, 0 before, and
 * OPEN while it is being followed: whoever meets an open one has come round in a circle. */
static MothStatus check_tree(const Machine *m, uint8_t *height) {
  enum { OPEN = 255 };
  const MothPickle *p = m->out;
  Frame frames[MOTH_PICKLE_MAX_DEPTH];
  MothPickleValue value = p->root;
  int depth = 0;
  for (;;) {
    int height_below = 0;
    if (is_container(value) && height[value.n] == OPEN)
      return moth_fail(MOTH_ERR_VALUE, "pickle: a table that contains itself");
    if (is_container(value) && height[value.n] == 0) {
      if (depth == MOTH_PICKLE_MAX_DEPTH)
        return moth_fail(MOTH_ERR_VALUE, "pickle: tables nest deeper than %d",
                         MOTH_PICKLE_MAX_DEPTH);
      height[value.n] = OPEN;
      frames[depth++] = (Frame){value.n, p->containers[value.n].first};
    } else if (is_container(value)) {
      height_below = height[value.n];
    } else if (value.kind == MOTH_PICKLE_NOTHING || value.kind >= MOTH_PICKLE_STORAGE) {
      return moth_fail(MOTH_ERR_VALUE,
                       "pickle: a storage, class or function stands where a value is expected");
    }
    if (depth + height_below > MOTH_PICKLE_MAX_DEPTH)
      return moth_fail(MOTH_ERR_VALUE, "pickle: tables nest deeper than %d", MOTH_PICKLE_MAX_DEPTH);
    while (depth > 0 && frames[depth - 1].cell == MOTH_PICKLE_END) {
      /* Its height is known now, should there be a second way to it from deeper down. */
      const MothPickleContainer *c = &p->containers[frames[depth - 1].container];
      uint8_t highest = 0;
      for (uint32_t i = c->first; i != MOTH_PICKLE_END; i = p->cells[i].next)
        if (is_container(p->cells[i].value) && height[p->cells[i].value.n] > highest)
          highest = height[p->cells[i].value.n];
      height[frames[--depth].container] = (uint8_t)(highest + 1);
    }
    if (depth == 0)
      return MOTH_OK;
    Frame *f = &frames[depth - 1];
    value = p->cells[f->cell].value;
    f->cell = p->cells[f->cell].next;
  }
}

static int compare_keys(const void *a, const void *b) {
  const MothPickleStorage *x = *(MothPickleStorage *const *)a, *y = *(MothPickleStorage *const *)b;
  int order = memcmp(x->key, y->key, x->key_n < y->key_n ? x->key_n : y->key_n);
  if (order != 0 || x->key_n != y->key_n)
    return order != 0 ? order : x->key_n < y->key_n ? -1 : 1;
  return x < y ? -1 : x > y;
}

/* Finds storages of the same key; they must agree. */
static MothStatus join_storages(Machine *m) {
  MothPickle *p = m->out;
  MothPickleStorage **sorted = NULL;
  uint32_t room = 0;
  if (p->storage_count < 2)
    return MOTH_OK;
  MothStatus status = reserve(m, &sorted, 0, &room, p->storage_count, sizeof *sorted);
  for (uint32_t i = 0; i < p->storage_count && status == MOTH_OK; i++)
    sorted[i] = &p->storages[i];
  if (status == MOTH_OK)
    qsort(sorted, p->storage_count, sizeof *sorted, compare_keys);
  for (uint32_t i = 1; i < p->storage_count && status == MOTH_OK; i++) {
    MothPickleStorage *a = sorted[i - 1], *b = sorted[i];
    if (a->key_n != b->key_n || memcmp(a->key, b->key, a->key_n) != 0)
      continue;
    b->same = a->same;
    if (a->dtype != b->dtype || a->numel != b->numel)
      status = moth_fail(MOTH_ERR_VALUE, "pickle: storage %.*s is described in two ways",
                         a->key_n < 40 ? (int)a->key_n : 40, a->key);
  }
  free(sorted);
  return status;
}

MothStatus moth_pickle_parse(const uint8_t *bytes, size_t n, MothPickle **out) {
  MothStatus status;
  uint8_t *height = NULL;
  *out = NULL;
  if (n >= UINT32_MAX)
    return moth_fail(MOTH_ERR_VALUE, "pickle: %zu bytes are too large for one", n);
  Machine m = {.bytes = bytes, .at = bytes, .end = bytes + n};
  m.budget = BUDGET + (int64_t)n;
  m.out = calloc(1, sizeof *m.out);
  if (!m.out)
    return moth_fail(MOTH_ERR_MEMORY, "pickle: no memory");
  MOTH_GO(run(&m));
  height = calloc((size_t)m.out->container_count + 1, 1);
  MOTH_GO(height ? MOTH_OK : moth_fail(MOTH_ERR_MEMORY, "pickle: no memory"));
  MOTH_GO(check_tree(&m, height));
  MOTH_GO(join_storages(&m));
done:
  free(height);
  free(m.stack);
  free(m.memo);
  if (status != MOTH_OK)
    moth_pickle_free(m.out);
  else
    *out = m.out;
  return status;
}

void moth_pickle_free(MothPickle *pickle) {
  if (!pickle)
    return;
  free(pickle->cells);
  free(pickle->containers);
  free(pickle->storages);
  free(pickle->tensors);
  free(pickle->dims);
  free(pickle);
}
