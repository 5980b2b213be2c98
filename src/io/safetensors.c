/* How the reader keeps its limits: all strings go to one arena as large as the header; entries and pairs
 * grow as they are read, so that memory is a small multiple of the header, which is no larger than the
 * file. Sizes are checked against the file before they are used. */
#include "io/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "io/elements.h"
#include "io/json.h"

enum { PREFIX = 8 };

/* The dtypes that moth has, by the names of the format. */
static const char *const dtype_names[MOTH_NDTYPES] = {
    [MOTH_FLOAT32] = "F32",   [MOTH_FLOAT64] = "F64",   [MOTH_FLOAT16] = "F16",
    [MOTH_BFLOAT16] = "BF16", [MOTH_INT8] = "I8",       [MOTH_UINT8] = "U8",
    [MOTH_INT16] = "I16",     [MOTH_INT32] = "I32",     [MOTH_INT64] = "I64",
    [MOTH_BOOL] = "BOOL",     [MOTH_UINT16] = "U16",    [MOTH_UINT32] = "U32",
    [MOTH_UINT64] = "U64",    [MOTH_COMPLEX64] = "C64", /* complex128: none */
};

static MothStatus no_memory(void) {
  return moth_fail(MOTH_ERR_MEMORY, "safetensors: no memory for the header");
}

/* Grows an array for one more item. */
static MothStatus grow(void *array_pointer, int64_t count, int64_t *capacity, size_t item) {
  void *array;
  if (count < *capacity)
    return MOTH_OK;
  int64_t larger = *capacity + *capacity / 2 + 16;
  memcpy(&array, array_pointer, sizeof array);
  array = realloc(array, (size_t)larger * item);
  if (!array)
    return no_memory();
  memcpy(array_pointer, &array, sizeof array);
  *capacity = larger;
  return MOTH_OK;
}

static int compare_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Refuses a text that occurs twice. The texts are `stride` bytes apart in an array of structs. */
static MothStatus check_unique(const void *first, int64_t count, size_t stride, const char *what) {
  if (count < 2)
    return MOTH_OK;
  const char **names = malloc((size_t)count * sizeof *names);
  if (!names)
    return no_memory();
  for (int64_t i = 0; i < count; i++)
    memcpy(&names[i], (const char *)first + (size_t)i * stride, sizeof *names);
  qsort(names, (size_t)count, sizeof *names, compare_text);
  MothStatus status = MOTH_OK;
  for (int64_t i = 1; i < count && status == MOTH_OK; i++)
    if (strcmp(names[i - 1], names[i]) == 0)
      status = moth_fail(MOTH_ERR_VALUE, "safetensors: %s \"%.200s\" occurs twice", what, names[i]);
  free(names);
  return status;
}

static MothStatus count_bytes(const MothSafetensorsEntry *entry, int64_t *out) {
  if (moth_elements_count(entry->dtype, entry->ndim, entry->shape, out))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "safetensors: the shape of \"%.200s\" is too large",
                   entry->name);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

static MothStatus check_no_nul(MothText text, const char *what) {
  if (strlen(text.text) == text.n)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "safetensors: %s contains a NUL character", what);
}

static MothStatus read_metadata(MothJson *json, MothSafetensors *file) {
  int64_t capacity = 0;
  bool more;
  MOTH_TRY(moth_json_begin(json, '{'));
  for (;;) {
    MothText key, value;
    MOTH_TRY(moth_json_next(json, &more));
    if (!more)
      break;
    MOTH_TRY(moth_json_key(json, &key));
    MOTH_TRY(check_no_nul(key, "a key of __metadata__"));
    MOTH_TRY(moth_json_string(json, &value));
    MOTH_TRY(check_no_nul(value, "a value of __metadata__"));
    MOTH_TRY(grow(&file->metadata, file->metadata_count, &capacity, sizeof *file->metadata));
    file->metadata[file->metadata_count++] = (MothSafetensorsPair){key.text, value.text};
  }
  return check_unique(file->metadata, file->metadata_count, sizeof *file->metadata, "metadata key");
}

static MothStatus read_size(MothJson *json, const char *name, const char *what, int64_t *out) {
  MOTH_TRY(moth_json_integer(json, out));
  if (*out >= 0)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "safetensors: \"%.200s\": negative %s %" PRId64, name, what,
                   *out);
}

static MothStatus read_dtype(MothJson *json, MothSafetensorsEntry *entry) {
  MothText text;
  MOTH_TRY(moth_json_string(json, &text));
  for (int d = 0; d < MOTH_NDTYPES; d++)
    if (dtype_names[d] && strcmp(text.text, dtype_names[d]) == 0 && strlen(text.text) == text.n) {
      entry->dtype = (MothDType)d;
      return MOTH_OK;
    }
  entry->small = moth_small_float(text.text, text.n);
  entry->dtype = MOTH_UINT8;
  if (entry->small)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE,
                   "safetensors: \"%.200s\" has dtype %.40s, which moth does not have", entry->name,
                   text.text);
}

