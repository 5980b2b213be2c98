--- Ids as they come, as text: pieces are whole UTF-8 characters, and nothing is given out that could be the beginning
-- of a stop string.
--
--     local text = moth.llm.Text(tokenizer, { "\n\n" })
--     io.write(text:add(id))                     -- "" where nothing is sure yet
--     if text.stopped then … end                 -- a stop string was there: it and what follows are left out
--     io.write(text:finish())                    -- what was held back
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local unicode = require "moth.data.unicode"

local Text = class "llm.Text"

local REPLACEMENT = "\239\191\189" -- U+FFFD

--- stop: texts at which it ends.
Text.__init = signature.init("llm.Text(any tokenizer, string[] stop?)", function(self, o)
  if type(o.tokenizer) ~= "table" or type(o.tokenizer.bytes) ~= "function" then
    check.fail("[llm.Text] expected a tokenizer as moth.tokenizer.load gives it, got %s", type(o.tokenizer))
  end
  self.tokenizer, self.stop, self.held, self.bytes = o.tokenizer, o.stop or {}, "", ""
end)

-- The whole characters of bytes, and the bytes behind them of one that is not whole yet.
local function characters(s)
  if not s:find "[\128-\255]" then return s, "" end
  local out, i = {}, 1
  while i <= #s do
    local n, whole, wrong = unicode.character(s, i)
    if not whole then return table.concat(out), s:sub(i) end
    out[#out + 1] = wrong and REPLACEMENT or s:sub(i, i + n - 1)
    i = i + n
  end
  return table.concat(out), ""
end

-- Where a stop string begins; else how many bytes at the end could be the beginning of one.
local function search(self)
  local s, first, risk = self.held, nil, 0
  for _, stop in ipairs(self.stop) do
    local at = s:find(stop, 1, true)
    if at and (not first or at < first) then first = at end
    for n = math.min(#stop - 1, #s), risk + 1, -1 do
      if s:sub(-n) == stop:sub(1, n) then
        risk = n
        break
      end
    end
  end
  return first, risk
end

--- The text that is sure with one more id.
function Text:add(id)
  if self.stopped then return "" end
  -- A model may have more ids than its tokenizer, which stand for nothing.
  if self.tokenizer.special[id] or not self.tokenizer:token(id) then return "" end
  local whole, rest = characters(self.bytes .. self.tokenizer:bytes(id))
  self.held, self.bytes = self.held .. whole, rest
  local stop, risk = search(self)
  if stop then self.stopped = true end
  local piece = self.held:sub(1, stop and stop - 1 or #self.held - risk)
  self.held = stop and "" or self.held:sub(#piece + 1)
  return piece
end

--- The text that was held back; at the end of the ids.
function Text:finish()
  local rest = self.stopped and "" or self.held .. self.bytes:gsub(".+", REPLACEMENT)
  self.held, self.bytes = "", ""
  return rest
end

return Text
