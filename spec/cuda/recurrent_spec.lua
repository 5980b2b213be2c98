-- nn.LSTM, nn.GRU and CTC on the device: the values and gradients of the CPU, by kernels of their own.
local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional

local function close(a, b, what)
  assert.is_true(moth.allclose(a:cpu(), b:cpu(), { rtol = 1e-4, atol = 1e-5, equal_nan = true }), what)
end

-- fn on both devices: its results, and gradients of the list of leaves, are equal.
local function same(make, fn)
  local out = {}
  for i, device in ipairs { "cpu", "cuda" } do
    moth.manual_seed(3)
    local leaves = make(device)
    local y = fn(leaves, device)
    y:sum():backward()
    out[i] = { y:detach() }
    for _, leaf in ipairs(leaves) do table.insert(out[i], leaf.grad) end
  end
  for k, t in ipairs(out[1]) do close(t, out[2][k], "result " .. k) end
end

describe("on CUDA", function()
  it("recurrent layers are one op for all steps", function()
    if not moth.cuda.is_available() then return pending(moth.cuda.why()) end
    for _, kind in ipairs { "LSTM", "GRU" } do
      for _, o in ipairs { {}, { bidirectional = true }, { bias = false } } do
        same(function(device)
          local layer = nn[kind](3, 33, 2, o):to(device)
          local leaves = layer:parameters()
          leaves.layer = layer
          return leaves
        end, function(leaves, device)
          local x = moth.rand(7, 5, 3):to(device)
          local _, calls = moth.dispatch.count(function() return leaves.layer(x) end)
          assert.equal(2 * (o.bidirectional and 2 or 1), calls[kind:lower() .. "_layer"])
          return (leaves.layer(x)):sin()
        end)
      end
    end
  end)

  it("packed sequences have their lengths", function()
    if not moth.cuda.is_available() then return pending(moth.cuda.why()) end
    local lstm, rnn = nn.LSTM(3, 4, { bidirectional = true }), nn.utils.rnn
    local list = { moth.randn(2, 3), moth.randn(5, 3), moth.randn(4, 3) }
    local here = rnn.pad_packed_sequence((lstm(rnn.pack_sequence(list, false))))
    lstm:cuda()
    for i, t in ipairs(list) do list[i] = t:cuda() end
    close(here, (rnn.pad_packed_sequence((lstm(rnn.pack_sequence(list, false))))))
  end)

  it("CTC has the loss and the gradient of the CPU, of long targets too", function()
    if not moth.cuda.is_available() then return pending(moth.cuda.why()) end
    for _, S in ipairs { 0, 3, 90 } do
      local T, N, C = 2 * S + 3, 3, 5
      same(function(device) return { moth.randn(T, N, C):to(device):requires_grad_() } end, function(leaves, device)
        local targets = moth.randint(2, C + 1, { N, S }):to(moth.int64):to(device)
        return F.ctc_loss(leaves[1]:log_softmax(3), targets, { T, T - 1, 1 }, { S, math.floor(S / 2), S },
          { reduction = "none", zero_infinity = true })
      end)
    end
    local log_probs = moth.randn(4, 1, 3):log_softmax(3):cuda()
    local target = moth.full({ 1, 1 }, 4, { dtype = moth.int64 }):cuda()
    assert.error_matches(function() F.ctc_loss(log_probs, target, 4, 1) end, "class 4 is out of range")
  end)
end)
