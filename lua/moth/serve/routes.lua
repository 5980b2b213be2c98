--- What a server answers on its paths: health, models, inference, metrics, and on the unix socket, administration.
local class = require "moth.class"
local front = require "moth.serve.front"
local kserve = require "moth.serve.kserve"
local openai = require "moth.serve.openai"

local M = {}

local JSON = { "content-type", "application/json" }
local BODY_SECONDS = 30 -- in which a body must have come

local function quote(text) return (require("cjson").encode(text)) end
local function error_text(message) return ('{"error":%s}'):format(quote(message)) end

-- ---- a call ------------------------------------------------------------------------------------------

-- One request on its way: the server's models, limits, metrics, and the answer's status for the counts.
local Call = class "Call"

function Call:__init(server, request)
  self.server, self.request = server, request
  self.models, self.names, self.limits, self.metrics = server.models, server.names, server.limits, server.metrics
  self.started = server.started
end

--- The body, or nil, a status and why. keep, why_not: of front's Request:body.
function Call:body(keep, why_not)
  return self.request:body(self.limits.body, BODY_SECONDS, self.limits.held, keep, why_not)
end

--- Notes how it ended; once.
function Call:ended(status)
  if self.noted then return end
  self.noted = true
  if self.model then self.metrics:request(self.model, status, front.now() - self.request.started) end
end

function Call:answer(status, text, fields, close)
  self:ended(status)
  self.request:respond(status, fields or JSON, text, close)
end

local UNKNOWN = { "content-type", "application/json", "www-authenticate", "Bearer" }

function Call:fail(status, text, close, retry)
  self:answer(status, text, retry and { "content-type", "application/json", "retry-after", ("%d"):format(retry) }
    or status == 401 and UNKNOWN or JSON, close)
end

--- Says why there is no answer, in the protocol of the path.
function Call:refuse(status, message, close, retry)
  local text = self.request.path:find "^/v1/" and openai.error(status, message) or error_text(message)
  self:fail(status, text, close, retry)
end

-- ---- who may ask -----------------------------------------------------------------------------------------

