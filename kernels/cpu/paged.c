/* kv_write_ and paged_attention. A task is a sequence and a head of keys with few queries, which read the blocks where they
 * lie, or a block of many queries of one head, as in attention.c, whose keys are gathered into a tile first. Which one
 * depends on the sequence alone, and so do the bits: neither on its neighbours nor on the number of threads. */
#include "kernels/common/paged.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/util.h"
#include "unpack/paged.h"

/* FEW: the most rows of queries (tokens x heads of a group) that read the blocks in place. ALONE: the most tokens of which
 * each is a task where a window cuts the keys. WIDENED: keys that are made the computed dtype at a time for them, so that
 * the first-level cache has them. */
enum { QUERIES = 128, KEYS = 256, SCORE_ROW = KEYS + 32, FEW = 16, ALONE = 8, WIDENED = 64 };

typedef struct Paged {
  MothPaged p;
  const MothAttentionRows *rows;
  const MothKernels *kernels;
  bool wide;                     /* pools are of the dtype that is computed in */
  MothLoop widen;                /* else of theirs to that; NULL: they are blocks of Q8_0 */
  int64_t size, stored;          /* bytes of an element; of blocks: of 32 */
  const char *q, *k, *v, *sinks; /* sinks: (H), or NULL */
  char *out;
  int64_t *first, *task; /* per sequence: its first row, its first task; S + 1 of them */
  bool failed;
} Paged;

/* Whether a sequence has tokens that some of its queries do not see for their window. */
static bool is_cut(const Paged *a, int64_t s) {
  return a->p.lengths[s] > a->p.window;
}

/* What a task of few rows has: tokens of the sequence, and heads of a group. tasks: of a head of keys; 0: rows are many. */
typedef struct Few {
  int64_t tokens, heads, tasks;
} Few;

static Few few_of(const Paged *a, int64_t s) {
  int64_t count = a->p.counts[s], group = a->p.H / a->p.K;
  if (count * group <= FEW && (count == 1 || !is_cut(a, s)))
    return (Few){count, group, 1};
  if (count > (is_cut(a, s) ? ALONE : 1))
    return (Few){0, 0, 0};
  int64_t heads = moth_min64(group, FEW);
  return (Few){1, heads, count * ((group + heads - 1) / heads)};
}

/* Adds the weight of head h's sink to the sum of row r's weights. */
static void add_sink(const Paged *a, int64_t h, const void *max, int64_t r, double *sum) {
  if (!a->sinks)
    return;
  bool is_double = a->size == 8;
  double sink = is_double ? ((const double *)a->sinks)[h] : (double)((const float *)a->sinks)[h];
  double top = is_double ? ((const double *)max)[r] : (double)((const float *)max)[r];
  sum[r] += exp(sink - top);
}

/* Bytes of a pool's row of `width` elements. */
static int64_t row_bytes(const Paged *a, int64_t width) {
  return a->wide || a->widen ? width * a->stored : moth_q8_0_bytes(width);
}

/* Rows of one head of a block, in the dtype of the pools. */
static const char *rows_of(const Paged *a, const char *pool, int64_t block, int64_t head,
                           int64_t width) {
  return pool + (block * a->p.K + head) * a->p.P * row_bytes(a, width);
}

/* `n` rows of tokens from `from` on of a sequence's head, gathered. */
static void gather(const Paged *a, char *to, const char *pool, int64_t s, int64_t head,
                   int64_t from, int64_t n, int64_t width) {
  const int64_t strides[2] = {a->size, a->stored};
  for (int64_t t = from; t < from + n;) {
    int64_t at = t % a->p.P, part = moth_min64(a->p.P - at, from + n - t);
    const char *in =
        rows_of(a, pool, a->p.table[s * a->p.M + t / a->p.P] - a->p.base, head, width) +
        at * row_bytes(a, width);
    if (a->wide) {
      memcpy(to, in, (size_t)(part * width * a->size));
    } else if (a->widen) {
      char *p[2] = {to, (char *)in};
      a->widen(p, strides, part * width, NULL);
    } else {
      MothBlocks rows = {.type = MOTH_BLOCK_Q8_0,
                         .k = width,
                         .weight = (const uint8_t *)in,
                         .weight_row = moth_q8_0_bytes(width),
                         .out = to,
                         .to = part};
      a->kernels->blocks_unpack(&rows);
    }
    to += part * width * a->size;
    t += part;
  }
}

typedef struct Workspace {
  char *p, *score, *k, *v, *k_packed, *padded, *lse, *seen;
  size_t bytes;
} Workspace;

