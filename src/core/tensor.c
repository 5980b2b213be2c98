/* Tensors and storages: making, views, reference counts, descriptions.
 *
 * A fresh small tensor costs two blocks: its header, and one block that holds the storage's header
 * with the data behind it. Large data (and all data under MOTH_GUARD=1) has a block of its own. */
#include "core/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/history.h"
#include "core/memory.h"

enum { EMBED_MAX = 4096, STORAGE_HEADER = 64 };
_Static_assert(sizeof(MothStorage) <= STORAGE_HEADER, "storage header grew");

void (*moth_tensor_drop_grad)(MothTensor *t);
MothStatus (*moth_tensor_await)(MothTensor *t);
void (*moth_pending_drop)(void *ticket);
void (*moth_pending_drain)(void);
MothStatus (*moth_run_unrun)(const char *what);
_Thread_local uint32_t moth_unrun __attribute__((tls_model("initial-exec")));

MothStatus moth_shape_numel(int ndim, const int64_t *shape, int64_t itemsize, int64_t *numel) {
  if (ndim < 0 || ndim > MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "a tensor has 0 to %d dimensions, got %d", MOTH_MAX_DIMS,
                     ndim);
  int64_t n = 1;
  bool overflow = false, empty = false;
  for (int i = 0; i < ndim; i++) {
    if (shape[i] < 0) {
      char buf[256];
      return moth_fail(MOTH_ERR_VALUE, "sizes must not be negative, got %s",
                       moth_shape_format(ndim, shape, buf, sizeof buf));
    }
    empty |= shape[i] == 0;
    overflow |= __builtin_mul_overflow(n, shape[i] ? shape[i] : 1, &n);
  }
  int64_t bytes;
  if (overflow || __builtin_mul_overflow(n, itemsize, &bytes) || bytes > INT64_MAX / 2) {
    char buf[256];
    return moth_fail(MOTH_ERR_VALUE, "size %s needs more bytes than can be counted",
                     moth_shape_format(ndim, shape, buf, sizeof buf));
  }
  *numel = empty ? 0 : n;
  return MOTH_OK;
}

/* Shape, strides and number of elements of a row-major tensor of up to 2^31 bytes, in one pass; false: it is larger,
 * or no valid shape. */
static inline bool set_small(MothTensor *t, int ndim, const int64_t *shape, int64_t itemsize) {
  uint64_t n = 1, numel = 1, most = 0;
  for (int i = ndim - 1; i >= 0; i--) {
    uint64_t size = (uint64_t)shape[i];
    t->shape[i] = shape[i];
    t->stride[i] = (int64_t)n;
    most |= size | n; /* both below 2^31 so far: a product cannot overflow unnoticed */
    n *= size ? size : 1;
    numel *= size;
  }
  t->numel = (int64_t)numel;
  return (most | n | n * (uint64_t)itemsize) >> 31 == 0;
}

/* --- storage ---------------------------------------------------------------------------------- */

static MothStatus storage_new(size_t nbytes, MothDevice device, MothStorage **out) {
  bool embed = device.type == MOTH_CPU && nbytes <= EMBED_MAX && !moth_alloc_guarded();
  MothStorage *s = moth_alloc(STORAGE_HEADER + (embed ? nbytes : 0));
  if (!s)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: could not allocate %zu bytes", nbytes);
  memset(s, 0, sizeof *s);
  atomic_init(&s->refs, 1);
  s->nbytes = nbytes;
  s->device = device;
  s->embedded = embed;
  if (embed) {
    s->data = (char *)s + STORAGE_HEADER;
  } else {
    s->data = moth_memory(device.type)->alloc(device.index, nbytes);
    if (!s->data) {
      moth_free(s, STORAGE_HEADER);
      return MOTH_ERR_MEMORY;
    }
  }
  if (__builtin_expect(moth_alloc_watch != NULL, 0))
    moth_history_mark(embed ? (void *)s : s->data, (int64_t)nbytes);
  *out = s;
  return MOTH_OK;
}

/* Without memory behind it. */
static MothStatus fake_storage_new(size_t nbytes, MothDevice device, MothStorage **out) {
  MothStorage *s = moth_alloc(STORAGE_HEADER);
  if (!s)
    return moth_no_memory(STORAGE_HEADER);
  memset(s, 0, sizeof *s);
  atomic_init(&s->refs, 1);
  s->nbytes = nbytes;
  s->device = device;
  *out = s;
  return MOTH_OK;
}

