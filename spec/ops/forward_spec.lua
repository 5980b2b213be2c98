-- Every op record against a float64 reference: samples × dtypes × layouts; in-place and out variants; empty and
-- 0-dim operands; fake tensors; integer-filled data; threads; levels of the CPU kernels.
local S = require "ops.support"
local references = require "ops.references"
local B = require "moth_lua"
local moth = require "moth"
local ops = B.ops

local is_tensor, size, dtype_of = B.is_tensor, B.size, S.dtype_of
local count = S.counter("forward")
local exact, threads, levels, variants, fakes = 0, 0, 0, 0, 0

local on_cpu = S.device == "cpu"
local factories = {}
for _, op in ipairs(S.records) do factories[op.name] = op.factory end

local with_option
local function call(name, args, device)
  if factories[name] and (device or S.device) ~= "cpu" then args = with_option(args, "device", device or S.device) end
  return ops[name](unpack(args, 1, args.n))
end
local function pack(...) return { n = select("#", ...), ... } end

local function has_generator(op)
  for _, a in ipairs(op.args) do if a.type == "GENERATOR" then return true end end
  return false
end
local function masked(op, a) return a and op.cond == a.name end

--- The sample's tensors in another dtype: of a pointwise op all but the mask, else those of floats.
local function converted(op, args, dtype)
  return S.map(op, args, function(t, a)
    if masked(op, a) then return t end
    if op.kind ~= "pointwise" and dtype_of(t) ~= "float64" then return t end
    return S.cast(t, dtype)
  end)
end

