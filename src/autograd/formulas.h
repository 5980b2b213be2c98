/* What derivative formulas are made of besides ops: named functions where a formula would need an `if`
 * or a local. `a` are the values in the order of the formula; *out is owned. */
#ifndef MOTH_AUTOGRAD_FORMULAS_H
#define MOTH_AUTOGRAD_FORMULAS_H
#include "autograd/node.h"

/* Calls op with nargs arguments (defaults fill the rest) and stores its first result. */
MothStatus moth_eval(const MothOp *op, int nargs, const MothValue *args, MothValue *out);
/* The same with all its results, op->nresults of them. */
MothStatus moth_eval_all(const MothOp *op, int nargs, const MothValue *args, MothValue *out);
MothTensor *moth_take(MothValue *v);        /* moves the tensor out */
MothTensor *moth_keep(MothValue v);         /* retains it */
void moth_drop_values(MothValue *v, int n); /* releases the tensors among them */
MothStatus moth_unimplemented(const char *op, const char *arg);

MothValue moth_number_add(MothValue a, MothValue b);
MothValue moth_number_sub(MothValue a, MothValue b);
MothValue moth_number_mul(MothValue a, MothValue b);
MothValue moth_number_div(MothValue a, MothValue b);

/* (x, k) -> x * k, or x itself where k is 1 */
MothStatus moth_grad_scale(const MothValue *a, MothValue *out);
/* (x, shape) -> x summed over the dimensions in which shape was broadcast */
MothStatus moth_grad_sum_to(const MothValue *a, MothValue *out);
/* (x, dim) -> sum over dim, kept */
MothStatus moth_grad_sum_keep(const MothValue *a, MothValue *out);
/* (grad, self, exponent) */
MothStatus moth_grad_pow_backward_self(const MothValue *a, MothValue *out);
/* (grad, self, exponent, result) */
MothStatus moth_grad_pow_backward_exponent(const MothValue *a, MothValue *out);
/* Zeros of this shape, of the dtype and device of a gradient; fake ones if it is fake. */
MothStatus moth_zeros_as(const MothTensor *grad, const int64_t *shape, int ndim, MothTensor **out);
/* Set by the engine while it runs narrow, select or slice: what has come so far for their input, which
 * nobody else sees. Their formulas then add the part to it and give it back, instead of a tensor of zeros
 * with the part in it: the parts of a tensor that was split would be as many whole ones. */
extern _Thread_local MothTensor *moth_view_sum __attribute__((tls_model("initial-exec")));

