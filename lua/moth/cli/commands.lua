--- The commands of the program moth: `moth run`, `moth serve` and the others, and `moth help` and `moth completion`,
-- which speak of them all. The launcher looks up its first word here.
local cli = require "moth.cli"
local suggest = require("moth.utils.check").suggest

local M = {}

-- word -> its module, which has `command(words)`, and `options` or, of several commands, options[word]
local modules = { run = "moth.distributed.run", serve = "moth.serve.command", generate = "moth.llm.command",
  chat = "moth.llm.command", convert = "moth.llm.command", perplexity = "moth.llm.command",
  kernel = "moth.jupyter.command" }
local order = { "run", "serve", "generate", "chat", "convert", "perplexity", "kernel", "help", "completion" }

local own = {
  help = { "Prints what moth takes, or a COMMAND.\n--man gives it as a man page, as in moth help --man serve | man -l \z
      -.",
    name = "moth help", config = false, { "[COMMAND]", choices = order }, { "--man", "as groff reads it" } },
  completion = { "Prints a script that has a shell complete the words of moth.\nThat of bash belongs into \z
    ~/.local/share/bash-completion/completions/moth, that of zsh into a file _moth of a folder of $fpath. \z
    `make install` writes both.", name = "moth completion", config = false,
    { "SHELL", choices = { "bash", "zsh" } } },
}

-- The options of the command `word`.
local function options_of(word)
  if own[word] then return own[word] end
  local options = require(word == "run" and "moth.distributed.launch.options" or modules[word]).options
  return modules[word] == "moth.llm.command" and options[word] or options
end

local program
--- The options of the program itself, with all commands.
function M.program()
  if program then return program end
  local commands = {}
  for i, word in ipairs(order) do
    local copy = { config = false }
    for key, value in require "moth.each"(options_of(word)) do copy[key] = value end
    copy.name = word
    commands[i] = copy
  end
  program = {
    "Runs a script of Lua, a command, or a prompt.\nScripts, code and \z
      the prompt have `moth` as a global. Without a script moth is interactive; if standard input is no terminal, \z
      that is the script. `moth COMMAND --help` lists the options of a command.",
    name = "moth", commands = commands, pages = true, usage = { "[options] [SCRIPT [ARGUMENTS...]]", "COMMAND …" },
    "Options",
    { "-e CODE", "runs code" },
    { "-l MODULE", "requires a module; a global of its last name holds it (-l moth.nn sets nn)" },
    { "-j CMD[=A,B]", "LuaJIT's own commands: off, on, flush, p=fl (its sampling profiler), v, dump, bc" },
    { "-i", "is interactive after the script or -e" },
    { "--profile [FILE]", "profiles the script: a table on standard error, a page in FILE (moth-profile.html; or \z
      .json, .pftrace for Perfetto, .svg for a flame graph)", type = "path", bare = "" },
    { "-v, --version", "prints the versions of moth and LuaJIT" },
    see = "docs/start.md",
  }
  return program
end

--- Runs the words behind `moth WORD`, words[0]; returns the exit code. Of "" they are the program's own, as --help.
function M.command(words)
  local word = words[0]
  if word == "" then return cli._run(M.program(), words, function() return 0 end) end
  if modules[word] then return (require(modules[word]).command(words)) end
  if word == "completion" then
    return cli._run(own.completion, words, function(o)
      io.stdout:write(cli.completion(M.program(), o.shell, "moth"))
    end)
  elseif word == "help" then
    return cli._run(own.help, words, function(o)
      local options = o.command and options_of(o.command) or M.program()
      io.stdout:write(o.man and cli.man(options) or cli.help(options))
    end)
  end
  return cli._run(M.program(), { word }, function() return 0 end) -- says that there is none
end

--- Writes what `make install` puts beside the program: man pages, completion, definitions for editors.
function M.install(folder)
  local system = require "moth.utils.system"
  local function write(path, text)
    path = folder .. "/" .. path
    if os.execute("mkdir -p " .. system.quoted((path:gsub("/[^/]*$", "")))) ~= 0 then
      error("the folder of " .. path .. " cannot be made", 0)
    end
    local f = assert(io.open(path, "w"))
    assert(f:write(text))
    assert(f:close())
  end
  write("man/man1/moth.1", cli.man(M.program()))
  write("man/man1/mothrun.1", ".so man1/moth-run.1\n")
  for _, word in ipairs(order) do write("man/man1/moth-" .. word .. ".1", cli.man(options_of(word))) end
  write("bash-completion/completions/moth", cli.completion(M.program(), "bash"))
  write("zsh/site-functions/_moth", cli.completion(M.program(), "zsh"))
  write("bash-completion/completions/mothrun", cli.completion(options_of "run", "bash", "mothrun"))
  write("zsh/site-functions/_mothrun", cli.completion(options_of "run", "zsh", "mothrun"))
  for name, text in require "moth.each"(require("moth.reference.meta").files()) do write("moth/meta/" .. name, text) end
end

--- Whether `moth WORD` is a command, or a misspelt one: no file has that name.
function M.has(word)
  return modules[word] ~= nil or own[word] ~= nil
    or suggest(word, order) ~= "" and not require("moth.utils.system").exists(word)
end

return M
