/* native_fft_c2c, native_fft_r2c and native_fft_c2r: plans, and how lines are handed to the typed kernel.
 *
 * Lines go through the kernel 64 bytes of lanes at a time, in parallel. A long line, or a few lines, go in four steps: n
 * elements as a matrix of n1 rows; its columns are transformed and multiplied by factors, then its rows, so that there
 * are lanes enough and a group stays in the cache. Lengths with a prime factor above 13 go by Bluestein's convolution.
 * Lines are cut, never sums: the bits do not depend on the number of threads. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/fft.h"
#include "kernels/cpu/util.h"
#include "unpack/fft.h"

/* Lines of LONG elements and more are cut: a group's workspace, 128 bytes an element, leaves the caches. */
enum { PLANS = 64, LONG = 1 << 17, MOST_PRIME = 13 };

/* --- plans ------------------------------------------------------------------------------------ */

typedef struct Plan {
  MothFftPlan p;
  _Atomic int refs;
  bool is_double;
  bool is_half;  /* of the results the first n / 2 + 1 alone, where it has a convolution */
  uint64_t used; /* when: of the least recently used */
  struct Plan *inner;
  int64_t n1;                /* of four steps; 1: not cut */
  struct Plan *first, *then; /* for n1 and n / n1 */
  void *turn;                /* exp(-2 pi i j k / n), j < n1, k < n / n1 */
  void *memory[5];
  size_t bytes[5];
  int count;
} Plan;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Plan *plans[PLANS];
static uint64_t clock_of_uses;

static void drop(Plan *p) {
  if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
    return;
  drop(p->inner);
  drop(p->first);
  drop(p->then);
  for (int i = 0; i < p->count; i++)
    moth_free(p->memory[i], p->bytes[i]);
  moth_free(p, sizeof *p);
}

static MothStatus table(Plan *p, int64_t pairs, void **out) {
  size_t n = (size_t)(pairs > 0 ? pairs : 1) * (p->is_double ? 16 : 8);
  *out = moth_alloc(n);
  if (!*out)
    return moth_no_memory(0);
  p->memory[p->count] = *out;
  p->bytes[p->count++] = n;
  return MOTH_OK;
}

static void put(const Plan *p, void *t, int64_t at, double re, double im) {
  if (p->is_double)
    ((MothComplex128 *)t)[at] = (MothComplex128){re, im};
  else
    ((MothComplex64 *)t)[at] = (MothComplex64){(float)re, (float)im};
}

/* exp(-2 pi i j / n), 0 <= j < n, with the argument in the first eighth of the circle. */
static void put_root(const Plan *p, void *t, int64_t at, int64_t j, int64_t n) {
  int64_t eighths = 8 * j / n;
  int64_t quarter = (eighths + 1) / 2; /* of the nearest axis */
  double x = 6.2831853071795864769 * ((double)(4 * j - quarter * n) / (4 * (double)n));
  double c = cos(x), s = sin(x);
  switch (quarter & 3) {
  case 0:
    put(p, t, at, c, -s);
    break;
  case 1:
    put(p, t, at, -s, -c);
    break;
  case 2:
    put(p, t, at, -c, s);
    break;
  default:
    put(p, t, at, s, c);
    break;
  }
}

static int64_t cut_into_stages(MothFftPlan *p) {
  static const int odd[] = {3, 5, 7, 11, MOST_PRIME};
  int64_t rest = p->n;
  int twos = 0;
  while (rest % 2 == 0) {
    rest /= 2;
    twos++;
  }
  int fours = twos == 1 ? 0 : twos % 3 == 1 ? 2 : twos % 3 == 2 ? 1 : 0;
  for (int i = 0; i < (twos - 2 * fours) / 3; i++)
    p->radix[p->stages++] = 8;
  for (int i = 0; i < fours; i++)
    p->radix[p->stages++] = 4;
  if (twos == 1)
    p->radix[p->stages++] = 2;
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
    for (; rest % odd[i] == 0; rest /= odd[i])
      p->radix[p->stages++] = odd[i];
  return rest;
}

static MothStatus plan_for(int64_t n, bool is_double, bool cut, bool half, Plan **out);

static MothStatus make_stages(Plan *p) {
  int64_t pairs = 0, rest = p->p.n, at = 0;
  for (int i = 0; i < p->p.stages; i++) {
    rest /= p->p.radix[i];
    pairs += rest * (p->p.radix[i] - 1);
  }
  void *t;
  MOTH_TRY(table(p, pairs, &t));
  p->p.twiddles = t;
  rest = p->p.n;
  for (int i = 0; i < p->p.stages; i++) {
    int r = p->p.radix[i];
    for (int64_t j = 0; j < rest / r; j++)
      for (int k = 1; k < r; k++)
        put_root(p, t, at++, j * k, rest);
    rest /= r;
  }
  return MOTH_OK;
}

