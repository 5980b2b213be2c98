--- moth.serve: models behind HTTP. A front process speaks HTTP, checks and queues; each model has an engine process.
--
--     local server = moth.serve { models = { fashion = "fashion.mth2" }, port = 8000 }
--     server:run()                                   -- until SIGTERM; server:stop() ends it
--     local other = moth.serve.spawn { models = { fashion = "fashion.mth2" }, port = 0 }
--     print(other:get("/v2/health/ready").status)    -- a server in a process of its own
--     other:stop()
--
-- The guide is docs/serve.md; the command is `moth serve`. It needs lua-http (Debian: lua-http).
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local lazy = require "moth.lang.lazy"
local tree = require "moth.lang.tree"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"

local M = {}

local names = "models host port batching limits llm threads device token_file insecure_open hosts allow_origins admin \z
  reload drain step_timeout load_timeout"

-- ---- options -----------------------------------------------------------------------------------------

local function fail(...) check.fail(...) end

local function number_of(where, o, name, default, min)
  return check.number("[serve]", where .. name, o[name] == nil and default or o[name], min)
end

local function batching_of(o, where)
  o = check.options("[serve] " .. where, o, "max_size max_delay_ms")
  return { max_size = check.integer("[serve]", where .. ".max_size", o.max_size or 32, 1),
    max_delay_ms = number_of(where .. ".", o, "max_delay_ms", 0, 0) }
end

local function limits_of(o)
  o = check.options("[serve] limits", o, "body held queue wait_ms connections")
  local body = number_of("limits.", o, "body", 16 * 2 ^ 20, 1)
  return { body = body, held = number_of("limits.", o, "held", math.max(64 * 2 ^ 20, 4 * body), 1),
    queue = check.integer("[serve]", "limits.queue", o.queue or 256, 1),
    wait_ms = number_of("limits.", o, "wait_ms", 10000, 1),
    connections = check.integer("[serve]", "limits.connections", o.connections or 1024, 1) }
end

local model_names = "path engine options batching threads device"

local function text_of(where, value)
  if value ~= nil and (type(value) ~= "string" or value == "") then
    fail("[serve] %s: expected a text, got %s", where, value == "" and "an empty one" or class.name(value))
  end
  return value
end

-- Options as they go to another process: plain data. Dtypes and devices become their names.
local function plain_of(where, options)
  local function plain(value)
    if type(value) == "userdata" or type(value) == "cdata" then return tostring(value) end
    if type(value) ~= "table" then return value end
    local out = {}
    for key, v in each(value) do out[key] = plain(v) end
    return out
  end
  local out = plain(options)
  local ok, why = pcall(require("cjson").encode, out)
  if not ok then
    fail("%s: the options go to another process as plain data: %s", where,
      (tostring(why):gsub("^Cannot serialise ", "")))
  end
  return out
end

local LANGUAGE_MODEL = "moth.llm.engine"

-- The description of a model's engine, from a path or a table.
local function description_of(name, model, o)
  if type(name) ~= "string" or not name:find "^[%w_.-]+$" then
    fail("[serve] expected names of models of letters, digits, '_', '-' and '.', got '%s'", tostring(name))
  end
  if type(model) == "string" then model = { path = model } end
  if type(model) ~= "table" then
    fail("[serve] model %s: expected a path or a table, got %s", name, class.name(model))
  end
  check.options("[serve] model " .. name, model, model_names)
  if (model.path == nil) == (model.engine == nil) then fail("[serve] model %s: expected a path or an engine", name) end
  text_of("model " .. name .. " path", model.path)
  text_of("model " .. name .. " engine", model.engine)
  if model.path and model.options ~= nil then
    fail("[serve] model %s: options are those of an engine; for a language model moth.serve.llm(path, options)", name)
  end
  if model.options ~= nil and type(model.options) ~= "table" then
    fail("[serve] model %s options: expected a table, got %s", name, class.name(model.options))
  end
  local device = model.device or o.device
  if device ~= nil then device = text_of("device", tostring(device)) end
  local engine, options = model.engine or "moth.serve.program", plain_of("[serve] model " .. name, model.options or {})
  if engine == LANGUAGE_MODEL then
    for key, value in each(plain_of("[serve] llm", o.llm or {})) do
      if options[key] == nil then options[key] = value end
    end
  end
  if model.path then
    local file, why = io.open(model.path, "rb")
    if not file then fail("[serve] model %s: cannot open %s", name, why) end
    local head, problem = file:read(4)
    file:close()
    if problem or head == "GGUF" then -- a folder, or what else holds a language model
      local llm = M.llm(model.path, { device = device })
      llm.threads, llm.batching = model.threads, model.batching
      return description_of(name, llm, o)
    end
    options = { path = model.path, device = device }
  elseif options.device == nil then
    options.device = device
  end
  return { engine = engine, options = options, threads = model.threads or o.threads,
    cuda = device ~= nil and tostring(device):find "cuda" ~= nil or nil },
    batching_of(model.batching or o.batching, model.batching and "model " .. name .. " batching" or "batching")