static MothStatus read_shape(MothJson *json, MothSafetensorsEntry *entry) {
  bool more;
  MOTH_TRY(moth_json_begin(json, '['));
  for (;;) {
    MOTH_TRY(moth_json_next(json, &more));
    if (!more)
      return MOTH_OK;
    if (entry->ndim == MOTH_MAX_DIMS)
      return moth_fail(MOTH_ERR_VALUE, "safetensors: \"%.200s\" has more than %d dimensions",
                       entry->name, MOTH_MAX_DIMS);
    MOTH_TRY(read_size(json, entry->name, "size", &entry->shape[entry->ndim]));
    entry->ndim++;
  }
}

static MothStatus read_offsets(MothJson *json, MothSafetensorsEntry *entry) {
  int64_t *const places[] = {&entry->begin, &entry->end};
  int count = 0;
  bool more;
  MOTH_TRY(moth_json_begin(json, '['));
  for (;;) {
    MOTH_TRY(moth_json_next(json, &more));
    if (more != (count < 2))
      return moth_fail(MOTH_ERR_VALUE,
                       "safetensors: data_offsets of \"%.200s\" must be two numbers", entry->name);
    if (!more)
      return MOTH_OK;
    MOTH_TRY(read_size(json, entry->name, "offset", places[count++]));
  }
}

static MothStatus read_entry(MothJson *json, MothSafetensorsEntry *entry) {
  static const char *const fields[] = {"dtype", "shape", "data_offsets"};
  unsigned seen = 0;
  bool more;
  MOTH_TRY(moth_json_begin(json, '{'));
  for (;;) {
    MothText key;
    MOTH_TRY(moth_json_next(json, &more));
    if (!more)
      break;
    MOTH_TRY(moth_json_key(json, &key));
    int field = 0;
    while (field < 3 && (strcmp(key.text, fields[field]) != 0 || strlen(key.text) != key.n))
      field++;
    if (field == 3 || (seen >> field & 1))
      return moth_fail(MOTH_ERR_VALUE, "safetensors: \"%.200s\" has %s field \"%.40s\"",
                       entry->name, field == 3 ? "an unknown" : "twice the", key.text);
    seen |= 1u << field;
    MOTH_TRY(field == 0   ? read_dtype(json, entry)
             : field == 1 ? read_shape(json, entry)
                          : read_offsets(json, entry));
  }
  for (int field = 0; field < 3; field++)
    if (!(seen >> field & 1))
      return moth_fail(MOTH_ERR_VALUE, "safetensors: \"%.200s\" has no %s", entry->name,
                       fields[field]);
  if (entry->small && entry->small->bits == 4) { /* the shape of the bytes, which hold two each */
    int64_t *last = entry->ndim ? &entry->shape[entry->ndim - 1] : NULL;
    if (!last || *last % 2)
      return moth_fail(MOTH_ERR_VALUE,
                       "safetensors: \"%.200s\" has rows of %s that are no whole bytes",
                       entry->name, entry->small->name);
    *last /= 2;
  }
  return MOTH_OK;
}

static MothStatus read_header(MothJson *json, MothSafetensors *file) {
  int64_t capacity = 0;
  bool more, has_metadata = false;
  MOTH_TRY(moth_json_begin(json, '{'));
  for (;;) {
    MothText name;
    MOTH_TRY(moth_json_next(json, &more));
    if (!more)
      break;
    MOTH_TRY(moth_json_key(json, &name));
    MOTH_TRY(check_no_nul(name, "a tensor's name"));
    if (strcmp(name.text, "__metadata__") == 0) {
      if (has_metadata)
        return moth_fail(MOTH_ERR_VALUE, "safetensors: __metadata__ occurs twice");
      has_metadata = true;
      MOTH_TRY(read_metadata(json, file));
      continue;
    }
    MOTH_TRY(grow(&file->entries, file->count, &capacity, sizeof *file->entries));
    MothSafetensorsEntry *entry = &file->entries[file->count];
    *entry = (MothSafetensorsEntry){.name = name.text};
    MOTH_TRY(read_entry(json, entry));
    file->count++;
  }
  MOTH_TRY(moth_json_end(json));
  return check_unique(file->entries, file->count, sizeof *file->entries, "tensor");
}

/* By offset; empty tensors at one offset stay in the header's order, which is that of the arena. */
static int compare_offset(const void *a, const void *b) {
  const MothSafetensorsEntry *x = a, *y = b;
  if (x->begin != y->begin)
    return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end)
    return x->end < y->end ? -1 : 1;
  return x->name < y->name ? -1 : x->name > y->name;
}

