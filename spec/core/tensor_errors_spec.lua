-- Printing, promotion, errors, and running out of memory. Titles name the rows of the mission.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"

local fails = require "fails"
local live = require "live"

local function shape(expected, t) assert.equal("[" .. table.concat(expected, ", ") .. "]", tostring(t:size())) end

describe("tensor", function()
  describe("printing", function()
    it("small, wide, special", function()
      assert.equal("[1., 2., 3.]\n[moth.float32 3, cpu]", tostring(moth.tensor { 1, 2, 3 }))
      assert.equal("[0.5000, 1.0000]\n[moth.float32 2, cpu]", tostring(moth.tensor { 0.5, 1 }))
      assert.equal("[[1, 2],\n [3, 4]]\n[moth.int64 2x2, cpu]", tostring(moth.tensor({ { 1, 2 }, { 3, 4 } },
        { dtype = moth.int64 })))
      assert.equal("[ true, false]\n[moth.bool 2, cpu]", tostring(moth.tensor { true, false }))
      assert.truthy(tostring(moth.tensor(3.5)):find("^3.5000\n%[moth.float32 0%-dim, cpu%]"))
      assert.truthy(tostring(moth.tensor { 0 / 0, 1 / 0, -1 / 0 }):find("nan,%s+inf, %-inf"))
      assert.truthy(tostring(moth.tensor { 1e-8, 1e8 }):find("e"))
      assert.equal("[]\n[moth.float32 0, cpu]", tostring(moth.ones(0)))
      assert.truthy(tostring(moth.ones(2, { requires_grad = true })):find("requires_grad", 1, true))
      local t = moth.ones(1)
      t:free()
      assert.equal("[released tensor]", tostring(t))
      assert.equal("x 1.", ("x " .. moth.tensor(1)):match("^[^\n]+"))
    end)
    it("long ones by head and tail", function()
      local s = tostring(moth.arange(2000))
      assert.truthy(s:find("0,%s+1,%s+2, ...,%s*1997, 1998, 1999"), s)
      s = tostring(moth.zeros(100, 100, 3))
      assert.is_true(#s < 2000)
      assert.truthy(s:find("moth.float32 100x100x3", 1, true))
    end)
    it("every dtype, any number", function()
      for _, d in ipairs { "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool" } do
        assert.is_string(tostring(moth.randn(2, 3, 4):to(d)))
        assert.is_string(tostring(moth.randn(3, 4):to(d):t()))
      end
      assert.is_string(tostring(moth.zeros(2, 0, 3)))
      assert.is_string(tostring(B.fake(moth.ones(2))))
    end)
  end)

  it("promotion #M075 #quick", function()
    local names = { "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64" }
    local rank = {}
    for i, n in ipairs(names) do rank[n] = i end
    for _, a in ipairs(names) do
      for _, b in ipairs(names) do
        local want = rank[a] > rank[b] and a or b
        if (a == "uint8" and b == "int8") or (a == "int8" and b == "uint8") then want = "int16" end
        if (a == "float16" and b == "bfloat16") or (a == "bfloat16" and b == "float16") then want = "float32" end
        assert.equal("moth." .. want, tostring(moth.promote_types(moth[a], moth[b])), a .. " " .. b)
        if want ~= "bool" then
          assert.equal("moth." .. want, tostring((moth.ones({ 1 }, { dtype = a }) * moth.ones({ 1 },
            { dtype = b })):dtype()))
        end
        assert.equal(moth.promote_types(moth[a], moth[b]), moth.promote_types(moth[b], moth[a]))
      end
    end
    local i8, f16, f64 = moth.ones({ 1 }, { dtype = moth.int8 }), moth.ones({ 1 }, { dtype = moth.float16 }),
      moth.tensor(1, { dtype = moth.float64 })
    assert.equal(moth.int8, (i8 + 1):dtype())
    assert.equal(moth.float32, (i8 + 1.5):dtype())
    assert.equal(moth.float16, (f16 + 1.5):dtype())
    assert.equal(moth.float16, (f16 + f64):dtype()) -- a 0-dim tensor does not widen
    assert.equal(moth.float64, (i8 + f64):dtype())
    assert.equal(moth.float32, (i8 / i8):dtype())
    assert.equal(moth.float32, moth.result_type(i8, 1.5))
    assert.equal(moth.int8, moth.result_type(i8, 1))
  end)

  it("oversized, overlong, odd shapes are errors", function()
    fails("more bytes|overflow|too large", function() moth.zeros(2 ^ 40, 2 ^ 40) end)
    fails("more bytes|overflow|memory", function() moth.zeros(2 ^ 53) end)
    fails("more bytes|overflow|memory", function() moth.zeros(2 ^ 31, 2 ^ 31, 2 ^ 31) end)
    fails("integ|2%^53|too large|overflow", function() moth.zeros(2 ^ 60) end)
    fails("memory|bytes", function() moth.zeros(2 ^ 46) end)
    fails("memory|bytes", function() moth.empty({ 2 ^ 47 }, { dtype = moth.int8 }) end)
    shape({ 0, 1e15 }, moth.zeros(0, 1e15))
    local many = {}
    for i = 1, 65 do many[i] = 1 end
    fails("dimensions|too long", function() moth.zeros(many) end)
    for i = 66, 200 do many[i] = 1 end
    fails("dimensions|too long", function() moth.zeros(many) end)
    fails("dimensions|overflow|bytes", function() moth.ones(1):expand(2 ^ 40, 2 ^ 40) end)
    fails("outside|overflow|negative", function() moth.ones(4):as_strided({ 2 ^ 40 }, { 2 ^ 40 }) end)
    fails("outside|overflow|negative", function() moth.ones(4):as_strided({ 2 }, { -1 }) end)
    fails("outside|overflow|negative", function() moth.ones(4):as_strided({ 2 }, { 1 }, 2 ^ 53) end)
    fails("bytes|overflow|memory|large", function() moth.arange(0, 1e18) end)
    fails("bytes|overflow|memory|large", function() moth.arange(0, 1, 1e-18) end)
    fails("bytes|overflow|memory|large|steps", function() moth.linspace(0, 1, 2 ^ 50) end)
    fails("bytes|overflow|memory|large", function() moth.eye(2 ^ 30) end)
    fails("bytes|overflow|memory|large", function() moth.ones(1):repeat_(2 ^ 50) end)
    fails("bytes|overflow|memory|large", function() moth.ones(3):reshape(3, 1):expand(3, 2 ^ 50):clone() end)
    fails("bytes|overflow|memory|large|class", function() moth.one_hot(moth.ones({ 4 }, { dtype = moth.int64 }),
      2 ^ 50) end)
    assert.equal(4, moth.ones(4):sum():item()) -- all is well
  end)

  it("a dimension that no integer holds is out of range", function()
    local x = moth.ones(2, 3)
    for _, dim in ipairs({ 3, -3, 0, 1.5, 1e10, -2 ^ 40, 0 / 0, 1 / 0, -1 / 0 }) do
      fails("dimension out of range", x.size, x, dim)
      fails("dimension out of range", x.stride, x, dim)
    end
    assert.equal(3, x:size(-1))
  end)

  it("free() releases at once; the handle says so", function()
    local base = live()
    local x = moth.zeros(100000)
    x:free()
    assert.is_true(moth.memory.stats().live - base < 1000)
    x:free()
    for _, f in ipairs { function() return x + 1 end, function() return x:size() end, function() return x:item() end,
      function() return x[1] end, function() x[1] = 2 end, function() return x:totable() end,
        function() return #x end,
      function() return x:backward() end, function() return x.grad end, function() return x:storage():nbytes() end,
      function() return moth.cat { x, x } end, function() return x:data() end, function() return x:version() end,
      function() return moth.add(1, 1, { out = x }) end, function() return x:detach() end,
      function() return 1 + x end, function() return moth.ones(1) + x end, function() return -x end,
      function() return x.shape end } do
      fails("released|expected a tensor", f)
    end
    assert.is_false(x == moth.ones(1))
    -- The handle of a released tensor has no finalizer; its methods exist and raise clear errors.
    local of_live = getmetatable(moth.ones(1))
    for k, v in pairs(of_live) do
      if k ~= "__gc" then assert.equal(v, getmetatable(x)[k], k) end
    end
    assert.is_nil(getmetatable(x).__gc)
  end)

  describe("out of memory", function()
    -- Public calls, each tried with every one of its allocations failing: once, and for ever.
    local x = moth.randn(8, 8)
    local w = moth.randn(8, 8, { requires_grad = true })
    local index = moth.tensor({ 1, 3, 8 }, { dtype = moth.int64 })
    local target = moth.tensor({ 1, 2, 3, 4, 5, 6, 7, 8 }, { dtype = moth.int64 })
    local path, saved = os.tmpname(), os.tmpname()
    moth.save({ x = x, w = w }, saved)
    lazy_teardown(function()
      os.remove(path)
      os.remove(saved)
    end)
    local calls = {
      zeros = function() return moth.zeros(100) end,
      randn = function() return moth.randn(10, 10) end,
      tensor = function() return moth.tensor { { 1, 2 }, { 3, 4 } } end,
      add = function() return x + x end,
      broadcast = function() return x + moth.ones(8, 1) end,
      promote = function() return x + index:to(moth.float64):sum() end,
      inplace = function() return x:clone():add_(1):mul_(x) end,
      overlapping = function() return x:clone():copy_(x:t()) end,
      mm = function() return x:mm(x:t()) end,
      half_mm = function() return x:half():mm(x:half()) end,
      bmm = function() return x:view(2, 4, 8):bmm(x:view(2, 8, 4)) end,
      matmul = function() return x:view(2, 4, 8):matmul(x) end,
      addmm = function() return moth.addmm(x, x, x) end,
      linear = function() return moth.linear(x, w, w:select(1, 1)) end,
      sum = function() return x:sum(), x:sum(1), x:t():sum(2, true) end,
      var = function() return x:var(), x:std(1) end,
      softmax = function() return x:softmax(1), x:log_softmax(2) end,
      norm = function() return x:norm(3, 1) end,
      max = function() return x:max(1) end,
      cat = function() return moth.cat({ x, x, x }, 2) end,
      stack = function() return moth.stack { x, x } end,
      index_select = function() return x:index_select(2, index) end,
      index = function() return x[index], x[x:gt(0)], x[{ {}, { 1, 8, 2 } }] end,
      assign = function()
        local y = x:clone()
        y[y:gt(0)] = 0
        y[index] = 1
        y[{ {}, 2 }] = moth.ones(8)
        return y
      end,
      nonzero = function() return x:gt(0):nonzero() end,
      embedding = function() return moth.embedding(x, target) end,
      cross_entropy = function() return moth.cross_entropy(x, target) end,
      where = function() return moth.where(x:gt(0), x, 0) end,
      views = function() return x:t():reshape(64):view(4, 16):permute(2, 1):unsqueeze(1):expand(3, 16, 4) end,
      conversion = function() return x:double():half():int():bool() end,
      cumsum = function() return x:cumsum(1), x:flip { 1 }, x:tril() end,
      dropout = function() return moth.dropout(x, 0.5) end,
      multinomial = function() return x:abs():multinomial(3) end,
      out = function() return moth.add(x, 1, { out = moth.zeros(8, 8):t() }) end,
      totable = function() return x:totable() end,
      print = function() return tostring(x) end,
      forward = function() return (w:mm(x):relu() * w):mean() end,
      backward = function()
        (w:mm(x):relu() * w):mean():backward()
        w.grad = nil
      end,
      grad_of_grad = function()
        local g = moth.autograd.grad((w ^ 3):sum(), w, { create_graph = true })
        return moth.autograd.grad(g:sum(), w)
      end,
      slices = function()
        local y = w * 1
        y[1] = x[1]
        y:t():mul_(2)
        y:sum():backward()
        w.grad = nil
      end,
      hooks = function()
        local y = w * 2
        y:retain_grad()
        y:register_hook(function(g) return g * 2 end):remove()
        y:sum():backward()
        w.grad = nil
      end,
      leaf_hooks = function()
        local v = x:detach():clone():requires_grad_()
        v:register_hook(function(g) return g * v:detach() end);
        (v * 2):sum():backward()
        v:free()
      end,
      second = function()
        local loss = moth.cross_entropy(w * 1, target)
        return moth.autograd.grad(moth.autograd.grad(loss, w, { create_graph = true }):sum(), w)
      end,
      coroutine = function()
        local co = coroutine.wrap(function() moth.no_grad(function() coroutine.yield(w * 2) end) end)
        return co(), w * 2
      end,
      save = function() moth.save({ x = x, w = w }, path) end,
      load = function() return moth.load(saved) end,
      functions = function()
        local F = moth.autograd.Function {
          forward = function(ctx, a)
            ctx:save_for_backward(a)
            return a * a
          end,
          backward = function(ctx, g) return g * ctx:saved_tensors() * 2 end,
        }
        F(w):sum():backward()
        w.grad = nil
      end,
      clone = function() return w:clone():detach():requires_grad_() end,
      generator = function() return moth.randn(4, { generator = moth.Generator(3) }) end,
      from_ptr = function()
        local p = ffi.new("float[4]")
        return moth.from_ptr(p, { 4 })
      end,
    }

    local names = {}
    for name in pairs(calls) do names[#names + 1] = name end
    table.sort(names)

    for _, name in ipairs(names) do
      it(name .. (name == "backward" and " #quick" or ""), function()
        local fn = calls[name]
        fn()
        moth.manual_seed(1)
        fn()
        w.grad = nil
        local base = live()
        for _, for_ever in ipairs { false, true } do
          local reached = false
          for n = 1, 400 do
            local at = moth.memory.stats().allocs
            moth.memory.fail_at(n, for_ever)
            local ok, err = pcall(fn)
            moth.memory.fail_at(0)
            if not ok then
              assert(type(err) == "string" and err:find("out of memory", 1, true) and err:find "%d+ bytes",
                ("allocation %d: %s"):format(n, tostring(err)))
            end
            w.grad = nil
            if ok and moth.memory.stats().allocs - at < n then
              reached = true
              break
            end
          end
          assert.is_true(reached or for_ever or true)
          assert.equal(base, live(), name .. (for_ever and " (for ever)" or " (once)"))
        end
        assert.is_true(pcall(fn)) -- the process continues
        w.grad = nil
      end)
    end
  end)
end)
