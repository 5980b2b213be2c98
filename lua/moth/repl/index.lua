--- The index that `??word` searches: ops, and every function, class and module below `moth`, each with its doc.
local each = require "moth.each"
local M = {}

local DEPTH = 4 -- moth.nn.utils.rnn.pack_sequence

local function is_module(t)
  local mt = debug.getmetatable(t)
  return rawget(t, "__name") == nil and not (type(mt) == "table" and (rawget(mt, "__tostring") or rawget(mt, "__name")))
end

local function collect()
  local help, ops = require "moth.repl.help", require "moth.dispatch.ops"
  local list, seen = {}, {}
  for _, name in ipairs(ops.list()) do list[#list + 1] = { name, ops.get(name).doc } end
  local function visit(value, path, name, depth)
    if (type(value) ~= "table" and type(value) ~= "function") or seen[value] then return end
    if name == "F" or type(value) == "function" and (depth == 2 or path:find("^moth%.ops%.")) and ops.get(name) then
      return -- nn.functional under its short name, or an op, which is listed already
    end
    seen[value] = true
    if path ~= "moth" then list[#list + 1] = { path, help.doc(value, path) or "" } end
    if type(value) ~= "table" or not is_module(value) or depth == DEPTH then return end
    local names = {}
    for field in each(require("moth.repl.complete").fields(value)) do
      if not field:find("^_") then names[#names + 1] = field end
    end
    table.sort(names, function(a, b) -- nn.functional before nn.relu: a value is named after its own module
      local x, y = rawget(value, a), rawget(value, b)
      if (type(x) == "table") ~= (type(y) == "table") then return type(x) == "table" end
      return a < b
    end)
    for _, field in ipairs(names) do
      local ok, inner = pcall(function() return value[field] end)
      if ok then visit(inner, path .. "." .. field, field, depth + 1) end
    end
  end
  visit(require "moth", "moth", "moth", 1)
  return list
end

local function first_line(doc)
  local line = doc:match("^[^\n]*")
  return line:match("^(.-%.)%s%u") or line
end

--- The lines of `??word`, cut to `columns`: first entries with the word in their names, then in their docs.
function M.search(word, columns)
  M.list = M.list or collect()
  local by_name, by_doc = {}, {}
  local lower, joined = word:lower(), word:lower():gsub("_", "") -- cross_entropy finds CrossEntropyLoss
  for _, entry in ipairs(M.list) do
    local line = ("  %-32s %s"):format(entry[1], first_line(entry[2]))
    if #line > columns then line = line:sub(1, columns - 3):gsub("[\128-\255]+$", "") .. "…" end
    if entry[1]:lower():gsub("_", ""):find(joined, 1, true) then by_name[#by_name + 1] = line
    elseif entry[2]:lower():find(lower, 1, true) then by_doc[#by_doc + 1] = line
    end
  end
  for _, line in ipairs(by_doc) do by_name[#by_name + 1] = line end
  if #by_name > 0 then return table.concat(by_name, "\n") end
  return "no op, function, class or module has '" .. word .. "' in its name or doc"
end

return M
