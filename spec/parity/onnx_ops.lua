-- Exports each op's samples alone, at opset 17, and runs the files by moth's session and by onnxruntime:
--   luajit spec/parity/onnx_ops.lua FOLDER; python3 spec/parity/onnx_ops.py FOLDER
-- Counted are the ops that are differentiable, of no library (kind extern), and neither draw nor write in place.
local moth = require "moth"
local B = require "moth_lua"
local support = require "ops.support"
local folder = assert(arg[1], "a folder is expected")
os.execute("mkdir -p '" .. folder .. "'")
local list = assert(io.open(folder .. "/list.txt", "w"))

-- The tensors among arguments, and a function of them.
local function separated(args, n)
  local tensors = {}
  local function replaced(v)
    if B.is_tensor(v) then
      tensors[#tensors + 1] = v
      return { at = #tensors }
    elseif type(v) == "table" and not B.is_dtype(v) then
      local out = { list = {} }
      for i = 1, #v do out.list[i] = replaced(v[i]) end
      return out
    end
    return { value = v }
  end
  local plan = {}
  for i = 1, n do plan[i] = replaced(args[i]) end
  return tensors, function(...)
    local given = { ... }
    local function made(p)
      if p.at then return given[p.at] end
      if not p.list then return p.value end
      local out = {}
      for i, item in ipairs(p.list) do out[i] = made(item) end
      return out
    end
    local out = {}
    for i = 1, n do out[i] = made(plan[i]) end
    return out
  end
end

local function as_float32(t) return t:dtype() == moth.float64 and t:to(moth.float32) or t:clone() end

local function sample_of(op, text, i)
  local args = support.evaluate(text, { seed = 77 + i })
  args = support.map(op, args, as_float32)
  local n = args.n or #op.args
  local tensors, again = separated(args, n)
  local fn = B.ops[op.name]
  local function call(...) return fn(unpack(again(...), 1, n)) end
  local want = moth.tree.flatten { moth.no_grad(call, unpack(tensors)) }
  return call, tensors, want
end

local function near(a, b)
  if a:dtype() ~= b:dtype() or table.concat(a:size(), ",") ~= table.concat(b:size(), ",") then return false end
  if a:numel() == 0 then return true end
  a, b = a:to(moth.float64), b:to(moth.float64)
  local same = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  return (a - b):abs():le(b:abs() * 1e-3 + 1e-4):logical_or(same):all():item()
end

local function counted(op)
  for _, pattern in ipairs { "^empty", "_$", "_backward", "_step$", "_grad$", "^comm_" } do
    if op.name:find(pattern) then return false end
  end
  if op.nondeterministic or #op.samples == 0 or op.kind == "extern" then return false end
  for _, a in ipairs(op.args) do
    if a.type == "GENERATOR" then return false end
  end
  return op.node or op.expr or op.decompose or op.kind == "composite"
end

local good, count, failed = 0, 0, {}
for _, op in ipairs(support.records) do
  local wanted = counted(op)
  if wanted then
    local why
    local checked = 0
    for i, text in ipairs(op.samples) do
      local ok, message = pcall(function()
        local call, tensors, want = sample_of(op, text, i)
        for _, t in ipairs(tensors) do
          if t:is_complex() then return "complex" end
        end
        for _, t in ipairs(want) do
          if not B.is_tensor(t) or t:is_complex() then return "complex" end
        end
        local name = ("%s.%d"):format(op.name, i)
        local path = folder .. "/" .. name .. ".onnx"
        moth.onnx.export(call, tensors, path, { index_base = 1 })
        local session = moth.onnx.InferenceSession(path, { record = false })
        local inputs = {}
        for k, v in ipairs(session:get_inputs()) do inputs[v.name] = tensors[k] end
        local got = session:run(nil, inputs)
        for k, w in ipairs(want) do
          if not near(got[k], w) then return ("result %d differs by moth's session"):format(k) end
        end
        for k, t in ipairs(tensors) do moth.save(t:contiguous(), ("%s/%s.in%d.npy"):format(folder, name, k)) end
        for k, t in ipairs(want) do moth.save(t:contiguous(), ("%s/%s.out%d.npy"):format(folder, name, k)) end
        list:write(name, "\n")
      end)
      if ok and message ~= "complex" then checked = checked + 1 end
      if not ok then why = message elseif message and message ~= "complex" then why = message end
      if why then break end
    end
    if checked > 0 or why then
      count = count + 1
      if why then failed[#failed + 1] = ("%s: %s"):format(op.name, (tostring(why):gsub("\n.*", ""):gsub("^.-%[", "[")))
      else good = good + 1 end
    end
  end
end
list:close()
for _, line in ipairs(failed) do print("onnx op " .. line) end
print(("onnx ops: %d of %d (%.1f %%) export at opset 17 and agree by moth's session"):format(good, count,
  100 * good / count))
os.exit(good / count >= 0.85 and 0 or 1)
