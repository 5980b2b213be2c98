/* Normalisation: cuts rows, groups and channels into tasks and joins the statistics of chunks. Chunks depend on
 * shapes alone, so that the number of threads changes no bit. */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/norm.h"
#include "kernels/cpu/util.h"
#include "unpack/norm.h"

enum { COLS = 256, MOST_CHUNKS = 64, LEAST_ROWS = 16 };

static MothDType stat_dtype(int dtype) {
  return dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
}
/* An optional tensor, row-major in a dtype; NULL stays NULL. The caller releases *out. */
static MothStatus optional_as(const MothTensor *t, MothDType dtype, MothTensor **out) {
  *out = NULL;
  return t ? moth_cpu_contiguous_as(t, dtype, out) : MOTH_OK;
}
static void *data_of(const MothTensor *t) {
  return t ? t->data : NULL;
}
static double get(const MothTensor *t, int64_t i) {
  return t->dtype == MOTH_FLOAT64 ? ((double *)t->data)[i] : (double)((float *)t->data)[i];
}
static void put(MothTensor *t, int64_t i, double x) {
  if (t->dtype == MOTH_FLOAT64)
    ((double *)t->data)[i] = x;
  else
    ((float *)t->data)[i] = (float)x;
}
/* Zeroed memory for the time of a call. */
typedef struct Workspace {
  void *p;
  size_t bytes;
} Workspace;
static MothStatus workspace_alloc(Workspace *s, int64_t count, size_t size) {
  s->bytes = (size_t)(count > 0 ? count : 1) * size;
  if (!(s->p = moth_alloc(s->bytes)))
    return moth_no_memory(s->bytes);
  memset(s->p, 0, s->bytes);
  return MOTH_OK;
}
static void workspace_free(Workspace *s) {
  if (s->p)
    moth_free(s->p, s->bytes);
}

/* --- rows
 * ---------------------------------------------------------------------------------------
 */

typedef struct Rows {
  MothNorm m; /* of all rows; dweight, dbias: [chunks][n] */
  const MothKernels *k;
  int64_t chunk, item, real;
} Rows;

static void *at(const void *p, int64_t offset) {
  return p ? (char *)(uintptr_t)p + offset : NULL;
}

/* `rows` rows from `first` on alone; the sums are those of a chunk. */
static MothNorm rows_of(const Rows *r, int64_t first, int64_t rows, int64_t chunk) {
  MothNorm m = r->m;
  int64_t from = first * m.n * r->item, sums = chunk * m.n * r->real;
  m.rows = rows;
  m.in = at(m.in, from);
  m.grad = at(m.grad, from);
  m.out = at(m.out, from);
  m.mean = at(m.mean, first * r->real);
  m.rstd = at(m.rstd, first * r->real);
  m.dweight = at(m.dweight, sums);
  m.dbias = at(m.dbias, sums);
  return m;
}

static void rows_range(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  MothNorm m = rows_of(r, begin, end - begin, 0);
  r->k->norm_rows(&m);
}

static MothStatus forward_rows(const MothTensor *self, const MothTensor *weight,
                               const MothTensor *bias, double eps, MothTensor *out,
                               MothTensor *mean, MothTensor *rstd) {
  MothTensor *in = NULL, *w = NULL, *b = NULL;
  MothStatus status = MOTH_OK;
  MothDType real = stat_dtype(self->dtype);
  MOTH_GO(moth_cpu_contiguous(self, &in));
  MOTH_GO(optional_as(weight, real, &w));
  MOTH_GO(optional_as(bias, real, &b));
  Rows r = {.m = {.rows = rstd->numel,
                  .eps = eps,
                  .rms = !mean,
                  .in = in->data,
                  .weight = data_of(w),
                  .bias = data_of(b),
                  .out = out->data,
                  .mean = data_of(mean),
                  .rstd = rstd->data},
            .k = moth_cpu_kernels(self->dtype),
            .item = moth_itemsize(self),
            .real = moth_itemsize(rstd)};
  r.m.n = r.m.rows ? self->numel / r.m.rows : 0;
  if (r.m.rows)
    moth_parallel_for(r.m.rows, moth_cpu_grain(r.m.n), rows_range, &r);
done:
  moth_tensor_release(in);
  moth_tensor_release(w);
  moth_tensor_release(b);
  return status;
}

MothStatus moth_cpu_native_layer_norm(MothCall *c) {
  MOTH_UNPACK_NATIVE_LAYER_NORM(c)
  return forward_rows(self, weight, bias, eps, c->results[0].u.t, c->results[1].u.t,
                      c->results[2].u.t);
}
MothStatus moth_cpu_native_rms_norm(MothCall *c) {
  MOTH_UNPACK_NATIVE_RMS_NORM(c)
  return forward_rows(self, weight, NULL, eps, c->results[0].u.t, NULL, c->results[1].u.t);
}

