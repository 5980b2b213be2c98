/* The names allowed in PyTorch's files, and the tensors that they make. */
#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "io/json.h"
#include "io/pickle_machine.h"

/* Names that are known. Each dtype has two, too: torch.FloatStorage and torch.float32. */
typedef enum Global {
  ORDERED_DICT,
  COUNTER,
  REBUILD_TENSOR,
  REBUILD_TENSOR_V2,
  REBUILD_TENSOR_V3,
  REBUILD_PARAMETER,
  REBUILD_PARAMETER_WITH_STATE,
  REBUILD_FROM_TYPE,
  TENSOR_CLASS,
  PARAMETER_CLASS,
  BUFFER_CLASS,
  SIZE,
  DEVICE,
  LAYOUT,
  REBUILD_SPARSE,
  /* Of the index of a distributed checkpoint: */
  MEMORY_FORMAT,
  OLD_MEMORY_FORMAT,
  POSIX_PATH,
  LOCAL_PATH,
  WINDOWS_PATH,
  /* Of arrays, as CIFAR's files have them: */
  ARRAY,
  OLD_ARRAY, /* before NumPy 2 */
  ARRAY_CLASS,
  ARRAY_DTYPE,
  METADATA, /* records from here on */
  METADATA_INDEX,
  TENSOR_METADATA,
  BYTES_METADATA,
  CHUNK_METADATA,
  TENSOR_PROPERTIES,
  OLD_TENSOR_PROPERTIES,
  STORAGE_META,
  STORAGE_INFO,
  NGLOBALS
} Global;

#define DCP   "torch.distributed.checkpoint."
#define SHARD "torch.distributed._shard.sharded_tensor.metadata."

static const char *const globals[NGLOBALS] = {
    [ORDERED_DICT] = "collections.OrderedDict",
    [COUNTER] = "collections.Counter",
    [REBUILD_TENSOR] = "torch._utils._rebuild_tensor",
    [REBUILD_TENSOR_V2] = "torch._utils._rebuild_tensor_v2",
    [REBUILD_TENSOR_V3] = "torch._utils._rebuild_tensor_v3",
    [REBUILD_PARAMETER] = "torch._utils._rebuild_parameter",
    [REBUILD_PARAMETER_WITH_STATE] = "torch._utils._rebuild_parameter_with_state",
    [REBUILD_FROM_TYPE] = "torch._tensor._rebuild_from_type_v2",
    [TENSOR_CLASS] = "torch.Tensor",
    [PARAMETER_CLASS] = "torch.nn.parameter.Parameter",
    [BUFFER_CLASS] = "torch.nn.parameter.Buffer",
    [SIZE] = "torch.Size",
    [DEVICE] = "torch.device",
    [REBUILD_SPARSE] = "torch._utils._rebuild_sparse_tensor",
    [LAYOUT] = "torch.serialization._get_layout",
    [MEMORY_FORMAT] = DCP "metadata._MEM_FORMAT_ENCODING",
    [OLD_MEMORY_FORMAT] = SHARD "MEM_FORMAT_ENCODING", /* before PyTorch 2.3 */
    [POSIX_PATH] = "pathlib.PosixPath",
    [LOCAL_PATH] = "pathlib._local.PosixPath", /* Python 3.13 */
    [WINDOWS_PATH] = "pathlib.WindowsPath",
    [ARRAY] = "numpy._core.multiarray._reconstruct",
    [OLD_ARRAY] = "numpy.core.multiarray._reconstruct",
    [ARRAY_CLASS] = "numpy.ndarray",
    [ARRAY_DTYPE] = "numpy.dtype",
    [METADATA] = DCP "metadata.Metadata",
    [METADATA_INDEX] = DCP "metadata.MetadataIndex",
    [TENSOR_METADATA] = DCP "metadata.TensorStorageMetadata",
    [BYTES_METADATA] = DCP "metadata.BytesStorageMetadata",
    [CHUNK_METADATA] = DCP "metadata.ChunkStorageMetadata",
    [TENSOR_PROPERTIES] = DCP "metadata.TensorProperties",
    [OLD_TENSOR_PROPERTIES] = SHARD "TensorProperties",
    [STORAGE_META] = DCP "metadata.StorageMeta",
    [STORAGE_INFO] = DCP "filesystem._StorageInfo",
};

