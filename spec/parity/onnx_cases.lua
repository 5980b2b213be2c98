-- Runs the node cases of ONNX that spec/parity/onnx_cases.py wrote, by moth.onnx.InferenceSession, and compares:
--   luajit spec/parity/onnx_cases.lua FOLDER [pattern]
-- Each case runs twice, so that the second time is the recorded program, where it can be recorded. Cases that fail need
-- a reason in spec/parity/onnx_reasons.lua.
local moth = require "moth"
local reader = require "moth.onnx.reader"
local folder, pattern = assert(arg[1], "a folder is expected"), arg[2]

-- Reasons: { pattern of names, why }.
local reasons = dofile((arg[0]:gsub("[^/]*$", "")) .. "onnx_reasons.lua")

local function reason_of(name)
  for _, entry in ipairs(reasons) do
    for p in entry[1]:gmatch("%S+") do
      if name:find("^test_" .. p .. "$") then return entry[2], entry[3] end
    end
  end
end

local function size_text(t) return moth.is_tensor(t) and t:dtype().name .. tostring(t:size()) or type(t) end

local function differs(got, want, rtol, atol)
  if want == nil then return got ~= nil and "a value for none" or nil end
  if type(want) == "table" and want.kind == "strings" then
    if type(got) ~= "table" or got.kind ~= "strings" then return "no texts, but " .. type(got) end
    if table.concat(got.shape, ",") ~= table.concat(want.shape, ",") then return "texts of another shape" end
    for i = 1, want.n do
      if got[i] ~= want[i] then return ("text %d is '%s', expected '%s'"):format(i, tostring(got[i]), want[i]) end
    end
    return
  end
  if type(want) == "table" then
    if type(got) ~= "table" then return "no sequence" end
    if #got ~= #want then return ("a sequence of %d, expected %d"):format(#got, #want) end
    for i, v in ipairs(want) do
      local why = differs(got[i], v, rtol, atol)
      if why then return why end
    end
    return
  end
  if not moth.is_tensor(got) then return "no tensor, but " .. type(got) end
  if size_text(got) ~= size_text(want) then
    return ("%s, expected %s"):format(size_text(got), size_text(want))
  end
  if want:numel() == 0 then return end
  if want:is_complex() then return moth.allclose(got, want, { rtol = rtol, atol = atol }) and nil or "other values" end
  local a, b = got:to(moth.float64), want:to(moth.float64)
  local same = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  local off = (a - b):abs()
  local close = off:le(b:abs() * rtol + atol):logical_or(same)
  if not close:all():item() then
    return ("%d of %d elements differ, by up to %g"):format(close:logical_not():to(moth.int64):sum():item(), a:numel(),
      moth.where(close, moth.zeros_like(off), off):max():item())
  end
end

local function run(name, rtol, atol, ins, outs)
  local session = moth.onnx.InferenceSession(folder .. "/" .. name .. ".onnx")
  local inputs, i = {}, 0
  local graph = session.model.graph
  for kind in ins:gmatch("%a+") do
    i = i + 1
    inputs[graph.inputs[i]] = reader.value(("%s/%s.in%d"):format(folder, name, i), kind)
  end
  local recorded
  for again = 1, 2 do
    local results = session:run(nil, inputs)
    i = 0
    for kind in outs:gmatch("%a+") do
      i = i + 1
      local want = reader.value(("%s/%s.out%d"):format(folder, name, i), kind)
      local why = differs(results[i], want, rtol, atol)
      if why then return ("result %d%s: %s"):format(i, again == 2 and " of the program" or "", why) end
    end
    for _, program in require "moth.each"(session.programs) do recorded = program and true end
  end
  return nil, recorded
end

local passed, programs, count, unexplained, by_reason, order = 0, 0, 0, 0, {}, {}
for line in io.lines(folder .. "/list.txt") do
  local name, rtol, atol, ins, outs = line:match("^(%S+) (%S+) (%S+) ([^;]*); ([^;]*);")
  if not pattern or name:find(pattern) then
    count = count + 1
    local ok, why, recorded = pcall(run, name, tonumber(rtol), tonumber(atol), ins, outs)
    local reason, may_pass = reason_of(name)
    if ok and not why then
      passed = passed + 1
      programs = programs + (recorded and 1 or 0)
      if reason and not may_pass then
        unexplained = unexplained + 1
        print(("onnx case %s passes, but has a reason not to: %s"):format(name, reason))
      end
    elseif reason then
      if not by_reason[reason] then order[#order + 1] = reason end
      by_reason[reason] = (by_reason[reason] or 0) + 1
    else
      unexplained = unexplained + 1
      print(("onnx case %s: %s"):format(name, (tostring(why):gsub("\n.*", ""))))
    end
  end
end
for _, reason in ipairs(order) do print(("onnx cases: %4d not: %s"):format(by_reason[reason], reason)) end
print(("onnx cases: %d of %d pass, %d of them as recorded programs too; %d unexplained"):format(passed, count, programs,
  unexplained))
os.exit(unexplained == 0 and 0 or 1)
