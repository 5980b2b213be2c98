/* Arguments of the typed kernel of kernels/cpu/typed/bag.h, set by kernels/cpu/bag.c. */
#ifndef MOTH_CPU_BAG_H
#define MOTH_CPU_BAG_H
#include <stdint.h>

/* Rows of weight [.][size] in bags: bag b has those that index says from starts[b] on, before starts[b + 1]. Positions count
 * from 0, those that are written from `base`. */
typedef struct MothBags {
  const void *weight;
  const int64_t *index, *starts;
  void *out;
  int64_t *rows;
  int64_t bags, size, all, base; /* all: how many rows are in the bags */
  int64_t from, to;              /* the bags to do */
} MothBags;
#endif
