--- ONNX's operators by positions: gather and scatter, sorts, those whose sizes depend on elements.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule

-- uint16 and its like move as they are.
rule("Gather", "axis=0", function(c, x, index)
  if not B.is_tensor(x) then return require("moth.onnx.import_text").gather(c, x, index) end
  local dim = c:dim(c.axis, x)
  if c:known(index) and index:dim() == 0 then
    local at = c:number(index)
    return x:select(dim, at < 0 and at + x:size(dim) + 1 or at + 1)
  end
  if c:known(index) and index:dim() == 1 and index:numel() > 0 then
    return x:index_select(dim, B.ops.to(c:positions(index, x:size(dim)), { device = x:device() }))
  end
  local at = B.ops.to(c:positions(index, x:size(dim), true), { device = x:device() })
  local shape, before = {}, x:size()
  for i = 1, dim - 1 do shape[#shape + 1] = before[i] end
  for _, n in ipairs(index:size()) do shape[#shape + 1] = n end
  for i = dim + 1, #before do shape[#shape + 1] = before[i] end
  return x:gather_nd({ dim }, at:reshape { -1 }):reshape(shape)
end, { any = "moves" })

rule("GatherElements", "axis=0", function(c, x, index)
  local dim = c:dim(c.axis, x)
  return x:gather(dim, c:positions(index, x:size(dim)))
end, { any = "moves" })

rule("GatherND", "batch_dims=0", function(c, x, index)
  local b, q = c.batch_dims, index:dim()
  local k = index:size(q)
  local dims = {}
  if b > 0 then -- one batch, whose number is a position too
    local batch, xs, is = 1, {}, {}
    for i = 1, b do batch = batch * x:size(i) end
    xs[1], is[1] = batch, batch
    for i = b + 1, x:dim() do xs[#xs + 1] = x:size(i) end
    for i = b + 1, q do is[#is + 1] = index:size(i) end
    local at, shape, ones, size = index:reshape(is), {}, {}, {}
    for i = 1, #is - 1 do ones[i], size[i] = i == 1 and batch or 1, is[i] end
    ones[#is], size[#is] = 1, 1
    local number = moth.arange(0, batch, { dtype = moth.int64, device = x:device() }):reshape(ones):expand(size)
    at = moth.cat({ number, at }, -1)
    for i = 1, b do shape[i] = x:size(i) end
    for i = b + 1, q - 1 do shape[#shape + 1] = index:size(i) end
    for i = b + k + 1, x:dim() do shape[#shape + 1] = x:size(i) end
    for i = 1, k + 1 do dims[i] = i end
    return x:reshape(xs):gather_nd(dims, at + at:ge(0):to(moth.int64)):reshape(shape)
  end
  for i = 1, k do dims[i] = i end
  local at = c:positions(index, 0, true)
  if k == 1 then at = at:reshape(index:size()) end
  return x:gather_nd(dims, k == 1 and at:squeeze(-1) or at)
end, { any = "moves" })

local reduces = { add = "sum", mul = "prod", max = "amax", min = "amin" }

local function scatter_elements(c, x, index, updates)
  local dim = c:dim(c.axis, x)
  local at = c:positions(index, x:size(dim))
  local how = c.reduction or "none"
  if how == "none" then return x:scatter(dim, at, updates) end
  if how == "add" then return x:scatter_add(dim, at, updates) end
  return x:scatter_reduce(dim, at, updates, reduces[how] or c:fail("the reduction '%s'", how))
end
rule("ScatterElements Scatter", "axis=0 reduction='none'", scatter_elements)

rule("ScatterND", "reduction='none'", function(c, x, index, updates)
  local k = index:size(-1)
  local dims = {}
  for i = 1, k do dims[i] = i end
  local how = c.reduction
  if how == "none" or how == "add" then
    local at = c:positions(index, 0, true)
    return x:clone():scatter_nd_(dims, k == 1 and at:squeeze(-1) or at, updates, how == "add")
  end
  -- By the place of each slice among all slices.
  local rows, width, flat = 1, 1, nil
  for i = 1, k do
    local n = x:size(i)
    local part = index:select(-1, i)
    part = part + part:lt(0):to(moth.int64) * n
    flat = flat and flat * n + part or part
    rows = rows * n
  end
  for i = k + 1, x:dim() do width = width * x:size(i) end
  local at = (flat:reshape { -1, 1 } + 1):expand { flat:numel(), width }
  return x:reshape { rows, width }:scatter_reduce(1, at, updates:reshape { flat:numel(), width },
    reduces[how] or c:fail("the reduction '%s'", how)):reshape(x:size())
end)

rule("TensorScatter", "axis=-2 mode='linear'", function(c, past, update, write)
  local dim = c:dim(c.axis, past)
  local n, count, batch = past:size(dim), update:size(dim), past:size(1)
  local shape = {}
  for i = 1, past:dim() do shape[i] = i == 1 and batch or i == dim and count or 1 end
  local at = moth.arange(0, count, { dtype = moth.int64, device = past:device() }):reshape { 1, count }
  at = at + (write and write:reshape { batch, 1 } or 0)
  if c.mode == "circular" then at = at:remainder(n) end
  at = (at + 1):expand { batch, count }:reshape(shape):expand(update:size())
  return past:scatter(dim, at, update)
end)

rule("OneHot", "axis=-1", function(c, index, depth, values)
  local n = math.floor(c:number(depth))
  local x = index:is_floating_point() and index:to(moth.int64) or index
  x = x + x:lt(0):to(x:dtype()) * n
  local dim = c.axis < 0 and c.axis + x:dim() + 2 or c.axis + 1
  local shape = {}
  for i = 1, x:dim() + 1 do shape[i] = i == dim and n or 1 end
  local hot = moth.arange(0, n, { dtype = moth.int64, device = x:device() }):reshape(shape):eq(x:unsqueeze(dim))
  return moth.where(hot, values:select(1, 2), values:select(1, 1))
end, { numbers = 2, any = "moves" })

rule("TopK", "axis=-1 largest=1 sorted=1 k", function(c, x, k)
  local dim = c:dim(c.axis, x)
  local n = k and c:number(k) or c.k
  -- Of equal elements the first one counts.
  local sorted, at = x:sort(dim, c.largest == 1)
  return sorted:narrow(dim, 1, n), at:narrow(dim, 1, n) - 1
end, { numbers = 2, index = 2 })

rule("NonZero", function(_, x)
  return x:nonzero():transpose(1, 2) - 1
end, { makes = true })

rule("Compress", "axis", function(c, x, condition)
  local list, at = c:list(condition), {}
  for i, v in ipairs(list) do
    if v ~= 0 then at[#at + 1] = i end
  end
  local flat = c.axis == nil and x:reshape { -1 } or x
  return flat:index_select(c.axis and c:dim(c.axis, x) or 1, #at > 0 and import.tensor(at, "int64", x:device())
    or moth.zeros({ 0 }, { dtype = moth.int64, device = x:device() }))
end, { numbers = 2, makes = true })

rule("ReverseSequence", "batch_axis=1 time_axis=0", function(c, x, lengths)
  local time, batch = c.time_axis + 1, c.batch_axis + 1
  if time == batch or math.max(time, batch) > 2 or math.min(time, batch) < 1 or x:dim() < 2 then
    c:fail("time_axis and batch_axis are 0 and 1, one each, of 2 or more dimensions; got %d and %d, and %d dimensions",
      c.time_axis, c.batch_axis, x:dim())
  end
  local n, shape_t, shape_b = x:size(time), {}, {}
  if lengths:dim() ~= 1 or lengths:size(1) ~= x:size(batch) then
    c:fail("sequence_lens: expected a length for each of the %d sequences, got %s", x:size(batch),
      tostring(lengths:size()))
  end
  local there = not c.run.recording or c:known(lengths)
  for i, length in ipairs(there and lengths:totable() or {}) do
    if length < 0 or length > n then
      c:fail("sequence_lens: sequence %d has the length %d: expected 0 to %d", i - 1, length, n)
    end
  end
  for i = 1, x:dim() do
    shape_t[i], shape_b[i] = i == time and n or 1, i == batch and x:size(batch) or 1
  end
  local at = moth.arange(0, n, { dtype = moth.int64, device = x:device() }):reshape(shape_t)
  local length = lengths:to(moth.int64):reshape(shape_b)
  local from = moth.where(at:lt(length), length - 1 - at, at + moth.zeros_like(length))
  return x:gather(time, (from + 1):expand(x:size()))
end)

-- The different rows along an axis in order: { first place, count } for each, and of each row the number of its own.
rule("Unique", "axis sorted=1", function(c, x)
  local dim = c.axis and c:dim(c.axis, x)
  local rows = dim and x:transpose(1, dim):contiguous():reshape { x:size(dim), -1 } or x:reshape { -1, 1 }
  local list, width = c:list(rows), rows:size(2)
  local n = rows:size(1)
  local order = {}
  for i = 1, n do order[i] = i end
  local function compare(a, b)
    for k = 1, width do
      local p, q = list[(a - 1) * width + k], list[(b - 1) * width + k]
      if p ~= q then return p < q and -1 or 1 end
    end
    return 0
  end
  table.sort(order, function(a, b)
    local by = compare(a, b)
    return by < 0 or by == 0 and a < b
  end)
  local groups, of = {}, {}
  for i, row in ipairs(order) do
    local last = groups[#groups]
    if not last or compare(last.first, row) ~= 0 then
      last = { first = row, count = 0 }
      groups[#groups + 1] = last
    end
    last.count, of[row] = last.count + 1, last
    order[i] = row
  end
  if c.sorted == 0 then table.sort(groups, function(a, b) return a.first < b.first end) end
  local first, inverse, counts = {}, {}, {}
  for i, g in ipairs(groups) do first[i], counts[i], g.number = g.first, g.count, i end
  for i = 1, n do inverse[i] = of[i].number - 1 end
  local at = import.tensor(first, "int64", x:device())
  local y = dim and x:index_select(dim, at) or x:reshape { -1 }:index_select(1, at)
  return y, at - 1, import.tensor(inverse, "int64", x:device()), import.tensor(counts, "int64", x:device())
end, { makes = true })
