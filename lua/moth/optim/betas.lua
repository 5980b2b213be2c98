--- The options of optimizers that follow means of gradients.
local check = require "moth.utils.check"
local M = {}

--- Checks o[key], a list of two numbers of at least 0 and below 1, and sets it to `default` where it is nil.
function M.check(where, o, key, default)
  local list = o[key] or default
  if #list ~= 2 then check.fail("[%s] %s are two numbers, got %d", where, key, #list) end
  for i = 1, 2 do
    if not (list[i] >= 0 and list[i] < 1) then
      check.fail("[%s] %s[%d] must be less than 1 and at least 0, got %g", where, key, i, list[i])
    end
  end
  o[key] = { list[1], list[2] }
end

--- A check of options: betas as above, and numbers of at least 0.
function M.verify(where, default, ...)
  local numbers = { ... }
  return function(_, o)
    M.check(where, o, "betas", default)
    for _, key in ipairs(numbers) do check.number(where, key, o[key], 0) end
  end
end

return M
