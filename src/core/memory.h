/* Memory of devices, as the core sees it: a table of functions for each type of device. The CPU's is in memory.c;
 * src/device adds the others. */
#ifndef MOTH_CORE_MEMORY_H
#define MOTH_CORE_MEMORY_H
#include "moth.h"

typedef struct MothDeviceMemory {
  const char *name; /* of the type of device: "cpu" */
  /* Why this device cannot be used, or NULL if it can. */
  const char *(*why_not)(int index);
  /* NULL: no memory, moth_last_error() says why. */
  void *(*alloc)(int index, size_t n);
  void (*free)(int index, void *p, size_t n);
  /* n bytes between the device and host memory, done when it returns. */
  MothStatus (*to_host)(int index, void *host, const void *device, size_t n);
  MothStatus (*from_host)(int index, void *device, const void *host, size_t n);
} MothDeviceMemory;

MOTH_API extern const MothDeviceMemory moth_cpu_memory;
/* By type of device, never NULL; src/device fills it in. */
MOTH_API extern const MothDeviceMemory *moth_memories[MOTH_NDEVICES];
static inline const MothDeviceMemory *moth_memory(int type) {
  return __atomic_load_n(&moth_memories[type], __ATOMIC_ACQUIRE);
}

/* Errors if the device cannot be used now. */
MOTH_API MothStatus moth_device_check(MothDevice d);
MOTH_API const char *moth_device_format(MothDevice d, char *buf, size_t n);
#endif
