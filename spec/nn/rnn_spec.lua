-- Recurrent layers against their formulas in plain numbers, and the layers against their cells. Against PyTorch:
-- spec/parity/modules.lua.
local moth = require "moth"
local nn = moth.nn

local function close(a, b) assert.is_true(moth.allclose(a, b, 1e-5, 1e-6)) end
local function sigmoid(x) return 1 / (1 + math.exp(-x)) end

-- The parameters of a cell of one input and one unit become numbers: gate k has weights k / 10, -k / 20 and biases
-- 0.1 k, 0.2.
local function numbers(cell, gates)
  moth.no_grad(function()
    for k = 1, gates do
      cell.weight_ih[{ k, 1 }], cell.weight_hh[{ k, 1 }] = k / 10, -k / 20
      cell.bias_ih[k], cell.bias_hh[k] = 0.1 * k, 0.2
    end
  end)
  return function(k, x, h) return k / 10 * x + 0.1 * k, -k / 20 * h + 0.2 end -- of the input, of the state
end

describe("recurrent cells #quick", function()
  local x, h, c = 0.7, -0.4, 0.3
  local X, H, C = moth.tensor { { x } }, moth.tensor { { h } }, moth.tensor { { c } }

  it("RNNCell", function()
    local cell = nn.RNNCell(1, 1)
    local part = numbers(cell, 1)
    local a, b = part(1, x, h)
    assert.is_near(math.tanh(a + b), cell(X, H):item(), 1e-6)
    cell = nn.RNNCell(1, 1, { nonlinearity = "relu" })
    numbers(cell, 1)
    assert.is_near(math.max(0, a + b), cell(X, H):item(), 1e-6)
  end)

  it("LSTMCell", function()
    local cell = nn.LSTMCell(1, 1)
    local part, gate = numbers(cell, 4), {}
    for k = 1, 4 do
      local a, b = part(k, x, h)
      gate[k] = k == 3 and math.tanh(a + b) or sigmoid(a + b)
    end
    local new_h, new_c = cell(X, { H, C })
    local want = gate[2] * c + gate[1] * gate[3]
    assert.is_near(want, new_c:item(), 1e-6)
    assert.is_near(gate[4] * math.tanh(want), new_h:item(), 1e-6)
    assert.error_matches(function() cell(X, H) end, "h, c = cell%(x, { h, c }%)")
  end)

  it("GRUCell", function()
    local cell = nn.GRUCell(1, 1)
    local part = numbers(cell, 3)
    local a, b = part(1, x, h)
    local r = sigmoid(a + b)
    a, b = part(2, x, h)
    local z = sigmoid(a + b)
    a, b = part(3, x, h)
    local n = math.tanh(a + r * b)
    assert.is_near((1 - z) * n + z * h, cell(X, H):item(), 1e-6)
  end)
end)

