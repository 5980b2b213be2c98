/* Shape rules of attention. Query (B, H, L, E), key (B, K, S, E), value (B, K, S, V). */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "unpack/attention.h"

static const char *text(const MothTensor *t, char (*s)[200]) {
  return moth_shape_format(t->ndim, t->shape, *s, sizeof *s);
}

static MothStatus check(const MothTensor *q, const MothTensor *k, const MothTensor *v,
                        const MothTensor *mask) {
  char a[200], b[200], c[200];
  if (!moth_dtype_is_float((MothDType)q->dtype))
    return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s",
                     moth_dtype_name((MothDType)q->dtype));
  if (k->dtype != q->dtype || v->dtype != q->dtype)
    return moth_fail(MOTH_ERR_TYPE,
                     "query, key and value must have one dtype, got %s, %s and %s: float expected",
                     moth_dtype_name((MothDType)q->dtype), moth_dtype_name((MothDType)k->dtype),
                     moth_dtype_name((MothDType)v->dtype));
  if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4)
    return moth_fail(MOTH_ERR_VALUE,
                     "query, key and value must have 4 dimensions, got %s, %s and %s", text(q, &a),
                     text(k, &b), text(v, &c));
  if (q->shape[3] != k->shape[3])
    return moth_fail(MOTH_ERR_VALUE,
                     "the last dimension of query and key must be equal, got %s and %s",
                     text(q, &a), text(k, &b));
  if (k->shape[2] != v->shape[2])
    return moth_fail(MOTH_ERR_VALUE, "key and value must have as many positions, got %s and %s",
                     text(k, &a), text(v, &b));
  if (q->shape[0] != k->shape[0] || q->shape[0] != v->shape[0] || k->shape[1] != v->shape[1])
    return moth_fail(MOTH_ERR_VALUE, "query, key and value do not fit: %s, %s and %s", text(q, &a),
                     text(k, &b), text(v, &c));
  if (k->shape[1] ? q->shape[1] % k->shape[1] != 0 : q->shape[1] != 0)
    return moth_fail(MOTH_ERR_VALUE,
                     "the heads of query must be a multiple of those of key, got %lld and %lld",
                     (long long)q->shape[1], (long long)k->shape[1]);
  if (!mask)
    return MOTH_OK;
  int64_t full[4] = {q->shape[0], q->shape[1], q->shape[2], k->shape[2]};
  if (mask->dtype != MOTH_BOOL && !moth_dtype_is_float((MothDType)mask->dtype))
    return moth_fail(MOTH_ERR_TYPE, "attn_mask must be bool or a float dtype, got %s",
                     moth_dtype_name((MothDType)mask->dtype));
  bool fits = mask->ndim <= 4;
  for (int i = 0; fits && i < mask->ndim; i++)
    fits = mask->shape[i] == 1 || mask->shape[i] == full[4 - mask->ndim + i];
  return fits ? MOTH_OK
              : moth_fail(MOTH_ERR_VALUE, "attn_mask of shape %s does not broadcast to %s",
                          text(mask, &a), moth_shape_format(4, full, b, sizeof b));
}

/* The dtype of sums. */
static MothDType wide(const MothTensor *t) {
  return t->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
}

MothStatus moth_shape_attention_forward(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_ATTENTION_FORWARD(c)
  int64_t two = 2;
  MOTH_TRY(check(query, key, value, attn_mask));
  int64_t shape[4] = {query->shape[0], query->shape[1], query->shape[2], value->shape[3]};
  MOTH_TRY(moth_meta_set(out, (MothDType)query->dtype, 4, shape));
  MOTH_TRY(moth_meta_set(out + 1, wide(query), 3, shape));
  return moth_meta_set(out + 2, MOTH_INT64, 1, &two);
}

MothStatus moth_shape_attention_backward(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_ATTENTION_BACKWARD(c)
  char a[200], b[200];
  MOTH_TRY(check(query, key, value, attn_mask));
  int64_t shape[4] = {query->shape[0], query->shape[1], query->shape[2], value->shape[3]};
  const MothTensor *like[2] = {grad_output, output};
  for (int i = 0; i < 2; i++) {
    if (like[i]->ndim != 4 || memcmp(like[i]->shape, shape, sizeof shape) != 0)
      return moth_fail(MOTH_ERR_VALUE, "%s must have the shape %s, got %s",
                       i ? "output" : "grad_output", moth_shape_format(4, shape, a, sizeof a),
                       text(like[i], &b));
    if (!moth_dtype_is_float((MothDType)like[i]->dtype))
      return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s",
                       moth_dtype_name((MothDType)like[i]->dtype));
  }
  const MothTensor *sums[2] = {logsumexp, grad_logsumexp};
  for (int i = 0; i < 2 && sums[i]; i++) {
    const char *name = i ? "grad_logsumexp" : "logsumexp";
    if (sums[i]->ndim != 3 || memcmp(sums[i]->shape, shape, 3 * sizeof *shape) != 0)
      return moth_fail(MOTH_ERR_VALUE, "%s must have the shape %s, got %s", name,
                       moth_shape_format(3, shape, a, sizeof a), text(sums[i], &b));
    if (!moth_dtype_is_float((MothDType)sums[i]->dtype))
      return moth_fail(MOTH_ERR_TYPE, "%s must be of a float dtype, got %s", name,
                       moth_dtype_name((MothDType)sums[i]->dtype));
  }
  if (state->dtype != MOTH_INT64 || state->numel != 2)
    return moth_fail(MOTH_ERR_VALUE, "state must be two int64, got %s of shape %s",
                     moth_dtype_name((MothDType)state->dtype), text(state, &a));
  const MothTensor *in[3] = {query, key, value};
  for (int i = 0; i < 3; i++)
    MOTH_TRY(moth_meta_set(out + i, (MothDType)query->dtype, 4, in[i]->shape));
  return MOTH_OK;
}
