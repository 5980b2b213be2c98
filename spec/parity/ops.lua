-- Runs the cases that ops.py wrote: luajit spec/parity/ops.lua DIR.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local signature = require "moth.utils.signature"
local ops = B.ops

local dir = arg[1]
local bytes = assert(assert(io.open(dir .. "/cases.bin", "rb")):read "*a")
local out = assert(io.open(dir .. "/results.bin", "wb"))
local records = {}
for _, op in ipairs(require "moth.ops_table") do records[op.name] = op end

-- The function that PyTorch's name stands for.
local other = {
  __radd__ = function(x, y) return y + x end, __rsub__ = function(x, y) return y - x end,
  __rmul__ = function(x, y) return y * x end, __rdiv__ = function(x, y) return y / x end,
  __rmod__ = function(x, y) return y % x end, __rpow__ = function(x, y) return y ^ x end,
  __rand__ = function(x, y) return moth.bitwise_and(y, x) end,
  __ror__ = function(x, y) return moth.bitwise_or(y, x) end,
  __rxor__ = function(x, y) return moth.bitwise_xor(y, x) end,
  ["nn.functional.embedding_bag"] = function(weight, index, o)
    return moth.nn.functional.embedding_bag(index, weight, o)
  end,
  ["special.polygamma"] = function(x, n) return moth.polygamma(x, n) end,
  polygamma = function(x, n) return moth.polygamma(x, n) end,
  -- Functions of PyTorch's database.
  ["linalg.pinv.singular"] = function(a, b) return moth.linalg.pinv(a:matmul(b.mT)) end,
  ["linalg.lstsq.grad_oriented"] = function(a, b, o)
    local x, residuals = moth.linalg.lstsq(a, b, o)
    return x, residuals
  end,
  svd_lowrank = function(a, b, o) return moth.svd_lowrank(a:matmul(b.mT), o) end,
  pca_lowrank = function(a, b, o) return moth.pca_lowrank(a:matmul(b.mT), o) end,
  __rmatmul__ = function(x, y) return moth.matmul(y, x) end,
  __getitem__ = function(x, key)
    return x[key] -- a list, whose positions are moth's already
  end,
  einsum = function(tensors, equation) return moth.einsum(equation, tensors) end,
  where = function(x, condition, y) return moth.where(condition, x, y) end,
  ["normal.in_place"] = function(x, mean, std) return ops.clone(x):normal_(mean, std) end,
  ["nn.functional.embedding"] = function(weight, index, o)
    return moth.nn.functional.embedding(index, weight, o)
  end,
  arange = function(...)
    local list, n = { ... }, select("#", ...)
    local o = list[n]
    if type(o) == "table" and o["end"] then
      local stop = o["end"]
      o["end"] = nil
      return moth.arange(n > 1 and list[1] or 0, stop, o)
    end
    return moth.arange(unpack(list, 1, n))
  end,
  slice = function(x, dim, first, stop, step)
    if type(dim) == "table" then dim, first, stop, step = dim.dim, dim.start, dim["end"], dim.step
    elseif type(first) == "table" then first, stop, step = first.start, first["end"], first.step
    elseif type(stop) == "table" then stop, step = stop["end"], stop.step
    elseif type(step) == "table" then step = step.step end
    dim = dim or 1
    local size = B.size(x, dim)
    local function within(at, default)
      at = at or default
      return math.max(0, math.min(at < 0 and at + size or at, size))
    end
    first, stop = within(first, 0), within(stop, size)
    return ops.slice(x, dim, first, math.max(first, stop), step or 1)
  end,
  to = function(x, ...)
    for i = 1, select("#", ...) do
      local v = select(i, ...)
      if type(v) == "table" and v.dtype then v = v.dtype end
      if B.is_tensor(v) then v = v:dtype() end
      if type(v) ~= "string" and type(v) ~= "boolean" and v ~= nil and type(v) ~= "table" then return x:to(v) end
    end
    return x:to({ copy = true })
  end,
  grid_sampler_2d = function(x, grid, mode, pad, align)
    mode, pad = ({ [0] = "bilinear", "nearest", "bicubic" })[mode], ({ [0] = "zeros", "border", "reflection" })[pad]
    return moth.nn.functional.grid_sample(x, grid, { mode = mode, padding_mode = pad, align_corners = align })
  end,
  zero_ = function(x) return ops.clone(x):zero_() end,
  item = function(x)
    local kind = x:dtype()
    local wide = kind.is_complex and "complex128" or kind.is_floating_point and "float64" or "int64"
    return moth.tensor(x:item(), { dtype = kind.name == "bool" and "bool" or wide })
  end,
  bincount = function(x, o)
    local weights, least = o and o.weights, o and o.minlength
    return moth.bincount(ops.add(x, 1), { weights = weights, minlength = least })
  end,
}
other.grid_sampler_3d = other.grid_sampler_2d
local function present(root, name)
  local ok, v = pcall(function() return root[name] end)
  if ok then return v end