static void back_range(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  for (int64_t i = begin; i < end; i++) {
    int64_t first = i * r->chunk;
    MothNorm m = rows_of(r, first, moth_min64(r->chunk, r->m.rows - first), i);
    r->k->norm_back_rows(&m);
  }
}

/* out = the sums of the chunks, added in order. */
static MothStatus join_chunks(const char *parts, MothDType real, int64_t chunks, int64_t n,
                              MothTensor *out) {
  MothTensor *sums;
  MOTH_TRY(moth_tensor_new(out->ndim, out->shape, real, out->device, &sums));
  for (int64_t k = 0; k < n; k += COLS) { /* COLS sums stay in cache */
    double s[COLS] = {0};
    int64_t m = moth_min64(COLS, n - k);
    for (int64_t i = 0; i < chunks; i++) {
      const char *p = parts + (i * n + k) * moth_dtype_size(real);
      for (int64_t j = 0; j < m; j++)
        s[j] += real == MOTH_FLOAT64 ? ((const double *)p)[j] : (double)((const float *)p)[j];
    }
    for (int64_t j = 0; j < m; j++)
      put(sums, k + j, s[j]);
  }
  moth_cpu_copy(out, sums);
  moth_tensor_release(sums);
  return MOTH_OK;
}

static MothStatus backward_rows(const MothTensor *grad, const MothTensor *self,
                                const MothTensor *mean, const MothTensor *rstd,
                                const MothTensor *weight, int64_t need, MothTensor *dx,
                                MothTensor *dw, MothTensor *db) {
  MothTensor *g = NULL, *in = NULL, *w = NULL, *mu = NULL, *rs = NULL;
  MothStatus status = MOTH_OK;
  MothDType real = stat_dtype(self->dtype);
  Workspace sums[2] = {{0}};
  Rows r = {.m = {.rms = !mean}, .k = moth_cpu_kernels(self->dtype)};
  MothNorm *m = &r.m;
  MOTH_GO(moth_cpu_contiguous_as(grad, (MothDType)self->dtype, &g));
  MOTH_GO(moth_cpu_contiguous(self, &in));
  MOTH_GO(optional_as(weight, real, &w));
  MOTH_GO(optional_as(mean, real, &mu));
  MOTH_GO(optional_as(rstd, real, &rs));
  m->rows = rs->numel;
  m->n = m->rows ? self->numel / m->rows : (dw && need & 2) ? dw->numel : db ? db->numel : 0;
  r.item = moth_itemsize(self);
  r.real = moth_itemsize(rs);
  m->grad = g->data;
  m->in = in->data;
  m->weight = data_of(w);
  m->mean = data_of(mu);
  m->rstd = rs->data;
  m->out = need & 1 ? dx->data : NULL;
  r.chunk = moth_max64(LEAST_ROWS, (m->rows + MOST_CHUNKS - 1) / MOST_CHUNKS);
  if (!(need & 6))
    r.chunk = moth_min64(r.chunk, LEAST_ROWS);
  int64_t chunks = (m->rows + r.chunk - 1) / r.chunk;
  for (int i = 1; i <= 2; i++)
    if (need >> i & 1) {
      MOTH_GO(workspace_alloc(&sums[i - 1], chunks * m->n, (size_t)r.real));
      *(i == 1 ? &m->dweight : &m->dbias) = sums[i - 1].p;
    }
  if (chunks)
    moth_parallel_for(chunks, moth_cpu_grain(r.chunk * m->n), back_range, &r);
  if (m->dweight)
    MOTH_GO(join_chunks(m->dweight, real, chunks, dw->numel, dw));
  if (m->dbias)
    MOTH_GO(join_chunks(m->dbias, real, chunks, db->numel, db));
done:
  workspace_free(&sums[0]);
  workspace_free(&sums[1]);
  moth_tensor_release(g);
  moth_tensor_release(in);
  moth_tensor_release(w);
  moth_tensor_release(mu);
  moth_tensor_release(rs);
  return status;
}

MothStatus moth_cpu_layer_norm_backward(MothCall *c) {
  MOTH_UNPACK_LAYER_NORM_BACKWARD(c)
  return backward_rows(grad_output, self, mean, rstd, weight, need, c->results[0].u.t,
                       c->results[1].u.t, c->results[2].u.t);
}
MothStatus moth_cpu_rms_norm_backward(MothCall *c) {
  MOTH_UNPACK_RMS_NORM_BACKWARD(c)
  return backward_rows(grad_output, self, NULL, rstd, weight, need, c->results[0].u.t,
                       c->results[1].u.t, NULL);
}

