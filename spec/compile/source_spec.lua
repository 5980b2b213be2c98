-- Generated kernels in the kernel language: what MOTH_LOGS=output_code prints can be loaded, and computes what the
-- compiled graph does, on the CPU, in the interpreter, and on CUDA (emulated, too).
local moth = require "moth"
local inductor = require "moth.compile.inductor"
local kernels = require "kernel.kernels"
local schedule = require "moth.compile.schedule"
local toolchain = require "moth.utils.toolchain"
local F = moth.nn.functional

-- f's results, compiled, and its kernels: { kernel, text }.
local function kernels_of(f, ...)
  local list, kernel = {}, schedule.kernel
  schedule.kernel = function(group)
    local k = schedule.program(group)
    list[#list + 1] = { kernel = k, text = schedule.source(k, "fused") }
    return k
  end
  local ok, results = pcall(function(...) return { moth.compile(f, { backend = "inductor" })(...) } end, ...)
  schedule.kernel = kernel
  assert(ok, results)
  return results, list
end

local x, g, w = moth.randn(40, 100), moth.randn(40, 100), moth.randn(100)
local programs = {
  chain = function(t) return (t * 2 + 1):tanh() * t:sigmoid() - t * t / 2 end,
  softmax = function(t) return (t * 0.5):softmax(2) end,
  norm = function(t) return F.gelu(F.layer_norm(t, { 100 }, w, w)) end,
  all = function(t) return (t * 2 + 1):relu():sum() end,
  columns = function(t)
    local d = g * t:gt(0)
    return d, d:sum(1)
  end,
  dtypes = function(t) return (t:to(moth.bfloat16) * 2):to(moth.float32) + g:to(moth.float64) end,
  tiles = function(t) return (t * 2):t() * 3 + t:t() end,
  numbers = function(t) return (t * 2):clamp(-1, 1):add(t, { alpha = 3 }) end,
}
local names = {}
for name in require("moth.each")(programs) do names[#names + 1] = name end
table.sort(names)

-- Runs the only kernel of a program from its text; its results.
local function run(one, device)
  local source = "local moth = require 'moth'\nlocal tl = moth.kernel.lang\n" .. one.text .. "return fused"
  local kernel, args, outs = assert(loadstring(source))(), {}, {}
  local function there(t) return device and t:to({ device = device }) or t end
  for i, a in ipairs(one.kernel.args) do
    if a.value then
      local facts = a.value.facts
      if one.kernel.prog.params[i].name:find("^out") then
        args[i] = there(moth.empty(facts.shape, { dtype = moth[facts.dtype.name] }))
        outs[#outs + 1] = args[i]
      else
        args[i] = there(#facts.shape == 1 and w or a.value.given)
      end
    elseif a.scratch then
      args[i] = there(moth.empty({ a.numel }, { dtype = moth[a.scratch] }))
    else
      args[i] = a.size or type(a.number) == "table" and a.number.value or a.number
    end
  end
  kernel{ one.kernel.grid }(unpack(args))
  if one.kernel.second then
    args[one.kernel.phase + 1] = 1
    kernel{ one.kernel.second }(unpack(args))
  end
  return outs
end

local function check(name, device)
  local want, list = kernels_of(programs[name], x)
  assert.are.equal(1, #list)
  for _, a in ipairs(list[1].kernel.args) do
    -- The input comes first, g is held by the graph.
    if a.value then a.value.given = (a.value.node == 1 or a.value.facts.shape[1] == 100) and x or g end
  end
  for i, t in ipairs(run(list[1], device)) do
    assert.is_true(moth.allclose(t:cpu(), want[i], { rtol = 1e-5, atol = 1e-5 }))
  end
end

describe("generated kernels as sources", function()
  if not toolchain.cc() then return end
  for _, name in ipairs(names) do
    it(("'%s' runs when it is pasted #M161 #M302"):format(name), function() check(name) end)
    it(("'%s' runs on CUDA from the same program #M311"):format(name), function()
      if moth.cuda.is_available() then check(name, "cuda") end
    end)
  end

  for _, name in ipairs { "all", "columns", "norm", "numbers", "tiles" } do
    it(("'%s' is interpreted, each access checked"):format(name), function()
      kernels.with({ MOTH_KERNEL_INTERPRET = "1" }, function() check(name) end)
    end)
  end

  it("names what is fused, and where it stands #M315", function()
    local _, list = kernels_of(function(t) return (t * 2 + 1):relu() end, x)
    assert.truthy(list[1].text:find("^%-%- mul %([^)]*source_spec.lua:%d+%), add %([^)]*:%d+%), relu %("))
    assert.is_true(inductor.counters.kernels >= 0)
  end)
end)
