/* Files as tensors without reading them: the system reads a page when an element in it is used. */
#ifndef MOTH_IO_MAPPED_H
#define MOTH_IO_MAPPED_H
#include "io/npy.h"
#include "moth.h"

/* A tensor of one dimension over the bytes of a regular file from `offset` on (a multiple of the item size): count
 * elements, or with -1 all that there are. Writing to it changes a copy of the page in memory, never the file. The
 * mapping lasts as long as the tensor's storage. If the file is shortened meanwhile, reading faults. Errors:
 * MOTH_ERR_IO, naming path and reason; MOTH_ERR_VALUE: bool (a file may hold other bytes than 0 and 1), an offset or a
 * count that does not fit. */
MOTH_API MothStatus moth_tensor_map(const char *path, MothDType dtype, int64_t offset,
                                    int64_t count, MothTensor **out);

/* A file that is mapped once for several tensors: its bytes may be read until it is closed; tensors of it live on. Writing
 * as above. Errors: as moth_tensor_map. */
typedef struct MothMapping MothMapping;
/* Smaller files are better copied: a mapping costs pages, and a process may have 65,530 of them. */
#define MOTH_MAPPING_LEAST (1 << 16)
MOTH_API MothStatus moth_mapping_open(const char *path, MothMapping **out);
MOTH_API const uint8_t *moth_mapping_bytes(const MothMapping *m, size_t *n);
/* offset must be a multiple of the item size, dtype not bool, and all elements in the file. */
MOTH_API MothStatus moth_mapping_tensor(MothMapping *m, MothDType dtype, int64_t offset, int ndim,
                                        const int64_t *shape, MothTensor **out);
MOTH_API void moth_mapping_close(MothMapping *m); /* NULL is allowed */

/* The same of a .npy file: *out has its elements in the order of the file, *info the shape and whether the order is
 * column-major (info->data is NULL). Errors also: those of moth_npy_parse, and elements of the other byte order. */
MOTH_API MothStatus moth_npy_map(const char *path, MothNpy *info, MothTensor **out);

#endif
