-- Keys and values of running sequences in blocks: the cache of language models that serve many (lua/moth/llm/cache.lua).

-- A pool's rows are floats, or, uint8, blocks of GGUF's Q8_0: 34 bytes of 32 elements.
local function rows(pool, elements)
  return { ("either(is_float(%s), equal(%s.dtype, dtype_named('uint8')))"):format(pool, pool),
    ("%s must be of a float dtype, or uint8 (blocks of Q8_0), got {%s.dtype}"):format(pool, pool), "type" },
    { ("either(both(is_float(%s), equal(%s.shape[3], %s)), both(negate(is_float(%s)), equal(%s.shape[3] * 32, %s * 34)))")
      :format(pool, pool, elements, pool, pool, elements),
      ("%s must have rows of {%s} elements, or of Q8_0's bytes for so many (34 for 32), got {%s.shape}"):format(pool,
        elements, pool) }
end
local key_type, key_rows = rows("k_pool", "D")
local _, value_rows = rows("v_pool", "V")

return {
{ "rope(Tensor self, Tensor cos, Tensor sin, bool interleaved=false) -> Tensor",
  kind = "fused",
  dims = { self = "*L D : float", cos = "*C : float", sin = "*S : float" },
  out = "*L D",
  check = {
    { "equal(remainder(self.shape[self.ndim - 1], 2), 0)", "the last dimension must be even, got {self.shape}" },
    { "both(expands(cos.shape, sin.shape), expands(sin.shape, cos.shape))", "cos and sin must have one shape, got {cos.shape} and {sin.shape}" },
    { "expands(cos.shape, replace(self.shape, self.ndim - 1, floor_divide(self.shape[self.ndim - 1], 2)))",
      "cos of shape {cos.shape} does not broadcast to half of self, of shape {self.shape}" },
  },
  decompose = [[
    local d, T = self.ndim - 1, working(self)
    local a, b = to(rope_half(self, 0, interleaved), T), to(rope_half(self, 1, interleaved), T)
    local c, s = to(cos, T), to(sin, T)
    local x, y = a * c - b * s, b * c + a * s
    local all = when(interleaved, reshape(stack(tensors(x, y), self.ndim), self.shape), cat(tensors(x, y), d))
    return to(all, self.dtype)]],
  grad = {
    self = "rope(grad, cos, neg(sin), interleaved)",
    cos = "rope_angle_grad(rope_half(grad, 0, interleaved), rope_half(grad, 1, interleaved), self, cos, interleaved)",
    sin = "rope_angle_grad(rope_half(grad, 1, interleaved), neg(rope_half(grad, 0, interleaved)), self, sin, interleaved)",
  },
  reference = "rope",
  samples = {
    "randn(2,3,6), randn(3,3), randn(3,3)", "randn(2,3,6), randn(2,1,3), randn(2,1,3), true", "randn(4), randn(2), randn(2)",
    "randn(2,2,36), randn(2,1), randn(2,1)", "randn(0,4), randn(1,2), randn(1,2), true",
  },
  errors = {
    { "randn(2,5), randn(2), randn(2)", "even" }, { "randn(2,4), randn(2), randn(1)", "one shape" },
    { "randn(2,4), randn(3), randn(3)", "broadcast" }, { "tensor(1.0), randn(1), randn(1)", "at least 1 dimension" },
  },
  doc = "Rotary positions: pairs of coordinates of the last dimension, rotated by angles of which cos and sin are given for \z
    each pair, broadcast. Pairs are a coordinate of the first half with that of the second (Hugging Face's layout), or, \z
    interleaved, two neighbours (GGUF's, Meta's)." },
{ "kv_write_(Tensor! k_pool, Tensor! v_pool, Tensor k, Tensor v, IndexTensor slots, index_base) -> ()",
  kind = "extern", batch = "loop",
  dims = { k_pool = "B K P X", v_pool = "B K P Y : k_pool", k = "N K D : float", v = "N K V : k", slots = "N : int" },
  check = { key_type, key_rows, value_rows },
  grad = "none",
  reference = "kv_write_",
  samples = {
    "randn(3,2,4,5), randn(3,2,4,3), randn(3,2,5), randn(3,2,3), tensor({12,1,6},{dtype=int64})",
    "randn(2,1,1,2), randn(2,1,1,2), randn(0,1,2), randn(0,1,2), tensor({},{dtype=int64})",
  },
  errors = {
    { "randn(3,2,4,5), randn(3,2,4,5), randn(1,2,5), randn(1,2,5), tensor({13},{dtype=int64})", "13 is out of range" },
    { "randn(3,2,4,5), randn(3,2,4,5), randn(1,2,4), randn(1,2,5), tensor({1},{dtype=int64})", "rows of 4 elements" },
    { "zeros(3,2,4,34):to('uint8'), zeros(3,2,4,34):to('uint8'), randn(1,2,32), randn(1,2,34), tensor({1},{dtype=int64})",
      "Q8_0's bytes" },
    { "randn(3,2,4,5), randn(3,2,4,5), randn(1,2,5), randn(1,2,5), randn(1)", "int" },
  },
  doc = "Writes keys and values of N tokens into pools of blocks of P tokens each, (blocks, heads, P, size): token i goes to \z
    place slots[i] of all blocks' places, one block's behind the other's. Pools are of any float dtype, or uint8: rows of \z
    GGUF's Q8_0, 34 bytes for 32 elements. A slot twice: which of the tokens stays is not defined." },
{ "paged_attention(Tensor query, Tensor k_pool, Tensor v_pool, IndexTensor table, Tensor lengths, Tensor counts, float? scale=none, Tensor? sinks=none, int? window=none, index_base) -> Tensor",
  kind = "extern", batch = "loop",
  dims = { query = "N H D : float", k_pool = "B K P X", v_pool = "B K P Y : k_pool", table = "S M : int",
    lengths = "S : int", counts = "S : int", sinks = "H : float" },
  let = { V = "when(is_float(v_pool), Y, floor_divide(Y, 34) * 32)" },
  out = "N H V : query",
  check = { key_type, key_rows, value_rows, { "both(ge(K, 1), equal(remainder(H, larger(K, 1)), 0))",
    "the heads of query must be a multiple of those of k_pool, got {H} and {K}" },
    { "either(negate(given(window)), ge(window, 1))", "a window of {window}: expected 1 token at least" } },
  grad = "unimplemented",
  reference = "paged_attention",
  samples = {
    "randn(4,2,4), randn(5,2,2,4), randn(5,2,2,3), tensor({{5,2,1},{3,1,4}},{dtype=int64}), tensor({6,3},{dtype=int64}), \z
      tensor({2,2},{dtype=int64})",
    "randn(5,4,6), randn(4,2,3,6), randn(4,2,3,6), tensor({{4,1,3}},{dtype=int64}), tensor({8},{dtype=int64}), \z
      tensor({5},{dtype=int64}), 0.3",
    "randn(20,1,2), randn(6,1,4,2), randn(6,1,4,2), tensor({{6,1,3,2,5,4}},{dtype=int64}), tensor({23},{dtype=int64}), \z
      tensor({20},{dtype=int64})",
    "randn(4,4,4), randn(5,2,2,4), randn(5,2,2,3), tensor({{5,2,1},{3,1,4}},{dtype=int64}), tensor({6,3},{dtype=int64}), \z
      tensor({2,2},{dtype=int64}), nil, randn(4), 2",
    "randn(20,2,4), randn(6,1,4,4), randn(6,1,4,4), tensor({{6,1,3,2,5,4}},{dtype=int64}), tensor({23},{dtype=int64}), \z
      tensor({20},{dtype=int64}), 0.5, randn(2), 7",
  },
  errors = {
    { "randn(1,2,4), randn(5,2,2,4), randn(5,2,2,4), tensor({{6}},{dtype=int64}), tensor({1},{dtype=int64}), \z
      tensor({1},{dtype=int64})", "block 6 is out of range" },
    { "randn(1,2,4), randn(5,2,2,4), randn(5,2,2,4), tensor({{1}},{dtype=int64}), tensor({3},{dtype=int64}), \z
      tensor({1},{dtype=int64})", "a length of 3" },
    { "randn(1,2,4), randn(5,2,2,4), randn(5,2,2,4), tensor({{1}},{dtype=int64}), tensor({2},{dtype=int64}), \z
      tensor({0},{dtype=int64})", "add up to 0" },
    { "randn(1,2,4), randn(5,2,2,4), randn(5,2,2,4), tensor({{1}},{dtype=int64}), tensor({2},{dtype=int64}), \z
      tensor({1},{dtype=int64}), 1, nil, 0", "a window of 0" },
    { "randn(1,2,4), randn(5,2,2,4), randn(5,2,2,4), tensor({{1}},{dtype=int64}), tensor({2},{dtype=int64}), \z
      tensor({1},{dtype=int64}), 1, randn(3)", "sinks" },
    { "randn(1,3,4), randn(5,2,2,4), randn(5,2,2,4), tensor({{1}},{dtype=int64}), tensor({2},{dtype=int64}), \z
      tensor({1},{dtype=int64})", "multiple" },
  },
  doc = "Causal attention of running sequences that reads keys and values through a table of blocks. query (N, heads, D) has \z
    counts[s] rows for each sequence s, its last tokens, one sequence's behind the other's; lengths[s] is the number of \z
    its tokens in the pools, these included; table[s] names its blocks of P tokens in order (what is behind the last \z
    used one is not read). k_pool (blocks, K, P, D), v_pool (blocks, K, P, V), of any float dtype, or uint8 as in \z
    kv_write_; groups of heads share keys. scale is 1/sqrt(D). sinks: for each head the score of \z
    a key whose value is 0 and that all see (gpt-oss); window: a token sees as many, itself included. No gradient." },
}
