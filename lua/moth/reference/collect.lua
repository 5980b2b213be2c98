--- All that the reference speaks of: ops, and every function, class and module below `moth`.
local entry = require "moth.reference.entry"

local DEPTH = 4 -- moth.nn.utils.rnn.pack_sequence

local function is_module(t)
  local mt = debug.getmetatable(t)
  return rawget(t, "__name") == nil and not (type(mt) == "table" and (rawget(mt, "__tostring") or rawget(mt, "__name")))
end

--- A list of { path, value, module }: ops first (without a value), then what is found from `moth` on, each once, behind
-- the module that it was found in.
return function()
  local ops = require "moth.dispatch.ops"
  local list, seen = {}, {}
  for _, name in ipairs(ops.list()) do list[#list + 1] = { name } end
  local function visit(value, path, name, depth, module)
    if (type(value) ~= "table" and type(value) ~= "function") or seen[value] then return end
    if name == "F" or type(value) == "function" and (depth == 2 or path:find("^moth%.ops%.")) and ops.get(name) then
      return -- nn.functional under its short name, or an op, which is listed already
    end
    if type(value) == "table" and not is_module(value) and not entry.is_class(value) then return end -- moth.float32
    seen[value] = true
    list[#list + 1] = { path, value, module }
    if type(value) ~= "table" or entry.is_class(value) or depth == DEPTH then return end
    local names = entry.fields(value)
    table.sort(names, function(a, b) -- nn.functional before nn.relu: a value is named after its own module
      local x, y = rawget(value, a), rawget(value, b)
      if (type(x) == "table") ~= (type(y) == "table") then return type(x) == "table" end
      return a < b
    end)
    for _, field in ipairs(names) do
      local ok, inner = pcall(function() return value[field] end)
      if ok then visit(inner, path .. "." .. field, field, depth + 1, path) end
    end
  end
  visit(require "moth", "moth", "moth", 1)
  return list
end
