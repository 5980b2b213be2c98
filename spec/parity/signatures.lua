-- Every class and function made in Lua with a signature, a line each, for signatures.py to compare with PyTorch's:
-- place, class or function, then a parameter a field: name, type, default, "named" behind a star.
local moth = require "moth"
local signature = require "moth.utils.signature"

local function show(place, name, fn)
  if not signature.of(fn) then return end
  local line = { place .. "." .. name }
  local _, parameters = signature.parameters(fn)
  for _, p in ipairs(parameters) do
    line[#line + 1] = table.concat({ p.name, p.type, p.optional and tostring(p.default) or "required",
      p.named_only and "named" or "position" }, " ")
  end
  print(table.concat(line, "\t"))
end

local function each_of(place, t, field)
  local names = {}
  for _, name in ipairs(getmetatable(t) and getmetatable(t).__names and getmetatable(t).__names() or {}) do
    names[name] = true
  end
  for name in pairs(t) do names[name] = true end
  for name in pairs(names) do
    local value = t[name]
    if type(name) == "string" and type(value) == "table" then
      show(place, name, rawget(value, "__init"))
      if field and rawget(value, field) then show(place, name .. "." .. field, rawget(value, field)) end
    elseif type(name) == "string" then
      show(place, name, value)
    end
  end
end

each_of("nn", moth.nn)
each_of("nn.functional", moth.nn.functional)
each_of("nn.init", moth.nn.init)
each_of("nn.utils", moth.nn.utils)
each_of("optim", moth.optim)
each_of("optim.lr_scheduler", moth.optim.lr_scheduler)
each_of("utils.data", moth.data)
