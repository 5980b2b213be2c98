-- How kernels are read: control flow, what is refused, and that broken bytecode is never believed.
local bytecode = require "moth.kernel.bytecode"
local fails = require "fails"
local moth = require "moth"
local kernels = require "kernel.kernels"
local both = kernels.both
local tl = moth.kernel.lang
local jit = moth.kernel.jit

-- What a kernel of one program writes into n numbers.
local function written(k, n, ...)
  local out = moth.zeros({ n }, { dtype = moth.float64 })
  k{ 1 }(out, ...)
  return out:totable()
end

local function helper(x, y) return x + y, x - y end
local function uneven(x) if x > 3 then return x, 1 end return x end
local function choose(x) if x > 3 then return x * 2 end return -x end

describe("control flow of a kernel", function()
  it("loops with variables whose types grow #M158", function()
    local k = jit(function(out, n)
      local sum, block = 0, 0
      for i = 1, n do
        sum = sum + i / 2
        block = block + tl.arange(0, 4) * i
        for j = n, i, -2 do sum = sum + j end
      end
      tl.store(out, sum)
      tl.store(out + 1 + tl.arange(0, 4), block)
    end)
    both(function(way)
      for _, n in ipairs { 0, 1, 5 } do
        local sum, b = 0, 0
        for i = 1, n do
          sum, b = sum + i / 2, b + i
          for j = n, i, -2 do sum = sum + j end
        end
        assert.same({ sum, 0, b, 2 * b, 3 * b }, written(k, 5, n), way)
      end
    end)
  end)

  it("swaps variables of a loop, blocks too", function()
    local k = jit(function(out, n)
      local a, b, c, d = 0, 1, tl.arange(0, 3), tl.arange(0, 3) * 10
      for _ = 1, n do
        a, b = b, a + b
        c, d = d, c + d
      end
      tl.store(out, a)
      tl.store(out + 1 + tl.arange(0, 3), c)
    end)
    both(function(way) assert.same({ 55, 0, 34 + 55 * 10, 2 * (34 + 550) }, written(k, 4, 10), way) end)
  end)

  it("branches on scalars, with and without else, and returns early", function()
    local k = jit(function(out, n)
      local x = 1
      if n > 10 then
        x = 2
        tl.store(out + 1, 7)
      elseif n > 5 then
        x = 3.5
      end
      if n == 3 or n == 4 and x < 2 then tl.store(out + 2, 9) end
      if n < 0 then return end
      tl.store(out, x)
      tl.store(out + 3, n > 5 and n < 20 and 1 or n > 2 and 2 or 3)
    end)
    both(function(way)
      assert.same({ 2, 7, 0, 1 }, written(k, 4, 11), way)
      assert.same({ 3.5, 0, 0, 1 }, written(k, 4, 6), way)
      assert.same({ 1, 0, 9, 2 }, written(k, 4, 3), way)
      assert.same({ 1, 0, 0, 3 }, written(k, 4, 1), way)
      assert.same({ 0, 0, 0, 0 }, written(k, 4, -1), way)
      assert.same({ 2, 7, 0, 2 }, written(k, 4, 25), way)
    end)
  end)

  it("has while, repeat and break", function()
    local k = jit(function(out, n, limit)
      local lo, hi = 0, n
      while lo < hi do
        local mid = tl.floordiv(lo + hi, 2)
        if mid * mid < n then lo = mid + 1 else hi = mid end
      end
      tl.store(out, lo)
      local steps = 0
      repeat
        steps = steps + 1
        n = tl.where(n % 2 == 0, tl.floordiv(n, 2), 3 * n + 1)
      until n == 1
      tl.store(out + 1, steps)
      local found = -1
      for i = 0, 100 do
        if i * i > limit then
          found = i
          break
        end
        tl.store(out + 2, i)
      end
      tl.store(out + 3, found)
    end)
    both(function(way) assert.same({ 6, 111, 7, 8 }, written(k, 4, 27, 50), way) end)
  end)

  it("returns out of loops, also where nothing else ends them", function()
    local k = jit(function(out, n)
      local i, steps = 0, 0
      while true do
        i = i + 1
        for j = 1, i do
          if i * j == n then
            tl.store(out, i)
            tl.store(out + 1, steps)
            return
          end
          steps = steps + 1
        end
        if i > 100 then
          repeat
            i = i - 1
            if i < 50 then return end
          until false
        end
      end
    end)
    both(function(way)
      assert.same({ 4, 8 }, written(k, 2, 12), way)
      assert.same({ 0, 0 }, written(k, 2, 101 * 103), way)
    end)
  end)

  it("calls other functions, with several results and early returns", function()
    local k = jit(function(out, n)
      local s, d = helper(n, 2)
      tl.store(out, s)
      tl.store(out + 1, d)
      tl.store(out + 2, choose(n))
      tl.store(out + 3, choose(d))
      tl.store(out + 4, math.max(n, choose(7)))
    end)
    both(function(way) assert.same({ 6, 2, 8, -2, 14 }, written(k, 5, 4), way) end)
  end)

  it("unrolls static_range, and decides on constants when it compiles", function()
    local k = jit(function(out, N, KIND)
      local total = tl.zeros({ 4 })
      for i in tl.static_range(0, N) do
        if i ~= 1 then total = total + tl.arange(0, 4) * i end
      end
      if KIND == "sum" then tl.store(out, tl.sum(total)) else tl.store(out, tl.max(total)) end
      tl.static_assert(N < 10, "N is too large")
    end, { constexpr = { "N", "KIND" } })
    both(function(way)
      assert.same({ 30 }, written(k, 1, 4, "sum"), way)
      assert.same({ 15 }, written(k, 1, 4, { KIND = "max" }), way)
    end)
    fails("reader_spec.lua:%d+: .*N is too large", written, k, 1, 11, "sum")
  end)

  it("joins masks by and, or and not #M141", function()
    local k = jit(function(out, n)
      local i = tl.arange(0, 16)
      local m = i >= 2 and i < n and not (i == 5) or -- luacheck: ignore
        i == 15
      tl.store(out + i, 1, { mask = m })
      local v = (i < 3) and 10 or 20
      tl.store(out + i, v, i < 4)
    end)
    both(function(way)
      assert.same({ 10, 10, 10, 20, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1 }, written(k, 16, 8), way)
    end)
  end)

  it("reads a function whose debug information was stripped", function()
    local f = loadstring(string.dump(loadstring [[
      local tl = require("moth").kernel.lang
      return function(out, n, B) tl.store(out + tl.arange(0, B), tl.arange(0, B) * n) end]], true))()
    both(function(way) assert.same({ 0, 3, 6 }, written(jit(f, { constexpr = { 3 } }), 3, 3, 3), way) end)
    assert.same({ 0, 3, 6 }, written(jit(f, { params = { "out", "n", "B" }, constexpr = { "B" } }), 3, 3, { B = 3 }))
    fails("its names were stripped: give `params`, or positions", jit, f, { constexpr = { "B" } })
  end)
end)

