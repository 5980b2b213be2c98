/* The structured kernels that are compiled once per dtype. The order counts: each builds on those above
 * it. */
// clang-format off
#include "kernels/cuda/typed/prelude.cuh"
#include "kernels/cuda/amp.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/scatter.h"
extern "C" {
#include "kernels/common/reduce.h"
}
#include "kernels/common/gemm.h"
#include "kernels/common/norm.h"
#include "kernels/common/pool.h"
#include "kernels/common/random.h"
#include "kernels/common/scan.h"
#include "kernels/common/sequence.h"
#include "kernels/common/softmax.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/util.h"
namespace {
#include "kernels/cuda/typed/create.cuh"
#include "kernels/cuda/typed/random.cuh"
#include "kernels/cuda/typed/steps.cuh"
#include "kernels/cuda/typed/optimizer.cuh"
#include "kernels/cuda/typed/scatter.cuh"
#include "kernels/cuda/typed/gemm.cuh"
#include "kernels/cuda/typed/lanes.cuh"
#include "kernels/cuda/typed/combine.cuh"
#include "kernels/cuda/typed/reduce.cuh"
#include "kernels/cuda/typed/scan.cuh"
#include "kernels/cuda/typed/softmax.cuh"
#include "kernels/cuda/typed/softmax_backward.cuh"
#include "kernels/cuda/typed/loss.cuh"
#include "kernels/cuda/typed/conv.cuh"
#include "kernels/cuda/typed/pool.cuh"
#include "kernels/cuda/typed/norm.cuh"
} // namespace
