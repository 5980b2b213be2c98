--- `?name`: what the reference says of a value.
local entry = require "moth.reference.entry"
local M = {}

--- The text of `?path`, given the value at that path (or nil).
function M.text(path, value)
  local found = entry.of(path, value)
  if found then return entry.text(found) end
  if value == nil then return nil end
  local shown, kind = require("moth.repl.show").value(value), type(value)
  if kind == "table" or kind == "userdata" then
    return shown .. "\n  has\n" .. entry.wrapped(entry.fields(value))
  end
  return path .. " = " .. shown .. " (" .. kind .. ")"
end

--- Wraps lines longer than `columns` between words; continuations of an indented line are indented by two more.
function M.fitted(text, columns)
  local out = {}
  for line in (text .. "\n"):gmatch("(.-)\n") do
    local indent = line:match("^%s*")
    while #line > columns do
      local at = line:sub(1, columns):match("^.*() ")
      if not at or at <= #indent + 2 then break end
      out[#out + 1] = line:sub(1, at - 1)
      line = (indent ~= "" and indent .. "  " or "") .. line:sub(at + 1)
    end
    out[#out + 1] = line
  end
  return table.concat(out, "\n")
end

return M
