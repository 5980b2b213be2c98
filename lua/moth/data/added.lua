--- Tokens that are found in a text before it is cut into words: "<|endoftext|>" and the like. Of several that begin at
-- one place the longest counts; one that is normalized is looked for in the text that the normalizers have left.
local forms = require "moth.data.forms"
local unicode = require "moth.data.unicode"

local M = {}

-- The first in the text from `from` on: the entry, where it begins and ends. places: where each was found last, so that
-- none is looked for twice.
local function find(list, text, from, places)
  local first, last, entry
  for k = 1, #list do
    local e, place = list[k], places[k]
    if place == nil or place and place < from then
      place = text:find(e[1], from, true) or false
      places[k] = place
    end
    if place and (not first or place < first) then first, last, entry = place, place + #e[1] - 1, e end
  end
  return entry, first, last
end

-- Whether a character of a word ends in front of place i, or begins there.
local function joined(text, i)
  local c = i <= #text and text:match("^[%z\1-\127\194-\244][\128-\191]*", i)
  return c and c ~= "" and (c == "\226\128\140" or c == "\226\128\141" or forms.is_word(unicode.point(c)))
end
local function word_before(text, i)
  local k = i - 1
  while k > 1 and text:find("^[\128-\191]", k) do k = k - 1 end
  return k >= 1 and joined(text, k)
end

--- Calls plain(from, to) for the parts without a token, and token(id) for tokens, in their order. list: of M.lists.
function M.each(list, text, plain, token)
  local from, done, places = 1, 1, {}
  while from <= #text do
    local entry, first, last = find(list, text, from, places)
    if not entry then break end
    local t = entry[2]
    from = last + 1
    if not (t.single_word and (word_before(text, first) or joined(text, last + 1))) then
      if t.lstrip then first = math.max(unicode.before_spaces(text, first), done) end
      if t.rstrip then last = unicode.skip_spaces(text, last + 1) - 1 end
      if first > done then plain(done, first - 1) end
      token(t.id + 1)
      done = last + 1
    end
  end
  if done <= #text then plain(done, #text) end
end

--- The tokens of a file in two lists for M.each: those that are looked for in the text as it is, and those in what
-- normalize(text) gives.
function M.lists(tokens, normalize)
  local raw, normal = {}, {}
  for _, t in ipairs(tokens) do
    local as_they_are = not t.normalized
    local content = as_they_are and t.content or normalize(t.content)
    local list = as_they_are and raw or normal
    if content ~= "" then list[#list + 1] = { content, t } end
  end
  for _, list in ipairs { raw, normal } do
    table.sort(list, function(x, y)
      return #x[1] > #y[1] or #x[1] == #y[1] and (x[1] < y[1] or x[1] == y[1] and x[2].id < y[2].id)
    end)
  end
  return raw, normal
end

return M
