/* CUDA's libraries, opened when they are first used. */
#ifndef MOTH_CUDA_LIB_H
#define MOTH_CUDA_LIB_H
#include "cuda/rt.h"

/* Opens the first of the sonames (NULL ends them) that is found: in the folder $MOTH_CUDA_LIB, where the
 * system looks, in the toolkit's folder, among Python's packages. The handle stays open. Error: the
 * names that were tried, and what the loader said. */
MothStatus moth_cuda_lib_open(const char *name, const char *const *sonames, void **handle);
#endif