static const struct {
  const char *storage;
  MothDType dtype;
  const char *name;
} dtypes[] = {
    {"torch.FloatStorage", MOTH_FLOAT32, "torch.float32"},
    {"torch.DoubleStorage", MOTH_FLOAT64, "torch.float64"},
    {"torch.HalfStorage", MOTH_FLOAT16, "torch.float16"},
    {"torch.BFloat16Storage", MOTH_BFLOAT16, "torch.bfloat16"},
    {"torch.CharStorage", MOTH_INT8, "torch.int8"},
    {"torch.ByteStorage", MOTH_UINT8, "torch.uint8"},
    {"torch.ShortStorage", MOTH_INT16, "torch.int16"},
    {"torch.IntStorage", MOTH_INT32, "torch.int32"},
    {"torch.LongStorage", MOTH_INT64, "torch.int64"},
    {"torch.BoolStorage", MOTH_BOOL, "torch.bool"},
    {"torch.ComplexFloatStorage", MOTH_COMPLEX64, "torch.complex64"},
    {"torch.ComplexDoubleStorage", MOTH_COMPLEX128, "torch.complex128"},
    {NULL, MOTH_UINT16, "torch.uint16"},
    {NULL, MOTH_UINT32, "torch.uint32"},
    {NULL, MOTH_UINT64, "torch.uint64"},
    {"torch.storage.UntypedStorage", MOTH_NDTYPES, NULL}, /* bytes: a tensor gives the dtype */
};

/* Floats of 8 bits, and what safetensors calls them. */
static const struct {
  const char *name, *kind;
} small_floats[] = {
    {"torch.float8_e4m3fn", "F8_E4M3"},       {"torch.float8_e5m2", "F8_E5M2"},
    {"torch.float8_e4m3fnuz", "F8_E4M3FNUZ"}, {"torch.float8_e5m2fnuz", "F8_E5M2FNUZ"},
    {"torch.float8_e8m0fnu", "F8_E8M0"},
};

/* Names that PyTorch itself writes, but moth does not support. */
static const struct {
  const char *start, *why;
} refusals[] = {
    {"torch._utils._rebuild_qtensor", "a quantized tensor; save x.dequantize()"},
    {"torch._utils._rebuild_", "a kind of tensor that moth does not have"},
    {"torch.ComplexHalf", "complex numbers of 16 bits; save x.to(torch.complex64)"},
    {"torch.complex", "a dtype that moth does not have"},
    {"torch.Q", "a quantized tensor; save x.dequantize()"},
    {"torch.uint", "a dtype that moth does not have"},
    {"torch.float4", "two numbers in a byte; save them as numbers, of torch.bfloat16"},
    {"torch.bits", "a dtype that moth does not have"},
    {"numpy.", "a NumPy value; save .item() of it, or a tensor"},
    {"__builtin__.set", "a set; save a list"},
    {"builtins.set", "a set; save a list"},
};

enum {
  NAME_MAX_BYTES = 200,
  STORED_TUPLE = 5 /* ("storage", class, key, device, numel) */
};

/* ---- names ------------------------------------------------------------------------------------
 */

static bool starts(const char *name, const char *start) {
  return strncmp(name, start, strlen(start)) == 0;
}

