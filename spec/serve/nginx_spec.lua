-- nginx before moth serve, and nginx that holds the models itself (moth serve --print-nginx), where it is there.
local moth = require "moth"
local cjson = require "cjson"
local system = require "moth.utils.system"

local build = os.getenv "MOTH_BUILD" or "build"
local BODY = '{"inputs":[{"name":"x1","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'

local function output(command)
  local pipe = io.popen(command)
  local text = pipe:read "*a"
  pipe:close()
  return text
end
local function write(path, text)
  local file = io.open(path, "w")
  file:write(text)
  file:close()
end

-- Why nginx cannot be tried, or nil.
local function missing(with_lua)
  if output "PATH=$PATH:/usr/sbin command -v nginx" == "" then return "there is no nginx (Debian: nginx)" end
  if with_lua and output "ls /usr/lib/nginx/modules/ngx_http_lua_module.so 2>/dev/null" == "" then
    return "nginx has no Lua module (make deps-hosts)"
  end
end

describe("nginx #M428 #noasan", function()
  local home, path, net, stops = os.tmpname(), os.tmpname(), nil, {}
  lazy_setup(function()
    os.remove(home)
    os.execute("mkdir -p " .. home)
    net = moth.nn.Linear(4, 3)
    moth.export.save(moth.export(function(x1) return net(x1) end, { moth.randn(2, 4) },
      { dynamic_shapes = { { [1] = moth.Dim("batch", { max = 64 }) } } }), path)
  end)
  after_each(function()
    for _, stop in ipairs(stops) do stop() end
    stops = {}
  end)
  lazy_teardown(function() os.execute(("rm -rf %s %s"):format(home, path)) end)

  -- Runs nginx with a configuration until the end of the case; once `path` is answered by it.
  local function nginx(conf, socket)
    local user = output("id -u"):find "^0" and "user root;\n" or ""
    write(home .. "/nginx.conf", user .. conf)
    os.execute(("cd %s; PATH=$PATH:/usr/sbin nginx -e stderr -p . -c nginx.conf > log 2>&1 & echo $! > %s/started")
      :format(home, home))
    local pid = output("cat " .. home .. "/started"):match "%d+"
    table.insert(stops, function()
      os.execute(("kill %s 2>/dev/null; while kill -0 %s 2>/dev/null; do sleep 0.02; done"):format(pid, pid))
    end)
    for _ = 1, 200 do
      local ok, client = pcall(moth.serve.connect, socket)
      if ok then return pid, client end
      system.sleep(0.02)
    end
    error(output("cat " .. home .. "/log"))
  end

  it("holds the models in its workers, by the configuration of --print-nginx", function()
    local why = missing(true)
    if why then return pending(why) end
    local conf = output(("env -u LUA_PATH -u LUA_CPATH %s/moth serve net=%s --print-nginx --port 8470")
      :format(build, path))
    local socket = home .. "/held"
    local n
    conf, n = conf:gsub("listen 127%.0%.0%.1:8470 default_server", "listen unix:" .. socket .. ".other default_server")
    assert.equal(1, n)
    conf, n = conf:gsub("listen 127%.0%.0%.1:8470", "listen unix:" .. socket)
    assert.equal(1, n)
    local _, client = nginx(conf:gsub("worker_processes auto", "worker_processes 1"), socket)
    assert.equal('{"ready":true}', client:request("GET", "/v2/health/ready").body)
    assert.equal("net", cjson.decode(client:request("GET", "/v2/models/net").body).name)
    local answer = client:request("POST", "/v2/models/net/infer", BODY)
    assert.equal(200, answer.status, answer.body)
    assert.is_close(moth.tensor { cjson.decode(answer.body).outputs[1].data },
      net(moth.tensor { { 1, 2, 3, 4 } }):detach())
    assert.equal(400, client:request("POST", "/v2/models/net/infer", "{").status)
    assert.equal(404, client:request("POST", "/v2/models/other/infer", BODY).status)
    client:close()
  end)

  it("has no configuration for what nginx's workers would leave out", function()
    local nginx_of = require("moth.serve.nginx").configuration
    local token, model = os.tmpname(), os.tmpname()
    finally(function()
      os.remove(token)
      os.remove(model)
    end)
    os.execute(("echo a-secret-word > %s; chmod 600 %s; echo model > %s"):format(token, token, model))
    for why, o in pairs { ["check no token"] = { token_file = token }, ["give the port"] = { port = 0 } } do
      o.models = { a = model }
      local ok, message = pcall(nginx_of, o)
      assert.is_false(ok)
      assert.matches(why, message.usage)
    end
    assert.matches("listen [::1]:8000;", nginx_of { models = { a = model }, host = "::1" }, 1, true)
  end)

  it("before moth serve: a reload of nginx loses no more than its kept connections #slow", function()
    local why = missing()
    if why then return pending(why) end
    local server = moth.serve.spawn { models = { net = path }, port = 0 }
    table.insert(stops, 1, function() server:stop() end)
    local socket = home .. "/before"
    local pid, client = nginx(([[
daemon off;
pid pid;
error_log stderr warn;
worker_processes 1;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  upstream moth { server 127.0.0.1:%d; keepalive 16; }
  server {
    listen unix:%s;
    client_max_body_size 16m;
    location / {
      proxy_pass http://moth;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host localhost;
      proxy_buffering off;
    }
  }
}
]]):format(server.port, socket), socket)
    assert.equal(200, client:request("POST", "/v2/models/net/infer", BODY).status)
    assert.equal(413, client:request("POST", "/v2/models/net/infer", (" "):rep(17 * 2 ^ 20)).status)
    client:close()
    local pipes, lost, good = {}, 0, 0
    for i = 1, 4 do
      pipes[i] = io.popen(("env -u LUA_PATH -u LUA_CPATH %s/moth spec/serve/load.lua %s 3 %s '%s' 2>&1")
        :format(build, socket, "/v2/models/net/infer", BODY))
    end
    for _ = 1, 2 do
      system.sleep(0.8)
      os.execute("kill -HUP " .. pid)
    end
    for _, pipe in ipairs(pipes) do
      for line in pipe:lines() do
        local key, count = line:match "^(%w+)\t(%d+)$"
        assert(key == "200" or key == "lost", line)
        if key == "lost" then lost = lost + count else good = good + count end
      end
      pipe:close()
    end
    assert.is_true(good > 100 and lost <= 8, ("%d answered, %d lost"):format(good, lost))
  end)
end)
