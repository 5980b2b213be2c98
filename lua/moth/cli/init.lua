--- The options of a script, declared once: the command line, --help, a file of options, completion in shells and
-- the man pages come from the same list. moth's own commands are declared in the same way.
--
--     local o = moth.cli {
--       "Trains a small network.",
--       { "FILE...", "texts to learn from" },
--       { "--steps N", "optimizer steps", 200, min = 1 },
--       { "--lr X", "the learning rate", 1e-3 },
--       { "-d, --device cpu|cuda", "where it trains", "cpu" },
--       { "--resume", "goes on from the checkpoint" },
--     }
--     print(o.steps, o.device, o.resume, o.file[1])
--
-- A text at the first place says what the script does (else the comment at its head does); further texts are headings
-- of what follows them. An option is
-- { words, help, default, type =, choices =, required =, min =, max =, several =, bare =, key = }:
--
-- - `--name` alone is a switch: --name, --no-name, --name=false. `-n, --name` gives it a letter.
-- - `--name N` takes an integer, X a number, FILE, DIR and PATH a path, `a|b` one of these words, any other word a
--   text. Without one the default says the type. `type` says it too: "integer", "number", "string", "path", "boolean",
--   "json", and lists, divided by commas: "integer[]", "number[]", "string[]".
-- - `--name [N]` may stand alone, and then is `bare`, which must be said.
-- - `several`: it may be given several times; the value is one list of all.
-- - a word without dashes is an argument by position: FILE one, [FILE] none or one, FILE... one or more, [FILE...] any.
-- - `key`: where the value goes; else it is the name, with _ for -. "a.b" is o.a.b.
-- - `default` is what --help says of the default where that is not the value itself.
--
-- Every script also takes --help, and --config FILE: a JSON object of options; the command line overrides it. With
-- `strict = true` all words behind the first argument by position are arguments, even those with dashes. `commands` is
-- a list of such lists, each with `name`: the first word is one of these, and o.command says which.
local check = require "moth.utils.check"
local each = require "moth.each"
local json = require "moth.io.json"
local signature = require "moth.utils.signature"

local M = {}

local where = "cli" -- the function that was called, for errors of a declaration
local function bad(fmt, ...) check.fail("[%s] " .. fmt, where, ...) end

-- What is wrong with a command line, as an error.
local Wrong = {}
Wrong.__index = Wrong
function Wrong:__tostring() return self.usage end

local function fail(...) error(setmetatable({ usage = (...):format(select(2, ...)) }, Wrong), 0) end
M._fail = fail

-- ---- types --------------------------------------------------------------------------------------------

local by_word = { N = "integer", X = "number", SECONDS = "number", FILE = "path", DIR = "path", PATH = "path" }

local readers = {
  string = { function(text) return text end, "a text" },
  path = { function(text) return text end, "a path" },
  number = { function(text) return tonumber(text) end, "a number" },
  integer = { function(text)
    local n = tonumber(text)
    return n and n == math.floor(n) and math.abs(n) <= 2 ^ 53 and n or nil
  end, "an integer" },
  boolean = { function(text)
    local known = { ["true"] = true, yes = true, on = true, ["1"] = true, ["false"] = false, no = false, off = false,
      ["0"] = false }
    return known[tostring(text):lower()]
  end, "true or false" },
  json = { function(text)
    local value = json._read(text, json.null, nil, "number")
    return type(value) == "table" and value or nil
  end, "a JSON object" },
}

local function is_kind(kind) return type(kind) == "string" and readers[(kind:gsub("%[%]$", ""))] ~= nil end

local function range_of(option)
  if option.min and option.max then return (" from %s to %s"):format(option.min, option.max) end
  if option.min then return (" of at least %s"):format(option.min) end
  return option.max and (" of at most %s"):format(option.max) or ""
end