/* (grad, dims) */
MothStatus moth_grad_permute_backward(const MothValue *a, MothValue *out);
/* (grad, shape, dim, start) */
MothStatus moth_grad_narrow_backward(const MothValue *a, MothValue *out);
/* (grad, shape, dim, index) */
MothStatus moth_grad_select_backward(const MothValue *a, MothValue *out);
/* (grad, shape, dim, start, stop, step) */
MothStatus moth_grad_slice_backward(const MothValue *a, MothValue *out);
/* (grad, shape, offset, dim1, dim2) */
MothStatus moth_grad_diagonal_backward(const MothValue *a, MothValue *out);
/* (grad, base shape, base stride, base offset, size, stride, offset or none) */
MothStatus moth_grad_as_strided_grad(const MothValue *a, MothValue *out);
MothStatus moth_grad_as_strided_backward_grad(const MothValue *a, MothValue *out);
/* (grad, shape, dim, keepdim): grad of a sum, expanded */
MothStatus moth_grad_reduce_expand(const MothValue *a, MothValue *out);
MothStatus moth_grad_mean_backward(const MothValue *a, MothValue *out);
/* (grad, self, result, dim, keepdim) */
MothStatus moth_grad_prod_backward(const MothValue *a, MothValue *out);
MothStatus moth_grad_amax_backward(const MothValue *a, MothValue *out);
MothStatus moth_grad_logsumexp_backward(const MothValue *a, MothValue *out);
/* (grad, self, dim, correction, keepdim) */
MothStatus moth_grad_var_backward(const MothValue *a, MothValue *out);
/* (grad, shape, dim, indices, keepdim, index_base): grad of max_dim */
MothStatus moth_grad_index_backward(const MothValue *a, MothValue *out);
/* (grad, dim) */
MothStatus moth_grad_cumsum_backward(const MothValue *a, MothValue *out);
/* (grad, weight), (grad, input), (grad) */
MothStatus moth_grad_linear_backward_input(const MothValue *a, MothValue *out);
MothStatus moth_grad_linear_backward_weight(const MothValue *a, MothValue *out);
MothStatus moth_grad_linear_backward_bias(const MothValue *a, MothValue *out);
/* (grad, shape, dim, index, index_base) */
MothStatus moth_grad_gather_backward(const MothValue *a, MothValue *out);
MothStatus moth_grad_index_select_backward(const MothValue *a, MothValue *out);
/* (grad, dim, index, index_base): zeros at the positions */
MothStatus moth_grad_index_fill_zero(const MothValue *a, MothValue *out);
/* (grad, shape, mask) */
MothStatus moth_grad_masked_select_backward(const MothValue *a, MothValue *out);
/* (grad, mask, shape of source) */
MothStatus moth_grad_masked_scatter_backward(const MothValue *a, MothValue *out);
/* (grad, grad_output, output, dim) */
MothStatus moth_grad_softmax_double_backward(const MothValue *a, MothValue *out);
/* (grad, self, target, weight, reduction, ignore_index, label_smoothing, index_base) */
MothStatus moth_grad_cross_entropy_double_backward(const MothValue *a, MothValue *out);
/* (grad, grad_output, self, target, weight, reduction, ignore_index, label_smoothing, index_base) */
MothStatus moth_grad_cross_entropy_backward_self(const MothValue *a, MothValue *out);
/* (grad * grad_output, self): by the second derivative */
MothStatus moth_grad_gelu_double_backward(const MothValue *a, MothValue *out);
MothStatus moth_grad_gelu_tanh_double_backward(const MothValue *a, MothValue *out);
MothStatus moth_grad_mish_double_backward(const MothValue *a, MothValue *out);
/* (grad, mask, p) */
MothStatus moth_grad_native_dropout_grad(const MothValue *a, MothValue *out);
/* (grad): over all but the channels */
MothStatus moth_grad_conv_bias_grad(const MothValue *a, MothValue *out);
/* (input, weight, stride, padding, dilation, groups): conv2d without bias */
MothStatus moth_grad_conv2d_plain(const MothValue *a, MothValue *out);
/* (grad, shape, kernel_size, dilation, padding, stride) */
MothStatus moth_grad_im2col_backward(const MothValue *a, MothValue *out);
/* (grad, indices, index_base): the elements of grad that the windows took */
MothStatus moth_grad_max_pool2d_pick(const MothValue *a, MothValue *out);
/* (grad, indices, shape, index_base) */
MothStatus moth_grad_adaptive_max_pool2d_backward(const MothValue *a, MothValue *out);
/* (grad, shape): pooled to a result of that shape */
MothStatus moth_grad_adaptive_avg_pool2d_like(const MothValue *a, MothValue *out);
/* (grad, shape, dim, positions, index_base): grad put where sort and topk took values from */
MothStatus moth_grad_scatter_back(const MothValue *a, MothValue *out);
/* Gradients of self, weight and bias (bits 0, 1, 2 of need) into out[0..2]; src/autograd/norm.c.
 * (grad, self, weight, bias, dims, eps, mean, rstd) */
MothStatus moth_gradset_layer_norm(const MothValue *a, uint32_t need, MothValue *out);
/* (grad, self, weight, dims, eps, rstd) */
MothStatus moth_gradset_rms_norm(const MothValue *a, uint32_t need, MothValue *out);
/* (grad, self, weight, bias, groups, eps, mean, rstd) */
MothStatus moth_gradset_group_norm(const MothValue *a, uint32_t need, MothValue *out);
/* (grad, self, weight, bias, training, eps, mean, rstd) */
MothStatus moth_gradset_batch_norm(const MothValue *a, uint32_t need, MothValue *out);
/* The pieces of grad along dim, one for each input that needs it. */
MothStatus moth_gradlist_cat_backward(MothNode *node, MothTensor *grad, MothValue dim,
                                      MothTensor **out);
#endif
