--- Arguments that PyTorch's functions take and moth's ops do not: div's rounding_mode, var's unbiased, several dims of
-- squeeze and movedim, dtypes of running sums, and the like. A call without them goes straight to the op. Called by
-- moth.tensor.functions with the tables that the functions go into.
local B = require "moth_lua"
local ops = B.ops
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"

return function(F, methods)
  local function done(...) return ... end
  local function is_number(v) return type(v) == "number" end

  -- The table of options that ends a call, if one of `names` is in it: a copy without those, and their values.
  local function taken(names, n, ...)
    local o = n > 0 and (select(n, ...))
    if type(o) ~= "table" or getmetatable(o) ~= nil then return nil end
    local found
    for i = 1, #names do found = found or o[names[i]] ~= nil end
    if not found then return nil end
    local rest, values = {}, {}
    for key, value in each(o) do rest[key] = value end
    for i, name in ipairs(names) do values[i], rest[name] = o[name], nil end
    return next(rest) ~= nil and rest or nil, values
  end

  -- fn(op, name, …) serves calls whose last argument has an option of `names` or that wants(…) accepts; others are
  -- op(…). other: another name of the same.
  local function front(name, names, fn, wants, other)
    local function define(own, op)
      --- What the op of this name does, with the options of PyTorch's that it does not have itself.
      local function call(...)
        local n = select("#", ...)
        local o = n > 0 and (select(n, ...))
        if type(o) == "table" and getmetatable(o) == nil then
          for i = 1, #names do
            if o[names[i]] ~= nil then return done(fn(op, own, ...)) end
          end
        end
        if wants and wants(...) then return done(fn(op, own, ...)) end
        return done(op(...))
      end
      B.names[call] = own
      if own:sub(-1) ~= "_" then F[own] = call end
      methods[own] = call
    end
    define(name, ops[name])
    if other then define(other, signature.alias(other, ops[name])) end
    if ops[name .. "_"] then define(name .. "_", ops[name .. "_"]) end
  end
  -- The arguments before the options, then what is left of these.
  local function with_rest(rest, n, ...)
    local list = { ... }
    for i = n + 1, #list do list[i] = nil end
    list[n + 1] = rest
    return unpack(list, 1, rest and n + 1 or n)
  end

  --- div(x, y, { rounding_mode = "floor" | "trunc" }): the quotient rounded down, or towards 0.
  local function divide(_, own, x, y, o)
    local mode = type(o) == "table" and o.rounding_mode or nil
    local inplace = own:sub(-1) == "_"
    if mode == "floor" then return (inplace and ops.floor_divide_ or ops.floor_divide)(x, y) end
    if mode == "trunc" then return (inplace and ops.div_trunc_ or ops.div_trunc)(x, y) end
    check.fail("[%s] rounding_mode must be 'floor' or 'trunc', got %s", own, tostring(mode))
  end
  front("div", { "rounding_mode" }, divide)
  for _, name in ipairs({ "divide", "true_divide" }) do
    --- As div.
    F[name] = function(...) return done(F.div(...)) end
    B.names[F[name]], methods[name] = name, F[name]
  end
  -- var and std: x:var(false), x:var(2, false), { unbiased = false } beside { correction = 0 }.
  local places = { "dim", "correction", "keepdim" }
  for _, name in ipairs({ "var", "std" }) do
    front(name, { "unbiased" }, function(op, own, x, ...)
      local list, n, o = { ... }, select("#", ...), {}
      local last = list[n]
      if type(last) == "table" and getmetatable(last) == nil and #last == 0 then
        for key, value in each(last) do o[key] = value end
        n = n - 1
      end
      for i = 1, n do
        if i <= 2 and type(list[i]) == "boolean" then o.unbiased = list[i]
        elseif places[i] then o[places[i]] = list[i]
        else check.fail("[%s] too many arguments", own) end
      end
      local unbiased = o.unbiased
      if type(unbiased) ~= "boolean" then
        check.fail("[%s] unbiased must be true or false, got %s", own, tostring(unbiased))
      end
      if o.correction ~= nil then check.fail("[%s] unbiased and correction are the same argument", own) end
      o.unbiased, o.correction = nil, unbiased and 1 or 0
      return op(x, o)
    end, function(_, dim, unbiased) return type(dim) == "boolean" or type(unbiased) == "boolean" end)
  end

  -- Dimensions from 1, none of them twice.
  local function dims_of(name, x, list)
    local n, out, seen = math.max(B.dim(x), 1), {}, {}
    for i, d in ipairs(list) do
      local p = is_number(d) and (d < 0 and d + n + 1 or d) or 0
      if p < 1 or p > n or p ~= math.floor(p) then
        check.fail("[%s] dimension %s is out of range for %s", name, tostring(d), B.format(x))
      end
      if seen[p] then check.fail("[%s] dimension %s is named twice", name, tostring(d)) end
      out[i], seen[p] = p, true
    end
    return out, seen
  end
  local function is_list(v)
    if type(v) ~= "table" or getmetatable(v) ~= nil then return false end
    for key in each(v) do if type(key) ~= "number" then return false end end
    return true
  end
  local function list_in(_, a) return is_list(a) or type(a) == "table" and is_list(a.dim) end

  --- squeeze(x, { 1, 3 }): without these dimensions, where they have size 1.
  front("squeeze", {}, function(op, own, x, dims)
    dims = dims_of(own, x, is_list(dims) and dims or dims.dim)
    table.sort(dims, function(a, b) return a > b end)
    for _, d in ipairs(dims) do x = op(x, d) end
    return #dims > 0 and x or ops.expand(x, B.size(x))
  end, list_in)

  --- movedim(x, { 1, 2 }, { 3, 1 }): several dimensions moved at once.
  front("movedim", {}, function(_, own, x, from, to)
    if not is_list(from) then from, to = from.source, from.destination end
    if type(to) ~= "table" or #to ~= #from then
      check.fail("[%s] source and destination must be lists of as many dimensions", own)
    end
    local order, n = {}, B.dim(x)
    local used
    from, used = dims_of(own, x, from)
    to = dims_of(own, x, to)
    for i, d in ipairs(to) do order[d] = from[i] end
    local next_one = 1
    for d = 1, n do
      if not order[d] then
        while used[next_one] do next_one = next_one + 1 end
        order[d], next_one = next_one, next_one + 1
      end
    end
    return n > 0 and ops.permute(x, order) or x
  end, function(_, a) return is_list(a) or type(a) == "table" and is_list(a.source) end, "moveaxis")

  -- cumsum(x, dim, { dtype = … }): converted first.
  for _, name in ipairs({ "cumsum", "cumprod" }) do
    front(name, { "dtype" }, function(op, _, x, ...)
      local n = select("#", ...)
      local rest, values = taken({ "dtype" }, n, ...)
      local to = { dtype = values[1] }
      return (ops.to(op(ops.to(x, to), with_rest(rest, n - 1, ...)), to))
    end)
  end

  --- norm(x, "fro"), and a dtype: norm(x, 2, 1, { dtype = "float64" }).
  front("norm", { "dtype" }, function(op, own, x, p, ...)
    local o = type(p) == "table" and p or nil
    if o and o.p ~= nil or type(p) == "string" then
      local word = o and o.p or p
      if word == "nuc" then
        local dim, keepdim = ...
        local given = o or type(dim) == "table" and not is_list(dim) and dim or type(keepdim) == "table" and keepdim
          or {}
        if given == dim then dim, keepdim = nil, nil elseif given == keepdim then keepdim = nil end
        if dim == nil then dim = given.dim end
        if keepdim == nil then keepdim = given.keepdim end
        return (require("moth.linalg").matrix_norm(x, "nuc", dim, keepdim, { dtype = given.dtype }))
      end
      if word ~= "fro" and type(word) == "string" then
        check.fail("[%s] p is a number or 'fro', got '%s'", own, word)
      end
    end
    if p == "fro" then p = 2 end
    local list, n = { p, ... }, select("#", p, ...)
    local rest, values = taken({ "dtype" }, n, p, ...)
    if values then
      x, list[n], n = ops.to(x, { dtype = values[1] }), rest, rest and n or n - 1
    end
    local last = list[n]
    if type(last) == "table" and last.p == "fro" then
      list[n] = { p = 2 }
      for key, value in each(last) do if key ~= "p" then list[n][key] = value end end
    end
    return op(x, unpack(list, 1, n))
  end, function(_, p) return type(p) == "string" or type(p) == "table" and type(p.p) == "string" end)

  --- round(x, { decimals = 2 }): to so many digits behind the point; negative: in front of it.
  front("round", { "decimals" }, function(op, own, x, o)
    local n = type(o) == "table" and o.decimals
    if not is_number(n) or n ~= math.floor(n) then check.fail("[%s] decimals must be an integer", own) end
    if not B.tensor_dtype(x).is_floating_point then
      check.fail("[%s] decimals are for floats, got %s", own, B.format(x))
    end
    local scale = 10 ^ math.abs(n)
    if n == 0 then return op(x) end
    local y = n > 0 and ops.div(ops.round(ops.mul(x, scale)), scale) or ops.mul(ops.round(ops.div(x, scale)), scale)
    return own:sub(-1) == "_" and ops.copy_(x, y) or y
  end)

  --- nonzero(x, { as_tuple = true }): the positions in each dimension, as many values.
  front("nonzero", { "as_tuple" }, function(op, _, x, o)
    if not o.as_tuple then return op(x) end
    if B.dim(x) == 0 then x = ops.reshape(x, { 1 }) end
    local at, out = op(x), {}
    for d = 1, B.dim(x) do out[d] = ops.select(at, 2, d) end
    return unpack(out)
  end)

  --- index_add(x, dim, index, source, { alpha = 2 }): source times alpha is added.
  front("index_add", { "alpha" }, function(op, _, x, ...)
    local n = select("#", ...)
    local rest, values = taken({ "alpha" }, n, ...)
    local list = { ... }
    list[n] = rest
    if rest and rest.source ~= nil then rest.source = ops.mul(rest.source, values[1])
    else list[3] = ops.mul(list[3], values[1]) end
    return op(x, unpack(list, 1, rest and n or n - 1))
  end)

  --- scatter(x, dim, index, src, { reduce = "add" | "multiply" }): added to what is there, or multiplied with it.
  front("scatter", { "reduce" }, function(_, own, x, dim, index, src, o)
    local how = type(o) == "table" and o.reduce or type(src) == "table" and src.reduce
    if not B.is_tensor(src) then
      local value = src
      if type(src) == "table" then value = src.value or src.src end
      src = B.is_tensor(value) and value
        or F.full(B.size(index), value, { dtype = B.tensor_dtype(x), device = B.tensor_device(x) })
    end
    local y
    if how == "add" then y = ops.scatter_add(x, dim, index, src)
    elseif how == "multiply" then y = ops.scatter_reduce(x, dim, index, src, "prod")
    elseif not how then y = ops.scatter(x, dim, index, src)
    else check.fail("[%s] reduce must be 'add' or 'multiply', got %s", own, tostring(how)) end
    return own:sub(-1) == "_" and ops.copy_(x, y) or y
  end, function(_, _, _, src) return type(src) == "cdata" end)

  -- sort and argsort are stable: `stable` says nothing.
  for _, name in ipairs({ "sort", "argsort" }) do
    front(name, { "stable" }, function(op, _, x, ...)
      local n = select("#", ...)
      local rest = taken({ "stable" }, n, ...)
      return op(x, with_rest(rest, n - 1, ...))
    end)
  end

  -- Tensors that are made are row-major: ops take memory_format (src/lua/call.c), and it says nothing.
  for _, name in ipairs({ "contiguous_format", "preserve_format", "channels_last", "channels_last_3d" }) do
    F[name] = name
  end
end
