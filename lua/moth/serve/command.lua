--- `moth serve`: the command line of moth.serve.
local cli = require "moth.cli"
local each = require "moth.each"

local M = {}

--- The options, as moth.cli reads them.
M.options = {
  "Models behind HTTP.\nNAME=FILE is a model of moth.export.save, or a language model: a folder or a .gguf file; \z
    without NAME= it has the folder's name, or the file's without its ending. A file CONFIG.lua returns the options \z
    of moth.serve.",
  name = "moth serve", sparse = true, see = "docs/serve.md",
  { "[NAME=FILE|FILE|CONFIG.lua...]", type = "path", key = "words" },
  { "--host ADDRESS", "others than the default need --token-file or --insecure-open", default = "127.0.0.1" },
  { "--port N", "0: one that is free", default = 8000, min = 0, max = 65535 },
  { "--device NAME", "of all models: cpu, cuda" },
  { "--threads N", "of each engine; the processors are divided" },
  "Language models",
  { "--quantize NAME", "Q8_0 or Q4_0, what weights of floats become", key = "llm.quantize" },
  { "--dtype NAME", "float32, bfloat16, float16; left out: the file's", key = "llm.dtype" },
  { "--max-tokens N", "the cache's tokens, of all sequences together", default = 4096, key = "llm.max_tokens" },
  { "--max-seqs N", "sequences that run together", default = 16, key = "llm.max_seqs" },
  { "--draft PATH", "a smaller one of the same tokens, which proposes some", key = "llm.draft" },
  { "--draft-tokens N", "how many", default = 4, key = "llm.draft_tokens" },
  { "--cache-type float32|float16|bfloat16|q8_0|f32|f16|bf16", "what keys and values are held as", key = "llm.cache" },
  { "--lookup [N]", "as many tokens are proposed where the last ones stood before", bare = 8, key = "llm.lookup" },
  "Requests",
  { "--max-size N", "rows of a batch", default = 32, key = "batching.max_size" },
  { "--max-delay-ms X", "how long the oldest request waits for others", default = 0, key = "batching.max_delay_ms" },
  { "--queue N", "requests that wait for a model", default = 256, key = "limits.queue" },
  { "--wait-ms X", "how long one may wait", default = 10000, key = "limits.wait_ms" },
  { "--max-body BYTES", "of a request", type = "number", default = "16 MiB", key = "limits.body" },
  { "--held BYTES", "of all bodies that are read or wait, four of --max-body at least", type = "number",
    default = "64 MiB", key = "limits.held" },
  { "--connections N", "at a time", default = 1024, key = "limits.connections" },
  "Clients",
  { "--token-file FILE", "clients send its word: Authorization: Bearer …" },
  { "--host-name NAME", "a further name that clients may use for this server", several = true, key = "hosts" },
  { "--allow-origin ORIGIN", "web pages that may ask, such as https://page.example; *: all", several = true,
    key = "allow_origins" },
  { "--insecure-open", "other addresses without a token" },
  "Running",
  { "--admin PATH", "a unix socket for POST /admin/reload/NAME and /admin/stop" },
  { "--reload stop_first", "loads a model again after its old engine has ended: for models that do not fit twice" },
  { "--drain SECONDS", "to finish after SIGTERM", default = 30 },
  { "--step-timeout SECONDS", "an engine that says nothing for so long is started again", default = 60 },
  { "--check", "loads the models, computes one request of each, ends", key = "mode.check" },
  { "--print-nginx", "writes a configuration in which nginx's workers hold the models themselves",
    key = "mode.print-nginx" },
}

local fail = cli._fail

-- The options of a config file, a chunk of Lua that the user names. It has moth as a global, as scripts have.
local function config_of(path)
  local chunk, why = loadfile(path)
  if not chunk then fail("%s", why) end
  rawset(_G, "moth", rawget(_G, "moth") or require "moth")
  local ok, o = xpcall(chunk, function(message) return tostring(message) end)
  if not ok then fail("%s", o:find(path, 1, true) and o or path .. ": " .. o) end
  if type(o) ~= "table" then fail("%s: expected a file that returns a table", path) end
  return o