static bool workspace_alloc(const Paged *a, Workspace *w) {
  int64_t D = a->p.D, V = a->p.V, score = QUERIES * SCORE_ROW;
  int64_t packed = moth_attention_packed(KEYS, D), padded = moth_attention_padded(KEYS, D, V);
  w->bytes =
      (size_t)((score + KEYS * (D + V) + packed + padded + QUERIES) * a->size + QUERIES * KEYS);
  w->p = moth_alloc(w->bytes);
  if (!w->p)
    return false;
  w->score = w->p;
  w->k = w->score + score * a->size;
  w->v = w->k + KEYS * D * a->size;
  w->k_packed = w->v + KEYS * V * a->size;
  w->padded = w->k_packed + packed * a->size;
  w->lse = w->padded + padded * a->size;
  w->seen = w->lse + QUERIES * a->size;
  return true;
}

static void few_task(const Paged *a, const Workspace *w, int64_t s, Few few, int64_t at) {
  const MothPaged *p = &a->p;
  int64_t group = p->H / p->K, parts = (group + few.heads - 1) / few.heads, head = at % p->K;
  int64_t part = at / p->K % parts, token = at / p->K / parts * few.tokens;
  int64_t heads = moth_min64(few.heads, group - part * few.heads);
  int64_t before = p->lengths[s] - p->counts[s] + token, length = before + few.tokens;
  int64_t visible[FEW], own[FEW];
  const void *q[FEW], *k[KEYS], *v[KEYS];
  void *out[FEW];
  double max[FEW], sum[FEW]; /* max: floats or doubles */
  MothAttentionChunk c = {.rows = few.tokens * heads,
                          .piece = a->wide ? moth_min64(p->P, KEYS) : WIDENED,
                          .depth = p->D,
                          .width = p->V,
                          .k = k,
                          .v = v,
                          .q = q,
                          .out = out,
                          .visible = visible,
                          .score = w->score,
                          .max = max,
                          .sum = sum,
                          .scale = p->scale,
                          .first = true};
  for (int64_t r = 0; r < c.rows; r++) {
    own[r] = head * group + part * few.heads + r % heads;
    int64_t row = (a->first[s] + token + r / heads) * p->H + own[r];
    q[r] = a->q + row * p->D * a->size;
    out[r] = a->out + row * p->V * a->size;
  }
  /* whole blocks, or parts of one that is longer than a chunk, or the rest of one that a window begins in */
  int64_t most = a->wide ? KEYS : WIDENED, step = p->P < most ? most / p->P * p->P : most;
  for (int64_t from = moth_max64(0, length - p->window); from < length;
       from += c.cols, c.first = false) {
    c.cols = moth_min64(step, length - from);
    if (p->P > most || from % p->P)
      c.cols = moth_min64(c.cols, p->P - from % p->P);
    if (!a->wide) {
      gather(a, w->k, a->k, s, head, from, c.cols, p->D);
      gather(a, w->v, a->v, s, head, from, c.cols, p->V);
      k[0] = w->k;
      v[0] = w->v;
    } else {
      for (int64_t i = 0; i * c.piece < c.cols; i++) {
        int64_t t = from + i * c.piece, block = p->table[s * p->M + t / p->P] - p->base;
        k[i] = rows_of(a, a->k, block, head, p->D) + t % p->P * p->D * a->size;
        v[i] = rows_of(a, a->v, block, head, p->V) + t % p->P * p->V * a->size;
      }
    }
    for (int64_t r = 0; r < c.rows; r++)
      visible[r] = before + r / heads + 1 - from;
    a->rows->few(&c);
  }
  for (int64_t r = 0; r < c.rows; r++)
    add_sink(a, own[r], max, r, sum);
  a->rows->few_finish(&c);
}