MothStatus moth_pickle_push_name(MothPickleMachine *m, const char *module, size_t module_n,
                                 const char *name, size_t name_n) {
  char whole[NAME_MAX_BYTES + 2];
  if (module_n + name_n > NAME_MAX_BYTES || !moth_utf8_is_valid(module, module_n) ||
      !moth_utf8_is_valid(name, name_n))
    return moth_pickle_damaged(m, "a name that is too long or no text");
  memcpy(whole, module, module_n);
  whole[module_n] = '.';
  memcpy(whole + module_n + 1, name, name_n);
  whole[module_n + 1 + name_n] = 0;
  for (uint32_t i = 0; i < (m->records ? NGLOBALS : MEMORY_FORMAT); i++)
    if (strcmp(whole, globals[i]) == 0)
      return moth_pickle_push(m, (MothPickleValue){.kind = MOTH_PICKLE_GLOBAL, .n = i});
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    if (dtypes[i].storage && strcmp(whole, dtypes[i].storage) == 0)
      return moth_pickle_push(m,
                              (MothPickleValue){.kind = MOTH_PICKLE_CLASS, .n = dtypes[i].dtype});
    if (dtypes[i].name && strcmp(whole, dtypes[i].name) == 0)
      return moth_pickle_push(m,
                              (MothPickleValue){.kind = MOTH_PICKLE_DTYPE, .n = dtypes[i].dtype});
  }
  for (size_t i = 0; i < sizeof small_floats / sizeof *small_floats; i++)
    if (strcmp(whole, small_floats[i].name) == 0)
      return moth_pickle_push(m, (MothPickleValue){.kind = MOTH_PICKLE_SMALL, .n = (uint32_t)i});
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
    if (starts(whole, refusals[i].start))
      return moth_fail(MOTH_ERR_VALUE, "pickle: the file has %s (%s, at byte %td)", refusals[i].why,
                       whole, m->at - m->bytes);
  return moth_fail(MOTH_ERR_VALUE,
                   "pickle: the file asks for %s, at byte %td, which is not among the names of "
                   "tensors and plain values; nothing was run. HINT: in Python, save "
                   "model.state_dict() alone",
                   whole, m->at - m->bytes);
}

/* ---- tensors ----------------------------------------------------------------------------------
 */

/* The items of a tuple, at most `max` of them; their number, or -1. */
static int items_of(const MothPickleMachine *m, MothPickleValue tuple, MothPickleValue *items,
                    int max) {
  const MothPickle *p = m->out;
  if (tuple.kind != MOTH_PICKLE_TUPLE || p->containers[tuple.n].count > (uint32_t)max)
    return -1;
  int n = 0;
  for (uint32_t i = p->containers[tuple.n].first; i != MOTH_PICKLE_END; i = p->cells[i].next)
    items[n++] = p->cells[i].value;
  return n;
}

static bool is_empty(const MothPickleMachine *m, MothPickleValue v) {
  return v.kind == MOTH_PICKLE_NONE ||
         ((v.kind == MOTH_PICKLE_DICT || v.kind == MOTH_PICKLE_ORDERED) &&
          m->out->containers[v.n].count == 0);
}

MothStatus moth_pickle_load_storage(MothPickleMachine *m) {
  MothPickleValue id, item[STORED_TUPLE];
  MothPickle *p = m->out;
  if (m->records)
    return moth_pickle_damaged(m, "a tensor, which no index of a checkpoint has");
  MOTH_TRY(moth_pickle_pop(m, &id));
  if (items_of(m, id, item, STORED_TUPLE) != STORED_TUPLE || item[0].kind != MOTH_PICKLE_STRING ||
      item[0].n != 7 || memcmp(item[0].u.text, "storage", 7) != 0 ||
      item[1].kind != MOTH_PICKLE_CLASS || item[2].kind != MOTH_PICKLE_STRING ||
      item[3].kind != MOTH_PICKLE_STRING || item[4].kind != MOTH_PICKLE_INT || item[4].u.i < 0 ||
      item[4].u.i > INT64_MAX / 16 || item[2].n > NAME_MAX_BYTES ||
      memchr(item[2].u.text, 0, item[2].n))
    return moth_pickle_damaged(m, "something else than a storage outside of the pickle");
  MOTH_TRY(moth_pickle_reserve(m, &p->storages, p->storage_count, &m->storage_room, 1,
                               sizeof *p->storages));
  p->storages[p->storage_count] = (MothPickleStorage){.key = item[2].u.text,
                                                      .key_n = item[2].n,
                                                      .same = p->storage_count,
                                                      .dtype = (MothDType)item[1].n,
                                                      .numel = item[4].u.i};
  return moth_pickle_push(m,
                          (MothPickleValue){.kind = MOTH_PICKLE_STORAGE, .n = p->storage_count++});
}