/* --- released memory ------------------------------------------------------------------------- */

_Atomic int64_t moth_released_storages;

static void note_released(MothStorage *s, bool released, bool moved) {
  bool was = s->released || s->moved;
  s->released = released;
  s->moved = moved;
  if (was != (released || moved))
    atomic_fetch_add(&moth_released_storages, was ? -1 : 1);
}

/* Called before s is freed. */
static void take_up(MothStorage *s) {
  if (s->released && s->data && !s->embedded)
    moth_alloc_take_up(s->data, s->nbytes);
  note_released(s, false, false);
}

/* Host memory keeps its address: tensors know where their elements lie. On other devices it may get another one,
 * which the dispatcher sets in the tensors that it gets. */
static MothStatus release_memory(MothStorage *s) {
  if (s->released)
    return MOTH_OK;
  if (s->device.type == MOTH_CPU) {
    if (s->data && !s->embedded)
      moth_alloc_discard(s->data, s->nbytes);
    note_released(s, true, s->moved);
    return MOTH_OK;
  }
  if (s->data)
    moth_memory(s->device.type)->free(s->device.index, s->data, s->nbytes);
  s->data = NULL;
  note_released(s, true, true);
  return MOTH_OK;
}

static MothStatus allocate_again(MothStorage *s) {
  if (!s->released)
    return MOTH_OK;
  if (s->device.type == MOTH_CPU) {
    if (s->data && !s->embedded)
      moth_alloc_take_up(s->data, s->nbytes);
  } else {
    s->data = moth_memory(s->device.type)->alloc(s->device.index, s->nbytes);
    if (!s->data)
      return MOTH_ERR_MEMORY;
  }
  note_released(s, false, s->moved);
  return MOTH_OK;
}

int64_t moth_storage_nbytes(const MothTensor *t) {
  return t && !t->storage->released ? (int64_t)t->storage->nbytes : 0;
}

MothStatus moth_storage_resize(MothTensor *t, int64_t nbytes) {
  MOTH_TRY(moth_given("storage_resize", t));
  MothStorage *s = t->storage;
  if (s->foreign || t->keys & MOTH_KEY_FAKE)
    return moth_fail(MOTH_ERR_STATE, "storage_resize: the memory of %s cannot be released",
                     s->foreign ? "a tensor over foreign memory"
                                : "a fake tensor, which has none,");
  if (nbytes == 0) {
    moth_pending_drain();
    return release_memory(s);
  }
  if (nbytes == (int64_t)s->nbytes)
    return allocate_again(s);
  return moth_fail(MOTH_ERR_VALUE,
                   "storage_resize: a storage of %lld bytes can be released (0 bytes) and "
                   "allocated again (%lld bytes), got %lld",
                   (long long)s->nbytes, (long long)s->nbytes, (long long)nbytes);
}

MothStatus moth_tensor_check_memory(MothTensor *t) {
  char buf[256];
  if (t->keys & MOTH_KEY_FAKE || !t->numel)
    return MOTH_OK;
  if (t->storage->released)
    return moth_fail(MOTH_ERR_STATE,
                     "the storage of %s was released by resize_(0): resize it to its %lld bytes "
                     "and fill it before it is read",
                     moth_tensor_format(t, buf, sizeof buf), (long long)t->storage->nbytes);
  if (t->storage->moved)
    t->data = (char *)t->storage->data + t->offset * moth_itemsize(t);
  return MOTH_OK;
}

