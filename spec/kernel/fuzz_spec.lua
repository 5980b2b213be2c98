-- Random kernels: control flow, whose source runs as plain Lua over a model of blocks, interpreted, compiled,
-- and on CUDA where it is; and blocks of two dimensions, interpreted, compiled and on CUDA. Integers only, so that the
-- results are equal. MOTH_SEED and MOTH_CASES say which and how many.
local kernels = require "kernel.kernels"
local moth = require "moth"

local N = 8 -- elements of a block

-- ---- the model: tl for plain Lua ----------------------------------------------------------------

local Block = {}
Block.__index = Block
local function block(f)
  local b = setmetatable({}, Block)
  for i = 1, N do b[i] = f(i) end
  return b
end
local function at(x, i)
  if type(x) == "table" then return x[i] end
  return x
end
local function lift(f)
  return function(x, y)
    if type(x) ~= "table" and type(y) ~= "table" then return f(x, y) end
    return block(function(i) return f(at(x, i), at(y, i)) end)
  end
end
Block.__add, Block.__sub = lift(function(x, y) return x + y end), lift(function(x, y) return x - y end)
Block.__mul, Block.__mod = lift(function(x, y) return x * y end), lift(function(x, y) return x % y end)
Block.__unm = function(x) return block(function(i) return -x[i] end) end

local function model(out)
  local tl = {}
  function tl.arange(lo) return block(function(i) return lo + i - 1 end) end
  tl.lt, tl.le = lift(function(x, y) return x < y end), lift(function(x, y) return x <= y end)
  tl.eq = lift(function(x, y) return x == y end)
  tl.maximum, tl.minimum = lift(math.max), lift(math.min)
  tl.floordiv = lift(function(x, y) return math.floor(x / y) end)
  tl.logical_and = lift(function(x, y) return x and y end)
  function tl.where(c, x, y)
    if type(c) ~= "table" and type(x) ~= "table" and type(y) ~= "table" then
      if c then return x else return y end
    end
    return block(function(i) if at(c, i) then return at(x, i) end return at(y, i) end)
  end
  function tl.sum(x)
    local s = 0
    for i = 1, N do s = s + x[i] end
    return s
  end
  function tl.max(x) return math.max(unpack(x)) end
  function tl.argmax(x)
    local best = 1
    for i = 2, N do if x[i] > x[best] then best = i end end
    return best - 1
  end
  function tl.cumsum(x)
    local s = 0
    return block(function(i)
      s = s + x[i]
      return s
    end)
  end
  function tl.load(p, mask)
    local f = function(i)
      if mask == nil or at(mask, i) then return out[at(p, i)] end
      return 0
    end
    return type(p) == "table" and block(f) or f(1)
  end
  function tl.store(p, v, mask)
    if type(p) ~= "table" then out[p] = v return end
    for i = 1, N do if mask == nil or at(mask, i) then out[p[i]] = at(v, i) end end
  end
  return tl
end

-- ---- random sources -----------------------------------------------------------------------------

