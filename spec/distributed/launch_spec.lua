-- `moth run` and what it starts. Programs are small, so that most of the time is that of starting processes.
local has_sanitizer = require "distributed.without_preload"
local moth = require "moth"
local B = require "moth_lua"
local now = require("moth.utils.system").now

local MOTH = (package.cpath:match "([^;]*)/%?%.so" or "build") .. "/moth"

local function written(code)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write('io.stdout:setvbuf "no" local dist = require "moth.distributed"\n', code)
  f:close()
  return path
end

local function read(path)
  local f = io.open(path)
  local text = f and f:read "*a" or ""
  if f then f:close() end
  return text
end

-- Runs `moth run flags script` and returns its output, its errors, and the exit code. env: in front; args: behind.
local function run(flags, code, env, args)
  local script, out, err = written(code), os.tmpname(), os.tmpname()
  local rc = os.execute(("MOTH_LUAJIT_WARNING=0 %s timeout -s KILL 30 %s run %s %s %s > %s 2> %s"):format(env or "",
    MOTH, flags, script, args or "", out, err))
  local a, b = read(out), read(err)
  for _, p in ipairs { script, out, err } do os.remove(p) end
  return a, b, rc % 256 == 0 and rc / 256 or rc
end

local function sorted(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
  table.sort(list)
  return list
end

-- The words of all processes that run now.
local function processes()
  local p = io.popen "ps -eo args"
  local text = p:read "*a"
  p:close()
  return text
end

local function free_port()
  local store = moth.distributed.TCPStore("127.0.0.1", 0, { is_master = true, token = "x" })
  local port = store.port
  store:close()
  return port
end

local VARIABLES = [[
  local t = {}
  for name in ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_NAME TORCHELASTIC_RUN_ID OMP_NUM_THREADS \z
    TORCHELASTIC_MAX_RESTARTS"):gmatch "%S+" do t[#t + 1] = os.getenv(name) end
  print(table.concat(t, " "), ...)
  dist.init_process_group()
  local x = require("moth").ones(1)
  dist.all_reduce(x)
  assert(x:item() == dist.get_world_size() and os.getenv("MOTH_STORE_TOKEN"):find "^%x+$")
  dist.destroy_process_group()]]

describe("moth run", function()
  it("starts processes that find each other #M350 #M356 #M372", function()
    local out, err, rc = run("--nproc_per_node=2 --rdzv-id job --role trainer --max-restarts 3", VARIABLES,
      "env -u OMP_NUM_THREADS", "a b")
    assert.same({ "0 0 2 2 0 trainer job 1 3\ta\tb", "1 1 2 2 0 trainer job 1 3\ta\tb" }, sorted(out), err)
    assert.equal("", err)
    assert.equal(0, rc)
  end)

  it("writes and marks output of ranks #M372", function()
    local dir = os.tmpname()
    os.remove(dir)
    local out = run("--standalone --nproc-per-node 2 -t 3 --log-dir " .. dir,
      'print "hello" io.stderr:write "no end of line"')
    assert.same({ "[default0]:hello", "[default1]:hello" }, sorted(out))
    assert.equal("hello\n", read(dir .. "/none/attempt_0/1/stdout.log"))
    assert.equal("no end of line\n", read(dir .. "/none/attempt_0/0/stderr.log"))
    os.execute("rm -r " .. dir)
  end)

  it("names who failed first, to the others too, and ends with its code #M372", function()
    local out, err, rc = run("--nproc-per-node 3", [[
      dist.init_process_group()
      if dist.get_rank() == 1 then error "boom" end
      local ok, message = pcall(dist.barrier)
      print(dist.get_rank(), ok, message)
      os.exit(9)]])
    assert.equal(1, rc)
    assert.equal(2, #sorted(out))
    for _, line in ipairs(sorted(out)) do assert.matches("false.*rank 1 %(pid", line) end
    assert.matches("moth run: rank 1 %(pid %d+%) ended with exit code 1", err)
    assert.matches("first error, of rank 1.-boom.-stack traceback", err)
    local out2, err2, rc2 = run("--nproc-per-node 2", [[
      dist.init_process_group()
      if dist.get_rank() == 0 then os.execute "kill -9 $PPID" end
      print(select(2, pcall(dist.barrier)))]])
    assert.equal(137, rc2)
    assert.matches("rank 0 %(pid %d+", out2) -- by which signal, if the launcher could say so in time
    assert.matches("rank 0 %(pid %d+%) was killed by signal 9 %(SIGKILL%)", err2)
  end)

  it("starts all again #M372", function()
    local out, err, rc = run("--nproc-per-node 2 --max-restarts 1", [[
      dist.init_process_group()
      local n = os.getenv "TORCHELASTIC_RESTART_COUNT"
      if n == "0" and dist.get_rank() == 1 then os.exit(3) end
      dist.barrier()
      print("attempt " .. n)]])
    assert.same({ "attempt 1", "attempt 1" }, sorted(out), err)
    assert.equal(0, rc)
    assert.matches("all start again %(1 of 1%)", err)
  end)

  it("joins two launchers #M373", function()
    local port = free_port()
    local flags = "--nnodes 2 --nproc-per-node %d --rdzv-endpoint 127.0.0.1:" .. port .. " --rdzv-id two %s"
    local code = [[
      dist.init_process_group()
      local x = require("moth").ones(1)
      dist.all_reduce(x)
      print(os.getenv "GROUP_RANK", dist.get_rank(), x:item())
      if ... then
        if dist.get_rank() == 0 then os.exit(5, true) end
        print(select(2, pcall(dist.barrier)))
      end]]
    local function both(args)
      local script, out = written(code), os.tmpname()
      local shell = io.popen(("MOTH_LUAJIT_WARNING=0 timeout -s KILL 20 %s run %s %s %s > %s 2>&1; echo $?"):format(
        MOTH, flags:format(2, "--node-rank 1"), script, args, out))
      local a, err, rc = run(flags:format(1, "--node-rank 0"), code, nil, args)
      local rc2 = tonumber(shell:read "*a")
      shell:close()
      local b = read(out)
      os.remove(script)
      os.remove(out)
      return a, b, rc, rc2, err
    end
    local a, b, rc, rc2, err = both ""
    assert.equal(0, rc + rc2, a .. b .. err)
    assert.equal("0\t0\t3\n", a)
    assert.same({ "1\t1\t3", "1\t2\t3" }, sorted(b))
    a, b, rc, rc2 = both "die"
    assert.same({ 5, true }, { rc, rc2 ~= 0 }, a .. b)
    assert.matches("rank 0 %(pid", b)
  end)

  it("starts all again when a machine comes or goes #slow", function()
    local port = free_port()
    local script = written [[
      dist.init_process_group("gloo", { timeout = 30 })
      print("size " .. dist.get_world_size())
      for _ = 1, 40 do
        dist.barrier()
        require("moth_lua").process.wait({}, 0.05)
      end
      print "end"]]
    local command = ("MOTH_LUAJIT_WARNING=0 exec %s run --nnodes 1:2 --nproc-per-node 1 --rdzv-id a \z
      --rdzv-endpoint 127.0.0.1:%d --rdzv-conf last_call_timeout=0.2 %s 2>&1"):format(MOTH, port, script)
    local out = os.tmpname()
    local first = io.popen(("(%s) > %s; echo $?"):format(command, out))
    for _ = 1, 200 do
      if read(out):find "size 1" then break end
      B.process.wait({}, 0.02)
    end
    -- The second one is killed a while after it has joined.
    local second = io.popen(("(%s) & sleep 1.5; kill -9 $!; echo gone"):format(command))
    assert.matches("size 2.*gone", second:read "*a")
    second:close()
    assert.equal("0", first:read "*a":match "%d+", read(out))
    first:close()
    assert.matches("size 1.-size 2.-has not been heard of.-size 1\nend", read(out))
    os.remove(out)
    os.remove(script)
  end)

  it("does not wait where no time is given", function()
    local from = now()
    for _, seconds in ipairs { 0, -1, -1e9, -math.huge, 0 / 0 } do assert.same({}, B.process.wait({}, seconds)) end
    assert.is_true(now() - from < 5)
  end)

  it("leaves no process behind", function()
    local code = 'io.popen "exec sleep 54321" print "here" require("moth_lua").process.wait({}, 60)'
    local script = written(code)
    for signal, rc in require "moth.each" { TERM = 143, INT = 130, KILL = 137 } do
      local out = os.tmpname()
      local shell = io.popen(([[MOTH_LUAJIT_WARNING=0 %s run --nproc-per-node 2 %s > %s 2>/dev/null & p=$!
        for i in $(seq 100); do [ $(grep -c here %s) = 2 ] && break; sleep 0.05; done
        kill -%s $p; wait $p 2>/dev/null; echo $?]]):format(MOTH, script, out, out, signal))
      assert.equal(rc, tonumber(shell:read "*a"), signal)
      shell:close()
      local deadline, text = now() + 5
      repeat
        text = processes()
        B.process.wait({}, 0.02)
      until not (text:find(script, 1, true) or text:find("sleep 54321", 1, true)) or now() > deadline
      assert.is_nil(text:find(script, 1, true), signal)
      assert.is_nil(text:find("sleep 54321", 1, true), signal)
      os.remove(out)
    end
    os.remove(script)
  end)

  it("says what is wrong with its options", function()
    local options = require "moth.distributed.launch.options"
    for flags, what in require "moth.each" {
      ["--nproc-per-nod 2 x"] = "nproc%-per%-node", ["--nproc-per-node 0 x"] = "at least 1",
      ["--nnodes 2 x"] = "rdzv%-endpoint", ["--node-rank 3 x"] = "none of 1", ["--tee 5 x"] = "0 to 3",
      ["--max-restarts"] = "needs a value", [""] = "expected SCRIPT", ["--max-restarts -1 x"] = "at least 0",
      ["--rdzv-backend etcd x"] = "static or c10d",
    } do
      local words = {}
      for w in flags:gmatch "%S+" do words[#words + 1] = w end
      local ok, message = pcall(options.parse, words)
      assert.is_false(ok)
      assert.matches(what, tostring(message))
    end
    local o = options.parse { "--nproc_per_node", "2:4", "--tee=0:3,2:1", "--rdzv_endpoint=h:7", "a.lua", "--lr", "1" }
    assert.same({ 2, 4, 3, 0, 1, "h", 7, "a.lua", "--lr" }, { o.min_local, o.max_local, o.tee(0), o.tee(1), o.tee(2),
      o.host, o.port, o.words[1], o.words[2] })
  end)
end)

describe("multiprocessing.spawn #M403", function()
  it("calls a function in processes, and names who failed", function()
    if has_sanitizer then pending "they are plain LuaJIT's, which would need its library" end
    local path = os.tmpname()
    moth.multiprocessing.spawn(function(rank, to, what)
      local f = io.open(to .. rank, "w")
      f:write(what.text, os.getenv "WORLD_SIZE")
      f:close()
    end, { nprocs = 2, args = { path, { text = "size " } } })
    for rank = 0, 1 do
      assert.equal("size 2", read(path .. rank))
      os.remove(path .. rank)
    end
    os.remove(path)
    local x = 1
    assert.error_matches(function()
      moth.multiprocessing.spawn(function() return x end)
    end, "uses 'x' from outside")
    local script = written 'if ... == "1" then os.exit(4) end'
    assert.error_matches(function() moth.multiprocessing.spawn(script, { nprocs = 2 }) end,
      "rank 1 %(pid %d+%) ended with exit code 4")
    os.remove(script)
  end)
end)
