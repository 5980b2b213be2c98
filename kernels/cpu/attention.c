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
#include "kernels/common/random.h"
#include "kernels/cpu/util.h"
#include "unpack/attention.h"

/* SCORE_ROW: stride of rows of scores, not a power of two, for the cache's sets */
enum { QUERIES = 128, KEYS = 256, SCORE_ROW = KEYS + 32, CHUNKS = 8 };

/* (B, H, T, D) in the compute dtype; the D elements of a row are contiguous. */
typedef struct Heads {
  MothTensor *t;
  char *data;
  int64_t batch, head, row; /* strides: batch and head in bytes, row in elements */
} Heads;

typedef struct Attention {
  const MothAttentionRows *rows;
  const MothKernels *kernels; /* of dtype: for dropout's random numbers */
  MothDType dtype;
  int64_t size, B, H, K, L, S, E, V;
  Heads q, k, v, o, grad; /* o: output; grad: gradient of the output */
  Heads dq, dk, dv;
  MothTensor *mask_tensor;
  const char *mask;
  int64_t mask_stride[4]; /* elements */
  bool mask_bool, causal;
  char *lse, *delta;
  const char *grad_lse; /* NULL: none */
  MothPhilox philox;
  double p, scale;
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
  int64_t tile = QUERIES * SCORE_ROW, keys = moth_attention_packed(KEYS, a->E);
  int64_t values = backward ? moth_attention_packed(KEYS, a->V) : 0;
  int64_t padded = moth_attention_padded(moth_max64(KEYS, QUERIES), a->E, a->V);
  r->bytes = (size_t)((tile * (1 + backward + (a->p > 0)) + keys + values + padded) * a->size);
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

static MothStatus heads_of(Heads *h, MothTensor *t, MothDType dtype) {
  int64_t size = moth_dtype_size(dtype);
  if (t->dtype == dtype && (t->stride[3] == 1 || t->shape[3] <= 1) &&
      (t->stride[2] >= t->shape[3] || t->shape[2] <= 1)) {
    moth_tensor_retain(t);
    h->t = t;
  } else {
    MOTH_TRY(moth_cpu_contiguous_as(t, dtype, &h->t));
  }
  h->data = h->t->data;
  h->batch = h->t->stride[0] * size;
  h->head = h->t->stride[1] * size;
  h->row = moth_max64(h->t->stride[2], h->t->shape[3]);
  return MOTH_OK;
}

static char *rows_of(const Heads *h, int64_t b, int64_t head, int64_t row, int64_t size) {
  return h->data + b * h->batch + head * h->head + row * h->row * size;
}

static MothStatus prepare(Attention *a, MothTensor *q, MothTensor *k, MothTensor *v,
                          MothTensor *mask, double p, bool causal, double scale) {
  a->dtype = q->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  a->rows = moth_attention_rows[a->dtype == MOTH_FLOAT64][moth_isa];
  a->kernels = moth_cpu_kernels((int)a->dtype);
  a->size = moth_dtype_size(a->dtype);
  a->B = q->shape[0], a->H = q->shape[1], a->L = q->shape[2], a->E = q->shape[3];
  a->K = k->shape[1], a->S = k->shape[2], a->V = v->shape[3];
  a->p = p;
  a->causal = causal;
  a->scale = scale;
  a->query_blocks = (a->L + QUERIES - 1) / QUERIES;
  MOTH_TRY(heads_of(&a->q, q, a->dtype));
  MOTH_TRY(heads_of(&a->k, k, a->dtype));
  MOTH_TRY(heads_of(&a->v, v, a->dtype));
  if (!mask)
    return MOTH_OK;
  a->mask_bool = mask->dtype == MOTH_BOOL;
  MOTH_TRY(moth_cpu_contiguous_as(mask, a->mask_bool ? MOTH_BOOL : a->dtype, &a->mask_tensor));
  a->mask = a->mask_tensor->data;
  for (int i = 0; i < mask->ndim; i++)
    if (mask->shape[i] > 1)
      a->mask_stride[4 - mask->ndim + i] = a->mask_tensor->stride[i];
  return MOTH_OK;
}

/* A result in the compute dtype: `out` itself, or a tensor that copy_out copies to it. */
static MothStatus result_of(Heads *h, MothTensor *out, MothDType dtype) {
  if (out->dtype != dtype) {
    MOTH_TRY(moth_tensor_new(4, out->shape, dtype, out->device, &h->t));
  } else {
    moth_tensor_retain(out);
    h->t = out;
  }
  int64_t size = moth_dtype_size(dtype);
  h->data = h->t->data;
  h->row = out->shape[3];
  h->head = out->shape[2] * h->row * size;
  h->batch = out->shape[1] * h->head;
  return MOTH_OK;
}

static void copy_out(Heads *h, MothTensor *out) {
  if (h->t != out)
    moth_cpu_copy(out, h->t);
}

static void release_all(Attention *a) {
  Heads *all[] = {&a->q, &a->k, &a->v, &a->o, &a->grad, &a->dq, &a->dk, &a->dv};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]->t)
      moth_tensor_release(all[i]->t);
  if (a->mask_tensor)
    moth_tensor_release(a->mask_tensor);
}

