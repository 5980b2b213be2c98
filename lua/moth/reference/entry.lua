--- Entries of the reference, and their texts: of ops from their records, of functions, classes and modules of Lua from
-- the comments above them. `?name` shows the text; moth.reference.pages writes the same as HTML.
--
-- An entry: { path, head, doc, place, kind, rows = { { label, text } } (of an op), fields = { label, names } (of a
-- class), members = { { name, first sentence of its doc } } (of a module) }; what a thing does not have is nil.
local B = require "moth_lua"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local comments = require "moth.reference.comments"
local M = {}

--- The record of an op by its name, or by that of its in-place variant; or nil.
function M.op(name)
  local ops = require "moth.dispatch.ops"
  return ops.get(name) or ops.get((name:gsub("_$", "")))
end

--- The public fields of a value, sorted.
function M.fields(value)
  local list = {}
  for name in each(require("moth.repl.complete").fields(value)) do
    if not name:find("^_") then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

-- The op behind a function of the binding: moth.linalg.det is linalg_det.
local op_of
local function op_behind(fn)
  if not op_of then
    op_of = {}
    for name, op in each(B.ops) do op_of[op] = name end
    local moth = require "moth"
    for _, space in ipairs { "linalg", "special" } do
      for name in each(B.ops) do
        local own = name:match("^" .. space .. "_(.*)")
        local alias = own and rawget(moth[space], own)
        if alias then op_of[alias] = name end
      end
    end
  end
  return op_of[fn] and M.op(op_of[fn])
end

--- Whether a table is a class.
function M.is_class(value) return type(value) == "table" and type(rawget(value, "__name")) == "string" end

-- What stands at the path of a thing without its last name.
local function parent_of(path)
  local value = require "moth"
  for name in path:gsub("^moth%.", ""):gsub("[^.]+$", ""):gmatch "[^.]+" do
    local ok, inner = pcall(function() return value[name] end)
    if not ok or type(inner) ~= "table" then return nil end
    value = inner
  end
  return value
end

-- The doc of a function that has none of its own: where its class's base, its module or its op has one.
local function doc_elsewhere(path, last, value)
  local parent = parent_of(path)
  if M.is_class(parent) then
    local base = rawget(parent, "super")
    while base do
      local method = rawget(base, last)
      local found = type(method) == "function" and comments.of_function(method)
      if found and found.doc then return found.doc end
      base = rawget(base, "super")
    end
    return nil
  end
  local doc = parent and comments.of_field(parent, last, value)
  if doc then return doc end
  local moth = require "moth"
  local op = (parent == moth or parent == moth.nn.functional) and M.op(last)
  return op and op.doc
end

--- The entry of the value at `path`, or of the op of that name if value is nil or an op; nil if there is nothing. Other
-- values than ops, functions, classes and modules have no entry either.
function M.of(path, value)
  local last = path:match("([%w_]+)$") or path
  local op = value == nil and (path:find("::", 1, true) and M.op(path) or M.op(last))
    or type(value) == "function" and not signature.of(value) and (op_behind(signature.original(value)) or M.op(last))
  if op then
    local found = require("moth.reference.op").entry(op)
    if value ~= nil then found.path = path end
    return found
  end
  if type(value) == "function" then
    local found = comments.of_function(value)
    local head = found and (found.head or "a function of " .. found.place) or "a C function"
    return { path = path, kind = "function", head = head, doc = found and found.doc or doc_elsewhere(path, last, value),
      place = found and found.place }
  end
  if M.is_class(value) then
    local found = comments.of_class(value, rawget(value, "__name"))
    return { path = path, kind = "class", head = found.head, doc = found.doc, place = found.place,
      fields = { "fields and methods:", M.fields(value) } }
  end
  local mt = debug.getmetatable(value)
  if type(value) ~= "table" or type(mt) == "table" and rawget(mt, "__tostring") then return nil end
  local name = type(mt) == "table" and rawget(mt, "__module_name")
  if not name then
    return { path = path, kind = "module", head = path .. ": a table", doc = comments.of_module(value),
      fields = { "has:", M.fields(value) } }
  end
  local members = {}
  for i, field in ipairs(M.fields(value)) do
    local ok, member = pcall(function() return value[field] end)
    members[i] = { field, ok and member ~= nil and M.first_sentence(M.doc(path .. "." .. field, member)) or "" }
  end
  return { path = path, kind = "module", head = "module " .. path, doc = comments.of_module(value),
    members = members }
end

--- The first sentence of a doc.
function M.first_sentence(doc)
  local line = (doc or ""):match("^[^\n]*")
  return line:match("^(.-%.)%s+%u") or line
end

--- Only the doc of what `of` gives an entry for.
function M.doc(path, value)
  local mt = type(value) == "table" and not M.is_class(value) and debug.getmetatable(value)
  local name = type(mt) == "table" and rawget(mt, "__module_name")
  if name then return comments.of_module(value) end
  local found = M.of(path, value)
  return found and found.doc
end

local function wrapped(list)
  local lines, line = {}, " "
  for _, name in ipairs(list) do
    if #line + #name > 98 then
      lines[#lines + 1] = line
      line = " "
    end
    line = line .. " " .. name
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end
M.wrapped = wrapped

--- An entry as text.
function M.text(entry)
  local lines = { entry.head }
  local function add(...) lines[#lines + 1] = string.format(...) end
  local op = entry.op
  if entry.doc then add(op and "  %s" or "%s", entry.doc) end
  if entry.place then add(op and "  defined at %s (%s)" or "  defined at %s", entry.place, entry.kind) end
  for _, row in ipairs(entry.rows or {}) do add("  %-12s %s", row[1], row[2]) end
  if entry.fields then add("  %s\n%s", entry.fields[1], wrapped(entry.fields[2])) end
  for _, member in ipairs(entry.members or {}) do add("  %-28s %s", member[1], member[2]) end
  return (table.concat(lines, "\n"):gsub(" +\n", "\n"))
end

return M
