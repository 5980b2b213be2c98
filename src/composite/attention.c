/* scaled_dot_product_attention: reshapes any leading dimensions to (batch, heads) and calls the tiled op; by
 * matrix products where the mask itself needs a gradient. */
#include <math.h>
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"
#include "ops/attention.h"
#include "ops/linalg.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "unpack/attention.h"

/* Replaces *t by *next, the result of an op with status s. */
static MothStatus replace(MothStatus s, MothTensor **t, MothTensor **next) {
  if (s == MOTH_OK) {
    moth_tensor_release(*t);
    *t = *next;
  }
  return s;
}

/* Expands *t to the leading dimensions and reshapes these to two. */
static MothStatus fold(MothTensor **t, int ndim, const int64_t *lead) {
  int64_t shape[MOTH_MAX_DIMS], four[4] = {1, 1, 0, 0};
  MothTensor *next;
  memcpy(shape, lead, sizeof *lead * (size_t)ndim);
  for (int i = 0; i < 2; i++)
    shape[ndim + i] = four[2 + i] = (*t)->shape[(*t)->ndim - 2 + i];
  if ((*t)->ndim != ndim + 2 || memcmp((*t)->shape, shape, sizeof *shape * (size_t)ndim) != 0)
    MOTH_TRY(replace(moth_expand(*t, shape, ndim + 2, &next), t, &next));
  if (ndim == 2)
    return MOTH_OK;
  for (int i = 0; i + 1 < ndim; i++)
    four[0] *= lead[i];
  four[1] = ndim ? lead[ndim - 1] : 1;
  return replace(moth_reshape(*t, four, 4, &next), t, &next);
}

/* Attention by matrix products, with (batch, heads, L, S) scores. */
static MothStatus by_products(MothTensor **t, MothTensor *mask, double p, double scale,
                              MothGenerator *generator, MothTensor **out) {
  MothTensor *key = NULL, *w = NULL, *next;
  MothStatus status = MOTH_OK;
  int64_t group = t[1]->shape[1] ? t[0]->shape[1] / t[1]->shape[1] : 1;
  for (int i = 1; i < 3 && group > 1; i++) {
    int64_t five[5] = {t[i]->shape[0], t[i]->shape[1], group, t[i]->shape[2], t[i]->shape[3]};
    int64_t four[4] = {five[0], five[1] * group, five[3], five[4]};
    MOTH_TRY(replace(moth_unsqueeze(t[i], 2, &next), &t[i], &next));
    MOTH_TRY(replace(moth_expand(t[i], five, 5, &next), &t[i], &next));
    MOTH_TRY(replace(moth_reshape(t[i], four, 4, &next), &t[i], &next));
  }
  MOTH_GO(moth_mul(moth_v_tensor(t[1]), moth_v_float(scale), &key));
  MOTH_GO(replace(moth_transpose(key, -2, -1, &next), &key, &next));
  MOTH_GO(moth_matmul(t[0], key, &w));
  MOTH_GO(
      replace(moth_add(moth_v_tensor(w), moth_v_tensor(mask), moth_v_int(1), &next), &w, &next));
  MOTH_GO(replace(moth_softmax(w, -1, moth_v_none(), &next), &w, &next));
  MOTH_GO(replace(moth_dropout(w, p, p > 0, generator, &next), &w, &next));
  MOTH_GO(moth_matmul(w, t[2], out));
done:
  if (key)
    moth_tensor_release(key);
  if (w)
    moth_tensor_release(w);
  return status;
}

