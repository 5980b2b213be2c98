-- Handlers that only forward a call change nothing: every op's samples, forward and backward, to the bit.
local B = require "moth_lua"
local moth = require "moth"
local S = require "ops.support"

local function pass(func, args) return func(unpack(args, 1, args.n)) end
local Pass = moth.tensor_subclass("Pass", { dispatch = function(_, func, _, args) return pass(func, args) end })
-- Results are of the class, too: then saved tensors are when they are restored.
local Wrap
Wrap = moth.tensor_subclass("Wrap", { dispatch = function(_, func, _, args)
  local function wrap(...)
    local out = { ... }
    for i = 1, select("#", ...) do
      if B.is_tensor(out[i]) then out[i] = Wrap(out[i]) end
    end
    return unpack(out, 1, select("#", ...))
  end
  return wrap(pass(func, args))
end })

local function same(t) return t end
local ways = { -- ways to forward a call: a wrapper of its tensors, a mode that it runs in
  { "a dispatch mode", same, function(fn) moth.dispatch_mode(pass, fn) end },
  { "a subclass", Pass, function(fn) fn() end },
  { "a subclass that wraps its results", Wrap, function(fn) fn() end },
}

local function bits(t)
  if not B.is_tensor(t) then return tostring(t) end
  return ("%s [%s] %s"):format(S.dtype_of(t), table.concat(B.size(t), ", "),
    B.bytes(B.ops.contiguous(B.ops.to(B.alias(t, false), { device = "cpu" }))))
end

