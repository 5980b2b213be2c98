/* scaled_dot_product_attention in tiles of QUERIES x KEYS scores, which one matrix product writes and others
 * read while they are in cache; there is no L x S matrix. Forward is the online softmax (Milakov and
 * Gimelshein): each row keeps its maximum and sum so far, and its result is rescaled when the maximum
 * changes. Backward recomputes the weights from the scores and the log-sum-exp (Dao et al., "FlashAttention").
 *
 * Tiles and tasks depend on shapes alone, each result is written by one task, and a task's tiles come in
 * order: the same bits for any number of threads. float16 and bfloat16 go through float32. */
#include "kernels/cpu/attention.h"

#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "core/random.h"
#include "kernels/common/attention.h"
#include "kernels/common/random.h"
#include "kernels/cpu/util.h"
#include "unpack/attention.h"

/* SCORE_ROW: stride of rows of scores, not a power of two, for the cache's sets */
enum { QUERIES = 128, KEYS = 256, SCORE_ROW = KEYS + 32, CHUNKS = 8 };
/* The most rows of queries that read keys in place; keys that are made the computed dtype for them at a time. */
enum { FEW = 16, WIDENED = 64 };

/* Tensors that a call owns until its end. */
enum { Q, K, V, O, GRAD, DQ, DK, DV, MASK, LSE, GRAD_LSE, OWNED };

typedef struct Attention {
  MothAttention m;
  const MothAttentionRows *rows;
  const MothKernels *kernels; /* of dtype: for dropout's random numbers, and to make keys of it */
  MothDType dtype;            /* that is computed in */
  int64_t size;
  bool few;                     /* queries: see is_few */
  MothDType stored;             /* of keys and values: dtype, but for few queries their own */
  MothTensor *owned[OWNED];     /* NULL: none */
  int64_t query_blocks, chunks; /* backward: chunks of a head's keys, each with a partial dq */
  char *partial;
  bool failed;
} Attention;

/* A thread's workspace for a tile, in one block. */
typedef struct Workspace {
  char *p, *score, *grad, *keep, *k_packed, *v_packed, *padded;
  size_t bytes;
} Workspace;

static bool workspace_alloc(const Attention *a, Workspace *r, bool backward) {
  int64_t tile = QUERIES * SCORE_ROW, keys = moth_attention_packed(KEYS, a->m.E);
  int64_t values = backward ? moth_attention_packed(KEYS, a->m.V) : 0;
  int64_t padded = moth_attention_padded(moth_max64(KEYS, QUERIES), a->m.E, a->m.V);
  r->bytes = (size_t)((tile * (1 + backward + (a->m.p > 0)) + keys + values + padded) * a->size);
  r->p = moth_alloc(r->bytes);
  if (!r->p)
    return false;
  r->score = r->p;
  r->grad = r->score + tile * a->size;
  r->k_packed = r->grad + (backward ? tile : 0) * a->size;
  r->v_packed = r->k_packed + keys * a->size;
  r->padded = r->v_packed + values * a->size;
  r->keep = r->padded + padded * a->size;
  return true;
}

/* t in the compute dtype, with contiguous columns: itself, or a copy. Rows do not overlap. */
static MothStatus heads_of(Attention *a, MothHeads *h, int role, MothTensor *t) {
  MothTensor **own = &a->owned[role];
  if (t->dtype == a->dtype && (t->stride[3] == 1 || t->shape[3] <= 1) &&
      (t->stride[2] >= t->shape[3] || t->shape[2] <= 1)) {
    moth_tensor_retain(t);
    *own = t;
  } else {
    MOTH_TRY(moth_cpu_contiguous_as(t, a->dtype, own));
  }
  t = *own;
  *h = (MothHeads){t->data, t->stride[0], t->stride[1], moth_max64(t->stride[2], t->shape[3])};
  return MOTH_OK;
}

static char *place(const MothHeads *h, int64_t b, int64_t head, int64_t row, int64_t size) {
  return (char *)h->data + (b * h->batch + head * h->head + row * h->row) * size;
}
static char *rows_of(const Attention *a, const MothHeads *h, int64_t b, int64_t head, int64_t row) {
  return place(h, b, head, row, a->size);
}