static void storage_release(MothStorage *s) {
  if (atomic_load_explicit(&s->refs, memory_order_acquire) != 1 &&
      atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
    return;
  if (__builtin_expect(s->released | s->moved, 0))
    take_up(s);
  if (__builtin_expect(s->pending != NULL, 0))
    moth_pending_drop(s->pending);
  if (s->foreign) {
    if (s->release)
      s->release(s->ctx);
  } else if (!s->embedded && s->data)
    moth_memory(s->device.type)->free(s->device.index, s->data, s->nbytes);
  moth_free(s, STORAGE_HEADER + (s->embedded ? s->nbytes : 0));
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* A header without storage; fields that every caller sets are not initialised. */
static MothTensor *header_new(void) {
  MothTensor *t = moth_alloc(sizeof *t);
  if (!t) {
    moth_no_memory(0);
    return NULL;
  }
  atomic_init(&t->refs, 1); /* a plain store: the tensor is not shared yet */
  t->offset = 0;
  t->version = NULL;
  t->base = NULL;
  t->grad = NULL;
  t->carried = NULL;
  t->number = 0;
  t->is_number = false;
  return t;
}

static MothStatus tensor_make(int ndim, const int64_t *shape, MothDType dtype, MothDevice device,
                              bool fake, MothTensor **out) {
  int64_t itemsize = moth_dtype_size(dtype);
  if ((unsigned)ndim > MOTH_MAX_DIMS)
    return moth_shape_numel(ndim, shape, itemsize, NULL);
  MothTensor *t = header_new();
  if (!t)
    return MOTH_ERR_MEMORY;
  fake |= device.type == MOTH_META;
  MothStatus status = MOTH_OK;
  if (!set_small(t, ndim, shape, itemsize)) {
    status = moth_shape_numel(ndim, shape, itemsize, &t->numel);
    if (status == MOTH_OK)
      moth_contiguous_strides(ndim, shape, t->stride);
  }
  size_t nbytes = (size_t)(t->numel * itemsize);
  if (status == MOTH_OK)
    status = fake ? fake_storage_new(nbytes, device, &t->storage)
                  : storage_new(nbytes, device, &t->storage);
  if (__builtin_expect(status != MOTH_OK, 0)) {
    moth_free(t, sizeof *t);
    return status;
  }
  t->keys = (1u << device.type) | (fake ? MOTH_KEY_FAKE : 0) |
            (moth_dtype_is_opt_in(dtype) ? MOTH_KEY_OPT_IN : 0);
  t->dtype = (uint8_t)dtype;
  t->device = device;
  t->ndim = (uint8_t)ndim;
  t->contiguous = true;
  t->data = t->storage->data;
  *out = t;
  return MOTH_OK;
}

/* Checks the arguments of public functions that make tensors. */
static MothStatus check_making(const char *what, int ndim, const int64_t *shape, MothDType dtype,
                               MothTensor **out) {
  MOTH_TRY(moth_given(what, out && (shape || ndim <= 0)));
  if ((unsigned)dtype >= MOTH_NDTYPES)
    return moth_fail(MOTH_ERR_TYPE, "%s: %u is no dtype", what, (unsigned)dtype);
  return MOTH_OK;
}

MothStatus moth_tensor_new(int ndim, const int64_t *shape, MothDType dtype, MothDevice device,
                           MothTensor **out) {
  MOTH_TRY(check_making("tensor_new", ndim, shape, dtype, out));
  if (__builtin_expect(device.type != MOTH_CPU, 0))
    MOTH_TRY(moth_device_check(device));
  return tensor_make(ndim, shape, dtype, device, false, out);
}

MothStatus moth_tensor_new_fake(int ndim, const int64_t *shape, MothDType dtype, MothDevice device,
                                MothTensor **out) {
  return tensor_make(ndim, shape, dtype, device, true, out);
}

MothStatus moth_tensor_fake_of(const MothTensor *t, MothTensor **out) {
  MOTH_TRY(tensor_make(t->ndim, t->shape, (MothDType)t->dtype, t->device, true, out));
  memcpy((*out)->stride, t->stride, sizeof(int64_t) * t->ndim);
  (*out)->offset = t->offset;
  (*out)->contiguous = t->contiguous;
  (*out)->storage->nbytes = t->storage->nbytes;
  return MOTH_OK;
}

MothStatus moth_tensor_from_ptr(void *data, int ndim, const int64_t *shape, MothDType dtype,
                                void (*release)(void *ctx), void *ctx, MothTensor **out) {
  MothTensor *t;
  MOTH_TRY(check_making("from_ptr", ndim, shape, dtype, out));
  MOTH_TRY(tensor_make(ndim, shape, dtype, (MothDevice){MOTH_CPU, 0}, true, &t));
  uintptr_t aligned = (uintptr_t)moth_dtype_size(moth_dtype_real(dtype));
  if (t->numel && (!data || (uintptr_t)data % aligned)) {
    moth_tensor_release(t);
    return moth_fail(MOTH_ERR_VALUE, "from_ptr: %s is no address of %s elements",
                     data ? "what is not aligned" : "NULL", moth_dtype_name(dtype));
  }
  t->keys = MOTH_KEY_CPU | (moth_dtype_is_opt_in(dtype) ? MOTH_KEY_OPT_IN : 0);
  t->data = t->storage->data = data;
  t->storage->foreign = true;
  t->storage->release = release;
  t->storage->ctx = ctx;
  *out = t;
  return MOTH_OK;
}

MothStatus moth_batch_unreadable(const MothTensor *t) {
  (void)t;
  return moth_fail(MOTH_ERR_STATE,
                   "the elements of a tensor inside vmap cannot be read: it stands for each of a "
                   "batch; return it from the function, or use where() instead of a condition");
}

void moth_tensor_carry(MothTensor *t, MothCarried *carried) {
  MothCarried *old = t->carried;
  t->keys = (t->keys & ~(old ? old->keys : 0)) | (carried ? carried->keys : 0);
  t->carried = carried;
  if (old && atomic_fetch_sub_explicit(&old->refs, 1, memory_order_acq_rel) == 1)
    old->release(old);
}

void moth_tensor_carry_as(MothTensor *t, const MothTensor *src) {
  if (!src->carried)
    return;
  atomic_fetch_add_explicit(&src->carried->refs, 1, memory_order_relaxed);
  moth_tensor_carry(t, src->carried);
}

void moth_tensor_retain(MothTensor *t) {
  if (!t)
    return;
  atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
}

/* Of lazy tensors, so that none is without one; deferred ones share another. Not counted, and never freed. */
static MothStorage lazy_storage = {.refs = 1};

void moth_tensor_release(MothTensor *t) {
  /* Bases are chained one deep, gradients through moth_tensor_drop_grad: no deep recursion here. */
  if (!t)
    return;
  if (atomic_load_explicit(&t->refs, memory_order_acquire) != 1 &&
      atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
    return;
  if (t->grad)
    moth_tensor_drop_grad(t);
  if (t->carried)
    moth_tensor_carry(t, NULL);
  if (t->storage != &lazy_storage)
    storage_release(t->storage);
  if (t->version && atomic_fetch_sub(&t->version->refs, 1) == 1)
    moth_free(t->version, sizeof *t->version);
  MothTensor *base = t->base;
  moth_free(t, sizeof *t);
  if (base)
    moth_tensor_release(base);
}

int moth_tensor_ndim(const MothTensor *t) {
  return t ? t->ndim : 0;
}
const int64_t *moth_tensor_shape(const MothTensor *t) {
  return t ? t->shape : NULL;
}
const int64_t *moth_tensor_stride(const MothTensor *t) {
  return t ? t->stride : NULL;
}
int64_t moth_tensor_offset(const MothTensor *t) {
  return t ? t->offset : 0;
}
int64_t moth_tensor_numel(const MothTensor *t) {
  return t ? t->numel : 0;
}
MothDType moth_tensor_dtype(const MothTensor *t) {
  return t ? (MothDType)t->dtype : MOTH_NDTYPES;
}
MothDevice moth_tensor_device(const MothTensor *t) {
  return t ? t->device : (MothDevice){MOTH_CPU, 0};
}
void *moth_tensor_data(const MothTensor *t) {
  return t && moth_settle("data") == MOTH_OK && moth_tensor_ready(t) == MOTH_OK ? t->data : NULL;
}
bool moth_tensor_is_contiguous(const MothTensor *t) {
  return t && t->contiguous;
}
bool moth_tensor_is_fake(const MothTensor *t) {
  return t && t->keys & MOTH_KEY_FAKE;
}
int64_t moth_tensor_version(const MothTensor *t) {
  return t && moth_settle("version") == MOTH_OK ? *moth_version_of((MothTensor *)t) : 0;
}

MothStatus moth_tensor_item(const MothTensor *t, MothValue *out) {
  char buf[256];
  MOTH_TRY(moth_given("item", t && out));
  MOTH_TRY(moth_settle("item"));
  if (t->numel != 1)
    return moth_fail(MOTH_ERR_VALUE, "item: a tensor with one element is needed, got %s",
                     moth_tensor_format(t, buf, sizeof buf));
  if (t->keys & MOTH_KEY_FAKE)
    return moth_fail(MOTH_ERR_STATE, "item: a fake tensor has no values, got %s",
                     moth_tensor_format(t, buf, sizeof buf));
  if (moth_released_storages)
    MOTH_TRY(moth_tensor_check_memory((MothTensor *)t));
  char element[8];
  MOTH_TRY(moth_tensor_ready(t));
  MOTH_TRY(moth_memory(t->device.type)
               ->to_host(t->device.index, element, t->data, (size_t)moth_itemsize(t)));
  *out = moth_dtype_load((MothDType)t->dtype, element);
  return MOTH_OK;
}

void moth_tensor_update_contiguous(MothTensor *t) {
  int64_t expected = 1;
  t->contiguous = true;
  if (t->numel == 0)
    return;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] != 1 && t->stride[i] != expected) {
      t->contiguous = false;
      return;
    }
    expected *= t->shape[i];
  }
}

