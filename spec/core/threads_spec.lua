-- Threads of C programs that share tensors: threads_check.c, under ThreadSanitizer where this runs under it.

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

describe("threads #threads", function()
  it("share tensors, graphs, the allocator and folders", function()
    local program, folder = build .. "/spec/threads_check", os.tmpname()
    os.remove(folder)
    finally(function() shell("rm -rf " .. folder) end)
    local compiler, flags = "gcc", "-std=gnu17 -g -O1 -D_GNU_SOURCE -Wall -Wextra"
    if tsan then flags = flags .. " -fsanitize=thread" end
    if preload:find("asan", 1, true) then flags = flags .. " -fsanitize=address,undefined" end
    if preload:find("clang", 1, true) then compiler, flags = "clang", flags .. " -shared-libsan" end
    local text, status = shell(([[mkdir -p %s/spec %s && %s %s -Isrc -I%s/gen -o %s spec/core/threads_check.c \
      -L%s -lmoth -lpthread -Wl,-rpath,%s]]):format(build, folder, compiler, flags, build, program, build, build))
    assert.equal("", text)
    assert.equal(0, status)
    -- clang's runtime lies where the loader does not look
    text, status = shell(("OMP_NUM_THREADS=1 LD_PRELOAD=%s %s %s"):format(tsan and "" or preload, program, folder))
    assert.equal("ok\n", text)
    assert.equal(0, status)
    assert.equal("file0\nfile1\n", (shell("ls -A " .. folder)))
  end)
end)
