-- The samples of all op records by generated kernels: results and gradients are within the bounds that
-- moth.compile.config.check applies (docs/compile.md). Several ops share a graph, as compilers are slow to start.
local B = require "moth_lua"
local moth = require "moth"
local O = require "ops.support"
require "compile.support"
local toolchain = require "moth.utils.toolchain"
local ops = B.ops

local MANY, EVERY = 12, 64 -- ops of a graph; of the graphs, one in so many is in the fast run

local function is_float(t) return B.is_tensor(t) and B.tensor_dtype(t).is_floating_point end

-- What calls every sample of the ops in `list`, between pointwise calls; its arguments by `make`.
local function program(list, dtype, grad)
  local calls = {}
  for _, op in ipairs(list) do
    for i, text in ipairs(op.samples or {}) do
      calls[#calls + 1] = { op = op, text = text, seed = 50 + i }
    end
  end
  local function make()
    for _, c in ipairs(calls) do
      local base = O.evaluate(c.text, { seed = c.seed })
      c.args = O.map(c.op, base, function(t, a)
        t = O.dtype_of(t) == "float64" and ops.to(t, { dtype = dtype, copy = true }) or ops.clone(t)
        local differs = grad and is_float(t) and not (a and (a.mutated or not O.differentiable(c.op, a.name)))
        return differs and B.set_requires_grad(t, true) or t
      end)
      c.n = c.args.n or #c.op.args
    end
  end
  local function f()
    local out = {}
    for _, c in ipairs(calls) do
      local given = {}
      for k = 1, c.n do
        local v = c.args[k]
        given[k] = is_float(v) and not (c.op.args[k] and c.op.args[k].mutated) and ops.mul(v, 1) or v
      end
      for _, r in ipairs { ops[c.op.name](unpack(given, 1, c.n)) } do
        out[#out + 1] = is_float(r) and ops.mul(r, 2) or r
      end
    end
    return unpack(out)
  end
  return f, make
end

local function run(list, dtype, grad)
  local f, make = program(list, dtype, grad)
  local compiled = moth.compile(f, { backend = "inductor" })
  for _ = 1, 2 do
    make()
    moth.manual_seed(7)
    local loss = 0
    for _, t in ipairs { compiled() } do
      if B.is_tensor(t) and B.requires_grad(t) then loss = loss + t:sum() end
    end
    if type(loss) ~= "number" then loss:backward() end
  end
end

local function check(list, dtype, grad)
  moth.compile.config.check = true
  local ok, message = pcall(run, list, dtype, grad)
  moth.compile.config.check = false
  if not ok then error(("%s, grad %s: %s"):format(dtype, tostring(grad), message), 0) end
end

describe("generated kernels for the samples of", function()
  local groups, last = {}, nil
  for _, op in ipairs(O.selected()) do
    if not op.internal and not op.name:find("^empty") and op.samples then
      if not last or #last == MANY then
        last = {}
        groups[#groups + 1] = last
      end
      last[#last + 1] = op
    end
  end
  for i, list in ipairs(groups) do
    local title = ("%s … %s%s"):format(list[1].name, list[#list].name, i % EVERY == 1 and "" or " #slow")
    it(title, function()
      if not toolchain.cc() then return end
      check(list, "float32", true)
      check(list, "float32", false)
      check(list, "float64", true)
    end)
  end
end)
