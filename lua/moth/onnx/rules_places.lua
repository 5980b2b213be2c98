--- The names that the rules of ONNX use (lua/moth/onnx/rules.lua) for positions, diagonals and windows.
local B = require "moth_lua"
local rules = require "moth.onnx.rules"
local sizes = require "moth.compile.sizes"

-- make(op, …) is a node, constant(v, dtype) one of a constant; writer makes the file.
return function(env, make, constant, writer)
  local is_value = rules.is_value

  -- Numbers, or formulas of sizes.
  local function plus(a, b) return sizes.combined("add", a, b) end
  local function times(a, b) return sizes.combined("mul", a, b) end
  local function over(a, b) return sizes.combined("floor", sizes.combined("div", a, b)) end

  -- 0, step, 2 * step, …, count of them, and `first` more each.
  local function steps(count, step, first)
    local at = make("Range", constant(0, "int64"), constant(count, "int64"), constant(1, "int64"))
    if step ~= 1 then at = make("Mul", at, constant(step, "int64")) end
    return first ~= 0 and make("Add", at, constant(first, "int64")) or at
  end
  local modes = { reflect = "reflect", replicate = "edge", circular = "wrap" }
  -- Readers cut before they pad. Mirrors and edges are those of the whole dimension, so a side beside one that grows is
  -- cut afterwards.
  function env.padded(x, pad, mode, value)
    local pads, n = {}, x.ndim
    local axes, starts, stops = {}, {}, {}
    for i = 1, 2 * n do pads[i] = 0 end
    for k = 0, #pad / 2 - 1 do
      local sides, d = { pad[2 * k + 1], pad[2 * k + 2] }, n - k
      for side, amount in ipairs(sides) do
        local other = sides[3 - side]
        if (mode == "reflect" or mode == "replicate") and type(amount) == "number" and amount < 0
          and not (type(other) == "number" and other <= 0) then
          axes[#axes + 1], amount = d - 1, 0
          starts[#starts + 1] = side == 1 and -sides[1] or 0
          stops[#stops + 1] = side == 2 and sides[2] or 2^53
        end
        pads[d + (side - 1) * n] = amount
      end
    end
    local y = make("Pad", x, env.ints(pads), mode == "constant" and env.num(value, x) or nil,
      { mode = modes[mode] or mode })
    if #axes == 0 then return y end
    return make("Slice", y, env.ints(starts), env.ints(stops), env.ints(axes))
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
    -- Behind the first element of the last window.
    local bottom = plus(times(over(plus(h, 2 * ph - dh * (kh - 1) - 1), sh), sh), 1)
    local right = plus(times(over(plus(w, 2 * pw - dw * (kw - 1) - 1), sw), sw), 1)
    local padded = make("Pad", first, env.ints { 0, 0, ph, pw, 0, 0, ph, pw }, constant(0, x.dtype))
    local parts = {}
    for i = 0, kh - 1 do
      for k = 0, kw - 1 do
        local part = make("Slice", padded, env.ints { i * dh, k * dw }, env.ints { plus(bottom, i * dh),
          plus(right, k * dw) }, env.ints { 2, 3 }, env.ints { sh, sw })
        parts[#parts + 1] = make("Unsqueeze", part, env.ints { 2 })
      end
    end
    local joined = make("Concat", parts, { axis = 2 })
    local all = times(c, kh * kw)
    return make("Reshape", joined, x.ndim == 3 and env.ints { all, -1 } or env.ints { 0, all, -1 })
  end
  -- The inverse: ONNX's Col2Im, opset 18.
  function env.image(x, size, kernel, dilation, padding, stride)
    local function pair(list) return { list[1], list[2] or list[1] } end
    local first = x.ndim == 2 and make("Unsqueeze", x, env.ints { 0 }) or x
    local made = make("Col2Im", first, env.ints(pair(size)), env.ints(pair(kernel)), { dilations = pair(dilation),
      pads = env.twice(pair(padding)), strides = pair(stride) })
    return x.ndim == 2 and make("Squeeze", made, env.ints { 0 }) or made
  end
  function env.eye(n, m)
    if type(n) == "number" and type(m or n) == "number" then
      return writer:tensor(B.ops.eye(n, m):to(B.dtype(env.out.dtype)))
    end
    local y = make("EyeLike", make("Expand", constant(0, "float32"), env.ints { n, m or n }))
    return env.to(y, env.out.dtype)
  end
  function env.diagonal_of(x, offset, dim1, dim2)
    local rows, columns = x.shape[dim1 + 1], x.shape[dim2 + 1]
    local perm, shape = {}, {}
    local at
    for i = 0, x.ndim - 1 do
      if i ~= dim1 and i ~= dim2 then perm[#perm + 1], shape[#shape + 1] = i, x.shape[i + 1] end
    end
    perm[#perm + 1], perm[#perm + 2] = dim1, dim2
    shape[#shape + 1] = sizes.combined("mul", rows, columns)
    if type(rows) == "number" and type(columns) == "number" then
      local places = {}
      for i = math.max(-offset, 0), rows - 1 do
        if i + offset < columns then places[#places + 1] = i * columns + i + offset end
      end
      at = #places > 0 and constant(places, "int64") or writer:tensor(B.ops.zeros({ 0 }, { dtype = "int64" }))
    else
      local count = sizes.combined("min", sizes.combined("sub", rows, math.max(-offset, 0)),
        sizes.combined("sub", columns, math.max(offset, 0)))
      at = steps(count, plus(columns, 1), offset >= 0 and offset or times(columns, -offset))
    end
    return make("Gather", env.reshape(make("Transpose", x, { perm = perm }), shape), at, { axis = -1 })
  end
  function env.flat(x)
    local n = 1
    for _, size in ipairs(x.shape) do n = times(n, size) end
    local made = make("Reshape", x, env.ints { -1 })
    made.shape, made.ndim = { n }, 1
    return made
  end
  -- Matrices with x on a diagonal.
  function env.diag_embed(x, offset, dim1, dim2)
    local n, shape = x.shape[x.ndim], { unpack(x.shape) }
    local m = plus(n, math.abs(offset))
    shape[x.ndim] = times(m, m)
    local flat = make("Expand", constant(0, x.dtype), env.ints(shape))
    local at = steps(n, plus(m, 1), plus(times(m, math.max(-offset, 0)), math.max(offset, 0)))
    flat = make("ScatterElements", flat, env.spread_index(at, x.ndim - 1, x), x, { axis = x.ndim - 1 })
    shape[x.ndim], shape[x.ndim + 1] = m, m
    local y, perm, next_dim = env.reshape(flat, shape), {}, 0
    if dim1 == x.ndim - 1 and dim2 == x.ndim then return y end
    for i = 0, x.ndim do
      if i == dim1 then perm[i + 1] = x.ndim - 1
      elseif i == dim2 then perm[i + 1] = x.ndim
      else
        perm[i + 1] = next_dim
        next_dim = next_dim + 1
      end
    end
    return make("Transpose", y, { perm = perm })
  end
  function env.windows_along(x, dim, size, step)
    local offsets, perm = {}, {}
    for k = 1, size do offsets[k] = k - 1 end
    local first = steps(plus(over(plus(x.shape[dim + 1], -size), step), 1), step, 0)
    local at = make("Add", make("Unsqueeze", first, env.ints { 1 }), constant(offsets, "int64"))
    local y = make("Gather", x, at, { axis = dim })
    for i = 0, x.ndim do
      if i ~= dim + 1 then perm[#perm + 1] = i end
    end
    perm[#perm + 1] = dim + 1
    return make("Transpose", y, { perm = perm })
  end
  -- An index of gather_nd and its like: -1 is the last position, which 1 has been taken away from.
  local function wrapped(index)
    local zero, one = constant(0, index.dtype), constant(1, index.dtype)
    return make("Where", make("Less", index, zero), make("Add", index, one), index)
  end
  -- A permutation that brings dims to the front; the index's stand in their place if they follow one another.
  local function in_front(x, dims)
    local perm, chosen, adjacent = {}, {}, true
    for i, d in ipairs(dims) do
      perm[i], chosen[d] = d, true
      adjacent = adjacent and (i == 1 or d == dims[i - 1] + 1)
    end
    for i = 0, x.ndim - 1 do
      if not chosen[i] then perm[#perm + 1] = i end
    end
    return perm, adjacent
  end
  -- How the dimensions of the index come to stand where the first one of dims stood, of `rank` dimensions in all.
  local function moved(lead, first, rank)
    local back = {}
    for i = 1, first do back[i] = lead + i - 1 end
    for i = 1, lead do back[#back + 1] = i - 1 end
    for i = first + lead + 1, rank do back[i] = i - 1 end
    return back
  end
  local function inverse(perm)
    local out = {}
    for i, d in ipairs(perm) do out[d + 1] = i - 1 end
    return out
  end
  function env.picked(x, dims, index)
    local at = wrapped(index)
    if #dims == 1 then return make("Gather", x, at, { axis = dims[1] }) end
    local perm, adjacent = in_front(x, dims)
    local made = make("GatherND", make("Transpose", x, { perm = perm }), at)
    if not adjacent or dims[1] == 0 then return made end
    local lead = index.ndim - 1
    return make("Transpose", made, { perm = moved(lead, dims[1], lead + x.ndim - #dims) })
  end
  function env.put_nd(x, dims, index, src, accumulate)
    local at, lead = wrapped(index), index.ndim - 1
    if #dims == 1 then
      at, lead = make("Unsqueeze", at, env.ints { index.ndim }), index.ndim
    end
    local perm, adjacent = in_front(x, dims)
    local new = make("Expand", env.to(src, x.dtype), make("Shape", env.picked(x, dims, index)))
    if adjacent and dims[1] > 0 then
      new = make("Transpose", new, { perm = inverse(moved(lead, dims[1], lead + x.ndim - #dims)) })
    end
    local made = make("ScatterND", make("Transpose", x, { perm = perm }), at, new,
      { reduction = accumulate and "add" or nil })
    return make("Transpose", made, { perm = inverse(perm) })
  end
  -- An index along a dimension, for each element of `like`.
  function env.spread_index(index, dim, like)
    local shape = {}
    for i = 1, like.ndim do shape[i] = i == dim + 1 and -1 or 1 end
    return make("Expand", make("Reshape", index, env.ints(shape)), make("Shape", like))
  end
  -- x with v at positions, a list, of a dimension.
  function env.placed(x, v, dim, places)
    return make("ScatterElements", x, env.spread_index(constant(places, "int64"), dim, v), v, { axis = dim })
  end
  -- x with v in place of the elements first to last - 1, from 0, of a dimension; below 0: from the end.
  local END = 2 ^ 53 -- behind the last element of any dimension
  local function between(x, v, dim, first, last)
    local function part(from, to) return make("Slice", x, env.ints { from }, env.ints { to }, env.ints { dim }) end
    local parts, known = { v }, type(last) == "number"
    if first ~= 0 then table.insert(parts, 1, part(0, first)) end
    if not (known and (last >= END or first == -1 and last == 0)) then parts[#parts + 1] = part(last, END) end
    return #parts == 1 and v or make("Concat", parts, { axis = dim })
  end
  function env.put_slice(x, v, dim, start, stop, step)
    local n = x.shape[dim + 1]
    step = step or 1
    if type(n) ~= "number" or type(start) == "table" or type(stop) == "table" then
      local function place(at)
        return type(at) == "number" and at < 0 and sizes.combined("max", plus(n, at), 0) or at
      end
      start, stop = place(start), place(stop)
      local all = stop == nil or type(stop) == "table" and sizes.text(stop) == sizes.text(n)
      if step == 1 then return between(x, env.to(v, x.dtype), dim, start or 0, all and END or stop) end
      local last = make("Min", constant(n, "int64"), constant(all and n or stop, "int64"))
      local at = make("Range", constant(start or 0, "int64"), last, constant(step, "int64"))
      v = env.to(v, x.dtype)
      return make("ScatterElements", x, env.spread_index(at, dim, v), v, { axis = dim })
    end
    local function place(at, default)
      at = at or default
      return math.max(0, math.min(at < 0 and at + n or at, n))
    end
    local first, last, places = place(start, 0), place(stop, n), {}
    if last <= first then return make("Identity", x) end
    if step == 1 then return between(x, env.to(v, x.dtype), dim, first, last == n and END or last) end
    for i = first, last - 1, step do places[#places + 1] = i end
    return env.placed(x, env.to(v, x.dtype), dim, places)
  end
  function env.put_row(x, v, dim, index)
    local row = make("Unsqueeze", env.to(v, x.dtype), env.ints { dim })
    return between(x, row, dim, index, type(index) == "number" and index + 1 or sizes.combined("add", index, 1))
  end
  function env.put_value(x, dim, index, v)
    local shape = { unpack(x.shape) }
    shape[dim + 1] = index.shape[1] or 1
    local source = make("Expand", is_value(v) and v or constant(v, x.dtype), env.ints(shape))
    source.ndim = x.ndim
    return make("ScatterElements", x, env.spread_index(wrapped(index), dim, source), source, { axis = dim })
  end
  function env.put_flat(x, index, v, accumulate)
    local flat = make("ScatterElements", make("Reshape", x, env.ints { -1 }),
      make("Reshape", wrapped(index), env.ints { -1 }),
      make("Reshape", v, env.ints { -1 }), { axis = 0, reduction = accumulate and "add" or "none" })
    return env.reshape(flat, x.shape)
  end
end
