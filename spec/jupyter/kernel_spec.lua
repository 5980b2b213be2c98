-- The Jupyter kernel, by messages of a front end that is written here. notebooks_spec.lua has the real one.
local ffi = require "ffi"
local cjson = require "cjson"
local wire = require "moth.jupyter.wire"
local zmq = require "moth.jupyter.zmq"
local build = os.getenv "MOTH_BUILD" or "build"

pcall(ffi.cdef, "int zmq_connect(void *socket, const char *address);")

local KEY = "a key"

local function folder()
  local dir = os.tmpname()
  os.remove(dir)
  os.execute("mkdir " .. dir)
  return dir
end

local function command(text)
  local pipe = io.popen(text .. " 2>&1; echo status=$?")
  local out, status = pipe:read("*a"):match "^(.*)status=(%d+)%s*$"
  pipe:close()
  return out, tonumber(status)
end

describe("messages of Jupyter's", function()
  it("are signed", function() -- RFC 4231, test cases 2, 3 and 6
    assert.equal("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
      wire.sign("Jefe", { "what do ya want ", "for nothing?" }))
    assert.equal("773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
      wire.sign(("\170"):rep(20), { ("\221"):rep(50) }))
    assert.equal("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
      wire.sign(("\170"):rep(131), { "Test Using Larger Than Block-Size Key - Hash Key First" }))
    assert.equal("", wire.sign("", { "x" }))
    local parts = wire.parts(KEY, "s", { "to" }, "execute_request", { code = "é", list = wire.EMPTY })
    local got = wire.parse(KEY, parts)
    assert.same({ code = "é", list = {} }, got.content)
    assert.same({ "to" }, got.identities)
    assert.equal("execute_request", got.type)
    assert.is_truthy(parts[#parts]:find('"list":[]', 1, true))
    assert.is_nil((wire.parse("another", parts)))
    parts[#parts] = parts[#parts]:gsub("code", "c0de")
    assert.same({ nil, "a message with another signature" }, { wire.parse(KEY, parts) })
    assert.is_nil((wire.parse(KEY, { "x", "y" })))
  end)

  it("count characters", function()
    assert.equal(3, wire.bytes_before("aéb", 2))
    assert.equal(4, wire.bytes_before("aéb", 9))
    assert.equal(0, wire.bytes_before("éa", 0))
    assert.equal(3, wire.characters "aéb")
    assert.equal("a\239\191\189b é", wire.valid "a\255b é")
    assert.equal("\239\191\189", wire.valid "\226\130")
    assert.equal(("\239\191\189"):rep(3), wire.valid "\237\160\128") -- a surrogate, which JSON refuses
  end)
end);

(zmq.available() and describe or pending)("moth kernel #noasan", function()
  local dir, sockets = nil, {}

  local function socket(kind, port)
    local lib = ffi.load "libzmq.so.5"
    local s = zmq.socket(kind, "ipc://" .. dir .. "/unused-" .. port, 20)
    local IDENTITY = 5 -- a front end has one name at shell and stdin
    lib.zmq_setsockopt(s.handle, IDENTITY, "spec", 4)
    assert(lib.zmq_connect(s.handle, ("ipc://%s/k-%d"):format(dir, port)) == 0)
    return s
  end

  lazy_setup(function()
    dir = folder()
    local f = io.open(dir .. "/connection.json", "w")
    f:write(cjson.encode { transport = "ipc", ip = dir .. "/k", shell_port = 1, iopub_port = 2, stdin_port = 3,
      control_port = 4, hb_port = 5, signature_scheme = "hmac-sha256", key = KEY })
    f:close()
    os.execute(("%s/moth kernel run %s/connection.json > %s/log 2>&1 & echo $! > %s/pid"):format(build, dir, dir, dir))
    local DEALER, SUB, REQ, SUBSCRIBE = 5, 2, 3, 6
    for name, spec in pairs { shell = { DEALER, 1 }, iopub = { SUB, 2 }, stdin = { DEALER, 3 }, control = { DEALER, 4 },
      hb = { REQ, 5 } } do
      if name ~= "iopub" then sockets[name] = socket(spec[1], spec[2]) end
    end
    local sub = zmq.socket(SUB, "ipc://" .. dir .. "/unused-2", 20)
    local lib = ffi.load "libzmq.so.5"
    lib.zmq_setsockopt(sub.handle, SUBSCRIBE, "", 0)
    assert(lib.zmq_connect(sub.handle, "ipc://" .. dir .. "/k-2") == 0)
    sockets.iopub = sub
  end)

  local function send(name, kind, content)
    local parts = wire.parts(KEY, "spec", {}, kind, content)
    sockets[name]:send(parts)
    return cjson.decode(parts[3]).msg_id
  end
  local function answer(name)
    local parts = assert(sockets[name]:receive(), "no answer")
    local m = assert(wire.parse(KEY, parts))
    m.parent = cjson.decode(parts[#parts - 2]).msg_id
    return m
  end
  local function ask(kind, content, name)
    send(name or "shell", kind, content)
    local got = answer(name or "shell")
    return got.content, got.type
  end
  -- What was published for a request until the kernel was idle: a list of { type, content }.
  local function published(id)
    local list = {}
    while true do
      local m = answer "iopub"
      if m.parent == id then
        if m.type == "status" and m.content.execution_state == "idle" then return list end
        list[#list + 1] = { m.type, m.content }
      end
    end
  end
  local function cell(code, more)
    local content = { code = code, silent = false, allow_stdin = false }
    for key, value in pairs(more or {}) do content[key] = value end
    local id = send("shell", "execute_request", content)
    local reply = answer("shell").content
    local found = {}
    for _, m in ipairs(published(id)) do
      if m[1] == "stream" then found[m[2].name] = (found[m[2].name] or "") .. m[2].text
      elseif m[2].data then found[#found + 1] = m[2].data
      elseif m[1] == "error" then found.error = m[2] end
    end
    return reply, found
  end

  it("runs cells as the prompt runs lines", function()
    local info, kind = ask("kernel_info_request", {})
    assert.equal("kernel_info_reply", kind)
    assert.equal("lua", info.language_info.name)
    -- the first messages to a subscriber may be lost
    repeat send("shell", "kernel_info_request", {}) answer "shell" until #zmq.poll({ sockets.iopub }, 0.2) > 0

    local reply, found = cell "local x = moth.ones(3)\nx:sum()"
    assert.equal("ok", reply.status)
    assert.same({ { ["text/plain"] = "3.\n[moth.float32 0-dim, cpu]" } }, found)
    reply, found = cell "print('é', x[1]:item()) io.stderr:write 'e' os.execute 'echo child'\n-- the end"
    assert.equal(2, reply.execution_count)
    assert.same({ stdout = "é\t1\nchild\n", stderr = "e" }, found)
    assert.same({ { ["text/plain"] = "1" }, { ["text/plain"] = '"two"' } }, select(2, cell "1, 'two'"))
    assert.matches("relu%(Tensor self%)", select(2, cell "?relu").stdout)
    assert.matches("%f[%w]x%s+float32", select(2, cell "%who").stdout)
    assert.same({}, select(2, cell("5", { silent = true })))
  end)

  it("shows pictures", function()
    local found = select(2, cell "%plot {1, 3, 2}\nmoth.plot.lines { 1, 2 }")
    assert.matches("^<svg", found[1]["image/svg+xml"])
    assert.matches("^<svg", found[2]["image/svg+xml"])
    found = select(2, cell("%image moth.rand(3, 8, 8)\ndisplay(setmetatable({}, { __mime = function() "
      .. "return { ['text/html'] = '<b>x</b>' } end }))"))
    assert.equal("iVBOR", found[1]["image/png"]:sub(1, 5))
    assert.equal("<b>x</b>", found[2]["text/html"])
  end)

  it("redraws progress bars as text, and gives a file's text to the cell", function()
    local path = dir .. "/load.lua"
    local f = io.open(path, "w")
    f:write "local x = 1\nprint(x)\n"
    f:close()
    local reply = ask("execute_request", { code = "%load " .. path, silent = false })
    assert.same({ { source = "set_next_input", text = "local x = 1\nprint(x)", replace = true } }, reply.payload)
    local text = {}
    send("shell", "execute_request", { silent = false, code = [[local now = 0
      local bar = moth.utils.progress(3, { label = "Epoch", clock = function() now = now + 1 return now end })
      bar:update(1, "a long message") bar:update(1) bar:finish "done"]] })
    repeat
      local m = answer "iopub"
      if m.type == "stream" then
        assert.equal("stdout", m.content.name)
        text[#text + 1] = m.content.text
      end
    until m.type == "status" and m.content.execution_state == "idle" and #text > 0
    answer "shell"
    text = table.concat(text)
    assert.matches("^\rEpoch %[=* *%]  33%% 1/3 .- a long message\rEpoch ", text)
    assert.matches("\rdone\n$", text)
    assert.is_nil(text:find "\27")
  end)

  it("says what is wrong, and leaves out the cells behind", function()
    local reply, found = cell "local function f()\n  error 'boom'\nend\nf()"
    assert.equal("error", reply.status)
    assert.equal("stdin:2: boom", found.error.evalue)
    assert.matches("in function 'f'", table.concat(found.error.traceback))
    assert.equal("the cell ends within what it begins", cell("for i = 1, 3 do").evalue)
    assert.matches("stdin:1: .*expected near", cell("x +* 1").evalue)
    assert.matches("there is no command %%nothing", cell("%nothing").evalue)
    send("shell", "execute_request", { code = "moth.utils.system.sleep(0.3) error 'first'", silent = false })
    send("shell", "execute_request", { code = "y = 1", silent = false })
    assert.equal("error", answer("shell").content.status)
    assert.equal("aborted", answer("shell").content.status)
    assert.same({ { ["text/plain"] = "nil" } }, select(2, cell "y"))
  end)

  it("completes, explains, and says what is complete", function()
    local c = ask("complete_request", { code = "é = moth.nn.functional.relu6", cursor_pos = 28 })
    assert.same({ "moth.nn.functional.relu6", "moth.nn.functional.relu6_" }, c.matches)
    assert.same({ 4, 28 }, { c.cursor_start, c.cursor_end })
    assert.same({}, ask("complete_request", { code = "nothing_is.", cursor_pos = 11 }).matches)
    local i = ask("inspect_request", { code = "moth.relu(x)", cursor_pos = 6, detail_level = 0 })
    assert.is_true(i.found)
    assert.matches("relu%(Tensor self%)", i.data["text/plain"])
    assert.matches("relu%(Tensor self%)", ask("inspect_request", { code = "moth.relu(", cursor_pos = 10 })
      .data["text/plain"])
    ask("execute_request", { code = "net = moth.nn.Linear(3, 2)", silent = true })
    assert.matches("%[moth.float32 2x3, cpu, requires_grad%]", ask("inspect_request", { code = "net.weight",
      cursor_pos = 8 }).data["text/plain"])
    for _, code in ipairs { "moth.nn.Linear(3, 2, { bias = ", "moth.nn.Linear(3, 2, { bia",
      "moth.nn.Linear { 3, 2, bi" } do
      assert.matches("size in_features, size out_features, bool bias=true",
        ask("inspect_request", { code = code, cursor_pos = #code }).data["text/plain"], 1, true)
    end
    assert.is_false(ask("inspect_request", { code = "not_a_name", cursor_pos = 4 }).found)
    for code, status in pairs { ["x = 1"] = "complete", ["for i = 1, 2 do"] = "incomplete", ["x +* 1"] = "invalid",
      ["?relu"] = "complete", ["1 + 1"] = "complete" } do
      assert.equal(status, ask("is_complete_request", { code = code }).status)
    end
  end)

  it("is interrupted, asks, and answers while it computes", function()
    local f = io.open(dir .. "/pid")
    local pid = f:read "*l"
    f:close()
    send("shell", "execute_request", { code = "io.write 'runs' while true do end", silent = false })
    repeat local m = answer "iopub" until m.type == "stream" or m.type == "execute_input"
    sockets.hb:send { "ping" }
    assert.same({ "ping" }, sockets.hb:receive())
    os.execute("sleep 0.2; kill -INT " .. pid)
    assert.matches("interrupted", answer("shell").content.evalue)
    os.execute("kill -INT " .. pid) -- between two cells
    local reply = cell "1"
    assert.equal("ok", reply.status)
    local id = send("shell", "execute_request", { code = "print('hello ' .. io.read())", silent = false,
      allow_stdin = true })
    assert.equal("input_request", answer("stdin").type)
    send("stdin", "input_reply", { value = "Ada" })
    assert.equal("ok", answer("shell").content.status)
    local text = ""
    for _, m in ipairs(published(id)) do if m[1] == "stream" then text = text .. m[2].text end end
    assert.equal("hello Ada\n", text)
  end)

  lazy_teardown(function()
    local reply = ask("shutdown_request", { restart = false }, "control")
    assert.equal("ok", reply.status)
    for _, s in pairs(sockets) do s:close() end
    for _ = 1, 100 do
      if os.execute("kill -0 $(cat " .. dir .. "/pid) 2>/dev/null") ~= 0 then break end
      os.execute "sleep 0.05"
    end
    local f = io.open(dir .. "/log")
    assert.equal("", f:read "*a")
    f:close()
    os.execute("rm -r " .. dir)
  end)
end)

describe("moth kernel install #noasan", function()
  it("writes where Jupyter looks, and takes it back", function()
    local dir = folder()
    finally(function() os.execute("rm -r " .. dir) end)
    local moth = ("JUPYTER_DATA_DIR=%s/own %s/moth kernel "):format(dir, build)
    local text, status = command(moth .. "install")
    assert.matches("^wrote .*/own/kernels/moth/kernel.json\n", text)
    assert.equal(0, status)
    local f = assert(io.open(dir .. "/own/kernels/moth/kernel.json"))
    local spec = cjson.decode(f:read "*a")
    f:close()
    assert.same({ "kernel", "run", "{connection_file}" }, { unpack(spec.argv, 2) })
    assert.equal("signal", spec.interrupt_mode)
    assert.matches("/own/share/jupyter/kernels/other/",
      (command(moth .. "install --prefix " .. dir .. "/own --name other")))
    assert.matches("^removed ", (command(moth .. "uninstall")))
    assert.same({ ("there is no kernel at %s/own/kernels/moth\n"):format(dir), 1 },
      { (command(moth .. "uninstall")):gsub("^moth kernel: ", ""), 1 })
    assert.matches("there are install, uninstall, run", (command(moth .. "x")))
    assert.matches("there is no option %-%-what", (command(moth .. "install --what")))
    assert.matches("^moth kernel: .*letters, digits", (command(moth .. "install --name ../x")))
    assert.matches("exclude each other", (command(moth .. "install --user --prefix " .. dir)))
    text = command(("env -u HOME -u XDG_DATA_HOME %s/moth kernel uninstall"):format(build))
    assert.matches("HOME is not set", text)
  end)
end)