/* --- groups and channels ------------------------------------------------------------------------ */

/* (N, C, inner): line (n, c) is its `inner` elements. With `cols` there is one line for each channel instead. */
typedef struct Lines {
  MothNorm m; /* of all; center, sum and squares: [lines], factors: [lines][4] */
  const MothKernels *k;
  int64_t item;
  bool cols; /* statistics by channel, and inner is 1 */
  double *center, *factors;
  Workspace workspace;
} Lines;

static int64_t lines_count(const Lines *l) {
  return l->m.channels * (l->cols ? 1 : l->m.batch);
}

static MothStatus lines_init(Lines *l, const MothTensor *self, bool by_channel) {
  *l = (Lines){.m = {.batch = self->shape[0], .channels = self->shape[1], .inner = 1},
               .k = moth_cpu_kernels(self->dtype),
               .item = moth_itemsize(self)};
  for (int i = 2; i < self->ndim; i++)
    l->m.inner *= self->shape[i];
  l->cols = by_channel && l->m.inner == 1;
  int64_t lines = lines_count(l);
  MOTH_TRY(workspace_alloc(&l->workspace, 7 * lines, sizeof(double)));
  double *p = l->workspace.p;
  l->m.sum = p;
  l->m.squares = p + lines;
  l->m.center = l->center = p + 2 * lines;
  l->m.factors = l->factors = p + 3 * lines;
  return MOTH_OK;
}

/* Lines (with `cols`: columns) from `first` on: all of them, or *part. */
static const MothNorm *lines_of(const Lines *l, int64_t first, int64_t lines, MothNorm *part) {
  const MothNorm *m = &l->m;
  if (lines == (l->cols ? m->cols : m->rows))
    return m;
  int64_t from = first * (l->cols ? 1 : m->n) * l->item;
  *part = *m;
  part->rows = part->cols = lines;
  part->in = at(m->in, from);
  part->grad = at(m->grad, from);
  part->out = at(m->out, from);
  part->center += first;
  part->sum += first;
  part->squares += first;
  part->factors += 4 * first;
  return part;
}

static void sums_range(void *ctx, int64_t begin, int64_t end) {
  const Lines *l = ctx;
  const MothKernels *k = l->k;
  MothNorm part;
  for (int64_t i = begin; l->cols && i < end; i++)
    (l->m.grad ? k->norm_dots_cols : k->norm_moments_cols)(
        lines_of(l, i * COLS, moth_min64(COLS, l->m.cols - i * COLS), &part));
  if (!l->cols)
    (l->m.grad ? k->norm_dots : k->norm_moments)(lines_of(l, begin, end - begin, &part));
}
static void apply_range(void *ctx, int64_t begin, int64_t end) {
  const Lines *l = ctx;
  MothNorm part;
  for (int64_t i = begin; l->cols && i < end; i++)
    l->k->norm_cols(lines_of(l, i * COLS, moth_min64(COLS, l->m.cols - i * COLS), &part));
  if (!l->cols)
    l->k->norm_lines(lines_of(l, begin, end - begin, &part));
}
static void lines_run(Lines *l, MothRange fn) {
  MothNorm *m = &l->m;
  m->rows = m->batch * m->channels;
  m->n = m->inner;
  m->cols = m->channels;
  int64_t tasks = l->cols ? (m->cols + COLS - 1) / COLS : m->rows;
  int64_t cost = l->cols ? m->batch * COLS : m->inner;
  if (tasks && m->inner && m->batch)
    moth_parallel_for(tasks, moth_cpu_grain(cost), fn, l);
}

/* Joins the moments (mean, m2) of `count` lines, `stride` apart, of n elements each. */
static void join_moments(const Lines *l, int64_t first, int64_t stride, int64_t count, double n,
                         double *mean, double *m2) {
  double total = 0, mu = 0, sq = 0;
  for (int64_t i = 0; i < count; i++) {
    double d = l->m.sum[first + i * stride] - mu, sum = total + n;
    mu += d * n / sum;
    sq += l->m.squares[first + i * stride] + d * d * total * n / sum;
    total = sum;
  }
  *mean = mu;
  *m2 = sq;
}

static void four(double *k, double kg, double kx, double center, double shift) {
  k[0] = kg;
  k[1] = kx;
  k[2] = center;
  k[3] = shift;
}