/* The number of keys that query `row` attends to (earlier queries attend to no more). */
static int64_t visible_keys(const Attention *a, int64_t row) {
  return a->causal ? moth_min64(a->S, row + 1) : a->S;
}

/* The tile of queries i.. and keys j.. of head (b, h): operands, mask and dropout. */
static MothAttentionTile tile_of(const Attention *a, const Workspace *work, int64_t b, int64_t h,
                                 int64_t i, int64_t rows, int64_t j, int64_t cols) {
  int64_t hk = h / (a->H / a->K);
  MothAttentionTile t = {.rows = rows,
                         .cols = cols,
                         .score_row = SCORE_ROW,
                         .depth = a->E,
                         .width = a->V,
                         .q = rows_of(&a->q, b, h, i, a->size),
                         .k = rows_of(&a->k, b, hk, j, a->size),
                         .v = rows_of(&a->v, b, hk, j, a->size),
                         .q_row = a->q.row,
                         .k_row = a->k.row,
                         .v_row = a->v.row,
                         .repack = true,
                         .k_packed = work->k_packed,
                         .v_packed = work->v_packed,
                         .padded = work->padded,
                         .score = work->score,
                         .grad = work->grad,
                         .keep_scale = a->p < 1 ? 1 / (1 - a->p) : 0,
                         .visible = a->causal ? i + 1 - j : cols,
                         .scale = a->scale};
  if (a->mask) {
    int64_t at = b * a->mask_stride[0] + h * a->mask_stride[1] + i * a->mask_stride[2] +
                 j * a->mask_stride[3];
    t.mask = a->mask + at * (a->mask_bool ? 1 : a->size);
    t.mask_row = a->mask_stride[2];
    t.mask_bool = a->mask_bool;
    t.mask_wide = a->mask_stride[3] != 0 || a->S == 1;
  }
  if (a->p > 0) {
    /* Each row of the B x H x L x S scores has its own Philox counters, for any cut into tiles. */
    uint64_t per_row = (uint64_t)(a->S + 3) / 4;
    uint64_t row = (uint64_t)((b * a->H + h) * a->L + i);
    MothRandom keep = {.what = MOTH_RANDOM_BERNOULLI, .a = 1 - a->p};
    for (int64_t r = 0; r < rows; r++) {
      keep.out = work->keep + r * SCORE_ROW * a->size;
      a->kernels->random_fill(&keep, 0, cols, a->philox.seed,
                              a->philox.offset + (row + (uint64_t)r) * per_row + (uint64_t)j / 4);
    }
    t.keep = work->keep;
  }
  return t;
}

/* One block of queries of one head. */
static void forward_block(const Attention *a, const Workspace *work, int64_t bh, int64_t block) {
  int64_t b = bh / a->H, h = bh % a->H, i = block * QUERIES;
  int64_t rows = moth_min64(QUERIES, a->L - i), end = visible_keys(a, i + rows - 1);
  char *out = rows_of(&a->o, b, h, i, a->size);
  char *lse = a->lse + (bh * a->L + i) * a->size;
  double sum[QUERIES], max[QUERIES]; /* max: floats or doubles */
  MothAttentionTile t = {0};
  for (int64_t j = 0; j < end; j += KEYS) {
    t = tile_of(a, work, b, h, i, rows, j, moth_min64(KEYS, end - j));
    t.max = max;
    t.sum = sum;
    t.out = out;
    t.out_row = a->V;
    t.first = !j;
    t.lse = lse;
    a->rows->weights(&t);
  }
  if (end) {
    a->rows->finish(&t);
    return;
  }
  memset(out, 0, (size_t)(rows * a->V * a->size));
  for (int64_t r = 0; r < rows; r++)
    if (a->dtype == MOTH_FLOAT64)
      ((double *)lse)[r] = __builtin_inf();
    else
      ((float *)lse)[r] = __builtin_inff();
}