local function generator(seed)
  local state = seed
  local function random(n) -- 1 … n
    state = (state * 16807) % 2147483647
    return math.floor(state / 2147483647 * n) + 1
  end
  local function one(list) return list[random(#list)] end
  local g = { lines = {}, depth = 0, loops = 0 }

  local scalar, mask

  local function number() return tostring(random(9) - 4) end
  function scalar(d)
    local k = d <= 0 and random(3) or random(9)
    if k == 1 then return number() end
    if k <= 3 then return one { "a", "b", "c", "n" } end
    if k == 4 then return ("(%s %s %s)"):format(scalar(d - 1), one { "+", "-", "*" }, scalar(d - 1)) end
    if k == 5 then return ("(%s) %% %d"):format(scalar(d - 1), random(7) + 1) end
    if k == 6 then return ("tl.%s(%s, %s)"):format(one { "maximum", "minimum" }, scalar(d - 1), scalar(d - 1)) end
    if k == 7 then return ("tl.%s(%s)"):format(one { "sum", "max", "argmax" }, g.block(d - 1)) end
    if k == 8 then return ("helper(%s, %s)"):format(scalar(d - 1), scalar(d - 1)) end
    return ("tl.floordiv(%s, %d)"):format(scalar(d - 1), random(5) + 1)
  end
  function mask(d)
    local text = ("tl.%s(%s, %s)"):format(one { "lt", "le", "eq" }, g.block(d - 1), random(2) == 1 and scalar(d - 1)
      or g.block(d - 1))
    if d > 1 and random(3) == 1 then text = ("tl.logical_and(%s, %s)"):format(text, mask(d - 1)) end
    return text
  end
  function g.block(d)
    local k = d <= 0 and random(3) or random(8)
    if k <= 2 then return one { "u", "v" } end
    if k == 3 then return "i" end
    if k == 4 then return ("(%s %s %s)"):format(g.block(d - 1), one { "+", "-", "*" }, g.block(d - 1)) end
    if k == 5 then return ("(%s %s %s)"):format(g.block(d - 1), one { "+", "-", "*" }, scalar(d - 1)) end
    if k == 6 then return ("tl.where(%s, %s, %s)"):format(mask(d - 1), g.block(d - 1), scalar(d - 1)) end
    if k == 7 then return ("tl.cumsum((%s) %% 5)"):format(g.block(d - 1)) end
    return ("tl.load(out + (%s) %% 16)"):format(g.block(d - 1))
  end
  local function condition(d)
    local text = ("%s %s %s"):format(scalar(d), one { "<", "<=", ">", ">=", "==", "~=" }, scalar(d))
    if random(4) == 1 then text = ("%s %s %s"):format(text, one { "and", "or" }, condition(d)) end
    if random(6) == 1 then text = ("not (%s)"):format(text) end
    return text
  end
  local function put(text, ...)
    g.lines[#g.lines + 1] = ("  "):rep(g.depth + 1) .. (select("#", ...) > 0 and text:format(...) or text)
  end
  local statements
  local function statement(budget, in_loop)
    local k = random(budget > 0 and 12 or 6)
    if k <= 2 then put("%s = (%s) %% 1009", one { "a", "b", "c" }, scalar(2))
    elseif k <= 4 then put("%s = (%s) %% 1009", one { "u", "v" }, g.block(2))
    elseif k == 5 then put("tl.store(out + (%s) %% 16, %s, %s)", "i", g.block(1), mask(1))
    elseif k == 6 then
      if random(2) == 1 then put("tl.store(out + (%s) %% 16, %s)", scalar(1), scalar(1))
      else put("a, b = b, (%s) %% 1009", scalar(1)) end
    elseif k <= 8 then
      put("if %s then", condition(1))
      statements(budget - 1, in_loop)
      if random(2) == 1 then
        put "else"
        statements(budget - 1, in_loop)
      end
      put "end"
    elseif k == 9 and in_loop then
      put("if %s then break end", condition(1))
    elseif k == 10 then
      put("c = (%s) and %s or %s", condition(1), scalar(1), scalar(1))
    elseif k == 11 and g.loops < 3 then
      g.loops = g.loops + 1
      local w = "w" .. g.loops
      put("local %s = %d", w, random(4))
      put("while %s > 0 do", w)
      put("  %s = %s - 1", w, w)
      statements(budget - 1, true)
      put "end"
    elseif g.loops < 3 then
      g.loops = g.loops + 1
      put("for k%d = %s, %s do", g.loops, scalar(0) .. " % 3", scalar(0) .. " % 6, " .. one { "1", "2" })
      local name = "k" .. g.loops
      put("  a = (a + %s) %% 1009", name)
      statements(budget - 1, true)
      put "end"
    end
  end
  function statements(budget, in_loop)
    g.depth = g.depth + 1
    for _ = 1, random(3) do statement(budget, in_loop) end
    g.depth = g.depth - 1
  end
  for _ = 1, 3 do statements(3, false) end
  return ([[
local tl = ...
local function helper(x, y)
  if x > y then return x - y end
  return (x + 2 * y) %% 17
end
return function(out, n)
  local i = tl.arange(0, 8)
  local a, b, c, u, v = n, 3, 0, i * 2, i - n
%s
  tl.store(out + 16, a)
  tl.store(out + 17, b)
  tl.store(out + 18, c)
  tl.store(out + 20 + i, u)
  tl.store(out + 30 + i, v)
end]]):format(table.concat(g.lines, "\n"))
end

-- Blocks of two dimensions: reductions, views, products, memory that is written and read again.
local function blocks_generator(seed)
  local state = seed
  local function random(n)
    state = (state * 16807) % 2147483647
    return math.floor(state / 2147483647 * n) + 1
  end
  local function one(list) return list[random(#list)] end
  local M, K = one { 1, 2, 4, 5 }, one { 1, 3, 4, 8 }
  local dtype = one { "float32", "int64", "float64", "int32" }
  local lines = {}
  local function put(text, ...) lines[#lines + 1] = text:format(...) end
  local full, row, column, mask

  function row(d) -- [K]
    local k = d <= 0 and random(3) or random(9)
    if k == 1 then return "c" end
    if k <= 3 then return "q" end
    if k == 4 then return ("tl.%s(%s, 1)"):format(one { "sum", "max", "min", "argmax" }, full(d - 1)) end
    if k == 5 then return ("(%s %s %s)"):format(row(d - 1), one { "+", "-", "*" }, row(d - 1)) end
    if k == 6 then return ("tl.cumsum((%s) %% 5)"):format(row(d - 1)) end
    if k == 7 then return ("tl.load(x + (%s) %% SIZE)"):format("(" .. row(d - 1) .. "):to(tl.int64)") end
    if k == 8 then return ("tl.%s(q + c * 2)"):format(one { "abs", "relu", "square" }) end
    return ("tl.where(%s < %s, %s, 7)"):format(row(d - 1), row(d - 1), row(d - 1))
  end
  function column(d) -- [M, 1]
    local k = random(d <= 0 and 2 or 4)
    if k == 1 then return "r" end
    if k == 2 then return "tl.expand(s, 2)" end
    if k == 3 then return ("tl.%s(%s, 2, true)"):format(one { "sum", "max", "min" }, full(d - 1)) end
    return ("(%s %s %s)"):format(column(d - 1), one { "+", "*" }, column(d - 1))
  end
  function mask(d) return ("%s %s %s"):format(full(d), one { "<", "<=", "==" }, one { row, column, full }(d)) end
  function full(d) -- [M, K]
    local k = d <= 0 and random(3) or random(13)
    if k <= 2 then return one { "u", "v" } end
    if k == 3 then return "(r * 3 + c)" end
    if k == 4 then
      return ("(%s %s %s)"):format(full(d - 1), one { "+", "-", "*" }, one { row, column, full }(d - 1))
    end
    if k == 5 then return ("tl.trans(tl.trans(%s) + s)"):format(full(d - 1)) end
    if k == 6 then return ("tl.cumsum((%s) %% 7, { dim = %d, reverse = %s })"):format(full(d - 1), random(2),
      one { "true", "false" }) end
    if k == 7 then return ("tl.load(x + at, { mask = %s, other = -3 })"):format(mask(d - 1)) end
    if k == 8 then return ("tl.reshape(tl.reshape(%s, { K, M }) + s, { M, K })"):format(full(d - 1)) end
    if k == 9 then return ("tl.where(%s, %s, %s)"):format(mask(d - 1), full(d - 1), row(d - 1)) end
    if k == 10 then
      return ("tl.dot((%s) %% 5, tl.dot(tl.trans((%s) %% 3), (%s) %% 4))"):format(full(d - 1), full(d - 1), full(d - 1))
    end
    if k == 11 then return ("tl.load(x + (at * 3 + %d) %% SIZE)"):format(random(5)) end
    if k == 12 then return ("tl.maximum(%s, %s)"):format(full(d - 1), row(d - 1)) end
    return ("tl.broadcast_to(%s, { M, K })"):format(one { row, column }(d - 1))
  end
  local function statements(n, indent)
    for _ = 1, n do
      local k = random(indent < 2 and 9 or 7)
      local pad = ("  "):rep(indent + 1)
      if k <= 2 then put("%s%s = (%s) %% 1009", pad, one { "u", "v" }, full(2))
      elseif k == 3 then put("%sq = (%s) %% 1009", pad, row(2))
      elseif k == 4 then put("%ss = (tl.%s(%s, 2)) %% 1009", pad, one { "sum", "max", "argmin" }, full(1))
      elseif k == 5 then put("%stl.store(x + at, (%s) %% 1009, %s)", pad, full(1), mask(1))
      elseif k == 6 then put("%stl.store(x + (at + %d) %% SIZE, (%s) %% 1009)", pad, random(4), full(1))
      elseif k == 7 then put("%stl.store(x + c, (%s) %% 1009)", pad, row(1))
      elseif k == 8 then
        put("%sfor k%d = 0, %d do", pad, indent, random(3) - 1)
        statements(2, indent + 1)
        put("%send", pad)
      else
        put("%sif tl.sum(%s) > %d then", pad, full(1), random(100))
        statements(2, indent + 1)
        if random(2) == 1 then
          put("%selse", pad)
          statements(1, indent + 1)
        end
        put("%send", pad)
      end
    end
  end
  statements(6, 0)
  return ([[
local tl = ...
local M, K, SIZE = %d, %d, %d
return function(x)
  local r, c = tl.expand(tl.arange(0, M), 2), tl.arange(0, K)
  local at = r * K + c
  local u, v = tl.load(x + at), tl.load(x + at + 1)
  local q, s = tl.load(x + c), tl.arange(0, M) * 2
%s
  tl.store(x + SIZE + at, u)
  tl.store(x + SIZE + M * K + at, v)
  tl.store(x + SIZE + 2 * M * K + c, q)
  tl.store(x + SIZE + 2 * M * K + K + tl.arange(0, M), s)
end]]):format(M, K, M * K + 1, table.concat(lines, "\n")), dtype, 3 * M * K + 1 + K + M
end

-- ---- comparison ---------------------------------------------------------------------------------

local SIZE = 40

local function by_model(source, n)
  local out = setmetatable({}, { __add = function(_, k) return k end })
  for k = 0, SIZE - 1 do rawset(out, k, 0) end
  assert(loadstring(source))(model(out))(out, n)
  local list = {}
  for k = 0, SIZE - 1 do list[k + 1] = out[k] end
  return list
end

local function by_kernel(k, n, device)
  local out = moth.zeros({ SIZE }, { dtype = moth.int64, device = device })
  k{ 1 }(out, n)
  return out:totable()
end

-- Runs f compiled, and interpreted; of every other seed with the check of accesses to memory.
local function both(seed, f)
  kernels.with({ MOTH_KERNEL_CHECK = tostring(seed % 2) }, function() kernels.both(f) end)
end

describe("random kernels", function()
  local first, count = tonumber(os.getenv "MOTH_SEED") or 1, tonumber(os.getenv "MOTH_CASES") or 150
  it("give what the same source gives as plain Lua", function()
    local refused = 0
    for seed = first, first + count - 1 do
      local source = generator(seed * 7919)
      local f = assert(loadstring(source, "=kernel"))(moth.kernel.lang)
      local ok, k = pcall(moth.kernel.jit, f)
      assert.is_true(ok, tostring(k) .. "\n" .. source)
      for _, n in ipairs { 5, 0, 1 } do
        local expected = by_model(source, n)
        local function check(way)
          local ran, got = pcall(by_kernel, k, n, way == "cuda" and "cuda" or "cpu")
          if not ran and tostring(got):find "the kernel is too long" then
            refused = refused + 1
          else
            assert.is_true(ran, tostring(got) .. "\n" .. source)
            assert.same(expected, got, ("seed %d, %s, n = %d\n%s"):format(seed, way, n, source))
          end
        end
        if seed % 5 == 0 then
          both(seed / 5, check)
          if moth.cuda.is_available() then check "cuda" end
        else
          kernels.with({ MOTH_KERNEL_INTERPRET = "1" }, function() check "interpreted" end)
        end
      end
    end
    assert.is_true(refused < count / 10)
  end)

  it("on blocks of two dimensions give the same compiled and interpreted", function()
    for seed = first, first + math.ceil(count / 4) - 1 do
      local source, dtype, size = blocks_generator(seed * 7919)
      local k = moth.kernel.jit(assert(loadstring(source, "=kernel"))(moth.kernel.lang))
      local start = {}
      for i = 1, size do start[i] = (i * seed) % 13 - 4 end
      local expected
      local function check(way)
        local x = moth.tensor(start, { dtype = moth[dtype], device = way == "cuda" and "cuda" or "cpu" })
        local ran, message = pcall(k{ 1 }, x)
        assert.is_true(ran, tostring(message) .. "\n" .. source)
        expected = expected or x:totable()
        assert.same(expected, x:cpu():totable(), ("seed %d, %s, %s\n%s"):format(seed, way, dtype, source))
      end
      both(seed, check)
      if moth.cuda.is_available() and seed % 5 == 0 then check "cuda" end
    end
  end)
end)