-- One value of an option from a text, a number or a boolean, or an error.
local function read_one(option, kind, text)
  local value = readers[kind][1](text)
  if value ~= nil and option.choices then
    for _, choice in ipairs(option.choices) do
      if choice == value then return value end
    end
    local list = {}
    for i, choice in ipairs(option.choices) do list[i] = tostring(choice) end
    fail("%s: expected %s, got '%s'%s", option.name, table.concat(list, ", "):gsub(", ([^,]*)$", " or %1"),
      tostring(text), type(option.choices[1]) == "string" and check.suggest(tostring(text), list) or "")
  end
  local limited = option.min or option.max
  if value == nil or limited and (value ~= value or value < (option.min or value) or value > (option.max or value)) then
    fail("%s: expected %s%s, got '%s'", option.name, readers[kind][2], range_of(option), tostring(text))
  end
  return value
end

-- The value that a word of the command line gives.
local function read_value(option, text)
  local kind = option.type:match "^(.*)%[%]$"
  if not kind then return read_one(option, option.type, text) end
  local list = {}
  for part in (text == "" and "" or text .. ","):gmatch "%s*(.-)%s*," do
    list[#list + 1] = read_one(option, kind, part)
  end
  return list
end

-- A value of Lua's, of a JSON file or a default; `from` begins what is said of a wrong one.
local function check_value(option, value, from)
  local function one(v, kind)
    local is = type(v)
    local fits = kind == "boolean" and is == "boolean" or (kind == "number" or kind == "integer") and is == "number"
      or (kind == "string" or kind == "path") and is == "string" or kind == "json" and is == "table"
    if not fits then
      fail("%s%s: expected %s, got %s", from, option.name, readers[kind][2], is == "userdata" and "null" or is)
    end
    if kind == "json" then return v end
    local ok, read = pcall(read_one, option, kind, v)
    if not ok then fail("%s%s", from, tostring(read)) end
    return read
  end
  local kind = option.type:match "^(.*)%[%]$"
  if not kind and not option.several and not option.many then return one(value, option.type) end
  if type(value) ~= "table" then fail("%s%s: expected a list, got %s", from, option.name, type(value)) end
  local list = {}
  for i, v in ipairs(value) do list[i] = one(v, kind or option.type) end
  return list
end

-- ---- declarations -------------------------------------------------------------------------------------

-- The fields of an option and of a list, with their types.
local fields = { type = "string", choices = "table", required = "boolean", min = "number", max = "number",
  several = "boolean", bare = "any", key = "string", default = "any", hidden = "boolean", env = "string" }
local list_fields = { name = "string", commands = "table", strict = "boolean", config = "boolean", sparse = "boolean",
  usage = "table", see = "string", pages = "boolean" }

local function check_fields(given, known, what, kind)
  for name, v in each(given) do
    if type(name) ~= "number" and not known[name] then
      local names = {}
      for one in each(known) do names[#names + 1] = one end
      bad("%s: %s has no field '%s'%s", what, kind, tostring(name), check.suggest(tostring(name), names))
    elseif type(name) ~= "number" and known[name] ~= "any" and type(v) ~= known[name] then
      bad("%s: %s must be a %s, got %s", what, name, known[name], type(v))
    end
  end
end

local function is_list(t) return type(t) == "table" and getmetatable(t) == nil end

local function declared(given)
  local words = given[1]
  if type(words) ~= "string" then bad("an option begins with its words, such as \"--steps N\"; got %s", type(words)) end
  check_fields(given, fields, words, "an option")
  if given.choices and #given.choices == 0 then bad("%s: choices is empty", words) end
  if given.min and given.max and given.min > given.max then bad("%s: min is above max", words) end
  local o = { help = given[2] or "", default = given[3], shown = given.default }
  for name in each(fields) do if name ~= "default" then o[name] = given[name] end end
  local letter, rest = words:match "^%-(%w),?%s+(%-%-.*)$"
  o.letter = letter
  local flag, word = ((rest or words) .. " "):match "^%-%-(%w[%w_-]*)%s+(.-)%s*$"
  if not flag then letter, word = (words .. " "):match "^%-(%w)%s+(.-)%s*$" end
  if flag or letter then
    o.flag, o.letter = flag and flag:gsub("_", "-"), letter
    o.name = flag and "--" .. flag or "-" .. letter
    o.optional = word:sub(1, 1) == "["
    o.word = word:gsub("^%[(.*)%]$", "%1")
    if o.word == "" then o.word = nil end
    if o.optional and o.bare == nil then bad("%s: bare says what it is without a value", words) end
  elseif words:find "^%-" then
    bad("%s: expected --name, or -n, --name", words)
  else
    o.optional = words:sub(1, 1) == "["
    word = words:gsub("^%[(.*)%]$", "%1")
    o.many = word:find "%.%.%.$" ~= nil
    o.word = word:gsub("%.%.%.$", "")
    o.name = o.word
    o.positional, o.words = true, words
    if o.optional == false and o.default == nil then o.required = true end
  end
  if o.word and not o.choices and o.word:find "^[%l%d][%w_.-]*|[%w_.|-]+$" then
    o.choices = {}
    for choice in o.word:gmatch "[^|]+" do o.choices[#o.choices + 1] = choice end
  end
  local of_default = type(o.default)
  o.type = o.type or o.word and by_word[o.word]
    or of_default == "number" and "number" or of_default == "string" and "string"
    or not o.word and (of_default == "boolean" or of_default == "nil") and "boolean" or "string"
  if not is_kind(o.type) then
    bad("%s: there is no type '%s'; there are string, path, integer, number, boolean, json, and lists such as \z
      integer[]", words, tostring(o.type))
  end
  if o.type == "boolean" and not o.positional and o.default == nil and not o.required then o.default = false end
  if not o.positional and o.type ~= "boolean" and not o.word then
    o.word = ({ integer = "N", number = "X", path = "PATH" })[(o.type:gsub("%[%]$", ""))] or "TEXT"
  end
  if o.default then -- false: there is none
    local ok, why = pcall(check_value, o, o.default, "the default of ")
    if not ok then bad("%s", tostring(why)) end
  end
  o.key = o.key or (o.flag and o.flag:gsub("-", "_") or not o.positional and o.letter
    or o.word:lower():gsub("[^%w]+", "_"):gsub("_$", ""))
  return o
end

-- Two options whose values would go to one place.
local function check_keys(o, others)
  for _, other in ipairs(others) do
    local a, b = o.key .. ".", type(other) == "table" and other.key .. "." or "\n"
    if a:sub(1, #b) == b or b:sub(1, #a) == a then
      bad("%s and %s have one key: %s and %s", other.name, o.name, other.key, o.key)
    end
  end
end

local parsed = setmetatable({}, { __mode = "k" })

--- A list of options as it was read: { name, about, entries (headings and options), options, arguments, commands }.
local function program_of(spec, name)
  where = name or where
  if parsed[spec] then return parsed[spec] end
  if not is_list(spec) or (spec[1] == nil and not spec.commands) then
    bad("expected a list: a text that says what the script does, and options such as { \"--steps N\", \"steps\", 200 }")
  end
  check_fields(spec, list_fields, "the list", "it")
  local p = { name = spec.name, about = "", entries = {}, options = {}, arguments = {}, flags = {}, letters = {},
    strict = spec.strict, spec = spec, see = spec.see, usage = spec.usage,
    pages = spec.pages }
  local function add(o)
    if o.flag and p.flags[o.flag] or o.letter and p.letters[o.letter] then bad("%s is declared twice", o.name) end
    check_keys(o, p.entries)
    p.entries[#p.entries + 1] = o
    if o.positional then
      local last = p.arguments[#p.arguments]
      if last and last.many then bad("%s stands behind %s, which takes all that is left", o.words, last.words) end
      p.arguments[#p.arguments + 1] = o
    else
      p.options[#p.options + 1] = o
      if o.flag then p.flags[o.flag] = o end
      if o.letter then p.letters[o.letter] = o end
    end
  end
  for i, entry in ipairs(spec) do
    if type(entry) == "string" then
      if i == 1 then p.about = entry else p.entries[#p.entries + 1] = entry end
    elseif is_list(entry) then
      add(declared(entry))
    else
      bad("entry %d: expected a text or an option such as { \"--steps N\", \"steps\", 200 }, got %s", i, type(entry))
    end
  end
  if spec.commands then
    if #spec.commands == 0 then bad("there are no commands in `commands`") end
    p.commands = {}
    for i, one in ipairs(spec.commands) do
      if not is_list(one) or type(one.name) ~= "string" then bad("commands: number %d has no name", i) end
      p.commands[i] = program_of(one)
      for _, o in ipairs(p.commands[i].entries) do
        if type(o) == "table" and o.flag ~= "help" then check_keys(o, p.entries) end
      end
    end
  end
  local last = p.entries[#p.entries]
  if not p.commands and not p.flags.config and spec.config ~= false then
    add { flag = "config", name = "--config", word = "FILE", type = "path", key = "config", is_config = true,
      help = "a JSON object of options; what the command line says goes before it" }
  end
  if not p.flags.help then
    add { flag = "help", name = "--help", letter = not p.letters.h and "h" or nil, type = "boolean", key = "help",
      default = false, help = "prints this" }
  end
  if type(last) == "string" then bad("'%s' is a heading without options", last) end
  parsed[spec] = p
  return p
end
M._program = program_of

-- ---- reading words ------------------------------------------------------------------------------------

local function put(o, key, value)
  local outer, inner = key:match "^(.-)%.(.*)$"
  if not outer then
    o[key] = value
    return
  end
  o[outer] = o[outer] or {}
  put(o[outer], inner, value)
end

local function names_of(p)
  local names = {}
  for _, option in ipairs(p.options) do
    if not option.hidden then names[#names + 1] = option.name end
  end
  return names
end

local function unknown(p, word, name)
  fail("there is no option %s%s", word, #name > 1 and check.suggest("--" .. name, names_of(p)) or "")
end

-- The values that stand in a JSON file, by option.
local function read_config(p, path, values)
  local f, why = io.open(path, "rb")
  local text = f and f:read "*a"
  if f then f:close() end
  if not text then fail("--config: %s", why or path .. ": it is a folder") end
  local object, wrong, line, column = json._read(text, json.null, nil, "number")
  if wrong or type(object) ~= "table" or object[1] ~= nil then
    fail("--config %s: expected a JSON object%s", path,
      wrong and (": line %d, column %d: %s"):format(line, column, wrong) or "")
  end
  for name, value in each(object) do
    local option = p.flags[(tostring(name):gsub("_", "-"))]
    if option and (option.is_config or option.flag == "help") then option = nil end
    for _, argument in ipairs(p.arguments) do
      if not option and argument.key == name then option = argument end
    end
    if not option then
      local names = {}
      for _, known in ipairs(p.options) do names[#names + 1] = known.flag and known.flag:gsub("-", "_") end
      fail("--config %s: there is no option '%s'%s", path, tostring(name), check.suggest(tostring(name), names))
    end
    if values[option] == nil then values[option] = check_value(option, value, "--config " .. path .. ": ") end
  end
end

-- Puts one more value of an option that may have several, or the values of a list, behind those that are there.
local function extend(list, option, value)
  list = list or {}
  for _, v in ipairs(type(value) == "table" and option.type ~= "json" and value or { value }) do list[#list + 1] = v end
  return list
end

local function read_arguments(p, words, values)
  local at = 1
  for i, argument in ipairs(p.arguments) do
    if argument.many then
      while words[at] do
        values[argument] = extend(values[argument], argument, read_value(argument, words[at]))
        at = at + 1
      end
    else
      local needed = 0 -- by those behind it
      for k = i + 1, #p.arguments do if p.arguments[k].required then needed = needed + 1 end end
      if words[at] and (argument.required or #words - at >= needed) then
        values[argument] = read_value(argument, words[at])
        at = at + 1
      end
    end
  end
  if words[at] then
    if #p.arguments == 0 then
      fail("'%s' is no option%s", words[at], check.suggest("--" .. words[at], names_of(p)))
    end
    fail("'%s' is one argument too many", words[at])
  end
end

-- Reads words from `from` on: values by option, the other words, and whether help is asked for.
local function read(p, words, from)
  local values, rest, i = {}, {}, from
  local function next_value(option, word)
    local text = words[i + 1]
    local flag = text and text:match "^%-%-([%w_-]+)"
    if text and not (flag and p.flags[(flag:gsub("_", "-"))]) then
      if option.optional and not pcall(read_value, option, text) then return option.bare, true end
      i = i + 1
      return text
    end
    if option.optional then return option.bare, true end
    fail("%s needs a value", word)
  end
  local function set(option, value)
    if option.several then
      values[option] = extend(values[option], option, value)
    else
      values[option] = value
    end
  end
  while words[i] do
    local word = tostring(words[i])
    local name, equals = word:match "^%-%-([^=]+)(=?)"
    local letter = word:match "^%-(%a)"
    if word == "--" then
      for k = i + 1, #words do rest[#rest + 1] = words[k] end
      break
    elseif name or letter then
      name = name and name:gsub("_", "-")
      local option = name and p.flags[name] or letter and p.letters[letter]
      local off = not option and name and name:match "^no%-(.+)$"
      local behind = name and equals == "=" and word:match "=(.*)$"
        or letter and #word > 2 and word:sub(3):gsub("^=", "")
      if off and p.flags[off] and p.flags[off].type == "boolean" and not behind then
        set(p.flags[off], false)
      elseif not option then
        unknown(p, word:match "^[^=]*", name or letter)
      elseif option.type == "boolean" then
        if letter and behind then fail("there is no option %s", word) end
        set(option, not behind or read_one(option, "boolean", behind))
      elseif behind then
        set(option, read_value(option, behind))
      else
        local value, ready = next_value(option, word)
        if not ready then value = read_value(option, value) end
        set(option, value)
      end
      if option and option.flag == "help" and values[option] then return values, {}, true end
    elseif word:find "^%-." and not tonumber(word) then
      unknown(p, word, word)
    elseif p.strict or p.commands then
      for k = i, #words do rest[#rest + 1] = words[k] end
      break
    else
      rest[#rest + 1] = word
    end
    i = i + 1
  end
  return values, rest
end

local function parse_program(p, name, words, from)
  local o = {}
  local values, rest, help = read(p, words, from)
  if help then return { help = true, _text = require "moth.cli.help".text(p, name) } end
  if p.commands then
    local names = {}
    for _, one in ipairs(p.commands) do
      names[#names + 1] = one.name
      if rest[1] == one.name then
        o = parse_program(one, name .. " " .. one.name, rest, 2)
        o.command = one.name
        if o.help then return o end
      end
    end
    if not o.command then
      fail("%s; there are %s", rest[1] and ("there is no command %s%s"):format(rest[1], check.suggest(rest[1], names))
        or "expected a command", table.concat(names, ", "))
    end
  else
    read_arguments(p, rest, values)
  end
  for _, option in ipairs(p.options) do
    local text = option.env and os.getenv(option.env)
    if text and text ~= "" and values[option] == nil then
      local ok, value = pcall(read_value, option, text)
      if not ok then fail("%s, from the variable %s", tostring(value), option.env) end
      if option.several then value = extend(nil, option, value) end
      values[option] = value
    end
  end
  local config = p.flags.config
  if config and config.is_config and values[config] then
    local path = values[config]
    values[config] = nil
    read_config(p, path, values)
  end
  for _, list in ipairs { p.arguments, p.options } do
    for _, option in ipairs(list) do
      local value = values[option]
      if value == nil and option.required then
        fail("expected %s%s", option.name, option.help ~= "" and ": " .. option.help or "")
      end
      if value == nil then
        value = option.default
        if type(value) == "table" then
          value = {}
          for k, v in each(option.default) do value[k] = v end
        elseif value == nil and (option.several or option.many) and not p.spec.sparse then
          value = {}
        end
        if p.spec.sparse and value == false then value = nil end
      end
      if value ~= nil and option.flag ~= "help" then put(o, option.key, value) end
    end
  end
  return o
end

--- The options that a list of words gives, by name; { help = true } where they ask for it. What is wrong is an error,
-- a table { usage = message } that prints as its message.
M.parse = signature("cli.parse(table spec, string[] words)", function(spec, words)
  local p = program_of(spec, "cli.parse")
  local o = parse_program(p, p.name or "script", words, 1)
  o._text = nil
  return o
end)

--- What --help prints. name: how the script is called.
M.help = signature("cli.help(table spec, string name?)", function(spec, name)
  return (require "moth.cli.help".text(program_of(spec, "cli.help"), name))
end)

--- A man page of these options, as groff reads it.
M.man = signature("cli.man(table spec, string name?)", function(spec, name)
  return (require "moth.cli.help".man(program_of(spec, "cli.man"), name))
end)

--- A script that has a shell, "bash" or "zsh", complete the words of a program with these options.
M.completion = signature("cli.completion(table spec, 'bash'|'zsh' shell, string name?)", function(spec, shell, name)
  return (require "moth.cli.completion"(program_of(spec, "cli.completion"), shell, name))
end)

-- The comment at the head of this script.
local function comment_of_script()
  local f = arg and arg[0] and io.open(tostring(arg[0]))
  if not f then return "" end
  local lines = {}
  for line in f:lines() do
    local text = line:match "^%-%-+(.*)$"
    if not text and not line:find "^#!" or text and (text:find "^%s*$" or text:find "^   ") then break end -- an example
    lines[#lines + 1] = text
  end
  f:close()
  return table.concat(lines, " ")
end

-- Ends the script. At the prompt, where %run runs it, by an error: the session goes on.
local function leave(status)
  local session = package.loaded["moth.repl"]
  if session and session.is_running then error("the script has ended", 0) end
  os.exit(status, true)
end

-- How a script is called, for its messages.
local function called() return arg and arg[0] and tostring(arg[0]):match "[^/]*$" or "script" end

--- A message without the place in moth's sources that raised it.
function M._without_place(why)
  return (tostring(why):gsub("\nstack traceback:.*", ""):gsub("^[^\n:]-%.lua:%d+: ", "")
    :gsub("^%(command line%):%d+: ", ""))
end

--- Runs one of moth's commands: fn(options) and its exit code. `words`: behind the command's name.
function M._run(spec, words, fn)
  local name = program_of(spec).name
  local ok, code = pcall(function()
    local o = parse_program(program_of(spec), name, words, 1)
    if o.help then
      io.stdout:write(o._text)
      return 0
    end
    return fn(o, words)
  end)
  if ok then return code or 0 end
  io.stdout:flush()
  local wrong = getmetatable(code) == Wrong
  local text = wrong and code.usage or M._without_place(code)
  local before = text:find(name, 1, true) == 1 and "" or name .. ": "
  io.stderr:write(before, text, "\n", wrong and name .. " --help lists the options\n" or "")
  return wrong and 2 or 1
end

--- The options of this script. --help prints them and ends the process; what is wrong is said on stderr and ends it
-- with status 2.
local call = signature("cli(table spec, string[] words?)", function(spec, words)
  local p = program_of(spec, "cli")
  local given = words
  if not given then
    given = {}
    for i, word in ipairs(arg or {}) do given[i] = word end
  end
  local name = p.name or called()
  local ok, o = pcall(parse_program, p, name, given, 1)
  if ok and not o.help then return o end
  if ok then
    if p.about == "" and not p.name then
      p.about = comment_of_script()
      o._text = require "moth.cli.help".text(p, name)
    end
    io.stdout:write(o._text)
    leave(0)
  end
  if getmetatable(o) ~= Wrong then error(o, 0) end
  io.stderr:write(name, ": ", o.usage, "\n", name, " --help lists the options\n")
  leave(2)
end)

require "moth.lang.lazy"(M, "moth.cli.", {}, "moth.cli")
getmetatable(M).__call = function(_, ...) return (call(...)) end
return M