static void tile_task(const Paged *a, const Workspace *w, int64_t s, int64_t h, int64_t block) {
  const MothPaged *p = &a->p;
  int64_t i = block * QUERIES, rows = moth_min64(QUERIES, p->counts[s] - i);
  int64_t before = p->lengths[s] - p->counts[s] + i; /* keys before the first of these queries */
  int64_t row = (a->first[s] + i) * p->H + h, end = before + rows, head = h / (p->H / p->K);
  double max[QUERIES], sum[QUERIES];
  MothAttentionTile t = {.rows = rows,
                         .score_row = SCORE_ROW,
                         .depth = p->D,
                         .width = p->V,
                         .q = a->q + row * p->D * a->size,
                         .q_row = p->H * p->D,
                         .k = w->k,
                         .k_row = p->D,
                         .v = w->v,
                         .v_row = p->V,
                         .repack = true,
                         .k_packed = w->k_packed,
                         .padded = w->padded,
                         .score = w->score,
                         .keep_scale = 1,
                         .mask_row = KEYS,
                         .mask_bool = true,
                         .mask_wide = true,
                         .scale = p->scale,
                         .max = max,
                         .sum = sum,
                         .out = a->out + row * p->V * a->size,
                         .out_row = p->H * p->V,
                         .lse = w->lse,
                         .first = true};
  for (int64_t j = moth_max64(0, before + 1 - p->window); j < end; j += t.cols, t.first = false) {
    t.cols = moth_min64(KEYS, end - j);
    t.visible = before + 1 - j;
    t.mask = j < end - p->window ? w->seen : NULL;
    for (int64_t r = 0; t.mask && r < rows; r++)
      for (int64_t k = 0; k < t.cols; k++)
        w->seen[r * KEYS + k] = j + k > before + r - p->window;
    gather(a, w->k, a->k, s, head, j, t.cols, p->D);
    gather(a, w->v, a->v, s, head, j, t.cols, p->V);
    a->rows->weights(&t);
  }
  for (int64_t r = 0; r < rows; r++)
    add_sink(a, h, max, r, sum);
  a->rows->finish(&t);
}

static void paged_range(void *ctx, int64_t begin, int64_t end) {
  Paged *a = ctx;
  Workspace w;
  if (!workspace_alloc(a, &w)) {
    __atomic_store_n(&a->failed, true, __ATOMIC_RELAXED);
    return;
  }
  int64_t s = 0;
  for (int64_t i = begin; i < end && !moth_stopped(); i++) {
    while (a->task[s + 1] <= i)
      s++;
    int64_t at = i - a->task[s];
    Few few = few_of(a, s);
    if (few.tasks)
      few_task(a, &w, s, few, at);
    else
      tile_task(a, &w, s, at % a->p.H, at / a->p.H);
  }
  moth_free(w.p, w.bytes);
}

/* Rows and tasks of the sequences. */
static MothStatus plan(Paged *a) {
  int64_t S = a->p.S;
  a->first = moth_alloc((size_t)(2 * (S + 1)) * sizeof(int64_t));
  if (!a->first)
    return moth_no_memory(0);
  a->task = a->first + S + 1;
  a->first[0] = a->task[0] = 0;
  for (int64_t s = 0; s < S; s++) {
    int64_t count = a->p.counts[s], blocks = (count + QUERIES - 1) / QUERIES;
    a->first[s + 1] = a->first[s] + count;
    Few few = count ? few_of(a, s) : (Few){0, 0, 0};
    a->task[s + 1] = a->task[s] + (few.tasks ? few.tasks * a->p.K : a->p.H * blocks);
  }
  return MOTH_OK;
}

MothStatus moth_cpu_paged_attention(MothCall *c) {
  MOTH_UNPACK_PAGED_ATTENTION(c)
  MothTensor *result = c->results[0].u.t, *own[8] = {NULL}, *out = NULL;
  MothDType dtype = query->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothStatus status = MOTH_OK;
  Paged a = {.p = {.N = query->shape[0],
                   .H = query->shape[1],
                   .D = query->shape[2],
                   .B = k_pool->shape[0],
                   .K = k_pool->shape[1],
                   .P = k_pool->shape[2],
                   .V = result->shape[2],
                   .S = table->shape[0],
                   .M = table->shape[1],
                   .base = index_base,
                   .window = window.tag == MOTH_V_NONE ? INT64_MAX : window.u.i},
             .rows = moth_attention_rows[dtype == MOTH_FLOAT64][moth_isa],
             .kernels = moth_cpu_kernels((int)dtype),
             .wide = k_pool->dtype == (int)dtype,
             .size = moth_dtype_size(dtype),
             .stored = moth_dtype_size((MothDType)k_pool->dtype)};
  a.p.scale = scale.tag == MOTH_V_NONE ? 1 / sqrt((double)a.p.D) : moth_as_double(scale);
  MOTH_GO(moth_cpu_contiguous_as(table, MOTH_INT64, &own[0]));
  MOTH_GO(moth_cpu_contiguous_as(lengths, MOTH_INT64, &own[1]));
  MOTH_GO(moth_cpu_contiguous_as(counts, MOTH_INT64, &own[2]));
  a.p.table = (const int64_t *)own[0]->data;
  a.p.lengths = (const int64_t *)own[1]->data;
  a.p.counts = (const int64_t *)own[2]->data;
  MOTH_GO(moth_paged_check(&a.p, a.p.table, a.p.lengths, a.p.counts));
  if (!result->numel)
    goto done;
  MOTH_GO(moth_cpu_contiguous_as(query, dtype, &own[3]));
  if (sinks) {
    MOTH_GO(moth_cpu_contiguous_as(sinks, dtype, &own[7]));
    a.sinks = own[7]->data;
  }
  MOTH_GO(moth_cpu_contiguous(k_pool, &own[4]));
  MOTH_GO(moth_cpu_contiguous(v_pool, &own[5]));
  if (result->dtype != (int)dtype || !result->contiguous)
    MOTH_GO(moth_tensor_new(3, result->shape, dtype, result->device, &own[6]));
  out = own[6] ? own[6] : result;
  if (!a.wide && k_pool->dtype != MOTH_UINT8)
    a.widen = a.kernels->copy_from[k_pool->dtype];
  a.q = own[3]->data;
  a.k = own[4]->data;
  a.v = own[5]->data;
  a.out = out->data;
  MOTH_GO(plan(&a));
  int64_t tasks = a.task[a.p.S], keys = 0;
  for (int64_t s = 0; s < a.p.S; s++)
    keys += a.p.lengths[s] * a.p.counts[s];
  moth_parallel_for(tasks,
                    moth_cpu_flops_grain(4.0 * (double)(keys * a.p.H) *
                                         (double)moth_max64(a.p.D, a.p.V) / (double)tasks),
                    paged_range, &a);
  if (a.failed)
    MOTH_GO(moth_no_memory(0));
  if (out != result)
    moth_cpu_copy(result, out);
done:
  if (a.first)
    moth_free(a.first, (size_t)(2 * (a.p.S + 1)) * sizeof(int64_t));
  for (int i = 0; i < 8; i++)
    moth_tensor_release(own[i]);
  return status;
}