static bool has_whole_rows(const MothTensor *t) {
  return (t->stride[3] == 1 || t->shape[3] <= 1) &&
         (t->stride[2] == t->shape[3] || t->shape[2] <= 1);
}
/* Whether queries are so few that a task has all of a head of keys, which it reads where they lie: as while text is made,
 * by a token at a time. Tiles would be packed for one row, and a cache of float16 copied whole. */
static bool is_few(const MothTensor *q, const MothTensor *k, const MothTensor *v) {
  return q->shape[2] * (q->shape[1] / moth_max64(k->shape[1], 1)) <= FEW && has_whole_rows(k) &&
         has_whole_rows(v);
}
/* Keys or values as they are. */
static void take(Attention *a, MothHeads *h, int role, MothTensor *t) {
  moth_tensor_retain(t);
  a->owned[role] = t;
  *h = (MothHeads){t->data, t->stride[0], t->stride[1], t->shape[3]};
}

static MothStatus prepare(Attention *a, MothTensor *q, MothTensor *k, MothTensor *v,
                          MothTensor *mask, double p, bool causal, double scale) {
  MothAttention *m = &a->m;
  a->dtype = q->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  a->rows = moth_attention_rows[a->dtype == MOTH_FLOAT64][moth_isa];
  a->kernels = moth_cpu_kernels((int)a->dtype);
  a->size = moth_dtype_size(a->dtype);
  m->B = q->shape[0], m->H = q->shape[1], m->L = q->shape[2], m->E = q->shape[3];
  m->K = k->shape[1], m->S = k->shape[2], m->V = v->shape[3];
  m->p = p;
  m->causal = causal;
  m->scale = scale;
  a->query_blocks = (m->L + QUERIES - 1) / QUERIES;
  MOTH_TRY(heads_of(a, &m->q, Q, q));
  a->stored = a->few ? (MothDType)k->dtype : a->dtype;
  if (a->few) {
    take(a, &m->k, K, k);
    take(a, &m->v, V, v);
  } else {
    MOTH_TRY(heads_of(a, &m->k, K, k));
    MOTH_TRY(heads_of(a, &m->v, V, v));
  }
  if (!mask)
    return MOTH_OK;
  bool truth = mask->dtype == MOTH_BOOL;
  MOTH_TRY(moth_cpu_contiguous_as(mask, truth ? MOTH_BOOL : a->dtype, &a->owned[MASK]));
  if (truth)
    m->mask_bool = (const uint8_t *)a->owned[MASK]->data;
  else
    m->mask_add = a->owned[MASK]->data;
  for (int i = 0; i < mask->ndim; i++)
    if (mask->shape[i] > 1)
      m->mask[4 - mask->ndim + i] = a->owned[MASK]->stride[i];
  return MOTH_OK;
}

/* A result in the compute dtype: `out` itself, or a tensor that copy_out copies to it. */
static MothStatus result_of(Attention *a, MothHeads *h, int role, MothTensor *out) {
  if (out->dtype != a->dtype) {
    MOTH_TRY(moth_tensor_new(4, out->shape, a->dtype, out->device, &a->owned[role]));
  } else {
    moth_tensor_retain(out);
    a->owned[role] = out;
  }
  int64_t row = out->shape[3], head = out->shape[2] * row;
  *h = (MothHeads){a->owned[role]->data, out->shape[1] * head, head, row};
  return MOTH_OK;
}

static void copy_out(const Attention *a, int role, MothTensor *out) {
  if (a->owned[role] != out)
    moth_cpu_copy(out, a->owned[role]);
}

static void release_all(Attention *a) {
  for (int i = 0; i < OWNED; i++)
    moth_tensor_release(a->owned[i]);
}

/* The number of keys that query `row` attends to (earlier queries attend to no more). */
static int64_t visible_keys(const Attention *a, int64_t row) {
  return a->m.causal ? moth_min64(a->m.S, row + 1) : a->m.S;
}

