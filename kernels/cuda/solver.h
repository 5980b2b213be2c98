/* cuSOLVER, and what cuBLAS solves: opened at the first call, with handles for each device. Matrices are column-major,
 * of float32, float64, complex64 or complex128; calls are queued on a stream. One thread at a time uses a handle.
 *
 * Each function works on `count` matrices that follow upon each other in memory; info[i], on the device, belongs to matrix i.
 * Many small matrices are one call where the libraries have one. */
#ifndef MOTH_CUDA_SOLVER_H
#define MOTH_CUDA_SOLVER_H
#include "kernels/cuda/util.h"

/* Whether the libraries are there; else a warning has said why. */
bool moth_cuda_has_solver(void);
/* Whether they have eigenvalues of general matrices, which came late. */
bool moth_cuda_has_geev(void);

/* Matrices of one call. */
struct MothSolver {
  const MothCudaRun *run;
  MothDType dtype;
  int64_t count;
  int32_t *info;
};

MothStatus moth_solver_potrf(const MothSolver *s, bool upper, int64_t n, void *a);
/* `pivots`, min(m, n) of each, from 1; NULL: no rows are exchanged. */
MothStatus moth_solver_getrf(const MothSolver *s, int64_t m, int64_t n, void *a, int32_t *pivots);
/* The solution of A X = B (adjoint: A^H X = B) over b, of k columns. */
MothStatus moth_solver_getrs(const MothSolver *s, bool adjoint, int64_t n, int64_t k, const void *a,
                             const int32_t *pivots, void *b);
/* The matrices are `step` elements apart. */
MothStatus moth_solver_geqrf(const MothSolver *s, int64_t m, int64_t n, void *a, int64_t step,
                             void *tau);
/* The first n columns of Q over a, of k > 0 reflectors. */
MothStatus moth_solver_orgqr(const MothSolver *s, int64_t m, int64_t n, int64_t k, void *a,
                             int64_t step, const void *tau);
/* Q C, C Q or, adjoint, with Q^H, over c of m x n. a: of k > 0 reflectors, `rows` rows and `columns` columns. */
MothStatus moth_solver_ormqr(const MothSolver *s, bool left, bool adjoint, int64_t m, int64_t n,
                             int64_t k, const void *a, int64_t rows, int64_t columns,
                             const void *tau, void *c);
/* Eigenvalues w, real and ascending, and with vectors the eigenvectors over a. */
MothStatus moth_solver_syevd(const MothSolver *s, bool vectors, bool upper, int64_t n, void *a,
                             void *w);
/* Eigenvalues w, 2 n real numbers each: of real matrices first the real parts, then the imaginary ones; eigenvectors v
 * as LAPACK's geev has them, NULL: none. a is overwritten. */
MothStatus moth_solver_geev(const MothSolver *s, int64_t n, void *a, void *w, void *v);
/* m >= n; a is overwritten. job: 'N', 'S' or 'A'; u of m x (n or m), vt of n x n; NULL where job is 'N'. */
MothStatus moth_solver_gesvd(const MothSolver *s, char job, int64_t m, int64_t n, void *a, void *w,
                             void *u, void *vt);
/* A triangular solve: X with A X = B (left) or X A = B over b, of m x n; the matrices of a batch are *_step elements apart. */
struct MothTriangular {
  bool left, upper, transposed, unit;
  int64_t m, n;
  const void *a;
  int64_t lda, a_step;
  void *b;
  int64_t ldb, b_step;
};
MothStatus moth_solver_trsm(const MothSolver *s, const MothTriangular *t);
/* L D L' of the lower triangle of a symmetric matrix, in place; pivots as LAPACK's sytrf has them. */
MothStatus moth_solver_sytrf(const MothSolver *s, int64_t n, void *a, int32_t *pivots);
/* The solution of A X = B over b, of k columns. */
MothStatus moth_solver_sytrs(const MothSolver *s, int64_t n, int64_t k, const void *a,
                             const int32_t *pivots, void *b);
#endif
