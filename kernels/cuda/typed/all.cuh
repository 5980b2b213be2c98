/* The structured kernels that are compiled once per dtype. The order counts: each builds on those above
 * it. */
// clang-format off
#include "kernels/cuda/typed/prelude.cuh"
namespace {
#include "kernels/cuda/typed/create.cuh"
#include "kernels/cuda/typed/gemm.cuh"
#include "kernels/cuda/typed/conv.cuh"
#include "kernels/cuda/typed/pool.cuh"
} // namespace