/* The tile of queries i.. and keys j.. of head (b, h): operands, mask and dropout. */
static MothAttentionTile tile_of(const Attention *a, const Workspace *work, int64_t b, int64_t h,
                                 int64_t i, int64_t rows, int64_t j, int64_t cols) {
  int64_t hk = h / (a->m.H / a->m.K);
  MothAttentionTile t = {.rows = rows,
                         .cols = cols,
                         .score_row = SCORE_ROW,
                         .depth = a->m.E,
                         .width = a->m.V,
                         .q = rows_of(a, &a->m.q, b, h, i),
                         .k = rows_of(a, &a->m.k, b, hk, j),
                         .v = rows_of(a, &a->m.v, b, hk, j),
                         .q_row = a->m.q.row,
                         .k_row = a->m.k.row,
                         .v_row = a->m.v.row,
                         .repack = true,
                         .k_packed = work->k_packed,
                         .v_packed = work->v_packed,
                         .padded = work->padded,
                         .score = work->score,
                         .grad = work->grad,
                         .keep_scale = a->m.p < 1 ? 1 / (1 - a->m.p) : 0,
                         .visible = a->m.causal ? i + 1 - j : cols,
                         .scale = a->m.scale};
  if (a->m.mask_bool || a->m.mask_add) {
    const int64_t *stride = a->m.mask;
    int64_t at = b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3];
    t.mask_bool = a->m.mask_bool;
    t.mask = t.mask_bool ? (const char *)a->m.mask_bool + at
                         : (const char *)a->m.mask_add + at * a->size;
    t.mask_row = stride[2];
    t.mask_wide = stride[3] != 0 || a->m.S == 1;
  }
  if (a->m.p > 0) {
    /* Each row of the B x H x L x S scores has its own Philox counters, for any cut into tiles. */
    uint64_t per_row = (uint64_t)(a->m.S + 3) / 4;
    uint64_t row = (uint64_t)((b * a->m.H + h) * a->m.L + i);
    MothRandom keep = {
        .what = MOTH_RANDOM_BERNOULLI, .a = 1 - a->m.p, .end = cols, .seed = a->m.seed};
    for (int64_t r = 0; r < rows; r++) {
      keep.out = work->keep + r * SCORE_ROW * a->size;
      keep.offset = a->m.offset + (row + (uint64_t)r) * per_row + (uint64_t)j / 4;
      a->kernels->random_fill(&keep);
    }
    t.keep = work->keep;
  }
  return t;
}

/* One block of queries of one head. */
static void forward_block(const Attention *a, const Workspace *work, int64_t bh, int64_t block) {
  int64_t b = bh / a->m.H, h = bh % a->m.H, i = block * QUERIES;
  int64_t rows = moth_min64(QUERIES, a->m.L - i), end = visible_keys(a, i + rows - 1);
  char *out = rows_of(a, &a->m.o, b, h, i);
  char *lse = (char *)a->m.lse + (bh * a->m.L + i) * a->size;
  double sum[QUERIES], max[QUERIES]; /* max: floats or doubles */
  MothAttentionTile t = {0};
  for (int64_t j = 0; j < end; j += KEYS) {
    t = tile_of(a, work, b, h, i, rows, j, moth_min64(KEYS, end - j));
    t.max = max;
    t.sum = sum;
    t.out = out;
    t.out_row = a->m.V;
    t.first = !j;
    t.lse = lse;
    a->rows->weights(&t);
  }
  if (end) {
    a->rows->finish(&t);
    return;
  }
  memset(out, 0, (size_t)(rows * a->m.V * a->size));
  for (int64_t r = 0; r < rows; r++)
    if (a->dtype == MOTH_FLOAT64)
      ((double *)lse)[r] = __builtin_inf();
    else
      ((float *)lse)[r] = __builtin_inff();
}

/* `n` rows of one head of keys or values, from row `from` on: in place, or made the computed dtype in `to`. */
static const void *few_rows(const Attention *a, const MothHeads *h, int64_t b, int64_t head,
                            int64_t from, int64_t n, char *to) {
  int64_t stored = moth_dtype_size(a->stored);
  char *in = place(h, b, head, from, stored);
  if (a->stored == a->dtype)
    return in;
  const int64_t strides[2] = {a->size, stored};
  char *p[2] = {to, in};
  a->kernels->copy_from[a->stored](p, strides, n * h->row, NULL);
  return to;
}

