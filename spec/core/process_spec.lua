-- What belongs to the process: its environment, and what a child made by fork can do.
local moth = require "moth"
local ffi = require "ffi"
local preload = os.getenv("LD_PRELOAD") or ""

ffi.cdef [[
  int fork(void);
  int waitpid(int pid, int *status, int options);
  int kill(int pid, int signal);
  void _exit(int status);
  int usleep(unsigned microseconds);
]]

--- Runs fn in a child made by fork; what it returned (a number from 0 to 255), or "hangs".
local function in_child(fn)
  local pid = ffi.C.fork()
  if pid == 0 then
    local ok, value = pcall(fn)
    ffi.C._exit(ok and value or 99)
  end
  local status = ffi.new("int[1]")
  for _ = 1, 2000 do
    if ffi.C.waitpid(pid, status, 1) == pid then return bit.band(bit.rshift(status[0], 8), 255) end
    ffi.C.usleep(10000)
  end
  ffi.C.kill(pid, 9)
  ffi.C.waitpid(pid, status, 0)
  return "hangs"
end

describe("a child made by fork #noasan", function()
  it("goes on with one thread where its parent has run ops on several", function()
    if preload ~= "" then return pending("sanitizers and fork") end
    local before = moth.get_num_threads()
    finally(function() moth.set_num_threads(before) end)
    moth.set_num_threads(3)
    local x = moth.ones(1024, 1024)
    assert.equal(1024 * 1024, x:sum():item())
    x:mm(x)
    assert.equal(1, in_child(function()
      assert(x:sum():item() == 1024 * 1024)
      assert((x:mm(x):sum() / 1024 ^ 3):item() == 1)
      local w = moth.ones(512, 512, { requires_grad = true })
      w:exp():sum():backward()
      moth.set_num_threads(2)
      return moth.get_num_threads()
    end))
    assert.equal(3, moth.get_num_threads())
    assert.equal(1024 * 1024, x:sum():item())
  end)
end)

describe("MOTH_* variables #noasan", function()
  local function run(env, code)
    local luajit = os.getenv("LUAJIT") or arg[-1] or "luajit"
    local pipe = io.popen(("env -u LD_PRELOAD %s %s -e '%s' 2>&1"):format(env, luajit, code))
    local text = pipe:read("*a")
    pipe:close()
    return text
  end

  it("that mean nothing are named, and the default is used", function()
    if preload ~= "" then return pending("the child would need the sanitizer's library") end
    local threads = 'io.write(require("moth").get_num_threads())'
    for _, value in ipairs { "abc", "0", "-3", "1000000000", "4x", "1e9", "99999999999999999999" } do
      local text = run("OMP_NUM_THREADS=2 MOTH_NUM_THREADS=" .. value, threads)
      assert.equal("[moth] warning: MOTH_NUM_THREADS=" .. value
        .. ": expected an integer from 1 to 1024; using 2\n2", text)
    end
    assert.equal("3", run("MOTH_NUM_THREADS=3", threads))
    assert.equal("2", run("OMP_NUM_THREADS=2,1 MOTH_NUM_THREADS=", threads))
    assert.matches("^%[moth%] warning: MOTH_CPU=best: expected generic, avx2, avx512; using the default\n",
      run("MOTH_CPU=best", 'require "moth"'))
    assert.matches("MOTH_GUARD=yes: expected 0 or 1; using 0", run("MOTH_GUARD=yes", 'require "moth"'), 1, true)
    assert.matches("MOTH_CACHE=no: expected 0 or 1; using 1", run("MOTH_CACHE=no", 'require "moth"'), 1, true)
    assert.matches("MOTH_DETERMINISTIC=x: expected 0 or 1; using 1",
      run("MOTH_DETERMINISTIC=x", 'require "moth"'), 1, true)
    assert.matches("MOTH_CUDA=maybe: expected off, emu, auto",
      run("MOTH_CUDA=maybe", 'require("moth").cuda.is_available()'), 1, true)
  end)

  it("are read by one reader and listed in docs/environment.md", function()
    local listed = {}
    for line in io.lines("docs/environment.md") do
      for name in line:gmatch("`(MOTH_[%u_]+)") do listed[name] = true end
    end
    local pipe = io.popen([[grep -rnoE '(getenv|moth_env_[a-z]+)\("MOTH_[A-Z_]+"' src kernels lua/moth]])
    local n = 0
    for line in pipe:lines() do
      local file, reader, name = line:match('^([^:]+):%d+:(.-)%("(.*)"$')
      assert.is_true(listed[name], name .. " is not in docs/environment.md")
      if not file:find("src/emu/", 1, true) and file:find("%.c") then
        assert.not_equal("getenv", reader, line)
      end
      n = n + 1
    end
    pipe:close()
    assert.is_true(n > 10)
  end)
end)
