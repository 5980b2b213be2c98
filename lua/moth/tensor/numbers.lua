--- Functions made of ops in Lua whose arguments are several kinds of value: bounds that are tensors, products over
-- named dimensions, statistics of rows, and PyTorch's other names. Called by moth.tensor.functions with the tables that
-- they go into.
local B = require "moth_lua"
local ops = B.ops
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local list_of = require "moth.tensor.list"
local reshaped = require "moth.tensor.reshaped"

return function(F, methods)
  local is_tensor = B.is_tensor

  -- Defines a function and a method under the name in the signature.
  local function both(text, fn)
    local name, checked = text:match("^[%w_]+"), signature(text, fn)
    F[name], methods[name] = checked, checked
    return fn
  end
  local function dtype_of(x) return B.tensor_dtype(x) end
  local function done(...) return ... end
  -- With the dtype and on the device of x.
  local function like(x) return { dtype = dtype_of(x), device = B.tensor_device(x) } end

  -- ---- bounds ------------------------------------------------------------------------------------------

  -- The gradient of what is cut goes to the bound; NaN, in either, stays.
  local function bounded(x, bound, beyond)
    local over = beyond(x, bound)
    if is_tensor(bound) and dtype_of(bound).is_floating_point then over = ops.logical_or(over, ops.isnan(bound)) end
    return ops.where(over, bound, x)
  end
  local function at_least(x, low) return bounded(x, low, ops.lt) end
  local function at_most(x, high) return bounded(x, high, ops.gt) end
  local clamp, clamp_ = ops.clamp, ops.clamp_
  local function of_bounds(x, low, high)
    if low == nil and high == nil then check.fail("[clamp] min or max must be given") end
    if low ~= nil then x = at_least(x, low) end
    return high ~= nil and at_most(x, high) or x
  end
  local named_clamp = signature("clamp(Tensor input, Tensor|number min?, Tensor|number max?)", of_bounds)
  local named_clamp_ = signature("clamp_(Tensor input, Tensor|number min?, Tensor|number max?)", function(x, low, high)
    return (ops.copy_(x, of_bounds(x, low, high)))
  end)
  -- Bounds that are numbers, the usual ones, go straight to the op.
  local function with_tensors(name, op, general)
    --- Elements below min become min, those above max become max; each a number, a tensor, or left out.
    local function front(x, low, high, ...)
      if is_tensor(low) or is_tensor(high)
        or type(low) == "table" and (is_tensor(low.min) or is_tensor(low.max) or is_tensor(low[1]))
        or type(high) == "table" and is_tensor(high.max) then
        return done(general(x, low, high, ...))
      end
      return done(op(x, low, high, ...))
    end
    B.names[front] = name
    F[name], methods[name] = front, front
    return front
  end
  --- Cut to [min, max]: numbers, or tensors that broadcast; either may be missing.
  with_tensors("clamp", clamp, named_clamp)
  with_tensors("clip", clamp, named_clamp)
  with_tensors("clamp_", clamp_, named_clamp_)
  F.clamp_ = nil
  --- Not below min: a number, or a tensor that broadcasts.
  both("clamp_min(Tensor input, Tensor|number min)", function(x, low)
    return (is_tensor(low) and at_least(x, low) or clamp(x, low))
  end)
  --- Not above max.
  both("clamp_max(Tensor input, Tensor|number max)", function(x, high)
    return (is_tensor(high) and at_most(x, high) or clamp(x, { max = high }))
  end)

  -- ---- numbers -------------------------------------------------------------------------------------------

  --- self * 2^other.
  both("ldexp(Tensor input, Tensor|number other)", function(x, n)
    if not is_tensor(n) then return (ops.mul(x, 2 ^ n)) end
    local kind, own = B.tensor_dtype(x), B.tensor_dtype(n)
    local is_float = kind.is_floating_point and not own.is_floating_point
    return (ops.mul(x, ops.exp2(is_float and ops.to(n, { dtype = kind }) or n)))
  end)
  --- The next number of the dtype, float32 or float64, after input in the direction of other.
  both("nextafter(Tensor input, Tensor other)", function(x, y)
    local a, b = B.tensor_dtype(x).name, B.tensor_dtype(y).name
    if a ~= b or (a ~= "float32" and a ~= "float64") then
      check.fail("[nextafter] expected two tensors of float32, or of float64, got %s and %s", B.format(x), B.format(y))
    end
    return (ops.native_nextafter(x, y))
  end)
  --- Mantissa in [0.5, 1) and exponent (int32): input = mantissa 2^exponent.
  both("frexp(Tensor input)", function(x)
    return ops.native_frexp_mantissa(x), ops.to(ops.native_frexp_exponent(x), { dtype = "int32" })
  end)
  --- Powers computed, and given, in float64.
  both("float_power(Tensor|number input, Tensor|number exponent)", function(x, y)
    local function wide(v)
      return is_tensor(v) and ops.to(v, { dtype = dtype_of(v).is_complex and "complex128" or "float64" }) or v
    end
    return (ops.pow(wide(x), wide(y)))
  end)
  --- Degrees as radians.
  both("deg2rad(Tensor input)", function(x) return (ops.mul(x, math.pi / 180)) end)
  --- Radians as degrees.
  both("rad2deg(Tensor input)", function(x) return (ops.mul(x, 180 / math.pi)) end)
  local function infinite(x, value)
    if dtype_of(x).is_floating_point then return ops.eq(x, value) end
    return ops.zeros_like(x, { dtype = "bool" })
  end
  --- Where elements are +inf: bool.
  both("isposinf(Tensor input)", function(x) return (infinite(x, math.huge)) end)
  --- Where elements are -inf: bool.
  both("isneginf(Tensor input)", function(x) return (infinite(x, -math.huge)) end)
  --- other - input * alpha
  both("rsub(Tensor input, Tensor|number other, number alpha=1)", function(x, y, alpha)
    return (ops.sub(y, x, alpha))
  end)
  --- The tensor itself; bool is an error.
  both("positive(Tensor input)", function(x)
    if dtype_of(x).name == "bool" then check.fail("[positive] not implemented for bool") end
    return x
  end)
  -- Of real numbers, and without lazy bits, the tensor itself.
  --- A copy with all elements `value`.
  both("fill(Tensor input, Tensor|number|bool value)", function(x, value) return (ops.fill_(ops.clone(x), value)) end)
  --- A 0-dim tensor.
  F.scalar_tensor = signature("scalar_tensor(number|bool s, *, dtype dtype?, device device?, bool requires_grad=false)",
    function(s, dtype, device, requires_grad)
      return (ops.full({}, s, { dtype = dtype, device = device, requires_grad = requires_grad }))
    end)

  -- ---- sums of products ----------------------------------------------------------------------------------

  local function dims_of(name, x, dims)
    local out, seen, n = {}, {}, B.dim(x)
    for i, d in ipairs(dims) do
      local p = d < 0 and d + n + 1 or d
      if p < 1 or p > n then check.fail("[%s] dimension %d is out of range for %s", name, d, B.format(x)) end
      if seen[p] then check.fail("[%s] dimension %d is named twice", name, d) end
      out[i], seen[p] = p, true
    end
    return out, seen
  end
  --- Sums of products over the last `dims` dimensions of a and the first of b, or over those in two lists,
  -- { dims of a, dims of b }.
  F.tensordot = signature("tensordot(Tensor a, Tensor b, size|list dims=2)", function(a, b, dims)
    local da, db
    if type(dims) == "number" then
      da, db = {}, {}
      if dims > B.dim(a) or dims > B.dim(b) then
        check.fail("[tensordot] dims is %d; got %s and %s", dims, B.format(a), B.format(b))
      end
      for i = 1, dims do da[i], db[i] = B.dim(a) - dims + i, i end
    else
      da, db = dims[1], dims[2]
      if type(da) == "number" then da, db = { da }, { db } end
      if type(da) ~= "table" or type(db) ~= "table" or #da ~= #db then
        check.fail("[tensordot] dims must be a number or two lists of as many dimensions")
      end
    end
    local in_a, in_b
    da, in_a = dims_of("tensordot", a, da)
    db, in_b = dims_of("tensordot", b, db)
    local inner, rows, columns, shape, first, second = 1, 1, 1, {}, {}, {}
    for d = 1, B.dim(a) do
      if not in_a[d] then
        rows, shape[#shape + 1], first[#first + 1] = rows * B.size(a, d), B.size(a, d), d
      end
    end
    for i, d in ipairs(da) do
      if B.size(a, d) ~= B.size(b, db[i]) then
        check.fail("[tensordot] dimension %d of a has size %d, dimension %d of b %d", d, B.size(a, d), db[i],
          B.size(b, db[i]))
      end
      inner, first[#first + 1], second[i] = inner * B.size(a, d), d, db[i]
    end
    for d = 1, B.dim(b) do
      if not in_b[d] then
        columns, shape[#shape + 1], second[#second + 1] = columns * B.size(b, d), B.size(b, d), d
      end
    end
    local x = ops.reshape(#first > 1 and ops.permute(a, first) or a, { rows, inner })
    local y = ops.reshape(#second > 1 and ops.permute(b, second) or b, { inner, columns })
    return (reshaped(ops.mm(x, y), shape))
  end)
  --- The Kronecker product: each element of a times all of b, as blocks.
  both("kron(Tensor input, Tensor other)", function(a, b)
    local n = math.max(B.dim(a), B.dim(b))
    local wide, tall, out = {}, {}, {}
    local p, q = B.dim(a) > 0 and B.size(a, B.dim(a)) or 1, B.dim(b) > 0 and B.size(b, B.dim(b)) or 1
    -- Short rows are slow to multiply: both are made as long as the result's.
    local long = n > 1 and p > 1 and q > 1 and q < 256
    for d = 1, n do
      local i, j = d - n + B.dim(a), d - n + B.dim(b)
      local x, y = i > 0 and B.size(a, i) or 1, j > 0 and B.size(b, j) or 1
      wide[2 * d - 1], wide[2 * d], tall[2 * d - 1], tall[2 * d], out[d] = x, 1, 1, y, x * y
    end
    if long then
      a = ops.reshape(ops.expand(ops.reshape(a, { -1, p, 1 }), { -1, p, q }), { -1, p * q })
      b = ops.reshape(ops.expand(ops.reshape(b, { -1, 1, q }), { -1, p, q }), { -1, p * q })
      wide[2 * n - 1], wide[2 * n], tall[2 * n - 1], tall[2 * n] = p * q, nil, p * q, nil
    end
    return (reshaped(ops.mul(ops.reshape(a, wide), ops.reshape(b, tall)), out))
  end)
  --- The cross product of vectors along dim, by default the first dimension of size 3.
  both("cross(Tensor input, Tensor other, Dim dim?)", function(x, y, dim)
    if dim == nil then
      for d = 1, B.dim(x) do
        if B.size(x, d) == 3 then
          dim = d
          break
        end
      end
      if dim == nil then check.fail("[cross] there is no dimension of size 3 in %s", B.format(x)) end
    end
    return (ops.linalg_cross(x, y, dim))
  end)
  --- x summed to a shape that broadcasts to its own.
  both("sum_to_size(Tensor input, size... size)", function(x, size)
    local own, dims = B.size(x), {}
    local lead = #own - #size
    for d = 1, #own do
      local want = size[d - lead]
      if d <= lead then dims[#dims + 1] = d
      elseif want ~= own[d] and want ~= 1 then
        check.fail("[sum_to_size] size {%s} does not broadcast to %s", table.concat(size, ", "), B.format(x))
      elseif want ~= own[d] then dims[#dims + 1] = d end
    end
    if lead < 0 then check.fail("[sum_to_size] size has more dimensions than %s", B.format(x)) end
    return (#dims > 0 and ops.reshape(ops.sum(x, dims, true), size) or x)
  end)

  -- ---- rows ------------------------------------------------------------------------------------------------

  --- x:nanmedian(): the median of the elements that are not NaN; x:nanmedian(dim, keepdim): medians and positions.
  both("nanmedian(Tensor input, Dim dim?, bool keepdim=false)", function(x, dim, keepdim)
    local all = dim == nil
    if all then x, dim = ops.reshape(x, { -1 }), 1 end
    local scalar = B.dim(x) == 0
    if scalar then x, dim = ops.reshape(x, { 1 }), 1 end
    local values, order = ops.sort(x, dim)
    local n = ops.sum(ops.logical_not(ops.isnan(x)), dim, true)
    local at = ops.clamp(ops.floor_divide(ops.add(n, 1), 2), 1)
    local value, position = ops.gather(x, dim, ops.gather(order, dim, at)), ops.gather(order, dim, at)
    if not keepdim or all or scalar then value, position = ops.squeeze(value, dim), ops.squeeze(position, dim) end
    if values and all then return value end
    return value, position
  end)
  -- Numbers to be found are tensors to the op.
  local function as_tensor(v, near)
    return is_tensor(v) and v or ops.full({}, v, { dtype = "float64", device = B.tensor_device(near) })
  end
  --- Where numbers belong in a sorted sequence: searchsorted(sorted_sequence, input).
  both("searchsorted(Tensor sorted_sequence, Tensor|number input, *, bool out_int32=false, bool right=false, \z
    'left'|'right' side?, Tensor sorter?)", function(s, v, out_int32, right, side, sorter)
    return (ops.searchsorted(s, as_tensor(v, s), out_int32, right, side, sorter))
  end)
  --- The position of the first boundary that is not below input; with right, that is above it.
  both("bucketize(Tensor|number input, Tensor boundaries, *, bool out_int32=false, bool right=false)",
  function(v, boundaries, out_int32, right)
    return (ops.bucketize(as_tensor(v, boundaries), boundaries, out_int32, right))
  end)
  --- Estimated derivatives along dims (all): a list of tensors. spacing: one number, one for each dimension, or
  -- coordinates, a 1-D tensor for each. edge_order (1): of the differences at the ends.
  both("gradient(Tensor input, *, number|list|Tensor spacing=1, Dim|Dim[] dim?, int edge_order=1)",
  function(x, spacing, dim, edge_order)
    if edge_order ~= 1 and edge_order ~= 2 then check.fail("[gradient] edge_order is 1 or 2, got %d", edge_order) end
    local dims = type(dim) == "table" and dim or dim and { dim }
    if not dims then
      dims = {}
      for d = 1, B.dim(x) do dims[d] = d end
    end
    dims = dims_of("gradient", x, dims)
    if is_tensor(spacing) then spacing = { spacing } end
    if type(spacing) == "table" and #spacing ~= #dims then
      check.fail("[gradient] spacing must have one entry for each of %d dimensions, got %d", #dims, #spacing)
    end
    if not dtype_of(x).is_floating_point and not dtype_of(x).is_complex then
      x = ops.to(x, { dtype = B.default_dtype() })
    end
    local out = {}
    for i, d in ipairs(dims) do
      local n, h = B.size(x, d), type(spacing) == "table" and spacing[i] or spacing
      if n < edge_order + 1 then
        check.fail("[gradient] dimension %d of size %d needs %d elements", d, n, edge_order + 1)
      end
      local function part(from, count) return ops.narrow(x, d, from, count) end
      local steps -- between neighbours, in a shape that broadcasts
      if is_tensor(h) then
        if B.dim(h) ~= 1 or B.numel(h) ~= n then
          check.fail("[gradient] spacing of dimension %d must have shape [%d], got %s", d, n, B.format(h))
        end
        local shape = {}
        for k = 1, B.dim(x) do shape[k] = k == d and n - 1 or 1 end
        local places = ops.to(h, { dtype = dtype_of(x) })
        steps = ops.reshape(ops.sub(ops.narrow(places, 1, 2, n - 1), ops.narrow(places, 1, 1, n - 1)), shape)
      end
      local function step(from, count) return steps and ops.narrow(steps, d, from, count) or h end
      local slopes = ops.div(ops.sub(part(2, n - 1), part(1, n - 1)), steps or h)
      local function slope(from, count) return ops.narrow(slopes, d, from, count) end
      local inside -- slopes weighted by the other's width
      if n > 2 then
        local a, b = step(1, n - 2), step(2, n - 2)
        inside = steps and ops.div(ops.add(ops.mul(slope(1, n - 2), b), ops.mul(slope(2, n - 2), a)), ops.add(a, b))
          or ops.mul(ops.add(slope(1, n - 2), slope(2, n - 2)), 0.5)
      end
      local first, last = slope(1, 1), slope(n - 1, 1)
      if edge_order == 2 then -- 2 slope - slope inside, for equal steps
        local function edge(near, far, a, b) -- the parabola through three points
          local share = steps and ops.div(a, ops.add(a, b)) or 0.5
          return ops.add(near, ops.mul(ops.sub(near, far), share))
        end
        first, last = edge(first, slope(2, 1), step(1, 1), step(2, 1)),
          edge(last, slope(n - 2, 1), step(n - 1, 1), step(n - 2, 1))
      end
      out[i] = ops.cat(inside and { first, inside, last } or { first, last }, d)
    end
    return list_of(out, "gradient")
  end)
  --- Runs of equal elements as one (with dim: of equal slices); with return_inverse also the run of each element, with
  -- return_counts their lengths.
  both("unique_consecutive(Tensor input, bool return_inverse=false, bool return_counts=false, Dim dim?)",
  function(x, return_inverse, return_counts, dim)
    local rows = dim and ops.movedim(x, dim, 1) or ops.reshape(x, { -1 })
    local n, int = B.size(rows, 1), { dtype = "int64", device = B.tensor_device(x) }
    local yes = ops.ones({ math.min(n, 1) }, { dtype = "bool", device = B.tensor_device(x) })
    local fresh = yes
    if n > 1 then
      local differs = ops.ne(ops.narrow(rows, 1, 2, n - 1), ops.narrow(rows, 1, 1, n - 1))
      if B.dim(rows) > 1 then differs = ops.any(ops.reshape(differs, { n - 1, -1 }), 2) end
      fresh = ops.cat({ yes, differs })
    end
    local starts = ops.reshape(ops.nonzero(fresh), { -1 })
    local out = { dim and ops.index_select(x, dim, starts) or ops.index_select(rows, 1, starts) }
    if return_inverse then
      out[2] = ops.reshape(ops.cumsum(ops.to(fresh, int), 1), dim and { n } or B.size(x))
    end
    if return_counts then
      local ends = ops.cat({ ops.narrow(starts, 1, math.min(2, B.numel(starts) + 1), math.max(B.numel(starts) - 1, 0)),
        ops.full({ math.min(n, 1) }, n + 1, int) })
      out[#out + 1] = ops.sub(ends, starts)
    end
    return unpack(out)
  end)

  --- How many elements (with weight: how much) lie between the edges of bins, and these: histogram(x, 10) of its range,
  -- histogram(x, 10, { range = { 0, 1 } }), histogram(x, edges). density: scaled to an integral of 1.
  both("histogram(Tensor input, count|Tensor bins, number[] range?, Tensor weight?, bool density=false)",
  function(x, bins, range, weight, density)
    if not dtype_of(x).is_floating_point then check.fail("[histogram] expected floats, got %s", B.format(x)) end
    local flat, edges = ops.reshape(x, { -1 }), bins
    if not is_tensor(bins) then
      local low, high = 0, 1
      if range then
        if #range ~= 2 or range[1] > range[2] then check.fail("[histogram] range must be { low, high }") end
        low, high = range[1], range[2]
      elseif B.numel(x) > 0 then
        low, high = ops.amin(flat):item(), ops.amax(flat):item()
      end
      if low == high then low, high = low - 0.5, high + 0.5 end
      edges = ops.linspace(low, high, bins + 1, like(x))
    elseif B.dim(bins) ~= 1 or B.numel(bins) < 2 then
      check.fail("[histogram] edges must be a vector of at least 2, got %s", B.format(bins))
    end
    local n = B.numel(edges) - 1
    local at = ops.searchsorted(edges, flat, false, true) -- the edge above; from 1: below all, n + 2: beyond all
    at = ops.where(ops.eq(flat, edges[n + 1]), n + 1, at)
    local inside = ops.logical_and(ops.gt(at, 1), ops.lt(at, n + 2))
    local worth = weight and ops.reshape(weight, { -1 }) or ops.ones_like(flat)
    local counts = ops.index_add(ops.zeros({ n }, like(x)), 1, ops.clamp(ops.sub(at, 1), 1, n),
      ops.masked_fill(worth, ops.logical_not(inside), 0))
    if density then
      local widths = ops.sub(ops.narrow(edges, 1, 2, n), ops.narrow(edges, 1, 1, n))
      counts = ops.div(counts, ops.mul(ops.sum(counts), widths))
    end
    return counts, edges
  end)

  --- How many points, the rows of input (N, D), lie between the edges of D dimensions: counts (D dimensions), and a
  -- list of D vectors of edges. bins: a number for each dimension, or edges; range: lows and highs by turns.
  both("histogramdd(Tensor input, count|count[]|Tensor[] bins, *, number[] range?, Tensor weight?, \z
    bool density=false)",
  function(x, bins, range, weight, density)
    if not dtype_of(x).is_floating_point then check.fail("[histogramdd] expected floats, got %s", B.format(x)) end
    if B.dim(x) < 2 then
      check.fail("[histogramdd] expected points, the last dimension being theirs, got %s", B.format(x))
    end
    local dims = B.size(x, -1)
    x = ops.reshape(x, { -1, dims })
    if type(bins) == "number" then
      local same = {}
      for d = 1, dims do same[d] = bins end
      bins = same
    end
    if #bins ~= dims then check.fail("[histogramdd] bins must be for %d dimensions, got %d", dims, #bins) end
    if range and #range ~= 2 * dims then
      check.fail("[histogramdd] range must have a low and a high for each of %d dimensions, got %d numbers",
        dims, #range)
    end
    local rows, worth = B.size(x, 1), weight and ops.reshape(weight, { -1 })
    local cell = ops.zeros({ rows }, { dtype = "int64", device = B.tensor_device(x) })
    local inside, edges, size, volume
    for d = 1, dims do
      local column, e = ops.select(x, 2, d), bins[d]
      if not is_tensor(e) then
        local low, high = 0, 1
        if range then
          low, high = range[2 * d - 1], range[2 * d]
        elseif rows > 0 then
          low, high = ops.amin(column):item(), ops.amax(column):item()
        end
        if low == high then low, high = low - 0.5, high + 0.5 end
        e = ops.linspace(low, high, bins[d] + 1, like(x))
      elseif B.dim(e) ~= 1 or B.numel(e) < 2 then
        check.fail("[histogramdd] edges must be vectors of at least 2, got %s", B.format(e))
      end
      local n = B.numel(e) - 1
      local at = ops.searchsorted(e, column, false, true)
      at = ops.where(ops.eq(column, e[n + 1]), n + 1, at)
      local within = ops.logical_and(ops.gt(at, 1), ops.lt(at, n + 2))
      inside = inside and ops.logical_and(inside, within) or within
      cell = ops.add(ops.mul(cell, n), ops.clamp(ops.sub(at, 2), 0, n - 1))
      edges, size = edges or {}, size or {}
      edges[d], size[d] = e, n
      local widths = ops.sub(ops.narrow(e, 1, 2, n), ops.narrow(e, 1, 1, n))
      volume = volume and ops.reshape(ops.outer(volume, widths), { -1 }) or widths
    end
    local cells = 1
    for d = 1, dims do cells = cells * size[d] end
    worth = ops.masked_fill(worth or ops.ones({ rows }, like(x)), ops.logical_not(inside), 0)
    local counts = ops.index_add(ops.zeros({ cells }, like(x)), 1, ops.add(cell, 1), worth)
    if density then counts = ops.div(counts, ops.mul(ops.sum(counts), volume)) end
    return ops.reshape(counts, size), edges
  end)

  -- ---- random --------------------------------------------------------------------------------------------

  --- Normal numbers with this mean and deviation, numbers or tensors that broadcast; two numbers need a size.
  F.normal = signature("normal(Tensor|number mean=0, Tensor|number std=1, size|size[] size?, *, dtype dtype?, \z
    device device?, bool requires_grad=false, Generator generator?)",
  function(mean, std, size, dtype, device, requires_grad, generator)
    if is_tensor(std) and B.numel(std) > 0 and ops.any(ops.lt(B.batch_values(std), 0)):item() then
      check.fail("[normal] std must not be negative")
    end
    if type(std) == "number" and std < 0 then check.fail("[normal] std must not be negative, got %g", std) end
    if not is_tensor(mean) and not is_tensor(std) then
      if size == nil then check.fail("[normal] size must be given where mean and std are numbers") end
      local t = ops.empty(size, { dtype = dtype, device = device })
      t = ops.normal_(t, mean, std, { generator = generator })
      return requires_grad and B.set_requires_grad(t, true) or t
    end
    if size ~= nil then check.fail("[normal] mean or std is a tensor and gives the size") end
    local model = is_tensor(mean) and mean or std
    local shape = B.size(is_tensor(std) and is_tensor(mean) and ops.add(mean, std) or model)
    return (ops.add(ops.mul(ops.randn(shape, { dtype = dtype_of(model), device = B.tensor_device(model),
      generator = generator }), std), mean))
  end)
  --- Integers in [low, high), or below high, in the shape, dtype and on the device of input.
  both("randint_like(Tensor input, int low, int high?, *, dtype dtype?, device device?, Generator generator?)",
  function(x, low, high, dtype, device, generator)
    if high == nil then low, high = 0, low end
    local o = like(x)
    return (ops.randint(low, high, B.size(x), { dtype = dtype or o.dtype, device = device or o.device,
      generator = generator }))
  end)
  --- randint(high, size) or randint(low, high, size): integers from low (0) on, below high.
  local randint = ops.randint
  local function integers(a, b, c, ...)
    if type(b) == "table" and c == nil and (#b > 0 or next(b) == nil) and b.size == nil then
      return done(randint(0, a, b))
    end
    if type(b) == "table" and type(c) == "table" then return done(randint(0, a, b, c, ...)) end
    return done(randint(a, b, c, ...))
  end
  B.names[integers] = "randint"
  F.randint = integers

  --- Uninitialised, with these strides (in elements).
  F.empty_strided = signature("empty_strided(size[] size, size[] stride, *, dtype dtype?, device device?, \z
    bool requires_grad=false)", function(size, stride, dtype, device, requires_grad)
    local reach = 1
    if #size ~= #stride then check.fail("[empty_strided] size and stride must have the same length") end
    for d = 1, #size do
      reach = size[d] == 0 and 0 or reach > 0 and reach + (size[d] - 1) * stride[d] or 0
    end
    local t = ops.as_strided(ops.empty({ reach }, { dtype = dtype, device = device }), size, stride)
    return requires_grad and B.set_requires_grad(t, true) or t
  end)
  methods.new_empty_strided = signature("new_empty_strided(Tensor input, size[] size, size[] stride, *, dtype dtype?, \z
    device device?)", function(x, size, stride, dtype, device)
    local o = like(x)
    return (F.empty_strided(size, stride, { dtype = dtype or o.dtype, device = device or o.device }))
  end)
  --- Uninitialised, of this size; the dimensions lie in memory in the order physical_layout.
  F.empty_permuted = signature("empty_permuted(size[] size, Dim[] physical_layout, *, dtype dtype?, device device?, \z
    bool requires_grad=false)", function(size, order, dtype, device, requires_grad)
    local own, back = {}, {}
    if #order ~= #size then check.fail("[empty_permuted] physical_layout must name each of %d dimensions", #size) end
    for i, d in ipairs(order) do
      local p = d < 0 and d + #size + 1 or d
      if not size[p] or back[p] then check.fail("[empty_permuted] physical_layout must name each dimension once") end
      own[i], back[p] = size[p], i
    end
    local t = ops.empty(own, { dtype = dtype, device = device })
    if #order > 1 then t = ops.permute(t, back) end
    return requires_grad and B.set_requires_grad(t, true) or t
  end)
  --- Powers of the elements of a vector: (…, n) gives (…, n, N), from 0 to N - 1.
  local function vander(x, n)
    n = n or B.size(x, -1)
    local powers = ops.arange(0, n, 1, { dtype = "int64", device = B.tensor_device(x) })
    return ops.pow(ops.unsqueeze(x, -1), powers)
  end
  --- Powers of the elements of a vector (n): (n, N), the highest first; increasing: the lowest first.
  F.vander = signature("vander(Tensor x, size N?, bool increasing=false)", function(x, n, increasing)
    if B.dim(x) ~= 1 then check.fail("[vander] expected a 1-D tensor, got %s", B.format(x)) end
    local m = vander(x, n)
    return (increasing and m or ops.flip(m, 2))
  end)

  -- ---- other names -----------------------------------------------------------------------------------------

  F.trapz, methods.trapz = signature.alias("trapz", ops.trapezoid), signature.alias("trapz", ops.trapezoid)
  local tensor_methods = require("moth.tensor").methods
  methods["repeat"] = signature.alias("repeat", tensor_methods.repeat_)
  F.tile = tensor_methods.tile
  --- pad with mode "constant": `pad` has the elements before and behind, the last dimension first.
  F.constant_pad_nd = signature("constant_pad_nd(Tensor input, int[] pad, number|complex|bool value=0)",
    function(x, pad, value)
      return (F.pad(x, pad, "constant", type(value) == "boolean" and (value and 1 or 0) or value))
    end)

  return { vander = vander }
end
