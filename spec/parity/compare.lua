--- What the programs of this folder share: the cases of a JSON file, tensors in them, comparisons that are counted.
local moth = require "moth"

local M = {}
local count, bad = 0, 0

function M.cases(path)
  local f = assert(io.open(path))
  local text = f:read "*a"
  f:close()
  return require("cjson").decode(text)
end

--- The tensor of { shape =, data = }, in float64.
function M.tensor(p) return moth.tensor(p.data, { dtype = moth.float64 }):view(p.shape) end

--- Counts a comparison, and prints why (a format) where it is not ok.
function M.check(what, ok, ...)
  count = count + 1
  if ok then return end
  bad = bad + 1
  print(what .. ": " .. (...):format(select(2, ...)))
end

--- Within `limit` of the largest value.
function M.same(what, got, want, limit)
  if tostring(got:size()) ~= tostring(want:size()) then
    return M.check(what, false, "shape %s, should be %s", tostring(got:size()), tostring(want:size()))
  end
  local by = ((got:detach():to(moth.float64) - want):abs():max() / want:abs():max()):item()
  M.check(what, by <= limit, "differs by %g of the largest", by)
end

--- Prints the counts, and raises where something differs. with: the other package.
function M.finish(name, with)
  print(("%s: %d comparisons with %s, %d differ"):format(name, count, with, bad))
  if bad > 0 then error(name .. ": values differ", 0) end
end

return M
