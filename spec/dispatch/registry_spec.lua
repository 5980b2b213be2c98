-- The registry of ops: found by name, from Lua and C; nothing depends on an op's number or on all ops.
local ffi = require "ffi"
local moth = require "moth"
local build = os.getenv("MOTH_BUILD") or "build"

local function shell(command, ...)
  local pipe = assert(io.popen(("unset LD_PRELOAD; { %s; } 2>&1; echo status=$?"):format(command:format(...))))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  return text, tonumber(status)
end

describe("the registry", function()
  it("finds every op of the table by its name, and nothing else #quick", function()
    local C, seen = moth.C, {}
    for _, name in ipairs(moth.ops.list()) do
      local op = C.moth_op_find(name)
      assert.is_true(op ~= nil, name)
      local key = tostring(ffi.cast("void *", op))
      assert.is_nil(seen[key])
      seen[key] = name
      assert.is_true(C.moth_op_find(name .. "#") == nil)
    end
    for _, name in ipairs { "", "mu", "MUL", "mylib::relu2", ("x"):rep(1000) } do
      assert.is_true(C.moth_op_find(name) == nil, name)
    end
  end)
  it("gives C and C++ each op as a symbol, so that the linker refuses a misspelt name #noasan", function()
    local dir = shell("mktemp -d"):match("%S+")
    finally(function() shell("rm -rf %s", dir) end)
    local at = build:sub(1, 1) == "/" and build or "$PWD/" .. build
    for _, cc in ipairs { "gcc -std=c17 -pedantic", "g++ -x c++ -std=c++17", "clang -std=c17" } do
      if select(2, shell("command -v " .. cc:match("%S+"))) == 0 then
        local make = ("%s -Wall -Wextra -Werror -Isrc -I%s/gen %%s -o %s/check spec/dispatch/registry_check.c \z
          -L%s -lmoth -Wl,-rpath,%s"):format(cc, build, dir, build, at)
        local text, status = shell(make, "")
        assert.equal(0, status, text)
        assert.equal("2\n", (shell("%s/check mul mull relu", dir)))
        text, status = shell(make, "-DOP=mull")
        assert.is_true(status ~= 0)
        assert.matches("undefined reference to `moth_op_mull'", text)
      end
    end
  end)
  it("is not what parsers, kernels of a dtype or other families are compiled with #noasan", function()
    local function depend(pattern) return (shell("grep -lE 'gen/(moth_ops.h|ops/)' %s/obj/%s", build, pattern)) end
    assert.matches("composite/pad.d", depend "src/composite/*.d") -- which are there
    assert.equal("", depend "src/io/*.d")
    assert.equal("", depend "src/core/*.d")
    assert.equal("", depend "gen/kernels/*.d")
    assert.equal("", (shell("grep -l 'gen/ops/conv.h' %s/obj/src/composite/pad.d", build)))
    -- Of a file that is compiled for the edge library alone there is none.
    local all = "for f in $(find src kernels -name '*.c'); do d=%s/obj/${f%%.c}.d; [ ! -f $d ] || grep -l %s $d; done"
    assert.equal("", (shell(all, build, "gen/moth_ops.h")))
    assert.matches("src/graph/%l+%.d", (shell(all, build, "src/moth.h")))
  end)
end)

describe("several backends of the user's", function()
  local function kernels(factor)
    return { add = function(args, results)
      results[1]:copy_((args[1]:cpu() + (moth.is_tensor(args[2]) and args[2]:cpu() or args[2])) * factor)
    end }
  end
  it("are there at once, each with its kernels", function()
    moth.library.register_backend("regdev1", kernels(1))
    moth.library.register_backend("regdev2", kernels(10))
    local a, b = moth.tensor({ 1, 2 }):to("regdev1"), moth.tensor({ 1, 2 }):to("regdev2")
    assert.same({ 2, 4 }, (a + a):cpu():totable())
    assert.same({ 20, 40 }, (b + b):cpu():totable())
    assert.equal("regdev1", tostring((a + 1):device()))
    assert.equal("regdev2", tostring(a:cpu():to("regdev2"):device()))
    local ok, message = pcall(function() return a:to("regdev2") end)
    assert.is_false(ok)
    assert.truthy(message:find("a copy between two devices goes through the cpu", 1, true), message)
    ok, message = pcall(function() return a + b end)
    assert.is_false(ok)
    assert.truthy(message:find("found self on regdev1:0 and other on regdev2:0", 1, true), message)
    moth.library.register_kernel("neg", function(args, results) results[1]:copy_(-args[1]:cpu()) end, "regdev1")
    assert.same({ -1, -2 }, (-a):cpu():totable())
    ok, message = pcall(function() return -b end)
    assert.is_false(ok)
    assert.truthy(message:find("could not run 'moth::neg' with arguments from the 'regdev2' backend", 1, true), message)
    ok, message = pcall(moth.library.register_kernel, "neg", function() end, "cpu")
    assert.is_false(ok)
    assert.truthy(message:find("'cpu' is no device of register_backend's", 1, true), message)
    assert.truthy(moth.ops.describe("neg"):find("regdev1", 1, true))
  end)
  it("have names that fit messages", function()
    for _, name in ipairs { ("d"):rep(32), "a b", "1d", "" } do
      local ok, message = pcall(moth.library.register_backend, name, {})
      assert.is_false(ok)
      assert.truthy(message:find("a device's name consists of up to 31 letters, digits and _", 1, true), message)
    end
  end)
  it("have the ops whose records say that a kernel serves all devices", function()
    local all = moth.ops.get("empty")
    assert.equal("all devices", all.kernel)
    assert.same({ 3 }, moth.empty(3, { device = "regdev1" }):size())
    assert.truthy(moth.ops.describe("empty"):find("regdev2", 1, true))
  end)
end)
