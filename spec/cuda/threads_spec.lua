-- Threads of a C program that use CUDA: threads_check.c.
local moth = require "moth"
local ffi = require "ffi"
local build = os.getenv("MOTH_BUILD") or "build"
local preload = os.getenv("LD_PRELOAD") or ""

-- A shell is not made for sanitizers; children that are get them by their linking.
ffi.cdef "int unsetenv(const char *name); int setenv(const char *name, const char *value, int overwrite);"
local function shell(command)
  ffi.C.unsetenv("LD_PRELOAD")
  local pipe = io.popen("{ " .. command .. "; } 2>&1; echo status=$?")
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  if preload ~= "" then ffi.C.setenv("LD_PRELOAD", preload, 1) end
  return text, tonumber(status)
end

describe("threads with CUDA #threads", function()
  it("have streams of their own, and share memory, devices and pools", function()
    if not moth.cuda.is_available() then return pending(moth.cuda.why()) end
    local program = build .. "/spec/cuda_threads_check"
    local compiler, flags = "gcc", "-std=gnu17 -g -O1 -D_GNU_SOURCE -Wall -Wextra"
    if preload:find("tsan", 1, true) then flags = flags .. " -fsanitize=thread" end
    if preload:find("asan", 1, true) then flags = flags .. " -fsanitize=address,undefined" end
    if preload:find("clang", 1, true) then compiler, flags = "clang", flags .. " -shared-libsan" end
    local text, status = shell(([[mkdir -p %s/spec && %s %s -Isrc -I%s/gen -o %s spec/cuda/threads_check.c \
      -L%s -lmoth -lpthread -Wl,-rpath,%s]]):format(build, compiler, flags, build, program, build, build))
    assert.equal("", text)
    assert.equal(0, status)
    for seed = 1, 3 do
      text, status = shell(("MOTH_CUDA_EMU_SEED=%d OMP_NUM_THREADS=1 %s"):format(seed, program))
      assert.equal("ok\n", text)
      assert.equal(0, status)
    end
  end)
end)