/* Copies the references and geometry of src to a new header: storage, version, place. */
static MothTensor *share(MothTensor *src) {
  MothTensor *t = header_new();
  if (!t)
    return NULL;
  t->keys = src->keys & MOTH_KEYS_DATA;
  t->dtype = src->dtype;
  t->device = src->device;
  t->storage = src->storage;
  atomic_fetch_add_explicit(&t->storage->refs, 1, memory_order_relaxed);
  if (src->version) {
    t->version = src->version;
    atomic_fetch_add(&t->version->refs, 1);
  }
  return t;
}

MothStatus moth_tensor_view(MothTensor *src, int ndim, const int64_t *shape, const int64_t *stride,
                            int64_t offset, MothTensor **out) {
  return moth_tensor_view_as(src, (MothDType)src->dtype, ndim, shape, stride, offset, out);
}

MothStatus moth_tensor_view_as(MothTensor *src, MothDType dtype, int ndim, const int64_t *shape,
                               const int64_t *stride, int64_t offset, MothTensor **out) {
  int64_t numel = 0, itemsize = moth_dtype_size(dtype);
  MOTH_TRY(moth_shape_numel(ndim, shape, itemsize, &numel));
  int64_t lo = offset, hi = offset;
  bool bad = false;
  for (int i = 0; i < ndim && numel > 0; i++) {
    int64_t reach;
    bad |= __builtin_mul_overflow(stride[i], shape[i] - 1, &reach);
    bad |= __builtin_add_overflow(stride[i] < 0 ? lo : hi, reach, stride[i] < 0 ? &lo : &hi);
  }
  int64_t have = (int64_t)src->storage->nbytes / itemsize;
  if (bad || offset < 0 || (numel > 0 && (lo < 0 || hi >= have))) {
    char a[256], b[256];
    return moth_fail(MOTH_ERR_INDEX,
                     "size %s, stride %s, offset %lld reach outside the storage of %lld elements",
                     moth_shape_format(ndim, shape, a, sizeof a),
                     moth_shape_format(ndim, stride, b, sizeof b), (long long)offset,
                     (long long)have);
  }
  MothTensor *t = share(src);
  if (!t)
    return MOTH_ERR_MEMORY;
  if (t->dtype != dtype) {
    t->dtype = (uint8_t)dtype;
    t->keys = (t->keys & ~(uint32_t)MOTH_KEY_OPT_IN) |
              (moth_dtype_is_opt_in(dtype) ? MOTH_KEY_OPT_IN : 0);
  }
  t->ndim = (uint8_t)ndim;
  t->numel = numel;
  t->offset = offset;
  t->data = t->storage->data ? (char *)t->storage->data + offset * itemsize : NULL;
  for (int i = 0; i < ndim; i++) {
    t->shape[i] = shape[i];
    t->stride[i] = stride[i];
  }
  moth_tensor_update_contiguous(t);
  t->base = src->base ? src->base : src;
  moth_tensor_retain(t->base);
  *out = t;
  return MOTH_OK;
}

