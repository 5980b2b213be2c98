--- The second way to serve: nginx with its Lua module, whose workers hold the models themselves. For small models: no
-- queue, no batches, a worker computes one request at a time. `moth serve --print-nginx` writes the configuration.
--
--     init_worker_by_lua_block { require("moth.serve.nginx").load { fashion = "/models/fashion.mth2" } }
--     location ~ ^/v2/models/([^/]+)/infer$ { content_by_lua_block { require("moth.serve.nginx").infer(ngx.var[1]) } }
--
-- Models are loaded after nginx has made its workers: threads and memory of moth do not pass a fork.
local kserve = require "moth.serve.kserve"
local each = require "moth.each"
local tree = require "moth.lang.tree"

local M = {}
local ngx = rawget(_G, "ngx") -- nil outside of nginx

local models = {} -- name -> { object, signature }

--- Loads models, { name = path }, in this worker. threads: of each worker, 1.
function M.load(paths, threads)
  local moth = require "moth"
  moth.set_num_threads(threads or 1)
  for name, path in each(paths) do
    local object = require("moth.serve.program").load { path = path }
    object:warm()
    models[name] = object
  end
end

local function say(status, text, kind)
  ngx.status = status
  ngx.header.content_type = kind or "application/json"
  ngx.header.content_length = #text
  ngx.print(text)
  return ngx.exit(ngx.HTTP_OK)
end

local function refuse(status, message) return say(status, ('{"error":%s}'):format(require("cjson").encode(message))) end

-- The body, which nginx may have put into a file.
local function body_of()
  ngx.req.read_body()
  local body = ngx.req.get_body_data()
  local path = not body and ngx.req.get_body_file()
  if path then
    local file = io.open(path, "rb")
    body = file:read "*a"
    file:close()
  end
  return body or ""
end

-- The tensors of a request, computed; a list of { dtype, shape, bytes }.
local function compute(object, entry)
  local ffi, moth = require "ffi", require "moth"
  local inputs, outputs = {}, {}
  for i, input in ipairs(entry.inputs) do
    local t = moth.empty(input.shape, { dtype = input.dtype })
    ffi.copy(ffi.cast("void *", t:data_ptr()), entry.parts[i], #entry.parts[i])
    inputs[i] = t
  end
  moth.no_grad(function() outputs = object:run(inputs, entry.rows) end)
  for i, t in ipairs(outputs) do
    t = t:contiguous()
    outputs[i] = { dtype = t:dtype().name, shape = t:size(),
      bytes = ffi.string(ffi.cast("void *", t:data_ptr()), t:numel() * t:element_size()) }
  end
  return outputs
end

--- Answers POST /v2/models/name/infer.
function M.infer(name)
  local object = models[name]
  if not object then return refuse(404, ("there is no model '%s'"):format(name)) end
  if ngx.req.get_method() ~= "POST" then return refuse(405, "expected POST") end
  local status, reason = kserve.page(ngx.var.http_origin, ngx.var.http_host, {}, ngx.var.http_content_type)
  if status then return refuse(status, reason) end
  local entry, why = kserve.read(object.signature, body_of(), ngx.var.http_inference_header_content_length)
  if not entry then return refuse(400, why) end
  local ok, outputs = pcall(compute, object, entry)
  if not ok then
    ngx.log(ngx.ERR, tostring(outputs))
    return refuse(500, (tostring(outputs):gsub("^[^\n:]-%.lua:%d+: ", ""):match "^[^\n]*"))
  end
  local text, header_size = kserve.write(name, object.signature, entry, outputs)
  if not text then return refuse(500, header_size) end
  if header_size then ngx.header["Inference-Header-Content-Length"] = header_size end
  return say(200, text, header_size and "application/octet-stream")
end

--- Answers GET /v2/models/name.
function M.metadata(name)
  local object = models[name]
  if not object then return refuse(404, ("there is no model '%s'"):format(name)) end
  return say(200, kserve.metadata(name, object.signature))
end

--- Answers GET /v2/health/ready.
function M.ready() return say(next(models) and 200 or 503, ('{"ready":%s}'):format(tostring(next(models) ~= nil))) end

-- ---- the configuration ---------------------------------------------------------------------------------

local TEXT = [[
# nginx with its Lua module (Debian: libnginx-mod-http-lua): each worker holds the models. Written by moth serve
# --print-nginx; start it with: nginx -p . -c FILE
# A reload of nginx closes connections that are kept alive once: clients must try again. Started by root, its workers
# are nobody, who must be able to read the models and moth (or name another: user NAME;).
%s
worker_processes %s;
error_log stderr warn;
pid moth-nginx.pid;
daemon off;
env OMP_NUM_THREADS=1;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path moth-nginx-body;
  proxy_temp_path moth-nginx-proxy;
  fastcgi_temp_path moth-nginx-fastcgi;
  uwsgi_temp_path moth-nginx-uwsgi;
  scgi_temp_path moth-nginx-scgi;
  lua_package_path "%s;;";
  lua_package_cpath "%s;;";
  init_worker_by_lua_block {
    require("moth.serve.nginx").load({ %s }, %d)
  }
  server { listen %s:%d default_server; return 421; }
  server {
    listen %s:%d;
    server_name localhost 127.0.0.1 [::1]%s;
    client_max_body_size %d;
    client_body_buffer_size %d;
    client_header_timeout 10s;
    client_body_timeout 30s;
    location = /v2/health/live { default_type application/json; return 200 '{"live":true}'; }
    location = /v2/health/ready { content_by_lua_block { require("moth.serve.nginx").ready() } }
    location ~ ^/v2/models/([^/]+)$ { content_by_lua_block { require("moth.serve.nginx").metadata(ngx.var[1]) } }
    location ~ ^/v2/models/([^/]+)/infer$ { content_by_lua_block { require("moth.serve.nginx").infer(ngx.var[1]) } }
    location / { return 404; }
  }
}
]]