end

-- Adds the options of a file; what the words before it say stays.
local function fill(o, from)
  for key, v in each(from) do
    if o[key] == nil or type(v) ~= type(o[key]) then
      o[key] = v
    elseif key == "hosts" or key == "allow_origins" then
      for _, one in ipairs(v) do table.insert(o[key], one) end
    elseif type(v) == "table" then
      fill(o[key], v)
    end
  end
end

-- The name of a model that the line gives none: its folder's, or its file's without the ending.
local function name_of(path)
  local name = path:gsub("/+$", ""):match "([^/]*)$"
  name = name:gsub("%.gguf$", ""):gsub("%.mth2?$", "")
  if not name:find "^[%w_-][%w_.-]*$" then
    fail("%s: this is no name for a model; give one: NAME=%s, or a file CONFIG.lua", path, path)
  end
  return name
end

--- The options of a list of words; and { check, print-nginx }.
function M.parse(words) return M.read(cli.parse(M.options, words)) end

--- The same of what moth.cli has read.
function M.read(o)
  local mode, given, words = o.mode or {}, {}, o.words or {} -- given: models of this line, by name
  if o.help then return o, { help = true } end
  o.mode, o.words, o.models = nil, nil, {}
  for _, word in ipairs(words) do
    if word:find "%.lua$" and not word:find "^[%w_.-]+=" then
      fill(o, config_of(word))
    else
      local model, path = word:match "^([%w_.-]+)=(.*)$"
      if not model then model, path = name_of(word), word end
      if path == "" then fail("%s: expected NAME=FILE", word) end
      if given[model] then fail("the model %s is given twice: %s and %s", model, given[model], path) end
      o.models[model], given[model] = path, path
    end
  end
  if type(o.models) == "table" and next(o.models) == nil then fail("expected a model: NAME=FILE") end
  return o, mode
end

local function check_server(server)
  server:run(function()
    for _, name in ipairs(server.names) do
      local model = server.models[name]
      print(("%s: %s"):format(name, model.signature.steps and "a language model"
        or require("moth.serve.kserve").metadata(name, model.signature)))
    end
    server:stop()
  end)
  return 0
end

local function announce(server)
  local host = server.host:find(":", 1, true) and "[" .. server.host .. "]" or server.host
  print(("moth serve: ready on http://%s:%d"):format(host, server.port))
  io.stdout:flush()
end

-- Runs the command with what moth.cli has read; returns the exit code.
local function main(given)
  local o, mode = M.read(given)
  if mode["print-nginx"] then
    io.stdout:write(require("moth.serve.nginx").configuration(o))
    return 0
  end
  local ok, message = require("moth.serve.front").available()
  if not ok then
    io.stderr:write(message, "\n")
    return 2
  end
  if mode.check then o.port = 0 end
  local server = require "moth.serve"(o)
  if mode.check then return check_server(server) end
  server:run(announce)
  return server.interrupted and 128 + 2 or 0 -- as a shell counts who is ended by SIGINT
end

--- Runs the words behind `moth serve`; returns the exit code.
function M.command(words) return cli._run(M.options, words, main) end

--- The process of moth.serve.spawn: options as JSON on standard input, whose end ends it.
function M.child()
  local line = io.read "*l"
  local front = require "moth.serve.front"
  local ok, message = pcall(function()
    local server = require "moth.serve"(require("cjson").decode(line))
    front.spawn(function()
      repeat front.wait(0, "r") until not require("moth_lua").process.read(0) -- to its end
      server:stop()
    end)
    server:run(announce)
  end)
  if not ok then
    io.stderr:write("moth serve: ", cli._without_place(message), "\n")
    return 1
  end
  return 0
end

return M
