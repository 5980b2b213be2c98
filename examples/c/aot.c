/* Calls a library of moth.aot_compile without Lua. In moth:
 *
 *     moth.aot_compile(moth.export(model:eval(), { x }), { out = "model.so" })
 *
 * which writes model.h, too. Then, with the folder of libmoth.so:
 *
 *     gcc examples/c/aot.c -I. ./model.so -Lbuild -lmoth -Wl,-rpath,$PWD/build -o aot && ./aot
 *
 * It runs the model on zeros and prints the first elements of its first output, which is float32. */
#include "model.h"
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 8 };

static int failed(void) {
  fprintf(stderr, "%s\n", moth_edge_error());
  return 1;
}

int main(void) {
  MothModel *m;
  void *in[MOST] = {0}, *out[MOST] = {0};
  if (moth_aoti_load(&m))
    return failed();
  int nin = moth_edge_inputs(m), nout = moth_edge_outputs(m);
  size_t bytes = moth_edge_arena(m, NULL);
  void *arena = malloc(bytes);
  if (!bytes || !arena || nin > MOST || nout > MOST)
    return failed();
  for (int i = 0; i < nin; i++)
    in[i] = calloc(1, moth_edge_input(m, i)->nbytes + 1);
  for (int i = 0; i < nout; i++)
    out[i] = malloc(moth_edge_output(m, i)->nbytes + 1);
  if (moth_aoti_run(m, (const void *const *)in, NULL, out, arena))
    return failed();
  const MothIo *first = moth_edge_output(m, 0);
  for (size_t k = 0; k < 5 && k < first->nbytes / sizeof(float); k++)
    printf("%g\n", (double)((const float *)out[0])[k]);
  for (int i = 0; i < MOST; i++) {
    free(in[i]);
    free(out[i]);
  }
  free(arena);
  moth_edge_free(m);
  return 0;
}