describe("a kernel that is wrong", function()
  local n = 0 -- luacheck: ignore
  local state = {}
  -- { pattern of the message, function }: at jit.
  local early = {
    { "writing to an outer variable", function(x) n = x end },
    { "writing to a global variable", function(x) a_global = x end }, -- luacheck: ignore
    { "there is no variable 'undefined_function'", function(x) undefined_function(x) end }, -- luacheck: ignore
    { "`...`", function(...) tl.store(..., 1) end },
    { "a function inside the kernel", function(x) local f = function() return x end return f() end },
    { "tl has no 'laod'; did you mean 'load'", function(x) tl.laod(x) end },
    { "'pcall' is no function that a kernel calls", function(x) pcall(tl.load, x) end },
    { "'setfenv' is no function that a kernel calls", function(x) setfenv(1, x) end },
    { "'error' is no function", function() error("no", 2) end },
    { "the length operator", function(x) tl.store(x, #x) end },
    { "joining strings", function(x) tl.store(x, "a" .. x) end },
    { "'state' is a table: of outer variables a kernel reads", function(x) tl.store(x, state.a) end },
    { "tl is written to", function() tl.load = 1 end },
  }
  for i, case in ipairs(early) do
    it("is refused when it is made: " .. case[1], function()
      local line = debug.getinfo(case[2], "S").linedefined
      local message = tostring(fails(case[1]:gsub("[%.%(%)%-%%%[%]]", "%%%0"), jit, case[2]))
      assert.matches("reader_spec.lua:" .. line .. ": %[kernel%]", message, i)
    end)
  end

  local out = moth.zeros(8)
  -- { message, function, arguments… }: when it is compiled.
  local late = {
    { "`if`, `while`, `and` and `or` on a block [8]", function(x)
      local i = tl.arange(0, 8)
      if i > 3 then tl.store(x + i, 1) end
    end },
    { "on a block [8]", function(x)
      local i = tl.arange(0, 8)
      if i > 3 then i = i + 1 end
      tl.store(x + i, 1)
    end },
    { "`break` and `goto` leave the innermost loop only", function(x)
      for i in tl.static_range(0, 3) do
        if tl.program_id(0) > 2 then break end
        tl.store(x, i)
      end
    end },
    { "'stop' is a constant of the kernel, an integer; got an integer; declare its parameter in `constexpr`",
      function(x, m) tl.store(x + tl.arange(0, m), 1) end, 4 },
    { "blocks of shapes [4] and [8] do not go together", function(x)
      tl.store(x, tl.sum(tl.arange(0, 4) + tl.arange(0, 8)))
    end },
    { "expected a pointer (a tensor of the launch, plus offsets), got an integer",
      function(x, m) tl.store(m, x) end, 4 },
    { "an offset of a pointer is an integer, got float32 [8]", function(x) tl.store(x + tl.arange(0, 8) / 2, 1) end },
    { "a pointer takes + and - of integers", function(x) tl.store(x * 2, 1) end },
    { "'mask' is missing|has no option 'msk'; did you mean 'mask'", function(x) tl.load(x, { msk = 1 }) end },
    { "tl.store(pointer, value, mask?): 'value' is missing", function(x) tl.store(x) end },
    { "takes 3 arguments, got 4", function(x) tl.store(x, 1, true, 2) end },
    { "dim 3 of", function(x) tl.store(x, tl.sum(tl.zeros({ 2, 2 }), 3)) end },
    { "dim 0 of float32 [2, 2]: dimensions count from 1", function(x) tl.store(x, tl.sum(tl.zeros({ 2, 2 }), 0)) end },
    { "expected blocks [M, K] and [K, N], got float32 [2, 3] and float32 [2, 3]", function(x)
      tl.store(x, tl.sum(tl.dot(tl.zeros({ 2, 3 }), tl.zeros({ 2, 3 }))))
    end },
    { "a kernel returns nothing", function(x) return x end },
    { "the step of a loop is a constant integer", function(x, m) for i = 1, 5, m do tl.store(x, i) end end, 2 },
    { "a loop runs over integers", function(x, m) for i = 1, m do tl.store(x, i) end end, 2.5 },
    { "this loop never ends", function(x) while true do tl.store(x, 1) end end },
    { "'uneven' returns more values on one way than on another", function(x, m) tl.store(x, (uneven(m))) end, 2 },
    { "`other` stands where the mask is false", function(x) tl.store(x, tl.load(x, { other = 1 })) end },
    { "is a number or nil|'y' here is|depending on what happens before", function(x, m)
      local y
      if m > 3 then y = x end
      tl.store(x, y)
    end, 2 },
    { "float32 [4] has no method 'foo'", function(x) tl.store(x, tl.zeros({ 4 }):foo()) end },
    { "every number counts as true in Lua", function(x) if tl.arange(0, 4) then tl.store(x, 1) end end },
    { "has more than 1048576 elements", function(x) tl.store(x, tl.sum(tl.zeros({ 2048, 1024 }))) end },
    { "needs integers or masks", function(x) tl.store(x, tl.bitwise_and(tl.load(x), 1)) end },
    { "tl.atomic_and(pointer, value, mask?) has no float32", function(x) tl.atomic_and(x, 1) end },
  }
  for _, case in ipairs(late) do
    it("is refused with its line: " .. case[1], function()
      local k = jit(case[2])
      local pattern = case[1]:gsub("[%.%(%)%-%%%[%]%+%*%?]", "%%%0")
      local message = tostring(fails(pattern, k{ 1 }, out, case[3]))
      local first = debug.getinfo(case[2], "S")
      local line = tonumber(message:match "reader_spec.lua:(%d+): %[kernel%]")
      assert.is_true(line >= first.linedefined and line <= first.lastlinedefined, message)
    end)
  end

  it("calls itself", function()
    local again
    local function f(x) return again(x) end
    again = function(x) return f(x) end
    fails("calls itself", jit(function(x) tl.store(x, again(1)) end){ 1 }, out)
  end)

  it("is launched with the wrong things", function()
    local k = jit(function(x, m, B) tl.store(x + tl.arange(0, B), m) end, { constexpr = { "B" }, name = "fill" })
    fails("%[kernel%] fill: argument 3 %(B%) is a constexpr and has no value", k{ 1 }, out, 1)
    fails("argument 1 %(x%): expected a tensor, a number, true, false or nil, got string", k{ 1 }, "x", 1, 4)
    fails("there is no parameter 'C'", k{ 1 }, out, 1, { C = 4 })
    fails("'B' is given twice", k{ 1 }, out, 1, 4, { B = 4 })
    fails("takes 3 arguments %(x, m, B%), got 4", k{ 1 }, out, 1, 4, 5)
    fails("expected a pointer", k{ 1 }, 5, 1, { B = 4 })
    fails("the grid is a list of up to three integers, got %-1", k{ -1 }, out, 1, { B = 4 })
    fails("the grid is a list of up to three integers, got 4 of them", k{ 1, 1, 1, 1 }, out, 1, { B = 4 })
    fails("a launch has no option 'devcie'; did you mean 'device'", k{ 1, devcie = "cpu" }, out, 1, { B = 4 })
    fails("the launch is for cuda, its tensors are on cpu", k{ 1, device = "cuda" }, out, 1, { B = 4 })
    fails("expected a function of Lua", jit, 5)
    fails("it is a C function", jit, print)
    fails("constexpr 'C' is no parameter of .*; there are: x, m, B", jit, k.f, { constexpr = { "C" } })
    fails("tl.load is for kernels", tl.load, out)
    k{ 1, device = "cpu" }(out, 1, { B = 4 })
    assert.equal(4, out:sum():item())
  end)

  it("reads outside of a tensor: the interpreter says where #M158", function()
    local k = jit(function(x, m, B)
      local i = tl.arange(0, B)
      tl.store(x + i, tl.load(x + i - 1, { mask = i > m }))
    end, { constexpr = { "B" } })
    kernels.with({ MOTH_KERNEL_INTERPRET = "1" }, function()
      k{ 1 }(moth.zeros(8), 0, { B = 8 })
      fails("reader_spec.lua:%d+: .*program %(0, 0, 0%): load of x%[%-1%], element 0 of the block, is outside", k{ 1 },
        moth.zeros(8), -1, { B = 8 })
      local store = jit(function(x, B) tl.store(x + tl.arange(0, B), 1) end, { constexpr = { "B" } })
      fails("store to x%[8%], element 8 of the block, is outside of the tensor %[8%].*; give a mask", store{ 1 },
        moth.zeros(8), { B = 16 })
      fails("store to x%[0%]", store{ 1 }, moth.empty(0), { B = 16 })
    end)
  end)
end)

describe("the reader of bytecode", function()
  it("takes no broken dump for a function, nor fails on it", function()
    local f = function(x, m, B)
      local t = { mask = m, other = 1.5, 7, "text" }
      for i = 1, m, 70000 do
        if i > 3 then tl.store(x + tl.arange(0, B), i, t) else tl.load(x) end
      end
    end
    local random = moth.manual_seed and math.random
    math.randomseed(tonumber(os.getenv "MOTH_SEED") or 1)
    for _, strip in ipairs { false, true } do
      local text = string.dump(f, strip)
      assert.is_table(bytecode.read(text))
      for cut = 0, #text - 1 do
        local p, why = bytecode.read(text:sub(1, cut))
        assert.is_nil(p)
        assert.is_string(why)
      end
      for _ = 1, 3000 do
        local at = random(1, #text)
        local broken = text:sub(1, at - 1) .. string.char(random(0, 255)) .. text:sub(at + 1)
        local p, why = bytecode.read(broken) -- an error here is a mistake of the reader
        assert.is_true(p ~= nil or type(why) == "string")
      end
    end
  end)
end)
