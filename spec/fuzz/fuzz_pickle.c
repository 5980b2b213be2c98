/* libFuzzer: any bytes are refused with a message, or give a tree that is sound: in range, without
 * cycles, of bounded depth, its tensors within their storages. */
#include <stdlib.h>
#include <string.h>

#include "io/pickle.h"

static uint32_t budget; /* values still visited: a table that is held twice is walked twice */

static void check(MothPickleValue v, const MothPickle *p, const uint8_t *bytes, size_t n,
                  int depth) {
  if (budget == 0)
    return;
  budget--;
  switch ((MothPickleKind)v.kind) {
  case MOTH_PICKLE_NONE:
  case MOTH_PICKLE_BOOL:
  case MOTH_PICKLE_INT:
  case MOTH_PICKLE_FLOAT:
    return;
  case MOTH_PICKLE_STRING:
    if ((const uint8_t *)v.u.text < bytes || (const uint8_t *)v.u.text + v.n > bytes + n)
      abort();
    return;
  case MOTH_PICKLE_DTYPE:
    if (v.n >= MOTH_NDTYPES)
      abort();
    return;
  case MOTH_PICKLE_TENSOR:
    if (v.n >= p->tensor_count)
      abort();
    return;
  case MOTH_PICKLE_TUPLE:
  case MOTH_PICKLE_LIST:
  case MOTH_PICKLE_DICT:
  case MOTH_PICKLE_ORDERED:
  case MOTH_PICKLE_RECORD: {
    uint32_t count = 0;
    if (v.n >= p->container_count || p->containers[v.n].kind != v.kind ||
        depth >= MOTH_PICKLE_MAX_DEPTH)
      abort();
    for (uint32_t i = p->containers[v.n].first; i != MOTH_PICKLE_END; i = p->cells[i].next) {
      if (i >= p->cell_count || ++count > p->containers[v.n].count)
        abort();
      check(p->cells[i].value, p, bytes, n, depth + 1);
    }
    if (v.kind >= MOTH_PICKLE_DICT && count % 2)
      abort();
    return;
  }
  default:
    abort();
  }
}

static void check_tensors(const MothPickle *p) {
  for (uint32_t i = 0; i < p->tensor_count; i++) {
    const MothPickleTensor *t = &p->tensors[i];
    if (t->storage >= p->storage_count || t->ndim > MOTH_MAX_DIMS ||
        t->dims + 2u * t->ndim > p->dim_count || t->offset < 0)
      abort();
    int64_t last = t->offset;
    bool empty = false;
    for (int d = 0; d < t->ndim; d++) {
      empty |= p->dims[t->dims + (uint32_t)d] == 0;
      last += (p->dims[t->dims + (uint32_t)d] - 1) * p->dims[t->dims + t->ndim + (uint32_t)d];
    }
    if (!empty && last >= p->storages[t->storage].numel)
      abort();
  }
  for (uint32_t i = 0; i < p->storage_count; i++)
    if (p->storages[i].same > i || p->storages[i].numel < 0)
      abort();
}

static void parse(MothStatus (*reader)(const uint8_t *, size_t, MothPickle **),
                  const uint8_t *bytes, size_t n) {
  MothPickle *p;
  if (reader(bytes, n, &p) != MOTH_OK) {
    if (p || !*moth_last_error())
      abort();
    return;
  }
  budget = 100000;
  check(p->root, p, bytes, n, 0);
  check_tensors(p);
  moth_pickle_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  parse(moth_pickle_parse, bytes, n);
  parse(moth_pickle_parse_records, bytes, n);
  return 0;
}