/* tokens (N, K, D), row-major, in what a pool holds: its dtype, or blocks of Q8_0. */
static MothStatus as_in_pool(const MothTensor *pool, MothTensor *tokens, MothTensor **out) {
  if (pool->dtype != MOTH_UINT8)
    return moth_cpu_contiguous_as(tokens, (MothDType)pool->dtype, out);
  MothTensor *in = NULL;
  int64_t shape[3] = {tokens->shape[0], tokens->shape[1], pool->shape[3]};
  MOTH_TRY(moth_cpu_contiguous_as(tokens, MOTH_FLOAT32, &in));
  MothStatus s = moth_tensor_new(3, shape, MOTH_UINT8, pool->device, out);
  if (s == MOTH_OK) {
    MothBlocks rows = {.k = tokens->shape[2],
                       .in = in->data,
                       .out = (*out)->data,
                       .weight_row = pool->shape[3],
                       .to = shape[0] * shape[1]};
    moth_cpu_kernels(MOTH_FLOAT32)->blocks_pack_q8_0(&rows);
  }
  moth_tensor_release(in);
  return s;
}

/* tokens (N, K, D) to their slots of a row-major pool (B, K, P, D). */
static void write_tokens(MothTensor *pool, const MothTensor *tokens, const int64_t *slots) {
  int64_t K = pool->shape[1], P = pool->shape[2], row = pool->shape[3] * moth_itemsize(pool);
  const char *in = tokens->data;
  for (int64_t i = 0; i < tokens->shape[0]; i++)
    for (int64_t h = 0; h < K; h++, in += row)
      memcpy((char *)pool->data + ((slots[i] / P * K + h) * P + slots[i] % P) * row, in,
             (size_t)row);
}

MothStatus moth_cpu_kv_write_(MothCall *c) {
  MOTH_UNPACK_KV_WRITE_(c)
  int64_t *at = NULL;
  MothStatus status = MOTH_OK;
  MothTensor *pools[2] = {k_pool, v_pool}, *tokens[2] = {k, v};
  MOTH_TRY(moth_cpu_index(slots, index_base, k_pool->shape[0] * k_pool->shape[2], -1, "slot", &at));
  for (int i = 0; i < 2 && tokens[i]->numel; i++) {
    MothTensor *in = NULL, *pool = NULL;
    status = as_in_pool(pools[i], tokens[i], &in);
    if (status == MOTH_OK)
      status = moth_cpu_contiguous(pools[i], &pool);
    if (status == MOTH_OK) {
      write_tokens(pool, in, at);
      if (pool != pools[i])
        moth_cpu_copy(pools[i], pool);
    }
    moth_tensor_release(in);
    moth_tensor_release(pool);
    if (status != MOTH_OK)
      break;
  }
  moth_cpu_index_free(slots, at);
  return status;
}
