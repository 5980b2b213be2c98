/* Checks of a whole pickle: its depth, cycles, storages of the same key. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "io/pickle_machine.h"

/* One container that is being followed. */
typedef struct Frame {
  uint32_t container, cell;
} Frame;

static bool is_container(MothPickleValue v) {
  return v.kind >= MOTH_PICKLE_TUPLE && v.kind <= MOTH_PICKLE_RECORD;
}

/* Follows the tree from the root. height[i] is that of containers[i] once known, 0 before, and OPEN while it is
 * being followed: reaching an open one is a cycle. */
MothStatus moth_pickle_check_tree(const MothPickleMachine *m, uint8_t *height) {
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
      /* Its height is known now; it may be reached again from deeper in the tree. */
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
MothStatus moth_pickle_join_storages(MothPickleMachine *m) {
  MothPickle *p = m->out;
  MothPickleStorage **sorted = NULL;
  uint32_t capacity = 0;
  for (uint32_t i = 0; i < p->storage_count; i++)
    if (p->storages[i].dtype == MOTH_NDTYPES) /* bytes without a tensor that gives the dtype */
      p->storages[i].dtype = MOTH_UINT8;
  if (p->storage_count < 2)
    return MOTH_OK;
  MothStatus status =
      moth_pickle_reserve(m, &sorted, 0, &capacity, p->storage_count, sizeof *sorted);
  for (uint32_t i = 0; i < p->storage_count && status == MOTH_OK; i++)
    sorted[i] = &p->storages[i];
  if (status == MOTH_OK)
    qsort(sorted, p->storage_count, sizeof *sorted, compare_keys);
  for (uint32_t i = 1; i < p->storage_count && status == MOTH_OK; i++) {
    MothPickleStorage *a = sorted[i - 1], *b = sorted[i];
    if (a->key_n != b->key_n || memcmp(a->key, b->key, a->key_n) != 0)
      continue;
    b->same = a->same;
    if (a->dtype != b->dtype || a->small != b->small || a->numel != b->numel)
      status = moth_fail(MOTH_ERR_VALUE, "pickle: storage %.*s is described in two ways",
                         a->key_n < 40 ? (int)a->key_n : 40, a->key);
  }
  free(sorted);
  return status;
}
