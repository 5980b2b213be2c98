-- What records say of how their ops are computed (lua/moth/records) is what the kernels compute: `decompose`, `loop`,
-- map, join and finish, `contract`, windows, `draw`, `update` and `expr`, on the record's own samples, values and
-- gradients by every argument that has one. Loops and expressions to the bit. Wrong texts, planted here, are found.
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local records = require "moth.records"
local ops, is_tensor, dtype_of = B.ops, B.is_tensor, S.dtype_of

local function pack(...) return { n = select("#", ...), ... } end

-- Sums in another order: relative to what was added.
local tolerance = { float64 = { 1e-12, 1e-12 }, float32 = { 3e-6, 3e-6 } }
local wide = { float64 = { 1e-10, 1e-10 }, float32 = { 1e-5, 1e-5 } }
local products = { window = true, matmul = true }
local function tolerance_of(op, dtype)
  if dtype == "float32" and op.tolerance and op.tolerance.float32 then return op.tolerance.float32 end
  if products[op.kind] or op.name:find("attention") then return wide[dtype] end
  return tolerance[dtype]
end

-- To the bit: nothing is added up.
local exact = { loop = true, expr = true, draw = true }
local function is_exact(op, way)
  return exact[way] and op.store ~= "add" and op.store ~= "accumulate"
end

local function compare(op, way, got, want, what)
  if not is_tensor(got) then error(what .. ": no tensor, but " .. tostring(got), 0) end
  local dtype = dtype_of(want)
  if not S.same_shape(B.size(got), B.size(want)) then
    error(("%s: shape %s, the kernel gives %s"):format(what, S.show(B.size(got)), S.show(B.size(want))), 0)
  end
  if dtype_of(got) ~= dtype then
    error(("%s: dtype %s, the kernel gives %s"):format(what, dtype_of(got), dtype), 0)
  end
  local err = S.compare(S.values(got), S.values(want), dtype, is_exact(op, way) and { 0, 0 } or tolerance_of(op, dtype))
  if err then error(what .. ": " .. err, 0) end
end

-- Arguments in which floats are of this dtype; those that have a derivative ask for it.
local function prepared(op, args, dtype, by)
  return S.map(op, args, function(t, a)
    local x = dtype_of(t) == "float64" and ops.to(t, { dtype = dtype, copy = true }) or ops.clone(t)
    if a and by[a.name] and S.class[dtype_of(x)] == "float" then B.set_requires_grad(x, true) end
    return x
  end)
end

