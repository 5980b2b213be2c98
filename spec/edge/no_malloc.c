/* Runs a model three times and counts allocations; linked with --wrap for each of them (edge_spec.lua). */
#include <stdio.h>
#include <stdlib.h>

#include "moth_edge.h"

static long count;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n) {
  count++;
  return __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size) {
  count++;
  return __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n) {
  count++;
  return __real_realloc(p, n);
}
void *__wrap_aligned_alloc(size_t align, size_t n) {
  count++;
  return __real_aligned_alloc(align, n);
}

int main(int argc, char **argv) {
  MothModel *m;
  if (argc != 2 || moth_edge_load(argv[1], &m))
    return printf("%s\n", moth_edge_error());
  int64_t one = 1;
  if (moth_edge_dims(m) && !moth_edge_arena(m, &one)) /* other sizes before */
    return printf("%s\n", moth_edge_error());
  size_t bytes = moth_edge_arena(m, NULL);
  void *arena = malloc(bytes), *in = calloc(1, moth_edge_input(m, 0)->nbytes);
  void *out = calloc(1, moth_edge_output(m, 0)->nbytes);
  for (size_t i = 0; in && i < moth_edge_input(m, 0)->nbytes;
       i += (size_t)moth_edge_input(m, 0)->itemsize)
    ((char *)in)[i] = 1;
  long before = count;
  for (int i = 0; i < 3; i++)
    if (moth_edge_run(m, (const void *const *)&in, NULL, &out, arena))
      return printf("%s\n", moth_edge_error());
  printf("loading: %ld, three runs: %ld\n", before, count - before);
  moth_edge_free(m);
  free(arena);
  free(in);
  free(out);
  return 0;
}