-- An absolute path.
local function absolute(path)
  if path:sub(1, 1) == "/" then return path end
  local pipe = io.popen "pwd"
  local here = pipe:read "*l"
  pipe:close()
  return here .. "/" .. path
end

-- What loads nginx's Lua module, by absolute paths: others are taken from nginx's -p. Nothing, where it is built in.
local function modules()
  local pipe = io.popen "PATH=$PATH:/usr/sbin:/usr/local/openresty/nginx/sbin nginx -V 2>&1"
  local text = pipe:read "*a"
  pipe:close()
  if text:find "%-%-add%-module=%S*lua" then return "" end
  local folder = text:match "%-%-modules%-path=(%S+)" or "/usr/lib/nginx/modules"
  return ("load_module %s/ndk_http_module.so;\nload_module %s/ngx_http_lua_module.so;"):format(folder, folder)
end

local function search_path(list)
  local out = {}
  for part in list:gmatch "[^;]+" do
    if not part:find "luajit%-2" then out[#out + 1] = absolute(part) end -- nginx's LuaJIT may be another
  end
  return table.concat(out, ";")
end

--- The text of a configuration for options of moth.serve.
function M.configuration(o)
  local config = require("moth.serve")._configure(o)
  local function fail(why) error({ usage = "--print-nginx: " .. why }, 0) end
  if config.token then fail "nginx's workers check no token: put moth serve behind nginx instead" end
  if next(config.allow_origins) then fail "nginx's workers answer pages of no other origin" end
  if config.port == 0 then fail "give the port that nginx shall have" end
  local list = {}
  for i, name in ipairs(tree.keys(config.models)) do
    local d = config.models[name].description
    if d.engine ~= "moth.serve.program" then
      fail(name .. " is no exported program; language models need moth serve")
    end
    list[i] = ("[%q] = %q"):format(name, absolute(d.options.path))
  end
  local body, hosts = math.floor(config.limits.body), ""
  for _, host in ipairs(o.hosts or {}) do hosts = hosts .. " " .. host end
  local host = config.host:find(":", 1, true) and "[" .. config.host .. "]" or config.host
  return TEXT:format(modules(), "auto", search_path(package.path), search_path(package.cpath), table.concat(list, ", "),
    o.threads or 1, host, config.port, host, config.port, hosts, body, math.min(body, 2 ^ 20))
end

return M
