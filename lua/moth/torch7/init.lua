--- moth.torch7: reads Torch7's files, .t7 and .th: tensors, tables, and networks of its nn (docs/from-torch7.md).
--
--     local net = moth.torch7.load("model.t7")         -- moth.load does so, too
--     local raw = moth.torch7.load("model.t7", { modules = false })   -- objects as tables of their fields
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local reader = require "moth.torch7.reader"

local M = {}

--- The value of a file that torch.save of Torch7 wrote, binary or ascii: numbers, strings, booleans, tables, tensors (a
-- storage is a vector), and networks as modules of moth.nn. Tensors that shared a storage share it again. An object of
-- another class is a table of its fields with the class's name as torch_typename; so are networks with modules = false.
-- map_location: the device of the tensors. functions = "skip" leaves out Lua functions, which are an error otherwise:
-- nothing of a file is run. long_size: 4 or 8, the bytes of a long of the machine that wrote it; both are tried.
M.load = signature("torch7.load(path path, *, bool modules=true, device map_location?, 'error'|'skip' \z
  functions='error', int long_size?)",
function(path, modules, map_location, functions, long_size)
  if long_size and long_size ~= 4 and long_size ~= 8 then
    check.fail("[torch7.load] long_size must be 4 or 8, got %d", long_size)
  end
  local place
  if map_location ~= nil then
    local device = B.device(map_location)
    place = function(t) return t:to(device) end
  end
  local value, wrong, refused = reader.read(path, { place = place, functions = functions, long_size = long_size })
  if wrong then
    check.fail(refused and "[torch7.load] %s: %s" or "[torch7.load] %s: the Torch7 file is damaged: %s", path, wrong)
  end
  if not modules then return value end
  return require("moth.torch7.modules").convert(value)
end)

return M
