--- Sizes that change from call to call: dimensions with names and ranges, and formulas of them.
--
-- A graph is recorded at several sizes of each dimension. A number that differs between these records is a formula of
-- the dimensions (moth.export.fit finds it):
--
--     { terms = { { 2, "batch" }, { 1, "batch", "time" } }, add = 1, div = 2, of = "rsqrt", scale = 3 }
--
-- is 3 / sqrt(floor((2 * batch + batch * time + 1) / 2)); div and scale are left out where they are 1, of where it is
-- none. A factor of a term may be a formula itself, without of and scale.
local check = require "moth.utils.check"
local class = require "moth.class"
local signature = require "moth.utils.signature"

local M = {}

-- ---- dimensions ----------------------------------------------------------------------------------

local Dim = class("Dim")

--- A dimension that may have any size in a range: Dim("batch", { min = 1, max = 64 }); multiple_of = n: the multiples
-- of n among them.
Dim.__init = signature.init("Dim(string name, *, int min=0, int max?, int multiple_of=1)", function(self, o)
  if not o.name:find("^[%a_][%w_]*$") then
    check.fail("[Dim] expected a name of letters and digits, got '%s'", o.name)
  end
  if o.min < 0 or o.max and o.max < o.min then
    check.fail("[Dim] %s: the range is %d to %s: expected 0 <= min <= max", o.name, o.min, tostring(o.max))
  end
  if o.multiple_of < 1 then check.fail("[Dim] %s: multiple_of is %d: expected at least 1", o.name, o.multiple_of) end
  self.name, self.min, self.max, self.multiple_of = o.name, o.min, o.max, o.multiple_of
end)
function Dim:__tostring() return ("Dim(%s, %d to %s)"):format(self.name, self.min, self.max and self.max or "any") end
M.Dim = Dim

--- Whether a size is in the range of a dimension.
function M.fits(range, n)
  return n >= range.min and (range.max == nil or n <= range.max) and n % (range.multiple_of or 1) == 0
end

local NEAR, WIDE, FAR, STEP = 8, 72, 1021, 13

--- The sizes at which a dimension is recorded beside that of the example, and from which of them on they are far ones:
-- near ones tell what is rounded, far ones the slope, and are so far that a branch on a size, and a division by a large
-- number, show. Sizes below 2 are left out, which ops treat in ways of their own. wide: as many near ones as a division
-- by 64 needs, and as many far ones as tell it from one by 63.
function M.probes(range, example, wide)
  local list, known = {}, { [example] = true }
  local function try(n)
    if n >= 2 and not known[n] and M.fits(range, n) then
      list[#list + 1] = n
      known[n] = true
    end
  end
  local every = range.multiple_of or 1
  local base = math.max(example, every == 1 and 2 or every)
  for step = 1, wide and WIDE or NEAR do try(base + step * every) end
  if #list < (wide and WIDE or 4) then
    for step = 1, wide and WIDE or NEAR do try(base - step * every) end
  end
  try(base)
  try(base + (wide and 3 * WIDE or 21) * every)
  local near = #list
  for k = wide and 5 or 0, 0, -1 do
    local far = base + math.ceil((FAR - k * STEP) / every) * every
    try(range.max and math.min(far, range.max - range.max % every) or far)
  end
  return list, near + 1
end

-- ---- formulas ------------------------------------------------------------------------------------

local maps = {
  reciprocal = { function(v) return 1 / v end, function(v) return 1 / v end },
  sqrt = { math.sqrt, function(v) return v * v end },
  rsqrt = { function(v) return 1 / math.sqrt(v) end, function(v) return 1 / (v * v) end },
}

--- The value of a formula, where dims are { name = size }.
function M.evaluate(f, dims)
  local sum = f.add or 0
  for _, term in ipairs(f.terms) do
    local product = term[1]
    for i = 2, #term do
      local factor = term[i]
      product = product * (type(factor) == "table" and M.evaluate(factor, dims) or dims[factor])
    end
    sum = sum + product
  end
  if f.div then sum = math.floor(sum / f.div) end
  if f.of then sum = maps[f.of][1](sum) end
  return f.scale and f.scale * sum or sum
end

--- A formula as text: "2*batch + 1".
function M.text(f)
  local parts = {}
  for _, term in ipairs(f.terms) do
    local factors = {}
    for i = 2, #term do
      local factor = term[i]
      if type(factor) == "table" then factor = (factor.div and "%s" or "(%s)"):format(M.text(factor)) end
      factors[i - 1] = factor
    end
    local names = table.concat(factors, "*")
    parts[#parts + 1] = term[1] == 1 and names or ("%d*%s"):format(term[1], names)
  end
  if (f.add or 0) ~= 0 or #parts == 0 then parts[#parts + 1] = ("%d"):format(f.add or 0) end
  local text = table.concat(parts, " + "):gsub("%+ %-", "- ")
  if f.div then text = ("(%s)//%d"):format(text, f.div) end
  if f.of then text = ("%s(%s)"):format(f.of, text) end
  if f.scale then text = ("%.9g*%s"):format(f.scale, f.of and text or "(" .. text .. ")") end
  return text
end

local MOST_FACTORS, MOST_DEPTH = 8, 3

--- Whether a table, read from a file, is a formula of these dimensions.
function M.is_formula(f, dims, depth)
  depth = depth or 1
  if type(f) ~= "table" or type(f.terms) ~= "table" or depth > MOST_DEPTH then return false end
  if f.of ~= nil and (not maps[f.of] or depth > 1) or f.scale ~= nil and (type(f.scale) ~= "number" or depth > 1) then
    return false
  end
  if f.add ~= nil and type(f.add) ~= "number" or f.div ~= nil and (type(f.div) ~= "number" or f.div < 1) then
    return false
  end
  for _, term in ipairs(f.terms) do
    if type(term) ~= "table" or type(term[1]) ~= "number" or #term < 2 or #term > MOST_FACTORS + 1 then return false end
    for i = 2, #term do
      if type(term[i]) == "table" then
        if not M.is_formula(term[i], dims, depth + 1) then return false end
      elseif not dims[term[i]] then
        return false
      end
    end
  end
  return true
end

--- What makes numbers of whole ones, by name: { the function, its inverse }.
M.maps = maps

return M
