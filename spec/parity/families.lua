-- Families of language models with the weights of transformers, made there at random: logits and greedy ids.
-- Usage: python3 spec/parity/families.py DIR; luajit spec/parity/families.lua DIR [PART OF A NAME]
local moth = require "moth"
local dir, part = arg[1], arg[2] or ""
local cases = require("spec.parity.compare").cases(dir .. "/cases.json")

local LIMIT = 1e-4
local failed, refused, names = 0, 0, {}
for name in pairs(cases) do
  if name:find(part, 1, true) then names[#names + 1] = name end
end
table.sort(names)

local function ints(rows, more) return moth.tensor(rows, { dtype = moth.int64 }) + (more or 0) end
local function same(got, want, is_wide) -- is_wide: numbers may be large
  local w = moth.tensor(want.data):view(want.shape)
  if tostring(got:size()) ~= tostring(w:size()) then
    return ("the shape is %s, should be %s"):format(tostring(got:size()), tostring(w:size()))
  end
  local by = (got - w):abs():max():item()
  local limit = LIMIT * (is_wide and math.max(1, w:abs():max():item()) or 1)
  if by > limit or by ~= by then return ("differs by %g"):format(by) end
end

local function compare(case)
  local ok, model = pcall(moth.models.load, case.folder)
  if not ok then
    if case.may_refuse then
      refused = refused + 1
      return nil
    end
    error(model, 0)
  end
  return moth.no_grad(function()
    local ids = ints(case.ids, 1)
    local out
    if case.mask then -- an encoder
      local types = case.types and ints(case.types, 1) or nil
      out = { model(ids, { attention_mask = ints(case.mask), token_type_ids = types }) }
    else
      out = { model(ids) }
    end
    if #out ~= #case.out then return ("%d results, should be %d"):format(#out, #case.out) end
    for i, want in ipairs(case.out) do
      local why = same(out[i], want, case.may_refuse)
      if why then return why end
    end
    if not case.greedy then return nil end
    local first = moth.tensor(case.greedy, { dtype = moth.int64 }) + 1
    local new = first:size(2) - ids:size(2)
    -- over pages, in pieces, side by side; and two rows at once, one of them padded
    local scheduler = moth.llm.Scheduler(model, { max_tokens = 256, step_tokens = 5 })
    local requests = {}
    for r = 1, ids:size(1) do
      requests[r] = scheduler:add { ids = ids[r]:totable(), max_tokens = new, temperature = 0 }
    end
    while scheduler:step() > 0 do end -- luacheck: ignore 542
    for r, request in ipairs(requests) do
      for i, id in ipairs(request.ids) do
        if first[r][i]:item() ~= id then return ("over pages, greedy id %d of row %d is %d"):format(i, r, id) end
      end
    end
    local mask = moth.ones_like(ids)
    mask[1]:narrow(1, 1, 3):fill_(0)
    local padded = model:generate(ids, new, { do_sample = false, attention_mask = mask })
    local alone = model:generate(ids:narrow(1, 1, 1):narrow(2, 4, 6), new, { do_sample = false })
    if not padded[1]:narrow(1, 4, 6 + new):equal(alone[1]) then return "a padded row is not as it is alone" end
    for r, want in ipairs(case.greedy) do
      local prompt = ids:narrow(1, r, 1)
      local got = model:generate(prompt, #want - prompt:size(2), { do_sample = false }):view(-1)
      for i, id in ipairs(want) do
        if got[i]:item() ~= id + 1 then return ("greedy id %d is %d, should be %d"):format(i, got[i]:item(), id + 1) end
      end
    end
  end)
end

for _, name in ipairs(names) do
  local ok, why = pcall(compare, cases[name])
  if why then
    failed = failed + 1
    print(("%s: %s%s"):format(name, ok and "" or "error: ", tostring(why)))
  end
end
local more = refused > 0 and ("; %d are refused"):format(refused) or ""
print(("families: %d of %d differ%s"):format(failed, #names, more))
if failed > 0 then error("there are differences", 0) end
