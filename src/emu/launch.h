/* `kernel<<<grid, block, shared, stream>>>(args)` for g++: nvcc.lua writes it as
 * `MothEmuLaunch(grid, block, shared, stream).of("kernel", [=](auto... a) { kernel(a...); })(args)`. */
#ifndef MOTH_EMU_LAUNCH_H
#define MOTH_EMU_LAUNCH_H
#include "emu/cudaemu.h"

cudaError_t moth_emu_note(cudaError_t e); /* keeps it for cudaGetLastError */

struct MothEmuLaunch {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
  MothEmuLaunch(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr)
      : grid(grid), block(block), shared(shared), stream(stream) {}
  /* What is called with the arguments; those are copied, as the launch runs later. */
  template <class Kernel> auto of(const char *name, Kernel kernel) const {
    return [=, at = *this](auto... args) {
      cudaError_t e = moth_emu_launch(
          name, [=]() { kernel(args...); }, at.grid, at.block, at.shared, at.stream);
      if (e != cudaSuccess)
        moth_emu_note(e);
    };
  }
};
#endif