end
local sample = moth.zeros(1, 1)
local function named(name)
  if other[name] then return other[name] end
  local x = moth
  for part in name:gmatch "[^.]+" do x = x and present(x, part) end
  if type(x) == "function" or type(x) == "table" then return x end
  local last = name:match "[^.]+$"
  if name:find "^nn%.functional%." then return present(moth.nn.functional, last) or present(moth, last) end
  local method = not name:find(".", 1, true) and (present(sample, name) or present(sample, name .. "_"))
  if type(method) == "function" then return method end
  if B.is_tensor(method) then return function(t) return t[name] end end
end

-- ---- positions and dimensions from 1 --------------------------------------------------------------

local function from_1(v)
  if type(v) == "number" then return v >= 0 and v + 1 or v end
  if B.is_tensor(v) then
    if moth.is_dtype and B.tensor_dtype(v).is_floating_point or B.tensor_dtype(v).name == "bool" then return v end
    local wide = ops.to(v, { dtype = "int64" }) -- the last position + 1 may not fit into a small one
    return ops.where(ops.ge(v, 0), ops.add(wide, 1), wide)
  end
  if type(v) == "table" then
    local list = {}
    for i, x in ipairs(v) do list[i] = from_1(x) end
    return list
  end
  return v
end

-- How each parameter counts: by its place and by its name.
local function parameters(name, fn)
  local by = {}
  local last = name:match "[^.]+$"
  local place = 0
  local function add(parameter, yes)
    place = place + 1
    by[place], by[parameter] = yes, yes
  end
  if signature.of(fn) then
    local _, list = signature.parameters(fn)
    for _, p in ipairs(list) do
      local index = p.type:find "Tensor" and p.name:find "^ind[ei][xc]"
      add(p.name, p.type:find "Dim" ~= nil or p.type:find "Index" ~= nil or index ~= nil)
    end
    return by
  end
  local op = records[last] or records[last .. "_"] or records[last .. "_dim"] or records["linalg_" .. last]
    or records["special_" .. last]
  local inside, depth = op and op.schema:match "^[%w_]+(%b())" or "()", 0
  for part in (inside:sub(2, -2):gsub("[%[(,)%]]", function(c)
    if c == "(" or c == "[" then depth = depth + 1 elseif c == ")" or c == "]" then depth = depth - 1
    elseif depth == 0 then return "\n" end
  end) .. "\n"):gmatch "(.-)\n" do
    local kind, parameter = part:match "^%s*(%S+)%s+([%w_]+)"
    if kind then add(parameter, kind:find "^Dim" ~= nil or kind:find "^Index" ~= nil) end
  end
  return by
