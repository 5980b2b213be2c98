-- Attention. One kernel each for forward and backward, on tiles: the matrix of weights never exists as a whole.
local masked = {
  { "equal(remainder(H, K), 0)", "the heads of query must be a multiple of those of key, got {H} and {K}" },
  { "either(negate(given(attn_mask)), either(is_float(attn_mask), equal(attn_mask.dtype, dtype_named('bool'))))",
    "attn_mask must be bool or a float dtype, got {attn_mask.dtype}", "type" },
  { "either(negate(given(attn_mask)), expands(attn_mask.shape, list(B, H, L, S)))",
    "attn_mask of shape {attn_mask.shape} does not broadcast to {list(B, H, L, S)}" },
}

return {
{ "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=none, float dropout_p=0 in [0,1], bool is_causal=false, float? scale=none, bool enable_gqa=false, Generator? generator=none) -> Tensor",
  kind = "composite",
  grad = "composite",
  reference = "scaled_dot_product_attention",
  samples = {
    "randn(2,3,5,4), randn(2,3,5,4), randn(2,3,5,4)",
    "randn(3,5,4), randn(3,7,4), randn(3,7,6), randn(5,7)",
    "randn(2,4,6,3), randn(2,2,6,3), randn(2,2,6,3), nil, 0, true, 0.3, true",
    "randn(5,4), randn(6,4), randn(6,4), tensor({{1,1,1,0,1,0}},{dtype=bool})",
    "randn(2,3,4), randn(2,3,4), randn(2,3,4), tensor({{{1,0,1},{0,0,0},{1,1,1}}},{dtype=bool})",
  },
  errors = {
    { "randn(2,5,4), randn(2,5,3), randn(2,5,3)", "last dimension" },
    { "randn(2,5,4), randn(2,5,4), randn(2,6,4)", "as many positions" },
    { "randn(2,4,5,4), randn(2,2,5,4), randn(2,2,5,4)", "enable_gqa" },
    { "randn(2,3,5,4), randn(2,2,5,4), randn(2,2,5,4), {enable_gqa=true}", "multiple" },
    { "randn(5,4), randn(5,4), randn(5,4), randn(5,5), 0, true", "is_causal" },
    { "randn(5,4), randn(5,4), randn(5,4), randn(5,4)", "attn_mask" },
    { "randn(5,4), randn(5,4), randn(5,4), {dropout_p=1.5}", "between 0 and 1" },
    { "randn(4), randn(4), randn(4)", "dimensions" },
  },
  doc = "softmax(query key' scale + mask) value, for query (..., L, E), key (..., S, E), value (..., S, V); scale is \z
    1/sqrt(E). attn_mask, broadcast to (..., L, S), is bool (true: takes part) or is added; is_causal: position i \z
    sees 1 to i. Rows that see nothing are 0. enable_gqa: the heads (third dimension from the end) of key and value \z
    are shared by groups of those of query. attn_mask may need a gradient (then the weights are kept as a whole)." },
{ "attention_forward(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p in [0,1], bool is_causal, float scale, Generator? generator=none) -> (Tensor, Tensor, Tensor)",
  kind = "fused", batch = "fold", amp = "low",
  dims = { query = "B H L E : float", key = "B K S E : query", value = "B K S V : query" },
  out = { "B H L V", "B H L : working(query)", "2 : int64" }, check = masked,
  keep = true, -- the kernel never makes the whole matrix of weights
  decompose = [[
    local s = attention_scores(query, key, attn_mask, is_causal, scale)
    local top = when(equal(key.shape[2], 0), sum(s, list(-1), true), amax(s, list(-1), true))
    local shift = where(eq(top, -inf), 0, top) -- a row that sees nothing
    local e = exp(s - shift)
    local total = sum(e, list(-1), true)
    local none_seen = eq(total, 0)
    local y = matmul(e / where(none_seen, 1, total), as_heads(value, query))
    local lse = where(none_seen, inf, log(where(none_seen, 1, total)) + shift)
    return y, to(squeeze(lse, -1), working(query)), zeros_of(query, list(2), dtype_named("int64"))]],
  grad = {
    ["query, key, value"] = "attention(grad, grad1, query, key, value, attn_mask, result, result1, result2, \z
      dropout_p, is_causal, scale)",
    attn_mask = "unimplemented",
  },
  reference = "attention_forward",
  samples = {
    "randn(2,3,5,4), randn(2,3,5,4), randn(2,3,5,4), nil, 0, false, 0.5",
    "randn(2,4,6,3), randn(2,2,7,3), randn(2,2,7,5), randn(4,6,7), 0, false, 0.3",
    "randn(1,2,6,4), randn(1,2,6,4), randn(1,2,6,4), nil, 0, true, 0.7",
    "randn(1,1,3,4), randn(1,1,3,4), randn(1,1,3,4), tensor({{1,0,1},{0,1,0},{1,1,1}},{dtype=bool}), 0, false, 0.7",
  },
  errors = {
    { "randn(5,4), randn(5,4), randn(5,4), nil, 0, false, 1", "dimensions" },
    { "randn(1,1,5,4), randn(1,1,5,3), randn(1,1,5,3), nil, 0, false, 1", "E = 4 as in query" },
    { "randn(1,3,5,4), randn(1,2,5,4), randn(1,2,5,4), nil, 0, false, 1", "multiple" },
    { "randn(1,1,5,4), randn(1,1,5,4), randn(1,1,5,4), randn(3,5), 0, false, 1", "attn_mask" },
  },
  doc = "scaled_dot_product_attention of query (B, H, L, E), key (B, K, S, E), value (B, K, S, V), H a multiple of K: \z
    the result, the logarithm of each row's sum of exponentials (B, H, L), and the state of the random numbers that \z
    dropout took." },
{ "attention_backward(Tensor grad_output, Tensor? grad_logsumexp, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor output, Tensor logsumexp, Tensor state, float dropout_p in [0,1], bool is_causal, float scale) -> (Tensor, Tensor, Tensor)",
  kind = "fused", batch = "fold",
  dims = {
    grad_output = "B H L V : float", grad_logsumexp = "B H L : float", query = "B H L E : float", key = "B K S E : query",
    value = "B K S V : query", output = "B H L V : float", logsumexp = "B H L : float", state = "2 : int64",
  },
  out = { "B H L E : query", "B K S E : query", "B K S V : query" }, check = masked,
  keep = true, -- the kernel never makes the whole matrix of weights
  decompose = [[
    local s = attention_scores(query, key, attn_mask, is_causal, scale)
    local p = exp(s - unsqueeze(logsumexp, -1))
    local own = sum(grad_output * output, list(-1), true)
    local delta = when(given(grad_logsumexp), own - unsqueeze(grad_logsumexp, -1), own)
    local ds = p * (matmul(grad_output, transpose(as_heads(value, query), -2, -1)) - delta) * scale
    return matmul(ds, as_heads(key, query)), from_heads(matmul(transpose(ds, -2, -1), query), key),
      from_heads(matmul(transpose(p, -2, -1), grad_output), value)]],
  tolerance = { float32 = { 1e-5, 1e-3 }, why = "the samples are no forward's: weights of 100s that cancel" },
  grad = "unimplemented",
  reference = "attention_backward",
  samples = {
    "randn(2,3,5,4), nil, randn(2,3,5,4), randn(2,3,5,4), randn(2,3,5,4), nil, randn(2,3,5,4), randn(2,3,5) + 6, \z
      tensor({0,0},{dtype=int64}), 0, false, 0.5",
    "randn(2,4,6,5), randn(2,4,6), randn(2,4,6,3), randn(2,2,7,3), randn(2,2,7,5), randn(4,6,7), randn(2,4,6,5), randn(2,4,6) + 2, \z
      tensor({0,0},{dtype=int64}), 0, true, 0.3",
  },
  errors = {
    { "randn(1,1,4,4), nil, randn(1,1,5,4), randn(1,1,5,4), randn(1,1,5,4), nil, randn(1,1,5,4), randn(1,1,5), \z
      tensor({0,0},{dtype=int64}), 0, false, 1", "grad_output" },
    { "randn(1,1,5,4), nil, randn(1,1,5,4), randn(1,1,5,4), randn(1,1,5,4), nil, randn(1,1,5,4), randn(1,1,4), \z
      tensor({0,0},{dtype=int64}), 0, false, 1", "logsumexp" },
    { "randn(1,1,5,4), nil, randn(1,1,5,4), randn(1,1,5,4), randn(1,1,5,4), nil, randn(1,1,5,4), randn(1,1,5), \z
      tensor({0},{dtype=int64}), 0, false, 1", "state" },
  },
  doc = "Derivatives of attention_forward by query, key and value: the weights are computed again, tile by tile." },
}
