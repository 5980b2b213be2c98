-- The public functions and classes of moth, name -> value: of the live tables, none is left out.
local moth = require "moth"

-- pending: modules that are left out.
return function(pending)
  local functions, classes = {}, {}
  local function visit(module, prefix, seen)
    if seen[module] then return end
    seen[module] = true
    local mt = getmetatable(module)
    local list = {}
    for k in pairs(module) do list[#list + 1] = k end
    for _, k in ipairs(mt and mt.__names and mt.__names(module) or {}) do list[#list + 1] = k end
    for _, k in ipairs(list) do
      local v = type(k) == "string" and k:sub(1, 1) ~= "_" and module[k]
      local name = prefix .. tostring(k)
      if type(v) == "function" then
        functions[name] = v
      elseif type(v) == "table" and v ~= moth.ops.moth then
        local vmt = getmetatable(v)
        if vmt and rawget(vmt, "__module_name") then
          if not pending[k] or prefix ~= "" then visit(v, name .. ".", seen) end
        elseif vmt and vmt.__call and rawget(v, "__name") then
          classes[name] = v
        elseif vmt and vmt.__call and not rawget(vmt, "__name") then -- an object of a class is no function
          functions[name] = v
        end
      end
    end
  end
  visit(moth, "", {})
  return functions, classes
end