end
-- Parameters of functions without a readable signature, and lists of positions: true, "list" or "number" alone.
local target = { [2] = true, target = true }
local by_hand = {
  index_put = { [2] = true }, lu_solve = {}, lu_unpack = {}, ["linalg.lu_solve"] = {}, ["linalg.ldl_solve"] = {},
  hsplit = { [2] = "list" }, vsplit = { [2] = "list" }, dsplit = { [2] = "list" },
  tensor_split = { [2] = "list", [3] = true, dim = true }, tensordot = { [3] = "list", dims = "list" },
  trapz = { [4] = true, dim = true }, swapaxes = { [2] = true, [3] = true }, swapdims = { [2] = true, [3] = true },
  moveaxis = { [2] = true, [3] = true },
  ["nn.functional.multi_margin_loss"] = target, ["nn.functional.multilabel_margin_loss"] = target,
  ["nn.functional.linear_cross_entropy"] = { [3] = true, target = true },
  ["nn.functional.cross_entropy"] = { [2] = true, target = true, ignore_index = true },
  ["nn.functional.nll_loss"] = { [2] = true, target = true, ignore_index = true },
  ["nn.functional.ctc_loss"] = { [2] = true, targets = true, blank = true },
  ["nn.functional.one_hot"] = { true }, ["nn.functional.embedding"] = { [2] = true, padding_idx = true },
  searchsorted = { sorter = true }, narrow = { [2] = true, [3] = true }, slice = { [2] = true, dim = true },
  roll = { [3] = true, dims = true },
  ["nn.functional.embedding_bag"] = { [2] = true, offsets = true, padding_idx = true },
  max = { [2] = "number", dim = true }, min = { [2] = "number", dim = true },
}

-- Results that are defined up to signs, as in ops.py.
local function columns(x, s) return ops.abs(ops.narrow(x, -1, 1, B.size(s, -1))) end
local signs = {
  ["linalg.eigh"] = function(w, v) return w, ops.abs(v) end,
  ["linalg.eig"] = function(w, v) return w, ops.abs(v) end,
  ["linalg.svd"] = function(u, s, vh) return columns(u, s), s, ops.abs(ops.narrow(vh, -2, 1, B.size(s, -1))) end,
  svd = function(u, s, v) return columns(u, s), s, columns(v, s) end,
}
-- Inputs of which one triangle is read, as in ops.py.
local function symmetric(args) args[1] = ops.div(ops.add(args[1], ops.adjoint(args[1])), 2) end
local function triangular(at)
  return function(args, options) args[at] = (options.upper and ops.triu or ops.tril)(args[at]) end
end
local prepared = { ["linalg.eigh"] = symmetric, ["linalg.eigvalsh"] = symmetric, ["linalg.matrix_sqrth"] = symmetric,
  cholesky_solve = triangular(2), cholesky_inverse = triangular(1) }

-- ---- results ----------------------------------------------------------------------------------------

