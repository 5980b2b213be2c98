-- The samples of op records with sizes of 0 and 1, and with whole numbers that are 0, 1 or sizes: generated kernels
-- give what the calls give without compile, forward and backward, and stay in their buffers (MOTH_KERNEL_CHECK); plans
-- give its bits. Calls that are errors are left out. Many calls share a graph, as compilers are slow to start. MOTH_OP
-- picks ops, MOTH_CASES=1000 runs all of them.
local B = require "moth_lua"
local moth = require "moth"
local O = require "ops.support"
local kernels = require "kernel.kernels"
require "compile.support"
local toolchain = require "moth.utils.toolchain"
local ops = B.ops

local MANY = 150
local EVERY = (os.getenv("MOTH_OP") or tonumber(os.getenv("MOTH_CASES")) == 1000) and 1 or 48 -- of the graphs: one

local function is_float(t) return B.is_tensor(t) and B.tensor_dtype(t).is_floating_point end

-- ---- cases ------------------------------------------------------------------------------------------

-- The sizes above 1 of tensors among arguments, rising.
local function sizes_of(op, args)
  local seen, list = {}, {}
  O.map(op, args, function(t)
    for _, n in ipairs(B.size(t)) do
      if n > 1 and not seen[n] then
        seen[n] = true
        list[#list + 1] = n
      end
    end
    return t
  end)
  table.sort(list)
  return list
end

-- Calls fn(set) for each whole number v among arguments, lists and options included: set(args, v) puts another there.
local function each_integer(args, fn)
  local function visit(v, get)
    if type(v) == "number" and v == math.floor(v) then
      return fn(v, function(to, other)
        local t, k = get(to)
        t[k] = other
        return to
      end)
    end
    for key, part in pairs(type(v) == "table" and getmetatable(v) == nil and v or {}) do
      visit(part, function(from)
        local t, k = get(from)
        return t[k], key
      end)
    end
  end
  for i = 1, args.n do visit(args[i], function(from) return from, i end) end
end

-- The ways to make a sample's arguments with other sizes or numbers: functions, which make the same each time.
local function variants(op, text, seed)
  local function with(scale) return O.evaluate(text, { seed = seed, dtype = "float32", scale = scale }) end
  local function one() return 1 end
  local base, list = with(), {}
  local sizes = sizes_of(op, base)
  for _, n in ipairs(sizes) do
    for to = 0, 1 do
      local function make() return with(function(size) return size == n and to or size end) end
      list[#list + 1] = make
      each_integer(base, function(v, set)
        if v == n then list[#list + 1] = function() return set(make(), to) end end
      end)
    end
  end
  list[#list + 1] = function() return with(one) end
  list[#list + 1] = function() return with(function() return 0 end) end
  each_integer(base, function(_, set)
    for _, v in ipairs { 0, 1, sizes[1] or 0, -(sizes[#sizes] or 1) } do
      list[#list + 1] = function() return set(with(), v) end
      list[#list + 1] = function() return set(with(one), v) end
    end
  end)
  return list
end

-- Adds the results of a call between pointwise ones to `out`, and one of an operand, their neighbour in memory.
local function call(op, args, out)
  local given, beside = {}, nil
  for k = 1, args.n do
    local v = args[k]
    if is_float(v) and not (op.args[k] and op.args[k].mutated) then
      v = ops.add(ops.mul(v, 1), 0)
      beside = beside or v
    end
    given[k] = v
  end
  for _, r in ipairs { ops[op.name](unpack(given, 1, args.n)) } do
    if B.is_tensor(r) then out[#out + 1] = is_float(r) and ops.relu(ops.mul(r, 2)) or r end
  end
  if beside then out[#out + 1] = ops.tanh(beside) end
end

local function cases()
  local list = {}
  for _, op in ipairs(O.selected()) do
    local able = not op.internal and not op.name:find("^empty") and not op.name:find("^comm_")
    for i, text in ipairs(able and op.samples or {}) do
      for _, make in ipairs(variants(op, text, 50 + i)) do
        list[#list + 1] = { op = op, make = make, title = ("%s, sample %d %s"):format(op.name, i, text) }
      end
    end
  end
  return list
end

-- ---- running ----------------------------------------------------------------------------------------

-- A function of the calls of a list, and run(f): its results, arguments and their gradients.
local function program(list, grad)
  local made = {}
  local function f()
    local out = {}
    for i, c in ipairs(list) do call(c.op, made[i], out) end
    return unpack(out)
  end
  return f, function(g)
    for i, c in ipairs(list) do
      local args = c.make()
      made[i] = O.map(c.op, args, function(t, a)
        t = ops.clone(t)
        local differs = grad and is_float(t) and not (a and (a.mutated or not O.differentiable(c.op, a.name)))
        return differs and B.set_requires_grad(t, true) or t
      end)
      made[i].n = args.n
    end
    moth.manual_seed(7)
    local out, loss = { g() }, nil
    for _, t in ipairs(out) do
      if B.requires_grad(t) then loss = loss and loss + t:sum() or t:sum() end
    end
    if loss then loss:backward() end
    for i, t in ipairs(out) do out[i] = B.alias(t, false) end
    for i, c in ipairs(list) do
      O.map(c.op, made[i], function(t)
        out[#out + 1] = B.alias(t, false)
        out[#out + 1] = B.get_grad(t)
        return t
      end)
    end
    return out
  end
end

local function is_close(a, b, exact)
  local d = B.tensor_dtype(a)
  if d ~= B.tensor_dtype(b) or not moth.equal(moth.tensor(B.size(a)), moth.tensor(B.size(b))) then return false end
  if B.numel(a) == 0 then return true end
  if d.is_complex then a, b = moth.view_as_real(a), moth.view_as_real(b) end
  if moth.equal(a, b) then return true end
  if not is_float(a) then return false end
  local near = exact and 0 or d.itemsize == 2 and 1e-2 or 1e-4
  return moth.allclose(a, b, { rtol = near, atol = near / 10, equal_nan = true })
end

-- What is wrong with the calls of a list, compiled; nil: nothing.
local function wrong(list, backend, grad)
  local f, run = program(list, grad)
  local want, compiled = run(f), moth.compile(f, { backend = backend })
  for n = 1, 2 do
    local ok, got = pcall(run, compiled)
    if not ok then return tostring(got) end
    if #got ~= #want then return ("run %d: %d results, not %d"):format(n, #got, #want) end
    for i = 1, #want do
      if not is_close(got[i], want[i], backend == "blocks") then
        return ("run %d, result %d: %s\n--- eager: %s"):format(n, i, tostring(got[i]), tostring(want[i]))
      end
    end
  end
end

-- The same with the call at fault, if one is by itself.
local function blame(list, backend, grad)
  local why = wrong(list, backend, grad)
  if not why then return end
  for k = 1, #list > 1 and 2 or 0 do
    local half = math.floor(#list / 2)
    local found = blame({ unpack(list, k == 1 and 1 or half + 1, k == 1 and half or #list) }, backend, grad)
    if found then return found end
  end
  return ("%s … %s, %s, grad %s: %s"):format(list[1].title, list[#list].title, backend, tostring(grad), why)
end

local function check(list)
  for _, grad in ipairs { false, true } do
    local able = {}
    for _, c in ipairs(list) do
      if pcall(function()
        local f, run = program({ c }, grad)
        run(f)
      end) then able[#able + 1] = c end
    end
    for _, backend in ipairs { toolchain.cc() and "inductor" or nil, "blocks" } do
      assert.is_nil(blame(able, backend, grad))
    end
  end
  moth.compile.reset()
end

describe("sizes of 0 and 1 in generated kernels:", function()
  local all, number = cases(), 0
  for from = 1, #all, MANY do
    local list = { unpack(all, from, math.min(#all, from + MANY - 1)) }
    number = number + 1
    it(("%s … %s%s"):format(list[1].op.name, list[#list].op.name, number % EVERY == 0 and "" or " #slow"), function()
      kernels.with({ MOTH_KERNEL_CHECK = "1" }, function() check(list) end)
    end)
  end
end)
