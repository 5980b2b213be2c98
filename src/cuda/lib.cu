/* Where CUDA's libraries are looked for. */
#include "cuda/cuda.h"
#include "cuda/lib.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char said[256]; /* the loader's last error */

static void *try_open(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    snprintf(said, sizeof said, "%s", dlerror());
  return handle;
}

static void *try_pattern(const char *pattern) {
  glob_t found;
  void *handle = nullptr;
  if (glob(pattern, 0, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc && !handle; i++)
      handle = try_open(found.gl_pathv[i]);
  globfree(&found);
  return handle;
}

/* Python's packages below a prefix: pip puts NVIDIA's libraries there. */
static void *try_packages(const char *prefix, const char *soname) {
  char pattern[1024];
  void *handle = nullptr;
  for (const char *site : {"site-packages", "dist-packages"}) {
    snprintf(pattern, sizeof pattern, "%s/lib/python3*/%s/nvidia/*/lib/%s", prefix, site, soname);
    if (!handle)
      handle = try_pattern(pattern);
  }
  return handle;
}

/* The packages beside each python3 of $PATH. */
static void *try_pythons(const char *soname) {
  const char *venv = getenv("VIRTUAL_ENV"), *path = getenv("PATH");
  void *handle = venv ? try_packages(venv, soname) : nullptr;
  while (path && *path && !handle) {
    size_t n = strcspn(path, ":");
    char python[512], real[4096];
    snprintf(python, sizeof python, "%.*s/python3", (int)n, path);
    if (n < 480 && realpath(python, real)) {
      /* a virtual environment's python3 is a link to another: both places count */
      snprintf(python, sizeof python, "%.*s/..", (int)n, path);
      handle = try_packages(python, soname);
      char *slash = strrchr(real, '/');
      if (!handle && slash) {
        snprintf(slash, sizeof real - (size_t)(slash - real), "/..");
        handle = try_packages(real, soname);
      }
    }
    path += n + (path[n] == ':');
  }
  return handle;
}

static void *try_in(const char *folder, const char *below, const char *soname) {
  char path[1024];
  if (!folder || !*folder)
    return nullptr;
  snprintf(path, sizeof path, "%s%s/%s", folder, below, soname);
  return try_open(path);
}

static void *find_library(const char *soname) {
  void *handle = try_in(moth_env_text("MOTH_CUDA_LIB"), "", soname);
  if (!handle)
    handle = try_open(soname);
  for (const char *toolkit : {(const char *)getenv("CUDA_HOME"), (const char *)getenv("CUDA_PATH"),
                              (const char *)"/usr/local/cuda"})
    if (!handle)
      handle = try_in(toolkit, "/lib64", soname);
  if (!handle)
    handle = try_pythons(soname);
  for (const char *home : {getenv("CONDA_PREFIX"), getenv("HOME")})
    if (!handle && home) {
      char local[600];
      snprintf(local, sizeof local, "%.500s%s", home, home == getenv("HOME") ? "/.local" : "");
      handle = try_packages(local, soname);
    }
  if (!handle)
    handle = try_packages("/opt/*/.venv", soname);
  return handle ? handle : try_packages("/opt/*", soname);
}

#define TEXT2(x) #x
#define TEXT(x)  TEXT2(x)
#ifdef __CUDACC_VER_MAJOR__
#define TOOLKIT TEXT(__CUDACC_VER_MAJOR__)
#else
#define TOOLKIT "13"
#endif
/* cuFFT and cuSOLVER count from one less. */
#if defined __CUDACC_VER_MAJOR__ && __CUDACC_VER_MAJOR__ < 13
#define MATH "11"
#else
#define MATH "12"
#endif

/* version: of the functions below, by what it takes and gives */
enum Version { NONE, RESULT, ONE, TWO };
static const struct {
  const char *name, *sonames[5];
  Version how;
  const char *version;
} libraries[MOTH_CUDA_NLIBS] = {
    {"cuBLASLt", {"libcublasLt.so." TOOLKIT, "libcublasLt.so"}, RESULT, "cublasLtGetVersion"},
    {"cuDNN", {"libcudnn.so.9", "libcudnn.so"}, RESULT, "cudnnGetVersion"},
    {"NVRTC", {"libnvrtc.so." TOOLKIT, "libnvrtc.so"}, TWO, "nvrtcVersion"},
    {"NCCL", {"libnccl.so.2", "libnccl.so"}, ONE, "ncclGetVersion"},
    {"CUPTI", {"libcupti.so." TOOLKIT, "libcupti.so"}, ONE, "cuptiGetVersion"},
    {"cuFFT", {"libcufft.so." MATH, "libcufft.so"}, ONE, "cufftGetVersion"},
    {"cuSOLVER", {"libcusolver.so." MATH, "libcusolver.so"}, ONE, "cusolverGetVersion"},
    {"cuBLAS", {"libcublas.so." TOOLKIT, "libcublas.so"}, NONE, nullptr},
};

/* cuBLAS with several streams gives the same bits in every run with a workspace of fixed size for each. */
static void settle_cublas(MothCudaLib which) {
  if (moth_cuda_deterministic() && (which == MOTH_CUDA_CUBLAS || which == MOTH_CUDA_CUSOLVER))
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
}

MothStatus moth_cuda_lib_open(MothCudaLib which, void **handle) {
  settle_cublas(which);
  const char *const *sonames = libraries[which].sonames;
  char names[256] = "";
  for (int i = 0; sonames[i]; i++) {
    if ((*handle = find_library(sonames[i])))
      return MOTH_OK;
    size_t n = strlen(names);
    snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", sonames[i]);
  }
  const char *folder = moth_env_text("MOTH_CUDA_LIB");
  return moth_fail(
      MOTH_ERR_STATE,
      "%s is not there: looked for %s in %s%sthe loader's folders, $CUDA_HOME/lib64, "
      "/usr/local/cuda/lib64, and nvidia/*/lib of the Python packages of $VIRTUAL_ENV, "
      "of each python3 in $PATH, ~/.local, /opt/* (last said: %s); HINT: name its "
      "folder in MOTH_CUDA_LIB",
      libraries[which].name, names, folder ? folder : "", folder ? ", " : "", said);
}

void moth_cuda_lib_warn(const char *what) {
  fprintf(stderr, "[moth] warning: %s on CUDA devices runs on the CPU, on copies: %s\n", what,
          moth_last_error());
}

MothStatus moth_cuda_library(int i, const char **name, int64_t *version) {
  void *handle;
  *name = i < MOTH_CUDA_NLIBS ? libraries[i].name : nullptr;
  *version = 0;
  if (!*name)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_lib_open((MothCudaLib)i, &handle));
  void *f = libraries[i].version ? dlsym(handle, libraries[i].version) : nullptr;
  int major = 0, minor = 0;
  if (f && libraries[i].how == RESULT) {
    *version = (int64_t) reinterpret_cast<size_t (*)(void)>(f)();
  } else if (f && libraries[i].how == ONE) {
    reinterpret_cast<int (*)(int *)>(f)(&major);
    *version = major;
  } else if (f) {
    reinterpret_cast<int (*)(int *, int *)>(f)(&major, &minor);
    *version = 1000 * major + 10 * minor;
  }
  return MOTH_OK;
}
