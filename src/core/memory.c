#include "core/memory.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/history.h"

static const char *cpu_why_not(int index) {
  return index ? "there is one cpu device, cpu:0" : NULL;
}
static __attribute__((noinline)) void *without_memory(size_t n) {
  char limit[64] = "", held[1024];
  MothMemStats st;
  void *p = NULL;
  /* A failure that was asked for (moth_memory_fail_at) is not mended. */
  if (!moth_alloc_failed_by_order() && moth_alloc_collect && moth_alloc_collect()) {
    moth_memory_empty_cache();
    p = moth_alloc(n);
  }
  if (p)
    return p;
  moth_memory_stats(&st);
  if (moth_alloc_limit())
    snprintf(limit, sizeof limit, ", %lld are allowed", (long long)moth_alloc_limit());
  moth_history_holders(held, sizeof held);
  moth_fail(MOTH_ERR_MEMORY,
            "out of memory: could not allocate %zu bytes on cpu (%lld bytes are live, "
            "%lld cached%s)%s",
            n, (long long)st.live, (long long)st.cached, limit, held);
  return NULL;
}

static void *cpu_alloc(int index, size_t n) {
  (void)index;
  void *p = moth_alloc(n);
  return __builtin_expect(p != NULL, 1) ? p : without_memory(n);
}
static void cpu_free(int index, void *p, size_t n) {
  (void)index;
  moth_free(p, n);
}
static MothStatus cpu_copy(int index, void *to, const void *from, size_t n) {
  (void)index;
  memcpy(to, from, n);
  return MOTH_OK;
}
const MothDeviceMemory moth_cpu_memory = {"cpu",    cpu_why_not, cpu_alloc,
                                          cpu_free, cpu_copy,    cpu_copy};

#define CPU &moth_cpu_memory
const MothDeviceMemory *moth_memories[MOTH_NDEVICES] = {CPU, CPU, CPU, CPU, CPU, CPU, CPU, CPU};

MothStatus moth_device_check(MothDevice d) {
  if (d.type >= MOTH_NDEVICES)
    return moth_fail(MOTH_ERR_VALUE, "there is no device of type %d", d.type);
  const MothDeviceMemory *m = moth_memory(d.type);
  const char *why = m->why_not(d.index);
  return why ? moth_fail(MOTH_ERR_VALUE, "device '%s:%d' cannot be used: %s", m->name, d.index, why)
             : MOTH_OK;
}

const char *moth_device_format(MothDevice d, char *buf, size_t n) {
  if (d.type == MOTH_CPU || d.type == MOTH_META)
    snprintf(buf, n, "%s", moth_memory(d.type)->name);
  else
    snprintf(buf, n, "%s:%d", moth_memory(d.type)->name, d.index);
  return buf;
}