MothStatus moth_tensor_alias(MothTensor *src, bool fresh_version, MothTensor **out) {
  MothTensor *t = share(src);
  if (!t)
    return MOTH_ERR_MEMORY;
  moth_tensor_carry_as(t, src);
  t->ndim = src->ndim;
  t->contiguous = src->contiguous;
  t->numel = src->numel;
  t->offset = src->offset;
  t->data = src->data;
  memcpy(t->shape, src->shape, sizeof(int64_t) * src->ndim);
  memcpy(t->stride, src->stride, sizeof(int64_t) * src->ndim);
  if (fresh_version) {
    MothVersion *v = moth_alloc(sizeof *v);
    if (!v) {
      moth_tensor_release(t);
      return moth_no_memory(sizeof *v);
    }
    if (t->version)
      atomic_fetch_sub(&t->version->refs, 1);
    atomic_init(&v->refs, 1);
    v->value = 0;
    t->version = v;
  }
  *out = t;
  return MOTH_OK;
}

MothStatus moth_tensor_new_lazy(MothDType dtype, MothDevice device, MothTensor **out) {
  MothTensor *t = header_new();
  if (!t)
    return MOTH_ERR_MEMORY;
  t->keys = (1u << device.type) | MOTH_KEY_FAKE | MOTH_KEY_LAZY |
            (moth_dtype_is_opt_in(dtype) ? MOTH_KEY_OPT_IN : 0);
  t->dtype = (uint8_t)dtype;
  t->device = device;
  t->data = NULL;
  t->storage = &lazy_storage;
  *out = t;
  return MOTH_OK;
}