MothStatus moth_cpu_native_group_norm(MothCall *c) {
  MOTH_UNPACK_NATIVE_GROUP_NORM(c)
  MothTensor *in = NULL, *w = NULL, *b = NULL;
  MothTensor *mean = c->results[1].u.t, *rstd = c->results[2].u.t;
  MothStatus status = MOTH_OK;
  Lines l;
  MOTH_TRY(lines_init(&l, self, false));
  MOTH_GO(moth_cpu_contiguous(self, &in));
  MOTH_GO(optional_as(weight, stat_dtype(self->dtype), &w));
  MOTH_GO(optional_as(bias, stat_dtype(self->dtype), &b));
  l.m.in = in->data;
  l.m.out = c->results[0].u.t->data;
  int64_t each =
      l.m.channels / groups; /* the lines of a group are contiguous: `whole` takes them as one */
  Lines whole = l;
  whole.m.channels = groups;
  whole.m.inner = l.m.inner * each;
  lines_run(&whole, sums_range);
  for (int64_t i = 0; i < l.m.batch * groups; i++) {
    double n = (double)whole.m.inner, mu = n > 0 ? l.m.sum[i] : 0;
    double rs = 1 / sqrt((n > 0 ? l.m.squares[i] / n : 0) + eps);
    put(mean, i, mu);
    put(rstd, i, rs);
    for (int64_t k = 0; k < each; k++) {
      int64_t ch = i % groups * each + k;
      four(l.factors + 4 * (i * each + k), 0, w ? rs * get(w, ch) : rs, mu, b ? get(b, ch) : 0);
    }
  }
  lines_run(&l, apply_range);
done:
  workspace_free(&l.workspace);
  moth_tensor_release(in);
  moth_tensor_release(w);
  moth_tensor_release(b);
  return status;
}

/* running = (1 - momentum) running + momentum x */
static MothStatus move_running(MothTensor *running, const double *x, double momentum) {
  MothTensor *r;
  MOTH_TRY(moth_tensor_new(1, running->shape, MOTH_FLOAT64, running->device, &r));
  moth_cpu_copy(r, running);
  for (int64_t i = 0; i < r->numel; i++)
    put(r, i, (1 - momentum) * get(r, i) + momentum * x[i]);
  moth_cpu_copy(running, r);
  moth_tensor_release(r);
  return MOTH_OK;
}

MothStatus moth_cpu_native_batch_norm(MothCall *c) {
  MOTH_UNPACK_NATIVE_BATCH_NORM(c)
  MothTensor *in = NULL, *w = NULL, *b = NULL, *rm = NULL, *rv = NULL;
  MothTensor *mean = c->results[1].u.t, *rstd = c->results[2].u.t;
  MothStatus status = MOTH_OK;
  Lines l;
  Workspace moments = {0};
  MOTH_TRY(lines_init(&l, self, true));
  int64_t count = l.m.batch * l.m.inner;
  MOTH_GO(moth_cpu_contiguous(self, &in));
  MOTH_GO(optional_as(weight, stat_dtype(self->dtype), &w));
  MOTH_GO(optional_as(bias, stat_dtype(self->dtype), &b));
  if (!training) {
    MOTH_GO(optional_as(running_mean, MOTH_FLOAT64, &rm));
    MOTH_GO(optional_as(running_var, MOTH_FLOAT64, &rv));
  }
  MOTH_GO(workspace_alloc(&moments, 2 * l.m.channels, sizeof(double)));
  double *unbiased = moments.p;
  l.m.in = in->data;
  l.m.out = c->results[0].u.t->data;
  if (training)
    lines_run(&l, sums_range);
  for (int64_t i = 0; i < l.m.channels; i++) {
    double mu = 0, m2 = 0, var = 0;
    if (!training) {
      mu = get(rm, i);
      var = get(rv, i);
    } else if (count) {
      if (l.cols) {
        mu = l.m.sum[i];
        m2 = l.m.squares[i];
      } else {
        join_moments(&l, i, l.m.channels, l.m.batch, (double)l.m.inner, &mu, &m2);
      }
      var = m2 / (double)count;
    }
    double rs = 1 / sqrt(var + eps);
    put(mean, i, mu);
    put(rstd, i, rs);
    unbiased[i] = mu;
    unbiased[l.m.channels + i] = m2 / (double)(count - 1);
    for (int64_t n = 0; n < (l.cols ? 1 : l.m.batch); n++)
      four(l.factors + 4 * (n * l.m.channels + i), 0, w ? rs * get(w, i) : rs, mu,
           b ? get(b, i) : 0);
  }
  lines_run(&l, apply_range);
  if (training && running_mean && count > 1) {
    MOTH_GO(move_running(running_mean, unbiased, momentum));
    MOTH_GO(move_running(running_var, unbiased + l.m.channels, momentum));
  }
done:
  workspace_free(&l.workspace);
  workspace_free(&moments);
  moth_tensor_release(in);
  moth_tensor_release(w);
  moth_tensor_release(b);
  moth_tensor_release(rm);
  moth_tensor_release(rv);
  return status;
}

