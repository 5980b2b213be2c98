/* as_strided_scatter: a write to a view as a value of its own. */
#include "composite/composite.h"
#include "dispatch/eval.h"
#include "ops/create.h"
#include "ops/view.h"
#include "unpack/view.h"

MothStatus moth_composite_as_strided_scatter(MothCall *c) {
  MOTH_UNPACK_AS_STRIDED_SCATTER(c)
  MothTensor *copy = NULL, *part = NULL;
  MothStatus status = MOTH_OK;
  MOTH_GO(moth_clone(self, &copy));
  MothValue whole = moth_v_tensor(copy);
  MOTH_GO(moth_match_batch(&whole, 1, (MothValue[]){moth_v_tensor(src)}));
  copy = whole.u.t;
  MOTH_GO(moth_as_strided(copy, size.u.ints, (int)size.n, stride.u.ints, (int)stride.n,
                          moth_v_int(storage_offset), &part));
  MOTH_GO(moth_copy_(part, src, false));
done:
  moth_tensor_release(part);
  if (status != MOTH_OK) {
    moth_tensor_release(copy);
    return status;
  }
  return moth_give(c, copy);
}