/* The least m >= low with small prime factors. */
static int64_t smooth_from(int64_t low) {
  int64_t best = 1;
  while (best < low)
    best *= 2;
  for (int64_t a = 1; a < best; a *= 3)
    for (int64_t b = a; b < best; b *= 5) {
      int64_t m = b;
      while (m < low)
        m *= 2;
      if (m < best && m % 4 == 0)
        best = m;
    }
  return best;
}

/* k^2 mod 2 n, of the angle -pi k^2 / n. */
static int64_t square_mod(int64_t k, int64_t n) {
  return (int64_t)((unsigned __int128)k * (unsigned __int128)k % (unsigned __int128)(2 * n));
}

/* Result k takes the filter at k - j for all j < n: what is wrapped around reaches no result that is asked for. */
static MothStatus make_chirp(Plan *p) {
  const int64_t n = p->p.n, results = p->is_half ? n / 2 + 1 : n, m = smooth_from(n + results - 1);
  MOTH_TRY(plan_for(m, p->is_double, false, false, &p->inner));
  p->p.inner = &p->inner->p;
  void *chirp, *filter;
  MOTH_TRY(table(p, n, &chirp));
  MOTH_TRY(table(p, m, &filter));
  p->p.chirp = chirp;
  p->p.filter = filter;
  for (int64_t k = 0; k < n; k++)
    put_root(p, chirp, k, square_mod(k, n), 2 * n);
  /* The filter in float64, once. */
  Plan *wide = p->inner, own = {.is_double = true};
  MothStatus status = MOTH_OK;
  MothComplex128 *x = moth_alloc((size_t)m * sizeof *x);
  size_t work_bytes = 0;
  void *work = NULL;
  if (!p->is_double)
    MOTH_GO(plan_for(m, true, false, false, &wide));
  work_bytes = (size_t)moth_fft_work(&wide->p) * 64;
  work = moth_alloc(work_bytes);
  if (!x || !work) {
    status = moth_no_memory(0);
    goto done;
  }
  memset(x, 0, (size_t)m * sizeof *x);
  for (int64_t k = 0; k < n; k++) {
    MothComplex128 z;
    put_root(&own, &z, 0, square_mod(k, n), 2 * n);
    z.im = -z.im;
    if (k < results)
      x[k] = z;
    x[(m - k) % m] = z;
  }
  const int64_t zero = 0;
  MothFft f = {.plan = &wide->p,
               .kind = MOTH_FFT_C2C,
               .n = m,
               .in = x,
               .out = x,
               .in_stride = 1,
               .out_stride = 1,
               .lines = 1,
               .in_at = &zero,
               .out_at = &zero,
               .scale = 1 / (double)m,
               .work = work};
  moth_cpu_kernels(MOTH_FLOAT64)->fft_lines(&f);
  for (int64_t k = 0; k < m; k++)
    put(p, filter, k, x[k].re, x[k].im);
done:
  if (wide != p->inner)
    drop(wide);
  moth_free(work, work_bytes);
  moth_free(x, (size_t)m * sizeof *x);
  return status;
}

/* Four steps for n1 of the stages and the others. */
static MothStatus make_cut(Plan *p) {
  int64_t n = p->p.n, n1 = 1;
  for (int i = 0; i < p->p.stages; i++)
    if (n1 * p->p.radix[i] * n1 * p->p.radix[i] <= 2 * n)
      n1 *= p->p.radix[i];
  p->n1 = 1;
  if (n1 < 8 || n / n1 < 8)
    return MOTH_OK;
  MOTH_TRY(plan_for(n1, p->is_double, false, false, &p->first));
  MOTH_TRY(plan_for(n / n1, p->is_double, false, false, &p->then));
  MOTH_TRY(table(p, n, &p->turn));
  for (int64_t j = 0, at = 0; j < n1; j++)
    for (int64_t k = 0; k < n / n1; k++)
      put_root(p, p->turn, at++, j * k, n);
  p->n1 = n1;
  return MOTH_OK;
}

