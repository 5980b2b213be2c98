--- Requests as moth.serve's routes get them: paths, headers, bodies of KServe in JSON and in binary, of completions and
-- chats. No sockets: what lua-http does is in place of them, as are the engines, which give bytes of the sizes that the
-- request asks for. Every answer must be whole JSON, or a stream that ends; 500 is a finding.
local cjson = require "cjson"
local front = require "moth.serve.front"
local routes = require "moth.serve.routes"
local Metrics = require "moth.serve.metrics"
local values = require "moth.serve.values"
local damage = require "fuzz.damage"

front.now = os.clock -- no event loop runs here

-- ---- a server without processes
-- ----------------------------------------------------------------------------------------

local function engine_of(signature)
  local model = { name = "m", signature = signature, queue = {} }
  function model.is_ready() return true end
  function model.lag() return 0 end
  function model.waiting() return 0 end
  function model:compute(entry)
    local outputs = {}
    for k, output in ipairs(self.signature.outputs) do
      local shape, n = { unpack(output.shape) }, 1
      for i, size in ipairs(shape) do
        shape[i] = size == -1 and (i == 1 and entry.rows or 1) or size
        n = n * shape[i]
      end
      for i, input in ipairs(entry.inputs) do -- what an engine would copy must be there
        local bytes = values.size(input.dtype)
        for _, size in ipairs(input.shape) do bytes = bytes * size end
        if #entry.parts[i] ~= bytes then
          error(("fuzz: input %d has %d bytes for %d"):format(i, #entry.parts[i], bytes))
        end
      end
      if n > 4096 then return 429, "too many rows for this engine", 1 end
      outputs[k] = { dtype = output.dtype, shape = shape, bytes = ("\0"):rep(n * values.size(output.dtype)) }
    end
    return 200, { outputs = outputs, wait = 0, seconds = 0.001 }
  end
  function model.begin(_, request)
    local text = cjson.encode(request) -- what is sent to the engine
    local left = 3
    local entry = { arrived = front.now(), id = 1 }
    function entry.next()
      left = left - 1
      return { index = left > 0 and 0 or request.n - 1, text = "w\195\164rd", tokens = 1, done = left == 0 or nil,
        finish_reason = left == 0 and "stop" or nil, prompt_tokens = #text, completion_tokens = 3,
        logprobs = request.logprobs and { { token = "w", logprob = -0.5, top = { { "\255", -1 } } } } or nil }
    end
    return entry
  end
  function model.cancel() end
  return model
end

local models = {
  net = engine_of { platform = "moth_export", inputs = { { name = "x", dtype = "float32", shape = { -1, 4 } } },
    outputs = { { name = "y", dtype = "float32", shape = { -1, 3 } } }, batch = { min = 1, max = 64 },
    dims = { { input = 1, at = 1, name = "batch", min = 1, max = 64 } } },
  mixed = engine_of { platform = "moth_export", inputs = { { name = "a", dtype = "int64", shape = { 3 } },
    { name = "b", dtype = "float16", shape = { 2, -1 } }, { name = "c", dtype = "bool", shape = {} },
    { name = "d", dtype = "bfloat16", shape = { -1 } } },
    outputs = { { name = "sum", dtype = "float64", shape = { 3 } }, { name = "mask", dtype = "bool", shape = { 3 } },
      { name = "half", dtype = "float16", shape = { 2 } }, { name = "big", dtype = "uint64", shape = {} } },
    dims = { { input = 2, at = 2, name = "n", min = 2, max = 64, step = 2 },
      { input = 4, at = 1, name = "n", min = 2, max = 64, step = 2 } } },
  llm = engine_of { platform = "moth_llm", steps = true, max_tokens = 100, max_bytes = 500 },
}
local names = { "llm", "mixed", "net" }
for _, name in ipairs(names) do models[name].name = name end
local server = { models = models, names = names, hosts = { ["models.example"] = true },
  allow_origins = { ["https://page.example"] = true }, metrics = nil, started = 1,
  limits = { body = 65536, held = 2 ^ 20, queue = 8, wait_ms = 1000, connections = 8 },
    listener = { count = function() return 1 end } }
local guarded = { token = "secret-token" }
for key, value in pairs(server) do guarded[key] = value end

-- ---- requests
-- ------------------------------------------------------------------------------------------------------------

local bodies = {
  net = { '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}',
    '{"id":"q","inputs":[{"name":"x","shape":[2,4],"datatype":"FP32","data":[[1,2,3,4],[5,6.5,-7e3,8]]}],'
      .. '"outputs":[{"name":"y","parameters":{"binary_data":true}}]}',
    '{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32",'
      .. '"parameters":{"binary_data_size":16}}]}' },
  mixed = { '{"inputs":[{"name":"a","shape":[3],"datatype":"INT64","data":[1,-2,3]},{"name":"b","shape":[2,2],'
    .. '"datatype":'
    .. '"FP16","data":[[0.5,1],[2,65504]]},{"name":"c","shape":[],"datatype":"BOOL","data":[true]},'
    .. '{"name":"d","shape":[2],"datatype":"BF16","data":[1e5,0]}],"outputs":[{"name":"sum"},{"name":"mask"},'
      .. '{"name":"big"}]}',
    '{"inputs":[{"name":"a","shape":[3],"datatype":"INT64","parameters":{"binary_data_size":24}},{"name":"b",'
      .. '"shape":[2,2],'
    .. '"datatype":"FP16","parameters":{"binary_data_size":8}},{"name":"c","shape":[],"datatype":"BOOL",'
    .. '"parameters":{"binary_data_size":1}},{"name":"d","shape":[2],"datatype":"BF16","data":[0,-0.0]}]}' },
  completion = { '{"model":"llm","prompt":"one two","max_tokens":5,"temperature":0.7,"top_p":0.9,"seed":1,'
    .. '"stop":["\\n"],'
    .. '"logprobs":2,"n":2,"user":"me"}', '{"model":"llm","prompt":[1,2,3],"stream":true,"stream_options":'
    .. '{"include_usage":true},"stop":"x","echo":false,"best_of":1}', '{"model":"llm","prompt":["a"]}' },
  chat = { '{"model":"llm","messages":[{"role":"system","content":"be"},{"role":"user",'
    .. '"content":[{"type":"text","text":'
    .. '"hi"}]}],"max_completion_tokens":7,"logprobs":true,"top_logprobs":3,"stream":true}',
    '{"model":"llm","messages":[{"role":"user","content":"hello \\u00e4 \\ud83d\\ude00","name":"n"}],"n":3,'
      .. '"seed":-5}' },
}
local paths = { net = "/v2/models/net/infer", mixed = "/v2/models/mixed/infer", completion = "/v1/completions",
  chat = "/v1/chat/completions" }
local kinds, seeds = { "net", "mixed", "completion", "chat" }, {}
for _, kind in ipairs(kinds) do
  seeds[kind] = {}
  for i, text in ipairs(bodies[kind]) do seeds[kind][i] = damage.json_seed(text) end
end
local binary = { net = { [3] = 16 }, mixed = { [2] = 33 } }

local other_paths = { "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/net", "/v2/models/net/ready",
  "/metrics",
  "/v1/models", "/v2/models/%6eet", "/v2/models/%00", "/v2/models/%", "/v2/models/%zz/ready", "//", "*", "",
    "/v2/models/../net",
  "http://localhost/v2", "/v2/models/" .. ("a"):rep(3000), "/v2/models/net/infer?x=1&y", "/admin/stop",
    "/v2/models/\255" }
local methods = { "POST", "POST", "POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "", "post", "\255" }
local hosts = { "localhost", "127.0.0.1:8000", "[::1]:80", "models.example", "evil.example", "", "localhost:99999",
  "[", "::1",
  "1.2.3.4", "\0", "LOCALHOST:1", ("x"):rep(2000) }
local sizes = { "0", "1", "-1", "16", "65", "99999999999999999999", "1e3", "0x10", "", " 5", "5 ", "\255" }
local origins = { "http://localhost", "https://localhost", "https://page.example", "null", "", "\255" }
local types = { "application/json", "application/json; charset=utf-8", "text/plain", "", ";", "\0" }
local tokens = { "Bearer secret-token", "bearer  secret-token", "Bearer secret-toke", "Bearer", "", "Basic x",
  "Bearer \0" }

local M = {}

-- An input is the text "method path\nheader: value\n…\n\nbody", so that it can be kept.
function M.make(c)
  local kind = c:pick(kinds)
  local k = c:int(#seeds[kind])
  local seed, headers = seeds[kind][k], {}
  local n = c:int(12)
  local body
  if n == 1 then body = damage.bytes(c, seed.text)
  elseif n == 2 then body = seeds[c:pick(kinds)][1].text
  elseif n == 3 then body = seed.text
  else body = damage.json(c, seed, seeds[kind])
  end
  local size = binary[kind] and binary[kind][k]
  if size then
    headers[1] = { "inference-header-content-length", ("%d"):format(#body) }
    if c:one_in(4) then size = c:pick { 0, size - 1, size + 1, 2 * size } end
    body = body .. (c:one_in(3) and ("\1"):rep(size) or ("\0"):rep(size))
  end
  if c:one_in(12) then headers[1] = { "inference-header-content-length", c:pick(sizes) } end
  if c:one_in(20) then body = damage.bytes(c, body) end
  local method, path = "POST", paths[kind]
  if c:one_in(12) then method = c:pick(methods) end
  if c:one_in(12) then path = c:one_in(2) and c:pick(other_paths) or damage.bytes(c, path):gsub("\n", "") end
  headers[#headers + 1] = { ":authority", c:one_in(15) and c:pick(hosts) or "localhost" }
  if c:one_in(10) then headers[#headers + 1] = { "authorization", c:pick(tokens) } end
  if c:one_in(20) then headers[#headers + 1] = { "origin", c:pick(origins) } end
  if c:one_in(20) then headers[#headers + 1] = { "content-type", c:pick(types) } end
  local lines = { method .. " " .. path }
  for _, h in ipairs(headers) do lines[#lines + 1] = h[1] .. ": " .. h[2] end
  return table.concat(lines, "\n") .. "\n\n" .. body
end

-- ---- answers
-- -------------------------------------------------------------------------------------------------------------

local Request = {}
Request.__index = Request
function Request:header(name) return self.fields[name] end
function Request.is_gone() return false end
function Request.let_go() end
function Request.leave_turn() end
function Request:body(most)
  if #self.bytes > most then return nil, 413, "too large" end
  return self.bytes
end
function Request:respond(status, fields, body)
  if self.status then error("fuzz: answered twice", 0) end
  self.status, self.answer = status, body
  for i = 1, #fields, 2 do self.given[fields[i]] = fields[i + 1] end
  return true
end
function Request:begin(status)
  if self.status then error("fuzz: answered twice", 0) end
  self.status, self.stream = status, {}
  return true
end
function Request:write(text)
  self.stream[#self.stream + 1] = text
  return true
end
function Request:finish()
  self.finished = true
  return true
end

local real_stderr, said = io.stderr, nil
local stderr = { write = function(_, ...) said = (said or "") .. table.concat({ ... }) end }

local function fail(request, what)
  error(("fuzz: %s %s: %s: %s"):format(request.method, request.path:sub(1, 60), what, (said or ""):sub(1, 1500)), 0)
end

local function check_json(request, text, what)
  local ok, why = pcall(cjson.decode, text)
  if not ok then fail(request, what .. " is no JSON: " .. why .. ": " .. text:sub(1, 200)) end
end

local handle, handle_guarded = routes.handler(server), routes.handler(guarded)
local since = 0

function M.read(bytes)
  if since % 4096 == 0 then
    server.metrics = Metrics()
    guarded.metrics = server.metrics
  end
  since = since + 1
  local first, head, body = bytes:match("^([^\n]*)\n(.-)\n\n(.*)$")
  if not first then return "none" end
  local request = setmetatable({ fields = {}, given = {}, bytes = body, started = front.now() }, Request)
  request.method, request.path = first:match("^(%S*) (.*)$")
  if not request.path then return "none" end
  request.path, request.query = request.path:match("^([^?]*)%??(.*)$")
  for name, value in head:gmatch("([^\n]-): ([^\n]*)") do request.fields[name] = value end
  said = nil
  io.stderr = stderr -- luacheck: ignore 122
  local ok, err = pcall(request.fields.authorization and handle_guarded or handle, request)
  io.stderr = real_stderr -- luacheck: ignore 122
  if not ok then fail(request, tostring(err)) end
  if not request.status then fail(request, "no answer") end
  if request.status >= 500 then
    if request.answer and request.answer:find("NaN or infinite", 1, true) then return "refused 500" end
    fail(request, ("%d %s"):format(request.status, tostring(request.answer)))
  end
  if request.stream then
    local text = table.concat(request.stream)
    for event in text:gmatch("data: ([^\n]*)\n\n") do
      if event ~= "[DONE]" then check_json(request, event, "an event") end
    end
    if not request.finished or not text:find("data: %[DONE%]\n\n$") then fail(request, "the stream has no end") end
  elseif request.given["inference-header-content-length"] then
    check_json(request, request.answer:sub(1, tonumber(request.given["inference-header-content-length"])), "the answer")
  elseif request.given["content-type"] == "application/json" and request.method ~= "HEAD" then
    check_json(request, request.answer, "the answer")
  end
  return ("%d"):format(request.status)
end

return M
