local moth = require "moth"
local nn, optim = moth.nn, moth.optim

describe("memory.leak_check", function()
  local line -- of mse_loss
  local function training(after)
    local net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    local opt = optim.Adam(net:parameters(), { lr = 1e-3 })
    local x, y = moth.randn(4, 8), moth.randn(4, 1)
    return function()
      opt:zero_grad()
      line = debug.getinfo(1, "l").currentline + 1
      local loss = moth.F.mse_loss(net(x), y)
      loss:backward()
      opt:step()
      after(loss)
    end
  end

  it("finds nothing in a clean loop", function()
    local r = moth.memory.leak_check(training(function(loss) return loss:item() end))
    assert.equal(0, #r.leaks, tostring(r))
    assert.is_truthy(tostring(r):find("no leak in 4 steps", 1, true))
  end)

  it("names the held loss by the line that made it, and who holds it #M347", function()
    local losses = {}
    local r = moth.memory.leak_check(training(function(loss) losses[#losses + 1] = loss end))
    local leak = r.leaks[1]
    assert.is_truthy(leak, tostring(r))
    assert.is_truthy(leak.line:find(("leak_spec.lua:%d: mse_loss"):format(line), 1, true), tostring(r))
    assert.is_truthy(leak.held_by:find("losses", 1, true), tostring(r))
    assert.equal(1, leak.per_step)
    assert.is_truthy(tostring(r):find("held by", 1, true))
  end)

  it("finds what a graph alone retains", function()
    local total = moth.zeros(1)
    local step = training(function(loss) total = total + loss end) -- instead of loss:item()
    local r = moth.memory.leak_check(step, { steps = 5, warmup = 1 })
    assert.is_true(#r.leaks >= 1, tostring(r))
    assert.is_true(r.bytes_per_step > 0)
  end)

  it("lists who holds tensors", function()
    local mine = { deep = { moth.zeros(700, 700) } }
    local list = moth.memory.holders(5)
    assert.is_truthy(list[1].path:find("mine.deep[1] (local at", 1, true), list[1].path)
    assert.equal(700 * 700 * 4, list[1].bytes)
    assert.error_matches(function() moth.memory.leak_check(3) end, "expected a function")
    assert.error_matches(function() moth.memory.leak_check(function() end, { steps = 1 }) end, "three are needed")
    return mine
  end)
end)
