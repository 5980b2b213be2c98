#include "cuda/nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "cuda/lib.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int (*push)(const char *);
static int (*pop)(void);
static void (*mark)(const char *);
static char problem[512];

static void open_library(void) {
  void *lib;
  if (moth_cuda_lib_open(MOTH_CUDA_NVTX, &lib) != MOTH_OK) {
    snprintf(problem, sizeof problem, "%.500s", moth_last_error());
    return;
  }
  *(void **)&push = dlsym(lib, "nvtxRangePushA");
  *(void **)&pop = dlsym(lib, "nvtxRangePop");
  *(void **)&mark = dlsym(lib, "nvtxMarkA");
  if (!push || !pop || !mark) {
    push = NULL;
    snprintf(problem, sizeof problem, "NVTX: the library lacks nvtxRangePushA");
  }
}
static bool ready(void) {
  pthread_once(&once, open_library);
  return push != NULL;
}

bool moth_cuda_nvtx_push(const char *text) {
  return ready() && (push(text), true);
}
bool moth_cuda_nvtx_pop(void) {
  return ready() && (pop(), true);
}
bool moth_cuda_nvtx_mark(const char *text) {
  return ready() && (mark(text), true);
}
MothStatus moth_cuda_nvtx_open(void) {
  return ready() ? MOTH_OK : moth_fail(MOTH_ERR_STATE, "%s", problem);
}
