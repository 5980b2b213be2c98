/* Where CUDA's libraries are looked for. */
#include "cuda/lib.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char said[256]; /* the loader's last complaint */

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

static void *try_packages(const char *prefix, const char *soname) {
  char pattern[1024];
  snprintf(pattern, sizeof pattern, "%s/lib/python3*/site-packages/nvidia/*/lib/%s", prefix,
           soname);
  return try_pattern(pattern);
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

static void *find_library(const char *soname) {
  const char *folder = getenv("MOTH_CUDA_LIB");
  char path[1024];
  void *handle = nullptr;
  if (folder && *folder) {
    snprintf(path, sizeof path, "%s/%s", folder, soname);
    handle = try_open(path);
  }
  if (!handle)
    handle = try_open(soname);
  if (!handle) {
    snprintf(path, sizeof path, "/usr/local/cuda/lib64/%s", soname);
    handle = try_open(path);
  }
  return handle ? handle : try_pythons(soname);
}

MothStatus moth_cuda_lib_open(const char *name, const char *const *sonames, void **handle) {
  for (int i = 0; sonames[i]; i++)
    if ((*handle = find_library(sonames[i])))
      return MOTH_OK;
  return moth_fail(MOTH_ERR_STATE,
                   "%s is not there: %s (%s); HINT: name its folder in MOTH_CUDA_LIB", name,
                   sonames[0], said);
}
