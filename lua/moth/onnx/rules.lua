--- The names that the rules of ONNX use (`onnx` in the records, src/ops/onnx.lua), for one call of a program.
local B = require "moth_lua"
local check = require "moth.utils.check"

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

local function promoted(list)
  local dtype
  for _, v in ipairs(list) do
    if is_value(v) then dtype = dtype and B.promote(dtype, v.dtype).name or v.dtype end
  end
  for _, v in ipairs(list) do
    if type(v) == "number" and v ~= math.floor(v) and dtype and not B.dtype(dtype).is_floating_point then
      dtype = B.default_dtype().name
    end
  end
  return dtype or B.default_dtype().name
end

--- The environment of a rule: `writer` makes nodes; node is the call, values its arguments by name.
function M.environment(writer, node, values)
  local env = {}
  local outs = {}
  for i, meta in ipairs(node.metas) do outs[i] = { dtype = meta.dtype, shape = meta.shape, ndim = #meta.shape } end
  env.out, env.outs = outs[1], outs

  local function constant(v, dtype) return writer:constant(v, dtype) end
  env.constant = constant
  function env.num(v, like) return constant(v, is_value(like) and like.dtype or like) end

  -- A node, whose inputs are values, numbers (constants of the first value's dtype) or nil.
  local function make(op, ...)
    local n = select("#", ...)
    local inputs = { ... }
    local attributes = {}
    if type(inputs[n]) == "table" and not is_value(inputs[n]) and inputs[n].kind ~= "size" then
      attributes, inputs[n] = inputs[n], nil
      n = n - 1
    end
    if type(inputs[1]) == "table" and is_value(inputs[1][1]) then inputs, n = inputs[1], #inputs[1] end -- a list
    while n > 0 and inputs[n] == nil do n = n - 1 end
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
    if type(v) == "number" then return constant(v, dtype) end
    if v.dtype == dtype then return v end
    local made = make("Cast", v, { to = require("moth.onnx.messages").code(dtype) })
    made.dtype, made.shape, made.ndim = dtype, v.shape, v.ndim
    return made
  end
  env.to = to
  function env.floats(v) return to(v, env.out.dtype) end
  function env.Cast(v, meta) return to(v, meta.dtype) end

  function env.both(a, ...)
    local list = is_value(a) and { a, ... } or type(a) == "table" and a or { a, ... }
    local dtype = promoted(list)
    local out = {}
    for i, v in ipairs(list) do out[i] = to(v, dtype) end
    if type(a) == "table" and not is_value(a) then return out end
    return unpack(out)
  end

  function env.refuse(why) check.fail("[onnx.export] %s (%s): %s", node.op, node.at, why) end

  -- ---- sizes ---------------------------------------------------------------------------------------

  function env.ints(list) return writer:ints(list, node) end
  env.shape = env.ints
  function env.plus(a, b)
    if type(a) == "number" and type(b) == "number" then return a + b end
    local f = { kind = "size", terms = {}, add = 0 }
    for _, v in ipairs { a, b } do
      if type(v) == "number" then
        f.add = f.add + v
      elseif v.div or v.of then
        env.refuse("a sum of quotients of sizes")
      else
        for _, term in ipairs(v.terms) do f.terms[#f.terms + 1] = term end
        f.add = f.add + (v.add or 0)
      end
    end
    return f
  end
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
  function env.fill(v, shape)
    for _, n in ipairs(shape) do
      if type(n) ~= "number" then env.refuse("a constant whose size changes") end
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
  function env.pads(pad, ndim)
    local list, n = {}, #pad / 2
    for i = 1, 2 * ndim do list[i] = 0 end
    for i = 1, n do
      list[ndim - i + 1], list[2 * ndim - i + 1] = pad[2 * i - 1], pad[2 * i]
    end
    return list
  end

  -- ---- windows -------------------------------------------------------------------------------------

  local function twice(padding)
    local list = {}
    for i, p in ipairs(padding) do list[i], list[#padding + i] = p, p end
    return list
  end
  function env.window(stride, padding, dilation, groups, output_padding)
    return { strides = stride, pads = twice(padding), dilations = dilation, group = groups,
      output_padding = output_padding }
  end
  function env.pool(kernel, stride, padding, dilation, ceil_mode, count)
    if stride and #stride == 0 then stride = kernel end
    return { kernel_shape = kernel, strides = stride or kernel, pads = twice(padding), dilations = dilation,
      ceil_mode = ceil_mode and 1 or 0, count_include_pad = count ~= nil and (count and 1 or 0) or nil }
  end
  function env.adaptive(x, pool, global)
    local kernel, ones = {}, true
    local first = x.ndim - #values.output_size
    for i, n in ipairs(values.output_size) do
      local size = x.shape[first + i]
      if n == -1 then n = size end
      ones = ones and n == 1
      if not ones and (type(size) ~= "number" or size % n ~= 0) then
        env.refuse(("windows of different sizes: %s to %s"):format(tostring(size), tostring(n)))
      end
      kernel[i] = type(size) == "number" and size / n
    end
    if ones then return global(x) end
    return pool(x, { kernel_shape = kernel, strides = kernel })
  end

  -- Each place of the kernel is a slice; (N, C * places, blocks).
  function env.columns(x, kernel, dilation, padding, stride)
    local first = x.ndim == 3 and make("Unsqueeze", x, env.ints { 0 }) or x
    local at = x.ndim - 2
    local function pair(list) return list[1], list[2] or list[1] end
    local kh, kw = pair(kernel)
    local dh, dw = pair(dilation)
    local ph, pw = pair(padding)
    local sh, sw = pair(stride)
    local h, w, c = x.shape[at + 1], x.shape[at + 2], x.shape[at]
    if type(h) ~= "number" or type(w) ~= "number" or type(c) ~= "number" then
      env.refuse("windows of an image whose size changes")
    end
    local rows = math.floor((h + 2 * ph - dh * (kh - 1) - 1) / sh) + 1
    local columns = math.floor((w + 2 * pw - dw * (kw - 1) - 1) / sw) + 1
    local padded = make("Pad", first, env.ints { 0, 0, ph, pw, 0, 0, ph, pw }, constant(0, x.dtype))
    local parts = {}
    for i = 0, kh - 1 do
      for k = 0, kw - 1 do
        local part = make("Slice", padded, env.ints { i * dh, k * dw }, env.ints { i * dh + (rows - 1) * sh + 1,
          k * dw + (columns - 1) * sw + 1 }, env.ints { 2, 3 }, env.ints { sh, sw })
        parts[#parts + 1] = make("Unsqueeze", part, env.ints { 2 })
      end
    end
    local joined = make("Concat", parts, { axis = 2 })
    return make("Reshape", joined, x.ndim == 3 and env.ints { c * kh * kw, rows * columns }
      or env.ints { 0, c * kh * kw, rows * columns })
  end

  -- The inverse: ONNX's Col2Im, opset 18.
  function env.image(x, size, kernel, dilation, padding, stride)
    if writer.opset < 18 then env.refuse("it needs opset_version = 18") end
    local function pair(list) return { list[1], list[2] or list[1] } end
    local first = x.ndim == 2 and make("Unsqueeze", x, env.ints { 0 }) or x
    local made = make("Col2Im", first, env.ints(pair(size)), env.ints(pair(kernel)), { dilations = pair(dilation),
      pads = twice(pair(padding)), strides = pair(stride) })
    return x.ndim == 2 and make("Squeeze", made, env.ints { 0 }) or made
  end

  -- ---- formulas of several nodes -------------------------------------------------------------------

  function env.sub_floor(a, b) return make("Sub", a, make("Mul", make("Floor", make("Div", a, b)), b)) end
  function env.variance(x, axes, correction, keepdim)
    local n = 1
    for _, d in ipairs(axes) do
      if type(values.self.shape[d + 1]) ~= "number" then env.refuse("a variance over a size that changes") end
      n = n * values.self.shape[d + 1]
    end
    local off = make("Sub", x, make("ReduceMean", x, { axes = axes, keepdims = 1 }))
    local mean = make("ReduceMean", make("Mul", off, off), { axes = axes, keepdims = keepdim })
    return make("Mul", mean, n / math.max(n - correction, 0))
  end
  function env.reversed(x, dims)
    local function list(v)
      local out = {}
      for i = 1, #dims do out[i] = v end
      return env.ints(out)
    end
    return make("Slice", x, list(-1), list(-2 ^ 53), env.ints(dims), list(-1))
  end
  -- gather_nd: -1 is the last position, which 1 has been taken away from.
  function env.picked(x, dims, index)
    local zero = constant(0, index.dtype)
    local at = make("Where", make("Less", index, zero), make("Add", index, constant(1, index.dtype)), index)
    if #dims == 1 then return make("Gather", x, at, { axis = dims[1] }) end
    for i, d in ipairs(dims) do
      if d ~= i - 1 then env.refuse("positions in dimensions that are not the first ones") end
    end
    return make("GatherND", x, at)
  end
  function env.spread(v, like)
    if is_value(v) then return v end
    return make("Expand", constant(v, env.out.dtype), make("Shape", like))
  end

  function env.attention(q, k, v, mask, causal, scale, shared)
    local width = q.shape[q.ndim]
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
    return make("MatMul", make("Softmax", scores, { axis = -1 }), v)
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
  return setmetatable(env, { __index = function(_, name)
    if values[name] ~= nil then return values[name] end
    if name:find("^%u") then return function(...) return make(name, ...) end end
    local known = ({ math = math, ipairs = ipairs, unpack = unpack })[name]
    return known
  end })
end

return M
