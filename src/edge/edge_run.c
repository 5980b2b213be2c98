/* edge-run MODEL [INPUT [OUTPUT]]: runs a file of moth.edge.export on raw bytes.
 *
 *     edge-run model.mte                        what it takes and gives
 *     edge-run model.mte input.bin              prints the outputs
 *     edge-run model.mte input.bin output.bin   writes them
 *
 * INPUT has the elements of all inputs, one behind the other, row-major; "-": zeros, of integers ones. -d NAME=SIZE sets a
 * dimension; without it the size is the example's. -n COUNT runs the model so often and prints the processor time of a run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "moth_edge.h"

typedef struct Options {
  const char *model, *input, *output;
  const char *dims[64];
  int ndims, runs;
} Options;

static int usage(void) {
  fprintf(stderr, "usage: edge-run [-d NAME=SIZE] [-n COUNT] MODEL [INPUT [OUTPUT]]\n");
  return 2;
}

static int read_options(int argc, char **argv, Options *o) {
  const char **files[] = {&o->model, &o->input, &o->output};
  int n = 0;
  for (int i = 1; i < argc; i++) {
    if (argv[i][0] == '-' && argv[i][1] == 'd' && i + 1 < argc && o->ndims < 64)
      o->dims[o->ndims++] = argv[++i];
    else if (argv[i][0] == '-' && argv[i][1] == 'n' && i + 1 < argc && atoi(argv[i + 1]) > 0)
      o->runs = atoi(argv[++i]);
    else if (n == 3 || (argv[i][0] == '-' && argv[i][1]))
      return usage();
    else
      *files[n++] = argv[i];
  }
  return n ? 0 : usage();
}

static void print_io(const char *what, const MothIo *io, const MothModel *m) {
  printf("%s %s: %s [", what, io->name, io->dtype);
  for (int k = 0; k < io->ndim; k++) {
    printf("%s%lld", k ? ", " : "", (long long)io->shape[k]);
    if (io->dim && io->dim[k] >= 0)
      printf(" (%s)", moth_edge_dim(m, io->dim[k])->name);
  }
  printf("]\n");
}

static void print_elements(const MothIo *io, const void *data) {
  size_t n = io->nbytes / (size_t)io->itemsize;
  for (size_t i = 0; i < n; i++) {
    if (!strcmp(io->dtype, "float32"))
      printf("%.6g\n", (double)((const float *)data)[i]);
    else if (!strcmp(io->dtype, "float64"))
      printf("%.15g\n", ((const double *)data)[i]);
    else if (!strcmp(io->dtype, "int64"))
      printf("%lld\n", (long long)((const int64_t *)data)[i]);
    else if (!strcmp(io->dtype, "int32"))
      printf("%d\n", ((const int32_t *)data)[i]);
    else if (io->itemsize == 1)
      printf("%d\n", ((const uint8_t *)data)[i]);
    else
      printf("(%s)\n", io->dtype);
  }
}

static int set_dims(const MothModel *m, const Options *o, int64_t *dims) {
  for (int i = 0; i < moth_edge_dims(m); i++)
    dims[i] = moth_edge_dim(m, i)->example;
  for (int k = 0; k < o->ndims; k++) {
    const char *eq = strchr(o->dims[k], '=');
    int i = 0, n = moth_edge_dims(m);
    while (eq && i < n &&
           (strlen(moth_edge_dim(m, i)->name) != (size_t)(eq - o->dims[k]) ||
            strncmp(moth_edge_dim(m, i)->name, o->dims[k], (size_t)(eq - o->dims[k])) != 0))
      i++;
    if (!eq || i == n) {
      fprintf(stderr, "edge-run: the model has no dimension '%s'\n", o->dims[k]);
      return 1;
    }
    char *end;
    dims[i] = strtoll(eq + 1, &end, 10);
    if (end == eq + 1 || *end) {
      fprintf(stderr, "edge-run: -d %s: expected a size\n", o->dims[k]);
      return 1;
    }
  }
  return 0;
}

/* Reads `file` (NULL: zeros, and ones, which are valid positions) into the inputs. */
static int read_inputs(const MothModel *m, const char *file, void **in) {
  FILE *f = file && strcmp(file, "-") != 0 ? fopen(file, "rb") : NULL;
  if (file && !f && strcmp(file, "-") != 0) {
    perror(file);
    return 1;
  }
  int ok = 1;
  size_t most = 0;
  for (int i = 0; i < moth_edge_inputs(m); i++) {
    const MothIo *io = moth_edge_input(m, i);
    most += io->nbytes;
    in[i] = calloc(io->nbytes + 1, 1);
    for (size_t k = 0; in[i] && !f && strstr(io->dtype, "int") && k < io->nbytes;
         k += (size_t)io->itemsize)
      ((char *)in[i])[k] = 1;
    ok = ok && in[i] && (!f || fread(in[i], 1, io->nbytes, f) == io->nbytes);
  }
  ok = ok && (!f || fgetc(f) == EOF);
  if (f)
    fclose(f);
  if (!ok)
    fprintf(stderr, "edge-run: %s does not have the %zu bytes of the inputs\n", file ? file : "-",
            most);
  return !ok;
}

