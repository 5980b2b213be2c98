#include "device/device.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/environment.h"
#include "core/error.h"
#include "device/cuda.h"
#include "device/stream.h"

/* Types that nobody has registered yet. */
static const char *nobody_why_not(int index) {
  (void)index;
  return "no backend was registered for it: call moth.library.register_backend first";
}
static void *nobody_alloc(int index, size_t n) {
  (void)n;
  moth_fail(MOTH_ERR_STATE, "%s", nobody_why_not(index));
  return NULL;
}
static void nobody_free(int index, void *p, size_t n) {
  (void)index;
  (void)p;
  (void)n;
}
static MothStatus nobody_copy(int index, void *to, const void *from, size_t n) {
  (void)to;
  (void)from;
  (void)n;
  return moth_fail(MOTH_ERR_STATE, "%s", nobody_why_not(index));
}
static const MothDeviceOps nobody = {
    .memory = {"user", nobody_why_not, nobody_alloc, nobody_free, nobody_copy, nobody_copy}};
/* Of meta nothing is allocated or copied: its tensors are fake. */
static const char *meta_why_not(int index) {
  return index ? "there is one device of this type" : NULL;
}
static void *meta_alloc(int index, size_t n) {
  (void)index;
  (void)n;
  moth_fail(MOTH_ERR_STATE, "the device meta has no memory");
  return NULL;
}
static MothStatus meta_copy(int index, void *to, const void *from, size_t n) {
  (void)index;
  (void)to;
  (void)from;
  (void)n;
  return moth_fail(MOTH_ERR_STATE, "tensors of the device meta have no values");
}
static const MothDeviceOps meta = {
    .memory = {"meta", meta_why_not, meta_alloc, nobody_free, meta_copy, meta_copy}};
static MothDeviceOps cpu;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of those that write */
static int ntypes = MOTH_USER;

bool moth_deterministic = true;

int moth_device_ntypes(void) {
  return __atomic_load_n(&ntypes, __ATOMIC_ACQUIRE);
}

int moth_device_find(const char *name) {
  for (int i = 0; i < moth_device_ntypes(); i++)
    if (!strcmp(moth_memory(i)->name, name))
      return i;
  return -1;
}

void moth_device_replace(MothDeviceType type, const MothDeviceOps *ops) {
  __atomic_store_n(&moth_memories[type], &ops->memory, __ATOMIC_RELEASE);
}

__attribute__((constructor)) static void device_init(void) {
  moth_deterministic = moth_env_flag("MOTH_DETERMINISTIC", true);
  cpu.memory = moth_cpu_memory;
  cpu.streams = &moth_cpu_streams;
  moth_device_replace(MOTH_CPU, &cpu);
  moth_device_replace(MOTH_CUDA, &moth_cuda_device);
  moth_device_replace(MOTH_META, &meta);
  for (int i = MOTH_USER; i < MOTH_NDEVICES; i++)
    moth_device_replace((MothDeviceType)i, &nobody);
}

enum { NAME_MOST = 31 }; /* messages list the names of all devices */

static bool is_name(const char *s) {
  const char *first = s;
  if (!isalpha((unsigned char)*s))
    return false;
  while (isalnum((unsigned char)*s) || *s == '_')
    s++;
  return !*s && s - first <= NAME_MOST;
}

MothStatus moth_device_add(const MothDeviceOps *ops, MothDeviceType *out) {
  const char *name = ops->memory.name;
  if (!is_name(name))
    return moth_fail(
        MOTH_ERR_VALUE,
        "a device's name consists of up to %d letters, digits and _, and begins with a letter; got "
        "'%s'",
        NAME_MOST, name);
  MothStatus s = MOTH_OK;
  pthread_mutex_lock(&lock);
  if (moth_device_find(name) >= 0)
    s = moth_fail(MOTH_ERR_VALUE, "there is a device '%s' already", name);
  else if (ntypes == MOTH_NDEVICES)
    s = moth_fail(MOTH_ERR_VALUE,
                  "there are %d types of devices already: no more can be registered", ntypes);
  if (s == MOTH_OK) {
    *out = (MothDeviceType)ntypes;
    moth_device_replace(*out, ops);
    __atomic_store_n(&ntypes, ntypes + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return s;
}

static const char *there_is_one(int index) {
  return index ? "there is one device of this type" : NULL;
}

MothStatus moth_backend_add(const MothBackend *b, MothDeviceType *out) {
  MothDeviceType type;
  if (!b || !b->name || !b->alloc || !b->free || !b->to_host || !b->from_host)
    return moth_fail(MOTH_ERR_TYPE, "backend_add: a device needs a name and the functions alloc, "
                                    "free, to_host and from_host");
  size_t bytes = strlen(b->name) + 1;
  struct {
    MothDeviceOps ops;
    char name[];
  } *own = calloc(1, sizeof *own + bytes); /* for the life of the process */
  if (!own)
    return moth_no_memory(sizeof *own + bytes);
  memcpy(own->name, b->name, bytes);
  own->ops = (MothDeviceOps){
      .memory = {.name = own->name,
                 .why_not = b->why_not ? b->why_not : there_is_one,
                 .alloc = b->alloc,
                 .free = b->free,
                 .to_host = b->to_host,
                 .from_host = b->from_host},
      .fallback = b->fallback,
      .apart = true,
  };
  MothStatus s = moth_device_add(&own->ops, &type);
  if (s != MOTH_OK)
    free(own);
  else if (out)
    *out = type;
  return s;
}

MothStatus moth_device_parse(const char *s, MothDevice *out) {
  for (int i = 0; i < moth_device_ntypes(); i++) {
    const MothDeviceOps *ops = moth_device_ops((MothDeviceType)i);
    size_t n = strlen(ops->memory.name);
    if (strncmp(s, ops->memory.name, n))
      continue;
    long index = !s[n] && ops->current ? ops->current() : 0;
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
      "device '%s': expected cpu, cuda, cuda:N, meta or a registered backend; backend not built",
      s);
}
