-- What ops are composed of in ONNX files (lua/moth/onnx/composed.lua) computes what their kernels do.
local moth = require "moth"
local B = require "moth_lua"
local support = require "ops.support"
local composed = require "moth.onnx.composed"
local path = os.tmpname()

local function near(a, b)
  if a:dtype() ~= b:dtype() or not moth.equal(moth.tensor(a:size()), moth.tensor(b:size())) then return false end
  if a:numel() == 0 then return true end
  a, b = a:to(moth.float64), b:to(moth.float64)
  local same = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  return (a - b):abs():le(b:abs() * 1e-3 + 1e-4):logical_or(same):all():item()
end

-- The values of a call by the kernel and by what it is composed of, on float32.
local function compare(op, text, i)
  local args = support.map(op, support.evaluate(text, { seed = 5 + i }), function(t)
    return t:dtype() == moth.float64 and t:to(moth.float32) or t
  end)
  local n = args.n or #op.args
  for k = 1, n do
    if B.is_tensor(args[k]) and args[k]:is_complex() then return end
  end
  local want, got = { B.ops[op.name](unpack(args, 1, n)) }, { composed[op.name](unpack(args, 1, n)) }
  for k, w in ipairs(want) do
    assert.is_true(near(w, got[k]), ("%s(%s): %s instead of %s"):format(op.name, text, tostring(got[k]), tostring(w)))
  end
end

describe("moth.onnx.composed", function()
  teardown(function() os.remove(path) end)

  it("computes what the kernels do", function()
    local count = 0
    for _, op in ipairs(support.records) do
      if op.onnx and op.onnx:find("^composed%(true%)") and composed[op.name] then
        count = count + 1
        for i, text in ipairs(op.samples) do compare(op, text, i) end
      end
    end
    assert.is_true(count > 45)
  end)

  it("is written at sizes that change, with its loops #quick #M418", function()
    local function f(A, b) return moth.linalg.solve(A, b), A:lgamma(), A:cummax(2) end
    local A, b = moth.rand(2, 3, 3) + 3 * moth.eye(3), moth.randn(2, 3, 2)
    moth.onnx.export(f, { A, b }, path, { dynamic_shapes = { { [1] = "n" }, { [1] = "n" } } })
    local session = moth.onnx.InferenceSession(path)
    for _, n in ipairs { 1, 2, 5 } do
      A, b = moth.rand(n, 3, 3) + 3 * moth.eye(3), moth.randn(n, 3, 2)
      local want, got = { f(A, b) }, session:run(nil, { A = A, b = b })
      for i = 1, 3 do assert.is_true(near(want[i], got[i])) end
      assert.same((want[4] - 1):totable(), got[4]:totable()) -- positions count from 0 in the file
    end
  end)

  it("cross entropy with smoothed labels, and of one row", function()
    local x, target = moth.randn(4, 5), moth.tensor({ 1, 5, 2, 2 }, { dtype = moth.int64 })
    for _, case in ipairs { { x, target, 0.1 }, { x[1], target[1], 0 } } do
      local function f(v, t) return moth.nn.functional.cross_entropy(v, t, { label_smoothing = case[3] }) end
      moth.onnx.export(f, { case[1], case[2] }, path)
      local got = moth.onnx.InferenceSession(path):run(nil, { v = case[1], t = case[2] - 1 })[1]
      assert.is_true(near(f(case[1], case[2]), got), tostring(got) .. tostring(f(case[1], case[2])))
    end
  end)

  it("what asks for strides and offsets of an input is written #quick", function()
    local function f(x) return x:as_strided({ 3, 2 }, { 2, 1 }, 1) end
    local x, file = moth.randn(4, 6), os.tmpname()
    moth.onnx.export(f, x, file, { input_names = { "x" } })
    local got = moth.onnx.InferenceSession(file):run(nil, { x = x })[1]
    os.remove(file)
    assert.same(f(x):totable(), got:totable())
  end)
end)
