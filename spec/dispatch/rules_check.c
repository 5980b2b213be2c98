/* Wrong shape rules, to see that spec/dispatch/infer_spec.lua finds them: plant(op, 1 … 3) and plant(op, 0), which takes
 * the mistake away again. */
#include <string.h>

#include "dispatch/dispatch.h"

static MothOp *planted;
static MothShape right;
static int mistake;

static MothStatus wrong(const MothCall *c, MothMeta *out) {
  MOTH_TRY(right(c, out));
  if (mistake == 1)
    out->shape[0] += 1;
  else if (mistake == 2)
    out->dtype = out->dtype == MOTH_FLOAT64 ? MOTH_FLOAT32 : MOTH_FLOAT64;
  else
    out->stride[0] += 1;
  return MOTH_OK;
}

/* The rule of op becomes `rule`; NULL: its own again. */
__attribute__((visibility("default"))) void plant_rule(const char *op, MothShape rule) {
  if (planted)
    planted->shape = right;
  planted = rule ? (MothOp *)moth_op_find(op) : NULL;
  if (!planted)
    return;
  right = planted->shape;
  planted->shape = rule;
}

__attribute__((visibility("default"))) void plant(const char *op, int which) {
  mistake = which;
  plant_rule(op, which ? wrong : NULL);
}
