-- Integers at their extremes, made from the records: every op that takes an integer dtype, on all pairs (or triples)
-- of its smallest and largest number, -1, 0 and 1. Nothing traps; the vector code, its tail and the code for strides
-- agree, as do compiled functions of both backends and the device that MOTH_DEVICE names. Values are compared with
-- Lua's int64 arithmetic.
local ffi = require "ffi"
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local ops = B.ops

local dtypes = { "int8", "uint8", "int16", "int32", "int64", "bool" }
local LOW = -0x7fffffffffffffffLL - 1

local function bounds(dtype)
  if dtype == "bool" then return 0LL, 1LL end
  if dtype == "uint8" then return 0LL, 255LL end
  local half = 2LL ^ (S.bits[dtype] - 2) * 2
  return dtype == "int64" and LOW or -half, dtype == "int64" and -(LOW + 1) or half - 1
end

local function extremes(dtype)
  local low, high = bounds(dtype)
  if dtype == "bool" then return { 0LL, 1LL } end
  return { low, high, low < 0 and -1LL or high - 1, 0LL, 1LL }
end

-- The number as one of the dtype: its lowest bits.
local function wrapped(x, dtype)
  local bits = S.bits[dtype] or 64
  if dtype == "bool" then return x ~= 0 and 1LL or 0LL end
  if bits == 64 then return x end
  local shift = 64 - bits
  x = bit.lshift(x, shift)
  return dtype == "uint8" and ffi.cast("int64_t", bit.rshift(x, shift)) or bit.arshift(x, shift)
end

