--- `moth run`: a script in several processes. What it does is in launch/.
local B = require "moth_lua"

local M = {}

--- The interpreter of this process, as words that run a script.
function M.interpreter()
  local path = B.process.executable() or "moth"
  if path:match("[^/]*$"):find "^moth" then return { path } end
  return { path, "-e", "io.stdout:setvbuf 'line'" }
end

--- How a worker is started, from the options of the command line.
function M.words(o)
  local plain = o.no_python or o.no_lua
  local words, script = plain and {} or M.interpreter(), o.words[1]
  if o.module then
    local path, tried = package.searchpath(script, package.path)
    script = path or error("moth run: there is no module " .. script .. ":" .. tried, 0)
  end
  words[#words + 1] = script
  for i = 2, #o.words do words[#words + 1] = o.words[i] end
  return words
end

--- Runs a list of words; returns the exit code.
function M.command(words)
  local options = require "moth.distributed.launch.options"
  return require("moth.cli")._run(options.options, words, function(given)
    local o = options.read(given)
    return require "moth.distributed.launch.agent"(o, M.words(o)):run()
  end)
end

return M
