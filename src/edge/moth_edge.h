/* moth_edge.h — runs files of moth.edge.export from C: no Lua, no autograd, no allocation while a model runs.
 *
 *     MothModel *m;
 *     if (moth_edge_load("model.mte", &m))
 *       fprintf(stderr, "%s\n", moth_edge_error());
 *     void *arena = malloc(moth_edge_arena(m, NULL));
 *     moth_edge_run(m, (const void *[]){image}, NULL, (void *[]){scores}, arena);
 *
 * Functions that can fail return 0, or a number that is not 0 (that of a MothStatus); the message is in moth_edge_error,
 * per thread. A file is not trusted: what is wrong in it is an error, whatever its bytes are; how long it computes, and how much
 * memory it asks for, is not limited. A model is used by one thread at a time; several threads load it several times, which
 * costs little with moth_edge_load_memory. Tensors are row-major; a bool is one byte, 0 or 1. Positions count as in the
 * program that was exported: from 1 where Lua's ops give or take them. */
#ifndef MOTH_EDGE_H
#define MOTH_EDGE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOTH_EDGE_API __attribute__((visibility("default")))

typedef struct MothModel MothModel;

/* An input or output. Sizes are those of the dims last given to moth_edge_arena or moth_edge_run, at first the example's.
 * dim, of an input: by dimension, which of the model's dims it is, -1 where its size is fixed; of an output NULL. */
typedef struct MothIo {
  const char *name;
  const char *dtype; /* "float32", "int64", "bool", … */
  int itemsize;      /* bytes of an element */
  int ndim;
  const int64_t *shape;
  const int *dim;
  size_t nbytes;
} MothIo;

/* A dimension whose size the caller chooses: min to max (-1: any), a multiple of `step`. */
typedef struct MothDim {
  const char *name;
  int64_t min, max, step, example;
} MothDim;

/* The model of a file, which is read into memory; of n bytes, which are not copied and must outlive the model. They begin at
 * an address that is a multiple of 8. Beside them a model has some hundred bytes for each call of its program. *m is set where
 * the result is 0. */
MOTH_EDGE_API int moth_edge_load(const char *path, MothModel **m);
MOTH_EDGE_API int moth_edge_load_memory(const void *bytes, size_t n, MothModel **m);
MOTH_EDGE_API void moth_edge_free(MothModel *m); /* NULL is allowed */

MOTH_EDGE_API int moth_edge_inputs(const MothModel *m);
MOTH_EDGE_API int moth_edge_outputs(const MothModel *m);
MOTH_EDGE_API int moth_edge_dims(const MothModel *m);
MOTH_EDGE_API const MothIo *moth_edge_input(const MothModel *m, int i); /* NULL: there is none */
MOTH_EDGE_API const MothIo *moth_edge_output(const MothModel *m, int i);
MOTH_EDGE_API const MothDim *moth_edge_dim(const MothModel *m, int i);

/* Bytes of memory that a run needs for these sizes, moth_edge_dims of them (NULL: the example's). The first call for given
 * sizes runs the model once, on zeros, in memory that it frees afterwards, to know what its kernels need. 0: an error. The
 * weights of convolutions and of products with many rows are then packed for the kernels, into as much memory again as they
 * have, which the model keeps. A library of `make edge EDGE_PACK=0` packs them at each call, in the arena. */
MOTH_EDGE_API size_t moth_edge_arena(MothModel *m, const int64_t *dims);

/* Runs m, for the dims of the last moth_edge_arena. in: an address for each input; out: one for each output; they do not
 * overlap. arena: as many bytes as moth_edge_arena has said, at any address; nothing in it is kept. Allocates nothing. */
MOTH_EDGE_API int moth_edge_run(MothModel *m, const void *const *in, const int64_t *dims,
                                void *const *out, void *arena);

/* Tensors that the program writes to (statistics, a cache) keep their elements from run to run, in memory that moth_edge_load
 * has got; this gives them those of the file again. NULL is allowed. */
MOTH_EDGE_API void moth_edge_reset(MothModel *m);

/* What the last function that failed on this thread has to say. */
MOTH_EDGE_API const char *moth_edge_error(void);

#ifdef __cplusplus
}
#endif
#endif
