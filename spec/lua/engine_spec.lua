-- The warning about an old LuaJIT, and when there is none.
local engine = require "moth.utils.engine"

local function run(env)
  local pipe = io.popen(("env -u LD_PRELOAD -u MOTH_LUAJIT_WARNING %s %s -e 'require [[moth]] require [[moth]]' 2>&1")
    :format(env, arg[-1] or "luajit"))
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
