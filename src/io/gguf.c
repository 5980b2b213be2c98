#include "io/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "block_types.h"
#include "core/alloc.h"
#include "core/error.h"

enum { ALIGNMENT = 32, LEAST_PAIR = 13, LEAST_ENTRY = 24 };

static const char *const type_names[] = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0"};

const char *moth_gguf_type_name(uint32_t type) {
  return type < sizeof type_names / sizeof *type_names ? type_names[type] : NULL;
}

int64_t moth_gguf_block(uint32_t type, int64_t *elements) {
  static const struct {
    int64_t elements, bytes;
  } blocks[] = {
#define RECORD(NAME, name, number, elements, bytes, zero, leasts) [number] = {elements, bytes},
      MOTH_BLOCK_TYPES(RECORD)};
  bool known = type < sizeof blocks / sizeof *blocks && blocks[type].bytes;
  *elements = known ? blocks[type].elements : 0;
  return known ? blocks[type].bytes : 0;
}

/* ", Q4_0, Q4_1 …" */
#define NAME_OF(NAME, name, number, elements, bytes, zero, leasts) ", " #NAME
#define BLOCKS                                                     MOTH_BLOCK_TYPES(NAME_OF)

typedef struct Reader {
  const uint8_t *begin, *at, *end;
} Reader;

static size_t left(const Reader *r) {
  return (size_t)(r->end - r->at);
}

static MothStatus fail(const Reader *r, const char *what) {
  return moth_fail(MOTH_ERR_VALUE, "invalid GGUF file at byte %zu: %s", (size_t)(r->at - r->begin),
                   what);
}

static MothStatus take(Reader *r, void *to, size_t n) {
  if (left(r) < n)
    return fail(r, "the file ends here");
  memcpy(to, r->at, n);
  r->at += n;
  return MOTH_OK;
}

/* A length and as many bytes. */
static MothStatus take_text(Reader *r, const char **text, size_t *n) {
  uint64_t size = 0;
  MOTH_TRY(take(r, &size, sizeof size));
  if (size > left(r))
    return fail(r, "a text is longer than the file");
  *text = (const char *)r->at;
  *n = (size_t)size;
  r->at += size;
  return MOTH_OK;
}

/* Bytes of a value of fixed size; 0: it has none. */
static size_t size_of(MothGgufKind kind) {
  static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return (size_t)kind < sizeof sizes ? sizes[kind] : 0;
}

static MothStatus take_kind(Reader *r, MothGgufKind *kind) {
  uint32_t k = 0;
  MOTH_TRY(take(r, &k, sizeof k));
  if (k > MOTH_GGUF_F64)
    return fail(r, "a value of an unknown kind");
  *kind = (MothGgufKind)k;
  return MOTH_OK;
}

/* Goes past the elements of a pair, and checks them. */
static MothStatus skip_elements(Reader *r, const MothGgufPair *p) {
  if (p->kind == MOTH_GGUF_STRING) {
    const char *text;
    size_t n;
    for (int64_t i = 0; i < p->count; i++)
      MOTH_TRY(take_text(r, &text, &n));
    return MOTH_OK;
  }
  size_t size = size_of(p->kind);
  if (!size)
    return fail(r, "an array of arrays is not supported");
  if ((uint64_t)p->count > left(r) / size)
    return fail(r, "an array is longer than the file");
  r->at += (size_t)p->count * size;
  return MOTH_OK;
}

static MothStatus read_pair(Reader *r, MothGgufPair *p) {
  MOTH_TRY(take_text(r, &p->key, &p->key_n));
  MOTH_TRY(take_kind(r, &p->kind));
  p->count = 1;
  if (p->kind == MOTH_GGUF_ARRAY) {
    uint64_t count = 0;
    p->is_array = true;
    MOTH_TRY(take_kind(r, &p->kind));
    MOTH_TRY(take(r, &count, sizeof count));
    if (count > left(r))
      return fail(r, "an array is longer than the file");
    p->count = (int64_t)count;
  }
  p->at = r->at;
  return skip_elements(r, p);
}

bool moth_gguf_plain(uint32_t type, MothDType *dtype) {
  static const struct {
    MothGgufType type;
    MothDType dtype;
  } plain[] = {{MOTH_GGUF_TENSOR_F32, MOTH_FLOAT32},   {MOTH_GGUF_TENSOR_F16, MOTH_FLOAT16},
               {MOTH_GGUF_TENSOR_BF16, MOTH_BFLOAT16}, {MOTH_GGUF_TENSOR_F64, MOTH_FLOAT64},
               {MOTH_GGUF_TENSOR_I8, MOTH_INT8},       {MOTH_GGUF_TENSOR_I16, MOTH_INT16},
               {MOTH_GGUF_TENSOR_I32, MOTH_INT32},     {MOTH_GGUF_TENSOR_I64, MOTH_INT64}};
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
    if (plain[i].type == (MothGgufType)type) {
      *dtype = plain[i].dtype;
      return true;
    }
  return false;
}

