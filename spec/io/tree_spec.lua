-- Files of moth.save whose checksum is right, but whose description of the table is damaged.
local moth = require "moth"
local B = require "moth_lua"

describe("a damaged description in a checkpoint #quick", function()
  local path = os.tmpname()
  teardown(function() os.remove(path) end)

  local function with(value, old, new)
    moth.save(value, path)
    local names, tensors, metadata = B.load_safetensors(path)
    for i, t in ipairs(tensors) do tensors[i] = t:clone() end
    local n
    metadata["moth.tree"], n = metadata["moth.tree"]:gsub(old, new)
    assert.is_true(n > 0, metadata["moth.tree"] .. old)
    local pairs_of = { { "moth.sha256", ("0"):rep(64) } }
    for _, key in ipairs { "format", "moth.format", "moth.version", "moth.tree" } do
      pairs_of[#pairs_of + 1] = { key, metadata[key] }
    end
    B.save_safetensors(path, names, tensors, pairs_of, true)
    return moth.load(path)
  end
  local function refused(pattern, ...)
    local ok, message = pcall(with, ...)
    assert.is_false(ok)
    assert.matches(pattern, message)
    assert.is_nil(message:find("attempt to", 1, true), message)
  end

  it("is an error that names the file, of values, keys and lists", function()
    local damaged = "%[load%] .*: the description of the table is damaged"
    assert.same({ 1, x = "y" }, with({ 1, x = "y" }, '"y"', '"y"'))
    refused(damaged, { 1, 2 }, '"a":%[', '"a":7,"b":[')
    refused(damaged, { x = 1 }, '"h":%[', '"h":"7","b":[')
    refused(damaged, { x = 1 }, '%["s","x"', '["n","x"')
    refused(damaged, { x = 1 }, '%["s","x"', '["s",null')
    refused(damaged, { x = 1 }, '%["s","x",{[^}]*}%]', "7")
    refused(damaged, { x = 1 }, '"v":"1"', '"v":"one"')
    refused(damaged, { x = 5LL }, "5LL", "5")
    refused(damaged, { x = "\255" }, '"v":"ff"', '"v":7')
    refused(damaged, { x = "text" }, '"v":"text"', '"v":[1]')
    refused("there is no dtype 'int9'", { x = moth.int8 }, "int8", "int9")
    refused("tensor 'y' is missing", { x = moth.ones(1) }, '"v":"x"', '"v":"y"')
    refused(damaged, { x = moth.ones({ 1 }, { dtype = moth.int64 }) }, '"k":"x"', '"g":true,"k":"x"')
    refused(damaged, { x = moth.ones(3) }, '"k":"x"', '"k":"c"')
  end)

  it("is an error of a sparse tensor, whose positions are checked", function()
    local s = moth.eye(3):to_sparse()
    assert.is_true(moth.equal(with({ s = s }, '"3"', '"3"').s:to_dense(), moth.eye(3)))
    refused("a sparse tensor is damaged: .*must be positions from 1 to 2, got 3", { s = s }, '"v":"3"', '"v":"2"')
    refused("a sparse tensor is damaged", { s = moth.eye(3):to_sparse_csr() }, '"v":"3"', '"v":"2"')
  end)
end)
