/* Opening the CUDA backend. The library lies beside libmoth.so: libmoth_cuda.so, or with MOTH_CUDA=emu
 * libmoth_cudaemu.so, its emulation on the CPU. MOTH_CUDA=off leaves it alone. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/error.h"
#include "layout.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char why[1024];
static const MothCudaApi *api;
static bool ready; /* set atomically */

static void open_backend(void) {
  static const char *const modes[] = {"off", "emu", "auto", NULL};
  int mode = moth_env_choice("MOTH_CUDA", modes);
  if (mode == 0) {
    snprintf(why, sizeof why, "CUDA is turned off: MOTH_CUDA=off");
    return;
  }
  bool emu = mode == 1;
  Dl_info here;
  char path[768];
  if (!dladdr((void *)open_backend, &here) || !here.dli_fname)
    here.dli_fname = "";
  const char *slash = strrchr(here.dli_fname, '/');
  snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash + 1 - here.dli_fname) : 0,
           here.dli_fname, emu ? "libmoth_cudaemu.so" : "libmoth_cuda.so");
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const char *again = emu ? "make cudaemu" : "make cuda";
  if (!lib) {
    const char *problem = dlerror();
    if (access(path, F_OK) != 0)
      snprintf(why, sizeof why, "moth was built without CUDA (%.700s)", problem);
    else
      snprintf(why, sizeof why, "the CUDA backend cannot be loaded (%.700s); build it again: %s",
               problem, again);
    return;
  }
  /* Another version's library reads structs and arguments where they are not. */
  const char *layout = dlsym(lib, "moth_cuda_layout");
  const char *(*open)(const MothCudaApi **api);
  *(void **)&open = dlsym(lib, "moth_cuda_open");
  if (!layout || !open || strcmp(layout, MOTH_LAYOUT) != 0) {
    snprintf(why, sizeof why,
             "%.700s was built from another version of moth than libmoth.so beside it; build it "
             "again: %s",
             path, again);
    return;
  }
  const char *problem = open(&api);
  if (problem)
    snprintf(why, sizeof why, "%.1000s", problem);
  else
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
}

const MothCudaApi *moth_cuda_opened(void) {
  return __atomic_load_n(&ready, __ATOMIC_ACQUIRE) ? api : NULL;
}

const MothCudaApi *moth_cuda_api(void) {
  const char *no = moth_cuda_why();
  if (!no)
    return api;
  moth_fail(MOTH_ERR_STATE, "CUDA cannot be used here: %s", no);
  return NULL;
}

const char *moth_cuda_why(void) {
  pthread_once(&once, open_backend);
  return why[0] ? why : NULL;
}

static const char *why_not(int index) {
  const char *no = moth_cuda_why();
  return no ? no : moth_memory(MOTH_CUDA)->why_not(index);
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

const MothDeviceOps moth_cuda_device = {
    .memory = {"cuda", why_not, no_alloc, no_free, no_copy, no_copy}};