/* Whether all elements of a tensor lie within the storage. PyTorch allows any offset for an empty tensor: it is
 * set to 0. */
static bool reaches_within(MothPickleTensor *t, const int64_t *dims, int64_t numel) {
  int64_t last = t->offset, count = 1;
  bool empty = false, sound = t->offset >= 0;
  for (int d = 0; d < t->ndim; d++) {
    int64_t size = dims[d], stride = dims[t->ndim + d], reach = 0;
    sound &= size >= 0 && stride >= 0 && !__builtin_mul_overflow(count, size ? size : 1, &count);
    sound &= !__builtin_mul_overflow(size ? size - 1 : 0, stride, &reach) &&
             !__builtin_add_overflow(last, reach, &last);
    empty |= size == 0;
  }
  if (empty)
    t->offset = 0;
  return sound && count <= INT64_MAX / 16 && (empty || last < numel);
}

/* A storage of bytes gets the dtype of its tensor. */
static MothStatus give_dtype(MothPickleMachine *m, MothPickleStorage *s, MothPickleValue value) {
  MothDType dtype = (MothDType)value.n;
  if (value.kind == MOTH_PICKLE_SMALL) {
    const char *kind = small_floats[value.n].kind;
    const MothSmallFloat *small = moth_small_float(kind, strlen(kind));
    if (s->dtype != MOTH_NDTYPES && s->small != small)
      return moth_pickle_damaged(m, "a tensor of another dtype than its storage");
    s->dtype = MOTH_BFLOAT16;
    s->small = small;
    return MOTH_OK;
  }
  if (s->dtype == MOTH_NDTYPES && s->numel % moth_dtype_size(dtype) == 0) {
    s->dtype = dtype;
    s->numel /= moth_dtype_size(dtype);
  }
  return s->dtype == dtype && !s->small
             ? MOTH_OK
             : moth_pickle_damaged(m, "a tensor of another dtype than its storage");
}

/* (storage, offset, sizes, strides, requires_grad, hooks, metadata); the old function has four, the newest one a dtype
 * before the metadata */
