/* In place of OpenMP's: kernels of the edge library run on the thread that calls them. */
#ifndef MOTH_EDGE_OMP_H
#define MOTH_EDGE_OMP_H
static inline int omp_in_parallel(void) {
  return 0;
}
static inline int omp_get_max_threads(void) {
  return 1;
}
static inline void omp_set_num_threads(int n) {
  (void)n;
}
#endif
