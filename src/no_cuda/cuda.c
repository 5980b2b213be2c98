/* Opening the CUDA backend. The library lies beside libmoth.so: libmoth_cuda.so, or with MOTH_CUDA=emu
 * libmoth_cudaemu.so, its emulation on the CPU. MOTH_CUDA=off leaves it alone. */
#include "no_cuda/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char why[1024];

static void open_backend(void) {
  const char *mode = getenv("MOTH_CUDA");
  if (mode && !strcmp(mode, "off")) {
    snprintf(why, sizeof why, "CUDA is turned off: MOTH_CUDA=off");
    return;
  }
  bool emu = mode && !strcmp(mode, "emu");
  Dl_info here;
  char path[768];
  if (!dladdr((void *)open_backend, &here) || !here.dli_fname)
    here.dli_fname = "";
  const char *slash = strrchr(here.dli_fname, '/');
  snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash + 1 - here.dli_fname) : 0,
           here.dli_fname, emu ? "libmoth_cudaemu.so" : "libmoth_cuda.so");
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    snprintf(why, sizeof why, "moth was built without CUDA (%.700s)", dlerror());
    return;
  }
  const char *(*open)(void);
  *(void **)&open = dlsym(lib, "moth_cuda_open");
  const char *problem = open ? open() : "moth_cuda_open is missing: another version of moth's?";
  if (problem)
    snprintf(why, sizeof why, "%.1000s", problem);
}

const char *moth_cuda_why(void) {
  pthread_once(&once, open_backend);
  return why[0] ? why : NULL;
}

static const char *why_not(int index) {
  const char *no = moth_cuda_why();
  return no ? no : moth_device_ops(MOTH_CUDA)->why_not(index);
}
static void *no_alloc(int index, size_t n) {
  (void)index;
  (void)n;
  return NULL;
}
static void no_free(int index, void *p, size_t n) {
  (void)index;
  (void)p;
  (void)n;
}
static MothStatus no_copy(int index, void *to, const void *from, size_t n) {
  (void)index;
  (void)to;
  (void)from;
  (void)n;
  return moth_fail(MOTH_ERR_STATE, "%s", moth_cuda_why());
}

const MothDeviceOps moth_cuda_device = {"cuda", why_not, no_alloc, no_free, no_copy, no_copy, NULL};