static MothStatus rebuild_tensor(MothPickleMachine *m, MothPickleValue arguments, bool typed) {
  MothPickleValue item[8], size[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  MothPickle *p = m->out;
  int n = items_of(m, arguments, item, typed ? 8 : 7);
  if (typed) {
    if (n < 7 || item[0].kind != MOTH_PICKLE_STORAGE ||
        (item[6].kind != MOTH_PICKLE_DTYPE && item[6].kind != MOTH_PICKLE_SMALL))
      return moth_pickle_damaged(m, "a tensor that is not described as PyTorch does");
    MOTH_TRY(give_dtype(m, &p->storages[item[0].n], item[6]));
    item[6] = item[7];
    n--;
  } else if (n > 0 && item[0].kind == MOTH_PICKLE_STORAGE &&
             p->storages[item[0].n].dtype == MOTH_NDTYPES) {
    return moth_pickle_damaged(m, "a tensor without a dtype");
  }
  if (n < 4 || n == 5 || item[0].kind != MOTH_PICKLE_STORAGE || item[1].kind != MOTH_PICKLE_INT ||
      item[2].kind != MOTH_PICKLE_TUPLE || item[3].kind != MOTH_PICKLE_TUPLE ||
      (n > 4 && item[4].kind != MOTH_PICKLE_BOOL))
    return moth_pickle_damaged(m, "a tensor that is not described as PyTorch does");
  if (n > 5 && !is_empty(m, item[5]))
    return moth_fail(MOTH_ERR_VALUE,
                     "pickle: a tensor with hooks at byte %td; save x.detach().clone()",
                     m->at - m->bytes);
  if (n > 6 && !is_empty(m, item[6]))
    return moth_fail(MOTH_ERR_VALUE,
                     "pickle: a tensor with a bit for its conjugate or negative at byte %td; save "
                     "x.resolve_conj().resolve_neg()",
                     m->at - m->bytes);
  int ndim = items_of(m, item[2], size, MOTH_MAX_DIMS);
  if (ndim < 0)
    return moth_fail(MOTH_ERR_VALUE, "pickle: a tensor of more than %d dimensions at byte %td",
                     MOTH_MAX_DIMS, m->at - m->bytes);
  if (items_of(m, item[3], stride, MOTH_MAX_DIMS) != ndim)
    return moth_pickle_damaged(m, "a tensor with other than one stride for each size");
  MOTH_TRY(
      moth_pickle_reserve(m, &p->tensors, p->tensor_count, &m->tensor_room, 1, sizeof *p->tensors));
  MOTH_TRY(moth_pickle_reserve(m, &p->dims, p->dim_count, &m->dim_room, 2 * (uint32_t)ndim,
                               sizeof *p->dims));
  MothPickleTensor t = {.storage = item[0].n,
                        .dims = p->dim_count,
                        .ndim = (uint8_t)ndim,
                        .requires_grad = n > 4 && item[4].u.i,
                        .offset = item[1].u.i};
  int64_t *dims = p->dims ? p->dims + p->dim_count : NULL;
  for (int d = 0; d < ndim; d++) {
    if (size[d].kind != MOTH_PICKLE_INT || stride[d].kind != MOTH_PICKLE_INT)
      return moth_pickle_damaged(m, "a size or stride that is no integer");
    dims[d] = size[d].u.i;
    dims[ndim + d] = stride[d].u.i;
  }
  if (!reaches_within(&t, dims, p->storages[t.storage].numel))
    return moth_fail(MOTH_ERR_VALUE,
                     "pickle: a tensor reaches beyond the %" PRId64
                     " elements of its storage, at byte %td",
                     p->storages[t.storage].numel, m->at - m->bytes);
  p->dim_count += 2 * (uint32_t)ndim;
  p->tensors[p->tensor_count] = t;
  return moth_pickle_push(m, (MothPickleValue){.kind = MOTH_PICKLE_TENSOR, .n = p->tensor_count++});
}

/* (tensor, requires_grad, hooks): the tensor, with requires_grad; attributes of Python behind them are dropped. */
static MothStatus rebuild_parameter(MothPickleMachine *m, MothPickleValue arguments, int count) {
  MothPickleValue item[4];
  MothPickle *p = m->out;
  if (items_of(m, arguments, item, 4) != count || item[0].kind != MOTH_PICKLE_TENSOR ||
      item[1].kind != MOTH_PICKLE_BOOL || !is_empty(m, item[2]))
    return moth_pickle_damaged(m, "a parameter that is not described as PyTorch does");
  MOTH_TRY(
      moth_pickle_reserve(m, &p->tensors, p->tensor_count, &m->tensor_room, 1, sizeof *p->tensors));
  MothPickleTensor t = p->tensors[item[0].n];
  t.requires_grad = item[1].u.i;
  p->tensors[p->tensor_count] = t;
  return moth_pickle_push(m, (MothPickleValue){.kind = MOTH_PICKLE_TENSOR, .n = p->tensor_count++});
}

/* (function, class, arguments, attributes): a tensor that has attributes of Python, which are dropped. A class of
 * its own is none of the known names. */
static MothStatus rebuild_from_type(MothPickleMachine *m, MothPickleValue arguments,
                                    MothPickleValue *callee, MothPickleValue *inner) {
  MothPickleValue item[4];
  if (items_of(m, arguments, item, 4) != 4 || item[0].kind != MOTH_PICKLE_GLOBAL ||
      item[0].n < REBUILD_TENSOR || item[0].n > REBUILD_PARAMETER_WITH_STATE ||
      item[1].kind != MOTH_PICKLE_GLOBAL || item[1].n < TENSOR_CLASS || item[1].n > BUFFER_CLASS ||
      item[2].kind != MOTH_PICKLE_TUPLE)
    return moth_pickle_damaged(m, "a tensor of a class of its own");
  *callee = item[0];
  *inner = item[2];
  return MOTH_OK;
}

/* (layout, parts): the parts behind the layout. */
static MothStatus rebuild_sparse(MothPickleMachine *m, MothPickleValue arguments) {
  MothPickleValue item[2], made;
  if (items_of(m, arguments, item, 2) != 2 || item[0].kind != MOTH_PICKLE_STRING ||
      item[1].kind != MOTH_PICKLE_TUPLE)
    return moth_pickle_damaged(m, "a sparse tensor that is not described as PyTorch does");
  MOTH_TRY(moth_pickle_new_container(m, MOTH_PICKLE_SPARSE, &made));
  MOTH_TRY(moth_pickle_push(m, item[0]));
  MOTH_TRY(moth_pickle_take(m, made.n, 1));
  MOTH_TRY(moth_pickle_copy_cells(m, made.n, item[1].n, false));
  return moth_pickle_push(m, made);
}

/* REDUCE: calls one of the known names. */
MothStatus moth_pickle_reduce(MothPickleMachine *m) {
  MothPickleValue arguments, callee, item[3], made;
  MOTH_TRY(moth_pickle_pop(m, &arguments));
  MOTH_TRY(moth_pickle_pop(m, &callee));
  if (callee.kind != MOTH_PICKLE_GLOBAL || arguments.kind != MOTH_PICKLE_TUPLE)
    return moth_pickle_damaged(m, "a call of something that cannot be called");
  if (callee.n == REBUILD_FROM_TYPE)
    MOTH_TRY(rebuild_from_type(m, arguments, &callee, &arguments));
  switch ((Global)callee.n) {
  case ORDERED_DICT:
    if (items_of(m, arguments, item, 0) != 0)
      return moth_pickle_damaged(m, "an OrderedDict that is not made empty");
    MOTH_TRY(moth_pickle_new_container(m, MOTH_PICKLE_ORDERED, &made));
    return moth_pickle_push(m, made);
  case COUNTER: /* a dictionary: PyTorch writes it for the milestones of MultiStepLR */
    if (items_of(m, arguments, item, 1) != 1 || item[0].kind != MOTH_PICKLE_DICT)
      return moth_pickle_damaged(m, "a Counter that is not made of a dictionary");
    return moth_pickle_push(m, item[0]);
  case REBUILD_TENSOR:
  case REBUILD_TENSOR_V2:
    return rebuild_tensor(m, arguments, false);
  case REBUILD_TENSOR_V3:
    return rebuild_tensor(m, arguments, true);
  case REBUILD_PARAMETER:
    return rebuild_parameter(m, arguments, 3);
  case REBUILD_PARAMETER_WITH_STATE:
    return rebuild_parameter(m, arguments, 4);
  case SIZE:
    if (items_of(m, arguments, item, 1) != 1 || item[0].kind != MOTH_PICKLE_TUPLE)
      return moth_pickle_damaged(m, "a torch.Size of something else than a tuple");
    return moth_pickle_push(m, item[0]);
  case DEVICE: {
    int n = items_of(m, arguments, item, 2);
    if (n < 1 || item[0].kind != MOTH_PICKLE_STRING)
      return moth_pickle_damaged(m, "a torch.device without a name");
    return moth_pickle_push(m, item[0]);
  }
  case REBUILD_SPARSE:
    return rebuild_sparse(m, arguments);
  case LAYOUT:
  case MEMORY_FORMAT:
  case OLD_MEMORY_FORMAT: /* only what it is called */
    if (items_of(m, arguments, item, 1) != 1 ||
        (item[0].kind != MOTH_PICKLE_STRING && item[0].kind != MOTH_PICKLE_INT))
      return moth_pickle_damaged(m, "a layout that is neither a name nor a number");
    return moth_pickle_push(m, item[0]);
  case POSIX_PATH:
  case LOCAL_PATH:
  case WINDOWS_PATH: /* its parts */
    return moth_pickle_push(m, arguments);
  case ARRAY:
  case OLD_ARRAY: /* a record, whose fields are the array's state */
    if (items_of(m, arguments, item, 3) != 3 || item[0].kind != MOTH_PICKLE_GLOBAL ||
        item[0].n != ARRAY_CLASS)
      return moth_pickle_damaged(m, "an array that is not described as NumPy does");
    MOTH_TRY(moth_pickle_new_container(m, MOTH_PICKLE_RECORD, &made));
    return moth_pickle_push(m, made);
  case ARRAY_DTYPE: /* its name */
    if (items_of(m, arguments, item, 3) < 1 || item[0].kind != MOTH_PICKLE_STRING)
      return moth_pickle_damaged(m, "a dtype without a name");
    return moth_pickle_push(m, item[0]);
  case ARRAY_CLASS:
  case REBUILD_FROM_TYPE:
  case TENSOR_CLASS:
  case PARAMETER_CLASS:
  case BUFFER_CLASS:
  case METADATA:
  case METADATA_INDEX:
  case TENSOR_METADATA:
  case BYTES_METADATA:
  case CHUNK_METADATA:
  case TENSOR_PROPERTIES:
  case OLD_TENSOR_PROPERTIES:
  case STORAGE_META:
  case STORAGE_INFO:
  case NGLOBALS:
    break;
  }
  return moth_pickle_damaged(m, "a call of something that cannot be called");
}

/* NEWOBJ: an object of a class that is known as a record. */
MothStatus moth_pickle_new_object(MothPickleMachine *m) {
  MothPickleValue arguments, class, made;
  if (!m->records) {
    m->at--;
    return moth_fail(MOTH_ERR_VALUE,
                     "pickle: operation 0x81 at byte %td, which no file of tensors needs; "
                     "nothing was run",
                     m->at - m->bytes);
  }
  MOTH_TRY(moth_pickle_pop(m, &arguments));
  MOTH_TRY(moth_pickle_pop(m, &class));
  if (class.kind != MOTH_PICKLE_GLOBAL || class.n < METADATA ||
      items_of(m, arguments, NULL, 0) != 0)
    return moth_pickle_damaged(m, "an object that no index of a checkpoint has");
  MOTH_TRY(moth_pickle_new_container(m, MOTH_PICKLE_RECORD, &made));
  return moth_pickle_push(m, made);
}

/* BUILD sets attributes: the fields of a record, once. PyTorch writes it, too, for the versions of a state
 * dict's modules, which a plain table cannot have: they are dropped. */
MothStatus moth_pickle_build(MothPickleMachine *m) {
  MothPickleValue state;
  MOTH_TRY(moth_pickle_pop(m, &state));
  const MothPickleValue *top = moth_pickle_top(m);
  if (top && top->kind == MOTH_PICKLE_RECORD) {
    if (m->out->containers[top->n].count > 0 ||
        (state.kind != MOTH_PICKLE_DICT && state.kind != MOTH_PICKLE_TUPLE))
      return moth_pickle_damaged(m, "an object whose fields are set twice, or are no dictionary");
    return moth_pickle_copy_cells(m, top->n, state.n, state.kind == MOTH_PICKLE_TUPLE);
  }
  if (top && top->kind == MOTH_PICKLE_STRING && m->records && state.kind == MOTH_PICKLE_TUPLE)
    return MOTH_OK; /* a dtype's: the order of its bytes */
  if (!top || top->kind != MOTH_PICKLE_ORDERED || state.kind != MOTH_PICKLE_DICT)
    return moth_pickle_damaged(m, "attributes for something else than an OrderedDict");
  return MOTH_OK;
}
