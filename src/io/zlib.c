#include "io/zlib.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

#include "core/parallel.h"

static MothZlib zlib;
static bool found;

static void open_zlib(void) {
  void *library = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return;
  *(void **)&zlib.init = dlsym(library, "inflateInit2_");
  *(void **)&zlib.inflate = dlsym(library, "inflate");
  *(void **)&zlib.reset = dlsym(library, "inflateReset");
  *(void **)&zlib.end = dlsym(library, "inflateEnd");
  found = zlib.init && zlib.inflate && zlib.reset && zlib.end;
}

const MothZlib *moth_zlib(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_zlib);
  return found ? &zlib : NULL;
}

MothStatus moth_z_look(void) {
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  return flag && *flag ? moth_interrupted() : MOTH_OK;
}