/* Bytes of `unit` elements of a type; 0: it is not read. */
static int64_t bytes_of(uint32_t type, int64_t *unit) {
  MothDType dtype;
  *unit = 1;
  return moth_gguf_plain(type, &dtype) ? (int64_t)moth_dtype_size(dtype)
                                       : moth_gguf_block(type, unit);
}

/* begin and end are counted from the first tensor's place, which is not known yet. */
static MothStatus read_entry(Reader *r, MothGgufEntry *e) {
  uint32_t ndim = 0, type = 0;
  uint64_t dims[4] = {0}, offset = 0;
  MOTH_TRY(take_text(r, &e->name, &e->name_n));
  MOTH_TRY(take(r, &ndim, sizeof ndim));
  if (ndim > 4)
    return fail(r, "a tensor of more than 4 dimensions");
  MOTH_TRY(take(r, dims, ndim * sizeof *dims));
  MOTH_TRY(take(r, &type, sizeof type));
  MOTH_TRY(take(r, &offset, sizeof offset));
  int64_t unit, size = bytes_of(type, &unit), numel = 1;
  if (!size) {
    const char *name = moth_gguf_type_name(type);
    return moth_fail(
        MOTH_ERR_VALUE,
        "GGUF: the tensor %.*s is of type %s (%u); F32, F16, BF16, F64, I8 to I64" BLOCKS
        " are supported\n"
        "HINT: take the model's file of one of these, or convert it by llama.cpp's "
        "llama-quantize",
        (int)(e->name_n < 200 ? e->name_n : 200), e->name, name ? name : "unknown", type);
  }
  e->type = (MothGgufType)type;
  e->ndim = (int)ndim;
  for (uint32_t i = 0; i < ndim; i++) {
    e->shape[ndim - 1 - i] = (int64_t)dims[i];
    if (dims[i] > INT64_MAX || __builtin_mul_overflow(numel, (int64_t)dims[i], &numel))
      return fail(r, "the size of a tensor overflows");
  }
  if (unit > 1 && (!ndim || dims[0] % (uint64_t)unit))
    return moth_fail(MOTH_ERR_VALUE,
                     "invalid GGUF file: rows of the tensor %.*s, of %llu elements, are no whole "
                     "blocks of %lld, as %s has them",
                     (int)(e->name_n < 200 ? e->name_n : 200), e->name, (unsigned long long)dims[0],
                     (long long)unit, moth_gguf_type_name(type));
  if (__builtin_mul_overflow(numel / unit, size, &numel) || offset > INT64_MAX ||
      __builtin_add_overflow((int64_t)offset, numel, &e->end))
    return fail(r, "the size of a tensor overflows");
  e->begin = (int64_t)offset;
  return MOTH_OK;
}

static MothStatus alignment_of(const MothGguf *f, const Reader *r, uint64_t *out) {
  static const char key[] = "general.alignment";
  *out = ALIGNMENT;
  for (int64_t i = 0; i < f->pair_count; i++) {
    const MothGgufPair *p = &f->pairs[i];
    if (p->key_n != sizeof key - 1 || memcmp(p->key, key, p->key_n) != 0)
      continue;
    uint32_t value = 0;
    if (p->is_array || p->kind != MOTH_GGUF_U32)
      return fail(r, "general.alignment is no u32");
    memcpy(&value, p->at, sizeof value);
    if (value == 0 || value & (value - 1) || value > 1 << 20)
      return fail(r, "general.alignment is no power of 2");
    *out = value;
  }
  return MOTH_OK;
}

static MothStatus place_tensors(MothGguf *f, Reader *r) {
  uint64_t alignment, at = (uint64_t)(r->at - r->begin);
  int64_t n = r->end - r->begin;
  MOTH_TRY(alignment_of(f, r, &alignment));
  int64_t first = (int64_t)((at + alignment - 1) / alignment * alignment);
  for (int64_t i = 0; i < f->count; i++) {
    MothGgufEntry *e = &f->entries[i];
    if ((uint64_t)e->begin % alignment)
      return fail(r, "a tensor is not aligned");
    if (first > n || e->end > n - first)
      return moth_fail(
          MOTH_ERR_VALUE, "invalid GGUF file: the tensor %.*s ends at byte %lld of %lld",
          (int)(e->name_n < 200 ? e->name_n : 200), e->name,
          (long long)(e->end < INT64_MAX - first ? e->end + first : INT64_MAX), (long long)n);
    e->begin += first;
    e->end += first;
  }
  return MOTH_OK;
}