local function write(list)
  if not list then return out:write("-1\n") end
  out:write(#list, "\n")
  for _, t in ipairs(list) do
    if not B.is_tensor(t) then
      out:write(type(t), " 0\n\n")
    else
      t = ops.contiguous(B.alias(t, false))
      local n = B.numel(t) * B.itemsize(t)
      out:write(B.tensor_dtype(t).name, " ", n, " ", table.concat(B.size(t), " "), "\n")
      if n > 0 then out:write(ffi.string(ffi.cast("const char *", B.pointer(t)), n)) end
      out:write "\n"
    end
  end
end

local function flat(list, into)
  for i = 1, list.n or #list do
    local v = list[i]
    if B.is_tensor(v) then into[#into + 1] = v
    elseif v ~= nil and moth.sparse.is_sparse(v) then into[#into + 1] = v:to_dense()
    elseif type(v) == "table" then flat(v, into)
    elseif type(v) == "boolean" then into[#into + 1] = moth.tensor(v)
    elseif type(v) == "number" then
      into[#into + 1] = moth.tensor(v, { dtype = v == math.floor(v) and "int64" or "float64" })
    end
  end
  return into
end

local function weights(t, fn)
  local k = ops.arange(1, B.numel(t) + 1, 1, { dtype = "float64" })
  local w = ops[fn](k)
  if B.tensor_dtype(t).is_complex then w = ops.complex(w, ops.reciprocal(k)) end
  return ops.to(ops.reshape(w, B.size(t)), { dtype = B.tensor_dtype(t) })
end
local function total(list, fn)
  local sum
  for _, t in ipairs(list) do
    if B.requires_grad(t) then
      local part = ops.sum(ops.mul(t, weights(t, fn)))
      if B.tensor_dtype(t).is_complex then part = ops.real(part) end
      sum = sum and ops.add(sum, part) or part
    end
  end
  return sum
end

local inputs
local function leaves(v)
  if B.is_tensor(v) then if B.requires_grad(v) then inputs[#inputs + 1] = v end
  elseif type(v) == "table" then for _, x in ipairs(v) do leaves(x) end end
end

local function gradients(loss, again)
  local found = { moth.autograd.grad({ loss }, inputs, nil, true, again, true) }
  local all = {}
  for i, x in ipairs(inputs) do all[i] = found[i] or ops.zeros_like(B.alias(x, false)) end
  return all
end

local function case(number, name, args, n, options)
  local ok, message = pcall(function()
    local fn = named(name)
    if not fn then error("moth has no " .. name, 0) end
    local by = by_hand[name] or parameters(name, fn)
    inputs = {}
    for i = 1, n do leaves(args[i]) end
    local keys = {}
    for key in pairs(options) do keys[#keys + 1] = key end
    table.sort(keys)
    for _, key in ipairs(keys) do leaves(options[key]) end
    local function counted(how, v)
      local is_one = type(v) == "number" or B.is_tensor(v) and B.dim(v) == 0
      if how == "number" and type(v) ~= "number" or how == "list" and is_one then
        return v
      end
      return how and from_1(v) or v
    end
    for i = 1, n do args[i] = counted(by[i], args[i]) end
    if prepared[name] then prepared[name](args, options) end
    for _, key in ipairs(keys) do options[key] = counted(by[key], options[key]) end
    if next(options) ~= nil then
      n = n + 1
      args[n] = options
    end
    while n > 1 and args[n] == nil do n = n - 1 end
    local function pack(...) return { n = select("#", ...), ... } end
    local same = function(...) return ... end
    local results = flat(pack((signs[name] or same)(fn(unpack(args, 1, n)))), {})
    local floats = {}
    for _, r in ipairs(results) do if B.requires_grad(r) then floats[#floats + 1] = r end end
    local first, second, why = nil, nil, ""
    if #inputs > 0 and #floats > 0 then
      local good, err = pcall(function()
        first = gradients(total(floats, "cos"), true)
        local again = total(first, "sin")
        if again then second = gradients(again, false) else
          second = {}
          for i, x in ipairs(inputs) do second[i] = ops.zeros_like(B.alias(x, false)) end
        end
      end)
      if not good then why = tostring(err):gsub("\n", " ") end
    end
    out:write(number, " ok ", why, "\n")
    write(results)
    write(first)
    write(second)
  end)
  if not ok then out:write(number, " error ", (tostring(message):gsub("\n", "\\n")), "\n") end
end

local function T(at, size, dtype, shape, grad, order)
  local t = ops.empty(shape, { dtype = dtype })
  if size > 0 then ffi.copy(ffi.cast("char *", B.pointer(t)), ffi.cast("const char *", bytes) + at, size) end
  if #order > 0 then -- the strides of the sample: row-major in this order
    local back = {}
    for i, d in ipairs(order) do back[d] = i end
    t = ops.permute(ops.contiguous(ops.permute(t, order)), back)
  end
  if grad then B.set_requires_grad(t, true) end
  return t
end

-- A line at a time: one chunk of all of them has too many constants.
local first = true
for line in io.lines(dir .. "/cases.lua") do
  if not first then
    local chunk = assert(loadstring("local case, T, dtype, complex, moth = ... " .. line))
    local ok, err = pcall(chunk, case, T, B.dtype, moth.complex, moth)
    if not ok then
      local number = line:match "^case%((%d+)"
      out:write(number, " error arguments: ", (tostring(err):gsub("\n", "\\n")), "\n")
    end
  end
  first = false
end
out:close()
