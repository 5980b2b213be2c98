-- Hooks and memory through moth.h: hooks_check.c.
local build = os.getenv("MOTH_BUILD") or "build"

local function shell(command)
  local pipe = io.popen(("unset LD_PRELOAD; { %s; } 2>&1; echo status=$?"):format(command))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  return text, tonumber(status)
end

describe("hooks in C #noasan", function()
  it("run in order, are released once, and see errors", function()
    local text, status = shell(("mkdir -p %s/spec && gcc -std=c99 -Wall -Wextra -O1 -Isrc -I%s/gen \z
      -o %s/spec/hooks_check spec/core/hooks_check.c -L%s -lmoth -Wl,-rpath,%s"):format(build, build, build, build,
      build:sub(1, 1) == "/" and build or "$PWD/" .. build))
    assert.equal("", text)
    assert.equal(0, status)
    text, status = shell(build .. "/spec/hooks_check")
    assert.equal("ok\n", text)
    assert.equal(0, status)
  end)
end)
