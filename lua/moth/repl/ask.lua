--- moth.help: the docs of a name or a value, as `?name` at the prompt shows them.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local help = require "moth.repl.help"
local complete = require "moth.repl.complete"

local M = {}

-- Where a name is looked for: the session's variables, then moth.
local function places(env)
  local moth = require "moth"
  return { env or { moth = moth }, moth, moth.nn, moth.optim, moth.optim.lr_scheduler, moth.data, moth.nn.functional,
    moth.nn.utils, moth.autograd, moth.transforms, moth.datasets }
end

-- The value of a name: x, conv2d, nn.Conv2d, StepLR.
local function find(path, env)
  if not complete.keys(path) then return nil end
  for _, place in ipairs(places(env)) do
    local value = complete.resolve(place, path)
    if value ~= nil then return value end
  end
end

-- "; did you mean 'softmax'?" for a name that is nowhere, or "".
local function meant(path, env)
  local before, last = path:match "^(.*)%.([^.]+)$"
  local names = {}
  for _, place in ipairs(before and { find(before, env) } or places(env)) do
    for name in each(complete.fields(place)) do names[#names + 1] = name end
  end
  table.sort(names)
  return (check.suggest(last or path, names):gsub("%?$", ""))
end

local function is_module(value)
  local mt = type(value) == "table" and getmetatable(value)
  return type(mt) == "table" and rawget(mt, "__module_name") ~= nil
end

--- The text of `?path`; `env`: the variables of a session.
function M.about(path, env)
  local value = find(path, env)
  if is_module(value) then return help.text(getmetatable(value).__module_name, value) end
  return help.text(path, value)
    or ("nothing is named '%s'%s; ??%s looks through the docs"):format(path, meant(path, env), path)
end

local overview = [[
moth.help "relu"          signature, doc and source of an op, a function, a class (nn.Linear) or a module ("debug")
moth.help(moth.relu)      the same of a value
moth.config()             what moth found on this machine
At the prompt: ?name, ??word searches names and docs, %help lists the commands.
Modules: nn, optim, data, transforms, models, amp, autograd, func, linalg, fft, sparse, distributions, plot
  compile, kernel, profiler, debug, memory, distributed; to ship: export, onnx, edge, quantization, serve, llm, gguf
Guides are in docs/, examples in examples/.]]

local function text_of(what)
  if what == nil then return overview end
  if type(what) == "string" then return M.about(what) end
  if is_module(what) then return help.text(getmetatable(what).__module_name, what) end
  if type(what) == "function" then
    for name, f in each(B.ops) do
      if rawequal(f, what) then return help.text(name, what) end
    end
  end
  return help.text(type(what) == "table" and rawget(what, "__name") or type(what), what)
end

--- Prints what `what` is: a name ("relu", "nn.Linear", "debug") or a value (moth.relu, a module, an object); without
-- it, where to look.
M.help = signature("help(any what?)", function(what) print(text_of(what)) end)

return M
