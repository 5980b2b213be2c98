/* Segments compiled ahead of time: what a segment is made of, and its calls but for the callables. See aot.h, and
 * lua/moth/compile/aot.lua for what a plain graph is. */
#include "graph/aot.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "ops/create.h"

void moth_aot_free_backward(MothAotBackward *b) {
  free(b->key);
  free(b->given);
  free(b->takes);
  free(b->wanted);
  moth_graph_release(b->graph);
  free(b->pinned);
  free(b->numbers);
  free(b->gradient);
  free(b);
}

void moth_aot_free(MothAot *a) {
  if (!a)
    return;
  moth_graph_release(a->program);
  moth_joint_free(a->joint);
  moth_joint_parts_free(&a->parts);
  for (uint32_t i = 0; a->inputs && i < a->ninputs; i++)
    moth_tensor_release(a->inputs[i].fake);
  for (MothAotBackward *b = a->backward, *next; b; b = next) {
    next = b->next;
    moth_aot_free_backward(b);
  }
  moth_generator_release(a->generator);
  free(a->inputs);
  free(a->saved_at);
  free(a->pinned);
  free(a);
}

/* --- preparing -------------------------------------------------------------------------------------------- */

/* Which inputs a node saves, and where: those that backward uses, then all others, from which the segment can be run
 * again. */
static MothStatus plan_saved(MothAot *a) {
  a->saved_at = malloc(sizeof *a->saved_at * ((size_t)a->ninputs + 1));
  if (!a->saved_at)
    return moth_no_memory(sizeof *a->saved_at * ((size_t)a->ninputs + 1));
  for (uint32_t i = 0; i < a->ninputs; i++)
    a->saved_at[i] = -1;
  for (uint32_t i = 0; i < a->parts.nsaved; i++)
    if (a->parts.saved[i].input >= 0)
      a->saved_at[a->parts.saved[i].input] = (int32_t)i;
  a->nkept = a->parts.nsaved;
  for (uint32_t i = 0; i < a->ninputs; i++)
    if (a->saved_at[i] < 0)
      a->saved_at[i] = (int32_t)a->nkept++;
  return MOTH_OK;
}

static bool takes_generator(const MothOp *op) {
  for (int i = 0; i < op->nargs; i++)
    if (op->args[i].type == MOTH_T_GENERATOR)
      return true;
  return false;
}

/* The generator that the calls draw from: at most one can be set back. */
static MothStatus find_generator(MothAot *a) {
  for (const MothGraphNode *n = a->program->first; n; n = n->next) {
    MothGenerator *g = NULL;
    bool draws = n->kind == MOTH_NODE_CALL && n->op->draws;
    for (int i = 0; n->kind == MOTH_NODE_CALL && i < n->op->nargs; i++)
      if (n->args[i].value.tag == MOTH_V_GENERATOR) {
        g = n->args[i].value.u.g;
        draws = true;
      }
    if (n->kind == MOTH_NODE_CALL && n->op->composite) /* dropout, randn_like: their parts may */
      draws = draws || takes_generator(n->op);
    if (draws && a->draws && g != a->generator)
      return moth_fail(MOTH_ERR_STATE, "it draws from several generators");
    if (draws && !a->draws && (a->generator = g))
      moth_generator_retain(g);
    a->draws = a->draws || draws;
  }
  return MOTH_OK;
}

static MothStatus check_aliases(const MothAot *a, MothTensor *const *inputs) {
  for (uint32_t i = 0; a->writes && i < a->ninputs; i++)
    for (uint32_t k = 0; a->joint->written[i] && k < a->ninputs; k++)
      if (k != i && inputs[k]->storage == inputs[i]->storage)
        return moth_fail(MOTH_ERR_STATE, "an input is written to that shares memory with another");
  return MOTH_OK;
}

enum { SMALL = 1 << 14 };

/* Traces. Its errors say why the segment runs as recorded. */
static MothStatus trace(MothAot *a, MothTensor *const *inputs) {
  MOTH_TRY(find_generator(a));
  for (const MothGraphNode *n = a->program->first; n; n = n->next)
    a->passes = a->passes || (n->op && moth_is_pass(n->op));
  MothJointTrace how = {
      .inputs = a->inputs, .ninputs = a->ninputs, .derive = true, .separate = a->separate};
  MothStatus status = moth_joint_trace(a->program, &how, &a->joint);
  if (status != MOTH_OK && a->passes && strstr(moth_last_error(), "a second time")) {
    how.derive = false;
    status = moth_joint_trace(a->program, &how, &a->joint);
    a->freed = status == MOTH_OK;
    if (a->freed && a->joint->nresults > 1) /* which of them? */
      status =
          moth_fail(MOTH_ERR_STATE, "backward is called in it, and it returns several results");
  }
  if (status == MOTH_OK && !(a->pinned = calloc((size_t)a->program->nnumbers + 1, sizeof(bool))))
    status = moth_no_memory(((size_t)a->program->nnumbers + 1) * sizeof(bool));
  if (status == MOTH_OK && a->program->nnumbers)
    status = moth_joint_find_numbers(a->joint, a->program, &how, a->pinned, &a->kinds);
  MOTH_TRY(status);
  a->copies = a->joint->nresults > 0 && !a->passes;
  for (uint32_t i = 0; i < a->ninputs; i++)
    if (a->joint->written[i]) {
      a->writes = true;
      a->copies = a->copies && a->inputs[i].fake->numel <= SMALL;
    }
  MOTH_TRY(check_aliases(a, inputs));
  moth_joint_find_inner(a->joint);
  if (a->passes && !a->freed && a->joint->nresults) /* it could not be run again */
    return moth_fail(MOTH_ERR_STATE,
                     "backward is called in it, and a result may be differentiated");
  return MOTH_OK;
}

