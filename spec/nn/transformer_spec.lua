-- Transformer layers against the same steps by hand; masks; copies. Against PyTorch: spec/parity/modules.lua.
local moth = require "moth"
local nn = moth.nn

local function close(a, b) assert.is_true(moth.allclose(a, b, 1e-4, 1e-5)) end
local layer_options = { dim_feedforward = 16, dropout = 0, batch_first = true }

describe("TransformerEncoderLayer #quick", function()
  it("is attention and a network of two layers, each with what came in added and normalised", function()
    local x = moth.randn(2, 5, 8)
    for _, first in ipairs { false, true } do
      local m = nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, dropout = 0.5, batch_first = true,
        norm_first = first, activation = "gelu" }):eval()
      local function attend(t) return (m.self_attn(t, t, t)) end
      local function network(t) return m.linear2(m.linear1(t):gelu()) end
      local want
      if first then
        want = x + attend(m.norm1(x))
        want = want + network(m.norm2(want))
      else
        want = m.norm1(x + attend(x))
        want = m.norm2(want + network(want))
      end
      close(m(x), want)
      assert.is_false(moth.allclose(m:train()(x), want)) -- dropout
    end
  end)

  it("sees nothing that comes later under is_causal, and nothing that is padding", function()
    local m = nn.TransformerEncoderLayer(8, 2, layer_options)
    local x = moth.randn(2, 5, 8)
    local changed = x:clone()
    changed[{ {}, 5 }] = 9
    close(m(x, { is_causal = true }):narrow(2, 1, 4), m(changed, { is_causal = true }):narrow(2, 1, 4))
    assert.is_false(moth.allclose(m(x):narrow(2, 1, 4), m(changed):narrow(2, 1, 4)))
    local mask = nn.Transformer.generate_square_subsequent_mask(5)
    close(m(x, { is_causal = true }), m(x, { src_mask = mask }))
    local padding = moth.zeros(2, 5):to(moth.bool)
    padding[{ {}, 5 }] = true
    close(m(x, { src_key_padding_mask = padding }):narrow(2, 1, 4),
      m(changed, { src_key_padding_mask = padding }):narrow(2, 1, 4))
  end)

  it("takes (T, N, E), (T, E), and says what it does not take", function()
    local m = nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, dropout = 0 })
    local x = moth.randn(5, 8)
    close(m(x), m(x:unsqueeze(2)):squeeze(2))
    assert.error_matches(function() nn.TransformerEncoderLayer(8, 3) end, "multiple of nhead")
    assert.error_matches(function() nn.TransformerEncoderLayer(8, 2, { activation = "swish" }) end,
      "'activation': expected")
    assert.error_matches(function() m(x, { mask = 1 }) end, "unknown option 'mask'")
  end)
end)

describe("TransformerEncoder and TransformerDecoder", function()
  it("are layers with values of their own, one after the other, and train", function()
    local layer = nn.TransformerEncoderLayer(8, 2, layer_options)
    local m = nn.TransformerEncoder(layer, 3, { norm = nn.LayerNorm(8) })
    local x = moth.randn(2, 5, 8)
    local want = x
    for _ = 1, 3 do want = layer(want) end -- copies begin with the values of the layer
    close(m(x), m.norm(want))
    assert.equal(3 * layer:num_parameters() + 16, m:num_parameters())
    local opt = moth.optim.Adam(m:parameters(), { lr = 1e-2 })
    local target, first = moth.randn(2, 5, 8), nil
    local loss
    for _ = 1, 30 do
      opt:zero_grad()
      loss = moth.mse_loss(m(x), target)
      first = first or loss:item()
      loss:backward()
      opt:step()
    end
    assert.is_true(loss:item() < 0.5 * first)
    assert.is_false(moth.equal(m.layers[1].linear1.weight, m.layers[2].linear1.weight))
    local names = {}
    for name in m:named_parameters() do names[#names + 1] = name end
    assert.equal("layers.0.self_attn.in_proj_weight", names[1])
  end)

  it("the decoder looks at memory, and only back at itself", function()
    local m = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, layer_options), 2)
    local tgt, memory = moth.randn(2, 4, 8), moth.randn(2, 6, 8)
    local out = m(tgt, memory, { tgt_is_causal = true })
    assert.equal("[2, 4, 8]", tostring(out:size()))
    local later, other = tgt:clone(), memory:clone()
    later[{ {}, 4 }] = 7
    other[{ {}, 6 }] = 7
    close(out:narrow(2, 1, 3), m(later, memory, { tgt_is_causal = true }):narrow(2, 1, 3))
    assert.is_false(moth.allclose(out, m(tgt, other, { tgt_is_causal = true })))
  end)

  it("Transformer puts both together", function()
    local m = nn.Transformer { d_model = 8, nhead = 2, num_encoder_layers = 1, num_decoder_layers = 2,
      dim_feedforward = 16, dropout = 0, batch_first = true }
    local src, tgt = moth.randn(2, 6, 8), moth.randn(2, 4, 8)
    close(m(src, tgt, { tgt_is_causal = true }), m.decoder(tgt, m.encoder(src), { tgt_is_causal = true }))
  end)
end)

describe("clone", function()
  it("gives a module its own parameters and buffers, tied ones tied, and leaves the first alone", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(3, 4))
    net[3].weight = net[1].weight
    net[1].bias:requires_grad_(false)
    local calls = 0
    net:register_forward_pre_hook(function() calls = calls + 1 end)
    local copy = net:clone()
    assert.equal(tostring(net), tostring(copy))
    for name, p in copy:named_parameters() do
      local own
      for other, q in net:named_parameters() do if other == name then own = q end end
      assert.is_true(moth.equal(own, p))
      assert.is_false(own:shares_storage(p))
      assert.equal(own:requires_grad(), p:requires_grad())
      assert.is_true(p:is_leaf())
    end
    assert.is_true(rawequal(copy[1].weight, copy[3].weight))
    copy:get_submodule("1")(moth.randn(5, 4)) -- changes its own statistics
    assert.is_false(moth.equal(net[2].running_mean, copy[2].running_mean))
    moth.no_grad(function() copy[1].weight:zero_() end)
    assert.is_true(net[1].weight:abs():sum():item() > 0)
    nn.Sequential(nn.Linear(1, 1)):clone()(moth.ones(1, 1))
    assert.equal(0, calls)
    pcall(copy, moth.ones(1, 3))
    assert.equal(1, calls)
  end)
end)
