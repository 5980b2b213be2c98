-- The store: what its calls do, among processes and threads; what happens when it dies, or is none, or strangers call.
local ffi = require "ffi"
local ranks = require "distributed.ranks"
local dist = require "moth.distributed"

-- A program of bash, in the background; ends it with the function that is returned.
local function bash(program, ...)
  local pipe = io.popen(("exec bash -c '%s' & echo $!"):format(program:format(...)))
  local pid = pipe:read("*n")
  return function()
    os.execute(("kill -9 %d 2>/dev/null"):format(pid))
    pipe:close()
  end
end

ffi.cdef "int setenv(const char *, const char *, int); int unsetenv(const char *);"
local function run(command)
  local pipe = io.popen(command)
  local text = pipe:read("*a")
  pipe:close()
  return (text:gsub("%s+$", ""))
end

-- A port that nobody has, for now.
local function free_port()
  local store = dist.HashStore()
  store:close()
  return store.port
end

describe("a store", function()
  it("keeps bytes under keys, counts, compares, waits", function()
    local store = dist.HashStore()
    finally(function() store:close() end)
    store:set("a", "x\0y")
    store:append("a", "z")
    store:append("new", "n")
    assert.equal("x\0yz", store:get("a"))
    assert.same({ "n", "x\0yz" }, store:multi_get { "new", "a" })
    assert.equal(3, store:add("count", 3))
    assert.equal(1, store:add("count", -2))
    assert.error_matches(function() store:add("a", 1) end, "no integer")
    assert.equal("first", store:compare_set("c", "", "first"))
    assert.equal("first", store:compare_set("c", "other", "second"))
    assert.equal("second", store:compare_set("c", "first", "second"))
    assert.is_true(store:check { "a", "c" })
    assert.is_false(store:check { "a", "nothing" })
    assert.equal(4, store:num_keys())
    assert.is_true(store:delete_key "a")
    assert.is_false(store:delete_key "a")
    assert.error_matches(function() store:get("a", 0.01) end, "nobody set a within 0.01 s")
    assert.error_matches(function() store:wait({ "c", "d", "e" }, 0.01) end, "nobody set d, e")
    local part = dist.PrefixStore("part", store)
    part:set("k", "v")
    assert.equal("v", store:get "part/k")
    local large = ("x"):rep(3000000)
    store:set("large", large)
    assert.equal(large, store:get "large")
    assert.error_matches(function() store:set("large", ("x"):rep(65 * 2 ^ 20)) end, "more than a value")
    assert.equal(large, store:get "large")
  end)

  it("wakes each of many clients", function()
    local store = dist.TCPStore("127.0.0.1", 0, { is_master = true })
    local clients = {}
    finally(function()
      for _, c in ipairs(clients) do c:close() end
      store:close()
    end)
    for i = 1, 200 do clients[i] = dist.TCPStore("127.0.0.1", store.port) end
    for i, c in ipairs(clients) do assert.equal(i, c:add("n", 1)) end
    for i, c in ipairs(clients) do c:set("k" .. i, tostring(i)) end
    for i, c in ipairs(clients) do assert.equal(tostring(201 - i), c:get("k" .. 201 - i)) end
  end)

  it("has a token", function()
    local store = dist.TCPStore("127.0.0.1", 0, { is_master = true, token = "right" })
    finally(function() store:close() end)
    assert.error_matches(function() dist.TCPStore("127.0.0.1", store.port, { token = "wrong" }) end,
      "wrong token; all processes of a job need the same MOTH_STORE_TOKEN")
    local own, said, stderr = dist.HashStore(), "", io.stderr -- a token of chance
    finally(function() own:close() end)
    assert.error_matches(function() dist.TCPStore("127.0.0.1", own.port) end, "wrong token")
    io.stderr = { write = function(_, ...) said = said .. table.concat { ... } end } -- luacheck: ignore 122
    local ok, open = pcall(dist.TCPStore, "127.0.0.1", 0, { is_master = true, token = "" })
    local fine, all = pcall(dist.TCPStore, "0.0.0.0", 0, { is_master = true })
    io.stderr = stderr -- luacheck: ignore 122
    assert(ok, open)
    assert(fine, all)
    assert.matches("a store without a token: each user who reaches 127.0.0.1 port " .. open.port, said)
    assert.matches("a store without a token %(the address is not one of this machine alone%): each user who reaches "
      .. "0.0.0.0 port " .. all.port, said)
    dist.TCPStore("127.0.0.1", all.port):close()
    open:close()
    all:close()
    local results = ranks.run { size = 2, timeout = 0.3, env = function(rank)
      return rank == 1 and { "MOTH_STORE_TOKEN=other" } or {}
    end, code = "" }
    assert.matches("not all 2 ranks came within 0.3 s %(.*nobody set [%w/]+/1 within", results[1].out)
    assert.matches("wrong token", results[2].out)
  end)

  describe("without a token, at an address of this machine alone", function()
    local folder, kept
    before_each(function()
      kept = { os.getenv "XDG_RUNTIME_DIR", os.getenv "MOTH_STORE_TOKEN" }
      folder = run "mktemp -d"
      ffi.C.setenv("XDG_RUNTIME_DIR", folder, 1)
      ffi.C.unsetenv "MOTH_STORE_TOKEN"
    end)
    after_each(function()
      run("rm -rf " .. folder)
      ffi.C.unsetenv "XDG_RUNTIME_DIR"
      if kept[1] then ffi.C.setenv("XDG_RUNTIME_DIR", kept[1], 1) end
      if kept[2] then ffi.C.setenv("MOTH_STORE_TOKEN", kept[2], 1) end
    end)
    local function master(port) return dist.TCPStore("localhost", port or 0, { is_master = true }) end

    it("has one in a file of its user", function()
      local store = master()
      finally(function() store:close() end)
      local file = ("%s/moth/store-127.0.0.1-%d"):format(folder, store.port)
      assert.equal("700 600", run(("stat -c %%a %s/moth %s | paste -sd ' '"):format(folder, file)))
      assert.matches("^%x+$", run("cat " .. file))
      dist.TCPStore("127.0.0.1", store.port):close()
      for _, other in ipairs { "", "wrong" } do
        assert.error_matches(function() dist.TCPStore("127.0.0.1", store.port, { token = other }) end, "wrong token")
      end
      ffi.C.setenv("XDG_RUNTIME_DIR", folder .. "/moth", 1) -- as a process that cannot read it
      assert.error_matches(function() dist.TCPStore("127.0.0.1", store.port) end,
        "wrong token; all processes .* MOTH_STORE_TOKEN, or none if all run on this machine, as the same user")
      ffi.C.setenv("XDG_RUNTIME_DIR", folder, 1)
      local port = store.port
      store:close()
      assert.equal("", run(("ls -A %s/moth"):format(folder)))
      run("echo 0123456789abcdef0123456789abcdef > " .. file) -- of a process that was killed
      run("chmod 600 " .. file)
      store = master(port)
      assert.not_equal("0123456789abcdef0123456789abcdef", run("cat " .. file))
      dist.TCPStore("127.0.0.1", port):close()
      run("echo 0123456789abcdef0123456789abcdef > " .. file)
      assert.error_matches(function() dist.TCPStore("127.0.0.1", port) end, "%-" .. port .. " has another")
      run("chmod 644 " .. file)
      assert.error_matches(function() dist.TCPStore("127.0.0.1", port) end, "other users have access to .*mode 644")
      run(("mv %s %s/moved && ln -s %s/moved %s"):format(file, folder, folder, file))
      assert.error_matches(function() dist.TCPStore("127.0.0.1", port) end, "wrong token.*it is a link")
    end)

    it("is refused where others have a hand in the folder", function()
      run("chmod 755 " .. folder) -- no runtime folder of one user: the one under /tmp is taken
      local store = master()
      assert.equal("", run("ls -A " .. folder))
      store:close()
      run("chmod 700 " .. folder)
      run(("mkdir -m 777 %s/moth"):format(folder))
      assert.error_matches(master, "cannot be kept where only this user reads it: other users .*mode 777")
      run(("rmdir %s/moth && ln -s /tmp %s/moth"):format(folder, folder))
      assert.error_matches(master, "cannot be kept .*/moth: it is a link, or no folder; remove that, or set MOTH_STORE")
    end)

    it("is shared by ranks that nobody launched, whoever comes first", function()
      local text = ranks.run { size = 3, agent = false, join = false, env = { "MOTH_STORE_TOKEN=",
        "XDG_RUNTIME_DIR=" .. folder, "MASTER_PORT=" .. free_port() }, code = [[
          dist.init_process_group("tcp", { timeout = 10 })
          local x = moth.ones(2)
          dist.all_reduce(x)
          print(x[1]:item())]] }
      for _, r in ipairs(text) do assert.equal("3\n", r.out) end
      assert.equal("", run(("ls -A %s/moth"):format(folder)))
    end)
  end)

  it("names a port that is taken", function()
    local store = dist.TCPStore("127.0.0.1", 0, { is_master = true, token = "of another program" })
    finally(function() store:close() end)
    assert.error_matches(function() dist.TCPStore("127.0.0.1", store.port, { is_master = true }) end,
      "cannot listen on 127.0.0.1 port %d+: .*another MASTER_PORT")
    local results = ranks.run { size = 2, agent = false, env = { "MASTER_PORT=" .. store.port }, code = "" }
    assert.matches("cannot listen on 127.0.0.1 port " .. store.port, results[1].out)
    assert.matches("wrong token", results[2].out)
  end)

  it("at any free port, for a process alone", function()
    for _ = 1, 2 do
      dist.init_process_group("gloo", { rank = 0, world_size = 1, init_method = "tcp://127.0.0.1:0" })
      dist.destroy_process_group()
    end
    assert.error_matches(function()
      dist.init_process_group("gloo", { rank = 0, world_size = 2, init_method = "tcp://127.0.0.1:0" })
    end, "port 0: other ranks cannot know it")
  end)

  it("that nobody runs, or that is no store", function()
    assert.error_matches(function() dist.TCPStore("127.0.0.1", 1, { timeout = 0.05 }) end,
      "no store answers at 127.0.0.1 port 1 within 0.05 s: .*is rank 0")
    local path = os.tmpname()
    finally(bash("exec luajit -e \"local s = require(\\\"moth.distributed\\\").HashStore() "
      .. "local ffi = require [[ffi]] ffi.cdef [[int raise(int);]] local stop = ffi.C.raise "
      .. "local f = io.open([[%s]], [[w]]) f:write(s.port) f:close() stop(19)\"", path))
    local port
    repeat
      local f = io.open(path)
      port = f:read("*n")
      f:close()
    until port
    assert.error_matches(function() dist.TCPStore("127.0.0.1", port, { timeout = 0.2 }) end,
      "does not answer; it has not greeted as a store of moth's: does another program use this MASTER_PORT")
    os.remove(path)
  end)

  it("that dies while ranks wait for others", function()
    for _, r in ipairs(ranks.run { size = 2, join = false, meanwhile = function(_, store)
      store:wait({ "run/0/group/1/0", "run/0/group/1/1" }, 10)
      store:close()
    end, code = 'dist.init_process_group("gloo", { rank = rank, world_size = 3, timeout = 30 })' }) do
      assert.equal(1, r.rc)
      assert.matches("the store at 127.0.0.1 port %d+ is lost: it closed the connection", r.out)
    end
  end)

  it("that dies later: groups go on, new ones cannot be made", function()
    for _, r in ipairs(ranks.run { size = 2, meanwhile = function(_, store)
      store:wait({ "joined0", "joined1" }, 10)
      store:close()
    end, code = [[
      local s = dist.TCPStore("127.0.0.1", tonumber(os.getenv "MASTER_PORT"))
      s:set("joined" .. rank, "")
      print(pcall(s.get, s, "never"))
      local t = moth.ones(100000)
      dist.all_reduce(t)
      print(t[1]:item())
      dist.new_group { 0, 1 }]] }) do
      assert.matches("\n2\nERROR .*new_group.*is lost", r.out:gsub("\n", "\n", 1))
    end
  end)

  it("and ranks, called by strangers with half a word", function()
    local store = dist.TCPStore("127.0.0.1", 0, { is_master = true })
    finally(function() store:close() end)
    local ends = {}
    for _, text in ipairs { "", "GET / HTTP/1.1\\r\\n\\r\\n", "\\x30", "0thgstor\\xff\\xff\\xff\\xff" } do
      ends[#ends + 1] = bash("exec 3<>/dev/tcp/127.0.0.1/%d; printf \"%s\" >&3; sleep 10", store.port, text)
    end
    for i = 1, 50 do assert.equal(i, store:add("n", 1)) end
    for _, fn in ipairs(ends) do fn() end
    assert.equal(51, store:add("n", 1))
  end)

  it("and a rank that waits for others, called by more silent strangers than it holds", function()
    local pipe, pid
    local results = ranks.run { size = 2, join = false, backend = "tcp", code = [[
      if rank == 1 then
        dist.TCPStore("127.0.0.1", tonumber(os.getenv "MASTER_PORT"), { token = "specs" }):get "go"
      end
      dist.init_process_group("tcp", { timeout = 15 })
      local x = moth.ones(2)
      dist.all_reduce(x)
      print(x[1]:item())]], meanwhile = function(_, store)
        local port = store:get("run/0/group/1/0"):match "^%S+ (%d+) "
        pipe = io.popen(([[exec bash -c 'for i in $(seq 300); do exec {fd}<>/dev/tcp/127.0.0.1/%d; done
          echo all; exec sleep 15' & echo $!]]):format(port))
        pid = pipe:read("*n", "*l")
        assert(pipe:read "*l" == "all")
        store:set("go", "1")
      end }
    os.execute(("kill -9 %d"):format(pid))
    pipe:close()
    assert.same({ "2\n", "2\n" }, { results[1].out, results[2].out })
  end)

  it("with two processes of one rank: the second one is refused", function()
    local results = ranks.run { size = 2, timeout = 0.3, code = "",
      env = function(rank) return rank == 1 and { "RANK=0" } or {} end }
    local text = results[1].out .. results[2].out
    assert.matches("rank 0 is there already %(pid %d+ on .*%): it was started twice", text)
  end)
end)
