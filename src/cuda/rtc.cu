/* Programs that NVRTC compiles. A program is compiled for the architecture of a device and loaded as a library of the
 * runtime, which serves every device of that architecture. */
#include "cuda/rtc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __CUDACC__
#include <nvrtc.h>
#else
#include "emu/nvrtc.h"
#endif

#include "cuda/lib.h"

namespace {

/* Its functions, once the library has been opened. */
#define FUNCTIONS(X)                                                                               \
  X(nvrtcGetErrorString)                                                                           \
  X(nvrtcCreateProgram)                                                                            \
  X(nvrtcDestroyProgram)                                                                           \
  X(nvrtcAddNameExpression)                                                                        \
  X(nvrtcCompileProgram)                                                                           \
  X(nvrtcGetLoweredName)                                                                           \
  X(nvrtcGetProgramLogSize)                                                                        \
  X(nvrtcGetProgramLog)                                                                            \
  X(nvrtcGetCUBINSize)                                                                             \
  X(nvrtcGetCUBIN)
struct Door {
#define X(f) decltype(&::f) f;
  FUNCTIONS(X)
#undef X
};
Door door;
pthread_once_t once = PTHREAD_ONCE_INIT;
char problem[512];

void open_door(void) {
#ifdef __CUDACC__
  void *lib;
  if (moth_cuda_lib_open(MOTH_CUDA_NVRTC, &lib) != MOTH_OK) {
    snprintf(problem, sizeof problem, "%.500s", moth_last_error());
    return;
  }
#define X(f)                                                                                       \
  if (!(*(void **)&door.f = dlsym(lib, #f)))                                                       \
    snprintf(problem, sizeof problem, "NVRTC: the library lacks " #f);
#else
#define X(f) door.f = &::f;
#endif
  FUNCTIONS(X)
#undef X
}

MothStatus failed(nvrtcResult e, const char *what) {
  return moth_fail(MOTH_ERR_STATE, "NVRTC: %s (%s)", door.nvrtcGetErrorString(e), what);
}
#define TRY(call)                                                                                  \
  do {                                                                                             \
    nvrtcResult tried = door.call;                                                                 \
    if (tried != NVRTC_SUCCESS)                                                                    \
      return failed(tried, #call);                                                                 \
  } while (0)

struct Compilation {
  nvrtcProgram p = nullptr;
  char *image = nullptr; /* the lowered names of the kernels, each with its zero; the cubin */
  size_t size = 0;
  ~Compilation() {
    if (p)
      door.nvrtcDestroyProgram(&p);
    free(image);
  }
};

/* The error, with the compiler's messages. */
MothStatus refused(const Compilation &c, const MothCudaSource *s, nvrtcResult e) {
  size_t n = 0;
  if (e != NVRTC_ERROR_COMPILATION && e != NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID)
    return failed(e, "nvrtcCompileProgram");
  if (door.nvrtcGetProgramLogSize(c.p, &n) != NVRTC_SUCCESS || n == 0)
    n = 1;
  char *log = (char *)calloc(n, 1);
  if (log && n > 1)
    door.nvrtcGetProgramLog(c.p, log);
  MothStatus status = moth_fail(MOTH_ERR_VALUE, "the CUDA source '%s' does not compile:\n%s",
                                s->name, log ? log : "");
  free(log);
  return status;
}

} // namespace

struct MothCudaFunction {
  cudaKernel_t kernel;
  char *name;
};
struct MothCudaProgram {
  int refs, n;
  cudaLibrary_t library;
  MothCudaFunction *functions;
};

void moth_cuda_program_retain(MothCudaProgram *p) {
  __atomic_fetch_add(&p->refs, 1, __ATOMIC_RELAXED);
}

void moth_cuda_program_free(MothCudaProgram *p) {
  if (!p || __atomic_fetch_sub(&p->refs, 1, __ATOMIC_ACQ_REL) != 1)
    return;
  for (int i = 0; i < p->n; i++)
    free(p->functions[i].name);
  if (p->library) {
    MothRelaxed relaxed;
    cudaDeviceSynchronize(); /* its kernels may be queued */
    cudaLibraryUnload(p->library);
  }
  free(p->functions);
  free(p);
}

static MothStatus compile(int device, const MothCudaSource *s, Compilation *c) {
  char arch[64];
  const MothCudaProps *props = moth_cuda_props(device);
  /* 9.0 has wgmma and related instructions as sm_90a only */
  snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%d%s", props->major, props->minor,
           props->major == 9 ? "a" : "");
  enum { MOST = 32 };
  const char *options[MOST] = {arch, "--std=c++17"};
  int n = 2;
  for (int i = 0; i < s->noptions; i++) {
    if (n == MOST)
      return moth_fail(MOTH_ERR_VALUE, "too many options for NVRTC: %d", s->noptions);
    options[n++] = s->options[i];
  }
  TRY(nvrtcCreateProgram(&c->p, s->text, s->name, s->nheaders, s->headers, s->header_names));
  for (int i = 0; i < s->nkernels; i++)
    TRY(nvrtcAddNameExpression(c->p, s->kernels[i]));
  nvrtcResult e = door.nvrtcCompileProgram(c->p, n, options);
  if (e != NVRTC_SUCCESS)
    return refused(*c, s, e);
  size_t size = 0, names = 0;
  const char *lowered;
  for (int i = 0; i < s->nkernels; i++) {
    TRY(nvrtcGetLoweredName(c->p, s->kernels[i], &lowered));
    names += strlen(lowered) + 1;
  }
  TRY(nvrtcGetCUBINSize(c->p, &size));
  c->size = names + size;
  c->image = (char *)malloc(c->size + 1);
  if (!c->image)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: a program of %zu bytes", size);
  char *at = c->image;
  for (int i = 0; i < s->nkernels; i++) {
    TRY(nvrtcGetLoweredName(c->p, s->kernels[i], &lowered));
    strcpy(at, lowered);
    at += strlen(lowered) + 1;
  }
  TRY(nvrtcGetCUBIN(c->p, at));
  return s->made ? s->made(s->ctx, c->image, c->size) : MOTH_OK;
}

static MothStatus load(const char *image, size_t size, const MothCudaSource *s,
                       MothCudaProgram *p) {
  MothRelaxed relaxed;
  const char *lowered = image, *cubin = image;
  for (int i = 0; i < s->nkernels; i++) {
    const char *end = (const char *)memchr(cubin, 0, size - (size_t)(cubin - image));
    if (!end)
      return moth_fail(MOTH_ERR_VALUE, "the image of '%s' is broken", s->name);
    cubin = end + 1;
  }
  MOTH_CUDA_TRY(cudaLibraryLoadData(&p->library, cubin, nullptr, nullptr, 0, nullptr, nullptr, 0));
  p->functions = (MothCudaFunction *)calloc((size_t)s->nkernels, sizeof *p->functions);
  if (!p->functions)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %d kernels", s->nkernels);
  for (; p->n < s->nkernels; p->n++) {
    MothCudaFunction *f = &p->functions[p->n];
    MOTH_CUDA_TRY(cudaLibraryGetKernel(&f->kernel, p->library, lowered));
    lowered += strlen(lowered) + 1;
    f->name = strdup(s->kernels[p->n]);
    if (!f->name)
      return moth_fail(MOTH_ERR_MEMORY, "out of memory: a kernel's name");
  }
  return MOTH_OK;
}

MothStatus moth_cuda_program_new(int device, const MothCudaSource *s, MothCudaProgram **out) {
  Compilation c;
  MOTH_TRY(moth_cuda_set_device(device));
  if (!s->image) {
    pthread_once(&once, open_door);
    if (problem[0])
      return moth_fail(MOTH_ERR_STATE, "%s", problem);
    MOTH_TRY(compile(device, s, &c));
  }
  MothCudaProgram *p = (MothCudaProgram *)calloc(1, sizeof *p);
  if (!p)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: a program");
  p->refs = 1;
  MothStatus status = s->image ? load(s->image, s->image_size, s, p) : load(c.image, c.size, s, p);
  if (status != MOTH_OK)
    moth_cuda_program_free(p);
  else
    *out = p;
  return status;
}

MothStatus moth_cuda_program_kernel(MothCudaProgram *p, int i, MothCudaFunction **out) {
  if (i < 0 || i >= p->n)
    return moth_fail(MOTH_ERR_INDEX, "the program has %d kernels", p->n);
  *out = &p->functions[i];
  return MOTH_OK;
}

/* More than 48 KB of dynamic shared memory must be requested. */
static MothStatus allow_shared(MothCudaFunction *f, int device, size_t shared) {
  size_t most = moth_cuda_props(device)->shared_per_block;
  if (shared > most)
    return moth_fail(MOTH_ERR_VALUE, "%zu bytes of shared memory: a block has %zu at most", shared,
                     most);
  if (shared > 48 << 10)
    MOTH_CUDA_TRY(cudaFuncSetAttribute((const void *)f->kernel,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
  return MOTH_OK;
}

MothStatus moth_cuda_function_launch(MothCudaFunction *f, int device, const unsigned *grid,
                                     const unsigned *block, size_t shared, void **args) {
  cudaStream_t stream = moth_cuda_stream(device);
  MOTH_TRY(moth_cuda_set_device(device));
  MOTH_TRY(allow_shared(f, device, shared));
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0)
    return MOTH_OK;
  cudaError_t e = cudaLaunchKernel((const void *)f->kernel, dim3(grid[0], grid[1], grid[2]),
                                   dim3(block[0], block[1], block[2]), args, shared, stream);
  return moth_cuda_launched(f->name, e, stream);
}

MothStatus moth_cuda_function_occupancy(MothCudaFunction *f, int device, int threads, size_t shared,
                                        int *blocks) {
  MOTH_TRY(moth_cuda_set_device(device));
  MOTH_TRY(allow_shared(f, device, shared));
  MOTH_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)f->kernel,
                                                              threads, shared));
  return MOTH_OK;
}