static void few_task(const Attention *a, char *score, int64_t b, int64_t hk) {
  const MothAttention *m = &a->m;
  char *k_rows = score + FEW * KEYS * a->size, *v_rows = k_rows + WIDENED * m->E * a->size;
  const int64_t most = a->stored == a->dtype ? KEYS : WIDENED;
  int64_t group = m->H / m->K, visible[FEW];
  const void *q[FEW], *k, *v;
  void *out[FEW], *lse[FEW];
  double max[FEW], sum[FEW]; /* max: floats or doubles */
  MothAttentionChunk c = {.rows = m->L * group,
                          .piece = KEYS,
                          .depth = m->E,
                          .width = m->V,
                          .k = &k,
                          .v = &v,
                          .q = q,
                          .out = out,
                          .lse = lse,
                          .visible = visible,
                          .score = score,
                          .max = max,
                          .sum = sum,
                          .scale = m->scale};
  for (int64_t r = 0; r < c.rows; r++) {
    int64_t h = hk * group + r / m->L, i = r % m->L;
    q[r] = rows_of(a, &m->q, b, h, i);
    out[r] = rows_of(a, &m->o, b, h, i);
    lse[r] = (char *)m->lse + ((b * m->H + h) * m->L + i) * a->size;
  }
  int64_t end = visible_keys(a, m->L - 1), from = 0;
  do { /* once where there are no keys */
    c.cols = moth_min64(most, end - from);
    c.first = !from;
    k = few_rows(a, &m->k, b, hk, from, c.cols, k_rows);
    v = few_rows(a, &m->v, b, hk, from, c.cols, v_rows);
    for (int64_t r = 0; r < c.rows; r++)
      visible[r] = m->causal ? r % m->L + 1 - from : c.cols;
    a->rows->few(&c);
    from += c.cols;
  } while (from < end);
  a->rows->few_finish(&c);
}

static void few_range(void *ctx, int64_t begin, int64_t end) {
  Attention *a = ctx;
  int64_t widened = a->stored == a->dtype ? 0 : WIDENED * (a->m.E + a->m.V);
  size_t bytes = (size_t)((FEW * KEYS + widened) * a->size);
  char *score = moth_alloc(bytes);
  if (!score) {
    __atomic_store_n(&a->failed, true, __ATOMIC_RELAXED);
    return;
  }
  for (int64_t i = begin; i < end; i++)
    few_task(a, score, i / a->m.K, i % a->m.K);
  moth_free(score, bytes);
}

/* The grain of `tasks` tasks that share `products` matrix products of all queries by all keys. */
static int64_t flops_grain(const Attention *a, int products, int64_t tasks) {
  double flops = 2.0 * (double)(a->m.B * a->m.H * a->m.L) * (double)a->m.S *
                 (double)moth_max64(a->m.E, a->m.V);
  return moth_cpu_flops_grain(products * flops / (double)tasks);
}

static void forward_range(void *ctx, int64_t begin, int64_t end) {
  Attention *a = ctx;
  Workspace work;
  if (!workspace_alloc(a, &work, false)) {
    __atomic_store_n(&a->failed, true, __ATOMIC_RELAXED);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    /* Later blocks attend to more keys: alternate both ends, so that threads get equal work. */
    int64_t nb = a->query_blocks, at = i % nb;
    forward_block(a, &work, i / nb, at % 2 ? nb - 1 - at / 2 : at / 2);
  }
  moth_free(work.p, work.bytes);
}

