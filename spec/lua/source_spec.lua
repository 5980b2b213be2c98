-- Text that records, users and files give is compiled as source: LuaJIT runs bytecode unverified.
local moth = require "moth"
local source = require "moth.lang.source"
local records = require "moth.records"
local bytecode = string.dump(function() return 1 end)

describe("text that is compiled #quick", function()
  it("is an expression or statements, with its name in messages", function()
    assert.equal(3, source.chunk("1 + 2", "=here")())
    assert.equal(5, source.chunk("local a = 5\nreturn a", "=here")())
    local chunk, message = source.chunk("local a =", "=here")
    assert.is_nil(chunk)
    assert.matches("^here:1: ", message)
  end)

  it("is never bytecode", function()
    for _, name in ipairs { "chunk", "statements" } do
      local chunk, message = source[name](bytecode, "=here")
      assert.is_nil(chunk)
      assert.equal("this is bytecode; give source text", message)
    end
    local lib = moth.library "bytes"
    local ok, message = pcall(lib.define, lib, "f(Tensor x) -> Tensor", { expr = bytecode })
    lib:destroy()
    assert.is_false(ok)
    assert.matches("this is bytecode", message)
    local loop = { name = "looped", loop = bytecode, args = { { name = "x", type = "TENSOR" } }, nresults = 1 }
    ok, message = pcall(records.loops.gather, loop, { x = moth.ones(2) }, { 2 }, "float32", "cpu")
    assert.is_false(ok)
    assert.matches("this is bytecode", message)
  end)

  it("is source in a script of %run, too", function()
    local path = os.tmpname()
    local f = assert(io.open(path, "wb"))
    f:write(bytecode)
    f:close()
    local repl = require "moth.repl"
    local session = repl.session { call = pcall }
    local run = require("moth.repl.commands").find("%run " .. path)
    local ok, message = pcall(run, session)
    os.remove(path)
    assert.is_false(ok)
    assert.matches("this is bytecode", message)
  end)
end)