/* The grain of `tasks` tasks that share `products` matrix products of all queries by all keys. */
static int64_t flops_grain(const Attention *a, int products, int64_t tasks) {
  double flops = 2.0 * (double)(a->B * a->H * a->L) * (double)a->S * (double)moth_max64(a->E, a->V);
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
    a.philox = moth_generator_take(generator, 4 * lse->numel * ((key->shape[2] + 3) / 4));
    memcpy(state, &a.philox.seed, sizeof *state);
    memcpy(state + 1, &a.philox.offset, sizeof *state);
  }
  if (!lse->numel)
    return MOTH_OK;
  MothStatus status = MOTH_OK;
  MOTH_GO(prepare(&a, query, key, value, attn_mask, dropout_p, is_causal, scale));
  MOTH_GO(result_of(&a.o, out, a.dtype));
  a.lse = lse->data;
  int64_t tasks = a.B * a.H * a.query_blocks;
  moth_parallel_for(tasks, flops_grain(&a, 2, tasks), forward_range, &a);
  if (a.failed)
    MOTH_GO(MOTH_ERR_MEMORY);
  copy_out(&a.o, out);
done:
  release_all(&a);
  return status;
}

/* --- backward ---------------------------------------------------------------------------------- */

/* The dq that key chunk `chunk` of (b, h) adds to, from query i on: the result or a partial. */
static char *dq_of(const Attention *a, int64_t b, int64_t h, int64_t i, int64_t chunk) {
  if (chunk == 0)
    return rows_of(&a->dq, b, h, i, a->size);
  int64_t rows = a->B * a->H * a->L;
  return a->partial + (((chunk - 1) * rows) + (b * a->H + h) * a->L + i) * a->E * a->size;
}

