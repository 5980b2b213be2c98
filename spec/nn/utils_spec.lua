local moth = require "moth"
local nn = moth.nn

local function with_grads(...)
  local out = {}
  for i, g in ipairs({ ... }) do
    out[i] = nn.Parameter(moth.zeros(#g))
    out[i].grad = moth.tensor(g)
  end
  return out
end

describe("nn.utils #quick", function()
  it("clip_grad_norm_ returns the norm before and bounds it after #M192", function()
    local p = with_grads({ 3, 0 }, { 0, 4, 0 })
    p[3] = nn.Parameter(moth.zeros(2)) -- without a gradient
    assert.is_near(5, nn.utils.clip_grad_norm_(p, 1.0):item(), 1e-6)
    assert.is_near(1, nn.utils.grad_norm(p):item(), 1e-5)
    assert.is_near(0.6, p[1].grad[1]:item(), 1e-5)
    assert.is_near(1, nn.utils.clip_grad_norm_(p, 10):item(), 1e-5)
    assert.is_near(1, nn.utils.grad_norm(p):item(), 1e-5)
    p = with_grads({ 3, -7 })
    assert.equal(7, nn.utils.clip_grad_norm_(p, 1, { norm_type = math.huge }):item())
    assert.is_near(1, p[1].grad:abs():max():item(), 1e-5)
    assert.equal(0, nn.utils.clip_grad_norm_({}, 1):item())
    p = with_grads({ math.huge })
    assert.error_matches(function() nn.utils.clip_grad_norm_(p, 1, { error_if_nonfinite = true }) end,
      "norm of the gradients is inf")
    assert.error_matches(function() nn.utils.clip_grad_norm_(p, -1) end, "max_norm")
  end)

  it("clip_grad_value_ cuts each element", function()
    local p = with_grads({ 3, -0.5, -9 })
    nn.utils.clip_grad_value_(p, 1)
    assert.same({ 1, -0.5, -1 }, p[1].grad:totable())
  end)

  it("parameters as a vector and back", function()
    local m = nn.Linear(3, 2)
    local v = nn.utils.parameters_to_vector(m:parameters())
    assert.equal("[8]", tostring(v:size()))
    nn.utils.vector_to_parameters(v:detach() * 2, m:parameters())
    assert.is_true(nn.utils.parameters_to_vector(m:parameters()):allclose(v * 2))
    assert.error_matches(function() nn.utils.vector_to_parameters(moth.zeros(7), m:parameters()) end, "hold 8 numbers")
  end)

  it("pad_sequence fills up to the longest #M228", function()
    local a, lengths = nn.utils.pad_sequence({ moth.tensor({ 1, 2, 3 }), moth.tensor({ 4 }), moth.zeros(0) },
      { padding_value = -1 })
    assert.same({ { 1, 2, 3 }, { 4, -1, -1 }, { -1, -1, -1 } }, a:totable())
    assert.same({ 3, 1, 0 }, lengths:totable())
    assert.equal("[3, 2, 4]", tostring(nn.utils.pad_sequence({ moth.ones(3, 4), moth.ones(1, 4) },
      { batch_first = false }):size()))
  end)

  it("summary lists shapes and counts #M172", function()
    local text = nn.utils.summary(nn.Sequential(nn.Linear(784, 256), nn.ReLU()))
    assert.matches("0 (Linear)", text, 1, true)
    assert.matches("weight +%[256, 784%] +200,704", text)
    assert.matches("Parameters: 200,960", text, 1, true)
    local net = nn.Sequential(nn.Linear(4, 2), nn.Sequential(nn.Dropout()), nn.LSTM(2, 3))
    net[2]:eval()
    text = moth.summary(net, moth.randn(5, 1, 4))
    assert.matches("0 %(Linear%) +weight +%[2, 4%] +8  %[5, 1, 2%]\n", text)
    assert.matches("1.0 %(Dropout%) +%[5, 1, 2%]\n", text)
    assert.matches("2 %(LSTM%) [^\n]*  { %[5, 1, 3%], { %[1, 1, 3%], %[1, 1, 3%] } }\n", text)
    assert.same({ true, false, 0 }, { net.training, net[2].training, #net[1].weight:size() - 2 })
    assert.error_matches(function() moth.summary(net, moth.randn(5, 1, 3)) end, "in 0 %(Linear%)")
  end)

  it("commas, durations, bytes #M194", function()
    local fmt = moth.fmt
    assert.equal("269,322", fmt.commas(269322))
    assert.same({ "0", "999", "1,000", "-1,234,567", "1,234.5" },
      { fmt.commas(0), fmt.commas(999), fmt.commas(1000), fmt.commas(-1234567), fmt.commas(1234.5) })
    assert.equal("9,007,199,254,740,992", fmt.commas(2 ^ 53))
    assert.error_matches(function() fmt.commas("x") end, "expected a number")
    assert.same({ "0:07", "12:30", "1:02:03" }, { fmt.duration(7), fmt.duration(750), fmt.duration(3723) })
    assert.same({ "812 B", "1.5 KB" }, { fmt.bytes(812), fmt.bytes(1536) })
  end)
end)
