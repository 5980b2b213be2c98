#include "core/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/environment.h"
#include "core/error.h"
#include "no_cuda/cuda.h"

static const char *cpu_why_not(int index) {
  return index ? "there is one cpu device, cpu:0" : NULL;
}
static void *cpu_alloc(int index, size_t n) {
  (void)index;
  void *p = moth_alloc(n);
  if (__builtin_expect(!p, 0)) {
    MothMemStats st;
    moth_memory_stats(&st);
    moth_fail(MOTH_ERR_MEMORY,
              "out of memory: could not allocate %zu bytes on cpu (%lld bytes are live, "
              "%lld cached)",
              n, (long long)st.live, (long long)st.cached);
  }
  return p;
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

static const char *user_why_not(int index) {
  (void)index;
  return "no backend was registered for device 'user': call moth.library.register_backend first";
}

static const MothDeviceOps cpu = {"cpu", cpu_why_not, cpu_alloc, cpu_free, cpu_copy, cpu_copy,
                                  NULL,  NULL,        NULL,      NULL,     NULL,     NULL};
static const MothDeviceOps user = {"user", user_why_not, cpu_alloc, cpu_free, cpu_copy, cpu_copy,
                                   NULL,   NULL,         NULL,      NULL,     NULL,     NULL};
static const MothDeviceOps *devices[MOTH_NDEVICES] = {&cpu, &moth_cuda_device, &user};

bool moth_deterministic = true;

__attribute__((constructor)) static void read_deterministic(void) {
  moth_deterministic = moth_env_flag("MOTH_DETERMINISTIC", true);
}

const MothDeviceOps *moth_device_ops(MothDeviceType type) {
  return devices[type];
}
void moth_device_register(MothDeviceType type, const MothDeviceOps *ops) {
  devices[type] = ops;
}

MothStatus moth_device_check(MothDevice d) {
  if (d.type >= MOTH_NDEVICES)
    return moth_fail(MOTH_ERR_VALUE, "there is no device of type %d", d.type);
  const char *why = devices[d.type]->why_not(d.index);
  if (why)
    return moth_fail(MOTH_ERR_VALUE, "device '%s:%d' cannot be used: %s", devices[d.type]->name,
                     d.index, why);
  return MOTH_OK;
}

MothStatus moth_device_parse(const char *s, MothDevice *out) {
  for (int i = 0; i < MOTH_NDEVICES; i++) {
    size_t n = strlen(devices[i]->name);
    if (strncmp(s, devices[i]->name, n))
      continue;
    long index = !s[n] && devices[i]->current ? devices[i]->current() : 0;
    if (s[n] == ':') {
      char *end;
      index = strtol(s + n + 1, &end, 10);
      if (end == s + n + 1 || *end || index < 0 || index > 255)
        break;
    } else if (s[n]) {
      continue;
    }
    out->type = (uint8_t)i;
    out->index = (uint8_t)index;
    return moth_device_check(*out);
  }
  return moth_fail(
      MOTH_ERR_VALUE,
      "device '%s': expected cpu, cuda, cuda:N or a registered backend; backend not built", s);
}

const char *moth_device_format(MothDevice d, char *buf, size_t n) {
  if (d.type == MOTH_CPU)
    snprintf(buf, n, "%s", devices[d.type]->name);
  else
    snprintf(buf, n, "%s:%d", devices[d.type]->name, d.index);
  return buf;
}