MothStatus moth_cpu_attention_forward(MothCall *c) {
  MOTH_UNPACK_ATTENTION_FORWARD(c)
  MothTensor *out = c->results[0].u.t, *lse = c->results[1].u.t;
  int64_t *state = (int64_t *)c->results[2].u.t->data;
  Attention a = {0};
  state[0] = state[1] = 0;
  if (dropout_p > 0) {
    MothPhilox philox = moth_generator_take(generator, 4 * lse->numel * ((key->shape[2] + 3) / 4));
    a.m.seed = philox.seed;
    a.m.offset = philox.offset;
    memcpy(state, &a.m.seed, sizeof *state);
    memcpy(state + 1, &a.m.offset, sizeof *state);
  }
  if (!lse->numel)
    return MOTH_OK;
  MothStatus status = MOTH_OK;
  a.few = dropout_p == 0 && !attn_mask && is_few(query, key, value);
  MOTH_GO(prepare(&a, query, key, value, attn_mask, dropout_p, is_causal, scale));
  MOTH_GO(result_of(&a, &a.m.o, O, out));
  a.m.lse = lse->data;
  int64_t tasks = a.few ? a.m.B * a.m.K : a.m.B * a.m.H * a.query_blocks;
  moth_parallel_for(tasks, flops_grain(&a, 2, tasks), a.few ? few_range : forward_range, &a);
  if (a.failed)
    MOTH_GO(moth_no_memory(0));
  copy_out(&a, O, out);
done:
  release_all(&a);
  return status;
}

/* --- backward ---------------------------------------------------------------------------------- */

/* The dq that key chunk `chunk` of (b, h) adds to, from query i on: the result or a partial. */
static char *dq_of(const Attention *a, int64_t b, int64_t h, int64_t i, int64_t chunk) {
  if (chunk == 0)
    return rows_of(a, &a->m.dq, b, h, i);
  int64_t rows = a->m.B * a->m.H * a->m.L;
  return a->partial + (((chunk - 1) * rows) + (b * a->m.H + h) * a->m.L + i) * a->m.E * a->size;
}

/* One chunk of the keys of key head (b, hk), with all queries of its group. */
static void backward_chunk(const Attention *a, const Workspace *work, int64_t b, int64_t hk,
                           int64_t chunk) {
  int64_t group = a->m.H / a->m.K, blocks = (a->m.S + KEYS - 1) / KEYS;
  int64_t from = blocks * chunk / a->chunks * KEYS;
  int64_t to = moth_min64(blocks * (chunk + 1) / a->chunks * KEYS, a->m.S);
  for (int64_t h = hk * group; h < (hk + 1) * group; h++)
    memset(dq_of(a, b, h, 0, chunk), 0, (size_t)(a->m.L * a->m.E * a->size));
  for (int64_t j = from; j < to; j += KEYS) {
    int64_t cols = moth_min64(KEYS, to - j);
    char *dk = rows_of(a, &a->m.dk, b, hk, j), *dv = rows_of(a, &a->m.dv, b, hk, j);
    bool any = false;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
      for (int64_t i = 0; i < a->m.L; i += QUERIES) {
        int64_t rows = moth_min64(QUERIES, a->m.L - i);
        if (visible_keys(a, i + rows - 1) <= j)
          continue;
        MothAttentionTile t = tile_of(a, work, b, h, i, rows, j, cols);
        int64_t row = (b * a->m.H + h) * a->m.L + i;
        t.repack = !any;
        t.accumulate = any;
        t.dout = rows_of(a, &a->m.grad, b, h, i);
        t.dout_row = a->m.grad.row;
        t.lse = (char *)a->m.lse + row * a->size;
        t.delta = (char *)a->m.delta + row * a->size;
        t.dq = dq_of(a, b, h, i, chunk);
        t.dk = dk;
        t.dv = dv;
        a->rows->backward(&t);
        any = true;
      }
    if (!any) { /* no query attends to these keys */
      memset(dv, 0, (size_t)(cols * a->m.V * a->size));
      memset(dk, 0, (size_t)(cols * a->m.E * a->size));
    }
  }
}

static void backward_range(void *ctx, int64_t begin, int64_t end) {
  Attention *a = ctx;
  Workspace work;
  if (!workspace_alloc(a, &work, true)) {
    __atomic_store_n(&a->failed, true, __ATOMIC_RELAXED);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    int64_t bk = i / a->chunks, at = i % a->chunks;
    backward_chunk(a, &work, bk / a->m.K, bk % a->m.K, at);
  }
  moth_free(work.p, work.bytes);
}