/* group_norm's backward (groups > 0) or batch_norm's (groups 0; own: with the batch's statistics, not the running
 * ones). For a line (n, c): dx = rstd w g - rstd (s1 + xhat s2) / count, with s1 and s2 the sums of w g and of
 * w g xhat over all elements that share its statistics; the second term is left out without own. */
static MothStatus backward_lines(MothCall *c, const MothTensor *grad, const MothTensor *self,
                                 const MothTensor *mean, const MothTensor *rstd,
                                 const MothTensor *weight, int64_t groups, bool own, int64_t need) {
  MothTensor *g = NULL, *in = NULL, *w = NULL, *mu = NULL, *rs = NULL, *dw = NULL, *db = NULL;
  MothStatus status = MOTH_OK;
  Workspace joined = {0};
  Lines l;
  MOTH_TRY(lines_init(&l, self, groups == 0));
  int64_t each = groups ? l.m.channels / groups : 1,
          stats = groups ? l.m.batch * groups : l.m.channels;
  int64_t lines = lines_count(&l);
  MOTH_GO(moth_cpu_contiguous_as(grad, (MothDType)self->dtype, &g));
  MOTH_GO(moth_cpu_contiguous(self, &in));
  MOTH_GO(optional_as(weight, MOTH_FLOAT64, &w));
  MOTH_GO(optional_as(mean, MOTH_FLOAT64, &mu));
  MOTH_GO(optional_as(rstd, MOTH_FLOAT64, &rs));
  MOTH_GO(moth_tensor_new(1, self->shape + 1, MOTH_FLOAT64, self->device, &dw));
  MOTH_GO(moth_tensor_new(1, self->shape + 1, MOTH_FLOAT64, self->device, &db));
  MOTH_GO(workspace_alloc(&joined, 2 * stats, sizeof(double)));
  double *s = joined.p;
  memset(dw->data, 0, sizeof(double) * (size_t)l.m.channels);
  memset(db->data, 0, sizeof(double) * (size_t)l.m.channels);
  l.m.grad = g->data;
  l.m.in = in->data;
  l.m.out = c->results[0].u.t->data;
  for (int64_t i = 0; i < lines; i++)
    l.center[i] = get(mu, groups ? i / each : i % l.m.channels);
  lines_run(&l, sums_range);
  for (int64_t i = 0; i < lines; i++) {
    int64_t ch = i % l.m.channels, st = groups ? i / each : ch;
    double wc = w ? get(w, ch) : 1, dot = l.m.squares[i] * get(rs, st);
    ((double *)dw->data)[ch] += dot;
    ((double *)db->data)[ch] += l.m.sum[i];
    s[2 * st] += wc * l.m.sum[i];
    s[2 * st + 1] += wc * dot;
  }
  double count = (double)(l.m.inner * (groups ? each : l.m.batch));
  for (int64_t i = 0; i < lines; i++) {
    int64_t ch = i % l.m.channels, st = groups ? i / each : ch;
    double r = get(rs, st), scale = own && count > 0 ? r / count : 0;
    four(l.factors + 4 * i, w ? r * get(w, ch) : r, -scale * s[2 * st + 1] * r, l.center[i],
         -scale * s[2 * st]);
  }
  if (need & 1)
    lines_run(&l, apply_range);
  if (need & 2)
    moth_cpu_copy(c->results[1].u.t, dw);
  if (need & 4)
    moth_cpu_copy(c->results[2].u.t, db);
done:
  workspace_free(&l.workspace);
  workspace_free(&joined);
  moth_tensor_release(g);
  moth_tensor_release(in);
  moth_tensor_release(w);
  moth_tensor_release(mu);
  moth_tensor_release(rs);
  moth_tensor_release(dw);
  moth_tensor_release(db);
  return status;
}

MothStatus moth_cpu_group_norm_backward(MothCall *c) {
  MOTH_UNPACK_GROUP_NORM_BACKWARD(c)
  return backward_lines(c, grad_output, self, mean, rstd, weight, groups, true, need);
}
MothStatus moth_cpu_batch_norm_backward(MothCall *c) {
  MOTH_UNPACK_BATCH_NORM_BACKWARD(c)
  return backward_lines(c, grad_output, self, mean, rstd, weight, 0, training, need);
}
