-- The binding, require "moth_lua", with arguments of all wrong kinds: in a process of its own, in a folder of its own.
local build = os.getenv("MOTH_BUILD") or "build"
local cases = tonumber(os.getenv("MOTH_CASES"))

describe("the binding", function()
  it("answers random arguments by values or readable errors", function()
    local folder = os.tmpname()
    os.remove(folder)
    os.execute("mkdir " .. folder)
    finally(function() os.execute("rm -rf " .. folder) end)
    local pipe = assert(io.popen("pwd"))
    local here = pipe:read("*l")
    pipe:close()
    if build:sub(1, 1) ~= "/" then build = here .. "/" .. build end
    pipe = assert(io.popen(([[cd %s && LUA_PATH="%s/lua/?.lua;%s/lua/?/init.lua;%s/gen/?.lua;;" LUA_CPATH="%s/?.so;;" \
      exec %s %s/spec/fuzz/binding.lua %d %d 2>&1]]):format(folder, here, here, build, build,
      os.getenv("LUAJIT") or "luajit", here, tonumber(os.getenv("MOTH_SEED")) or 1, cases and cases * 1000 or 20000)))
    local text = pipe:read("*a")
    pipe:close()
    assert.is_truthy(text:find("%d+ calls of %d%d%d+ functions, %d+ returned\n$"), text:sub(-4000))
    assert.is_falsy(text:find("ERROR: ", 1, true), text:sub(-4000))
  end)
end)