end

-- The token, from a file that others cannot read.
local function token_of(path)
  if text_of("token_file", path) == nil then return nil end
  local file, why = io.open(path, "r")
  if not file then fail("[serve] token_file: cannot open %s", why) end
  local token, problem = file:read "*l"
  file:close()
  if problem then fail("[serve] token_file: cannot read %s: %s", path, problem) end
  local pipe = io.popen("stat -L -c %a -- " .. system.quoted(path))
  local mode = pipe:read "*l"
  pipe:close()
  if not mode or not mode:find "^[46]00$" then
    fail("[serve] token_file: %s has mode %s, and others may read it: chmod 600", path, tostring(mode))
  end
  token = (token or ""):match "^%s*(%S+)%s*$"
  if not token or #token < 8 then fail("[serve] token_file: expected one word of at least 8 letters in %s", path) end
  return token
end

local function is_loopback(host) return host == "127.0.0.1" or host == "::1" or host == "localhost" end

--- Checks the options of moth.serve; the whole configuration.
local function configure(o)
  o = check.options("[serve]", o, names)
  if type(o.models) ~= "table" or next(o.models) == nil then
    fail("[serve] models: expected a table { name = path }, got %s", class.name(o.models))
  end
  if o.llm ~= nil and type(o.llm) ~= "table" then
    fail("[serve] llm: expected a table of options of language models, got %s", class.name(o.llm))
  end
  local config, speaks = { models = {}, names = tree.keys(o.models), hosts = {} }, false
  for _, name in ipairs(config.names) do
    local description, batching = description_of(name, o.models[name], o)
    config.models[name] = { description = description, batching = batching }
    speaks = speaks or description.engine == LANGUAGE_MODEL
  end
  local option = not speaks and next(o.llm or {})
  if option then fail("[serve] %s: is an option of language models, and no model here is one", tostring(option)) end
  config.host, config.port = o.host or "127.0.0.1", check.integer("[serve]", "port", o.port or 8000, 0)
  text_of("host", config.host)
  if config.port > 65535 then fail("[serve] port: expected at most 65535, got %d", config.port) end
  config.token = token_of(o.token_file)
  if o.insecure_open ~= nil and type(o.insecure_open) ~= "boolean" then
    fail("[serve] insecure_open: expected true or false, got %s", class.name(o.insecure_open))
  end
  if not is_loopback(config.host) and not config.token and not o.insecure_open then
    fail("[serve] host %s can be reached from other machines: give token_file (--token-file), or insecure_open "
      .. "(--insecure-open) where that is meant", config.host)
  end
  if o.hosts ~= nil and type(o.hosts) ~= "table" then
    fail("[serve] hosts: expected a list of names, got %s", class.name(o.hosts))
  end
  for i, host in each(o.hosts or {}) do
    if type(i) ~= "number" then fail("[serve] hosts: expected a list of names, got the key '%s'", tostring(i)) end
    config.hosts[text_of("hosts", host):lower()] = true
  end
  config.allow_origins = {}
  if o.allow_origins ~= nil and type(o.allow_origins) ~= "table" then
    fail("[serve] allow_origins: expected a list of origins, got %s", class.name(o.allow_origins))
  end
  for _, origin in each(o.allow_origins or {}) do
    local text = text_of("allow_origins", origin):lower()
    if text ~= "*" and text ~= "null" and not text:find "^[%w+.-]+://[^/]+$" then
      fail("[serve] allow_origins: expected origins such as https://page.example:8080, or *, got '%s'", text)
    end
    config.allow_origins[text] = true
  end
  config.limits = limits_of(o.limits)
  if o.reload ~= nil and o.reload ~= "start_first" and o.reload ~= "stop_first" then
    fail("[serve] reload: expected 'start_first' or 'stop_first', got %s", tostring(o.reload))
  end
  config.reload = o.reload
  config.admin = text_of("admin", o.admin)
  config.drain = number_of("", o, "drain", 30, 0)
  config.step_timeout = number_of("", o, "step_timeout", 60, 0.1)
  config.load_timeout = number_of("", o, "load_timeout", 600, 0.1)
  local _, cores = require("moth_lua").process.host()
  for _, name in ipairs(config.names) do
    local d = config.models[name].description
    d.threads = check.integer("[serve]", "threads", d.threads or math.max(1, math.floor(cores / #config.names)), 1)
  end
  return config
end

-- ---- the server --------------------------------------------------------------------------------------

local Server = class "Server"

function Server:__init(o)
  local config = configure(o)
  local front = require "moth.serve.front"
  local ok, message = front.available()
  if not ok then fail("[serve] %s", message) end
  local Model = require "moth.serve.model"
  for key, value in each(config) do self[key] = value end
  self.started = os.time()
  require("moth.serve.values").pause = front.pause
  self.metrics = require "moth.serve.metrics"()
  self.models = {}
  for _, name in ipairs(config.names) do
    local m = config.models[name]
    self.models[name] = Model { name = name, description = m.description, batching_asked = m.batching,
      batching = m.batching, limits = config.limits, step_timeout = config.step_timeout,
      load_timeout = config.load_timeout, reload_first = config.reload, metrics = self.metrics }
  end
  local routes = require "moth.serve.routes"
  self.listener = front.listen { host = config.host, port = config.port, connections = config.limits.connections,
    handler = routes.handler(self) }
  self.port = self.listener.port
  if config.admin then
    self.admin_listener = front.listen { path = config.admin, connections = 16, handler = routes.admin(self) }
  end
end

-- Starts all engines at once; an error where one does not load.
function Server:start_models()
  local front = require "moth.serve.front"
  local left, failed, done = #self.names, nil, front.condition()
  for _, name in ipairs(self.names) do
    front.spawn(function()
      local model = self.models[name]
      local ok, why = model:start()
      if not ok and not self.draining then failed = failed or ("model %s: %s"):format(name, tostring(why)) end
      left = left - 1
      done:signal()
    end)
  end
  while left > 0 and not failed do done:wait() end
  return failed
end

--- Serves until stop() or SIGTERM; SIGHUP loads all models again. on_ready(server) is called once all models are ready.
function Server:run(on_ready)
  if on_ready ~= nil and not check.is_callable(on_ready) then
    fail("[serve] run: expected a function, got %s", class.name(on_ready))
  end
  if self.begun then fail("[serve] run: this server has run already: make another by moth.serve") end
  self.begun = true
  local front = require "moth.serve.front"
  local failed
  front.on_signal(function(name)
    if name == "SIGHUP" then
      for _, model in ipairs(self.names) do front.spawn(function() self:reload(model) end) end
    else
      self.interrupted = self.interrupted or name == "SIGINT"
      self:stop()
    end
  end)
  front.spawn(function()
    failed = self:start_models()
    if failed then return self:shut(0) end
    if on_ready and not self.draining then on_ready(self) end
  end)
  front.loop()
  front.close()
  if failed then fail("[serve] %s", failed) end
end

--- Loads a model again; nil and why.
function Server:reload(name)
  local model = self.models[name]
  if not model then fail("[serve] reload: there is no model '%s'", tostring(name)) end
  local ok, why = model:reload()
  if not ok then require("moth.serve.front").log(("moth serve: %s is not loaded again: %s\n"):format(name, why)) end
  return ok, why
end

--- Takes no new connections, answers what there is for at most `drain` seconds, and ends; the second call ends at once.
function Server:stop()
  local front = require "moth.serve.front"
  if self.draining then
    self.hurry = true
    return
  end
  self.draining = true
  front.spawn(function() self:shut(self.drain) end)
end

function Server:shut(seconds)
  local front = require "moth.serve.front"
  self.draining = true
  self.listener.pause()
  local deadline = front.now() + seconds
  local function is_busy()
    if self.listener.active > 0 then return true end
    for _, name in ipairs(self.names) do
      if self.models[name]:is_busy() then return true end
    end
  end
  while is_busy() and front.now() < deadline and not self.hurry do front.sleep(0.01) end
  for _, name in ipairs(self.names) do self.models[name]:stop() end
  front.sleep(0.02) -- for answers that are being written
  self.listener.close()
  if self.admin_listener then self.admin_listener.close() end
  front.stop()
end

-- ---- the module --------------------------------------------------------------------------------------

--- A language model for `models`: a folder with weights and tokenizer.json, or a GGUF file. options: those of its
-- engine (max_tokens: of all sequences together; max_seqs: that run together; device).
M.llm = signature("serve.llm(path path, any options?)", function(path, options)
  if options ~= nil and type(options) ~= "table" then
    check.fail("[serve.llm] expected a table of options, got %s", class.name(options))
  end
  local given = { path = path }
  for key, value in each(options or {}) do given[key] = value end
  return { engine = LANGUAGE_MODEL, options = given, device = given.device }
end)

lazy(M, "moth.serve.", { spawn = { "spawn", "spawn" }, connect = { "client", "connect" } }, "moth.serve")
getmetatable(M).__call = function(_, o, ...)
  if select("#", ...) > 0 then fail("[serve] takes one table of options") end
  return Server(o)
end
M._configure, M._plain = configure, plain_of -- the checks alone; options for another process
return M
