--- The index that `??word` searches: ops, and every function, class and module below `moth`, each with its doc.
local M = {}

local function collect()
  local entry, list = require "moth.reference.entry", {}
  for _, thing in ipairs(require "moth.reference.collect"()) do
    local path, value = thing[1], thing[2]
    if path ~= "moth" then list[#list + 1] = { path, entry.doc(path, value) or "" } end
  end
  return list
end

--- The lines of `??word`, cut to `columns`: first entries with the word in their names, then in their docs.
function M.search(word, columns)
  M.list = M.list or collect()
  local first_sentence = require("moth.reference.entry").first_sentence
  local by_name, by_doc = {}, {}
  local lower, joined = word:lower(), word:lower():gsub("_", "") -- cross_entropy finds CrossEntropyLoss
  for _, entry in ipairs(M.list) do
    local line = ("  %-32s %s"):format(entry[1], first_sentence(entry[2]))
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
