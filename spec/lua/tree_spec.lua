local moth = require "moth"
local fails = require "fails"
local tree = moth.tree

describe("moth.tree", function()
  local x, y, z = moth.ones(2), moth.zeros(3), moth.full({ 1 }, 5)
  local nested = { x, { b = y, c = "text", [1] = 7, a = { z } }, {} }

  it("map applies a function to each end and keeps the structure #M066", function()
    local out = tree.map(function(v) return moth.is_tensor(v) and v + 1 or v end, nested)
    assert.is_true(out[1]:equal(x + 1))
    assert.is_true(out[2].b:equal(y + 1))
    assert.is_true(out[2].a[1]:equal(z + 1))
    assert.equal(7, out[2][1])
    assert.equal("text", out[2].c)
    assert.same({}, out[3])
    assert.is_true(x:equal(moth.ones(2)))
    assert.same({ 11, { k = 22 } }, tree.map(function(a, b) return a + b end, { 1, { k = 2 } }, { 10, { k = 20 } }))
    assert.equal(3, tree.map(function(v) return v + 1 end, 2))
    local shape = x:size() -- has a metatable: an end
    assert.equal(shape, tree.map(function(v) return v end, { shape })[1])
  end)

  it("flatten and unflatten undo each other, in one order #M066", function()
    local list, spec = tree.flatten(nested)
    assert.same({ x, 7, z, y, "text" }, list)
    assert.same(nested, tree.unflatten(list, spec))
    local copy = tree.unflatten({ 1, 2, 3, 4, false }, spec)
    assert.same({ 1, { 2, a = { 3 }, b = 4, c = false }, {} }, copy)
    assert.equal(9, tree.unflatten({ 9 }, (select(2, tree.flatten(1)))))
  end)

  it("says what does not fit", function()
    local _, spec = tree.flatten({ 1, { 2 } })
    fails("tree_spec.lua:%d+: tree.unflatten: the list ends at 1", function() tree.unflatten({ 1 }, spec) end)
    fails("more values than the tree's 2 ends", tree.unflatten, { 1, 2, 3 }, spec)
    fails("'spec' is missing", tree.unflatten, { 1 })
    fails("what tree.flatten gave", tree.unflatten, { 1 }, 2)
    fails("tree 2 has no field 'k'", tree.map, print, { k = 1 }, { j = 1 })
    fails("expected a function", tree.map, {}, {})
    local loop = {}
    loop[1] = loop
    fails("contains itself", tree.map, print, loop)
    fails("contains itself", tree.flatten, loop)
  end)
end)
