--- The form of data that comes from a file: what its JSON, or the fields of a header, must be before other code uses
-- it.
--
--     form.check(json, { name = "text", size = "count?", rows = { list = "number" } }, fail)
--
-- A form is a word: "text", "word" (a text that is not empty), "number" (neither infinite nor NaN), "count" (an integer
-- from 0 to 2^31 - 1), "flag" (a boolean), "any"; with a "?" it may be missing. { list = form } is a list of such
-- values, { map = form } a table of them by texts, { either = { form, … } } one of several, another table the forms of
-- the fields that are known; fields beside them are left alone.
local each = require "moth.each"

local M = {}

local MOST = 2 ^ 31

local words = {
  text = { function(v) return type(v) == "string" end, "a text" },
  word = { function(v) return type(v) == "string" and v ~= "" end, "a text that is not empty" },
  number = { function(v) return type(v) == "number" and v - v == 0 end, "a number" },
  count = { function(v) return type(v) == "number" and v >= 0 and v < MOST and v == math.floor(v) end,
    "a whole number from 0 on" },
  flag = { function(v) return type(v) == "boolean" end, "true or false" },
  any = { function(v) return v ~= nil end, "a value" },
}

local complaint

local function in_list(v, form, path)
  if type(v) ~= "table" then return path, "a list" end
  for i, item in ipairs(v) do
    local at, wanted = complaint(item, form, ("%s[%d]"):format(path, i))
    if at then return at, wanted end
  end
end

local function in_map(v, form, path)
  if type(v) ~= "table" then return path, "an object" end
  for key, item in each(v) do
    if type(key) ~= "string" then return path, "an object" end
    local at, wanted = complaint(item, form, ("%s.%s"):format(path, key))
    if at then return at, wanted end
  end
end

local function in_either(v, forms, path)
  local wanted = {}
  for i, form in ipairs(forms) do
    local at, what = complaint(v, form, path)
    if not at then return end
    wanted[i] = what
  end
  return path, table.concat(wanted, " or ")
end

-- Where a value is not of its form, and what was expected; nil: it is.
function complaint(v, form, path)
  if type(form) == "string" then
    local word = form:match("^%a+")
    if v == nil and #word < #form or words[word][1](v) then return end
    return path, words[word][2]
  end
  if form.list then return in_list(v, form.list, path) end
  if form.map then return in_map(v, form.map, path) end
  if form.either then return in_either(v, form.either, path) end
  if type(v) ~= "table" then return path, "an object" end
  for key, own in each(form) do
    if v[key] ~= nil or type(own) == "string" then
      local at, wanted = complaint(v[key], own, path == "" and key or path .. "." .. key)
      if at then return at, wanted end
    end
  end
end

--- Calls fail(where, what was expected) for the first value that is not of its form.
function M.check(v, form, fail)
  local at, wanted = complaint(v, form, "")
  if at then fail(at == "" and "the file" or at, wanted) end
end

--- Takes cjson's null out of data that was read: such a field is missing.
function M.without_null(v, null)
  if type(v) ~= "table" then return v end
  for key, item in each(v) do
    if item == null then v[key] = nil else M.without_null(item, null) end
  end
  return v
end

return M