/* Checks sizes and offsets against each other and the size of the data; makes offsets absolute. */
static MothStatus check_offsets(MothSafetensors *file, int64_t data_begin, int64_t data_size) {
  int64_t expected = 0, size;
  if (file->count > 1)
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_offset);
  for (int64_t i = 0; i < file->count; i++) {
    MothSafetensorsEntry *entry = &file->entries[i];
    MOTH_TRY(count_bytes(entry, &size));
    if (entry->end < entry->begin || entry->end - entry->begin != size)
      return moth_fail(MOTH_ERR_VALUE,
                       "safetensors: \"%.200s\" needs %" PRId64
                       " bytes by its shape, but its offsets are [%" PRId64 ", %" PRId64 "]",
                       entry->name, size, entry->begin, entry->end);
    if (entry->begin != expected)
      return moth_fail(
          MOTH_ERR_VALUE,
          "safetensors: \"%.200s\" begins at %" PRId64 ", which leaves %s: expected %" PRId64,
          entry->name, entry->begin, entry->begin > expected ? "a hole" : "an overlap", expected);
    if (entry->end > data_size)
      return moth_fail(MOTH_ERR_VALUE,
                       "safetensors: \"%.200s\" ends at %" PRId64 ", but the file has %" PRId64
                       " bytes of data (truncated?)",
                       entry->name, entry->end, data_size);
    expected = entry->end;
    entry->begin += data_begin;
    entry->end += data_begin;
  }
  if (expected != data_size)
    return moth_fail(MOTH_ERR_VALUE, "safetensors: %" PRId64 " bytes follow the last tensor",
                     data_size - expected);
  return MOTH_OK;
}

MothStatus moth_safetensors_parse(const uint8_t *bytes, size_t n, MothSafetensors **out) {
  MothJson json;
  uint64_t header = 0;
  *out = NULL;
  if (n < PREFIX || n > PTRDIFF_MAX)
    return moth_fail(MOTH_ERR_VALUE, "safetensors: %zu bytes are no safetensors file", n);
  for (int i = 0; i < PREFIX; i++)
    header |= (uint64_t)bytes[i] << (8 * i);
  if (header > MOTH_SAFETENSORS_MAX_HEADER)
    return moth_fail(MOTH_ERR_VALUE,
                     "safetensors: a header of %" PRIu64 " bytes is too large (limit %d)", header,
                     MOTH_SAFETENSORS_MAX_HEADER);
  if (header > n - PREFIX)
    return moth_fail(MOTH_ERR_VALUE,
                     "safetensors: the header has %" PRIu64
                     " bytes, but the file only %zu (truncated?)",
                     header, n);
  if (header == 0 || bytes[PREFIX] != '{')
    return moth_fail(MOTH_ERR_VALUE, "safetensors: the header does not begin with '{'");

  MothStatus status = MOTH_OK;
  MothSafetensors *file = calloc(1, sizeof *file);
  if (file)
    file->arena = malloc((size_t)header);
  if (!file || !file->arena) {
    status = no_memory();
    goto done;
  }
  moth_json_init(&json, bytes + PREFIX, (size_t)header, file->arena);
  MOTH_GO(read_header(&json, file));
  MOTH_GO(check_offsets(file, (int64_t)header + PREFIX, (int64_t)(n - PREFIX - header)));
  *out = file;
  return MOTH_OK;
done:
  moth_safetensors_free(file);
  return status;
}

void moth_safetensors_free(MothSafetensors *file) {
  if (!file)
    return;
  free(file->entries);
  free(file->metadata);
  free(file->arena);
  free(file);
}

/* ---- writing ----------------------------------------------------------------------------------
 */

/* The header is made twice by the same code: first only counted, for its size. */
typedef struct Writer {
  char *at; /* NULL: only count */
  size_t n;
} Writer;

static void write_text(Writer *w, const char *text) {
  size_t n = strlen(text);
  if (w->at)
    w->at = mempcpy(w->at, text, n);
  w->n += n;
}

static void write_quoted(Writer *w, const char *text) {
  size_t n = strlen(text);
  if (w->at)
    w->at = moth_json_quote(w->at, text, n);
  w->n += moth_json_quoted_size(text, n);
}

static void write_integer(Writer *w, int64_t value) {
  char text[24];
  snprintf(text, sizeof text, "%" PRId64, value);
  write_text(w, text);
}