--- All tensors in a layout; nil if not even one can have it. The list has `intact` functions.
local function laid_out(op, args, kind)
  local checks, any = {}, false
  local out = S.map(op, args, function(t, a)
    if kind == "expanded" and a and a.mutated then return t end
    local x, intact = S.layout(t, kind)
    if not x then return t end
    any = true
    checks[#checks + 1] = intact
    return x
  end)
  if not any then return nil end
  return out, checks
end

--- Row-major copies; what is of floats in the sample in float64.
local function in_float64(op, args, base)
  local float, k = {}, 0
  S.map(op, base or args, function(t)
    float[#float + 1] = S.class[dtype_of(t)] == "float"
    return t
  end)
  return S.map(op, args, function(t)
    k = k + 1
    return S.make(size(t), float[k] and "float64" or dtype_of(t), S.values(t), "cpu")
  end)
end

-- dtype in which a pointwise op computes
local function compute_dtype(op, args)
  local bound, operands = S.bind(op, args), {}
  for _, a in ipairs(op.args) do
    if a.type ~= "SCALAR" and not masked(op, a)
      and bound[a.name] ~= nil then operands[#operands + 1] = bound[a.name] end
  end
  local d = op.promote == "self" and dtype_of(operands[1]) or S.result_type(operands)
  if op.promote == "float" and S.class[d] ~= "float" then d = "float32" end
  return d
end

-- A parameter that is not integral cannot enter a computation in integers, a negative one not one in uint8.
local function unfit_parameter(op, args, dtype)
  local bound = S.bind(op, args)
  for _, a in ipairs(op.args) do
    local v = bound[a.name]
    if (a.type == "SCALAR" or a.type == "OPERAND" and op.promote == "self") and type(v) == "number"
      and (v ~= math.floor(v) or dtype == "uint8" and v < 0) then return true end
  end
end

local function supports(op, dtype)
  return ((op.dtypes or "float,int,bool"):find(S.class[dtype], 1, true)) ~= nil
end

local function tolerance(op, dtype)
  return op.tolerance and op.tolerance[dtype] or S.tolerance[dtype]
end

local function must(text) if text then error(text, 0) end end

local function check_result(op, t, shape, data, dtype, tol)
  if not is_tensor(t) then error("the result is a " .. type(t), 0) end
  if not S.same_shape(size(t), shape) then error(("shape %s, expected %s"):format(S.show(size(t)), S.show(shape)),
    0) end
  if dtype and dtype_of(t) ~= dtype then error(("dtype %s, expected %s"):format(dtype_of(t), dtype), 0) end
  must(S.compare(S.values(t), data, dtype_of(t), tol or tolerance(op, dtype_of(t))))
end

-- what is expected --------------------------------------------------------------------------------

local as_reference
local function plain(v)
  if is_tensor(v) then return { shape = size(v), data = S.values(v) } end
  if type(v) == "table" and is_tensor(v[1]) then
    local list = {}
    for i, t in ipairs(v) do list[i] = plain(t) end
    return list
  end
  return v
end
function as_reference(op, args)
  local bound = S.bind(op, args)
  for k, v in pairs(bound) do bound[k] = plain(v) end
  return pack(references[op.reference](bound, op.name))
end

--- Results of a structured op from its float64 contiguous run, which itself is compared with references.lua.
local function expected(op, args, base)
  local plain_args = in_float64(op, args, base)
  local run = pack(call(op.name, plain_args, "cpu"))
  local want = { n = run.n }
  for i = 1, run.n do want[i] = { shape = size(run[i]), data = S.values(run[i]), dtype = dtype_of(run[i]) } end
  return want
end

-- pointwise ---------------------------------------------------------------------------------------

local function pointwise_case(op, args, checks)
  local dtype = compute_dtype(op, args)
  local out_dtype = op.out == "bool" and "bool" or dtype
  local ok, result = pcall(call, op.name, args)
  if S.class[dtype] ~= "float" and supports(op, dtype) and unfit_parameter(op, args, dtype) then
    if ok then error("an unfit parameter went into " .. dtype, 0) end
    if not result:find("but the computation is in", 1, true) and not result:find("out of the range of", 1, true) then
      error(result, 0)
    end
    count.refused = count.refused + 1
    return
  end
  if not supports(op, dtype) then
    if ok then error("undeclared dtype " .. dtype .. " was accepted", 0) end
    if not result:find("not implemented for " .. dtype, 1, true) then error(result, 0) end
    count.refused = count.refused + 1
    return
  end
  if not ok then error(result, 0) end
  local shape, data
  if op.ref then
    shape, data = S.reference(op, args, dtype)
  else
    local want = expected(op, args)[1]
    shape, data = want.shape, want.data
  end
  check_result(op, result, shape, data, out_dtype, out_dtype ~= "bool" and tolerance(op, dtype))
  for _, intact in ipairs(checks) do if not intact() then error("memory around an operand has changed", 0) end end
  return result
end

-- structured --------------------------------------------------------------------------------------

local type_errors = { "not implemented for", "out of the range of", "float", "integer", "same dtype", "bool", "dtype",
  "can't be cast" }
local function is_type_error(message)
  for _, p in ipairs(type_errors) do if message:find(p, 1, true) then return true end end
end

local function structured_case(op, args, dtype, checks, want)
  local results = pack(pcall(call, op.name, args))
  if not results[1] then
    local low = (dtype == "float16" or dtype == "bfloat16")
      and results[2]:find("low precision dtypes", 1, true)
    if low or S.class[dtype] ~= "float" and is_type_error(results[2]) then
      count.refused = count.refused + 1
      return
    end
    if (op.kind == "view" or op.name == "view_as") and results[2]:find("view size is not compatible", 1, true)
      and not B.is_contiguous(args[1]) then
      count.refused = count.refused + 1
      return
    end
    error(results[2], 0)
  end
  if results.n - 1 ~= want.n then error(("%d results, expected %d"):format(results.n - 1, want.n), 0) end
  for i = 1, want.n do
    local got = results[i + 1]
    local d = dtype_of(got)
    local kept = i > 1 and d == "float32" and S.bits[dtype] == nil -- sums that backward reads: not rounded
    if S.class[dtype] == "float" and d ~= dtype and d ~= want[i].dtype and not kept then
      error(("dtype %s, expected %s"):format(d, dtype), 0)
    end
    check_result(op, got, want[i].shape, want[i].data, nil)
  end
  for _, intact in ipairs(checks) do if not intact() then error("memory around an operand has changed", 0) end end
  return results[2]
end

-- variants ----------------------------------------------------------------------------------------

function with_option(args, key, value)
  local out = { n = args.n, unpack(args, 1, args.n) }
  if S.is_options(args[args.n]) then
    local o = {}
    for k, v in pairs(args[args.n]) do o[k] = v end
    out[args.n] = o
    o[key] = value
  else
    out.n = args.n + 1
    out[out.n] = { [key] = value }
  end
  return out
end

--- op_(self, …) in a layout equals the functional result and does not change the memory around.
local function inplace_case(op, args, layout)
  local self = args[1]
  local want = call(op.name, args)
  local target, intact = S.layout(S.make(size(self), dtype_of(self), S.values(self)), layout)
  if not target then return end
  local mine = { n = args.n, unpack(args, 1, args.n) }
  mine[1] = target
  local version = B.version(target)
  local ok, result = pcall(call, op.name .. "_", mine)
  local fits = S.same_shape(size(want), size(self))
    and not (S.class[dtype_of(want)] == "float" and S.class[dtype_of(self)] ~= "float")
    and not (S.class[dtype_of(want)] == "int" and S.class[dtype_of(self)] == "bool")
  if not fits then
    if ok then error(op.name .. "_ accepted a result that does not fit", 0) end
    count.refused = count.refused + 1
    return
  end
  if not ok then error(result, 0) end
  if not rawequal(result, target) then error(op.name .. "_ did not return self", 0) end
  if B.version(target) <= version then error(op.name .. "_ did not count a version", 0) end
  check_result(op, target, size(want), S.values(ops.to(want, { dtype = B.tensor_dtype(target) })), nil)
  if not intact() then error(op.name .. "_ wrote around its target", 0) end
end

local function out_case(op, args, layout)
  local want = call(op.name, args)
  local fill = {}
  for i = 1, B.numel(want) do fill[i] = 1 end
  local target, intact = S.layout(S.make(size(want), dtype_of(want), fill), layout)
  if not target then return end
  local result = call(op.name, with_option(args, "out", target))
  if not (rawequal(result, target) or result == target) then error("the result is not what was given as out", 0) end
  check_result(op, target, size(want), S.values(want), dtype_of(want))
  if not intact() then error("memory around out has changed", 0) end
end

local function fake_case(op, args)
  local real = pack(call(op.name, args))
  local fake_args = S.map(op, args, B.fake)
  local was = B.set_fake(op.factory or false)
  local fake = pack(pcall(call, op.name, fake_args))
  B.set_fake(was)
  if not fake[1] then
    if not fake[2]:find("depends on data", 1, true) then error(fake[2], 0) end
    return
  end
  for i = 1, real.n do
    local f = fake[i + 1]
    if not B.is_fake(f) then error("the result of fake tensors is not fake", 0) end
    if not S.same_shape(size(f), size(real[i])) or dtype_of(f) ~= dtype_of(real[i]) then
      error(("fake %s %s, real %s %s"):format(dtype_of(f), S.show(size(f)), dtype_of(real[i]),
        S.show(size(real[i]))), 0)
    end
  end
end

-- one record --------------------------------------------------------------------------------------

local function where(op, i, ...) return table.concat({ op.name, "sample " .. i, ... }, " ") end

local function variants_of(op, i, args, dtype)
  if op.inplace and is_tensor(args[1]) then
    for _, layout in ipairs { "contiguous", "transposed", "strided", "offset" } do
      if pcall(call, op.name, args) then
        variants = variants + 1
        count.case(where(op, i, dtype, layout, "in place"), inplace_case, op, args, layout)
      end
    end
  end
  if op.nresults == 1 and not op.returns_self and pcall(call, op.name, args) then
    for _, layout in ipairs { "contiguous", "transposed", "strided", "offset" } do
      variants = variants + 1
      count.case(where(op, i, dtype, layout, "out"), out_case, op, args, layout)
    end
  end
end

--- Every operand empty, and every operand 0-dim, for ops that work element by element.
local function degenerate(op, i, args, dtype)
  local function each(name, fn)
    local mine = S.map(op, args, fn)
    count.case(where(op, i, dtype, name), pointwise_case, op, mine, {})
  end
  each("empty", function(t) return S.make({ 0, 3 }, dtype_of(t), {}) end)
  each("0-dim", function(t) return S.make({}, dtype_of(t), { S.values(t)[1] }) end)
end

local function run_pointwise(op)
  for i, text in ipairs(op.samples) do
    local base = S.evaluate(text, { seed = S.seed + i })
    for _, dtype in ipairs(S.dtypes) do
      local args = converted(op, base, dtype)
      for _, layout in ipairs(S.layouts) do
        local mine, checks = laid_out(op, args, layout)
        if mine then count.case(where(op, i, dtype, layout), pointwise_case, op, mine, checks) end
      end
      degenerate(op, i, args, dtype)
      variants_of(op, i, args, dtype)
    end
    fakes = fakes + 1
    count.case(where(op, i, "fake"), fake_case, op, base)
    -- two dtypes: the second operand in another one
    if #op.args > 1 and is_tensor(base[2]) and not masked(op, op.args[2]) and op.promote ~= "self" then
      for _, pair in ipairs { { "float32", "int32" }, { "int8", "uint8" }, { "float16", "bfloat16" }, { "bool",
        "int64" },
        { "float64", "float32" }, { "uint8", "float16" } } do
        local k = 0
        local mixed = S.map(op, base, function(t, a)
          if masked(op, a) then return t end
          k = k + 1
          return S.cast(t, pair[(k - 1) % 2 + 1])
        end)
        count.case(where(op, i, pair[1] .. "+" .. pair[2]), pointwise_case, op, mixed, {})
      end
    end
  end
end

local function fresh(op, args) -- an op must not write to the arguments of another call
  return S.map(op, args, function(t, a)
    if a and a.mutated then return ops.clone(t) end
    return t
  end)
end

-- A sample in float64 against the naive reference that the record names.
local function naive_case(op, i, base)
  if not op.reference then return end
  count.case(where(op, i, "float64 against the naive reference"), function()
    local want = as_reference(op, base) -- first: an op may write to its arguments
    local got = pack(call(op.name, S.map(op, base, function(t, a)
      return a and a.mutated and ops.clone(t) or t
    end)))
    for k = 1, want.n do check_result(op, got[k], want[k].shape, want[k].data) end
  end)
end

local function run_nondeterministic(op)
  for i, text in ipairs(op.samples) do
    local base = S.evaluate(text, { seed = S.seed + i })
    count.case(where(op, i, "repeats"), function()
      local seen = {}
      for k, n in ipairs { 1, 1, 2 } do
        B.num_threads(n)
        moth.manual_seed(7)
        local ok, r = pcall(function() return pack(call(op.name, fresh(op, base))) end)
        B.num_threads(2)
        if not ok then error(r, 0) end
        for j = 1, r.n do
          seen[j] = seen[j] or S.bytes(r[j])
          if k > 1 and has_generator(op) and seen[j] ~= S.bytes(r[j]) then error("one seed gave two results", 0) end
          if k > 1 and #seen[j] ~= #S.bytes(r[j]) then error("the shape has changed", 0) end
        end
      end
    end)
    for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
      local args = converted(op, base, dtype)
      for _, layout in ipairs { "contiguous", "transposed", "strided", "offset" } do
        local mine, checks = laid_out(op, args, layout)
        if mine then
          count.case(where(op, i, dtype, layout), function()
            local r = pack(call(op.name, mine))
            for j = 1, r.n do if S.class[dtype_of(r[j])] == "float" and dtype_of(r[j]) ~= dtype
              and not op.factory then error("dtype " .. dtype_of(r[j]), 0) end end
            for _, intact in ipairs(checks) do if not intact() then error("memory around an operand has changed",
              0) end end
          end)
        end
      end
    end
    if has_generator(op) or op.factory then
      fakes = fakes + 1
      count.case(where(op, i, "fake"), fake_case, op, fresh(op, base))
    end
  end
end

local function run_factory(op)
  for i, text in ipairs(op.samples) do
    local base = S.evaluate(text, { seed = S.seed + i })
    naive_case(op, i, with_option(base, "dtype", "float64"))
    for _, dtype in ipairs(S.dtypes) do
      count.case(where(op, i, dtype), function()
        local want = call(op.name, with_option(base, "dtype", "float64"), "cpu")
        local ok, got = pcall(call, op.name, with_option(base, "dtype", dtype))
        if not ok then
          local beyond = false -- values out of the dtype's range
          for _, x in ipairs(S.class[dtype] == "int" and S.values(want) or {}) do
            beyond = beyond or x < moth.iinfo(dtype).min or x > moth.iinfo(dtype).max
          end
          local refused = beyond and got:find("out of the range of " .. dtype, 1, true) or is_type_error(got)
          if S.class[dtype] == "float" or not refused then error(got, 0) end
          count.refused = count.refused + 1
          return
        end
        check_result(op, got, size(want), S.values(want), dtype)
      end)
    end
    fakes = fakes + 1
    count.case(where(op, i, "fake"), fake_case, op, base)
  end
end

local function run_structured(op)
  for i, text in ipairs(op.samples) do
    local base = S.evaluate(text, { seed = S.seed + i })
    naive_case(op, i, base)
    -- Rounded to integers, or of equal rows, a matrix is singular.
    local factors = op.family == "decompositions"
    for _, dtype in ipairs(S.dtypes) do
      local args = converted(op, base, dtype)
      if factors and S.class[dtype] ~= "float" then
        count.case(where(op, i, dtype), function()
          local ok, err = pcall(call, op.name, args)
          if not ok and not is_type_error(err) then error(err, 0) end
          if ok and op.name ~= "native_lu_rows" then error("was accepted", 0) end
          count.refused = count.refused + 1
        end)
        args = nil
      end
      for _, layout in ipairs(args and S.layouts or {}) do
        local mine, checks = laid_out(op, args, layout)
        if factors and layout == "expanded" then mine = nil end
        if mine and (op.name ~= "as_strided" or layout == "contiguous") then -- it reads the storage, not the elements
          count.case(where(op, i, dtype, layout), function()
            local want = expected(op, mine, base)
            structured_case(op, fresh(op, mine), dtype, op.returns_self and {} or checks, want)
            if op.returns_self then -- into the layout itself
              local r = structured_case(op, mine, dtype, checks, want)
              if r and not (rawequal(r, mine[1]) or r == mine[1]) then error("did not return self", 0) end
            end
          end)
        end
      end
      if args and not op.returns_self then variants_of(op, i, args, dtype) end
    end
    fakes = fakes + 1
    count.case(where(op, i, "fake"), fake_case, op, fresh(op, base))
  end
end

--- Ops that only write: the written tensors and lists against the reference, in every float dtype.
local function run_writing(op)
  local function run(base, dtype, layout)
    local args, checks = laid_out(op, fresh(op, converted(op, base, dtype)), layout)
    if not args then return end
    local bound = S.bind(op, args)
    for k, v in pairs(bound) do bound[k] = plain(v) end
    local want = references[op.reference](bound)
    call(op.name, args)
    local k = 0
    for i, a in ipairs(op.args) do
      if a.mutated then
        k = k + 1
        local got, due = args[i], want[k]
        if is_tensor(got) then got, due = { got }, { due } end
        for j, t in ipairs(got) do
          must(S.compare(S.values(t), due[j].data, dtype, tolerance(op, dtype)))
        end
      end
    end
    for _, intact in ipairs(checks) do if not intact() then error("memory around an operand has changed", 0) end end
  end
  for i, text in ipairs(op.samples) do
    local base = S.evaluate(text, { seed = S.seed + i })
    for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
      for _, layout in ipairs { "contiguous", "transposed", "strided", "offset" } do
        count.case(where(op, i, dtype, layout), run, base, dtype, layout)
      end
    end
    for _, dtype in ipairs { "int32", "bool" } do
      count.case(where(op, i, dtype), function()
        local ok, err = pcall(run, base, dtype, "contiguous")
        if ok then error("was accepted", 0) end
        if not is_type_error(err) then error(err, 0) end
      end)
    end
  end
end

-- larger data -------------------------------------------------------------------------------------

-- Of the largest result; 0 if fake tensors cannot tell.
local function fake_numel(op, args)
  local most, results = 0, pack(pcall(call, op.name, S.map(op, args, B.fake)))
  if not results[1] then return 0 end
  for i = 1, op.nresults do most = math.max(most, B.numel(results[i + 1])) end
  return most
end

--- A mapping of sizes that keeps equal ones equal, so that shapes still fit; odd sizes reach tile remainders.
local function larger(op, text, integers, want)
  local ndim = 1
  for list in text:gmatch("rand[nit]*%(([^()]*)%)") do
    local n = select(2, list:gsub("%d+", ""))
    if n > ndim then ndim = n end
  end
  local factor = ({ 30011, 60, 14, 6 })[ndim] or 5
  if want then factor = ({ 401, 13, 5, 3 })[ndim] or 3 end
  local function scale(n) return n < 2 and n or factor * n - 7 % n end
  local ok, args
  repeat
    ok, args = pcall(S.evaluate, text, { seed = S.seed, scale = scale, integers = integers })
    if not ok then return nil end
    local fits = factor < 4 or op.factory or fake_numel(op, args) <= 2 ^ 24
    if not fits then factor = math.floor(math.sqrt(factor)) end -- a matrix of a vector, say
  until fits
  if op.factory then -- its sizes stand in the sample
    local sizes
    for k = 1, args.n do sizes = sizes or (type(args[k]) == "table" and args[k]) end
    if not sizes then return nil end
    for k, v in ipairs(sizes) do sizes[k] = v < 2 and v or 101 * v end
  end
  -- Sizes that stand in the sample do not grow: what no longer fits is left out. A device tells late.
  local works = pcall(function()
    call(op.name, fresh(op, args))
    if not on_cpu then moth.cuda.synchronize() end
  end)
  return works and args or nil
end

-- Of the finite ones, without their signs.
local function average(values)
  local sum, n = 0, 0
  for _, v in ipairs(values) do
    if math.abs(v) < math.huge then sum, n = sum + math.abs(v), n + 1 end
  end
  return n > 0 and sum / n or 0
end

local function run_larger(op)
  for i, text in ipairs(op.samples) do
    local args = larger(op, text)
    if args then
      local float32 = S.map(op, args, function(t)
        return dtype_of(t) == "float64" and ops.to(t, { dtype = "float32" }) or t
      end)
      if not on_cpu and not op.none then
        count.case(where(op, i, "large, against the CPU"), function()
          local here = S.map(op, fresh(op, float32), function(t) return ops.to(t, { device = "cpu" }) end)
          local got, want = pack(call(op.name, fresh(op, float32))), pack(call(op.name, here, "cpu"))
          if op.name:find("^empty") then return end
          for k = 1, want.n do
            local d = dtype_of(want[k])
            local tol = tolerance(op, d) -- of one result: here each of the two is off
            local values = S.values(want[k])
            -- A sum's error is that of its terms, however little of them is left: the average tells their size.
            local typical = op.kind == "pointwise" and 0 or average(values)
            must(S.compare(S.values(got[k]), values, d, tol and { tol[1] * 4, (tol[2] + tol[1] * typical) * 4 }))
          end
        end)
      end
      threads = threads + (on_cpu and 1 or 0)
      if on_cpu then count.case(where(op, i, "large, 1 and 2 threads"), function()
        local seen
        for _, n in ipairs { 1, 2, 3 } do
          B.num_threads(n)
          moth.manual_seed(3)
          local ok, r = pcall(function() return pack(call(op.name, fresh(op, float32))) end)
          B.num_threads(2)
          if not ok then error(r, 0) end
          if op.name:find("^empty") then return end
          local bytes = {}
          for k = 1, r.n do bytes[k] = S.bytes(r[k]) end
          bytes = table.concat(bytes)
          if seen and seen ~= bytes then error(n .. " threads give other bits than 1", 0) end
          seen = seen or bytes
        end
      end) end
      if on_cpu and not op.none then
        levels = levels + 1
        count.case(where(op, i, "large, levels of the CPU kernels"), function()
          local best, want = B.cpu_level(), nil
          local worst
          for _, level in ipairs { best, "avx2", "generic" } do
            if pcall(B.cpu_level, level) then
              local ok, r = pcall(function() return pack(call(op.name, fresh(op, float32))) end)
              B.cpu_level(best)
              if not ok then error(r, 0) end
              if want then
                for k = 1, r.n do
                  local a, b = ops.to(r[k], { dtype = "float64" }), ops.to(want[k], { dtype = "float64" })
                  local tol = tolerance(op, dtype_of(r[k])) or { 0, 0 }
                  if S.class[dtype_of(r[k])] == "float" and not moth.allclose(a, b, tol[1] * 4, tol[2] * 4, true)
                    or S.class[dtype_of(r[k])] ~= "float" and not moth.equal(a, b) then
                    worst = level .. " differs from " .. best .. ": " .. moth.Tensor.__index(ops.abs(ops.sub(a, b)),
                      "stats")(ops.abs(ops.sub(a, b)))
                  end
                end
              end
              want = want or r
            end
          end
          must(worst)
        end)
      end
    end
    -- small integers: sums and products of them are exact in every dtype that can hold the result
    if not op.none and op.kind ~= "pointwise" then
      local whole = larger(op, text, true, true)
      if whole then
        local want = expected(op, whole)
        local largest = 0
        for k = 1, want.n do
          for _, v in ipairs(want[k].data) do
            if v ~= math.floor(v) then largest = math.huge end
            largest = math.max(largest, math.abs(v))
          end
        end
        if op.reference then
          count.case(where(op, i, "integers against the naive reference"), function()
            local ref = as_reference(op, whole)
            for k = 1, want.n do must(S.compare(want[k].data, ref[k].data, "float64", S.tolerance.float64)) end
          end)
        end
        for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
          local limit = ({ float64 = 2 ^ 53, float32 = 2 ^ 24, float16 = 2 ^ 11, bfloat16 = 2 ^ 8 })[dtype]
          if largest <= limit then
            exact = exact + 1
            count.case(where(op, i, dtype, "integers"), function()
              local r = pack(call(op.name, fresh(op, converted(op, whole, dtype))))
              for k = 1, want.n do
                must(S.compare(S.values(r[k]), want[k].data, dtype_of(r[k]), { 0, 0 }))
              end
            end)
          end
        end
      end
    end
  end
end

describe("forward #M500", function()
  local threads_before
  setup(function()
    threads_before = B.num_threads()
    B.num_threads(2)
  end)
  teardown(function() B.num_threads(threads_before) end)

  for _, op in ipairs(S.selected()) do
    it(S.title(op), function()
      local before = count.total
      local seed = S.seed
      for _ = 1, S.rounds do
        if op.none then run_nondeterministic(op)
        elseif op.nresults == 0 then run_writing(op)
        elseif op.kind == "pointwise" then run_pointwise(op)
        elseif op.factory then run_factory(op)
        else run_structured(op)
        end
        -- Naive factorizations of large matrices take too long: spec/lua/linalg_spec.lua has large ones.
        if op.nresults > 0 and not S.small and op.family ~= "decompositions" then run_larger(op) end
        S.seed = S.seed + 1000
      end
      S.seed = seed
      count.check()
      assert.is_true(count.total > before or S.fraction < 1, "no case ran: the record needs samples")
    end)
  end

  it("ran", function()
    local text = "  %d forward cases (%d refused as they should, %d variants, %d fake, %d thread, %d level, %d exact)\n"
    io.write(text:format(count.total, count.refused, variants, fakes, threads, levels, exact))
    assert.is_true(count.total > 0)
  end)
end)