/* noinline: gcc 12 takes *out for unset after a failure. */
static __attribute__((noinline)) MothStatus make_plan(int64_t n, bool is_double, bool cut,
                                                      bool half_only, Plan **out) {
  Plan *p = moth_alloc(sizeof *p);
  if (!p)
    return moth_no_memory(0);
  memset(p, 0, sizeof *p);
  p->p.n = n;
  p->is_double = is_double;
  p->is_half = half_only;
  p->n1 = cut ? 0 : 1; /* 0: make_cut decides */
  atomic_init(&p->refs, 1);
  void *half;
  bool smooth = cut_into_stages(&p->p) == 1;
  MothStatus s = smooth ? make_stages(p) : make_chirp(p);
  if (s == MOTH_OK && cut)
    s = smooth ? make_cut(p) : MOTH_OK;
  if (s == MOTH_OK && cut && !smooth)
    p->n1 = 1;
  if (s == MOTH_OK)
    s = table(p, n + 1, &half);
  if (s != MOTH_OK) {
    drop(p);
    return s;
  }
  p->p.half = half;
  for (int64_t k = 0; k <= n; k++)
    put_root(p, half, k, k % (2 * n), 2 * n);
  *out = p;
  return MOTH_OK;
}

/* A plan, retained. cut: with what four steps need. */
static MothStatus plan_for(int64_t n, bool is_double, bool cut, bool half, Plan **out) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < PLANS; i++) {
    Plan *p = plans[i];
    if (p && p->p.n == n && p->is_double == is_double && p->is_half == half &&
        (p->n1 > 1 || p->first || !cut || p->used & 1)) {
      p->used = (++clock_of_uses << 1) | (p->used & 1);
      atomic_fetch_add(&p->refs, 1);
      *out = p;
      pthread_mutex_unlock(&lock);
      return MOTH_OK;
    }
  }
  pthread_mutex_unlock(&lock);
  Plan *p = NULL, *old;
  MOTH_TRY(make_plan(n, is_double, cut, half, &p)); /* unlocked: it asks for other plans */
  pthread_mutex_lock(&lock);
  int at = 0;
  for (int i = 0; i < PLANS; i++) {
    if (plans[i] && plans[i]->p.n == n && plans[i]->is_double == is_double &&
        plans[i]->is_half == half) {
      at = i;
      break;
    }
    if (!plans[i] || (plans[at] && plans[i]->used < plans[at]->used))
      at = i;
  }
  old = plans[at];
  p->used = (++clock_of_uses << 1) | cut; /* the lowest bit: the cut was tried */
  atomic_fetch_add(&p->refs, 1);
  plans[at] = p;
  pthread_mutex_unlock(&lock);
  drop(old);
  *out = p;
  return MOTH_OK;
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Lines of a call: line i begins at the sum of its coordinates times the strides. */
typedef struct Lines {
  MothFft f;
  const MothKernels *k;
  int lanes, ndim;
  int64_t count, size[MOTH_MAX_DIMS], in[MOTH_MAX_DIMS], out[MOTH_MAX_DIMS];
  const char *turn; /* of line 0; the next ones lie beside it */
  int64_t pair;     /* bytes of a factor */
  _Atomic bool no_memory;
} Lines;

static void places(const Lines *l, int64_t line, int64_t *in, int64_t *out) {
  *in = *out = 0;
  for (int d = l->ndim - 1; d >= 0; d--) {
    int64_t i = line % l->size[d];
    line /= l->size[d];
    *in += i * l->in[d];
    *out += i * l->out[d];
  }
}

static void run_groups(void *ctx, int64_t begin, int64_t end) {
  Lines *l = ctx;
  MothFft f = l->f;
  int64_t in[MOTH_FFT_LANES], out[MOTH_FFT_LANES];
  size_t bytes = (size_t)moth_fft_work(f.plan) * 64;
  f.work = moth_alloc(bytes);
  if (!f.work) {
    l->no_memory = true;
    return;
  }
  f.in_at = in;
  f.out_at = out;
  for (int64_t g = begin; g < end && !moth_stopped(); g++) {
    int64_t first = g * l->lanes;
    f.lines = (int)(l->count - first < l->lanes ? l->count - first : l->lanes);
    for (int v = 0; v < f.lines; v++)
      places(l, first + v, &in[v], &out[v]);
    if (l->turn)
      f.turn = l->turn + first * l->pair;
    l->k->fft_lines(&f);
  }
  moth_free(f.work, bytes);
}

static MothStatus run_lines(Lines *l) {
  int64_t groups = (l->count + l->lanes - 1) / l->lanes;
  moth_parallel_for(groups, moth_cpu_grain(l->f.n * l->lanes * 4), run_groups, l);
  return l->no_memory ? moth_no_memory(0) : MOTH_OK;
}

