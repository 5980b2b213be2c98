/* The BLAS library that moth opens: kernels/cpu/blas_open.c. */
#ifndef MOTH_CPU_BLAS_OPEN_H
#define MOTH_CPU_BLAS_OPEN_H

enum { MOTH_ROW_MAJOR = 101, MOTH_NO_TRANS = 111, MOTH_TRANS = 112 };
typedef void (*MothSgemm)(int, int, int, int, int, int, float, const float *, int, const float *,
                          int, float, float *, int);
typedef void (*MothDgemm)(int, int, int, int, int, int, double, const double *, int, const double *,
                          int, double, double *, int);
typedef void (*MothZgemm)(int, int, int, int, int, int, const void *, const void *, int,
                          const void *, int, const void *, void *, int); /* and cblas_cgemm */

typedef struct MothBlas {
  void *library; /* NULL: there is none, and the rest is NULL but for `path` */
  MothSgemm sgemm;
  MothDgemm dgemm;
  MothZgemm cgemm, zgemm; /* NULL: the library has none */
  const char *path;       /* "none" */
  const char *core;       /* the processor that its kernels are for, where it says; else "" */
  const char *note; /* why it is not used, or why the core is not the library's choice; else "" */
} MothBlas;

/* Opened at the first call. */
const MothBlas *moth_blas(void);
#endif
