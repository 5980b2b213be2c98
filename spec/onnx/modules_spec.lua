-- All modules of moth.nn (module_samples.lua): exported, written and read in another process they are the module to the
-- bit; as ONNX files they agree.
local moth = require "moth"
local nn = moth.nn
local child = require "child"
local samples = require "onnx.module_samples"
local dir = os.tmpname()

-- Classes without a sample of their own: containers, bases, what draws, and what does not compute with tensors alone.
local apart = {}
for name in ([[Module ModuleDict ModuleList Parameter ParameterDict ParameterList Buffer Sequential UninitializedBuffer
  UninitializedParameter RNNBase RNNCellBase DataParallel FractionalMaxPool2d FractionalMaxPool3d MaxUnpool1d
  MaxUnpool2d MaxUnpool3d AdaptiveLogSoftmaxWithLoss CTCLoss LinearCrossEntropyLoss
  MultiLabelMarginLoss]]):gmatch("%S+") do
  apart[name] = true
end

local function flat(...) return moth.tree.flatten { moth.no_grad(...) } end

-- Positions count from 0 in the file.
local function shifted(t) return t:dtype() == moth.int64 and t - 1 or t end

local function near(a, b)
  if tostring(a:size()) ~= tostring(b:size()) then return false end
  a, b = a:to(moth.float64), b:to(moth.float64)
  return (a - b):abs():le(b:abs() * 1e-4 + 1e-5):logical_or(a:eq(b)):all():item()
end

local function check(every, offset)
  local failed, written = {}, {}
  for i, s in ipairs(samples()) do
    if i % every == offset then
      local dynamic
      if s.more then
        dynamic = {}
        for k = 1, #s.inputs do dynamic[k] = { [1] = "batch" } end
      end
      local ok, why = pcall(function()
        local ep = moth.export(s.module, s.inputs, { dynamic_shapes = dynamic })
        local base = ("%s_%d"):format(dir, i)
        moth.export.save(ep, base .. ".mth2")
        local results = {}
        for run, given in ipairs { s.inputs, s.more } do
          results[run] = flat(s.module, unpack(given))
          local again = flat(ep, unpack(given))
          for k, t in ipairs(results[run]) do assert(moth.equal(t, again[k]), "the program differs") end
          for k, t in ipairs(given) do moth.save(t, ("%s.%d.in%d.npy"):format(base, run, k)) end
          for k, t in ipairs(results[run]) do moth.save(t, ("%s.%d.out%d.npy"):format(base, run, k)) end
          written[#written + 1] = ("%q, %d, %d, %d"):format(base, run, #given, #results[run])
        end
        moth.onnx.export(ep, nil, base .. ".onnx")
        local session = moth.onnx.InferenceSession(base .. ".onnx", { record = false })
        for run, given in ipairs { s.inputs, s.more } do
          local named = {}
          for k, v in ipairs(session:get_inputs()) do
            named[v.name] = shifted(given[k])
          end
          local got = session:run(nil, named)
          for k, t in ipairs(results[run]) do
            assert(near(shifted(t), got[k]), ("result %d of run %d differs in ONNX"):format(k, run))
          end
        end
      end)
      if not ok then failed[#failed + 1] = s.name .. ": " .. tostring(why) end
    end
  end
  local lines = {}
  for i, text in ipairs(written) do lines[i] = ("{ %s },"):format(text) end
  local text = child(([[
    local moth = require "moth"
    for _, c in ipairs { %s } do
      local ep = moth.export.load(c[1] .. ".mth2")
      local given = {}
      for k = 1, c[3] do given[k] = moth.load(("%%s.%%d.in%%d.npy"):format(c[1], c[2], k)) end
      local got = moth.tree.flatten { moth.no_grad(ep, unpack(given)) }
      for k = 1, c[4] do
        local want = moth.load(("%%s.%%d.out%%d.npy"):format(c[1], c[2], k))
        if not moth.equal(got[k], want) then print("differs: " .. c[1]) end
      end
    end
    print "all read"]]):format(table.concat(lines, "\n")))
  os.execute("rm -f " .. dir .. "_*")
  if not text:find("^all read") then failed[#failed + 1] = text end
  assert.same({}, failed)
end

describe("moth.nn's modules", function()
  teardown(function() os.remove(dir) end)

  it("have a sample each", function()
    local known = {}
    for _, s in ipairs(samples()) do known[s.name:match("^[^_]+")] = true end
    local without = {}
    for _, name in ipairs(getmetatable(nn).__names()) do
      if name:find("^%u") and nn[name] and not known[name] and not apart[name] and not name:find("^Lazy") then
        without[#without + 1] = name
      end
    end
    assert.same({}, without)
  end)

  it("are programs and ONNX files: each 8th #M414 #M422", function() check(8, 3) end)
  it("are programs and ONNX files: all #slow #M414 #M422", function() check(1, 0) end)
end)
