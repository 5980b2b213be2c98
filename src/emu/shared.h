/* Shared memory of the emulation: fresh for every block, so that what a kernel reads before it writes
 * it is NaN, and not what the block before has left. */
#ifndef MOTH_CUDA_EMU_SHARED_H
#define MOTH_CUDA_EMU_SHARED_H
#include <stddef.h>

/* A launch with so many bytes of dynamic shared memory; past them is a page that is not there (under
 * AddressSanitizer the first byte is an error). False: no memory. */
bool moth_emu_shared_open(size_t dynamic);
/* A block begins. */
void moth_emu_shared_begin(void);
#endif