static MothStatus read_header(MothGguf *f, Reader *r) {
  char magic[4];
  uint32_t version = 0;
  uint64_t tensors = 0, pairs = 0;
  MOTH_TRY(take(r, magic, sizeof magic));
  if (memcmp(magic, "GGUF", sizeof magic) != 0)
    return fail(r, "it does not begin with GGUF");
  MOTH_TRY(take(r, &version, sizeof version));
  if (version != 0 && (version & 0xffff) == 0)
    return moth_fail(MOTH_ERR_VALUE,
                     "GGUF: the file is big-endian; little-endian ones are supported\n"
                     "HINT: gguf-convert-endian of the gguf package converts it");
  if (version != 2 && version != 3)
    return moth_fail(MOTH_ERR_VALUE, "GGUF: version %u; versions 2 and 3 are supported", version);
  MOTH_TRY(take(r, &tensors, sizeof tensors));
  MOTH_TRY(take(r, &pairs, sizeof pairs));
  /* no more memory than the file's size can account for */
  if (tensors > left(r) / LEAST_ENTRY || pairs > left(r) / LEAST_PAIR)
    return fail(r, "more tensors or values than the file has bytes for");
  f->pairs = calloc((size_t)pairs + 1, sizeof *f->pairs);
  f->entries = calloc((size_t)tensors + 1, sizeof *f->entries);
  if (!f->pairs || !f->entries)
    return moth_no_memory(((size_t)pairs + 1) * sizeof *f->pairs +
                          ((size_t)tensors + 1) * sizeof *f->entries);
  for (; (uint64_t)f->pair_count < pairs; f->pair_count++)
    MOTH_TRY(read_pair(r, &f->pairs[f->pair_count]));
  for (; (uint64_t)f->count < tensors; f->count++)
    MOTH_TRY(read_entry(r, &f->entries[f->count]));
  return place_tensors(f, r);
}

MothStatus moth_gguf_parse(const uint8_t *bytes, size_t n, MothGguf **out) {
  Reader r = {bytes, bytes, bytes + n};
  *out = NULL;
  MothGguf *f = calloc(1, sizeof *f);
  if (!f)
    return moth_no_memory(sizeof *f);
  MothStatus s = read_header(f, &r);
  if (s != MOTH_OK) {
    moth_gguf_free(f);
    return s;
  }
  *out = f;
  return MOTH_OK;
}

void moth_gguf_free(MothGguf *file) {
  if (!file)
    return;
  free(file->pairs);
  free(file->entries);
  free(file);
}

MothGgufValue moth_gguf_next(MothGgufKind kind, const uint8_t **at) {
  MothGgufValue v = {0};
  union {
    uint8_t u8;
    int8_t i8;
    uint16_t u16;
    int16_t i16;
    uint32_t u32;
    int32_t i32;
    uint64_t u64;
    int64_t i64;
    float f32;
    double f64;
  } x = {.u64 = 0};
  if (kind == MOTH_GGUF_STRING) {
    uint64_t n;
    memcpy(&n, *at, sizeof n);
    v.n = (size_t)n;
    v.text = (const char *)*at + sizeof n;
    *at += sizeof n + n;
    return v;
  }
  memcpy(&x, *at, size_of(kind));
  *at += size_of(kind);
  switch (kind) {
  case MOTH_GGUF_I8:
    v.integer = x.i8;
    break;
  case MOTH_GGUF_U16:
    v.integer = x.u16;
    break;
  case MOTH_GGUF_I16:
    v.integer = x.i16;
    break;
  case MOTH_GGUF_U32:
    v.integer = x.u32;
    break;
  case MOTH_GGUF_I32:
    v.integer = x.i32;
    break;
  case MOTH_GGUF_U64:
  case MOTH_GGUF_I64:
    v.integer = x.i64;
    break;
  case MOTH_GGUF_F32:
    v.number = (double)x.f32;
    return v;
  case MOTH_GGUF_F64:
    v.number = x.f64;
    return v;
  case MOTH_GGUF_BOOL:
    v.integer = x.u8 != 0;
    break;
  default:
    v.integer = x.u8;
  }
  v.number = kind == MOTH_GGUF_U64 ? (double)x.u64 : (double)v.integer;
  return v;
}