/* One complex line in four steps; `matrix` has space for it. */
static MothStatus four_steps(const Lines *of, const Plan *p, int64_t in_at, int64_t out_at,
                             void *matrix) {
  int64_t n = p->p.n, n1 = p->n1, n2 = n / n1, item = p->is_double ? 16 : 8;
  Lines columns = {.f = of->f,
                   .k = of->k,
                   .lanes = of->lanes,
                   .ndim = 1,
                   .count = n2,
                   .turn = p->turn,
                   .pair = item};
  columns.f.kind = MOTH_FFT_C2C;
  columns.f.plan = &p->first->p;
  columns.f.n = n1;
  columns.f.in = (const char *)of->f.in + in_at * item;
  columns.f.out = matrix;
  columns.f.in_stride = of->f.in_stride * n2;
  columns.f.out_stride = n2;
  columns.f.turn_row = n2;
  columns.f.scale = 1;
  columns.size[0] = n2;
  columns.in[0] = of->f.in_stride;
  columns.out[0] = 1;
  MOTH_TRY(run_lines(&columns));
  Lines rows = {.f = of->f, .k = of->k, .lanes = of->lanes, .ndim = 1, .count = n1};
  rows.f.kind = MOTH_FFT_C2C;
  rows.f.plan = &p->then->p;
  rows.f.n = n2;
  rows.f.in = matrix;
  rows.f.out = (char *)of->f.out + out_at * item;
  rows.f.in_stride = 1;
  rows.f.out_stride = of->f.out_stride * n1;
  rows.size[0] = n1;
  rows.in[0] = n2;
  rows.out[0] = of->f.out_stride;
  return run_lines(&rows);
}

/* Transforms along dim; of real transforms the last one has dim. */
static MothStatus along(const MothTensor *in, MothTensor *out, int dim, int kind, double scale,
                        bool backward) {
  MothDType part = moth_dtype_real((MothDType)in->dtype);
  bool is_double = part == MOTH_FLOAT64;
  int64_t n = kind == MOTH_FFT_C2R ? out->shape[dim] : in->shape[dim];
  if (!out->numel)
    return MOTH_OK;
  Lines l = {.k = moth_cpu_kernels((int)part), .lanes = is_double ? 8 : 16};
  l.count = 1;
  for (int d = 0; d < in->ndim; d++)
    if (d != dim) {
      l.size[l.ndim] = in->shape[d];
      l.in[l.ndim] = in->stride[d];
      l.out[l.ndim++] = out->stride[d];
      l.count *= in->shape[d];
    }
  l.f = (MothFft){.kind = kind,
                  .backward = backward,
                  .n = n,
                  .in = in->data,
                  .out = out->data,
                  .in_stride = in->stride[dim],
                  .out_stride = out->stride[dim],
                  .scale = scale};
  bool halved = kind != MOTH_FFT_C2C && n % 2 == 0;
  int64_t length = halved ? n / 2 : n;
  bool dense = in->stride[dim] == 1 && out->stride[dim] == 1;
  bool few = l.count <= l.lanes / 4 && length >= 64;
  bool cut = (kind == MOTH_FFT_C2C || (halved && dense)) && (few || (dense && length >= LONG));
  Plan *p;
  MothFftPlan trial = {.n = length};
  bool first_half = kind == MOTH_FFT_R2C && !halved && cut_into_stages(&trial) > 1;
  MOTH_TRY(plan_for(length, is_double, cut, first_half, &p));
  l.f.plan = &p->p;
  MothStatus status = MOTH_OK;
  size_t bytes = (size_t)(2 * length + 2) * (is_double ? 16 : 8);
  char *matrix = NULL;
  if (!cut || p->n1 <= 1) {
    MOTH_GO(run_lines(&l));
    goto done;
  }
  matrix = moth_alloc(bytes);
  if (!matrix) {
    status = moth_no_memory(0);
    goto done;
  }
  int64_t item = is_double ? 16 : 8;
  char *pairs = matrix + length * item;
  for (int64_t i = 0; i < l.count && status == MOTH_OK; i++) {
    int64_t in_at, out_at;
    places(&l, i, &in_at, &out_at);
    if (kind == MOTH_FFT_C2C) {
      status = four_steps(&l, p, in_at, out_at, matrix);
      continue;
    }
    /* Pairs of real elements are complex ones. */
    Lines half = l;
    MothFft f = l.f;
    half.f.in_stride = half.f.out_stride = 1;
    half.f.scale = 1;
    half.f.backward = kind == MOTH_FFT_C2R;
    if (kind == MOTH_FFT_R2C) {
      half.f.in = (const char *)l.f.in + in_at * (item / 2);
      half.f.out = pairs;
      status = four_steps(&half, p, 0, 0, matrix);
      f.in = pairs;
      f.out = (char *)l.f.out + out_at * item;
      l.k->fft_halves(&f);
    } else {
      f.in = (const char *)l.f.in + in_at * item;
      f.out = pairs;
      l.k->fft_halves(&f);
      half.f.in = pairs;
      half.f.out = (char *)l.f.out + out_at * (item / 2);
      status = four_steps(&half, p, 0, 0, matrix);
    }
  }
done:
  moth_free(matrix, bytes);
  drop(p);
  return status;
}

