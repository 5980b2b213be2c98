/* The emulation's NVRTC: CUDA C is compiled by g++ against cudaemu.h into a library, which
 * cudaLibraryLoadData opens (dlopen). Same names and meaning as NVIDIA's, as far as moth uses them; a "cubin"
 * contains that library. A kernel's lowered name is its name expression. Options other than -D and -I are ignored.
 * `extern __shared__ T x[];` is understood.
 *
 * For tests: it runs a compiler, and the tree's headers must be where the emulation was built
 * (MOTH_CUDA_EMU_SOURCE says where they are else). */
#ifndef MOTH_EMU_NVRTC_H
#define MOTH_EMU_NVRTC_H
#include "emu/api.h"

typedef enum {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
  NVRTC_ERROR_INVALID_INPUT = 3,
  NVRTC_ERROR_INVALID_PROGRAM = 4,
  NVRTC_ERROR_COMPILATION = 6,
  NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION = 9,
  NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID = 10
} nvrtcResult;
typedef struct MothEmuProgram *nvrtcProgram;

const char *nvrtcGetErrorString(nvrtcResult result);
nvrtcResult nvrtcVersion(int *major, int *minor);
nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name,
                               int nheaders, const char *const *headers,
                               const char *const *header_names);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program);
nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char *expression);
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int noptions, const char *const *options);
nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *expression, const char **lowered);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *n);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *n);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin);

/* What a compiled library exports for each kernel: `moth_emu_entries`, ended by one without a name. */
struct MothEmuEntry {
  const char *name;
  const void *function;
  int nparams;
  const size_t *sizes;              /* of the parameters */
  void (*run)(void *const *values); /* one thread of the kernel */
};
#endif