-- Results and gradients of one sample as strings; nil and the error where it fails.
local function outcome(op, fn, text, dtype, wrap, around)
  local evaluated, args = pcall(S.evaluate, text, { dtype = dtype })
  if not evaluated then return nil, args end
  local leaves, results = {}, nil
  args = S.map(op, args, function(t)
    t = wrap(B.ops.clone(t))
    if type(op.grad) == "table" and S.class[S.dtype_of(t)] == "float" and fn == B.ops[op.name] then
      B.set_requires_grad(t, true)
      leaves[#leaves + 1] = t
    end
    return t
  end)
  moth.manual_seed(3)
  local ok, err = pcall(around, function()
    results = { fn(unpack(args, 1, args.n)) }
    for _, r in ipairs(results) do
      if B.is_tensor(r) and B.requires_grad(r) then
        B.backward({ B.ops.sum(B.ops.mul(r, B.alias(B.ops.cos(B.alias(r, false)), false))) }, nil, true, false)
      end
    end
  end)
  if not ok then return nil, err end
  local parts = {}
  for _, r in ipairs(results) do parts[#parts + 1] = bits(r) end
  for _, leaf in ipairs(leaves) do parts[#parts + 1] = bits(B.get_grad(leaf)) end
  return parts
end

describe("a handler that passes its call on", function()
  local any = { empty = true, empty_like = true } -- their elements are arbitrary
  it("changes no op's result and no gradient #M063 #M064", function()
    local cases, wrong = 0, {}
    local function compare(op, fn, text, dtype)
      local plain = outcome(op, fn, text, dtype, same, function(f) f() end)
      if not plain then return end
      for _, way in ipairs(ways) do
        local got, err = outcome(op, fn, text, dtype, way[2], way[3])
        cases = cases + 1
        local equal = got and #got == #plain
        for i = 1, #plain do equal = equal and got[i] == plain[i] end
        if not equal then
          wrong[#wrong + 1] = ("%s(%s) %s under %s: %s"):format(op.name, text, dtype, way[1], err or "another result")
        end
      end
    end
    for _, op in ipairs(S.selected()) do
      for _, text in ipairs(any[op.name] and {} or op.samples or {}) do
        for _, dtype in ipairs { "float64", "int64" } do
          compare(op, B.ops[op.name], text, dtype)
          if op.inplace then compare(op, B.ops[op.name .. "_"], text, dtype) end
        end
      end
    end
    assert.is_true(cases > 0)
    assert.equal("", table.concat(wrong, "\n"))
  end)

  it("need not hand on where the result goes", function()
    local out = moth.zeros(3)
    moth.dispatch_mode(pass, function() moth.add(moth.ones(3), 1, { out = out }) end)
    assert.same({ 2, 2, 2 }, out:totable())
    local x = moth.ones(3)
    local y = moth.dispatch_mode(function(func, args)
      return func.name == "mul_" and moth.full({ 3 }, 5) or pass(func, args)
    end, function() return x:mul_(2) end)
    assert.is_true(rawequal(x, y))
    assert.same({ 5, 5, 5 }, x:totable())
    assert.error_matches(function()
      moth.dispatch_mode(function() return moth.ones(2) end, function() x:mul_(2) end)
    end, "shape")
  end)

  it("says what positions count from", function()
    local bases = {}
    local labels = moth.tensor({ 1, 3 }, { dtype = moth.int64 })
    moth.dispatch_mode(function(func, args)
      bases[func.name] = func.index_base
      return pass(func, args)
    end, function()
      moth.gather(moth.randn(2, 3), 2, labels:view(2, 1))
      moth.nn.functional.pad(moth.randn(1, 2, 3), { 1, 1 }, { mode = "circular" })
    end)
    assert.equal(1, bases.gather)
    assert.equal(0, bases.index_select)
  end)
end)

describe("what a tensor carries", function()
  it("survives detach, data, saving for backward, factories like it and ops that fill what they made", function()
    local calls = {}
    local Seen = moth.tensor_subclass("Seen", { dispatch = function(cls, func, _, args)
      calls[#calls + 1] = func.name
      local r = pass(func, args)
      return B.is_tensor(r) and cls(r) or r
    end })
    local x = Seen(moth.rand(2, 3) + 1)
    for name, y in pairs { detach = x:detach(), data = x.data, zeros_like = moth.zeros_like(x),
      full_like = moth.full_like(x, 2), pad = moth.nn.functional.pad(x, { 1, 1 }), diag = moth.diag(x[1]),
      nested = x:detach().data:detach() } do
      assert.equal("Seen", moth.type(y), name)
    end
    assert.equal("Seen", moth.type(moth.nn.Parameter(x)))
    assert.equal("Tensor", moth.type(moth.zeros(2)))
    -- An input and a result that backward reads again.
    local leaf = Seen(moth.rand(3)):requires_grad_()
    local y = leaf:exp() * leaf
    calls = {}
    y:backward(moth.ones(3))
    assert.is_true(#calls >= 3, table.concat(calls, " "))
    assert.equal("Seen", moth.type(leaf.grad))
    -- Custom functions.
    local saved
    local Square = moth.autograd.Function { name = "Square",
      forward = function(ctx, a)
        local r = a * a
        ctx:save_for_backward(a, r)
        return r
      end,
      backward = function(ctx, g)
        saved = { ctx:saved_tensors() }
        return g * saved[1] * 2
      end }
    local z = Square(leaf)
    assert.equal("Seen", moth.type(z))
    z:sum():backward()
    assert.equal("Seen", moth.type(saved[1]))
    assert.equal("Seen", moth.type(saved[2]))
  end)

  it("is not seen when moth itself reads elements", function()
    local calls = 0
    local Counting = moth.tensor_subclass("Counting", { dispatch = function(_, func, _, args)
      calls = calls + 1
      return pass(func, args)
    end })
    local x = Counting(moth.rand(2, 2))
    local text = tostring(x)
    assert.equal(0, calls)
    assert.is_string(text)
  end)

  it("is let go with the last of those that carry it", function()
    local gone = setmetatable({}, { __mode = "v" })
    do
      local cls = moth.tensor_subclass("Short", { dispatch = function(_, func, _, args) return pass(func, args) end })
      gone.class = cls
      local x = cls(moth.ones(2))
      local y = x:detach()
      x, cls = nil, nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      moth.ones(1)
      collectgarbage()
      assert.equal("Short", moth.type(y))
      y = nil -- luacheck: ignore
    end
    for _ = 1, 3 do
      collectgarbage()
      moth.ones(1)
    end
    assert.is_nil(gone.class)
  end)
end)
