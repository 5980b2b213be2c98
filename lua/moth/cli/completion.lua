--- Completion of a program's words in bash and zsh, from the declaration of its options (moth.cli). The scripts need no
-- moth: all words are in them.

local help = require "moth.cli.help"

-- A word within single quotes of a shell.
local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function identifier(text) return "_" .. text:gsub("[^%w]", "_") end

-- Words of an option: --port, -p; --curve, --no-curve.
local function words_of(option)
  local list = { option.name }
  if option.letter and option.flag then list[#list + 1] = "-" .. option.letter end
  if option.type == "boolean" and option.default == true and option.flag then
    list[#list + 1] = "--no-" .. option.flag
  end
  return list
end

local function is_path(option) return option.type == "path" end

local function choices_of(option)
  local list = {}
  for i, choice in ipairs(option.choices or {}) do list[i] = tostring(choice) end
  return table.concat(list, " ")
end

local function takes_value(option) return option.type ~= "boolean" and not option.optional end

-- What an argument by position may be: a path, or words.
local function takes_path(p)
  for _, argument in ipairs(p.arguments) do if is_path(argument) then return true end end
  return false
end

-- ---- bash ---------------------------------------------------------------------------------------------

local of_words = 'COMPREPLY=($(compgen -W %s -- "$cur"))'

-- The body of a `case` over the word before, and the words that may stand here.
local function bash_body(p, indent)
  local out, words = {}, {}
  local function add(...) out[#out + 1] = indent .. string.format(...) end
  local cases = {}
  for _, option in ipairs(p.options) do
    if not option.hidden then
      local names = words_of(option)
      for _, word in ipairs(names) do words[#words + 1] = word end
      if takes_value(option) then
        local reply = option.choices and of_words:format(quoted(choices_of(option)))
          or is_path(option) and "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))" or "COMPREPLY=()"
        cases[#cases + 1] = ("%s) %s; return ;;"):format(table.concat(names, "|"), reply)
      end
    end
  end
  if #cases > 0 then
    add "case $prev in"
    for _, case in ipairs(cases) do add("  %s", case) end
    add "esac"
  end
  add("if [[ $cur == -* ]]; then " .. of_words .. "; return; fi", quoted(table.concat(words, " ")))
  local list = {}
  for _, argument in ipairs(p.arguments) do
    if argument.choices then list[#list + 1] = choices_of(argument) end
  end
  if #list > 0 then
    add("%s%s", of_words:format(quoted(table.concat(list, " "))), takes_path(p) and "" or "; return")
  end
  return out
end

local function bash(p, name)
  local out = {}
  local function add(...) out[#out + 1] = string.format(...) end
  local function body(of, indent) for _, line in ipairs(bash_body(of, indent)) do out[#out + 1] = line end end
  local fn = identifier(name)
  add("# Completion of %s for bash, made by `moth completion bash`.", name)
  add("%s() {", fn)
  -- --name=VALUE comes as three words, as `=` divides them; the path of NAME=FILE stands behind the last one.
  add "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} i command="
  add "  COMPREPLY=()"
  add "  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi"
  if p.commands then
    local names = {}
    for i, one in ipairs(p.commands) do names[i] = one.name end
    local case = {}
    for _, option in ipairs(p.options) do
      if takes_value(option) then for _, word in ipairs(words_of(option)) do case[#case + 1] = word end end
    end
    add "  for ((i = 1; i < COMP_CWORD; i++)); do"
    add "    case ${COMP_WORDS[i]} in"
    if #case > 0 then add("      %s) ((i++)) ;;", table.concat(case, "|")) end
    add "      -*) ;;"
    add "      *) command=${COMP_WORDS[i]}; break ;;"
    add "    esac"
    add "  done"
    add "  case $command in"
    for _, one in ipairs(p.commands) do
      add("    %s)", one.name)
      if one.commands then
        local inner = {}
        for i, sub in ipairs(one.commands) do inner[i] = sub.name end
        add("      if ((COMP_CWORD == i + 1)); then COMPREPLY=($(compgen -W %s -- \"$cur\")); return; fi",
          quoted(table.concat(inner, " ")))
        add "      case ${COMP_WORDS[i+1]} in"
        for _, sub in ipairs(one.commands) do
          add("        %s)", sub.name)
          body(sub, "          ")
          add "          ;;"
        end
        add "      esac"
      else
        body(one, "      ")
      end
      add "      ;;"
    end
    add "    '')"
    body(p, "      ")
    add("      COMPREPLY=($(compgen -W %s -- \"$cur\"))", quoted(table.concat(names, " ")))
    add "      ;;"
    add "  esac"
  else
    body(p, "  ")
  end
  add "  compopt -o filenames"
  add "  COMPREPLY+=($(compgen -f -- \"$cur\"))"
  add "}"
  add("complete -F %s %s", fn, name)
  return table.concat(out, "\n") .. "\n"
end

-- ---- zsh ----------------------------------------------------------------------------------------------

local function zsh_text(text)
  return (text:gsub("\n.*", ""):gsub("[%[%]:]", "\\%0"))
end

-- The specifications of _arguments.
local function zsh_specs(p)
  local out = {}
  for _, option in ipairs(p.options) do
    if not option.hidden then
      local value = ""
      if option.type ~= "boolean" then
        value = (option.optional and "::" or ":") .. zsh_text(option.word:lower()):gsub("|", " ") .. ":"
          .. (option.choices and "(" .. choices_of(option) .. ")" or is_path(option) and "_files" or "")
      end
      for _, word in ipairs(words_of(option)) do
        local equals = value ~= "" and word:find "^%-%-" and "=" or ""
        out[#out + 1] = quoted((option.several and "*" or "") .. word .. equals
          .. "[" .. zsh_text(help.told(option)) .. "]" .. value)
      end
    end
  end
  return out
end

-- The same of arguments by position: words from a list, else files.
local function zsh_positions(p)
  local out = {}
  for i, argument in ipairs(p.arguments) do
    if argument.choices then
      out[#out + 1] = quoted(("%s:%s:(%s)"):format(argument.many and "*" or i, zsh_text(argument.word:lower()),
        choices_of(argument)))
      if argument.many then return out end
    end
  end
  out[#out + 1] = "'*:file:_files'"
  return out
end

local function zsh(p, name)
  local out = {}
  local function add(...) out[#out + 1] = string.format(...) end
  local fn = identifier(name)
  local function arguments(of, indent, last)
    add("%s_arguments -s -S \\", indent)
    for _, text in ipairs(zsh_specs(of)) do out[#out + 1] = indent .. "  " .. text .. " \\" end
    for _, text in ipairs(last or zsh_positions(of)) do out[#out + 1] = indent .. "  " .. text .. " \\" end
    out[#out] = out[#out]:gsub(" \\$", "")
  end
  local function commands(of, indent, variable)
    add("%slocal -a %s=(", indent, variable)
    for _, one in ipairs(of.commands) do
      out[#out + 1] = indent .. "  " .. quoted(one.name .. ":" .. zsh_text(one.about))
    end
    add("%s)", indent)
  end
  add("#compdef %s", name)
  add("# Completion of %s for zsh, made by `moth completion zsh`.", name)
  if p.commands then
    local function level(of, of_name, inner)
      add("%s() {", of_name)
      add "  local curcontext=$curcontext state line"
      add "  typeset -A opt_args"
      commands(of, "  ", "commands")
      arguments(of, "  ", { "'1:command:->command'", "'*::argument:->argument'" })
      add "  case $state in"
      add "    command) _describe command commands"
      add "      _files ;;"
      add "    argument) case $line[1] in"
      for _, one in ipairs(of.commands) do add("      %s) %s ;;", one.name, inner(one)) end
      add "      *) _files ;;"
      add "      esac ;;"
      add "  esac"
      add "}"
    end
    for _, one in ipairs(p.commands) do
      local one_name = fn .. identifier(one.name)
      if one.commands then
        for _, sub in ipairs(one.commands) do
          add("%s%s() {", one_name, identifier(sub.name))
          arguments(sub, "  ")
          add "}"
        end
        level(one, one_name, function(sub) return one_name .. identifier(sub.name) end)
      else
        add("%s() {", one_name)
        arguments(one, "  ")
        add "}"
      end
    end
    level(p, fn, function(one) return fn .. identifier(one.name) end)
  else
    add("%s() {", fn)
    arguments(p, "  ")
    add "}"
  end
  add("if [ \"$funcstack[1]\" = %s ]; then %s \"$@\"; else compdef %s %s; fi", fn, fn, fn, name)
  return table.concat(out, "\n") .. "\n"
end

return function(p, shell, name)
  return (shell == "bash" and bash or zsh)(p, name or p.name or "script")
end
