-- Files of torch.save back as NAME.moth.pt, why others are refused, steps of a gradient scaler, and the classes of
-- torch.nn that are missing. Usage: moth pytorch_bridge.lua FOLDER
local moth = require "moth"
local cjson = require "cjson"

local folder = arg[1]
local f = assert(io.open(folder .. "/cases.json"))
local cases = cjson.decode(f:read "*a")
f:close()
local said = { refused = {}, missing = {}, rows = {}, rest = {} }
for _, name in ipairs(cases.files) do
  moth.save(moth.load(("%s/%s.pt"):format(folder, name)), ("%s/%s.moth.pt"):format(folder, name))
end
for _, name in ipairs(cases.refused) do
  local ok, why = pcall(moth.load, ("%s/%s.pt"):format(folder, name))
  said.refused[name] = not ok and why or nil
end
for _, name in ipairs(cases.classes) do
  if not pcall(function() return assert(moth.nn[name]) end) then said.missing[#said.missing + 1] = name end
end

local over = {}
for _, t in ipairs(cases.over) do over[t] = true end
local w = moth.tensor({ 0.5, -1, 2 }):requires_grad_()
local o = moth.optim.SGD({ w }, { lr = 0.1, momentum = 0.9 })
local scaler = moth.amp.GradScaler { init_scale = 1024, growth_interval = 3 }
local function steps(rows, from, to)
  for t = from, to do
    o:zero_grad()
    scaler:scale((w * w):sum()):backward()
    if over[t] then w.grad[1] = math.huge end
    if t % 4 == 0 then
      scaler:unscale_(o)
      moth.nn.utils.clip_grad_norm_({ w }, 0.5)
    end
    scaler:step(o)
    scaler:update()
    local row = w:detach():totable()
    table.insert(row, 1, scaler:get_scale())
    rows[#rows + 1] = row
  end
end
steps(said.rows, 0, 11)
moth.save({ scaler = scaler:state_dict(), optimizer = o:state_dict(), w = w:detach():clone() },
  folder .. "/scaler.moth.pt")
steps(said.rows, 12, 23)
local theirs = moth.load(folder .. "/scaler.pt")
scaler:load_state_dict(theirs.scaler)
o:load_state_dict(theirs.optimizer)
w:detach():copy_(theirs.w)
steps(said.rest, 12, 23)
print(cjson.encode(said))
