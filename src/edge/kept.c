/* What kernels make of a model's constants (core/kept.h): packed weights. moth_edge_arena runs the model once; what its calls
 * ask for then is allocated, filled and kept for the runs that follow, by call and by the order in which a call asks. */
#include <stdlib.h>

#include "edge/model.h"

#ifndef MOTH_EDGE_PACK
#define MOTH_EDGE_PACK 1
#endif

typedef struct MothEdgeKept {
  struct MothEdgeKept *next;
  const void *of;
  int64_t layout;
  size_t bytes;
  bool made;
  void *data;
} Kept;

enum { ALIGN = 64 };

static bool is_inside(const void *p, const void *from, size_t n) {
  return (uintptr_t)p >= (uintptr_t)from && (uintptr_t)p - (uintptr_t)from < n;
}

/* Whether p lies in the file, or in what this call has made of it. */
static bool is_constant(const MothModel *m, const void *p) {
  if (is_inside(p, m->bytes, m->nbytes))
    return true;
  for (const Kept *k = m->keeper.call->kept; k; k = k->next)
    if (is_inside(p, k->data, k->bytes))
      return true;
  return false;
}

static void drop(Kept *k) {
  while (k) {
    Kept *next = k->next;
    free(k->data);
    free(k);
    k = next;
  }
}

static Kept *add(Kept **at, const void *of, int64_t layout, size_t bytes) {
  drop(*at); /* of other sizes: those behind it, too */
  *at = NULL;
  Kept *k = calloc(1, sizeof *k);
  void *data =
      bytes < SIZE_MAX - ALIGN ? aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN) : NULL;
  if (!k || !data) {
    free(k);
    free(data);
    return NULL;
  }
  *k = (Kept){.of = of, .layout = layout, .bytes = bytes, .data = data};
  return *at = k;
}

static void *keep(MothKeeper *keeper, const void *of, int64_t layout, size_t bytes, bool *made) {
  MothModel *m = ((MothEdgeKeeper *)keeper)->model;
  MothEdgeCall *c = m->keeper.call;
  if (!c || !bytes || !is_constant(m, of))
    return NULL;
  Kept **at = &c->kept;
  for (uint32_t i = m->keeper.asked++; i > 0 && *at; i--)
    at = &(*at)->next;
  Kept *k = *at;
  if (!k || k->of != of || k->layout != layout || k->bytes != bytes)
    k = m->keeper.fills ? add(at, of, layout, bytes) : NULL;
  *made = k && k->made;
  return k ? k->data : NULL;
}

void moth_edge_keep_begin(MothModel *m, bool fills) {
  m->keeper = (MothEdgeKeeper){.base.keep = keep, .model = m, .fills = fills};
  if (MOTH_EDGE_PACK)
    moth_keeper = &m->keeper.base;
}

void moth_edge_keep_call(MothModel *m, MothEdgeCall *c) {
  m->keeper.call = c;
  m->keeper.asked = 0;
}

void moth_edge_keep_made(MothModel *m, MothEdgeCall *c) {
  Kept *k = m->keeper.fills ? c->kept : NULL;
  for (uint32_t i = 0; k && i < m->keeper.asked;
       i++, k = k->next) /* those behind: of other sizes */
    k->made = true;
}

void moth_edge_keep_end(MothModel *m) {
  moth_keeper = NULL;
  m->keeper.call = NULL;
}

void moth_edge_keep_free(MothEdgeCall *c) {
  drop(c->kept);
  c->kept = NULL;
}
