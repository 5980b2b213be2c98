/* masked_select, masked_scatter and nonzero: a bool mask in row-major order, cut into chunks. The
 * number of true elements in each chunk is counted first (in parallel); with the running sums as offsets the
 * chunks are then independent. */
#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/index.h"

enum { CHUNK = 8192 };

typedef struct Masked {
  const uint8_t *mask;
  int64_t numel, chunks, count;
  int64_t *before; /* true elements before each chunk */
  int64_t itemsize;
  char *dst;
  const char *src;
  const MothTensor *self; /* nonzero */
  int64_t base;
} Masked;

static void count_range(void *ctx, int64_t begin, int64_t end) {
  const Masked *m = ctx;
  for (int64_t k = begin; k < end; k++) {
    int64_t stop = moth_min64((k + 1) * CHUNK, m->numel), n = 0;
    for (int64_t i = k * CHUNK; i < stop; i++)
      n += m->mask[i] != 0;
    m->before[k] = n;
  }
}

static MothStatus masked_open(Masked *m, const MothTensor *mask) {
  m->mask = (const uint8_t *)mask->data;
  m->numel = mask->numel;
  m->chunks = (mask->numel + CHUNK - 1) / CHUNK;
  m->count = 0;
  m->before = moth_alloc((size_t)m->chunks * sizeof(int64_t));
  if (!m->before)
    return moth_no_memory(0);
  moth_parallel_for(m->chunks, 8, count_range, m);
  if (moth_stopped())
    return moth_interrupted();
  for (int64_t k = 0; k < m->chunks; k++) {
    int64_t n = m->before[k];
    m->before[k] = m->count;
    m->count += n;
  }
  return MOTH_OK;
}

static void masked_close(Masked *m) {
  if (m->before)
    moth_free(m->before, (size_t)m->chunks * sizeof(int64_t));
}

#define EACH(T, move)                                                                              \
  do {                                                                                             \
    T *d = (T *)m->dst;                                                                            \
    const T *s = (const T *)m->src;                                                                \
    for (; i < stop; i++)                                                                          \
      if (m->mask[i]) {                                                                            \
        move;                                                                                      \
        at++;                                                                                      \
      }                                                                                            \
  } while (0)

#define MASKED_RANGE(name, move)                                                                   \
  static void name(void *ctx, int64_t begin, int64_t end) {                                        \
    const Masked *m = ctx;                                                                         \
    if (begin == end)                                                                              \
      return;                                                                                      \
    int64_t i = begin * CHUNK, stop = moth_min64(end * CHUNK, m->numel), at = m->before[begin];    \
    switch (m->itemsize) {                                                                         \
    case 1:                                                                                        \
      EACH(uint8_t, move);                                                                         \
      break;                                                                                       \
    case 2:                                                                                        \
      EACH(uint16_t, move);                                                                        \
      break;                                                                                       \
    case 4:                                                                                        \
      EACH(uint32_t, move);                                                                        \
      break;                                                                                       \
    default:                                                                                       \
      EACH(uint64_t, move);                                                                        \
    }                                                                                              \
  }

MASKED_RANGE(select_range, d[at] = s[i])
MASKED_RANGE(scatter_range, d[i] = s[at])

MothStatus moth_cpu_masked_select(MothCall *c) {
  MOTH_UNPACK_MASKED_SELECT(c)
  if (mask->dtype != MOTH_BOOL)
    return moth_fail(MOTH_ERR_TYPE, "mask must be bool, got %s",
                     moth_dtype_name((MothDType)mask->dtype));
  int n;
  int64_t shape[MOTH_MAX_DIMS];
  MOTH_TRY(moth_broadcast(self->ndim, self->shape, mask->ndim, mask->shape, &n, shape));
  MothTensor *in = NULL, *where = NULL;
  Masked m = {.before = NULL};
  MothStatus status;
  MOTH_GO(moth_cpu_broadcast_as(self, (MothDType)self->dtype, n, shape, &in));
  MOTH_GO(moth_cpu_broadcast_as(mask, MOTH_BOOL, n, shape, &where));
  MOTH_GO(masked_open(&m, where));
  MOTH_GO(moth_result(c, 0, (MothDType)self->dtype, 1, &m.count));
  m.itemsize = moth_itemsize(in);
  m.src = in->data;
  m.dst = c->results[0].u.t->data;
  if (m.count)
    moth_parallel_for(m.chunks, 4, select_range, &m);
done:
  masked_close(&m);
  moth_tensor_release(where);
  moth_tensor_release(in);
  return status;
}

MothStatus moth_cpu_masked_scatter(MothCall *c) {
  MOTH_UNPACK_MASKED_SCATTER(c)
  MothTensor *out = c->results[0].u.t, *where = NULL, *from = NULL;
  Masked m = {.before = NULL};
  MothStatus status;
  MOTH_GO(moth_cpu_broadcast_as(mask, MOTH_BOOL, out->ndim, out->shape, &where));
  MOTH_GO(moth_cpu_contiguous(source, &from));
  MOTH_GO(masked_open(&m, where));
  if (m.count > from->numel) {
    status = moth_fail(MOTH_ERR_VALUE, "mask selects %lld elements, but source has only %lld",
                       (long long)m.count, (long long)from->numel);
    goto done;
  }
  moth_cpu_copy(out, self);
  m.itemsize = moth_itemsize(out);
  m.src = from->data;
  m.dst = out->data;
  if (m.count)
    moth_parallel_for(m.chunks, 4, scatter_range, &m);
done:
  masked_close(&m);
  moth_tensor_release(from);
  moth_tensor_release(where);
  return status;
}

static void nonzero_range(void *ctx, int64_t begin, int64_t end) {
  const Masked *m = ctx;
  int ndim = m->self->ndim;
  const int64_t *shape = m->self->shape;
  if (begin == end)
    return;
  int64_t index[MOTH_MAX_DIMS], rest = begin * CHUNK;
  for (int i = ndim - 1; i >= 0; i--) {
    index[i] = rest % shape[i];
    rest /= shape[i];
  }
  int64_t *out = (int64_t *)m->dst + m->before[begin] * ndim;
  int64_t stop = moth_min64(end * CHUNK, m->numel);
  for (int64_t i = begin * CHUNK; i < stop; i++) {
    if (m->mask[i])
      for (int k = 0; k < ndim; k++)
        *out++ = index[k] + m->base;
    for (int k = ndim - 1; k >= 0; k--) {
      if (++index[k] < shape[k])
        break;
      index[k] = 0;
    }
  }
}

MothStatus moth_cpu_nonzero(MothCall *c) {
  MOTH_UNPACK_NONZERO(c)
  MothTensor *mask = NULL;
  Masked m = {.self = self, .base = index_base};
  MothStatus status;
  int64_t shape[2];
  MOTH_GO(moth_cpu_contiguous_as(self, MOTH_BOOL, &mask));
  MOTH_GO(masked_open(&m, mask));
  shape[0] = m.count;
  shape[1] = self->ndim;
  MOTH_GO(moth_result(c, 0, MOTH_INT64, 2, shape));
  m.dst = c->results[0].u.t->data;
  if (m.count && self->ndim)
    moth_parallel_for(m.chunks, 4, nonzero_range, &m);
done:
  masked_close(&m);
  moth_tensor_release(mask);
  return status;
}
