/* How the machine keeps its limits: values have 16 bytes and no memory of their own (strings point into
 * the file); containers are lists of cells in one array; all arrays grow by moth_pickle_reserve(), which
 * counts their bytes and fails beyond a budget of the file's size. Work is linear: an operation pops only
 * values that others pushed, and each MARK stores the position of the one before it. The tree of containers
 * is followed once, at the end, for depth and cycles. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "io/json.h"
#include "io/pickle_machine.h"

#define BUDGET        (24ll << 20)
#define RECORD_BUDGET 40

MothStatus moth_pickle_damaged(const MothPickleMachine *m, const char *what) {
  return moth_fail(MOTH_ERR_VALUE, "pickle: %s at byte %td (damaged?)", what, m->at - m->bytes);
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Grows an array for `more` items. */
MothStatus moth_pickle_reserve(MothPickleMachine *m, void *array_pointer, uint32_t count,
                               uint32_t *capacity, uint32_t more, size_t item) {
  void *array;
  if (count + (uint64_t)more <= *capacity)
    return MOTH_OK;
  uint64_t larger = *capacity + *capacity / 2 + (uint64_t)more + 16;
  int64_t bytes = (int64_t)((larger - *capacity) * item);
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
  *capacity = (uint32_t)larger;
  m->budget -= bytes;
  return MOTH_OK;
}

MothStatus moth_pickle_push(MothPickleMachine *m, MothPickleValue value) {
  MOTH_TRY(moth_pickle_reserve(m, &m->stack, m->stack_count, &m->stack_room, 1, sizeof *m->stack));
  m->stack[m->stack_count++] = value;
  return MOTH_OK;
}

/* Items above the last MARK. */
static uint32_t available(const MothPickleMachine *m) {
  return m->stack_count - m->mark;
}

MothStatus moth_pickle_pop(MothPickleMachine *m, MothPickleValue *out) {
  *out = (MothPickleValue){0};
  if (available(m) == 0)
    return moth_pickle_damaged(m, "nothing on the stack");
  *out = m->stack[--m->stack_count];
  return MOTH_OK;
}

/* The topmost item, or NULL. */
const MothPickleValue *moth_pickle_top(const MothPickleMachine *m) {
  return available(m) > 0 ? &m->stack[m->stack_count - 1] : NULL;
}

/* A MARK stores the former m->mark in its n. */
static MothStatus push_mark(MothPickleMachine *m) {
  MOTH_TRY(moth_pickle_push(m, (MothPickleValue){.kind = MOTH_PICKLE_MARK, .n = m->mark}));
  m->mark = m->stack_count;
  return MOTH_OK;
}

/* Pops the items above the last MARK, and the MARK: they stay at stack[*first], *count of them, until the
 * next push. */
static MothStatus take_marked(MothPickleMachine *m, uint32_t *first, uint32_t *count) {
  *first = *count = 0;
  if (m->mark == 0)
    return moth_pickle_damaged(m, "no mark on the stack");
  *first = m->mark;
  *count = available(m);
  m->stack_count = m->mark - 1;
  m->mark = m->stack[m->stack_count].n;
  return MOTH_OK;
}

/* ---- containers -------------------------------------------------------------------------------
 */

MothStatus moth_pickle_new_container(MothPickleMachine *m, MothPickleKind kind,
                                     MothPickleValue *out) {
  *out = (MothPickleValue){0};
  MothPickle *p = m->out;
  MOTH_TRY(moth_pickle_reserve(m, &p->containers, p->container_count, &m->container_room, 1,
                               sizeof *p->containers));
  p->containers[p->container_count] =
      (MothPickleContainer){kind, MOTH_PICKLE_END, MOTH_PICKLE_END, 0};
  *out = (MothPickleValue){.kind = kind, .n = p->container_count++};
  return MOTH_OK;
}

