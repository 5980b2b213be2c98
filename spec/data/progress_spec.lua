local progress = require("moth").utils.progress

-- A bar over a string and a clock of our own.
local function bar(total, o)
  local text, time = {}, 0
  o.out = { write = function(_, ...) text[#text + 1] = table.concat({ ... }) end, flush = function() end }
  o.clock = function() return time end
  local b = progress(total, o)
  return b, function(seconds) time = time + seconds end, function() return table.concat(text) end
end

describe("progress #quick", function()
  it("draws one line on a terminal and erases it", function()
    local b, wait, text = bar(4, { tty = true, label = "Epoch 1", unit = "batch" })
    wait(1)
    b:update(1, "loss 0.5")
    assert.equal("\rEpoch 1 [======                  ]  25% 1/4 1.0 batch/s ETA 0:03 loss 0.5\27[K", text())
    local before = text()
    b:update() -- too soon to draw again
    assert.equal(before, text())
    wait(1)
    b:update(2)
    assert.matches("100%% 4/4 2.0 batch/s ETA 0:00 loss 0.5", text())
    b:finish("done")
    assert.matches("\r\27[K", text(), 1, true)
    assert.matches("done\n$", text())
  end)

  it("writes a plain line now and then elsewhere", function()
    local b, wait, text = bar(100, { tty = false, interval = 5 })
    for _ = 1, 12 do
      wait(1)
      b:update()
    end
    assert.equal("  5% 5/100 1.0 it/s ETA 1:35\n 10% 10/100 1.0 it/s ETA 1:30\n", text())
    b:finish()
  end)

  it("does without a total", function()
    local b, wait, text = bar(nil, { tty = false, interval = 1 })
    wait(2)
    b:update(30)
    assert.equal("30 it 15 it/s\n", text())
  end)
end)
