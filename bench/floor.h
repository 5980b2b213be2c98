/* Shared by the floor's C files. The Lua side has its own declarations: bench/floor.lua. */
#ifndef MOTH_BENCH_FLOOR_H
#define MOTH_BENCH_FLOOR_H
#include <stdint.h>

typedef void (*FloorSgemm)(int, int, int, int, int, int, float, const float *, int, const float *,
                           int, float, float *, int);
extern FloorSgemm floor_sgemm;
void *floor_buffer(int64_t bytes);
void floor_release(void *p);
void floor_blas_threads(int threads);
#endif