/* Appends stack items, which the stack no longer counts. */
static MothStatus append(MothPickleMachine *m, uint32_t container, uint32_t first, uint32_t count) {
  MothPickle *p = m->out;
  MOTH_TRY(
      moth_pickle_reserve(m, &p->cells, p->cell_count, &m->cell_room, count, sizeof *p->cells));
  MothPickleContainer *c = &p->containers[container];
  for (uint32_t i = 0; i < count; i++) {
    MothPickleValue value = m->stack[first + i];
    if (value.kind == MOTH_PICKLE_MARK)
      return moth_pickle_damaged(m, "a mark as a value");
    if (c->kind >= MOTH_PICKLE_DICT && c->count % 2 == 0 && value.kind != MOTH_PICKLE_STRING &&
        value.kind != MOTH_PICKLE_INT && value.kind != MOTH_PICKLE_FLOAT &&
        value.kind != MOTH_PICKLE_BOOL && value.kind != MOTH_PICKLE_RECORD)
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

MothStatus moth_pickle_take(MothPickleMachine *m, uint32_t container, uint32_t count) {
  if (available(m) < count)
    return moth_pickle_damaged(m, "too few values");
  m->stack_count -= count;
  return append(m, container, m->stack_count, count);
}

MothStatus moth_pickle_copy_cells(MothPickleMachine *m, uint32_t to, uint32_t from, bool numbered) {
  const MothPickle *p = m->out;
  uint32_t at = m->stack_count, n = 0;
  for (uint32_t i = p->containers[from].first; i != MOTH_PICKLE_END; i = p->cells[i].next) {
    n++;
    if (numbered)
      MOTH_TRY(moth_pickle_push(m, (MothPickleValue){.kind = MOTH_PICKLE_INT, .u.i = n}));
    MOTH_TRY(moth_pickle_push(m, p->cells[i].value));
  }
  n = m->stack_count - at;
  m->stack_count = at;
  return append(m, to, at, n);
}

static MothStatus push_tuple(MothPickleMachine *m, MothPickleKind kind, uint32_t first,
                             uint32_t count) {
  MothPickleValue tuple;
  MOTH_TRY(moth_pickle_new_container(m, kind, &tuple));
  MOTH_TRY(append(m, tuple.n, first, count));
  return moth_pickle_push(m, tuple);
}

/* TUPLE1 to TUPLE3 */
static MothStatus make_tuple(MothPickleMachine *m, uint32_t count) {
  if (available(m) < count)
    return moth_pickle_damaged(m, "too few values for a tuple");
  m->stack_count -= count;
  return push_tuple(m, MOTH_PICKLE_TUPLE, m->stack_count, count);
}

/* Appends the items [first, first + count) to the container that is now on top. */
static MothStatus extend(MothPickleMachine *m, bool dictionary, uint32_t first, uint32_t count) {
  const MothPickleValue *c = moth_pickle_top(m);
  bool fits = c && (dictionary ? c->kind == MOTH_PICKLE_DICT || c->kind == MOTH_PICKLE_ORDERED
                               : c->kind == MOTH_PICKLE_LIST);
  if (!fits || (dictionary && count % 2 != 0))
    return moth_pickle_damaged(m, dictionary ? "no dictionary to fill" : "no list to fill");
  return append(m, c->n, first, count);
}

static MothStatus extend_marked(MothPickleMachine *m, bool dictionary) {
  uint32_t first, count;
  MOTH_TRY(take_marked(m, &first, &count));
  return extend(m, dictionary, first, count);
}

/* APPEND, SETITEM: the container is below `count` values. */
static MothStatus extend_top(MothPickleMachine *m, bool dictionary, uint32_t count) {
  if (available(m) <= count)
    return moth_pickle_damaged(m, "too few values");
  m->stack_count -= count;
  return extend(m, dictionary, m->stack_count, count);
}

static MothStatus make_marked(MothPickleMachine *m, MothPickleKind kind) {
  uint32_t first, count;
  MOTH_TRY(take_marked(m, &first, &count));
  if (kind == MOTH_PICKLE_DICT && count % 2 != 0)
    return moth_pickle_damaged(m, "a key without a value");
  return push_tuple(m, kind, first, count);
}

/* ---- operations -------------------------------------------------------------------------------
 */

/* Bytes up to a newline, which is left out. */
static MothStatus read_line(MothPickleMachine *m, const char **text, size_t *n) {
  *text = "";
  *n = 0;
  const uint8_t *newline = memchr(m->at, '\n', (size_t)(m->end - m->at));
  if (!newline)
    return moth_pickle_damaged(m, "a name without end");
  *text = (const char *)m->at;
  *n = (size_t)(newline - m->at);
  m->at = newline + 1;
  return MOTH_OK;
}

static MothStatus read_global(MothPickleMachine *m) {
  const char *module, *name;
  size_t module_n, name_n;
  MOTH_TRY(read_line(m, &module, &module_n));
  MOTH_TRY(read_line(m, &name, &name_n));
  return moth_pickle_push_name(m, module, module_n, name, name_n);
}

static MothStatus stack_global(MothPickleMachine *m) {
  MothPickleValue name, module;
  MOTH_TRY(moth_pickle_pop(m, &name));
  MOTH_TRY(moth_pickle_pop(m, &module));
  if (name.kind != MOTH_PICKLE_STRING || module.kind != MOTH_PICKLE_STRING)
    return moth_pickle_damaged(m, "a name that is no string");
  return moth_pickle_push_name(m, module.u.text, module.n, name.u.text, name.n);
}

/* An unsigned little-endian number of `size` bytes. */
static MothStatus read_number(MothPickleMachine *m, int size, uint64_t *out) {
  *out = 0;
  if (m->end - m->at < size)
    return moth_pickle_damaged(m, "the data ends too early");
  for (int i = 0; i < size; i++)
    *out |= (uint64_t)m->at[i] << (8 * i);
  m->at += size;
  return MOTH_OK;
}

static MothStatus push_integer(MothPickleMachine *m, int64_t value) {
  return moth_pickle_push(m, (MothPickleValue){.kind = MOTH_PICKLE_INT, .u.i = value});
}

static MothStatus push_plain(MothPickleMachine *m, MothPickleKind kind, int64_t value) {
  return moth_pickle_push(m, (MothPickleValue){.kind = kind, .u.i = value});
}

static MothStatus load_integer(MothPickleMachine *m, int size) {
  uint64_t value;
  MOTH_TRY(read_number(m, size, &value));
  return push_integer(m, size == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

/* LONG1, LONG4: `size` bytes that say how many bytes the number has */
static MothStatus load_long(MothPickleMachine *m, int size) {
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

/* The only big-endian number. */
static MothStatus load_float(MothPickleMachine *m) {
  uint64_t bits;
  MothPickleValue value = {.kind = MOTH_PICKLE_FLOAT};
  MOTH_TRY(read_number(m, 8, &bits));
  bits = __builtin_bswap64(bits);
  memcpy(&value.u.d, &bits, sizeof bits);
  return moth_pickle_push(m, value);
}

static MothStatus load_string(MothPickleMachine *m, int size, bool text) {
  uint64_t n;
  MOTH_TRY(read_number(m, size, &n));
  if (n > (uint64_t)(m->end - m->at) || n >= UINT32_MAX)
    return moth_pickle_damaged(m, "a string that is longer than the data");
  MothPickleValue value = {
      .kind = MOTH_PICKLE_STRING, .n = (uint32_t)n, .u.text = (const char *)m->at};
  if (text && !moth_utf8_is_valid(value.u.text, n))
    return moth_pickle_damaged(m, "a text that is not UTF-8");
  m->at += n;
  return moth_pickle_push(m, value);
}

static MothStatus put(MothPickleMachine *m, uint64_t id) {
  const MothPickleValue *value = moth_pickle_top(m);
  if (!value)
    return moth_pickle_damaged(m, "nothing to remember");
  if (id == 1 && m->memo_count == 0) { /* Python 2 counts from 1 */
    MOTH_TRY(moth_pickle_reserve(m, &m->memo, 0, &m->memo_room, 1, sizeof *m->memo));
    m->memo[m->memo_count++] = (MothPickleValue){.kind = MOTH_PICKLE_NOTHING};
  }
  if (id > m->memo_count) /* Python numbers them in order */
    return moth_pickle_damaged(m, "a value remembered under a number out of order");
  if (id == m->memo_count) {
    MOTH_TRY(moth_pickle_reserve(m, &m->memo, m->memo_count, &m->memo_room, 1, sizeof *m->memo));
    m->memo_count++;
  }
  m->memo[id] = *value;
  return MOTH_OK;
}

static MothStatus put_numbered(MothPickleMachine *m, int size) {
  uint64_t id;
  MOTH_TRY(read_number(m, size, &id));
  return put(m, id);
}

static MothStatus get_numbered(MothPickleMachine *m, int size) {
  uint64_t id;
  MOTH_TRY(read_number(m, size, &id));
  if (id >= m->memo_count || m->memo[id].kind == MOTH_PICKLE_NOTHING)
    return moth_pickle_damaged(m, "a value that was not remembered");
  return moth_pickle_push(m, m->memo[id]);
}

static MothStatus pop_one(MothPickleMachine *m) {
  MothPickleValue value;
  uint32_t first, count;
  return available(m) > 0 ? moth_pickle_pop(m, &value) : take_marked(m, &first, &count);
}

static MothStatus pop_marked(MothPickleMachine *m) {
  uint32_t first, count;
  return take_marked(m, &first, &count);
}

static MothStatus skip_frame(MothPickleMachine *m) {
  uint64_t n;
  MOTH_TRY(read_number(m, 8, &n));
  return n <= (uint64_t)(m->end - m->at) ? MOTH_OK
                                         : moth_pickle_damaged(m, "a frame longer than the data");
}

static MothStatus new_and_push(MothPickleMachine *m, MothPickleKind kind) {
  MothPickleValue made;
  MOTH_TRY(moth_pickle_new_container(m, kind, &made));
  return moth_pickle_push(m, made);
}

static MothStatus step(MothPickleMachine *m, uint8_t op) {
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
    return moth_pickle_load_storage(m);
  case 'R':
    return moth_pickle_reduce(m);
  case 0x81:
    return moth_pickle_new_object(m);
  case 'b':
    return moth_pickle_build(m);
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

static MothStatus run(MothPickleMachine *m) {
  if (m->end - m->at < 2 || m->at[0] != 0x80 || m->at[1] < 2 || m->at[1] > 5)
    return moth_pickle_damaged(m, "no pickle of protocol 2 to 5");
  m->at += 2;
  for (;;) {
    if (m->at == m->end)
      return moth_pickle_damaged(m, "the data ends too early");
    uint8_t op = *m->at++;
    if (op == '.')
      break;
    MOTH_TRY(step(m, op));
  }
  if (m->stack_count != 1 || m->mark != 0)
    return moth_pickle_damaged(m, "more or less than one value at the end");
  if (m->at != m->end)
    return moth_pickle_damaged(m, "something follows the end");
  m->out->root = m->stack[0];
  return MOTH_OK;
}

static MothStatus parse(const uint8_t *bytes, size_t n, bool records, MothPickle **out) {
  MothStatus status;
  uint8_t *height = NULL;
  *out = NULL;
  if (n >= UINT32_MAX)
    return moth_fail(MOTH_ERR_VALUE, "pickle: %zu bytes are too large for one", n);
  MothPickleMachine m = {.bytes = bytes, .at = bytes, .end = bytes + n, .records = records};
  /* An index names each chunk of each tensor, most of it by references of two bytes. */
  m.budget = BUDGET + (records ? RECORD_BUDGET : 1) * (int64_t)n;
  m.out = calloc(1, sizeof *m.out);
  if (!m.out)
    return moth_fail(MOTH_ERR_MEMORY, "pickle: no memory");
  MOTH_GO(run(&m));
  height = calloc((size_t)m.out->container_count + 1, 1);
  MOTH_GO(height ? MOTH_OK : moth_fail(MOTH_ERR_MEMORY, "pickle: no memory"));
  MOTH_GO(moth_pickle_check_tree(&m, height));
  MOTH_GO(moth_pickle_join_storages(&m));
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

MothStatus moth_pickle_parse(const uint8_t *bytes, size_t n, MothPickle **out) {
  return parse(bytes, n, false, out);
}

MothStatus moth_pickle_parse_records(const uint8_t *bytes, size_t n, MothPickle **out) {
  return parse(bytes, n, true, out);
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
