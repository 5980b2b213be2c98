--- Reads sizes for convolutions: a number for all dimensions or a list, and paddings by name.
local check = require "moth.utils.check"

local M = {}

--- A number, or a list of n of them, as a list; nil gives `default`.
function M.of(where, name, v, n, default)
  if v == nil then v = default end
  local list = type(v) == "table" and v or {}
  for i = 1, n do
    if type(v) ~= "table" then list[i] = v end
    if type(list[i]) ~= "number" or list[i] ~= math.floor(list[i]) then
      check.fail("[%s] %s must be an integer or a list of %d, got %s", where, name, n, tostring(list[i]))
    end
  end
  if #list ~= n then check.fail("[%s] %s must have %d numbers, got %d", where, name, n, #list) end
  return list
end

--- padding = "same" or "valid" as a list of numbers, and a list of booleans by dimension: whether the end gets one more
-- ("same" with an even extent).
function M.named_padding(where, padding, kernel, stride, dilation)
  if padding == "valid" then return 0 end
  if padding ~= "same" then
    check.fail("[%s] padding is a number, a list, 'same' or 'valid', got '%s'", where, tostring(padding))
  end
  local pad, more = {}, nil
  for i = 1, #kernel do
    if stride[i] ~= 1 then check.fail("[%s] padding 'same' needs stride 1, got %d", where, stride[i]) end
    local total = dilation[i] * (kernel[i] - 1)
    pad[i] = math.floor(total / 2)
    if total % 2 == 1 then
      more = more or {}
      more[i] = true
    end
  end
  return pad, more
end

return M
