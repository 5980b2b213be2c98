--- What a declaration of options (moth.cli) looks like to a reader: the text of --help, and a man page.
local M = {}

local WIDTH = 100 -- of a line
local COLUMN = 28 -- where the texts begin, at most

-- The letters of a text, not its bytes.
local function width(text) return select(2, text:gsub("[^\128-\191]", "")) end

local function wrapped(text, most)
  local lines, line = {}, nil
  for word in text:gmatch "%S+" do
    if line and width(line) + 1 + width(word) > most then
      lines[#lines + 1] = line
      line = word
    else
      line = line and line .. " " .. word or word
    end
  end
  lines[#lines + 1] = line
  return lines
end

-- The words of an option, as they are written.
local function words_of(option)
  if option.positional then return option.words end
  local word = option.word and (option.optional and " [" .. option.word .. "]" or " " .. option.word) or ""
  local both = option.type == "boolean" and option.default == true and "--[no-]" .. option.flag
  return (option.flag and option.letter and "-" .. option.letter .. ", " or "") .. (both or option.name) .. word
end

-- What is said of an option: its text, and the default.
local function told(option)
  local text, default = option.help, option.shown or option.default
  if type(default) == "table" then
    local list = {}
    for i, v in ipairs(default) do list[i] = tostring(v) end
    default = table.concat(list, ",")
  end
  if option.several then text = text .. (text == "" and "" or "; ") .. "several times" end
  if option.required and not option.positional then text = text .. (text == "" and "" or "; ") .. "required" end
  if default ~= nil and default ~= "" and default ~= false then
    text = text .. (text == "" and "" or " ") .. "(" .. (default == true and "on" or tostring(default)) .. ")"
  end
  return text
end
M.words_of, M.told = words_of, told

local function usage(p, name)
  if p.usage then return name .. " " .. table.concat(p.usage, "\n       " .. name .. " ") end
  local parts = { name, "[options]" }
  if p.commands then parts[#parts + 1] = "COMMAND …" end
  for _, argument in ipairs(p.arguments) do parts[#parts + 1] = argument.words end
  return table.concat(parts, " ")
end

local function is_shown(entry) return type(entry) == "string" or not entry.hidden end

-- Arguments that need no words beside the usage.
local function is_said(entry) return entry.positional and told(entry) == "" end

--- The text of --help.
function M.text(p, name)
  name = name or p.name or "script"
  local lines = { "usage: " .. usage(p, name) }
  for line in (p.about .. "\n"):gmatch "(.-)\n" do
    for _, part in ipairs(line == "" and {} or wrapped(line, WIDTH)) do lines[#lines + 1] = part end
  end
  local column = 0
  for _, entry in ipairs(p.entries) do
    local n = type(entry) == "table" and is_shown(entry) and width(words_of(entry)) + 4 or 0
    if n <= COLUMN and n > column then column = n end
  end
  for _, command in ipairs(p.commands or {}) do column = math.max(column, #command.name + 4) end
  local function row(words, text)
    local parts = wrapped(text, WIDTH - column)
    local first = "  " .. words
    if width(first) + 2 > column and #parts > 0 then
      lines[#lines + 1], first = first, ""
    end
    lines[#lines + 1] = (first .. (" "):rep(column - width(first)) .. (parts[1] or "")):gsub("%s+$", "")
    for i = 2, #parts do lines[#lines + 1] = (" "):rep(column) .. parts[i] end
  end
  for _, command in ipairs(p.commands or {}) do row(command.name, (command.about:gsub("\n.*", ""))) end
  for _, entry in ipairs(p.entries) do
    if type(entry) == "string" then
      lines[#lines + 1] = entry .. ":"
    elseif is_shown(entry) and not is_said(entry) then
      row(words_of(entry), told(entry))
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

-- A text that groff prints as it is: its escape character, dashes that are no hyphens, and letters beyond ASCII.
local function plain(text)
  return (text:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("\226\128\166", "..."):gsub("'", "\\(aq")
    :gsub("[\194-\244][\128-\191]+", function(char)
      local b = { char:byte(1, -1) }
      local code = b[1] % (#b == 2 and 32 or #b == 3 and 16 or 8)
      for i = 2, #b do code = code * 64 + b[i] % 64 end
      return ("\\[u%04X]"):format(code)
    end):gsub("^%.", "\\&."):gsub("\n%.", "\n\\&."))
end

-- Lines of at most 80 characters.
local function lines_of(text)
  local list = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do
    for _, part in ipairs(line == "" and {} or wrapped(line, 76)) do list[#list + 1] = plain(part) end
    if line ~= "" then list[#list + 1] = ".br" end
  end
  list[#list] = nil
  return table.concat(list, "\n")
end

local function add_options(out, p)
  for _, entry in ipairs(p.entries) do
    if type(entry) == "string" then
      out[#out + 1] = ".SS " .. plain(entry)
    elseif is_shown(entry) and not is_said(entry) then
      local text = told(entry)
      out[#out + 1] = ".TP\n\\fB" .. plain(words_of(entry)) .. "\\fR\n" .. (text == "" and "\\&" or lines_of(text))
    end
  end
end

--- A man page of section 1.
function M.man(p, name)
  name = name or p.name or "script"
  local title, first = name:gsub("%s+", "-"), p.about:match "^[^\n]*"
  first = first:gsub("%.$", "")
  local out = { (".TH %s 1 \"\" moth"):format(plain(title:upper())), ".SH NAME",
    plain(title) .. " \\- " .. plain(first == "" and "a script" or first),
    ".SH SYNOPSIS", "\\fB" .. plain(name) .. "\\fR " .. plain((usage(p, ""):gsub("^%s+", ""):gsub("\n%s*", " | "))) }
  if p.about ~= "" then out[#out + 1] = ".SH DESCRIPTION\n" .. lines_of(p.about) end
  if p.commands then
    out[#out + 1] = ".SH COMMANDS"
    for _, command in ipairs(p.commands) do
      out[#out + 1] = ".TP\n\\fB" .. plain(usage(command, command.name)) .. "\\fR\n" .. lines_of(command.about)
      if p.pages then
        out[#out] = (".TP\n\\fB%s\\fR\n%s See %s(1)."):format(plain(usage(command, command.name)),
          lines_of((command.about:gsub("\n.*", ""))), plain(title .. "-" .. command.name))
      elseif #command.entries > 1 then
        out[#out + 1] = ".RS"
        add_options(out, command)
        out[#out + 1] = ".RE"
      end
    end
  end
  out[#out + 1] = ".SH OPTIONS"
  add_options(out, p)
  if p.see then out[#out + 1] = ".SH SEE ALSO\n" .. plain(p.see) end
  return table.concat(out, "\n") .. "\n"
end

return M