static int write_outputs(const MothModel *m, const char *file, void **out) {
  FILE *f = fopen(file, "wb");
  int ok = f != NULL;
  for (int i = 0; i < moth_edge_outputs(m) && ok; i++) {
    const MothIo *io = moth_edge_output(m, i);
    ok = fwrite(out[i], 1, io->nbytes, f) == io->nbytes;
  }
  ok = f && !fclose(f) && ok;
  if (!ok)
    perror(file);
  return !ok;
}

static int failed(void) {
  fprintf(stderr, "edge-run: %s\n", moth_edge_error());
  return 1;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int run(MothModel *m, const Options *o, const int64_t *dims, void *arena, void **in,
               void **out) {
  if (read_inputs(m, o->input, in))
    return 1;
  for (int i = 0; i < moth_edge_outputs(m); i++)
    if (!(out[i] = calloc(moth_edge_output(m, i)->nbytes + 1, 1)))
      return 1;
  double begin = now();
  int runs = o->runs > 0 ? o->runs : 1;
  for (int i = 0; i < runs; i++)
    if (moth_edge_run(m, (const void *const *)in, dims, out, arena))
      return failed();
  if (o->runs > 0)
    printf("%.3f ms\n", (now() - begin) / runs);
  if (o->output)
    return write_outputs(m, o->output, out);
  for (int i = 0; i < moth_edge_outputs(m) && o->runs <= 0; i++) {
    print_io("output", moth_edge_output(m, i), m);
    print_elements(moth_edge_output(m, i), out[i]);
  }
  return 0;
}

static int use(MothModel *m, const Options *o) {
  int64_t dims[64];
  if (set_dims(m, o, dims))
    return 1;
  size_t bytes = moth_edge_arena(m, dims);
  if (!bytes)
    return failed();
  if (!o->input && o->runs <= 0) {
    for (int i = 0; i < moth_edge_inputs(m); i++)
      print_io("input", moth_edge_input(m, i), m);
    for (int i = 0; i < moth_edge_outputs(m); i++)
      print_io("output", moth_edge_output(m, i), m);
    printf("arena: %zu bytes\n", bytes);
    return 0;
  }
  int nin = moth_edge_inputs(m), nout = moth_edge_outputs(m);
  void **in = calloc((size_t)nin + (size_t)nout + 1, sizeof *in), *arena = malloc(bytes);
  int rc = in && arena ? run(m, o, dims, arena, in, in + nin) : 1;
  for (int i = 0; in && i < nin + nout; i++)
    free(in[i]);
  free(in);
  free(arena);
  return rc;
}

int main(int argc, char **argv) {
  Options o = {0};
  MothModel *m = NULL;
  int rc = read_options(argc, argv, &o);
  if (rc)
    return rc;
  if (moth_edge_load(o.model, &m))
    return failed();
  rc = use(m, &o);
  moth_edge_free(m);
  return rc;
}
