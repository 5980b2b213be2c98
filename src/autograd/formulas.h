/* Functions for derivative formulas, beside ops and named expressions (src/ops/define.lua): algorithms, and writes to
 * a part. `a` are the values in the order of the formula; the caller owns *out. */
#ifndef MOTH_AUTOGRAD_FORMULAS_H
#define MOTH_AUTOGRAD_FORMULAS_H
#include "autograd/node.h"
#include "dispatch/eval.h"

MothStatus moth_unimplemented(const char *op, const char *arg);

/* (x, shape) -> x summed over the dimensions in which shape was broadcast */
MothStatus moth_grad_sum_to(const MothValue *a, MothValue *out);
/* Set by the engine while it runs narrow, select or slice: the sum of the gradients of their input so far, which is
 * not shared. Their formulas then add the part to it and return it, instead of a tensor of zeros with the part in it:
 * a tensor that is split into n parts would need n tensors of its size. */
extern _Thread_local MothTensor *moth_view_sum __attribute__((tls_model("initial-exec")));

/* (grad, shape, dim, start) */
MothStatus moth_grad_narrow_backward(const MothValue *a, MothValue *out);
/* (grad, shape, dim, index) */
MothStatus moth_grad_select_backward(const MothValue *a, MothValue *out);
/* (grad, shape, dim, start, stop, step) */
MothStatus moth_grad_slice_backward(const MothValue *a, MothValue *out);
/* (grad, det(A), A): also where A is singular; src/autograd/matrices.c */
MothStatus moth_grad_det_backward(const MothValue *a, MothValue *out);
/* (Q, R) -> Q; an error if they have no derivative: Q is not there, or it has columns beside those of A's space */
MothStatus moth_grad_qr_differentiable(const MothValue *a, MothValue *out);
/* Gradients of query, key and value (bits 0, 1, 2 of need); src/autograd/attention.c.
 * (grad, grad_logsumexp, query, key, value, attn_mask, output, logsumexp, state, dropout_p, is_causal, scale) */
MothStatus moth_gradset_attention(const MothValue *a, uint32_t need, MothValue *out);
/* The parts of grad along dim, one for each input that needs it. */
MothStatus moth_gradlist_cat_backward(MothNode *node, MothTensor *grad, MothValue dim,
                                      MothTensor **out);
#endif
