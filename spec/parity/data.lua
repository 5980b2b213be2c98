-- Transforms, image files and tokenizers beside torchvision, Pillow and tokenizers. Usage:
-- python3 spec/parity/data.py DIR; luajit spec/parity/data.lua DIR
local moth = require "moth"
local cjson = require "cjson"

local folder = arg[1]
local f = assert(io.open(folder .. "/cases.json"))
local cases = cjson.decode(f:read("*a"))
f:close()

local function load(name) return moth.load(("%s/%s.npy"):format(folder, name)) end

local env = setmetatable({ moth = moth, data = moth.data, F = moth.transforms.functional }, { __index = _G })
local tokenizers, wrong, worst = {}, 0, 0

local function fail(...)
  wrong = wrong + 1
  if wrong <= 10 then print(("✗ " .. (...)):format(select(2, ...))) end
end

for _, case in ipairs(cases) do
  if case.tokenizer then
    local tok = tokenizers[case.tokenizer] or moth.data.Tokenizer(case.tokenizer)
    tokenizers[case.tokenizer] = tok
    local ids = tok:encode(case.text)
    local same = #ids == #case.ids
    for k, id in ipairs(case.ids) do same = same and ids[k] == id + 1 end
    if not same then fail("%s: other tokens of %q", case.tokenizer, case.text)
    elseif tok:decode(ids) ~= case.decoded then fail("%s: %q decoded otherwise", case.tokenizer, case.text) end
  else
    env.x = case.x ~= cjson.null and load(case.x) or nil
    local y, expected = setfenv(assert(loadstring("return " .. case.code)), env)(), load(case.y)
    if tostring(y:size()) ~= tostring(expected:size()) then
      fail("%s: shape %s, expected %s", case.code, tostring(y:size()), tostring(expected:size()))
    else
      local far = (y - expected):abs():max():item()
      worst = math.max(worst, far / case.tolerance)
      if far > case.tolerance or far ~= far then fail("%s: differs by %g", case.code, far) end
    end
  end
end
print(("%s data: %d cases beside torchvision, Pillow, tokenizers; %d wrong; the largest difference %.2f of the allowed")
  :format(wrong == 0 and "✓" or "✗", #cases, wrong, worst))
os.exit(wrong == 0 and 0 or 1, true)
