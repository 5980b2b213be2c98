-- Scatters in place write to their target alone: no copy of it is made, and it is as before where an index is wrong.
local moth = require "moth"
local function int(t) return moth.tensor(t, { dtype = moth.int64 }) end

describe("a scatter in place #quick", function()
  it("gives what the other form gives, of all layouts and overlaps", function()
    for name in ("float32 float16 complex64 int32"):gmatch "%S+" do
      local x = moth.arange(12):to(moth[name]):view(4, 3)
      local s, at = moth.ones(3, 3):to(moth[name]), int { 1, 4, 4 }
      local y = x:clone()
      assert.equal(y, y:index_add_(1, at, s))
      assert.is_true(moth.equal(y, moth.index_add(x, 1, at, s)))
      y = x:clone()
      y:t():index_add_(2, at, s)
      assert.is_true(moth.equal(y, moth.index_add(x:t(), 2, at, s):t()))
      y = x:clone()
      moth.index_add(y, 1, at, s, { out = y })
      assert.is_true(moth.equal(y, moth.index_add(x, 1, at, s)))
      y = x:clone()
      y:index_add_(1, at, y:narrow(1, 1, 3))
      assert.is_true(moth.equal(y, moth.index_add(x, 1, at, x:narrow(1, 1, 3))))
      y = x:clone()
      y:index_copy_(1, int { 2, 3, 2 }, y:narrow(1, 2, 3))
      assert.is_true(moth.equal(y, moth.index_copy(x, 1, int { 2, 3, 2 }, x:narrow(1, 2, 3))))
      local places = int { { 1, 2, 3 }, { 4, 1, 1 } }
      for _, op in ipairs { "scatter", "scatter_add" } do
        y = x:clone()
        y[op .. "_"](y, 1, places, y:narrow(1, 1, 2))
        assert.is_true(moth.equal(y, moth[op](x, 1, places, x:narrow(1, 1, 2))))
      end
      y = x:clone()
      assert.is_false(pcall(y.index_add_, y, 1, int { 1, 9, 2 }, s))
      assert.is_true(moth.equal(x, y))
    end
  end)

  it("takes no memory of the target's size", function()
    local table_of, at, rows = moth.zeros(4096, 64), int { 3, 4000 }, moth.ones(2, 64)
    table_of:index_add_(1, at, rows)
    local live = moth.memory.stats().live
    moth.memory.reset_peak()
    table_of:index_add_(1, at, rows)
    table_of:index_copy_(1, at, rows)
    assert.is_true(moth.memory.stats().peak - live < 65536)
  end)
end)
