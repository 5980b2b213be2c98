/* Devices: what can be done on one, as a table of functions for each type. The table of types grows: CPU and CUDA
 * stand in it from the beginning, backends register theirs. */
#ifndef MOTH_DEVICE_DEVICE_H
#define MOTH_DEVICE_DEVICE_H
#include "core/memory.h"

typedef struct MothDeviceOps {
  MothDeviceMemory memory; /* the first member: moth_memories points at it */
  /* dst = src, converted and broadcast, where one of them at least is on this device and they lie on
   * different ones. non_blocking: pinned host memory need not have been written or read when it
   * returns. NULL: only row-major tensors of one dtype are copied, by the functions of memory. */
  MothStatus (*copy)(MothTensor *dst, MothTensor *src, bool non_blocking);
  /* The index that a name without one means on this thread. NULL: 0. */
  int (*current)(void);
  /* Streams: queues of work, for the life of the process. NULL, all of them: there are none. The current
   * one of this thread; makes one current on its device and gives the one before; `later` (NULL: the
   * current one of the same device) waits for what `earlier` holds now; t is used on a stream, too, and
   * its memory must not be reused before that is done. */
  void *(*stream)(int index);
  void *(*swap_stream)(void *stream);
  MothStatus (*order)(void *earlier, void *later);
  MothStatus (*record_stream)(MothTensor *t, void *stream);
} MothDeviceOps;

static inline const MothDeviceOps *moth_device_ops(MothDeviceType type) {
  return (const MothDeviceOps *)moth_memory((int)type);
}
/* How many types there are; they are numbered from 0. */
MOTH_API int moth_device_ntypes(void);
/* The type of a name, -1: there is none. */
MOTH_API int moth_device_find(const char *name);
/* Puts a new type of device into the table, under a name that no other has: letters, digits and _. ops must live for
 * ever. Errors: the name is taken or malformed, the table is full (MOTH_NDEVICES types). */
MOTH_API MothStatus moth_device_add(const MothDeviceOps *ops, MothDeviceType *out);
/* Other functions for a type that is there. */
MOTH_API void moth_device_replace(MothDeviceType type, const MothDeviceOps *ops);
/* "cpu", "cuda", "cuda:1". Errors: unknown, not built, no such index. */
MOTH_API MothStatus moth_device_parse(const char *s, MothDevice *out);
/* Whether every op must give the same bits in every run: true unless MOTH_DETERMINISTIC=0, or
 * moth.use_deterministic_algorithms(false). */
MOTH_API extern bool moth_deterministic;
#endif
