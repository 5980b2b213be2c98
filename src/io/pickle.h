/* The part of Python's pickle format that PyTorch's files of tensors are written in.
 *
 * A pickle is a program for a stack machine that can name and call any Python function. This reader
 * knows the operations that build numbers, strings, tuples, lists and dictionaries, and a fixed
 * list of names, each of which makes one kind of plain data here; nothing is ever called. Any other
 * name is an error, which contains it.
 * https://docs.python.org/3/library/pickletools.html, protocols 2 to 5. */
#ifndef MOTH_IO_PICKLE_H
#define MOTH_IO_PICKLE_H
#include <stddef.h>

#include "io/elements.h"

#define MOTH_PICKLE_MAX_DEPTH 100

typedef enum MothPickleKind {
  MOTH_PICKLE_NOTHING, /* no value: not in a result */
  MOTH_PICKLE_NONE,
  MOTH_PICKLE_BOOL,   /* u.i */
  MOTH_PICKLE_INT,    /* u.i */
  MOTH_PICKLE_FLOAT,  /* u.d */
  MOTH_PICKLE_STRING, /* u.text, of n bytes: text or bytes */
  MOTH_PICKLE_DTYPE,  /* n */
  MOTH_PICKLE_TUPLE,  /* n: containers[n], as of the next four */
  MOTH_PICKLE_LIST,
  MOTH_PICKLE_SPARSE, /* the parts of a sparse tensor: the name of its layout, then those of PyTorch */
  MOTH_PICKLE_DICT,    /* its cells are key, value, key, value, … */
  MOTH_PICKLE_ORDERED, /* collections.OrderedDict: the same */
  MOTH_PICKLE_RECORD,  /* an object of a known class: the same, keys are its fields, or 1, 2, … */
  MOTH_PICKLE_TENSOR,  /* n: tensors[n] */
  /* Used by the machine, not in a result: */
  MOTH_PICKLE_STORAGE,
  MOTH_PICKLE_MARK,
  MOTH_PICKLE_CLASS,
  MOTH_PICKLE_GLOBAL,
  MOTH_PICKLE_SMALL /* a dtype of small floats: n */
} MothPickleKind;

typedef struct MothPickleValue {
  uint32_t kind, n;
  union {
    int64_t i;
    double d;
    const char *text; /* points into the bytes given; no NUL behind it */
  } u;
} MothPickleValue;

#define MOTH_PICKLE_END UINT32_MAX

typedef struct MothPickleCell {
  MothPickleValue value;
  uint32_t next; /* cells[next], or MOTH_PICKLE_END */
} MothPickleCell;

typedef struct MothPickleContainer {
  uint32_t kind, first, last, count; /* cells; END if there are none */
} MothPickleContainer;

typedef struct MothPickleStorage {
  const char *key;      /* key_n bytes, which name the member that has the elements */
  uint32_t key_n, same; /* same: the first storage of this key, itself if it is that */
  MothDType dtype;
  const MothSmallFloat *small; /* of the file's elements, which become bfloat16, or NULL */
  int64_t numel;
} MothPickleStorage;

typedef struct MothPickleTensor {
  uint32_t storage, dims; /* storages[storage]; dims[dims …]: ndim sizes, then ndim strides */
  uint8_t ndim;
  bool requires_grad;
  int64_t offset; /* elements */
} MothPickleTensor;

typedef struct MothPickle {
  MothPickleValue root;
  MothPickleCell *cells;
  MothPickleContainer *containers;
  MothPickleStorage *storages;
  MothPickleTensor *tensors;
  int64_t *dims;
  uint32_t cell_count, container_count, storage_count, tensor_count, dim_count;
} MothPickle;

/* Reads a whole pickle of n bytes, which must outlive the result. The result is valid: indices are in
 * range, tensors lie within the declared elements of their storages, no container contains itself and
 * none nests deeper than MOTH_PICKLE_MAX_DEPTH (one may be contained twice). Memory is at most
 * 64 MB + 4 n. On success *out is to be freed by moth_pickle_free. Errors: MOTH_ERR_VALUE
 * (what, at which byte; *out is NULL), MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_pickle_parse(const uint8_t *bytes, size_t n, MothPickle **out);

/* The same for the index of a distributed checkpoint of PyTorch (.metadata) and for dictionaries of NumPy's arrays:
 * the names of their classes are known, too, whose objects become records, also as keys of dictionaries; tensors are
 * not. An array is { version, shape, dtype's name, whether columns come first, bytes }; the order of its bytes is not
 * kept. Memory is at most 64 MB + 40 n. */
MOTH_API MothStatus moth_pickle_parse_records(const uint8_t *bytes, size_t n, MothPickle **out);
MOTH_API void moth_pickle_free(MothPickle *pickle); /* NULL is allowed */

#endif
