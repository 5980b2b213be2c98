--- Local variables that live from one line of the prompt to the next.
--
-- Each line is a chunk of its own, and a chunk's locals end with it. So `local` is removed from declarations of the
-- outermost level, and their names belong to a table that is searched before the globals: functions of earlier lines
-- see later assignments, and globals stay unchanged. Inside blocks and functions nothing changes.
local each = require "moth.each"
local M = {}

local opens = { ["do"] = true, ["if"] = true, ["function"] = true, ["repeat"] = true }
local closes = { ["end"] = true, ["until"] = true }

-- The index of the end of the comment, string, number, name or sign that begins at i.
local function token_end(text, i)
  local level = text:match("^%[(=*)%[", i) or text:match("^%-%-%[(=*)%[", i)
  if level then return select(2, text:find("]" .. level .. "]", i, true)) or #text end
  if text:find("^%-%-", i) then return (text:find("\n", i, true) or #text + 1) - 1 end
  local quote = text:match("^[\"']", i)
  if quote then
    local k = i + 1
    while k <= #text and text:sub(k, k) ~= quote do k = k + (text:sub(k, k) == "\\" and 2 or 1) end
    return k
  end
  local word = text:match("^[%w_]+", i)
  return i + (word and #word or 1) - 1
end

-- The tokens without space and comments: { text, first, last }.
local function tokens(text)
  local list, i = {}, 1
  while true do
    i = text:find("%S", i)
    if not i then return list end
    local last = token_end(text, i)
    if not text:find("^%-%-", i) then list[#list + 1] = { text:sub(i, last), i, last } end
    i = last + 1
  end
end

local function is_name(token) return token and token[1]:find("^[%a_]") end

--- The text without its outermost `local`s, and the names that they declare.
function M.rewrite(text)
  local list, names, depth, out, from = tokens(text), {}, 0, {}, 1
  local function put(first, last, instead) -- text[first..last] becomes instead
    out[#out + 1] = text:sub(from, first - 1) .. instead
    from = last + 1
  end
  for k, token in ipairs(list) do
    local word = token[1]
    if opens[word] then depth = depth + 1
    elseif closes[word] then depth = depth - 1
    elseif word == "local" and depth == 0 and is_name(list[k + 1]) then
      put(token[2], token[3], "")
      if list[k + 1][1] == "function" then
        names[#names + 1] = list[k + 2] and list[k + 2][1]
      else
        local last = k + 1
        names[#names + 1] = list[last][1]
        while list[last + 1] and list[last + 1][1] == "," and is_name(list[last + 2]) do
          last = last + 2
          names[#names + 1] = list[last][1]
        end
        if not (list[last + 1] and list[last + 1][1] == "=") then put(list[last][3] + 1, list[last][3], " = nil") end
      end
    end
  end
  out[#out + 1] = text:sub(from)
  return table.concat(out), names
end

--- The text on one line, without its comments; nil if a string of it has several lines.
function M.one_line(text)
  local out, from = {}, 1
  for _, token in ipairs(tokens(text)) do
    if token[1]:find("\n", 1, true) then return nil end
    -- Between two tokens: space, comments, line ends.
    local between = text:sub(from, token[2] - 1)
    if between:find("[%-\n]") then between = " " end
    out[#out + 1] = (#out > 0 or not between:find("\n")) and between or ""
    out[#out + 1] = token[1]
    from = token[3] + 1
  end
  return table.concat(out)
end

local Locals = {}
Locals.__index = Locals

--- A new, empty set: `env` is the environment of chunks. `frame`, if set, has values that it gives first: { name =
-- { value } }.
function M.new(globals)
  globals = globals or _G
  local declared, values, before = {}, {}, {}
  for k, v in each(globals) do before[k] = v end
  local self
  local env = setmetatable({}, {
    __index = function(_, k)
      local seen = self.frame and self.frame[k]
      if seen then return seen[1] end
      if declared[k] then return values[k] end
      return globals[k]
    end,
    __newindex = function(_, k, v)
      if declared[k] then values[k] = v else globals[k] = v end
    end,
  })
  self = setmetatable({ env = env, declared = declared, values = values, globals = globals, before = before }, Locals)
  return self
end

function Locals:declare(names)
  for _, n in ipairs(names) do self.declared[n] = true end
end
function Locals:set(name, value)
  self.declared[name] = true
  self.values[name] = value
end
-- The globals that changed since the session began.
local function changed(self)
  local list = {}
  for n, value in each(self.globals) do
    if type(n) == "string" and not rawequal(value, self.before[n]) then list[#list + 1] = n end
  end
  return list
end
--- The names of declared locals and of globals that the session made, sorted; and those of the frame.
function Locals:names()
  local list = {}
  for n in each(self.declared) do list[#list + 1] = n end
  for n in each(self.frame or {}) do
    if not self.declared[n] then list[#list + 1] = n end
  end
  for _, n in ipairs(changed(self)) do
    if not self.declared[n] then list[#list + 1] = n end
  end
  table.sort(list)
  return list
end
--- Removes all locals and restores the globals.
function Locals:clear()
  for n in each(self.declared) do self.declared[n], self.values[n] = nil, nil end
  for _, n in ipairs(changed(self)) do self.globals[n] = self.before[n] end
end

return M