void moth_tensor_become(MothTensor *t, MothTensor *made) {
  MothStorage *storage = t->storage;
  bool shared = atomic_load_explicit(&made->refs, memory_order_acquire) != 1;
  t->keys = made->keys;
  t->dtype = made->dtype;
  t->device = made->device;
  t->ndim = made->ndim;
  t->contiguous = made->contiguous;
  t->numel = made->numel;
  t->offset = made->offset;
  t->data = made->data;
  t->storage = made->storage;
  t->version = made->version;
  t->base = made->base;
  memcpy(t->shape, made->shape, sizeof(int64_t) * made->ndim);
  memcpy(t->stride, made->stride, sizeof(int64_t) * made->ndim);
  if (!shared) {
    t->grad = made->grad;
    t->carried = made->carried;
    moth_free(made, sizeof *made);
  } else {
    atomic_fetch_add_explicit(&t->storage->refs, 1, memory_order_relaxed);
    if (t->version)
      atomic_fetch_add(&t->version->refs, 1);
    moth_tensor_retain(t->base);
    moth_tensor_carry_as(t, made);
    t->keys &= ~(uint32_t)MOTH_KEY_AUTOGRAD; /* its history is the caller's to give */
    moth_tensor_release(made);
  }
  if (storage != &lazy_storage)
    storage_release(storage);
}

MothStatus moth_tensor_set_data(MothTensor *t, MothTensor *src) {
  if (t->base)
    return moth_fail(MOTH_ERR_STATE, "set_data: a view cannot be given other data");
  MothTensor *alias; /* its parts are swapped with t's, which it then releases */
  MOTH_TRY(moth_tensor_alias(src, true, &alias));
  MothStorage *storage = t->storage;
  MothVersion *version = t->version;
  alias->version->value = *moth_version_of(t);
  t->keys = (t->keys & ~(uint32_t)MOTH_KEYS_DATA) | (alias->keys & (uint32_t)MOTH_KEYS_DATA);
  t->dtype = alias->dtype;
  t->device = alias->device;
  t->ndim = alias->ndim;
  t->contiguous = alias->contiguous;
  t->numel = alias->numel;
  t->offset = alias->offset;
  t->data = alias->data;
  t->storage = alias->storage;
  t->version = alias->version;
  memcpy(t->shape, alias->shape, sizeof(int64_t) * alias->ndim);
  memcpy(t->stride, alias->stride, sizeof(int64_t) * alias->ndim);
  alias->storage = storage;
  alias->version = version;
  moth_tensor_release(alias);
  return MOTH_OK;
}

/* --- overlap ---------------------------------------------------------------------------------- */

bool moth_tensor_self_overlaps(const MothTensor *t) {
  if (t->contiguous || t->numel <= 1)
    return false;
  /* Sorted by stride, each dimension's stride must exceed the span of the smaller ones. Some unusual as_strided
   * tensors without overlap are refused, too. */
  int order[MOTH_MAX_DIMS], n = 0;
  for (int i = 0; i < t->ndim; i++)
    if (t->shape[i] > 1)
      order[n++] = i;
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && llabs(t->stride[order[j]]) < llabs(t->stride[order[j - 1]]); j--) {
      int x = order[j];
      order[j] = order[j - 1];
      order[j - 1] = x;
    }
  int64_t reach = 0;
  for (int i = 0; i < n; i++) {
    int64_t s = llabs(t->stride[order[i]]);
    if (s <= reach)
      return true;
    reach += s * (t->shape[order[i]] - 1);
  }
  return false;
}