describe("recurrent layers", function()
  for _, kind in ipairs { "RNN", "LSTM", "GRU" } do
    it(kind .. " is its cell at every step; layers and directions follow", function()
      local T, N, I, H = 5, 3, 4, 6
      local m, cell = nn[kind](I, H), nn[kind .. "Cell"](I, H)
      for _, name in ipairs { "weight_ih", "weight_hh", "bias_ih", "bias_hh" } do cell[name] = m[name .. "_l0"] end
      local x, state = moth.randn(T, N, I), nil
      local out, last = m(x)
      for t = 1, T do
        local new_h, new_c = cell(x[t], state)
        state = new_c and { new_h, new_c } or new_h
        close(out[t], new_h)
      end
      local h, c = last, nil
      if kind == "LSTM" then h, c = unpack(last) end
      close(h[1], out[T])
      if c then close(c[1], state[2]) end
      -- In two pieces, the state handed on.
      local first, between = m(x:narrow(1, 1, 2))
      close(moth.cat({ first, (m(x:narrow(1, 3, 3), between)) }), out)
      -- Both directions: the second is the first of the sequence from its end.
      local both = nn[kind](I, H, { bidirectional = true })
      local y = both(x)
      for _, name in ipairs { "weight_ih", "weight_hh", "bias_ih", "bias_hh" } do
        m[name .. "_l0"] = both[name .. "_l0_reverse"]
      end
      close(y:narrow(3, H + 1, H), m(x:flip(1)):flip(1))
      -- Two layers.
      local deep = nn[kind](I, H, { num_layers = 2 })
      local one, two = nn[kind](I, H), nn[kind](H, H)
      for _, name in ipairs { "weight_ih", "weight_hh", "bias_ih", "bias_hh" } do
        one[name .. "_l0"], two[name .. "_l0"] = deep[name .. "_l0"], deep[name .. "_l1"]
      end
      close((deep(x)), (two((one(x)))))
      -- batch_first, and without a batch.
      local b = nn[kind](I, H, { batch_first = true })
      b:load_state_dict(one:state_dict())
      close((b(x:transpose(1, 2))):transpose(1, 2), (one(x)))
      close((one(x[{ {}, 1 }])), (one(x))[{ {}, 1 }])
    end)
  end

  it("learn to add what they have seen", function()
    moth.manual_seed(3)
    local x = moth.randn(32, 4, 1)
    local want = x:sum(2)
    local m, head = nn.LSTM(1, 16, { batch_first = true }), nn.Linear(16, 1)
    local params = m:parameters()
    for _, p in ipairs(head:parameters()) do params[#params + 1] = p end
    local opt, loss = moth.optim.Adam(params, { lr = 1e-2 }), nil
    for _ = 1, 120 do
      opt:zero_grad()
      local out = m(x)
      loss = moth.mse_loss(head(out[{ {}, -1 }]), want)
      loss:backward()
      opt:step()
    end
    assert.is_true(loss:item() < 0.05 * want:var():item(), tostring(loss:item()))
  end)

  it("say what they cannot do", function()
    local m = nn.LSTM(3, 4)
    assert.error_matches(function() m(moth.ones(2, 1, 5)) end, "input_size %(3%)")
    assert.error_matches(function() m(moth.ones(2)) end, "2 or 3 dimensions")
    assert.error_matches(function() m(moth.ones(0, 1, 3)) end, "empty")
    assert.error_matches(function() m(moth.ones(2, 1, 3), moth.ones(1, 1, 4)) end, "{ h, c }")
    assert.error_matches(function() m(moth.ones(2, 1, 3), { moth.ones(1, 2, 4), moth.ones(1, 1, 4) }) end,
      "state of shape %[1, 1, 4%]")
    assert.error_matches(function() nn.RNN(3, 4, { nonlinearity = "gelu" }) end, "tanh")
    assert.error_matches(function() nn.RNN(3, 4, 1e10) end,
      "'num_layers': expected an integer from 0 to 10000, got 10000000000")
    assert.error_matches(function() nn.RNN(3, 4, 0) end, "num_layers must be at least 1")
    assert.equal("LSTM(3, 4, num_layers=2, batch_first=True)",
      tostring(nn.LSTM(3, 4, { num_layers = 2, batch_first = true })))
  end)
end)

describe("packed sequences #quick", function()
  local rnn = nn.utils.rnn
  local lengths = { 2, 5, 3, 5 }
  local function sequences(size)
    local list = {}
    for i, n in ipairs(lengths) do list[i] = moth.randn({ n, size }, { dtype = moth.float64 }) end
    return list
  end

  it("pack, pad and unpack are inverse, with and without order", function()
    local list = sequences(2)
    local packed = rnn.pack_sequence(list, false)
    assert.same({ 4, 4, 3, 2, 2 }, packed.batch_sizes:totable())
    local x, counts = rnn.pad_packed_sequence(packed, true, -1, 7)
    assert.equal("[4, 7, 2]", tostring(x:size()))
    assert.same(lengths, counts:totable())
    assert.equal(-1, x[1][3][1]:item())
    for i, t in ipairs(rnn.unpack_sequence(packed)) do assert.is_true(t:equal(list[i])) end
    assert.is_true(rnn.pad_sequence(list, true, 0, "left")[1][4]:equal(list[1][1]))
    assert.error_matches(function() rnn.pack_sequence(list) end, "lengths must not rise; give enforce_sorted = false")
    assert.error_matches(function() rnn.pad_packed_sequence(3) end, "expected a packed sequence, got number")
    assert.error_matches(function() rnn.pack_padded_sequence(x, { 9, 1, 1, 1 }, true) end,
      "a length of 9 in a sequence")
  end)

  it("give each sequence what it gives alone", function()
    for _, m in ipairs { nn.LSTM(3, 4, 2, { bidirectional = true }), nn.GRU(3, 4, { bidirectional = true }),
      nn.RNN(3, 4, 2), nn.LSTM(3, 4, { proj_size = 2, bidirectional = true }) } do
      m:double()
      local list = sequences(3)
      local out, state = m(rnn.pack_sequence(list, false))
      local h = type(state) == "table" and state[1] or state
      for i, y in ipairs(rnn.unpack_sequence(out)) do
        local want, last = m(list[i])
        assert.is_true(y:allclose(want, 1e-9, 1e-12))
        assert.is_true(h:select(2, i):allclose(type(last) == "table" and last[1] or last, 1e-9, 1e-12))
      end
    end
  end)
end)

describe("the fused layers #quick", function()
  it("are their cells, step by step, forward and backward", function()
    for kind, layer in pairs { LSTM = nn.LSTM(3, 5):double(), GRU = nn.GRU(3, 5):double() } do
      local cell = nn[kind .. "Cell"](3, 5):double()
      for _, name in ipairs { "weight_ih", "weight_hh", "bias_ih", "bias_hh" } do
        cell[name]:detach():copy_(layer[name .. "_l0"])
      end
      local x = moth.randn({ 4, 11, 3 }, { dtype = moth.float64 })
      local state
      local sum = 0
      for t = 1, 4 do
        local h, c = cell(x[t], state)
        state = c and { h, c } or h
        sum = sum + h:sin():sum()
      end
      local out, last = layer(x)
      assert.is_near(sum:item(), out:sin():sum():item(), 1e-10)
      if kind == "LSTM" then
        sum, out = sum + state[2]:sum(), out:sin():sum() + last[2]:sum()
      else
        out = out:sin():sum()
      end
      sum:backward()
      out:backward()
      for _, name in ipairs { "weight_ih", "weight_hh", "bias_ih", "bias_hh" } do
        assert.is_true(cell[name].grad:allclose(layer[name .. "_l0"].grad, 1e-9, 1e-11), kind .. name)
      end
    end
  end)
  it("do not depend on the number of threads", function()
    local was = moth.get_num_threads()
    local x, w = moth.randn(6, 33, 4 * 40), moth.randn(160, 40)
    local h, c = moth.randn(33, 40), moth.randn(33, 40)
    moth.set_num_threads(1)
    local one = moth.lstm_layer(x, w, h, c)
    moth.set_num_threads(2)
    assert.is_true(one:equal((moth.lstm_layer(x, w, h, c))))
    moth.set_num_threads(was)
  end)
  it("leave their results, not what is inside, to the collector", function()
    local T, N, H = 32, 16, 64
    for _, kind in ipairs { "GRU", "LSTM" } do
      local net, x = nn[kind](H, H, { num_layers = 2 }), moth.randn(T, N, H)
      local results = (kind == "LSTM" and 2 or 1) * 2 * T * N * H * 4 -- h, and c, of two layers
      local function run() moth.no_grad(function() net(x) end) end
      run()
      collectgarbage()
      collectgarbage()
      collectgarbage "stop"
      finally(function() collectgarbage "restart" end)
      local before = moth.memory.stats().live
      run()
      local more = moth.memory.stats().live - before
      collectgarbage "restart"
      assert.is_true(more < results + 2 ^ 18, ("%s leaves %d bytes, its results are %d"):format(kind, more, results))
    end
  end)
  it("project h where proj_size says so", function()
    local m = nn.LSTM(3, 6, 2, { proj_size = 2, bidirectional = true })
    local out, state = m(moth.randn(4, 5, 3))
    assert.same({ "[4, 5, 4]", "[4, 5, 2]", "[4, 5, 6]" }, { tostring(out:size()), tostring(state[1]:size()),
      tostring(state[2]:size()) })
    assert.error_matches(function() nn.LSTM(3, 4, { proj_size = 4 }) end, "proj_size must be smaller than hidden_size")
  end)
end)
