/* Shared memory of the emulation: filled with NaNs for every block, so that a kernel that reads before it writes does
 * not get the values of the block before. */
#ifndef MOTH_CUDA_EMU_SHARED_H
#define MOTH_CUDA_EMU_SHARED_H
#include <stddef.h>

/* Begins a launch with so many bytes of dynamic shared memory; behind them is a page that is not mapped (under
 * AddressSanitizer the first byte behind is an error). False: no memory. */
bool moth_emu_shared_open(size_t dynamic);
/* Begins a block. */
void moth_emu_shared_begin(void);
#endif
