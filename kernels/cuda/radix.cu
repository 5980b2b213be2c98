/* The interface to a stable sort of (key, position): CUB's radix sort under nvcc; under the emulation a serial one,
 * queued on the stream as kernels are. */
#include "kernels/cuda/scatter.h"
#ifdef __CUDACC__
#include <cub/device/device_radix_sort.cuh>
#endif

namespace {

#ifndef __CUDACC__
template <class U> void serial_sort(MothPairs in, MothPairs spare, int bits) {
  for (int shift = 0, odd = 0; shift < bits; shift += 8, odd = !odd) {
    const MothPairs &a = odd ? spare : in, &b = odd ? in : spare;
    const U *key = (const U *)a.key, *pos = (const U *)a.pos;
    int64_t at[257] = {0};
    for (int64_t i = 0; i < in.n; i++)
      at[(key[i] >> shift & 255) + 1]++;
    for (int d = 0; d < 256; d++)
      at[d + 1] += at[d];
    for (int64_t i = 0; i < in.n; i++) {
      int64_t to = at[key[i] >> shift & 255]++;
      ((U *)b.key)[to] = key[i];
      ((U *)b.pos)[to] = pos[i];
    }
  }
}
#endif

template <class U>
MothStatus sort_pairs(int device, cudaStream_t stream, const MothPairs &in, const MothPairs &spare,
                      int bits, MothPairs *sorted) {
#ifdef __CUDACC__
  cub::DoubleBuffer<U> key((U *)in.key, (U *)spare.key), pos((U *)in.pos, (U *)spare.pos);
  size_t bytes = 0;
  MothScratch scratch;
  MOTH_CUDA_TRY(cub::DeviceRadixSort::SortPairs(nullptr, bytes, key, pos, in.n, 0, bits, stream));
  MOTH_TRY(scratch.take(device, bytes));
  MOTH_CUDA_TRY(cub::DeviceRadixSort::SortPairs(scratch.p, bytes, key, pos, in.n, 0, bits, stream));
  *sorted = MothPairs{in.wide, in.n, key.Current(), pos.Current()};
  return MOTH_OK;
#else
  (void)device;
  *sorted = (bits + 7) / 8 % 2 ? spare : in;
  return moth_launch("sort_pairs", serial_sort<U>, dim3(1), dim3(1), 0, stream, in, spare, bits);
#endif
}

} // namespace

MothStatus moth_cuda_sort_pairs(int device, cudaStream_t stream, const MothPairs *in,
                                const MothPairs *spare, int bits, MothPairs *sorted) {
  *sorted = *in;
  if (in->n < 2 || bits == 0)
    return MOTH_OK;
  return in->wide ? sort_pairs<uint64_t>(device, stream, *in, *spare, bits, sorted)
                  : sort_pairs<uint32_t>(device, stream, *in, *spare, bits, sorted);
}
