/* Devices: a table of functions for each type. The table of types grows: CPU and CUDA are built in, backends register
 * theirs. */
#ifndef MOTH_DEVICE_DEVICE_H
#define MOTH_DEVICE_DEVICE_H
#include "core/memory.h"

typedef struct MothStreamOps MothStreamOps;

typedef struct MothDeviceOps {
  MothDeviceMemory memory; /* the first member: moth_memories points at it */
  /* dst = src, converted and broadcast, where at least one of them is on this device and they are on different ones.
   * non_blocking: pinned host memory need not have been written or read when it returns. NULL: only row-major tensors
   * of one dtype are copied, by the functions of memory. */
  MothStatus (*copy)(MothTensor *dst, MothTensor *src, bool non_blocking);
  /* The index of a name without one, on this thread. NULL: 0. */
  int (*current)(void);
  void (*set_current)(int index);
  const MothStreamOps *streams; /* device/stream.h; NULL: there are none */
  MothKernel fallback;          /* of ops without a kernel; NULL: they are errors */
  bool apart;                   /* the host cannot read its memory, and it has no `copy` */
} MothDeviceOps;

static inline const MothDeviceOps *moth_device_ops(MothDeviceType type) {
  return (const MothDeviceOps *)moth_memory((int)type);
}
/* The number of types; they are numbered from 0. */
MOTH_API int moth_device_ntypes(void);
/* The type of a name, or -1. */
MOTH_API int moth_device_find(const char *name);
/* Adds a type of device under a new name of up to 31 letters, digits and _. ops must stay valid for the life of the process.
 * Errors: the name is taken or malformed, the table is full (MOTH_NDEVICES types). */
MOTH_API MothStatus moth_device_add(const MothDeviceOps *ops, MothDeviceType *out);
/* Replaces the functions of a type. */
MOTH_API void moth_device_replace(MothDeviceType type, const MothDeviceOps *ops);
/* "cpu", "cuda", "cuda:1". Errors: unknown, not built, no such index. */
MOTH_API MothStatus moth_device_parse(const char *s, MothDevice *out);
/* Whether every op must give the same bits in every run: true unless MOTH_DETERMINISTIC=0, or
 * moth.use_deterministic_algorithms(false). */
MOTH_API extern bool moth_deterministic;
#endif
