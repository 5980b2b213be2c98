--- What the fixtures of families of models have in common: their cases, and weights made by a formula
-- (spec/parity/families.py and gguf_fixtures.py have it, too).
local moth = require "moth"

local M = {}

--- The cases of a fixture, and their names in order.
function M.cases(name)
  local f = assert(io.open("spec/models/fixtures/" .. name))
  local cases, names = moth.json.decode(f:read "*a"), {}
  f:close()
  for key in pairs(cases) do names[#names + 1] = key end
  table.sort(names)
  return cases, names
end

--- The weight of a name; is_norm: about 1.
function M.weight(name, shape, is_norm)
  local at, n, list = 17, 1, {}
  for i = 1, #name do at = (at * 31 + name:byte(i)) % 65537 end
  for _, size in ipairs(shape) do n = n * size end
  for k = 0, n - 1 do
    local x = (k * 7919 + at) ^ 2 % 65537 / 65537 - 0.5
    list[k + 1] = is_norm and 1 + 0.6 * x or x
  end
  return moth.tensor(list):view(shape)
end

--- The last 6 elements.
function M.last(y) return y:reshape(-1):narrow(1, y:numel() - 5, 6) end

return M