static void write_header(Writer *w, const MothSafetensorsEntry *entries, int64_t count,
                         const MothSafetensorsPair *metadata, int64_t metadata_count) {
  const char *comma = "";
  write_text(w, "{");
  if (metadata_count > 0) {
    write_text(w, "\"__metadata__\":{");
    for (int64_t i = 0; i < metadata_count; i++) {
      write_text(w, i ? "," : "");
      write_quoted(w, metadata[i].key);
      write_text(w, ":");
      write_quoted(w, metadata[i].value);
    }
    write_text(w, "}");
    comma = ",";
  }
  for (int64_t i = 0; i < count; i++, comma = ",") {
    const MothSafetensorsEntry *entry = &entries[i];
    write_text(w, comma);
    write_quoted(w, entry->name);
    write_text(w, ":{\"dtype\":");
    write_quoted(w, dtype_names[entry->dtype]);
    write_text(w, ",\"shape\":[");
    for (int d = 0; d < entry->ndim; d++) {
      write_text(w, d ? "," : "");
      write_integer(w, entry->shape[d]);
    }
    write_text(w, "],\"data_offsets\":[");
    write_integer(w, entry->begin);
    write_text(w, ",");
    write_integer(w, entry->end);
    write_text(w, "]}");
  }
  write_text(w, "}");
}

static MothStatus check_text(const char *text, const char *what) {
  if (text && moth_utf8_is_valid(text, strlen(text)))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "safetensors: %s is not valid UTF-8", what);
}

/* Checks an entry that is to be written and gives it the bytes from *end on. */
static MothStatus place_entry(MothSafetensorsEntry *entry, int64_t *end) {
  int64_t size;
  MOTH_TRY(check_text(entry->name, "a tensor's name"));
  if (strcmp(entry->name, "__metadata__") == 0)
    return moth_fail(MOTH_ERR_VALUE, "safetensors: a tensor cannot be named __metadata__");
  if ((unsigned)entry->dtype >= MOTH_NDTYPES || entry->ndim < 0 || entry->ndim > MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE,
                     "safetensors: \"%.200s\" has an invalid dtype or number of dimensions",
                     entry->name);
  if (!dtype_names[entry->dtype])
    return moth_fail(MOTH_ERR_VALUE,
                     "safetensors: \"%.200s\" is %s, which the format does not have; save "
                     "moth.view_as_real(x)",
                     entry->name, moth_dtype_name(entry->dtype));
  for (int d = 0; d < entry->ndim; d++)
    if (entry->shape[d] < 0)
      return moth_fail(MOTH_ERR_VALUE, "safetensors: \"%.200s\" has a negative size", entry->name);
  MOTH_TRY(count_bytes(entry, &size));
  entry->begin = *end;
  if (__builtin_add_overflow(*end, size, end) ||
      *end > PTRDIFF_MAX - 2 * MOTH_SAFETENSORS_MAX_HEADER)
    return moth_fail(MOTH_ERR_VALUE, "safetensors: the tensors are too large for one file");
  entry->end = *end;
  return MOTH_OK;
}

MothStatus moth_safetensors_header(MothSafetensorsEntry *entries, int64_t count,
                                   const MothSafetensorsPair *metadata, int64_t metadata_count,
                                   uint8_t **out, size_t *out_n) {
  int64_t end = 0;
  *out = NULL;
  *out_n = 0;
  if (count < 0 || metadata_count < 0 || (count > 0 && !entries) ||
      (metadata_count > 0 && !metadata))
    return moth_fail(MOTH_ERR_VALUE, "safetensors: a negative count, or no list");
  for (int64_t i = 0; i < metadata_count; i++) {
    MOTH_TRY(check_text(metadata[i].key, "a metadata key"));
    MOTH_TRY(check_text(metadata[i].value, "a metadata value"));
  }
  MOTH_TRY(check_unique(metadata, metadata_count, sizeof *metadata, "metadata key"));
  for (int64_t i = 0; i < count; i++)
    MOTH_TRY(place_entry(&entries[i], &end));
  MOTH_TRY(check_unique(entries, count, sizeof *entries, "tensor"));

  Writer w = {0};
  write_header(&w, entries, count, metadata, metadata_count);
  size_t size = (w.n + 7) & ~(size_t)7;
  if (size > MOTH_SAFETENSORS_MAX_HEADER)
    return moth_fail(MOTH_ERR_VALUE, "safetensors: a header of %zu bytes is too large (limit %d)",
                     size, MOTH_SAFETENSORS_MAX_HEADER);
  uint8_t *header = malloc(PREFIX + size);
  if (!header)
    return no_memory();
  for (int i = 0; i < PREFIX; i++)
    header[i] = (uint8_t)(size >> (8 * i));
  memset(header + PREFIX, ' ', size);
  w = (Writer){.at = (char *)header + PREFIX};
  write_header(&w, entries, count, metadata, metadata_count);
  for (int64_t i = 0; i < count; i++) {
    entries[i].begin += (int64_t)size + PREFIX;
    entries[i].end += (int64_t)size + PREFIX;
  }
  *out = header;
  *out_n = PREFIX + size;
  return MOTH_OK;
}

void moth_safetensors_header_free(uint8_t *header) {
  free(header);
}