static void dots_range(void *ctx, int64_t begin, int64_t end) {
  const Attention *a = ctx;
  for (int64_t bh = begin; bh < end; bh++)
    for (int64_t i = 0; i < a->m.L; i++) {
      int64_t at = (bh * a->m.L + i) * a->size;
      a->rows->dot((char *)a->m.delta + at, rows_of(a, &a->m.grad, bh / a->m.H, bh % a->m.H, i),
                   rows_of(a, &a->m.o, bh / a->m.H, bh % a->m.H, i), a->m.V,
                   a->m.grad_lse ? (const char *)a->m.grad_lse + at : NULL);
    }
}

static void join_range(void *ctx, int64_t begin, int64_t end) {
  const Attention *a = ctx;
  int64_t per = a->m.L * a->m.E, all = a->m.B * a->m.H * per;
  for (int64_t p = 1; p < a->chunks; p++)
    a->rows->add((char *)a->m.dq.data + begin * per * a->size,
                 a->partial + ((p - 1) * all + begin * per) * a->size, (end - begin) * per);
}

MothStatus moth_cpu_attention_backward(MothCall *c) {
  MOTH_UNPACK_ATTENTION_BACKWARD(c)
  size_t partial = 0, delta = 0;
  MothStatus status = MOTH_OK;
  Attention a = {0};
  MOTH_GO(prepare(&a, query, key, value, attn_mask, dropout_p, is_causal, scale));
  memcpy(&a.m.seed, state->data, sizeof a.m.seed);
  memcpy(&a.m.offset, (char *)state->data + state->stride[0] * 8, sizeof a.m.offset);
  MOTH_GO(heads_of(&a, &a.m.grad, GRAD, grad_output));
  MOTH_GO(heads_of(&a, &a.m.o, O, output));
  MOTH_GO(moth_cpu_contiguous_as(logsumexp, a.dtype, &a.owned[LSE]));
  if (grad_logsumexp) {
    MOTH_GO(moth_cpu_contiguous_as(grad_logsumexp, a.dtype, &a.owned[GRAD_LSE]));
    a.m.grad_lse = a.owned[GRAD_LSE]->data;
  }
  MOTH_GO(result_of(&a, &a.m.dq, DQ, c->results[0].u.t));
  MOTH_GO(result_of(&a, &a.m.dk, DK, c->results[1].u.t));
  MOTH_GO(result_of(&a, &a.m.dv, DV, c->results[2].u.t));
  const MothTensor *lse = a.owned[LSE];
  a.m.lse = lse->data;
  if (!lse->numel || !a.m.S) {
    memset(a.m.dq.data, 0, (size_t)(a.owned[DQ]->numel * a.size));
    memset(a.m.dk.data, 0, (size_t)(a.owned[DK]->numel * a.size));
    memset(a.m.dv.data, 0, (size_t)(a.owned[DV]->numel * a.size));
  } else {
    /* With few heads, cut their keys, so that there are tasks for all threads. */
    int64_t blocks = (a.m.S + KEYS - 1) / KEYS;
    a.chunks = moth_max64(1, moth_min64(blocks, CHUNKS / (a.m.B * a.m.K)));
    partial = (size_t)((a.chunks - 1) * a.m.B * a.m.H * a.m.L * a.m.E * a.size);
    delta = (size_t)(lse->numel * a.size);
    a.m.delta = moth_alloc(delta);
    a.partial = partial ? moth_alloc(partial) : NULL;
    if (!a.m.delta || (partial && !a.partial))
      MOTH_GO(moth_no_memory(0));
    moth_parallel_for(a.m.B * a.m.H, moth_cpu_grain(a.m.L * a.m.V), dots_range, &a);
    int64_t tasks = a.m.B * a.m.K * a.chunks;
    moth_parallel_for(tasks, flops_grain(&a, 5, tasks), backward_range, &a);
    if (a.failed)
      MOTH_GO(moth_no_memory(0));
    if (partial)
      moth_parallel_for(a.m.B * a.m.H, moth_cpu_grain(a.chunks * a.m.L * a.m.E), join_range, &a);
  }
  copy_out(&a, DQ, c->results[0].u.t);
  copy_out(&a, DK, c->results[1].u.t);
  copy_out(&a, DV, c->results[2].u.t);
done:
  moth_free(a.m.delta, a.m.delta ? delta : 0);
  moth_free(a.partial, a.partial ? partial : 0);
  release_all(&a);
  return status;
}
