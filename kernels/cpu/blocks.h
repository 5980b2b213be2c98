/* Products with weights in blocks (src/ops/blocks.lua): what blocks.c and its typed kernels (typed/blocks.h) share.
 *
 * Note [Products with blocks]
 * Activations are made int8 by 32 elements, with one scale each. Four rows of the weight are unpacked at a time, up to
 * MOTH_BLOCKS_CHUNK elements of each, to a first-level cache's size; they are then multiplied by all rows of
 * activations. So a weight is read once, in its file's bytes, and nothing of it is kept.
 * A span is 256 elements of a row, 16 groups of 16; a group of the weight has a scale and a least value, so that its
 * product is scale * (sum of q x) + least * (sum of x), of integers that are exact.
 * For AVX-512 VNNI, groups are lanes: four bytes of each of the 16 groups make a vector, and four vectors a span,
 * whose sums of products stay in their lanes. Group 4 a + k is lane 4 k + a: four vectors of 64 neighbours become
 * those by turning four by four words within their quarters. Scales are in the order of lanes, too. Each type has a loader,
 * from its bytes to lanes in registers (typed/blocks_vnni.h): for one row of activations nothing is stored between. */
#ifndef MOTH_CPU_BLOCKS_H
#define MOTH_CPU_BLOCKS_H
#include "block_types.h"
#include "dispatch/dispatch.h"

/* The values of the ops' argument `type`. */
#define MOTH_BLOCK_VALUE(NAME, name, number, elements, bytes, zero, leasts) MOTH_BLOCK_##NAME,
enum { MOTH_BLOCK_TYPES(MOTH_BLOCK_VALUE) };

enum {
  MOTH_BLOCKS_SPAN = 256,
  MOTH_BLOCKS_GROUPS = 16,
  MOTH_BLOCKS_CHUNK = 4096,
  MOTH_BLOCKS_COLUMNS = 4
};

typedef struct MothBlocks {
  int type;                  /* the value of the ops' argument */
  bool lanes;                /* groups are lanes, for AVX-512 VNNI */
  int64_t rows, n, k, spans; /* of activations; of the weight; elements of a row, and its spans */
  int64_t from, to;          /* what is meant: rows of activations, or of the weight */
  const void *in;            /* real [rows][k] */
  const uint8_t *weight;     /* [n][weight_row] */
  int64_t weight_row;
  const void *bias; /* real [n] or NULL */
  void *out;        /* real, rows out_row elements apart; unpacked: [n][k] */
  int64_t out_row;
  int8_t *values; /* [rows][spans][256] */
  void *scales,
      *sums; /* real [rows][spans][16]: of each group the scale, and scale times the sum of its values; of lanes of types
                without least values, -zero times the sum, int32 */
} MothBlocks;
#endif
