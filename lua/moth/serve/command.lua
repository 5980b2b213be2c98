--- `moth serve`: the command line of moth.serve.
local each = require "moth.each"

local M = {}

M.usage = [[
usage: moth serve [options] NAME=FILE …        models of moth.export.save; folders and .gguf files: language models
       moth serve [options] CONFIG.lua         a file that returns the options of moth.serve
  --host ADDRESS        127.0.0.1; others need --token-file or --insecure-open
  --port N              8000; 0: one that is free
  --device NAME         of all models: cpu, cuda
  --quantize NAME       language models: Q8_0 or Q4_0, what weights of floats become
  --dtype NAME          language models: float32, bfloat16, float16; left out: the file's
  --max-tokens N        language models: the cache's tokens, of all sequences together, 4096
  --max-seqs N          language models: sequences that run together, 16
  --draft FILE          language models: a smaller one of the same tokens, which proposes some; --draft-tokens N, 4
  --cache-type NAME     language models: float32, float16, bfloat16 or q8_0: what keys and values are held as
  --lookup [N]          language models: as many tokens, 8, are proposed where the last ones stood before
  --threads N           of each engine; the processors are divided
  --max-size N          rows of a batch, 32
  --max-delay-ms N      how long the oldest request waits for others, 0
  --queue N             requests that wait for a model, 256
  --wait-ms N           how long one may wait, 10000
  --max-body BYTES      16 MiB
  --held BYTES          of all bodies that are read or wait: 64 MiB, four of --max-body at least
  --connections N       1024
  --token-file FILE     clients send its word: Authorization: Bearer …
  --host-name NAME      a further name that clients may use for this server; several times
  --allow-origin ORIGIN web pages that may ask, such as https://page.example; *: all; several times
  --insecure-open       other addresses without a token
  --admin PATH          a unix socket for POST /admin/reload/NAME and /admin/stop
  --reload stop_first   loads a model again after its old engine has ended: for models that do not fit twice
  --drain SECONDS       30: to finish after SIGTERM
  --step-timeout SECONDS  60: an engine that says nothing for so long is started again
  --check               loads the models, computes one request of each, ends
  --print-nginx         writes a configuration in which nginx's workers hold the models themselves
]]

local plain = { host = "host", port = "port", device = "device", threads = "threads", ["token-file"] = "token_file",
  admin = "admin", reload = "reload", drain = "drain", ["step-timeout"] = "step_timeout" }
local numbers = { port = true, threads = true, drain = true, ["step-timeout"] = true, ["max-size"] = true,
  ["max-delay-ms"] = true, queue = true, ["wait-ms"] = true, ["max-body"] = true, connections = true,
  held = true, ["max-tokens"] = true, ["max-seqs"] = true, lookup = true,
  ["draft-tokens"] = true }
local limits = { queue = "queue", ["wait-ms"] = "wait_ms", ["max-body"] = "body", connections = "connections",
  held = "held" }
local llm = { quantize = "quantize", dtype = "dtype", ["max-tokens"] = "max_tokens", ["max-seqs"] = "max_seqs",
  draft = "draft", ["draft-tokens"] = "draft_tokens", lookup = "lookup",
  ["cache-type"] = "cache" }
local batching = { ["max-size"] = "max_size", ["max-delay-ms"] = "max_delay_ms" }

local function fail(...) error({ usage = (...):format(select(2, ...)) }, 0) end

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

--- The options of a list of words; and { check, print_nginx, help }.
function M.parse(words)
  local o, mode, given, i = { models = {} }, {}, {}, 1 -- given: models of this line, by name
  local function value(name)
    if name == "lookup" and not tonumber(words[i + 1]) then return 8 end
    i = i + 1
    local v = words[i] or fail("--%s needs a value", name)
    if not numbers[name] then return v end
    return tonumber(v) or fail("--%s: expected a number, got '%s'", name, v)
  end
  while words[i] do
    local word = words[i]
    local name = word:match "^%-%-(.+)$"
    local before, behind = word:match "^(%-%-[%w-]+)=(.*)$"
    if before then -- --port=9000
      name, words[i] = before:sub(3), behind
      i = i - 1
    end
    if word == "-h" or name == "help" then
      mode.help = true
    elseif name == "check" or name == "print-nginx" then
      mode[name] = true
    elseif name == "insecure-open" then
      o.insecure_open = true
    elseif name == "host-name" then
      o.hosts = o.hosts or {}
      table.insert(o.hosts, value(name))
    elseif name == "allow-origin" then
      o.allow_origins = o.allow_origins or {}
      table.insert(o.allow_origins, value(name))
    elseif name and plain[name] then
      o[plain[name]] = value(name)
    elseif name and limits[name] then
      o.limits = o.limits or {}
      o.limits[limits[name]] = value(name)
    elseif name and llm[name] then
      o.llm = o.llm or {}
      o.llm[llm[name]] = value(name)
    elseif name and batching[name] then
      o.batching = o.batching or {}
      o.batching[batching[name]] = value(name)
    elseif name then
      fail("there is no option %s", word)
    elseif word:find "^[%w_.-]+=" then
      local model, path = word:match "^(.-)=(.+)$"
      if not path then fail("%s: expected NAME=FILE", word) end
      if given[model] then fail("the model %s is given twice: %s and %s", model, given[model], path) end
      o.models[model], given[model] = path, path
    elseif word:find "%.lua$" then
      fill(o, config_of(word))
    else
      fail("%s: expected NAME=FILE or a file CONFIG.lua", word)
    end
    i = i + 1
  end
  if not mode.help and type(o.models) == "table" and next(o.models) == nil then fail("expected a model: NAME=FILE") end
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

--- Runs the command; returns the exit code.
function M.main(words)
  local o, mode = M.parse(words)
  if mode.help then
    io.stdout:write(M.usage)
    return 0
  end
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

-- A message without the place that raised it.
local function without_place(message)
  return (tostring(message):gsub("^[^\n:]-%.lua:%d+: ", ""):gsub("^%(command line%):%d+: ", ""))
end

--- The same for the command: prints what it raises.
function M.command(words)
  local ok, code = pcall(M.main, words)
  if ok then return code end
  if type(code) == "table" and code.usage then
    io.stderr:write("moth serve: ", code.usage, "\nmoth serve --help lists the options\n")
    return 2
  end
  io.stderr:write("moth serve: ", without_place(code), "\n")
  return 1
end

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
    io.stderr:write("moth serve: ", without_place(message), "\n")
    return 1
  end
  return 0
end

return M
