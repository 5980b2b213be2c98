/* The GGUF format of llama.cpp, versions 2 and 3: a header of metadata (keys with values of fixed types), the names, types
 * and shapes of tensors, and their bytes, each at a multiple of the alignment.
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 *
 * Pure functions of bytes: no file, no Lua. */
#ifndef MOTH_IO_GGUF_H
#define MOTH_IO_GGUF_H
#include <stddef.h>

#include "moth.h"

typedef enum MothGgufKind {
  MOTH_GGUF_U8,
  MOTH_GGUF_I8,
  MOTH_GGUF_U16,
  MOTH_GGUF_I16,
  MOTH_GGUF_U32,
  MOTH_GGUF_I32,
  MOTH_GGUF_F32,
  MOTH_GGUF_BOOL,
  MOTH_GGUF_STRING,
  MOTH_GGUF_ARRAY,
  MOTH_GGUF_U64,
  MOTH_GGUF_I64,
  MOTH_GGUF_F64,
} MothGgufKind;

/* Types of tensors that are read and are plain elements; those in blocks are in block_types.h. */
typedef enum MothGgufType {
  MOTH_GGUF_TENSOR_F32 = 0,
  MOTH_GGUF_TENSOR_F16 = 1,
  MOTH_GGUF_TENSOR_I8 = 24,
  MOTH_GGUF_TENSOR_I16 = 25,
  MOTH_GGUF_TENSOR_I32 = 26,
  MOTH_GGUF_TENSOR_I64 = 27,
  MOTH_GGUF_TENSOR_F64 = 28,
  MOTH_GGUF_TENSOR_BF16 = 30,
} MothGgufType;

typedef struct MothGgufPair {
  const char *key; /* not terminated */
  size_t key_n;
  MothGgufKind kind; /* of the value, or of an array's elements, which are no arrays */
  bool is_array;
  int64_t count;     /* elements; 1 if it is no array */
  const uint8_t *at; /* the first of them, in the file's bytes: read them by moth_gguf_next */
} MothGgufPair;

typedef struct MothGgufEntry {
  const char *name; /* not terminated */
  size_t name_n;
  MothGgufType type;
  int ndim;
  int64_t shape[4];   /* as moth's: the last dimension is contiguous */
  int64_t begin, end; /* bytes [begin, end) of the file */
} MothGgufEntry;

typedef struct MothGguf {
  int64_t pair_count, count;
  MothGgufPair *pairs;
  MothGgufEntry *entries;
} MothGguf;

/* Reads the header of a whole file of n bytes and checks it against them: every length, count and kind, and that each
 * tensor lies in the file. Texts and values keep pointing into bytes. On success *out is to be freed by moth_gguf_free.
 * Errors: MOTH_ERR_VALUE (what is wrong and where; a tensor of another type is named with its type; *out is NULL),
 * MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_gguf_parse(const uint8_t *bytes, size_t n, MothGguf **out);
MOTH_API void moth_gguf_free(MothGguf *file); /* NULL is allowed */

/* The element at *at of a checked pair, and *at behind it: text (then *text and *n), else a number (bool: 0 or 1; in
 * *integer where it is a 64-bit integer, and always in *number). */
typedef struct MothGgufValue {
  const char *text; /* NULL: a number */
  size_t n;
  double number;
  int64_t integer;
} MothGgufValue;
MOTH_API MothGgufValue moth_gguf_next(MothGgufKind kind, const uint8_t **at);

/* Whether a type is one of plain elements, and then their dtype. */
MOTH_API bool moth_gguf_plain(uint32_t type, MothDType *dtype);

/* Bytes of a block of a quantized type, and its elements; 0 and 0: the type is none that is read. */
MOTH_API int64_t moth_gguf_block(uint32_t type, int64_t *elements);

/* "Q4_K" and the like of a type's number, or NULL. */
MOTH_API const char *moth_gguf_type_name(uint32_t type);

#endif
