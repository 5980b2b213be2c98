/* Everything that is compiled once per dtype and ISA level. The order counts: each builds on those
 * above it. */
// clang-format off
#include "kernels/cpu/typed/prelude.h"
#include "kernels/cpu/typed/copy.h"
#include "kernels/cpu/typed/fold.h"
#include "kernels/cpu/typed/half.h"
#include "kernels/cpu/typed/lanes.h"
#include "kernels/cpu/typed/random.h"
#include "kernels/cpu/typed/reduce.h"
#include "kernels/cpu/typed/arg.h"
#include "kernels/cpu/typed/softmax.h"
#include "kernels/cpu/typed/loss.h"
#include "kernels/cpu/typed/norm.h"
#include "kernels/cpu/typed/optimizer.h"
#include "kernels/cpu/typed/scatter.h"
#include "kernels/cpu/typed/conv.h"
#include "kernels/cpu/typed/pool.h"
#include "kernels/cpu/typed/sort.h"
