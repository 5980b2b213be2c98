/* In place of the system's: the edge library opens no other library. Products run by its own kernels. */
#ifndef MOTH_EDGE_DLFCN_H
#define MOTH_EDGE_DLFCN_H
#include <stddef.h>

enum { RTLD_NOW, RTLD_LOCAL, RTLD_NODELETE };
static inline void *dlopen(const char *path, int flags) {
  (void)path;
  (void)flags;
  return NULL;
}
static inline void *dlsym(void *library, const char *symbol) {
  (void)library;
  (void)symbol;
  return NULL;
}
static inline int dlclose(void *library) {
  (void)library;
  return 0;
}
#endif
