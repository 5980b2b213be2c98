-- Every module of torch.nn against PyTorch: nn.py writes how each is made, its weights, inputs, results and gradients
-- to a JSON file, this makes the same and compares.
-- Usage: python3 spec/parity/nn.py FILE; luajit spec/parity/nn.lua FILE
local moth = require "moth"
local nn = moth.nn
moth.set_default_dtype(moth.float64)

local file = assert(io.open(arg[1]))
local cases = require("cjson").decode(file:read("*a"))
file:close()

local dtypes = { float = moth.float64, int = moth.int64, bool = moth.bool }
local function tensor(t, positions)
  local data = t.data
  if t.kind == "int" and positions then
    data = {}
    for i, v in ipairs(t.data) do data[i] = v + 1 end
  end
  local o = { dtype = dtypes[t.kind] }
  if #t.shape == 0 then return moth.tensor(data[1], o) end
  if #data == 0 then return moth.zeros(t.shape, o) end
  return moth.tensor(data, o):reshape(t.shape)
end
local function value(v, positions)
  if type(v) ~= "table" then return v end
  return v.shape and tensor(v, positions) or v
end
-- Results as a list: those of an LSTM hold a pair.
local function flat(out, ...)
  for i = 1, select("#", ...) do
    local v = (select(i, ...))
    if type(v) == "table" and not v.shape then flat(out, unpack(v)) elseif v ~= nil then out[#out + 1] = v end
  end
  return out
end
local function ramp(o) return moth.arange(1, o:numel() + 1):to(moth.float64):view(o:size()) end

local failed, n = 0, 0
local function differs(name, text, ...)
  failed = failed + 1
  print(name .. ": " .. text:format(...))
end
local function same(name, what, got, want)
  n = n + 1
  if tostring(got:size()) ~= tostring(want:size()) then
    return differs(name, "%s has the shape %s, PyTorch's %s", what, tostring(got:size()), tostring(want:size()))
  end
  got, want = got:detach():to(moth.float64), want:to(moth.float64)
  -- PyTorch rounds numbers in these derivatives to float32.
  local rough = name == "CELU" or name == "Hardsigmoid"
  if not moth.allclose(got, want, rough and 1e-7 or 1e-9, rough and 1e-5 or 1e-10, true) then
    differs(name, "%s differs by %g", what, (got - want):abs():max():item())
  end
end

-- Forward's arguments beyond the inputs, by name.
local order = {
  MultiheadAttention = { "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights" },
  EmbeddingBag = { "offsets", "per_sample_weights" }, CTCLoss = { "input_lengths", "target_lengths" },
  MaxUnpool1d = { "output_size" }, MaxUnpool2d = { "output_size" }, MaxUnpool3d = { "output_size" },
}

local function run(case)
  local args, options, inputs = {}, {}, {}
  for i, v in ipairs(case.args) do args[i] = v end
  for key, v in pairs(case.options) do
    if not (key == "padding_idx" and args[3]) then options[key] = value(v) end
  end
  if next(options) then args[#args + 1] = options end
  local m = nn[case.name](unpack(args))
  if case.text ~= "" and tostring(m) ~= case.text then
    differs(case.name, "is shown as %s, PyTorch's %s", tostring(m), case.text)
  end
  local state = {}
  for key, t in pairs(case.state) do state[key] = tensor(t) end
  m:load_state_dict(state)
  for i, t in ipairs(case.inputs) do
    -- Labels that count nothing are -1 in PyTorch, here everything below 1.
    inputs[i] = tensor(t, true)
    if t.kind == "float" and i <= case.leaves then inputs[i]:requires_grad_(true) end
  end
  local count = #inputs
  if case.name == "MultiheadAttention" or next(case.calls) then
    for i, key in ipairs(order[case.name]) do
      inputs[count + i] = value(case.calls[key])
    end
    count = count + #order[case.name]
  end
  local leaves = { unpack(inputs, 1, count) }
  if case.name == "CTCLoss" then inputs[1] = inputs[1]:log_softmax(3) end
  local out, total = flat({}, m(unpack(inputs, 1, count))), nil
  inputs = leaves
  if #out ~= #case.outputs then differs(case.name, "%d results, PyTorch's %d", #out, #case.outputs) end
  for i, t in ipairs(case.outputs) do
    same(case.name, "result " .. i, out[i], tensor(t, true))
    if out[i]:requires_grad() then total = (total or 0) + (out[i] * ramp(out[i])):sum() end
  end
  if total then total:backward() end
  for key, p in m:named_parameters() do
    if case.grads[key] then
      if p.grad then same(case.name, key .. ".grad", p.grad, tensor(case.grads[key]))
      else differs(case.name, "%s has no gradient", key) end
    end
  end
  for i, g in ipairs(case.input_grads) do
    if g then
      if inputs[i].grad then same(case.name, "gradient of input " .. i, inputs[i].grad, tensor(g))
      else differs(case.name, "input %d has no gradient", i) end
    end
  end
end

for _, case in ipairs(cases) do
  local ok, message = xpcall(function() run(case) end, function(e) return tostring(e) end)
  if not ok then differs(case.name, "%s", message) end
end
print(("nn: %d modules in %d comparisons with PyTorch, %d differ"):format(#cases, n, failed))
os.exit(failed == 0 and 0 or 1, true)