static MothStatus attend(MothTensor **t, MothTensor **mask, double p, bool causal, MothValue scale,
                         bool gqa, MothGenerator *generator, MothTensor **out) {
  int64_t lead[MOTH_MAX_DIMS], kv[MOTH_MAX_DIMS], size[MOTH_MAX_DIMS + 2];
  int nlead, nkv;
  char a[200], b[200];
  for (int i = 0; i < 3; i++)
    if (t[i]->ndim < 2)
      return moth_fail(MOTH_ERR_VALUE, "query, key and value need at least 2 dimensions, got %d",
                       t[i]->ndim);
  const int64_t *q = t[0]->shape + t[0]->ndim - 2, *k = t[1]->shape + t[1]->ndim - 2;
  if (q[1] != k[1])
    return moth_fail(MOTH_ERR_VALUE,
                     "the last dimension of query and key must be equal, got %s and %s",
                     moth_shape_format(t[0]->ndim, t[0]->shape, a, sizeof a),
                     moth_shape_format(t[1]->ndim, t[1]->shape, b, sizeof b));
  if (k[0] != t[2]->shape[t[2]->ndim - 2])
    return moth_fail(MOTH_ERR_VALUE, "key and value must have as many positions, got %s and %s",
                     moth_shape_format(t[1]->ndim, t[1]->shape, a, sizeof a),
                     moth_shape_format(t[2]->ndim, t[2]->shape, b, sizeof b));
  int64_t heads = t[0]->ndim > 2 ? t[0]->shape[t[0]->ndim - 3] : 1;
  int64_t theirs = t[1]->ndim > 2 ? t[1]->shape[t[1]->ndim - 3] : 1;
  if (causal && *mask)
    return moth_fail(MOTH_ERR_VALUE, "give attn_mask or is_causal, not both");
  /* Leading dimensions: those of all three broadcast, but for the heads under enable_gqa. */
  MOTH_TRY(moth_broadcast(t[1]->ndim - 2, t[1]->shape, t[2]->ndim - 2, t[2]->shape, &nkv, kv));
  if (gqa && nkv > 0 && t[0]->ndim > 2) {
    int64_t mine[MOTH_MAX_DIMS];
    memcpy(mine, t[0]->shape, sizeof *mine * (size_t)t[0]->ndim);
    if (kv[nkv - 1] == 0 ? heads != 0 : heads % kv[nkv - 1] != 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "the heads of query must be a multiple of those of key, got %lld and %lld",
                       (long long)heads, (long long)kv[nkv - 1]);
    MOTH_TRY(moth_broadcast(t[0]->ndim - 3, mine, nkv - 1, kv, &nlead, lead));
    memcpy(kv + nlead, kv + nkv - 1, sizeof *kv);
    lead[nlead] = heads;
    int64_t shared = kv[nlead];
    memcpy(kv, lead, sizeof *kv * (size_t)nlead);
    kv[nlead++] = shared;
  } else {
    MothStatus s = moth_broadcast(t[0]->ndim - 2, t[0]->shape, nkv, kv, &nlead, lead);
    if (s != MOTH_OK)
      return moth_fail(s,
                       "the leading dimensions of query and key do not broadcast: %s and %s (other "
                       "numbers of heads, %lld and %lld, need enable_gqa)",
                       moth_shape_format(t[0]->ndim, t[0]->shape, a, sizeof a),
                       moth_shape_format(t[1]->ndim, t[1]->shape, b, sizeof b), (long long)heads,
                       (long long)theirs);
    memcpy(kv, lead, sizeof *kv * (size_t)nlead);
  }
  if (nlead + 2 > MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "too many dimensions");
  memcpy(size, lead, sizeof *lead * (size_t)nlead);
  size[nlead] = t[0]->shape[t[0]->ndim - 2];
  size[nlead + 1] = t[2]->shape[t[2]->ndim - 1];
  int64_t length = t[1]->shape[t[1]->ndim - 2], width = t[0]->shape[t[0]->ndim - 1];
  if (*mask && nlead != 2 && (*mask)->ndim > 2) {
    int64_t lm = length;
    if ((*mask)->shape[(*mask)->ndim - 1] == 1)
      lm = 1;
    int64_t lq = (*mask)->shape[(*mask)->ndim - 2];
    if (lm != (*mask)->shape[(*mask)->ndim - 1] || (lq != 1 && lq != size[nlead]))
      return moth_fail(MOTH_ERR_VALUE, "attn_mask of shape %s does not broadcast to %lld x %lld",
                       moth_shape_format((*mask)->ndim, (*mask)->shape, a, sizeof a),
                       (long long)size[nlead], (long long)length);
    MOTH_TRY(fold(mask, nlead, lead));
  }
  MOTH_TRY(fold(&t[0], nlead, lead));
  MOTH_TRY(fold(&t[1], nlead, kv));
  MOTH_TRY(fold(&t[2], nlead, kv));
  double by = scale.tag == MOTH_V_NONE ? 1 / sqrt((double)width) : moth_as_double(scale);
  if (*mask && moth_tensor_requires_grad(*mask)) {
    MOTH_TRY(by_products(t, *mask, p, by, generator, out));
  } else {
    MothTensor *lse, *state;
    MOTH_TRY(moth_attention_forward(t[0], t[1], t[2], *mask, p, causal, by, generator, out, &lse,
                                    &state));
    moth_tensor_release(lse);
    moth_tensor_release(state);
  }
  if (nlead == 2)
    return MOTH_OK;
  MothTensor *whole = *out;
  MothStatus s = moth_reshape(whole, size, nlead + 2, out);
  moth_tensor_release(whole);
  return s;
}

MothStatus moth_composite_scaled_dot_product_attention(MothCall *c) {
  MOTH_UNPACK_SCALED_DOT_PRODUCT_ATTENTION(c)
  MothTensor *t[3] = {query, key, value}, *mask = attn_mask, *out;
  for (int i = 0; i < 3; i++)
    moth_tensor_retain(t[i]);
  if (mask)
    moth_tensor_retain(mask);
  MothStatus s = attend(t, &mask, dropout_p, is_causal, scale, enable_gqa, generator, &out);
  for (int i = 0; i < 3; i++)
    moth_tensor_release(t[i]);
  if (mask)
    moth_tensor_release(mask);
  return s ? s : moth_give(c, out);
}