local function filled(shape, dtype, list, step)
  local data, n = {}, S.product(shape)
  for i = 1, n do data[i] = list[math.floor((i - 1) / step) % #list + 1] end
  return S.make(shape, dtype, data)
end

local function elements(t) return ops.to(ops.contiguous(t), { dtype = moth.int64, device = "cpu" }) end

-- Long enough for two vectors of 64 bytes and a tail; 125 triples of five.
local LENGTH = 253
local made = {}
local function operand(dtype, k)
  local key, list = dtype .. k, extremes(dtype)
  made[key] = made[key] or filled({ LENGTH }, dtype, list, (#list) ^ (k - 1))
  return made[key]
end

-- The arguments of a pointwise op: k-th tensor by k; numbers as in the sample, whole ones.
local function pointwise_arguments(op, dtype)
  local args, k = S.evaluate(op.samples[1], { integers = true }), 0
  return S.map(op, args, function(_, a)
    k = k + 1
    return operand(a and op.cond == a.name and "bool" or dtype, k)
  end)
end
local function structured_arguments(op, sample, dtype)
  local k = 0
  return S.map(op, S.evaluate(sample, { integers = true }), function(t)
    if S.dtype_of(t) ~= "float64" then return t end
    k = k + 1
    return filled(B.size(t), dtype, extremes(dtype), k)
  end)
end

local function pack(...) return { n = select("#", ...), ... } end
local function call(op, args)
  local out = pack(pcall(ops[op.name], unpack(args, 1, args.n)))
  if not out[1] then return nil, out[2] end
  table.remove(out, 1)
  return out
end

-- Every second element of a tensor twice as long: code for strides.
local function strided(t) return ops.select(ops.stack({ t, ops.ones_like(t) }, -1), -1, 1) end

local function tensors_only(op)
  if op.draws or op.factory or op.kind == "effect" or op.kind == "factory" or op.kind == "random" then return false end
  if op.name:find("empty", 1, true) or op.name:find("^comm_") or op.name == "as_strided" then return false end
  return not (op.writes and #op.writes > 0)
end

--- The cases of a dtype: { op, args, results }.
local function cases_of(dtype)
  local list = {}
  for _, op in ipairs(S.selected()) do
    if tensors_only(op) and op.samples[1] then
      local texts = op.kind == "pointwise" and { false } or op.samples
      for _, sample in ipairs(texts) do
        local args = sample and structured_arguments(op, sample, dtype) or pointwise_arguments(op, dtype)
        local results = call(op, args)
        if results then list[#list + 1] = { op = op, args = args, results = results, sample = sample } end
      end
    end
  end
  return list
end

local function differs(case, other)
  for i = 1, #case.results do
    local want, got = case.results[i], other[i]
    if B.is_tensor(want) then
      if S.dtype_of(want) ~= S.dtype_of(got) then return "dtype " .. S.dtype_of(got) end
      if S.class[S.dtype_of(want)] == "float" then
        local why = S.compare(S.values(got), S.values(want), S.dtype_of(want), { 1e-5, 1e-5 })
        if why then return why end
      elseif S.bytes(want) ~= S.bytes(got) then
        local a, b = S.values(want), S.values(got)
        for k = 1, #a do
          if a[k] ~= b[k] then return ("element %d is %s, not %s"):format(k, tostring(b[k]), tostring(a[k])) end
        end
        return "other numbers"
      end
    end
  end
end

-- What ops of one and two numbers are in int64. Quotients by 0 are 0.
local reference = {
  add = function(a, b) return a + b end, sub = function(a, b) return a - b end, mul = function(a, b) return a * b end,
  fmod = function(a, b) return b == 0 and 0LL or b == -1 and 0LL or a % b end,
  remainder = function(a, b)
    if b == 0 or b == -1 then return 0LL end
    local r = a % b
    return r ~= 0 and (r < 0) ~= (b < 0) and r + b or r
  end,
  floor_divide = function(a, b)
    if b == 0 then return 0LL end
    if b == -1 then return -a end
    local q, r = a / b, a % b
    return r ~= 0 and (r < 0) ~= (b < 0) and q - 1 or q
  end,
  gcd = function(a, b)
    local x, y = ffi.cast("uint64_t", a < 0 and -a or a), ffi.cast("uint64_t", b < 0 and -b or b)
    while y ~= 0 do x, y = y, x % y end
    return ffi.cast("int64_t", x)
  end,
  neg = function(a) return -a end, abs = function(a) return a < 0 and -a or a end,
  square = function(a) return a * a end, bitwise_not = bit.bnot,
  bitwise_and = bit.band, bitwise_or = bit.bor, bitwise_xor = bit.bxor,
  maximum = function(a, b) return a > b and a or b end, minimum = function(a, b) return a < b and a or b end,
}

describe("integers at their extremes", function()
  for _, dtype in ipairs(dtypes) do
    local cases
    it(dtype .. ": all code paths agree", function()
      cases = cases_of(dtype)
      local failures = {}
      for _, case in ipairs(cases) do
        local other = call(case.op, S.map(case.op, case.args, strided))
        local why = other and differs(case, other)
        if not why and S.device ~= "cpu" then
          local function on_cpu(t) return ops.to(t, { device = "cpu" }) end
          local here = call(case.op, S.map(case.op, case.args, on_cpu))
          why = here and differs(case, here)
        end
        if why then failures[#failures + 1] = case.op.name .. ": " .. why end
        local want = reference[case.op.name]
        if want and dtype ~= "bool" and not case.sample then
          local a, b = elements(case.args[1]), elements(case.args[2] or case.args[1])
          local r = elements(case.results[1])
          local p, q, z = ffi.cast("int64_t*", B.pointer(a)), ffi.cast("int64_t*", B.pointer(b)),
            ffi.cast("int64_t*", B.pointer(r))
          for i = 0, LENGTH - 1 do
            local v = wrapped(want(p[i], q[i]), dtype)
            if v ~= z[i] then
              failures[#failures + 1] = ("%s(%s, %s) is %s, not %s"):format(case.op.name, tostring(p[i]),
                tostring(q[i]), tostring(z[i]), tostring(v))
            end
          end
        end
      end
      assert(#failures == 0, table.concat(failures, "\n"))
    end)

    for _, backend in ipairs { "blocks", "inductor" } do
      it(dtype .. ": compiled by " .. backend .. " they are what they are eagerly", function()
        local failures, chosen = {}, {}
        for _, case in ipairs(cases) do
          if case.op.kind == "pointwise" then chosen[#chosen + 1] = case end
        end
        local inputs, place = {}, {} -- the tensors of all calls are inputs, each once
        for _, case in ipairs(chosen) do
          S.map(case.op, case.args, function(t)
            if not place[t] then
              inputs[#inputs + 1] = t
              place[t] = #inputs
            end
            return t
          end)
        end
        for first = 1, #chosen, 40 do
          local function all(...)
            local given, out = { ... }, {}
            for i = first, math.min(first + 39, #chosen) do
              local case = chosen[i]
              local args = S.map(case.op, case.args, function(t) return given[place[t]] end)
              out[#out + 1] = ops[case.op.name](unpack(args, 1, args.n))
            end
            return unpack(out)
          end
          local results = { moth.compile(all, { backend = backend })(unpack(inputs)) }
          for i, got in ipairs(results) do
            local case = chosen[first + i - 1]
            local why = differs(case, { got })
            if why then failures[#failures + 1] = case.op.name .. ": " .. why end
          end
        end
        assert(#failures == 0, table.concat(failures, "\n"))
      end)
    end
  end

  it("arange and randint reach both ends of int64", function()
    if S.device ~= "cpu" then return end
    local low, high, int64 = LOW, -(LOW + 1), { dtype = moth.int64 }
    local function is(want, t)
      local p = ffi.cast("int64_t*", B.pointer(elements(t)))
      assert.equal(#want, t:numel())
      for i, v in ipairs(want) do assert(p[i - 1] == v, tostring(p[i - 1])) end
    end
    is({ high - 3, high - 2, high - 1 }, moth.arange(high - 3, high, 1, int64))
    is({ low, low + 1, low + 2 }, moth.arange(low, low + 3, 1, int64))
    is({ low, -1LL, high - 1 }, moth.arange(low, high, high, int64))
    is({ high, -1LL }, moth.arange(high, low, low, int64))
    is({ high - 1, high - 1 }, moth.randint(high - 1, high, { 2 }, int64))
    assert.error_matches(function() moth.arange(low, high, 1, int64) end, "more than 9e18 elements")
    assert.error_matches(function() moth.randint(-129, 3, { 2 }, { dtype = moth.int8 }) end, "low is %-129")
    assert.matches("9223372036854775806", tostring(moth.arange(high - 1, high, 1, int64)))
    assert.matches("%-9223372036854775808", tostring(moth.arange(low, low + 1, 1, int64)))
  end)

  it("norms of integers are those of the numbers", function()
    local x = moth.tensor({ -128, 127, 3 }, { dtype = moth.int8, device = S.device })
    assert.near(math.sqrt(128 ^ 2 + 127 ^ 2 + 9), x:norm():item(), 1e-3)
    assert.equal(258, x:norm(1):item())
    assert.equal(128, x:norm(math.huge):item())
  end)
end)
