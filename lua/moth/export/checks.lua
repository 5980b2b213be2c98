--- What a program does at sizes that it was not recorded at: small ones, which are cases of their own, and those where
-- code takes another way.
local check = require "moth.utils.check"
local tree = require "moth.lang.tree"
local sizes = require "moth.compile.sizes"
local follow = require "moth.export.follow"
local merge = require "moth.export.merge"

local M = {}

local WHERE = "export"

-- The sizes below the example's, from `first` on, at which the program is not that of the example: the largest of them
-- and what happens there; nil: there is none. look(n) -> "same", "other", or the error of an op, which the program has,
-- too.
local function largest_other(look, first, example, every)
  local function least(low, high, is) -- of those for which is(look(n)), of which high is one, and none below low
    while low < high do
      local middle = math.floor((low + high) / 2)
      if is(look(middle * every)) then high = middle else low = middle + 1 end
    end
    return low
  end
  local low, high = math.ceil(first / every), example / every
  if look(low * every) == "same" then return nil end
  low = least(low, high, function(said) return said == "same" or said == "other" end)
  low = least(low, high, function(said) return said == "same" end)
  if low * every > first and look((low - 1) * every) == "other" then return (low - 1) * every end
end

--- Small sizes are often cases of their own, in Lua code as in ops, 1 most of all: where the program is another one
-- there, the range begins behind; an error where the caller asked for them.
function M.small(given, record, program, state)
  for _, name in ipairs(tree.keys(given.dims)) do
    local range, example, seen = given.dims[name], given.example[name], {}
    local function look(n)
      if not seen[n] then
        local point = follow.at(given.example, name, n)
        local ok, one = pcall(record, point)
        seen[n] = not ok and tostring(one) or merge.holds_at(program, one, point, state) and "same" or "other"
      end
      return seen[n]
    end
    local every = range.multiple_of or 1
    local largest = example > 2 and largest_other(look, math.max(range.min, 2), example, every)
    if not largest and example > 1 and sizes.fits(range, 1) and look(1) ~= "same" then largest = 1 end
    if largest then
      if range.min > 0 then
        local said = look(largest)
        if said == "other" then said = "the function makes other calls than with other sizes" end
        check.fail("[%s] with %s = %d %s\nHINT: moth.Dim(\"%s\", { min = %d }), and a program of its own for %s",
          WHERE, name, largest, said, name, largest + every, largest == 1 and "1" or "less")
      end
      range.min = largest + every
    end
  end
end
--- Sizes at which C code takes another way are found by trying some.
function M.corners(given, record, program, state)
  for _, name in ipairs(tree.keys(given.dims)) do
    for _, n in ipairs(sizes.corners(given.dims[name])) do
      local point = follow.at(given.example, name, n)
      local ok, one = pcall(record, point)
      if ok and follow.holds(given.guards, point) and not merge.holds_at(program, one, point, state) then
        check.fail("[%s] with %s = %d the function makes other calls than with %s\nHINT: limit the dimension by "
          .. "moth.Dim(\"%s\", { min = …, max = … }), and export a program of its own for the rest", WHERE, name,
          n, merge.point_text(given.example), name)
      end
    end
  end
end

--- Guards that hold at all sizes are left out; where the small sizes are those that a guard leaves out, the range
-- begins behind them.
function M.settled(given, least_of)
  for _, name in ipairs(tree.keys(given.dims)) do
    local range, example = given.dims[name], given.example[name]
    local every = range.multiple_of or 1
    local least = math.max(range.min, example - 4096 * every)
    local behind, below = nil, false -- the first size that guards leave out, and whether they allow smaller ones
    for n = example, least, -every do
      local point = follow.at(given.example, name, n)
      local holds = follow.holds(given.guards, point)
      below = below or behind ~= nil and holds
      if not holds then behind = behind or n + every end
    end
    if behind and not below and least_of[name] == 0 then range.min = behind end
  end
  local left = {}
  for _, g in ipairs(given.guards) do
    if not sizes.guard_decided(g, given.dims) then left[#left + 1] = g end
  end
  return #left > 0 and left or nil
end

return M
