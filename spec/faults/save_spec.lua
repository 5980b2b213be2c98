-- Saving when the disk, the system or the process fails: the old or the new file is there, whole, and no temporary
-- stays. The real `moth` command does the saving; spec/io/io_check.c does the same to the C functions one by one.

local build = os.getenv("MOTH_BUILD") or "build"
local cases = tonumber(os.getenv("MOTH_CASES")) or 50
local seed = tonumber(os.getenv("MOTH_SEED")) or 1

--- Output (both streams) and exit status of a shell command.
local function sh(command)
  local pipe = io.popen("{ " .. command .. "\n} 2>&1; echo status=$?")
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  return text, tonumber(status)
end

local function write(path, text)
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
end

--- A fresh folder with a script in it, removed after the spec.
local function folder(script)
  local dir = os.tmpname()
  os.remove(dir)
  assert(select(2, sh("mkdir " .. dir)) == 0)
  finally(function() sh("rm -rf " .. dir) end)
  write(dir .. "/save.lua", script)
  return dir
end

-- Saves over a checkpoint and looks at what is left. Prints nothing while faults may be injected: the exit status says
-- 10: saved; 11: the right error, the old file as it was, nothing else there; 12 and more: wrong.
local SAVE = [[
local moth = require "moth"
local dir, n, pattern = ...
local path = dir .. "/model"
local old = moth.load(path)
assert(old.n == 1 and old.w:eq(1):all():item())
local ok, err = pcall(moth.save, { n = 2, w = moth.full({ tonumber(n) }, 2) }, path)
local function now()
  local good, new = pcall(moth.load, path)
  return good and new.w:eq(new.n):all():item() and new.n
end
local others = 0
for name in io.popen("ls -A " .. dir):lines() do
  if name ~= "model" and name ~= "save.lua" and name ~= "first.lua" and name ~= "log" then others = others + 1 end
end
local status = 12
if others > 0 then status = 13
elseif ok then status = now() == 2 and 10 or 14
elseif now() ~= 1 and not err:find("sync the folder", 1, true) then status = 15
elseif not err:find(path, 1, true) or not err:find(pattern) then
  io.stderr:write(err, "\n")
  status = 16
else status = 11 end
os.exit(status, true)]]
local FIRST = [[local moth = require "moth" moth.save({ n = 1, w = moth.ones(1000) }, (...) .. "/model")]]

local function prepared()
  local dir = folder(SAVE)
  write(dir .. "/first.lua", FIRST)
  assert.equal(0, select(2, sh(("%s/moth %s/first.lua %s"):format(build, dir, dir))))
  return dir
end