int moth_tensor_overlap(const MothTensor *a, const MothTensor *b) {
  if (a->storage->data != b->storage->data || !a->storage->data || !a->numel || !b->numel)
    return 0;
  if (a->data == b->data && a->ndim == b->ndim && a->dtype == b->dtype) {
    bool same = true;
    for (int i = 0; i < a->ndim && same; i++)
      same = a->shape[i] == b->shape[i] && (a->stride[i] == b->stride[i] || a->shape[i] == 1);
    if (same)
      return 1;
  }
  const MothTensor *ts[2] = {a, b};
  int64_t lo[2], hi[2];
  for (int k = 0; k < 2; k++) {
    lo[k] = hi[k] = ts[k]->offset;
    for (int i = 0; i < ts[k]->ndim; i++) {
      int64_t reach = ts[k]->stride[i] * (ts[k]->shape[i] - 1);
      if (reach < 0)
        lo[k] += reach;
      else
        hi[k] += reach;
    }
  }
  for (int k = 0; k < 2 && a->dtype != b->dtype; k++) { /* in bytes */
    lo[k] *= moth_itemsize(ts[k]);
    hi[k] = (hi[k] + 1) * moth_itemsize(ts[k]) - 1;
  }
  if (hi[0] < lo[1] || hi[1] < lo[0])
    return 0;
  if (moth_itemsize(a) != moth_itemsize(b))
    return 2;
  /* Interleaved columns of one matrix: the same strides, offsets that differ by less than a stride. */
  if (a->ndim == b->ndim && a->ndim > 0) {
    int64_t shift = llabs(a->offset - b->offset);
    bool same = true;
    int64_t least = INT64_MAX;
    int inner = -1;
    for (int i = 0; i < a->ndim; i++) {
      same = same && a->stride[i] == b->stride[i];
      if (llabs(a->stride[i]) < least && (a->shape[i] > 1 || b->shape[i] > 1)) {
        least = llabs(a->stride[i]);
        inner = i;
      }
    }
    if (same && inner >= 0 && shift % least != 0)
      return 0;
    /* Disjoint along some dimension: blocks of rows or columns. */
    if (same && shift != 0) {
      int64_t rest = shift;
      for (;;) { /* divides the difference of offsets by the strides, the largest first */
        int best = -1;
        for (int i = 0; i < a->ndim; i++)
          if (a->stride[i] > 0 && a->stride[i] <= rest &&
              (best < 0 || a->stride[i] > a->stride[best]))
            best = i;
        if (best < 0)
          break;
        int64_t steps = rest / a->stride[best];
        const MothTensor *first = a->offset < b->offset ? a : b;
        if (steps >= first->shape[best])
          return 0;
        rest -= steps * a->stride[best];
        if (!rest)
          break;
      }
    }
  }
  return 2;
}

/* --- describing ------------------------------------------------------------------------------- */

const char *moth_shape_format(int ndim, const int64_t *shape, char *buf, size_t n) {
  size_t at = 0;
  buf[0] = 0;
  at += (size_t)snprintf(buf + at, n - at, "[");
  for (int i = 0; i < ndim && at + 24 < n; i++)
    at += (size_t)snprintf(buf + at, n - at, i ? ", %lld" : "%lld", (long long)shape[i]);
  if (at + 2 < n)
    snprintf(buf + at, n - at, "]");
  return buf;
}

const char *moth_tensor_format(const MothTensor *t, char *buf, size_t n) {
  char shape[200], device[32];
  snprintf(buf, n, "%s %s %s%s", moth_dtype_name((MothDType)t->dtype),
           moth_shape_format(t->ndim, t->shape, shape, sizeof shape),
           moth_device_format(t->device, device, sizeof device),
           (t->keys & (MOTH_KEY_FAKE | MOTH_KEY_LAZY | MOTH_KEY_META)) == MOTH_KEY_FAKE ? " (fake)"
                                                                                        : "");
  return buf;
}