local function inputs_of(op, args)
  local list = {}
  S.map(op, args, function(t, a)
    if B.requires_grad(t) then list[#list + 1] = { t, a.name } end
    return t
  end)
  return list
end

-- The gradients of the results, each times numbers of its own, by the inputs.
local function gradients(op, results, inputs)
  local total
  S.reseed(77)
  for k = 1, math.min(results.n, op.stats or results.n) do
    local y = results[k]
    if is_tensor(y) and B.requires_grad(y) then
      local w = {}
      for i = 1, B.numel(y) do w[i] = S.uniform() + 0.5 end
      local sum = ops.sum(ops.mul(y, S.make(B.size(y), dtype_of(y), w)))
      total = total and ops.add(total, sum) or sum
    end
  end
  if not total then return {} end
  local list = {}
  for i, input in ipairs(inputs) do list[i] = input[1] end
  return { moth.autograd.grad(total, list, { allow_unused = true }) }
end

local function differentiable(op)
  local by = {}
  for _, a in ipairs(op.args) do
    local formula = type(op.grad) == "table" and op.grad[a.name]
    if op.grad == "composite" or formula and formula ~= "unimplemented" then by[a.name] = true end
  end
  return by
end

local function first_argument_copied(op, args)
  local copy = { n = args.n, unpack(args, 1, args.n) }
  for i, a in ipairs(op.args) do
    if a.mutated and is_tensor(copy[i]) then copy[i] = ops.clone(copy[i]) end
  end
  return copy
end

local checked, with_gradient = 0, 0

local function check(op, way, text, seed, dtype)
  local base, by = S.evaluate(text, { seed = seed }), differentiable(op)
  local theirs, ours = prepared(op, base, dtype, by), prepared(op, base, dtype, by)
  local written = op.kind == "composite" and op.returns_self
  local values = records.canonical(op, S.bind(op, written and first_argument_copied(op, ours) or ours))
  moth.manual_seed(9)
  local updates = way == "update" and records.updates(op, values) or {}
  local results = way ~= "update" and pack(records.run(op, values, way)) or { n = 0 }
  moth.manual_seed(9)
  local given = op.kind == "effect" and theirs or first_argument_copied(op, theirs)
  local want = pack(ops[op.name](unpack(given, 1, given.n)))
  if way ~= "update" and results.n ~= want.n then error(results.n .. " results, the kernel gives " .. want.n, 0) end
  for k = 1, results.n do compare(op, way, results[k], want[k], "result " .. k) end
  local bound = S.bind(op, given)
  for _, u in ipairs(updates) do
    local target = bound[u[1]]
    compare(op, way, u[3], u[2] and target[u[2]] or target, "what is written to " .. u[1])
  end
  checked = checked + 1

  local own, their = inputs_of(op, ours), inputs_of(op, theirs)
  if #own == 0 or way == "update" then return end
  local got, expected = gradients(op, results, own), gradients(op, want, their)
  for i, input in ipairs(own) do
    local g, e = got[i], expected[i]
    if g or e then
      g, e = g or ops.zeros_like(input[1]), e or ops.zeros_like(input[1])
      local err = S.compare(S.values(g), S.values(e), dtype, wide[dtype])
      if err then error(("the gradient by %s: %s"):format(input[2], err), 0) end
      with_gradient = with_gradient + 1
    end
  end
end

-- Of halves, whose sums are rounded otherwise: the dtypes.
local function check_halves(op, way, text, seed)
  local args = prepared(op, S.evaluate(text, { seed = seed }), "bfloat16", {})
  local ok, want = pcall(function() return pack(ops[op.name](unpack(first_argument_copied(op, args), 1, args.n))) end)
  if not ok then return end -- not of halves
  local got = pack(records.run(op, records.canonical(op, S.bind(op, args)), way))
  for k = 1, want.n do
    if is_tensor(want[k]) and dtype_of(got[k]) ~= dtype_of(want[k]) then
      error(("result %d: dtype %s, the kernel gives %s"):format(k, dtype_of(got[k]), dtype_of(want[k])), 0)
    end
  end
end

local function each_case(op)
  for _, way in ipairs(records.ways(op)) do
    for i, text in ipairs(op.samples) do
      for _, dtype in ipairs { "float64", "float32" } do
        local ok, err = pcall(check, op, way, text, S.seed + i, dtype)
        if not ok then return ("%s, sample %d, %s, %s: %s"):format(way, i, text, dtype, tostring(err)) end
      end
      if way == "decompose" or way == "expr" then
        local ok, err = pcall(check_halves, op, way, text, S.seed + i)
        if not ok then return ("%s, sample %d, %s, bfloat16: %s"):format(way, i, text, tostring(err)) end
      end
    end
  end
end

describe("what a record says is what its kernel computes", function()
  for _, op in ipairs(S.selected()) do
    local ways = op.name == "empty_like" and {} or records.ways(op) -- its elements are what was there
    if #ways > 0 then
      it(S.title(op) .. " (" .. table.concat(ways, ", ") .. ")", function()
        local err = each_case(op)
        assert(not err, err)
      end)
    end
  end
end)

-- The record with `from` in one of its fields made into `to`, wherever the text stands.
local function planted(op, field, from, to)
  local found = false
  local function changed(v)
    if type(v) == "table" then
      local out = {}
      for k, x in pairs(v) do out[k] = changed(x) end
      return out
    end
    if type(v) ~= "string" then return v end
    local at, last = v:find(from, 1, true)
    if not at then return v end
    found = true
    return v:sub(1, at - 1) .. to .. v:sub(last + 1)
  end
  local copy = {}
  for k, v in pairs(op) do copy[k] = k == field and changed(v) or v end
  assert(found, ("'%s' does not stand in %s of %s"):format(from, field, op.name))
  return copy
end

describe("a mistake in a record is found by its samples:", function()
  for _, m in ipairs({
    { "no shift", "softmax", "decompose", "exp(x - amax(x, list(dim), true))", "exp(x)" },
    { "the wrong dimension", "softmax", "decompose", "sum(e, list(dim), true)", "sum(e, list(0), true)" },
    { "no logarithm", "log_softmax", "decompose", "shifted - log(", "shifted - (" },
    { "a factor missing", "softmax_backward", "decompose", ") * output", ")" },
    { "eps outside of the root", "native_layer_norm", "decompose", "rsqrt(mean(square(c), over, true) + eps)",
      "rsqrt(mean(square(c), over, true)) + eps" },
    { "the bias forgotten", "native_layer_norm", "decompose", "when(given(bias), y + bias, y)", "y" },
    { "one dimension for two", "native_layer_norm", "decompose", "range(self.ndim - dims, self.ndim)",
      "range(self.ndim - 1, self.ndim)" },
    { "a variance that is unbiased", "native_batch_norm", "decompose", "mean(square(c), over)", "var(self, over)" },
    { "a running variance that is biased", "native_batch_norm", "update", " * (n / (n - 1))", "" },
    { "momentum the other way", "native_batch_norm", "update", "running_mean * (1 - momentum) + m * momentum",
      "running_mean * momentum + m * (1 - momentum)" },
    { "groups of the wrong size", "native_group_norm", "decompose", "list(self.shape[0], groups, size)",
      "list(self.shape[0], size, groups)" },
    { "a mean not taken away", "layer_norm_backward", "decompose", "(g - op.mean(g, over, true) -", "(g -" },
    { "a class off by one", "cross_entropy", "decompose", "where(ok, target - index_base, 0)", "where(ok, target, 0)" },
    { "smoothing forgotten", "cross_entropy", "decompose", " + smooth", "" },
    { "the mean of another number", "cross_entropy", "decompose", "sum(loss) / sum(w)", "mean(loss)" },
    { "no scale in dropout", "native_dropout", "decompose", "1 / (1 - p)", "1" },
    { "the kept for the dropped", "native_dropout_mask", "decompose", "generator), 0)", "generator), 1)" },
    { "one divisor for another", "var", "finish", "s0 - correction", "s0" },
    { "a mean that is a sum", "mean", "finish", "s0 / count", "s0" },
    { "the wrong join", "amax", "join", "max", "min" },
    { "a position from 0", "argmax", "finish", "s1 + index_base", "s1" },
    { "elements that are no truth values", "all", "map", "ne(x, 0)", "eq(x, 0)" },
    { "a running product", "cumsum", "join", "sum", "prod" },
    { "transposed subscripts", "linear", "contract", "weight jk", "weight kj" },
    { "a batch dropped", "bmm", "contract", "mat2 bkj", "mat2 kbj" },
    { "alpha forgotten", "addmm", "finish", "self * beta + s0 * alpha", "self * beta + s0" },
    { "a wrong offset in a list", "cat", "loop", "from = from + n", "from = n" },
    { "the index not read", "gather", "loop", "load(index, out) - index_base", "out[dim]" },
    { "the wrong triangle", "tril", "loop", "le(", "ge(" },
    { "an order that stays", "flip", "loop", "self.shape[d] - 1 - out[d]", "out[d]" },
    { "the last write, not the sum", "scatter_add", "store", "add", "last" },
    { "the wrong side", "index_add", "loop", "load(index, { out[dim] })", "load(index, { out[1 - dim] })" },
    { "negative positions forgotten", "gather_nd", "loop", "v + self.shape[d]", "v" },
    { "a step forgotten", "arange", "loop", "out[0] * step", "out[0]" },
    { "no padding", "avg_pool2d", "window", "padding", "list(0, 0)" },
    { "edges counted always", "avg_pool2d", "map", "count_include_pad and padded or inside", "padded" },
    { "dilation forgotten", "conv2d", "window", "dilation", "list(1, 1)" },
    { "groups forgotten", "conv2d", "map", "group * weight.shape[1] + c", "c" },
    { "a kernel turned around", "conv2d_backward_input", "map", "ky, grad_output",
      "weight.shape[2] - 1 - ky, grad_output" },
    { "edges of means", "adaptive_avg_pool2d", "map", "+ rows - 1, rows", ", rows" },
    { "a mask the other way", "attention_forward", "decompose", "is_causal, scale", "negate(is_causal), scale" },
    { "heads not shared", "attention_forward", "decompose", "as_heads(value, query)",
      "as_heads(flip(value, list(1)), query)" },
    { "nesterov forgotten", "sgd_step", "update", "when(nesterov, d + b * momentum, b)", "b" },
    { "decay not decoupled", "adam_step", "update", "when(decoupled, g0, g0 + param * weight_decay)",
      "g0 + param * weight_decay" },
    { "no correction", "adam_step", "update", "(1 - power_of(beta1, t))", "1" },
    { "the larger never kept", "adam_step", "update", "maximum(max_exp_avg_sq, v)", "v" },
    { "rows in another order", "roll", "loop", "i[d] - shifts[k - 1]", "i[d] + shifts[k - 1]" },
    { "an edge that is repeated", "pad", "loop", "n - 1 - abs(n - 1 - abs(p))", "n - abs(n - 1 - abs(p))" },
    { "the nearest of the wrong side", "upsample_nearest", "loop", "out[d] * self.shape[d]",
      "out[d] * self.shape[d] + 1" },
    { "a class off by one", "one_hot", "loop", " - index_base", "" },
    { "a row off by one", "embedding", "loop", " - index_base", " - 0" },
    { "tensors in another order", "stack", "loop", "k - 1", "k" },
    { "a running sum", "cumprod", "join", "prod", "sum" },
    { "the norm of another power", "norm", "expr", "1 / q", "q" },
    { "halves in the wrong order", "glu", "expr", "narrow(self, dim, 0, half)", "narrow(self, dim, half, half)" },
    { "a draw stretched wrong", "uniform_", "finish", "(to - from)", "to" },
  }) do
    local what, name, field, from, to = unpack(m)
    it(what .. ", " .. name, function()
      local op = planted(moth.ops.get(name), field, from, to)
      assert.is_not_nil(each_case(op), "the samples of " .. name .. " do not see it")
    end)
  end

  it("`none` names specs that are there", function()
    for _, op in ipairs(S.selected()) do
      local path = op.none and op.none:match("spec/[%w_/]+%.lua")
      assert(not path or io.open(path), ("%s: there is no %s"):format(op.name, tostring(path)))
    end
  end)

  it("ran, with gradients", function()
    if #S.selected() == #S.records then
      assert(checked > 400 and with_gradient > 300, ("%d cases, %d gradients"):format(checked, with_gradient))
    end
  end)
end)