/* One chunk of the keys of key head (b, hk), with all queries of its group. */
static void backward_chunk(const Attention *a, const Workspace *work, int64_t b, int64_t hk,
                           int64_t chunk) {
  int64_t group = a->H / a->K, blocks = (a->S + KEYS - 1) / KEYS;
  int64_t from = blocks * chunk / a->chunks * KEYS;
  int64_t to = moth_min64(blocks * (chunk + 1) / a->chunks * KEYS, a->S);
  for (int64_t h = hk * group; h < (hk + 1) * group; h++)
    memset(dq_of(a, b, h, 0, chunk), 0, (size_t)(a->L * a->E * a->size));
  for (int64_t j = from; j < to; j += KEYS) {
    int64_t cols = moth_min64(KEYS, to - j);
    char *dk = rows_of(&a->dk, b, hk, j, a->size), *dv = rows_of(&a->dv, b, hk, j, a->size);
    bool any = false;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
      for (int64_t i = 0; i < a->L; i += QUERIES) {
        int64_t rows = moth_min64(QUERIES, a->L - i);
        if (visible_keys(a, i + rows - 1) <= j)
          continue;
        MothAttentionTile t = tile_of(a, work, b, h, i, rows, j, cols);
        int64_t row = (b * a->H + h) * a->L + i;
        t.repack = !any;
        t.accumulate = any;
        t.dout = rows_of(&a->grad, b, h, i, a->size);
        t.dout_row = a->grad.row;
        t.lse = a->lse + row * a->size;
        t.delta = a->delta + row * a->size;
        t.dq = dq_of(a, b, h, i, chunk);
        t.dk = dk;
        t.dv = dv;
        a->rows->backward(&t);
        any = true;
      }
    if (!any) { /* no query attends to these keys */
      memset(dv, 0, (size_t)(cols * a->V * a->size));
      memset(dk, 0, (size_t)(cols * a->E * a->size));
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
    backward_chunk(a, &work, bk / a->K, bk % a->K, at);
  }
  moth_free(work.p, work.bytes);
}

static void dots_range(void *ctx, int64_t begin, int64_t end) {
  const Attention *a = ctx;
  for (int64_t bh = begin; bh < end; bh++)
    for (int64_t i = 0; i < a->L; i++) {
      int64_t at = (bh * a->L + i) * a->size;
      a->rows->dot(a->delta + at, rows_of(&a->grad, bh / a->H, bh % a->H, i, a->size),
                   rows_of(&a->o, bh / a->H, bh % a->H, i, a->size), a->V,
                   a->grad_lse ? a->grad_lse + at : NULL);
    }
}

static void join_range(void *ctx, int64_t begin, int64_t end) {
  const Attention *a = ctx;
  int64_t per = a->L * a->E, all = a->B * a->H * per;
  for (int64_t p = 1; p < a->chunks; p++)
    a->rows->add(a->dq.data + begin * per * a->size,
                 a->partial + ((p - 1) * all + begin * per) * a->size, (end - begin) * per);
}

MothStatus moth_cpu_attention_backward(MothCall *c) {
  MOTH_UNPACK_ATTENTION_BACKWARD(c)
  MothTensor *lse = NULL, *grad_lse = NULL;
  size_t partial = 0, delta = 0;
  MothStatus status = MOTH_OK;
  Attention a = {0};
  MOTH_GO(prepare(&a, query, key, value, attn_mask, dropout_p, is_causal, scale));
  memcpy(&a.philox.seed, state->data, sizeof a.philox.seed);
  memcpy(&a.philox.offset, (char *)state->data + state->stride[0] * 8, sizeof a.philox.offset);
  MOTH_GO(heads_of(&a.grad, grad_output, a.dtype));
  MOTH_GO(heads_of(&a.o, output, a.dtype));
  MOTH_GO(moth_cpu_contiguous_as(logsumexp, a.dtype, &lse));
  if (grad_logsumexp) {
    MOTH_GO(moth_cpu_contiguous_as(grad_logsumexp, a.dtype, &grad_lse));
    a.grad_lse = grad_lse->data;
  }
  MOTH_GO(result_of(&a.dq, c->results[0].u.t, a.dtype));
  MOTH_GO(result_of(&a.dk, c->results[1].u.t, a.dtype));
  MOTH_GO(result_of(&a.dv, c->results[2].u.t, a.dtype));
  a.lse = lse->data;
  if (!lse->numel || !a.S) {
    memset(a.dq.data, 0, (size_t)(a.dq.t->numel * a.size));
    memset(a.dk.data, 0, (size_t)(a.dk.t->numel * a.size));
    memset(a.dv.data, 0, (size_t)(a.dv.t->numel * a.size));
  } else {
    /* With few heads, cut their keys, so that there are tasks for all threads. */
    int64_t blocks = (a.S + KEYS - 1) / KEYS;
    a.chunks = moth_max64(1, moth_min64(blocks, CHUNKS / (a.B * a.K)));
    partial = (size_t)((a.chunks - 1) * a.B * a.H * a.L * a.E * a.size);
    delta = (size_t)(lse->numel * a.size);
    a.delta = moth_alloc(delta);
    a.partial = partial ? moth_alloc(partial) : NULL;
    if (!a.delta || (partial && !a.partial))
      MOTH_GO(MOTH_ERR_MEMORY);
    moth_parallel_for(a.B * a.H, moth_cpu_grain(a.L * a.V), dots_range, &a);
    int64_t tasks = a.B * a.K * a.chunks;
    moth_parallel_for(tasks, flops_grain(&a, 5, tasks), backward_range, &a);
    if (a.failed)
      MOTH_GO(MOTH_ERR_MEMORY);
    if (partial)
      moth_parallel_for(a.B * a.H, moth_cpu_grain(a.chunks * a.L * a.E), join_range, &a);
  }
  copy_out(&a.dq, c->results[0].u.t);
  copy_out(&a.dk, c->results[1].u.t);
  copy_out(&a.dv, c->results[2].u.t);
done:
  moth_free(a.delta, a.delta ? delta : 0);
  moth_free(a.partial, a.partial ? partial : 0);
  if (lse)
    moth_tensor_release(lse);
  if (grad_lse)
    moth_tensor_release(grad_lse);
  release_all(&a);
  return status;
}