/* --- ops -------------------------------------------------------------------------------------- */

MothStatus moth_cpu_native_fft_c2c(MothCall *c) {
  MOTH_UNPACK_NATIVE_FFT_C2C(c)
  MothTensor *out = c->results[0].u.t;
  if (!dim.n)
    moth_cpu_copy(out, self);
  for (uint32_t i = dim.n; i-- > 0;)
    MOTH_TRY(along(i == dim.n - 1 ? self : out, out, (int)dim.u.ints[i], MOTH_FFT_C2C,
                   i == 0 ? scale : 1, sign > 0));
  return MOTH_OK;
}

/* The other half of a real transform: at k the conjugate of what is at -k, in each dimension that was transformed. */
typedef struct Mirror {
  const MothTensor *t;
  int last; /* the dimension of which half is there */
  bool over[MOTH_MAX_DIMS];
} Mirror;

static void mirror_range(void *ctx, int64_t begin, int64_t end) {
  const Mirror *m = ctx;
  const MothTensor *t = m->t;
  int64_t n = t->shape[m->last], step = t->stride[m->last];
  for (int64_t i = begin; i < end; i++) {
    int64_t line = i, to = 0, from = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
      if (d == m->last)
        continue;
      int64_t size = t->shape[d], at = line % size;
      line /= size;
      to += at * t->stride[d];
      from += (m->over[d] && at ? size - at : at) * t->stride[d];
    }
    if (t->dtype == MOTH_COMPLEX128) {
      MothComplex128 *x = (void *)t->data;
      for (int64_t k = n / 2 + 1; k < n; k++) {
        MothComplex128 z = x[from + (n - k) * step];
        x[to + k * step] = (MothComplex128){z.re, -z.im};
      }
      continue;
    }
    float *x = (void *)t->data;
    for (int64_t k = n / 2 + 1; k < n; k++) {
      const float *z = x + 2 * (from + (n - k) * step);
      float *y = x + 2 * (to + k * step);
      y[0] = z[0];
      y[1] = -z[1];
    }
  }
}

MothStatus moth_cpu_native_fft_r2c(MothCall *c) {
  MOTH_UNPACK_NATIVE_FFT_R2C(c)
  MothTensor *out = c->results[0].u.t, *half = NULL;
  Mirror m = {.t = out, .last = (int)dim.u.ints[dim.n - 1]};
  int64_t n = out->shape[m.last], shape[MOTH_MAX_DIMS];
  MothStatus status = MOTH_OK;
  memcpy(shape, out->shape, sizeof(int64_t) * out->ndim);
  shape[m.last] = self->shape[m.last] / 2 + 1;
  MOTH_TRY(moth_tensor_view(out, out->ndim, shape, out->stride, out->offset, &half));
  for (uint32_t i = dim.n; i-- > 0;) {
    bool first = i == dim.n - 1;
    m.over[dim.u.ints[i]] = true;
    MOTH_GO(along(first ? self : half, half, (int)dim.u.ints[i],
                  first ? MOTH_FFT_R2C : MOTH_FFT_C2C, i == 0 ? scale : 1, false));
  }
  if (!onesided && out->numel)
    moth_parallel_for(out->numel / n, moth_cpu_grain(n), mirror_range, &m);
done:
  moth_tensor_release(half);
  return status;
}

MothStatus moth_cpu_native_fft_c2r(MothCall *c) {
  MOTH_UNPACK_NATIVE_FFT_C2R(c)
  MothTensor *out = c->results[0].u.t, *between = NULL;
  MothStatus status = MOTH_OK;
  if (dim.n > 1)
    MOTH_GO(
        moth_tensor_new(self->ndim, self->shape, (MothDType)self->dtype, self->device, &between));
  for (uint32_t i = 0; i + 1 < dim.n; i++)
    MOTH_GO(along(i == 0 ? self : between, between, (int)dim.u.ints[i], MOTH_FFT_C2C, 1, true));
  MOTH_GO(
      along(between ? between : self, out, (int)dim.u.ints[dim.n - 1], MOTH_FFT_C2R, scale, true));
done:
  moth_tensor_release(between);
  return status;
}
