/* Runs a library of moth.aot_compile, whose header is HEADER, on the bytes of a file: aot_spec.lua. */
#include HEADER
#include <stdio.h>
#include <stdlib.h>

static int failed(void) {
  puts(moth_edge_error());
  return 1;
}

int main(int argc, char **argv) {
  MothModel *m;
  if (argc != 3 || moth_aoti_load(&m))
    return failed();
  size_t n = moth_edge_arena(m, NULL), nin = moth_edge_input(m, 0)->nbytes;
  size_t nout = moth_edge_output(m, 0)->nbytes;
  void *arena = malloc(n), *in = malloc(nin), *out = malloc(nout);
  FILE *f = fopen(argv[1], "rb");
  if (!n || !arena || !in || !out || !f || fread(in, 1, nin, f) != nin)
    return failed();
  fclose(f);
  for (int i = 0; i < 2; i++)
    if (moth_aoti_run(m, (const void *const *)&in, NULL, &out, arena))
      return failed();
  f = fopen(argv[2], "wb");
  if (!f || fwrite(out, 1, nout, f) != nout || fclose(f))
    return failed();
  moth_edge_free(m);
  free(arena);
  free(in);
  free(out);
  return 0;
}
