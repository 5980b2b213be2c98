--- Random choices that a seed repeats, and Lua texts of numbers, sizes and strings as a fuzzer wants them: mostly
-- usual, now and then at a bound or beyond it.
local bit = require "bit"

local Chance = {}
Chance.__index = Chance

--- A source of its own for each pair of a seed and a number.
function Chance.new(seed, n)
  local c = setmetatable({ state = bit.tobit((seed * 40503 + (n or 0) * 9176 + 77) % 2 ^ 32) }, Chance)
  if c.state == 0 then c.state = 1 end
  for _ = 1, 8 do c:bits() end
  return c
end

function Chance:bits()
  local x = self.state
  x = bit.bxor(x, bit.lshift(x, 13))
  x = bit.bxor(x, bit.rshift(x, 17))
  x = bit.bxor(x, bit.lshift(x, 5))
  self.state = x
  return x % 2 ^ 32
end

--- An integer in [a, b], or in [1, a].
function Chance:int(a, b)
  if not b then a, b = 1, a end
  return a + self:bits() % (b - a + 1)
end

function Chance:one_in(n) return self:bits() % n == 0 end
function Chance:pick(list) return list[self:int(#list)] end

local small = { "0", "1", "1", "2", "2", "3", "4", "5", "-1", "-1", "-2", "-3" }
local bounds = { "0", "7", "8", "9", "15", "16", "17", "31", "33", "64", "127", "128", "255", "256", "-128", "-129",
  "65535", "65536" }
local huge = { "2^31-1", "2^31", "-2^31", "2^32", "2^40", "-2^40", "2^52", "2^53-1", "2^53", "-2^53", "2^60", "2^62",
  "2^63", "-2^63", "2^64", "1e300", "1e19", "3e9" }
local real = { "0.5", "0.1", "-0.5", "1.5", "2.5", "-1e-3", "0.999", "1e-12", "-0", "1e10", "1e38", "1e39", "1e308",
  "5e-324", "65504", "65520" }
local special = { "0/0", "1/0", "-1/0" }

--- The text of an integer, most often a small one.
function Chance:integer()
  local n = self:int(100)
  if n <= 82 then return self:pick(small) end
  if n <= 90 then return self:pick(bounds) end
  if n <= 96 then return self:pick(huge) end
  return self:pick(n <= 98 and real or special)
end

--- The text of any number.
function Chance:number()
  local n = self:int(100)
  if n <= 50 then return self:pick(small) end
  if n <= 82 then return self:pick(real) end
  if n <= 88 then return self:pick(bounds) end
  return self:pick(n <= 94 and huge or special)
end

local odd = { "nil", "true", "false", "'x'", "''", "'mean'", "'cpu'", "{}", "{1}", "{{}}", "{1,2,'x'}", "{dim=1}",
  "{bogus=1}", "print", "function() end", "io.stdout", "newproxy(true)", "moth.float32", "moth.device('cpu')",
  "coroutine.create(print)", "LONG", "'a\\0b'", "gen()", "freed()", "2^53+2", "moth.nn.Linear(2,3)", "1LL",
  "setmetatable({}, {})", "{p[1],p[2]}", "{[1]=p[1],[3]=p[2]}", "{p[1],7}" }
--- The text of what few arguments take.
function Chance:oddity() return self:pick(odd) end

-- A number in a text, not a part of a name or of another number.
local NUMBER = "%f[%w_.]%d+%.?%d*%f[^%w_.]"

--- The text with one of its numbers changed, if it has any.
function Chance:change_number(text)
  local count, k = 0, 0
  text = text:gsub("(%d)e%-(%d)", "%1e_%2") -- an exponent is no number of its own
  for _ in text:gmatch(NUMBER) do count = count + 1 end
  local at = count > 0 and self:int(count) or 0
  text = text:gsub(NUMBER, function(old)
    k = k + 1
    if k ~= at then return old end
    local new = self:one_in(3) and self:number() or self:integer()
    return new:find("^%d+$") and new or "(" .. new .. ")"
  end)
  return (text:gsub("(%d)e_(%d)", "%1e-%2"))
end

-- The parts of a text between commas that no bracket holds.
local function parts_of(text)
  local parts, depth, from = {}, 0, 1
  for i = 1, #text do
    local ch = text:sub(i, i)
    if ch:find("[%(%[{]") then depth = depth + 1
    elseif ch:find("[%)%]}]") then depth = depth - 1
    elseif ch == "," and depth == 0 then
      parts[#parts + 1] = text:sub(from, i - 1)
      from = i + 1
    end
  end
  if from <= #text or #parts > 0 then parts[#parts + 1] = text:sub(from) end
  return parts
end

--- The text with one argument of one of its calls (or element of its tables) taken away, doubled, put elsewhere or
-- changed for an oddity.
function Chance:change_argument(text)
  local places = {}
  for at in text:gmatch("()[%({]") do places[#places + 1] = at end
  if #places == 0 then return text end
  local at = self:pick(places)
  local group = text:match("^%b()", at) or text:match("^%b{}", at)
  if not group then return text end
  local parts, n = parts_of(group:sub(2, -2)), self:int(8)
  local k = #parts > 0 and self:int(#parts)
  if not k or n == 1 then table.insert(parts, k or 1, self:one_in(2) and self:number() or self:oddity())
  elseif n == 2 then table.remove(parts, k)
  elseif n == 3 then parts[#parts + 1] = parts[k]
  elseif n == 4 then
    local j = self:int(#parts)
    parts[k], parts[j] = parts[j], parts[k]
  else
    local name = parts[k]:match("^%s*[%a_][%w_]*%s*=") or ""
    parts[k] = name .. (self:one_in(3) and self:number() or self:oddity())
  end
  return text:sub(1, at) .. table.concat(parts, ",") .. text:sub(at + #group - 1)
end

return Chance
