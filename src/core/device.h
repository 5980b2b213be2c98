/* Devices: what the core must be able to do on one, as a table of functions per device type. */
#ifndef MOTH_CORE_DEVICE_H
#define MOTH_CORE_DEVICE_H
#include "moth.h"

typedef struct MothDeviceOps {
  const char *name;
  /* Why this device cannot be used, or NULL if it can. */
  const char *(*why_not)(int index);
  /* NULL: no memory, moth_last_error() says why. */
  void *(*alloc)(int index, size_t n);
  void (*free)(int index, void *p, size_t n);
  /* n bytes between the device and host memory, done when it returns. */
  MothStatus (*to_host)(int index, void *host, const void *device, size_t n);
  MothStatus (*from_host)(int index, void *device, const void *host, size_t n);
  /* dst = src, converted and broadcast, where one of them at least is on this device and they lie on
   * different ones. non_blocking: pinned host memory need not have been written or read when it
   * returns. NULL: only row-major tensors of one dtype are copied, by the two functions above. */
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

MOTH_API const MothDeviceOps *moth_device_ops(MothDeviceType type);
/* Puts a device type in place; ops must live for ever. */
MOTH_API void moth_device_register(MothDeviceType type, const MothDeviceOps *ops);
/* "cpu", "cuda", "cuda:1". Errors: unknown, not built, no such index. */
MOTH_API MothStatus moth_device_parse(const char *s, MothDevice *out);
/* Errors if the device cannot be used now. */
MOTH_API MothStatus moth_device_check(MothDevice d);
/* Whether every op must give the same bits in every run: true unless MOTH_DETERMINISTIC=0, or
 * moth.use_deterministic_algorithms(false). */
MOTH_API extern bool moth_deterministic;
MOTH_API const char *moth_device_format(MothDevice d, char *buf, size_t n);
#endif
