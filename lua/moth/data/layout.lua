--- Where the channels of an image are: first, (C, H, W), or last, (H, W, C), as its sizes tell.
--
-- An image has 1 or 3 channels, or 4, or, rarely, 2: of two dimensions that may be the channels, it is the one with the
-- likelier number. nil: both are as likely, or neither has such a number.
local B = require "moth_lua"
local check = require "moth.utils.check"

local M = {}

local likely = { 3, 1, 3, 2 } -- of 1, 2, 3, 4 channels

--- "first", "last" or nil, for the sizes of the first and the last dimension.
function M.of(first, last)
  local a, b = likely[first] or 0, likely[last] or 0
  if a == b then return nil end
  return a > b and "first" or "last"
end

--- The same for an image, or for images behind one dimension more; raises where it cannot be told. hint: what to do.
function M.find(where, x, hint)
  local n = B.dim(x)
  local found = M.of(B.size(x, n - 2), B.size(x, n))
  if found then return found end
  check.fail("%s: %s: from these sizes one cannot tell whether the channels (1, 3 or 4) come first or last; %s", where,
    B.format(x), hint)
end

return M