describe("a full disk #faults #quick", function()
  it("by the limit of a file's size is an error, and the old file stays", function()
    local dir = prepared()
    local text, status = sh(("ulimit -f 64; %s/moth %s/save.lua %s 100000 'File too large'"):format(build, dir, dir))
    assert.equal("", text)
    assert.equal(11, status)
    text, status = sh(("%s/moth %s/save.lua %s 100000 x"):format(build, dir, dir))
    assert.equal("", text)
    assert.equal(10, status)
  end)

  it("by a file system of 1 MB is one, too", function()
    local dir = folder(SAVE)
    write(dir .. "/first.lua", FIRST)
    local text, status = sh(([[unshare -rm sh -c '
      mount -t tmpfs -o size=1m none /mnt || exit 77
      cp %s/*.lua /mnt
      %s/moth /mnt/first.lua /mnt && %s/moth /mnt/save.lua /mnt 1000000 "No space left on device"
      status=$?
      umount /mnt
      exit $status']]):format(dir, build, build))
    if text:find("unshare:") or status == 77 then
      pending("no right to mount a file system")
      return
    end
    assert.equal("", text)
    assert.equal(11, status)
  end)
end)

describe("saving #faults #slow", function()
  for _, case in ipairs {
    { "write", "ENOSPC", "No space left" }, { "write", "EIO", "Input/output error" }, { "write", "EINTR" },
    { "fsync", "ENOSPC", "No space left" }, { "fsync", "EIO", "Input/output error" }, { "fsync", "EINTR" },
    { "renameat", "ENOSPC", "No space left" }, { "renameat", "EIO", "Input/output error" },
    { "fchmod", "EIO", "Input/output error" },
  } do
    local call, errno, pattern = unpack(case)
    it(("survives %s failing with %s, at every call"):format(call, errno), function()
      if select(2, sh("strace -o /dev/null true")) ~= 0 then
        pending("no strace, or no right to trace")
        return
      end
      local dir = prepared()
      local hit = 0
      for k = 1, 12 do
        local _, status = sh(("strace -qq -o %s/log -e trace=%s -e inject=%s:error=%s:when=%d -- %s/moth %s/save.lua "
          .. "%s 1000 '%s'"):format(dir, call, call, errno, k, build, dir, dir, pattern or "^$"))
        local log = assert(io.open(dir .. "/log")):read("*a")
        sh("rm -f " .. dir .. "/log")
        local injected = log:find("INJECTED", 1, true)
        if injected and pattern then
          hit = hit + 1
          assert.is_true(status == 11, ("call %d: status %s\n%s"):format(k, status, log))
        else
          assert.equal(10, status, log)
        end
        assert.equal(0, select(2, sh(("%s/moth %s/first.lua %s"):format(build, dir, dir))))
        if not injected then break end
      end
      assert.is_true(hit > 0 or not pattern)
    end)
  end
end)

-- ---- kill -9 ---------------------------------------------------------------------------------------

local ffi = require "ffi"
ffi.cdef [[
  int kill(int pid, int signal);
  int usleep(unsigned microseconds);
]]
local SIGKILL = 9

-- Saves 1, 2, 3, … over each other and says each number once it is saved: "pid", then "1", "2", …
local FOREVER = [[
  local moth = require "moth"
  local dir, size = ...
  size = tonumber(size)
  for n = 1, math.huge do
    moth.save({ n = n, w = moth.full({ size }, n % 1000), v = moth.full({ 100 }, n % 1000), list = { "a", n } },
      dir .. "/model")
    io.stdout:write(n, "\n")
    io.stdout:flush()
  end]]

--- Starts saving, waits for `first` saves, kills after some microseconds. The last number that was said, or nil.
local function save_and_kill(dir, size, first, microseconds)
  local pipe = io.popen(("echo $$; exec %s/moth %s/save.lua %s %d 2>/dev/null"):format(build, dir, dir, size))
  local pid, said = assert(tonumber(pipe:read("*l"))), nil
  for _ = 1, first do said = assert(tonumber(pipe:read("*l")), "it ended by itself") end
  ffi.C.usleep(microseconds)
  assert.equal(0, ffi.C.kill(pid, SIGKILL))
  for line in pipe:lines() do said = tonumber(line) end
  pipe:close()
  return said
end

describe("saving #faults #M433", function()
  it(("survives kill -9 at %d random points: what was said to be saved is there"):format(cases), function()
    local moth = require "moth"
    local dir = folder(FOREVER)
    local path = dir .. "/model"
    math.randomseed(seed)
    local between, temporaries = 0, 0
    for i = 1, cases do
      -- Small files are mostly syncing, large ones mostly writing. A run starts at 1; the one before may have got
      -- further.
      os.remove(path)
      local said = save_and_kill(dir, i % 2 == 0 and 300000 or 100, 1, math.random(0, 30000))
      local ok, model = pcall(moth.load, path)
      assert.is_true(ok, tostring(model))
      assert.is_true(model.n == said or model.n == said + 1, ("said %d, found %d"):format(said, model.n))
      assert.is_true(model.w:eq(model.n % 1000):all():item() and model.v:eq(model.n % 1000):all():item())
      assert.same({ "a", model.n }, model.list)
      if model.n > said then between = between + 1 end
      if (sh("ls -A " .. dir)):find(".tmp.", 1, true) then temporaries = temporaries + 1 end
    end
    moth.save({ n = 1 }, path)
    assert.equal("model\nsave.lua\n", (sh("ls -A " .. dir))) -- files of killed processes are removed
    if os.getenv("MOTH_VERBOSE") then
      print(("%d kills: %d left a temporary file, %d came between the rename and the answer"):format(cases, temporaries,
        between))
    end
    assert.is_true(temporaries > 0, "no kill came while a file was being written")
  end)

  it("survives kill -9 at every call that it makes", function()
    if select(2, sh("strace -o /dev/null true")) ~= 0 then
      pending("no strace, or no right to trace")
      return
    end
    local dir = prepared()
    local killed = 0
    for _, call in ipairs { "write", "fsync", "fchmod", "renameat", "flock" } do
      for k = 1, 12 do
        local _, status = sh(("strace -qq -o %s/log -e trace=%s -e inject=%s:signal=KILL:when=%d -- %s/moth "
          .. "%s/save.lua %s 1000 x"):format(dir, call, call, k, build, dir, dir))
        sh("rm -f " .. dir .. "/log")
        if status == 10 then break end -- it makes no more such calls
        killed = killed + 1
        local moth = require "moth"
        local ok, model = pcall(moth.load, dir .. "/model")
        assert.is_true(ok, tostring(model))
        assert.is_true(model.w:eq(model.n):all():item())
        assert.equal(0, select(2, sh(("%s/moth %s/first.lua %s"):format(build, dir, dir))))
        assert.equal("first.lua\nmodel\nsave.lua\n", (sh("ls -A " .. dir)))
      end
    end
    assert.is_true(killed >= 5, killed .. " calls")
  end)
end)
