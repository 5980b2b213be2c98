/* Runs a file of moth.edge.export without Lua. After `make edge`:
 *
 *     gcc examples/c/edge.c -Ibuild/edge build/edge/libmoth_edge.a -lm -o edge
 *     ./edge model.mte
 *
 * It fills the inputs with ones and prints the first elements of each float32 output. Everything that the model needs while it
 * runs lies in one block of memory, the arena. */
#include <moth_edge.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };

static int failed(void) {
  fprintf(stderr, "%s\n", moth_edge_error());
  return 1;
}

/* Ones: valid numbers, and valid positions. */
static void *make_input(const MothIo *io) {
  void *data = calloc(1, io->nbytes + 1);
  float *f = data;
  int64_t *i = data;
  size_t n = io->nbytes / (size_t)io->itemsize;
  for (size_t k = 0; data && k < n; k++) {
    if (!strcmp(io->dtype, "float32"))
      f[k] = 1;
    else if (!strcmp(io->dtype, "int64"))
      i[k] = 1;
  }
  return data;
}

static void print_output(const MothIo *io, const float *data) {
  size_t n = io->nbytes / (size_t)io->itemsize;
  printf("%s: %s, %zu elements:", io->name, io->dtype, n);
  for (size_t k = 0; k < n && k < 5 && !strcmp(io->dtype, "float32"); k++)
    printf(" %g", (double)data[k]);
  printf("\n");
}

int main(int argc, char **argv) {
  MothModel *m;
  void *in[MOST] = {0}, *out[MOST] = {0};
  if (argc != 2) {
    fprintf(stderr, "usage: %s model.mte\n", argv[0]);
    return 1;
  }
  if (moth_edge_load(argv[1], &m))
    return failed();
  int nin = moth_edge_inputs(m), nout = moth_edge_outputs(m);
  size_t bytes = moth_edge_arena(
      m, NULL); /* for the sizes of the example; else an array of moth_edge_dims(m) numbers */
  void *arena = malloc(bytes);
  if (!bytes || !arena || nin > MOST || nout > MOST)
    return failed();
  for (int i = 0; i < nin; i++)
    in[i] = make_input(moth_edge_input(m, i));
  for (int i = 0; i < nout; i++)
    out[i] = malloc(moth_edge_output(m, i)->nbytes + 1);
  if (moth_edge_run(m, (const void *const *)in, NULL, out, arena))
    return failed();
  for (int i = 0; i < nout; i++)
    print_output(moth_edge_output(m, i), out[i]);
  for (int i = 0; i < MOST; i++) {
    free(in[i]);
    free(out[i]);
  }
  free(arena);
  moth_edge_free(m);
  return 0;
}
