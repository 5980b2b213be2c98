/* Used by the code that the emulation's NVRTC appends to a source: a table of its kernels, which cudaLibraryGetKernel
 * reads. */
#ifndef MOTH_EMU_RTC_H
#define MOTH_EMU_RTC_H
#include <utility>

#include "emu/cudaemu.h"
#include "emu/nvrtc.h"

template <auto kernel> struct MothEmuKernel;
template <class... P, void (*kernel)(P...)> struct MothEmuKernel<kernel> {
  static constexpr size_t sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};
  template <size_t... I> static void call(void *const *values, std::index_sequence<I...>) {
    (void)values;
    kernel(*static_cast<P *>(values[I])...);
  }
  static void run(void *const *values) { call(values, std::index_sequence_for<P...>()); }
  static constexpr MothEmuEntry entry(const char *name) {
    return {name, reinterpret_cast<const void *>(kernel), (int)sizeof...(P), sizes, run};
  }
};
#endif