--- Whether two texts are equal, in a time that does not tell where they differ.
function M.same_text(a, b)
  local bit = require "bit"
  local different = bit.bxor(#a, #b)
  for i = 1, #a do
    different = bit.bor(different, bit.bxor(a:byte(i), b:byte((i - 1) % math.max(#b, 1) + 1) or 0))
  end
  return different == 0
end

local loopback = { localhost = true, ["127.0.0.1"] = true, ["[::1]"] = true }

--- Whether a Host header is one of this server's: loopback, an address in digits, or a name of `hosts`. Others come
-- from pages whose name was made to lead here.
function M.is_known_host(host, hosts)
  if not host then return true end
  local name = host:lower():gsub(":%d+$", "")
  return loopback[name] or hosts[name] or name:find "^%d+%.%d+%.%d+%.%d+$" ~= nil or name:find "^%[[%x:.]+%]$" ~= nil
end

local PREFLIGHT = { "access-control-allow-methods", "GET, POST", "access-control-allow-headers",
  "authorization, content-type, inference-header-content-length", "access-control-max-age", "600" }

local open_paths = { ["/v2/health/live"] = true, ["/v2/health/ready"] = true }

local function may_ask(call)
  local server, request = call.server, call.request
  if not M.is_known_host(request:header ":authority", server.hosts) then
    call:refuse(421, "the Host header is not one of this server's names: hosts, --host-name", true)
    return false
  end
  local origin = request:header "origin"
  local status, why = kserve.page(origin, request:header ":authority", server.allow_origins,
    request.method == "POST" and request:header "content-type")
  if status then
    call:refuse(status, why, true)
    return false
  end
  request.origin = origin
  if origin and request.method == "OPTIONS" then
    call:answer(200, "", PREFLIGHT)
    return false
  end
  if server.token and not open_paths[request.path] then
    local scheme, given = (request:header "authorization" or ""):match "^(%a+) +(%S+)$"
    given = scheme and scheme:lower() == "bearer" and given or ""
    if not M.same_text(given, server.token) then
      call:refuse(401, "the token is missing or wrong", true)
      return false
    end
  end
  return true
end

-- ---- paths -------------------------------------------------------------------------------------------

local function live(call) call:answer(200, '{"live":true}') end

-- A model that is half of wait_ms behind is not ready for more; what health says of it.
local function is_behind(call, model)
  local lag = model:lag()
  return lag > call.limits.wait_ms / 2000 and ('%s:"%.1f s"'):format(quote(model.name), lag) or nil
end

local function ready(call)
  local all, behind = not call.server.draining, {}
  for _, name in ipairs(call.names) do
    local model = call.models[name]
    local why = is_behind(call, model)
    all = all and not why and model:is_ready()
    behind[#behind + 1] = why
  end
  if all then return call:answer(200, '{"ready":true}') end
  return call:fail(503, ('{"ready":false%s}'):format(#behind > 0 and ',"behind":{' .. table.concat(behind, ",") .. "}"
    or ""), false, 1)
end

local function server_metadata(call)
  call:answer(200, ('{"name":"moth","version":%s,"extensions":["binary_tensor_data"]}')
    :format(quote(require("moth_lua").version_string)))
end

local function find_model(call, name)
  local model = call.models[name]
  if model then
    call.model = name
    return model
  end
  call:refuse(404, ("there is no model '%s'"):format(name), call.request.method == "POST")
end

local function model_metadata(call, name)
  local model = find_model(call, name)
  if not model then return end
  if not model.signature then return call:refuse(503, "the model is loading", false, 1) end
  return call:answer(200, kserve.metadata(name, model.signature))
end

local function model_ready(call, name)
  local model = find_model(call, name)
  if not model then return end
  local why = is_behind(call, model)
  if model:is_ready() and not why then return call:answer(200, '{"ready":true}') end
  return call:fail(503, ('{"ready":false%s}'):format(why and ',"behind":{' .. why .. "}" or ""), false, 1)
end

local function infer(call, name)
  local model = find_model(call, name)
  if not model then return end
  local body, status, why = call:body()
  if not body then return call:refuse(status, why, true, status == 429 and 1 or nil) end
  local sig = model.signature
  if not sig then return call:refuse(503, "the model is loading", false, 1) end
  if sig.steps then return call:refuse(400, ("'%s' is a language model: POST /v1/completions"):format(name)) end
  local entry, message = kserve.read(sig, body, call.request:header "inference-header-content-length")
  if not entry then return call:refuse(400, message) end
  entry.request, entry.signature = call.request, sig
  local code, result, retry = model:compute(entry)
  if code ~= 200 then return call:refuse(code, result, false, retry) end
  call.metrics:computed(name, result.wait, result.seconds)
  local text, header_size = kserve.write(name, sig, entry, result.outputs)
  if not text then return call:refuse(500, header_size) end
  if not header_size then return call:answer(200, text) end
  return call:answer(200, text, { "content-type", "application/octet-stream", "inference-header-content-length",
    ("%d"):format(header_size) })
end

local function metrics(call)
  for _, name in ipairs(call.names) do
    local model, label = call.models[name], call.metrics:label(name)
    call.metrics:set("moth_queue_length", label, model:waiting())
    call.metrics:set("moth_lag_seconds", label, model:lag())
    call.metrics:set("moth_ready", label, model:is_ready() and 1 or 0)
  end
  call.metrics:set("moth_held_bytes", "", front.held())
  call.metrics:set("moth_connections", "", call.server.listener.count())
  call:answer(200, call.metrics:text(), { "content-type", "text/plain; version=0.0.4" })
end

-- Method, pattern of the path, function; admin: on the unix socket alone. known: paths of models that have been asked.
local routes = {
  known = {},
  { "GET", "^/v2/?$", server_metadata },
  { "GET", "^/v2/health/live$", live },
  { "GET", "^/v2/health/ready$", ready },
  { "GET", "^/v2/models/([^/]+)$", model_metadata },
  { "GET", "^/v2/models/([^/]+)/ready$", model_ready },
  { "POST", "^/v2/models/([^/]+)/infer$", infer },
  { "GET", "^/v2/models/([^/]+)/versions/1$", model_metadata },
  { "GET", "^/v2/models/([^/]+)/versions/1/ready$", model_ready },
  { "POST", "^/v2/models/([^/]+)/versions/1/infer$", infer },
  { "GET", "^/metrics$", metrics },
  { "GET", "^/v1/models$", openai.list },
  { "GET", "^/v1/models/([^/]+)$", openai.retrieve },
  { "POST", "^/v1/completions$", function(call) return openai.complete(call, "completion") end },
  { "POST", "^/v1/chat/completions$", function(call) return openai.complete(call, "chat") end },
  { "POST", "^/v1/responses$", function(call) return openai.complete(call, "response") end },
  { "POST", "^/v1/embeddings$", function(call) return openai.complete(call, "embedding") end },
}

local function decode(word)
  return (word:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end))
end

local function route(call, list)
  local request, other = call.request, nil
  local method = request.method == "HEAD" and "GET" or request.method
  local known = list.known[request.path]
  if known and known[1][1] == method then return known[1][3](call, known[2]) end
  for _, r in ipairs(list) do
    local word = request.path:match(r[2])
    if word and r[1] == method then
      if call.models[word] then list.known[request.path] = { r, word } end -- there are as many as models
      return r[3](call, decode(word))
    end
    if word then other = r[1] end
  end
  if other then
    return call:answer(405, error_text("expected " .. other), { "content-type", "application/json", "allow", other },
      true)
  end
  return call:refuse(404, ("there is nothing at %s"):format(request.path:sub(1, 200)), true)
end

local function traced(message) return debug.traceback(tostring(message), 2) end

-- Runs fn(call, list), and answers 500 where it raises an error.
local function guarded(call, fn, list)
  local ok, message = xpcall(fn, traced, call, list)
  if not ok then
    front.log("moth serve: ", message, "\n")
    if not call.request.status then call:refuse(500, "an error of the server's own; its log says more", true) end
    call:ended(500)
  end
  call.request:let_go()
end

local function route_asked(call, list)
  if may_ask(call) then return route(call, list) end
end

--- The handler of the TCP port.
function M.handler(server)
  return function(request)
    local call = Call(server, request)
    guarded(call, route_asked, routes)
  end
end

-- ---- administration --------------------------------------------------------------------------------------

local admin = {
  known = {},
  { "POST", "^/admin/reload/([^/]+)$", function(call, name)
    local model = find_model(call, name)
    if not model then return end
    local ok, why = model:reload()
    if not ok then return call:refuse(500, why) end
    return call:answer(200, '{"reloaded":true}')
  end },
  { "POST", "^/admin/stop$", function(call)
    call:answer(200, '{"stopping":true}')
    call.server:stop()
  end },
  { "GET", "^/metrics$", metrics },
}

--- The handler of the unix socket.
function M.admin(server)
  return function(request)
    local call = Call(server, request)
    guarded(call, route, admin)
  end
end

return M
