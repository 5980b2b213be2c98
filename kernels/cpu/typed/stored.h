/* What is compiled for dtypes that are there for storage and exchange: copies, fills, and the few pointwise loops
 * that their records name. */
// clang-format off
#include "kernels/cpu/typed/prelude.h"
#include "kernels/cpu/typed/copy.h"
