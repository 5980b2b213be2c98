-- Several Lua states in one process: states_check.c, under ThreadSanitizer where this runs under it.

local ffi = require "ffi"
local build = os.getenv("MOTH_BUILD") or "build"
local preload = os.getenv("LD_PRELOAD") or ""
local tsan = preload:find("tsan", 1, true) ~= nil

-- A shell is not made for ThreadSanitizer and dies of it; children that are get it by their linking.
ffi.cdef "int unsetenv(const char *name); int setenv(const char *name, const char *value, int overwrite);"
local function shell(command)
  ffi.C.unsetenv("LD_PRELOAD")
  local pipe = io.popen("{ " .. command .. "; } 2>&1; echo status=$?")
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  if preload ~= "" then ffi.C.setenv("LD_PRELOAD", preload, 1) end
  return text, tonumber(status)
end

describe("Lua states #threads", function()
  it("have a generator, defaults, hooks and an interrupt flag each, in threads and in one", function()
    local compiler, flags = "gcc", "-std=gnu17 -g -O1 -D_GNU_SOURCE -Wall -Wextra -rdynamic"
    if tsan then flags = flags .. " -fsanitize=thread" end
    if preload:find("asan", 1, true) then flags = flags .. " -fsanitize=address,undefined" end
    if preload:find("clang", 1, true) then compiler, flags = "clang", flags .. " -shared-libsan" end
    local headers = "$(pkg-config luajit --cflags || echo -I/usr/include/luajit-2.1)"
    local text, status = shell(("mkdir -p %s/spec && %s %s %s -o %s/spec/states_check spec/lua/states_check.c "
      .. "-lluajit-5.1 -lpthread"):format(build, compiler, flags, headers, build))
    assert.equal("", text)
    assert.equal(0, status)
    text, status = shell(("OMP_NUM_THREADS=1 LD_PRELOAD=%s %s/spec/states_check"):format(tsan and "" or preload, build))
    assert.equal("ok\n", text)
    assert.equal(0, status)
  end)
end)
