-- The warning about an old LuaJIT, and when there is none.
local engine = require "moth.utils.engine"
local luajit = os.getenv("LUAJIT") or arg[-1] or "luajit"

local function run(env)
  local pipe = io.popen(("env -u LD_PRELOAD -u MOTH_LUAJIT_WARNING %s %s -e 'require [[moth]] require [[moth]]' 2>&1")
    :format(env, luajit))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

describe("an old LuaJIT #noasan", function()
  it("is told by its version and by what OpenResty's has", function()
    assert.is_true(engine.is_old({ version = "LuaJIT 2.1.0-beta3" }))
    assert.is_false(engine.is_old({ version = "LuaJIT 2.1.0-beta3", prngstate = print }))
    assert.is_false(engine.is_old({ version = "LuaJIT 2.1.1700008891" }))
  end)

  it("is named once, on one line, unless that is not wanted", function()
    if (os.getenv("LD_PRELOAD") or "") ~= "" then return pending("the child would need the sanitizer's library") end
    local expected = engine.is_old(jit) and engine.text:format(jit.version) .. "\n" or ""
    assert.equal(expected, run(""))
    assert.equal("", run("MOTH_LUAJIT_WARNING=0"))
  end)
end)

describe("an engine that lacks something #noasan", function()
  if (os.getenv("LD_PRELOAD") or "") ~= "" then
    pending("the child would need the sanitizer's library")
    return
  end
  local computes = "print([[sum]], moth.ones(2, 2):sum():item())"

  -- What a program prints after this code, and what it says.
  local function after(code, program, interpreter)
    local pipe = io.popen(("env -u LD_PRELOAD -u MOTH_LUAJIT_WARNING LUA_INIT='%s' %s -e 'moth = require [[moth]] %s' \z
      2>&1"):format(code, interpreter or luajit, program or computes))
    local text = pipe:read("*a")
    pipe:close()
    return text
  end

  it("is used with its compiler off, or without one, and one line says that it is slow", function()
    local expected = engine.slow:format(jit.version) .. "\nsum\t4\n"
    assert.equal(expected, after("jit.off()"))
    assert.equal(expected, after("jit.opt = nil jit.off()"))
  end)

  it("is refused without FFI, in one sentence", function()
    local text = after("package.loaded.ffi = nil package.preload.ffi = nil")
    assert.matches("moth needs LuaJIT's FFI, and this LuaJIT has none: install one", text, 1, true)
    assert.is_nil(text:find("no field package.preload", 1, true))
  end)

  it("is refused where it is no LuaJIT, in one sentence", function()
    for _, interpreter in ipairs { "lua5.1", "lua5.2", "lua5.3", "lua5.4" } do
      if os.execute("command -v " .. interpreter .. " >/dev/null") == 0 then
        assert.matches("moth needs LuaJIT: run `luajit` or `moth`, not plain Lua", after("", nil, interpreter), 1, true)
      end
    end
    assert.matches("moth needs LuaJIT: run `luajit`", after("jit = nil"), 1, true)
  end)

  it("has no C compiler beside it: an extension says so, in one sentence", function()
    local text = after("", "print(pcall(moth.cpp_extension.load_inline, { name = [[x]], cpp_sources = [[int f;]] }))",
      "MOTH_LUAJIT_WARNING=0 CXX=/no/compiler " .. luajit)
    assert.matches("needs the compiler '/no/compiler', which does not run; install gcc and g++, or set CC and CXX",
      text, 1, true)
  end)

  it("runs the kernels that every processor of x86-64-v2 has", function()
    assert.equal("generic\t4\n", after("", "print(moth.cpu_level(), moth.ones(2, 2):sum():item())",
      "MOTH_LUAJIT_WARNING=0 MOTH_CPU=generic " .. luajit))
  end)
end)
