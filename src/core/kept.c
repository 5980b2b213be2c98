/* Lists of what is kept for the calls of a program (kept.h). */
#include "core/kept.h"

#include <stdlib.h>

struct MothKept {
  MothKept *next;
  const void *of;
  int64_t layout;
  size_t bytes;
  bool made;
  void *data;
};

enum { ALIGN = 64 };

void moth_kept_free(MothKept **list) {
  while (*list) {
    MothKept *next = (*list)->next;
    free((*list)->data);
    free(*list);
    *list = next;
  }
}

static MothKept *add(MothKept **at, const void *of, int64_t layout, size_t bytes) {
  moth_kept_free(at); /* of other sizes: those behind it, too */
  MothKept *k = calloc(1, sizeof *k);
  void *data =
      bytes < SIZE_MAX - ALIGN ? aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN) : NULL;
  if (!k || !data) {
    free(k);
    free(data);
    return NULL;
  }
  *k = (MothKept){.of = of, .layout = layout, .bytes = bytes, .data = data};
  return *at = k;
}

/* Whether p lies in a constant, or in what this call has made of one. */
static bool is_constant(const MothKeeping *k, const void *p) {
  for (const MothKept *m = *k->list; m; m = m->next)
    if ((uintptr_t)p >= (uintptr_t)m->data && (uintptr_t)p - (uintptr_t)m->data < m->bytes)
      return true;
  return k->is_constant(k->owner, p);
}

static void *keep(MothKeeper *keeper, const void *of, int64_t layout, size_t bytes, bool *made) {
  MothKeeping *k = (MothKeeping *)keeper;
  if (!k->list || !bytes)
    return NULL;
  MothKept **at = k->list;
  for (uint32_t i = k->asked; i > 0 && *at; i--)
    at = &(*at)->next;
  MothKept *m = *at;
  bool known = m && m->of == of && m->layout == layout && m->bytes == bytes;
  if (!known && !is_constant(k, of))
    return NULL;
  k->asked++;
  if (!known)
    m = k->fills ? add(at, of, layout, bytes) : NULL;
  *made = m && m->made;
  return m ? m->data : NULL;
}

void moth_keeping_begin(MothKeeping *k, bool (*fn)(const void *owner, const void *p),
                        const void *owner, bool fills) {
  *k = (MothKeeping){.base.keep = keep, .is_constant = fn, .owner = owner, .fills = fills};
  moth_keeper = &k->base;
}

void moth_keeping_call(MothKeeping *k, MothKept **list) {
  k->list = list;
  k->asked = 0;
}

void moth_keeping_made(const MothKeeping *k) {
  MothKept *m = k->fills ? *k->list : NULL;
  for (uint32_t i = 0; m && i < k->asked; i++, m = m->next) /* those behind: of other sizes */
    m->made = true;
}

void moth_keeping_end(MothKeeping *k) {
  moth_keeper = NULL;
  k->list = NULL;
}
