--- The names that the rules of ONNX use (`onnx` in the records, src/ops/onnx.lua), for one call of a program.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local sizes = require "moth.compile.sizes"

local M = {}

--- A value of the graph: { name, dtype, shape, ndim }; of a node within a rule only the name, and what can be told.
local Value = {}
Value.__index = Value
M.Value = Value
function M.value(name, dtype, shape) return setmetatable({ name = name, dtype = dtype, shape = shape,
  ndim = shape and #shape }, Value) end

local function is_value(v) return getmetatable(v) == Value end
M.is_value = is_value

-- The operators whose result is bool, and those whose result is int64.
local booleans, integers = {}, {}
for name in ("Equal Not Less LessOrEqual Greater GreaterOrEqual And Or Xor IsNaN IsInf"):gmatch("%a+") do
  booleans[name] = true
end
for name in ("ArgMax ArgMin Shape"):gmatch("%a+") do integers[name] = true end
-- Those that take numbers: a bool is 0 or 1 there.
local numeric = {}
for name in ("Add Sub Mul Div Mod Pow Neg Abs Sign Max Min Clip Less LessOrEqual Greater GreaterOrEqual ReduceMax \z
  ReduceMin ReduceSum ReduceProd ReduceL1 ArgMax ArgMin TopK CumSum Range MatMul"):gmatch("%a+") do
  numeric[name] = true
end

local function promoted(list)
  local dtype
  for _, v in ipairs(list) do
    if is_value(v) then dtype = dtype and B.promote(dtype, v.dtype).name or v.dtype end
  end
  for _, v in ipairs(list) do
    local number = type(v) == "number" or type(v) == "table" and not is_value(v)
    if number and dtype and not B.dtype(dtype).is_floating_point then
      if not sizes.is_whole(v) then dtype = B.default_dtype().name elseif dtype == "bool" then dtype = "int64" end
    end
  end
  return dtype or B.default_dtype().name
end

--- The environment of a rule: `writer` makes nodes; node is the call, values its arguments by name.
function M.environment(writer, node, values)
  local env = {}
  local outs = {}
  for i, meta in ipairs(node.metas) do outs[i] = { dtype = meta.dtype, shape = meta.shape, ndim = #meta.shape } end
  env.out, env.outs, env.opset = outs[1], outs, writer.opset

  local function constant(v, dtype) return writer:constant(v, dtype) end
  env.constant = constant
  function env.num(v, like) return constant(v, type(like) == "table" and like.dtype or like) end

  -- Windows of one image, without a batch.
  local windows = { Conv = true, ConvTranspose = true, MaxPool = true, AveragePool = true }
  local make
  local function batched(op, inputs, n, attributes)
    local count = attributes.kernel_shape or attributes.strides
    local x = inputs[1]
    if not count or not x.ndim or x.ndim ~= #count + 1 then return nil end
    local wide = make("Unsqueeze", x, env.ints { 0 })
    local list = { wide, unpack(inputs, 2, n) }
    list[n + 1] = attributes
    local results = { make(op, unpack(list, 1, n + 1)) }
    for i, v in ipairs(results) do results[i] = make("Squeeze", v, env.ints { 0 }) end
    return unpack(results)
  end

  -- A node, whose inputs are values, numbers (constants of the first value's dtype) or nil.
  function make(op, ...)
    local n = select("#", ...)
    local inputs = { ... }
    if op == "Where" and is_value(inputs[2]) and inputs[2].dtype == "bool" then -- onnxruntime has none
      local here = make("And", inputs[1], inputs[2])
      return make("Or", here, make("And", make("Not", inputs[1]), inputs[3]))
    end
    local attributes = {}
    if type(inputs[n]) == "table" and not is_value(inputs[n]) and inputs[n].kind ~= "size" then
      attributes, inputs[n] = inputs[n], nil
      n = n - 1
    end
    if type(inputs[1]) == "table" and is_value(inputs[1][1]) then inputs, n = inputs[1], #inputs[1] end -- a list
    while n > 0 and inputs[n] == nil do n = n - 1 end
    if windows[op] then
      local made = { batched(op, inputs, n, attributes) }
      if made[1] then return unpack(made) end
    end
    for i = 1, numeric[op] and n or 0 do
      if is_value(inputs[i]) and inputs[i].dtype == "bool" then inputs[i] = env.to(inputs[i], "int64") end
    end
    local like
    for i = 1, n do
      if is_value(inputs[i]) and not like and not (op == "Where" and i == 1) then like = inputs[i].dtype end
    end
    local names = {}
    for i = 1, n do
      local v = inputs[i]
      if v == nil then names[i] = ""
      elseif is_value(v) then names[i] = v.name
      else names[i] = constant(v, like).name
      end
    end
    local count = attributes.outputs or 1
    local made = writer:node(op, names, count, attributes, node.at)
    local list = {}
    for i = 1, count do
      local dtype = booleans[op] and "bool" or (integers[op] or op == "TopK" and i == 2) and "int64" or like
      list[i] = setmetatable({ name = made[i], dtype = dtype }, Value)
    end
    return unpack(list)
  end

  local function to(v, dtype)
    if not is_value(v) then return constant(v, dtype) end -- a number, or a formula of sizes
    if v.dtype == dtype then return v end
    local made = make("Cast", v, { to = require("moth.onnx.messages").code(dtype) })
    made.dtype, made.shape, made.ndim = dtype, v.shape, v.ndim
    return made
  end
  env.to = to
  function env.floats(v) return to(v, env.out.dtype) end
  function env.wide(v) return v.dtype == "float64" and v or to(v, "float32") end
  function env.Cast(v, meta) return to(v, meta.dtype) end

  function env.both(a, ...)
    local is_list = type(a) == "table" and not is_value(a) and a.kind ~= "size"
    local list = is_list and a or { a, ... }
    local dtype = promoted(list)
    local out = {}
    for i, v in ipairs(list) do out[i] = to(v, dtype) end
    if is_list then return out end
    return unpack(out)
  end

  function env.refuse(why) check.fail("[onnx.export] %s (%s): %s", node.op, node.at, why) end

  -- ---- sizes ---------------------------------------------------------------------------------------

  function env.ints(list) return writer:ints(list, node) end
  env.shape = env.ints
  function env.plus(a, b) return sizes.combined("add", a, b) end
  function env.all(dims)
    if dims and #dims > 0 then return dims end
    local list = {}
    for i = 1, values.self.ndim do list[i] = i - 1 end
    return list
  end
  function env.last(n)
    local list = {}
    for i = 1, n do list[i] = i - 1 - n end
    return list
  end
  function env.swapped(n, a, b)
    local list = {}
    for i = 1, n do list[i] = i - 1 end
    list[a + 1], list[b + 1] = b, a
    return list
  end
  function env.bitwise(op, ...)
    if env.out.dtype == "bool" then return make(op, ...) end
    if writer.opset < 18 then env.refuse("integers: { opset_version = 18 } has it") end
    return make("Bitwise" .. op, ...)
  end
  function env.fill(v, shape)
    for _, n in ipairs(shape) do
      if type(n) ~= "number" then return make("Expand", constant(v, values.self.dtype), env.ints(shape)) end
    end
    return writer:tensor(B.ops.full(shape, v, { dtype = values.self.dtype }))
  end
  function env.full(v, shape)
    return make("Expand", constant(v, env.out.dtype), env.ints(shape))
  end
  function env.channels(x) return { x.shape[2] } end
  -- A vector along the second dimension of `self`.
  function env.channel(w)
    if w.ndim ~= 1 or values.self.ndim < 3 then return w end
    local shape = { -1 }
    for _ = 3, values.self.ndim do shape[#shape + 1] = 1 end
    return make("Reshape", w, env.ints(shape))
  end
  function env.affine(x, weight, bias)
    if weight then x = make("Mul", x, env.channel(weight)) end
    if bias then x = make("Add", x, env.channel(bias)) end
    return x
  end
  function env.add(x, b) return b and make("Add", x, b) or x end
  function env.mul(x, w) return w and make("Mul", x, w) or x end
  function env.each(list, fn, ...)
    local out = {}
    for i, v in ipairs(list) do out[i] = fn(v, ...) end
    return out
  end
  -- ---- windows -------------------------------------------------------------------------------------

  local function twice(padding)
    local list = {}
    for i, p in ipairs(padding) do list[i], list[#padding + i] = p, p end
    return list
  end
  env.twice = twice
  -- x as the values that uint8 can hold (scale, zero: numbers); an int8 weight times the scale of each row.
  function env.rounded(x, scale, zero)
    local s, z = constant(scale, "float32"), constant(zero, "uint8")
    local q = x
    if x.dtype ~= "uint8" then
      q = make("QuantizeLinear", to(x, "float32"), s, z)
      q.dtype = "uint8"
    end
    local y = make("DequantizeLinear", q, s, z)
    y.dtype, y.shape, y.ndim = "float32", x.shape, x.ndim
    return y
  end
  -- Zero points and biases in int32 are what onnxruntime's int8 kernels want to see.
  function env.scaled(w, scale)
    local zero = writer:tensor(moth.zeros(scale.shape, { dtype = B.dtype(w.dtype) }), "zeros " .. scale.shape[1])
    local y = make("DequantizeLinear", w, to(scale, "float32"), zero, { axis = 0 })
    y.dtype, y.shape, y.ndim = "float32", w.shape, w.ndim
    return y
  end
  function env.whole(bias, scale, input_scale)
    if not bias then return nil end
    local b, s = writer.tensors[bias.name], writer.tensors[scale.name]
    if not b or not s then return to(bias, "float32") end
    local steps = s:detach():to(moth.float64) * input_scale
    local q = (b:detach():to(moth.float64) / steps):round()
    if not q:abs():lt(2 ^ 31):all():item() then return to(bias, "float32") end
    local y = make("DequantizeLinear", writer:tensor(q:to(moth.int32)), writer:tensor(steps:to(moth.float32)),
      { axis = 0 })
    y.dtype = "float32"
    return y
  end
  -- x (rows, K), each row rounded to uint8 by its own range, times w^T, sums in int32; scale of each row of w.
  function env.by_rows(x, w, scale)
    x = to(x, "float32")
    local low = make("Min", make("ReduceMin", x, { axes = { 1 }, keepdims = 1 }), 0)
    local high = make("Max", make("ReduceMax", x, { axes = { 1 }, keepdims = 1 }), 0)
    local size = make("Mul", make("Sub", high, low), 1 / 255)
    local s = make("Where", make("Less", size, 1e-30), 1, size)
    local inverse = make("Reciprocal", s)
    local function byte(v) return make("Clip", v, 0, 255) end
    local zero = byte(make("Round", make("Mul", make("Neg", low), inverse)))
    local q = to(byte(make("Add", make("Round", make("Mul", x, inverse)), zero)), "uint8")
    local t = writer.tensors[w.name] -- runtimes want a constant
    local turned = t and writer:tensor(B.ops.contiguous(B.ops.t(t)), "turned " .. w.name) or make("Transpose", w)
    local sums = make("MatMulInteger", q, turned)
    sums.dtype = "int32"
    local of_w = make("ReduceSum", to(turned, "int32"), env.ints { 0 }, { keepdims = 0 })
    sums = make("Sub", sums, make("Mul", to(zero, "int32"), of_w))
    return make("Mul", make("Mul", to(sums, "float32"), s), to(scale, "float32"))
  end
  function env.rectified(relu, y) return relu and make("Relu", y) or y end
  function env.window(stride, padding, dilation, groups, output_padding)
    return { strides = stride, pads = twice(padding), dilations = dilation, group = groups,
      output_padding = output_padding }
  end
  function env.pool(kernel, stride, padding, dilation, ceil_mode, count)
    if stride and #stride == 0 then stride = kernel end
    return { kernel_shape = kernel, strides = stride or kernel, pads = twice(padding), dilations = dilation,
      ceil_mode = ceil_mode and 1 or 0, count_include_pad = count ~= nil and (count and 1 or 0) or nil }
  end
  function env.max_pool_indices(x, attributes)
    local first = x.ndim - #attributes.kernel_shape + 1
    local plane = 1
    for i = first, x.ndim do plane = sizes.combined("mul", plane, x.shape[i]) end
    attributes.outputs = 2
    local y, at = make("MaxPool", x, attributes)
    at.dtype = "int64"
    return y, make("Mod", at, plane) -- ONNX counts through all images
  end
  -- Windows of different sizes, a dimension at a time.
  local function by_slices(x, reduce, first)
    for i, n in ipairs(values.output_size) do
      local size, axis, parts = x.shape[first + i], first + i - 1, {}
      if n == -1 then n = size end
      local shape = { unpack(x.shape) }
      for k = 0, n - 1 do
        local function edge(op, at)
          return sizes.combined(op, sizes.combined("div", sizes.combined("mul", size, at), n))
        end
        local from, stop = edge("floor", k), edge("ceil", k + 1)
        parts[k + 1] = reduce(make("Slice", x, env.ints { from }, env.ints { stop }, env.ints { axis }),
          { axes = { axis }, keepdims = 1 })
      end
      shape[first + i] = n
      x = make("Concat", parts, { axis = axis })
      x.shape, x.ndim = shape, #shape
    end
    return x
  end
  function env.adaptive(x, pool, global, reduce)
    local kernel, ones = {}, true
    local first = x.ndim - #values.output_size
    for i, n in ipairs(values.output_size) do
      local size = x.shape[first + i]
      if n == -1 then n = size end
      ones = ones and n == 1
      if not ones and (type(size) ~= "number" or size % n ~= 0) then return by_slices(x, reduce, first) end
      kernel[i] = type(size) == "number" and size / n
    end
    if x.ndim < #kernel + 2 then return by_slices(x, reduce, first) end
    if ones then return global(x) end
    return pool(x, { kernel_shape = kernel, strides = kernel })
  end



  -- ---- formulas of several nodes -------------------------------------------------------------------

  function env.is_float(meta) return B.dtype(meta.dtype).is_floating_point end
  function env.truncated(x) return make("Mul", make("Sign", x), make("Floor", make("Abs", x))) end
  -- Of integers: ONNX's division rounds towards 0.
  function env.floored(a, b)
    local q = make("Div", a, b)
    local rest = make("Sub", a, make("Mul", q, b))
    local below = make("And", make("Not", make("Equal", rest, 0)), make("Xor", make("Less", rest, 0),
      make("Less", b, 0)))
    return make("Where", below, make("Sub", q, 1), q)
  end
  function env.without_nan(op, a, b)
    return make("Where", make("IsNaN", a), b, make("Where", make("IsNaN", b), a, op(a, b)))
  end
  local function negative(x) -- -0, too
    return make("Or", make("Less", x, 0), make("Less", make("Reciprocal", x), 0))
  end
  function env.signbit(x)
    return B.dtype(x.dtype).is_floating_point and negative(x) or make("Less", x, 0)
  end
  function env.powers_of_two(v)
    return to(make("Pow", constant(2, "float64"), to(v, "float64")), env.out.dtype)
  end
  function env.signed(x, like)
    local size = make("Abs", x)
    return make("Where", negative(like), make("Neg", size), size)
  end
  function env.atan2(y, x)
    local dtype = env.out.dtype
    local function number(v) return constant(v, dtype) end
    local a = make("Atan", make("Div", y, x))
    local beyond = make("Where", negative(y), make("Sub", a, math.pi), make("Add", a, math.pi))
    local upright = make("Where", make("Equal", y, 0), make("Mul", y, 1),
      make("Where", make("Less", y, 0), number(-math.pi / 2), number(math.pi / 2)))
    return make("Where", make("Equal", x, 0), upright, make("Where", make("Less", x, 0), beyond, a))
  end
  -- log(exp(a) + exp(b)) in a base whose logarithm is `base`.
  function env.log_of_sum(a, b, base)
    local off = make("Neg", make("Abs", make("Sub", a, b)))
    local more = make("Div", make("Log", make("Add", make("Exp", make("Mul", off, base)), 1)), base)
    local top = make("Max", a, b)
    return make("Where", make("Equal", a, b), make("Add", a, constant(math.log(2) / base, a.dtype)),
      make("Add", top, more))
  end
  function env.sine_over(x)
    return make("Where", make("Equal", x, 0), constant(1, x.dtype), make("Div", make("Sin", x), x))
  end
  function env.times_log(x, y, log)
    local none = make("And", make("Equal", x, 0), make("Not", make("IsNaN", y)))
    return make("Where", none, constant(0, x.dtype), make("Mul", x, log))
  end
  function env.reshape(x, shape)
    for _, n in ipairs(shape) do
      if n == 0 then return make("Reshape", x, env.ints(shape), { allowzero = 1 }) end
    end
    return make("Reshape", x, env.ints(shape))
  end
  function env.squeezed(x, dim)
    for i, n in ipairs(x.shape) do
      if type(n) == "table" and (dim == nil or dim % x.ndim == i - 1)
        and not sizes.guard_decided({ op = "eq", a = n, b = 1, holds = false }, writer.ep.program.dims) then
        env.refuse(("dimension %d, of size %s, may be 1, and would go: name those that are to go, or give it min = 2 "
          .. "by moth.Dim"):format(i, sizes.text(n)))
      end
    end
    return env.reshape(x, env.out.shape)
  end
  function env.divided(x, attributes, divisor)
    local n = 1
    for _, k in ipairs(attributes.kernel_shape) do n = n * k end
    attributes.count_include_pad = 1
    return make("Mul", make("AveragePool", x, attributes), n / divisor)
  end
  function env.cross_entropy(x, target, weight, reduction, ignore)
    local none = writer:ints({ 0 }, node)
    if x.ndim < 2 then x, target = make("Unsqueeze", x, none), make("Unsqueeze", target, none) end
    local y = make("SoftmaxCrossEntropyLoss", x, target, weight, { reduction = reduction or "mean",
      ignore_index = (ignore or -100) - 1 }) -- targets count from 0 there
    return values.self.ndim < 2 and reduction == "none" and make("Squeeze", y, none) or y
  end
  function env.sub_floor(a, b) return make("Sub", a, make("Mul", make("Floor", make("Div", a, b)), b)) end
  function env.variance(x, axes, correction, keepdim)
    local n = 1
    for _, d in ipairs(axes) do n = sizes.combined("mul", n, values.self.shape[d + 1]) end
    local off = make("Sub", x, make("ReduceMean", x, { axes = axes, keepdims = 1 }))
    local mean = make("ReduceMean", make("Mul", off, off), { axes = axes, keepdims = keepdim })
    local left = sizes.combined("max", sizes.combined("sub", n, correction), 0)
    return make("Mul", mean, sizes.combined("div", n, left))
  end
  function env.reversed(x, dims)
    local function list(v)
      local out = {}
      for i = 1, #dims do out[i] = v end
      return env.ints(out)
    end
    return make("Slice", x, list(-1), list(-2 ^ 53), env.ints(dims), list(-1))
  end
  -- What is scattered: a number, or the part of a tensor that the index covers.
  function env.spread(v, like)
    if not is_value(v) then return make("Expand", constant(v, env.out.dtype), make("Shape", like)) end
    local from, stop, dims = {}, {}, {}
    for d, n in ipairs(v.shape and like.shape or {}) do
      if n ~= "?" and (v.shape[d] == "?" or sizes.text(n) ~= sizes.text(v.shape[d])) then
        from[#from + 1], stop[#stop + 1], dims[#dims + 1] = 0, n, d - 1
      end
    end
    return #dims > 0 and make("Slice", v, env.ints(from), env.ints(stop), env.ints(dims)) or v
  end

  function env.attention(q, k, v, mask, causal, scale, shared)
    local width = q.shape[q.ndim]
    if writer.opset >= 23 and q.ndim == 4 and not mask then -- of rows of a mask that allow nothing runtimes make NaN
      return make("Attention", q, k, v, mask, { is_causal = causal and 1 or 0, scale = scale })
    end
    scale = scale or 1 / math.sqrt(width)
    if shared then
      local groups = q.shape[q.ndim - 2] / k.shape[k.ndim - 2]
      local function repeated(x) -- each head `groups` times
        local at, wide, whole = x.ndim - 2, {}, {}
        for i, n in ipairs(x.shape) do
          whole[i] = i == at and n * groups or n
          wide[#wide + 1] = n
          if i == at then wide[#wide + 1] = groups end
        end
        local expanded = make("Expand", make("Unsqueeze", x, env.ints { at }), env.ints(wide))
        local made = make("Reshape", expanded, env.ints(whole))
        made.shape, made.ndim = whole, x.ndim
        return made
      end
      if groups ~= 1 then k, v = repeated(k), repeated(v) end
    end
    local perm = env.swapped(k.ndim, k.ndim - 2, k.ndim - 1)
    local scores = make("Mul", make("MatMul", q, make("Transpose", k, { perm = perm })), scale)
    if causal then
      local rows, columns = q.shape[q.ndim - 1], k.shape[k.ndim - 1]
      local ones = make("Expand", constant(1, "float32"), env.ints { rows, columns })
      local allowed = make("Cast", make("Trilu", ones, { upper = 0 }), { to = 9 })
      allowed.dtype = "bool"
      scores = make("Where", allowed, scores, constant(-math.huge, q.dtype))
    end
    if mask and mask.dtype == "bool" then
      scores = make("Where", mask, scores, constant(-math.huge, q.dtype))
    elseif mask then
      scores = make("Add", scores, mask)
    end
    local weights = make("Softmax", scores, { axis = -1 })
    if mask then -- a row that allows nothing gives zeros
      local most = make("ReduceMax", scores, { axes = { -1 }, keepdims = 1 })
      local none = make("Equal", most, constant(-math.huge, q.dtype))
      weights = make("Where", none, constant(0, q.dtype), weights)
    end
    return make("MatMul", weights, v)
  end

  -- ONNX's LSTM and GRU multiply the input by W; here that product is made, so W is the identity.
  local function gates(n, H, order, dtype)
    local rows = {}
    local eye = B.ops.eye(n * H, { dtype = dtype })
    for i, g in ipairs(order) do rows[i] = eye:narrow(1, g * H + 1, H) end
    return B.ops.cat(rows, 1)
  end
  local function directed(x, reverse)
    return { hidden_size = x, direction = reverse and "reverse" or "forward" }
  end
  local function front(x) return make("Unsqueeze", x, env.ints { 0 }) end

  -- Gates i, f, g, o of moth's; i, o, f, c of ONNX's.
  function env.lstm(x, w, h0, c0, reverse)
    local H = w.shape[2]
    local order = { 0, 3, 1, 2 }
    local attributes = directed(H, reverse)
    attributes.outputs = 3
    local y, _, c = make("LSTM", x, front(writer:tensor(gates(4, H, order, x.dtype))), front(make("MatMul",
      writer:tensor(gates(4, H, order, x.dtype)), w)), nil, nil, front(h0), front(c0), attributes)
    local hidden = make("Squeeze", y, env.ints { 1 })
    writer:only(node, 2, function(user) -- all cell states are not there: the last is
      return user.op == "select" and user.args[2] == 1
    end)
    return hidden, make("Expand", c, env.ints(outs[2].shape)), hidden
  end
  -- Gates r, z, n of moth's; z, r, h of ONNX's.
  function env.gru(x, w, b, h0, reverse)
    local H = w.shape[2]
    local turn = writer:tensor(gates(3, H, { 1, 0, 2 }, x.dtype))
    local attributes = directed(H, reverse)
    attributes.linear_before_reset, attributes.outputs = 1, 2
    local bias = b and front(make("Concat", writer:tensor(B.ops.zeros({ 3 * H }, { dtype = x.dtype })),
      make("MatMul", turn, b), { axis = 0 }))
    local y = make("GRU", x, front(turn), front(make("MatMul", turn, w)), bias, nil, front(h0), attributes)
    local hidden = make("Squeeze", y, env.ints { 1 })
    return hidden, hidden
  end
  require "moth.onnx.rules_places"(env, make, constant, writer)
  return setmetatable(env, { __index = function(_, name)
    if values[name] ~= nil then return values[name] end
    if name:find("^%u") then return function(...) return make(name, ...) end end
    local known = ({ math = math, ipairs = ipairs, unpack = unpack })[name]
    return known
  end })
end

return M
