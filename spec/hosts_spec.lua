-- The examples that run inside other programs, each where that program is installed.
local function output(command)
  local pipe = assert(io.popen(command .. " 2>&1; echo $?"))
  local text = pipe:read("*a")
  pipe:close()
  return text:match("^(.-)\n?(%d+)\n$")
end

local function succeeds(command) return os.execute(command .. " >/dev/null 2>&1") == 0 end

local here = output("pwd"):match("[^\n]+")
local build = os.getenv("MOTH_BUILD") or "build"
if build:sub(1, 1) ~= "/" then build = here .. "/" .. build end
-- With moth in the search paths of the host's LuaJIT, and a folder of its own as home.
local home = os.tmpname()
local env = ("env -u LD_PRELOAD MOTH_LUAJIT_WARNING=0 MOTH_NUM_THREADS=1 HOME=%s XDG_DATA_HOME=%s XDG_RUNTIME_DIR=%s \z
  LUA_PATH='%s/lua/?.lua;%s/lua/?/init.lua;%s/gen/?.lua;;' LUA_CPATH='%s/?.so;;' "):format(home, home, home, here, here,
  build, build)

local function write(path, text)
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
end
local function read(path)
  local f = assert(io.open(path))
  local text = f:read("*a")
  f:close()
  return text
end

local nvim = env .. "timeout 30 nvim --headless -u NORC -i NONE --cmd 'set rtp+=" .. here .. "/examples/hosts/neovim' "

describe("moth in another program #noasan", function()
  lazy_setup(function()
    os.remove(home)
    os.execute("mkdir -m 755 " .. home)
  end)
  lazy_teardown(function() os.execute("rm -rf " .. home) end)

  it("Neovim: trains and answers in the editor, keeps what it learned", function()
    if not succeeds("command -v nvim") then return pending("there is no nvim: make deps-hosts") end
    assert.matches("nothing is learned yet", (output(nvim .. "-c MothClassify -c qa!")))
    local text, status = output(nvim
      .. "-c 'MothLearn! lua docs' -c 'edit spec/hosts_spec.lua' -c MothClassify -c qa!")
    assert.equal("0", status, text)
    local right = tonumber(text:match("of %d+ others (%d+) %% are told right"))
    assert.is_true(right ~= nil and right > 80, text)
    assert.matches("moth: lua %d+ %%", text)
    assert.matches("moth: md %d+ %%", (output(nvim .. "docs/amp.md -c MothClassify -c qa!")))
    assert.matches("two kinds of files are needed", (output(nvim .. "-c 'MothLearn! /nowhere' -c qa!")))
  end)

  it("Neovim: learns beside its user", function()
    if not succeeds("command -v nvim") then return pending("there is no nvim: make deps-hosts") end
    local text = output(nvim .. "-c 'MothLearn lua docs' -c 'lua N = 0; print(vim.wait(20000, function() N = N + 1; \z
      return require(\"moth_classify\").model ~= nil end, 2), N > 5)' -c qa!")
    assert.matches("true true", text)
  end)

  it("LÖVE: learns to draw without a window", function()
    if not succeeds("command -v love") then return pending("there is no love: make deps-hosts") end
    local text, status = output(("%s MOTH_DATA= timeout 30 love %s/examples/hosts/love --steps 25 \z
      --picture %s/digits.png"):format(env, here, home))
    assert.equal("0", status, text)
    local first, last = text:match("25 steps, (%d+) %-> (%d+) nats")
    assert.is_true(first ~= nil and tonumber(last) < tonumber(first), text)
    assert.equal("\137PNG", read(home .. "/digits.png"):sub(1, 4))
  end)

  it("nginx: answers from a checkpoint, tells what is wrong, takes a new one by a reload", function()
    if not succeeds("command -v nginx || test -x /usr/sbin/nginx") then
      return pending("there is no nginx: make deps-hosts")
    elseif not succeeds("test -e /usr/lib/nginx/modules/ngx_http_lua_module.so") then
      return pending("nginx has no Lua module: make deps-hosts")
    elseif not succeeds("command -v curl") then
      return pending("there is no curl")
    end
    -- The example's own configuration, but for the address, the place of its pid, and the folder of app.lua.
    local example = here .. "/examples/hosts/nginx"
    local socket, pid, model = home .. "/socket", home .. "/pid", home .. "/digits.mth"
    local conf = read(example .. "/nginx.conf")
    local function replace(from, to)
      local first, last = conf:find(from, 1, true)
      assert.is_truthy(first, from)
      conf = conf:sub(1, first - 1) .. to .. conf:sub(last + 1)
    end
    replace("listen 127.0.0.1:8460 reuseport;", "listen unix:" .. socket .. ";")
    replace("pid /tmp/moth-nginx.pid;", "pid " .. pid .. ";")
    replace("$prefix/?.lua", example .. "/?.lua")
    if output("id -u"):find("^0") then conf = "user root;\n" .. conf end
    write(home .. "/nginx.conf", conf)

    -- A network that says one digit, whatever it sees.
    local function checkpoint(digit)
      local moth = require "moth"
      local weights = moth.zeros(10)
      weights[digit + 1] = 5
      moth.save({ hidden = 4, model = { ["0.weight"] = moth.zeros(4, 784), ["0.bias"] = moth.zeros(4),
        ["2.weight"] = moth.zeros(10, 4), ["2.bias"] = weights } }, model)
    end
    local function ask(what)
      return (output(("curl -s -m 5 --unix-socket %s -w ' %%{http_code}\n' http://localhost/%s"):format(socket, what)))
    end
    local image = home .. "/image"
    write(image, ("\0"):rep(784 * 2))
    local bytes = "predict -H 'Content-Type: application/octet-stream' --data-binary @" .. image

    finally(function() os.execute(("test -e %s && kill $(cat %s)"):format(pid, pid)) end)
    os.execute(("PATH=$PATH:/usr/sbin %s MOTH_MODEL=%s nginx -e stderr -p %s/ -c nginx.conf >%s/log 2>&1 &"):format(env,
      model, home, home))
    local function until_answer(query, pattern)
      local text
      for _ = 1, 100 do
        text = ask(query)
        if text:find(pattern) then return text end
        os.execute("sleep 0.05")
      end
      error(("no %q: %s\n%s"):format(pattern, text, read(home .. "/log")))
    end
    assert.matches("ok", until_answer("health", "ok"))
    assert.matches("503$", ask(bytes)) -- there is no checkpoint yet: a client is told, other locations go on
    checkpoint(3)
    os.execute("kill -HUP $(cat " .. pid .. ")")
    local text = until_answer(bytes, "200$")
    assert.matches('"classes":%[3,3%]', text)
    assert.matches('"probabilities":%[0.9', text)
    checkpoint(8)
    os.execute("kill -HUP $(cat " .. pid .. ")")
    until_answer(bytes, '"classes":%[8,8%]')

    assert.matches("%[linear%].-1x2 and 4x784.- 400$", ask([=[predict -d '{"inputs":[[1,2]]}']=]))
    assert.matches("ragged table.- 400$", ask([=[predict -d '{"inputs":[[1,2],[3]]}']=]))
    assert.matches("invalid token.- 400$", ask("predict -d x"))
    assert.matches("no body.- 400$", ask("predict"))
    assert.matches("785 bytes.- 400$",
      ask(("predict -H 'Content-Type: application/octet-stream' -d %s"):format(("x"):rep(785))))
    assert.matches('"classes":%[8,8%]', ask(bytes)) -- after the errors
  end)
end)