MothStatus moth_aot_prepare(MothAot *a, MothTensor *const *inputs, bool *as_recorded) {
  MothStatus status = trace(a, inputs);
  *as_recorded = status != MOTH_OK;
  MOTH_TRY(status);
  MOTH_TRY(moth_joint_simplify(a->joint, a->program, a->pinned));
  MOTH_TRY(moth_joint_divide(a->joint, NULL, a->recompute, &a->parts));
  return plan_saved(a);
}

/* --- running ------------------------------------------------------------------------------------------------- */

bool moth_aot_fits(const MothAot *a, MothTensor *const *inputs, const MothValue *numbers) {
  if (!moth_joint_takes(numbers, a->program->nnumbers, a->pinned, a->kinds))
    return false;
  for (uint32_t i = 0; i < a->ninputs; i++) {
    if (moth_tensor_requires_grad(inputs[i]) != a->inputs[i].requires_grad)
      return false;
    if (a->joint->offsets && inputs[i]->offset != a->inputs[i].fake->offset)
      return false;
  }
  return check_aliases(a, inputs) == MOTH_OK;
}

static MothStatus check_made(const MothAot *a, MothTensor *const *made) {
  const MothGraphNode *end = a->parts.forward->last;
  char x[256], y[200];
  for (uint32_t i = 0; i < end->nrefs; i++) {
    const MothTraceMeta *m = &end->refs[i].node->metas[end->refs[i].result];
    const MothTensor *t = made[i];
    if (t->dtype != m->dtype || t->ndim != m->ndim || t->contiguous != m->contiguous ||
        memcmp(t->shape, m->dims, sizeof(int64_t) * m->ndim) != 0)
      return moth_fail(MOTH_ERR_VALUE, "compile: output %u of a compiled graph is %s%s, not %s %s",
                       i + 1, moth_tensor_format(t, x, sizeof x),
                       t->contiguous == m->contiguous ? "" : " with other strides",
                       moth_dtype_name((MothDType)m->dtype),
                       moth_shape_format(m->ndim, m->dims, y, sizeof y));
  }
  return MOTH_OK;
}

/* The segment's outputs, of the roots. */
static MothStatus make_outputs(const MothAot *a, MothTensor *const *inputs, MothTensor *const *made,
                               MothTensor **outputs) {
  const MothJoint *j = a->joint;
  for (uint32_t i = 0; i < j->nroots; i++)
    *moth_version_of(made[i]) = j->roots[i].version;
  for (uint32_t i = 0; i < j->noutputs; i++) {
    const MothJointOutput *o = &j->outputs[i];
    MothTensor *src = o->root >= 0 ? made[o->root] : inputs[o->input];
    int64_t begin = src->offset * moth_itemsize(src) + o->offset;
    if (o->whole)
      moth_tensor_retain(outputs[i] = src);
    else /* complex numbers may be seen as their parts */
      MOTH_TRY(moth_alias_as(src, o->fake, begin / moth_itemsize(o->fake), &outputs[i]));
  }
  for (uint32_t i = 0; i < j->noutputs; i++) {
    const MothJointOutput *o = &j->outputs[i];
    MothTensor *base = o->base >= 0 ? outputs[o->base] : NULL, *apart = NULL;
    if (!base && o->base_input >= 0) {
      base = inputs[o->base_input]->base ? inputs[o->base_input]->base : inputs[o->base_input];
      if (moth_tensor_requires_grad(base) && !moth_tensor_requires_grad(o->fake->base)) {
        MOTH_TRY(moth_tensor_alias(base, false, &apart)); /* a view of x:detach() */
        base = apart;
      }
    }
    if (base)
      moth_tensor_retain(outputs[i]->base = base);
    moth_tensor_release(apart);
  }
  return MOTH_OK;
}

MothStatus moth_aot_begin(MothAotRun *r, int64_t *versions) {
  const MothAot *a = r->aot;
  MothStatus status = MOTH_OK;
  if (a->draws)
    moth_generator_get_state(moth_aot_generator(a), &r->generator[0], &r->generator[1]);
  for (uint32_t i = 0; i < a->ninputs; i++) {
    versions[i] = *moth_version_of(r->inputs[i]);
    if (a->copies && a->joint->written[i] && status == MOTH_OK)
      status = moth_clone(r->inputs[i], &r->before[i]);
  }
  return status;
}

MothStatus moth_aot_end(const MothAotRun *r, const int64_t *versions) {
  const MothAot *a = r->aot;
  MOTH_TRY(check_made(a, r->made));
  for (uint32_t i = 0; i < a->ninputs; i++)
    if (a->joint->written[i])
      *moth_version_of(r->inputs[i]) = versions[i] + a->joint->written[i];
  return make_outputs(a, r->inputs, r->made, r->outputs);
}
