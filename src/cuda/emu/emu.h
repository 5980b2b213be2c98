/* Between the parts of the emulation. */
#ifndef MOTH_CUDA_EMU_EMU_H
#define MOTH_CUDA_EMU_EMU_H
#include "cuda/emu/cudaemu.h"

/* Runs a kernel now, to its end. */
cudaError_t moth_emu_run(const char *name, const std::function<void()> &f, dim3 grid, dim3 block,
                         size_t shared);
#endif
