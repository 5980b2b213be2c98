/* The structured kernels that are compiled once per dtype. The order counts: each builds on those above
 * it. */
// clang-format off
#include "kernels/cuda/typed/prelude.cuh"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/scatter.h"
namespace {
#include "kernels/cuda/typed/create.cuh"
#include "kernels/cuda/typed/random.cuh"
#include "kernels/cuda/typed/optimizer.cuh"
#include "kernels/cuda/typed/scatter.cuh"
#include "kernels/cuda/typed/gemm.cuh"
} // namespace
