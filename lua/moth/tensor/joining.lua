--- Functions of lists of tensors, and functions that give lists: stacks, splits, blocks, triangles. Called by
-- moth.tensor.functions with the tables that they go into.
local B = require "moth_lua"
local ops = B.ops
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local list_of = require "moth.tensor.list"

return function(F, methods)
  local is_tensor = B.is_tensor

  -- Defines a function and a method under the name in the signature.
  local function both(text, fn)
    local name, checked = text:match("^[%w_]+"), signature(text, fn)
    F[name], methods[name] = checked, checked
    return fn
  end

  -- ---- one dimension more ----------------------------------------------------------------------------

  --- atleast_1d, atleast_2d, atleast_3d: of one tensor its result; of several, or of a list, as many values.
  for n = 1, 3 do
    local name = ("atleast_%dd"):format(n)
    local op = ops[name]
    F[name] = signature(name .. "(Tensor... tensors)", function(list)
      local out = {}
      for i, t in ipairs(list) do out[i] = op(t) end
      return unpack(out)
    end)
    methods[name] = op
  end

  local function some(where, list)
    if #list == 0 then check.fail("[%s] expected at least one tensor", where) end
  end
  --- Vectors as columns beside each other, with matrices.
  F.column_stack = signature("column_stack(Tensor... tensors)", function(given)
    some("column_stack", given)
    local list = {}
    for i, t in ipairs(given) do list[i] = B.dim(t) < 2 and ops.reshape(t, { -1, 1 }) or t end
    return (ops.cat(list, 2))
  end)
  F.row_stack = signature.alias("row_stack", F.vstack)

  --- Matrices along the diagonal of one, zeros elsewhere; vectors are rows.
  F.block_diag = signature("block_diag(Tensor... tensors)", function(given)
    some("block_diag", given)
    local rows, columns, before = {}, 0, 0
    for i, t in ipairs(given) do
      if B.dim(t) > 2 then check.fail("[block_diag] tensor %d has %d dimensions, expected at most 2", i, B.dim(t)) end
      rows[i] = ops.atleast_2d(t)
      columns = columns + B.size(rows[i], 2)
    end
    for i, t in ipairs(rows) do
      local width = B.size(t, 2)
      rows[i] = ops.pad(t, { before, columns - before - width })
      before = before + width
    end
    return (ops.cat(rows, 1))
  end)

  -- ---- splits -----------------------------------------------------------------------------------------

  -- The parts of x along dim before, between and from the positions on (from 1), each kept within x.
  local function cut(name, x, positions, dim)
    local n, out, from = B.size(x, dim), {}, 1
    for i = 1, #positions + 1 do
      local to = positions[i] or n + 1
      if to < 0 then to = math.max(n + to + 1, 1) elseif to == 0 then
        check.fail("[%s] position 0: moth counts from 1 (and from the end by -1)", name)
      end
      to = math.min(to, n + 1)
      out[i] = ops.narrow(x, dim, math.min(from, n + 1), math.max(to - from, 0))
      from = to
    end
    return list_of(out, name)
  end
  local function parts(name, x, into, dim)
    if is_tensor(into) then
      if B.dim(into) > 1 or B.tensor_dtype(into).is_floating_point then
        check.fail("[%s] expected integers in at most 1 dimension, got %s", name, B.format(into))
      end
      into = B.totable(into)
    end
    if type(into) == "table" then return cut(name, x, into, dim) end
    local n, out, at = B.size(x, dim), {}, 1
    for i = 1, into do -- the first n % into are one larger
      local size = math.floor(n / into) + (i <= n % into and 1 or 0)
      out[i] = ops.narrow(x, dim, at, size)
      at = at + size
    end
    return list_of(out, name)
  end
  --- A list of views: `indices_or_sections` parts along dim whose sizes differ by at most 1, or those that begin at 1
  -- and at the positions of a list or tensor.
  both("tensor_split(Tensor input, count|int[]|Tensor indices_or_sections, Dim dim=1)", function(x, into, dim)
    if B.dim(x) == 0 then check.fail("[tensor_split] a 0-dim tensor has no parts") end
    return parts("tensor_split", x, into, dim)
  end)
  local function splitting(name, least, dim_of)
    --- A list of views: equal parts, or those that begin at positions, along the second (hsplit; of a vector the
    -- first), first (vsplit) or third (dsplit) dimension.
    both(name .. "(Tensor input, count|int[] indices_or_sections)", function(x, into)
      if B.dim(x) < least then
        check.fail("[%s] expected at least %d dimensions, got %s", name, least, B.format(x))
      end
      local dim = dim_of(x)
      if type(into) == "number" and B.size(x, dim) % into ~= 0 then
        check.fail("[%s] dimension %d, of size %d, has no %d equal parts", name, dim, B.size(x, dim), into)
      end
      return parts(name, x, into, dim)
    end)
  end
  splitting("hsplit", 1, function(x) return B.dim(x) == 1 and 1 or 2 end)
  splitting("vsplit", 2, function() return 1 end)
  splitting("dsplit", 3, function() return 3 end)

  for name, of in each({ split_with_sizes = "split", unsafe_split = "split", unsafe_chunk = "chunk" }) do
    F[name] = signature.alias(name, require("moth.tensor").functions[of])
    methods[name] = F[name]
  end

  -- ---- positions ----------------------------------------------------------------------------------------

  for _, name in ipairs({ "tril", "triu" }) do
    local triangle = ops[name]
    --- The positions (2, n), from 1, of the lower or upper triangle of a row x col matrix, row by row.
    F[name .. "_indices"] = signature(name .. "_indices(size row, size col, int offset=0, *, dtype dtype='int64', \z
      device device?)", function(row, col, offset, dtype, device)
      local ones = ops.ones({ row, col }, { dtype = "bool", device = device })
      return (ops.to(ops.contiguous(ops.t(ops.nonzero(triangle(ones, offset)))), { dtype = dtype }))
    end)
  end
  --- The positions of elements that are not zero, a row each: as nonzero.
  both("argwhere(Tensor input)", function(x) return (ops.nonzero(x)) end)
  --- nonzero with `size` rows: cut, or filled with fill_value.
  both("nonzero_static(Tensor input, *, size size, int fill_value=-1)", function(x, size, fill_value)
    local at = ops.nonzero(x)
    local n = B.size(at, 1)
    if n >= size then return (ops.narrow(at, 1, 1, size)) end
    return (ops.pad(at, { 0, 0, 0, size - n }, "constant", fill_value))
  end)
  --- Positions of the flattened tensor as positions in each dimension of a shape: as many tensors.
  F.unravel_index = signature("unravel_index(Tensor indices, size|size[] shape)", function(at, shape)
    if type(shape) == "number" then shape = { shape } end
    if B.tensor_dtype(at).is_floating_point or B.tensor_dtype(at).name == "bool" then
      check.fail("[unravel_index] expected an integer tensor, got %s", B.format(at))
    end
    local rest, out = ops.sub(ops.to(at, { dtype = "int64" }), 1), {}
    for d = #shape, 1, -1 do
      out[d] = ops.add(ops.remainder(rest, shape[d]), 1)
      rest = ops.floor_divide(rest, shape[d])
    end
    return unpack(out)
  end)
  --- All choices of r elements of a 1-D tensor, in order: (their number, r); with_replacement: also several times.
  both("combinations(Tensor input, size r=2, bool with_replacement=false)", function(x, r, again)
    if B.dim(x) ~= 1 then check.fail("[combinations] expected a 1-D tensor, got %s", B.format(x)) end
    local n = B.size(x, 1)
    if r == 0 then return (ops.narrow(x, 1, 1, 0)) end
    local flat, chosen = {}, {}
    local function go(k, from)
      if k > r then
        for i = 1, r do flat[#flat + 1] = chosen[i] end
        return
      end
      for i = from, n do
        chosen[k] = i
        go(k + 1, again and i or i + 1)
      end
    end
    go(1, 1)
    if #flat == 0 then return (ops.reshape(ops.narrow(x, 1, 1, 0), { 0, r })) end
    local index = ops.to(B.tensor(flat, B.dtype "int64"), { device = B.tensor_device(x) })
    return (ops.reshape(ops.index_select(x, 1, index), { #flat / r, r }))
  end)
end
