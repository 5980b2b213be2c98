-- Tensors that a module computes each time its field is read (parametrizations, pruning): what is written to them would
-- be lost, so it is an error; what keeps a write is allowed.
local moth = require "moth"
local nn = moth.nn
local parametrizations, prune = nn.utils.parametrizations, nn.utils.prune

local made = {
  weight_norm = function() return parametrizations.weight_norm(nn.Linear(3, 2)) end,
  spectral_norm = function() return parametrizations.spectral_norm(nn.Linear(3, 2)) end,
  orthogonal = function() return parametrizations.orthogonal(nn.Linear(3, 2)) end,
  pruned = function() return prune.l1_unstructured(nn.Linear(3, 2), "weight", 0.5) end,
}
local writes = {
  init = function(w) nn.init.zeros_(w) end,
  normal = function(w) nn.init.xavier_normal_(w) end,
  copy = function(w) w:copy_(moth.ones(2, 3)) end,
  no_grad = function(w) moth.no_grad(w.add_, w, 1) end,
  detached = function(w) w:detach():zero_() end,
  data = function(w) w.data:zero_() end,
  view = function(w) w:detach():t()[1]:copy_(moth.ones(2)) end,
  row = function(w) moth.no_grad(function() w[1] = 5 end) end,
  element = function(w) w:detach()[{ 1, 2 }] = 5 end,
  masked = function(w) moth.no_grad(function() w[w:gt(0)] = 0 end) end,
  out = function(w) moth.add(moth.ones(2, 3), 1, { out = w:detach() }) end,
  vector = function(w) nn.utils.vector_to_parameters(moth.zeros(6), { w }) end,
}

describe("tensors that are computed when they are read #quick", function()
  for name, make in pairs(made) do
    it("refuse to be written to: " .. name, function()
      for how, write in pairs(writes) do
        local layer = make():eval()
        local before = layer.weight:detach():totable()
        local ok, message = pcall(write, layer.weight)
        assert.is_false(ok, how)
        assert.matches("is lost: a module computes it each time its field is read", message)
        assert.is_close(before, layer.weight:detach(), { rtol = 1e-2, atol = 1e-4 })
      end
      local layer = make()
      layer.weight:detach():clone():zero_()
      layer(moth.ones(1, 3)):sum():backward() -- reads it
    end)
  end

  it("take a value by assignment, through right_inverse", function()
    local value = moth.tensor { { 0, 1, 0 }, { 0, 0, 1 } }
    for _, name in ipairs { "weight_norm", "spectral_norm", "orthogonal" } do
      local layer = made[name]():eval()
      layer.weight = value
      if name ~= "spectral_norm" then assert.is_close(value, layer.weight:detach(), { rtol = 1e-2, atol = 1e-4 }) end
    end
    local Doubled = nn.class("DoubledWithoutInverse")
    function Doubled:forward(x) return x * 2 end -- luacheck: ignore self
    local layer = nn.utils.parametrize.register_parametrization(nn.Linear(3, 2), "weight", Doubled())
    local before = layer.weight:detach():totable()
    assert.error_matches(function() layer.weight = value end, "DoubledWithoutInverse has no right_inverse")
    assert.same(before, layer.weight:detach():totable())
  end)

  it("are written to where they are a tensor that is kept", function()
    local Same = nn.class("SameWeight")
    function Same:forward(x) return x:t():t() end -- luacheck: ignore self
    local layer = nn.utils.parametrize.register_parametrization(nn.Linear(3, 2), "weight", Same())
    nn.init.ones_(layer.weight)
    assert.equal(6, layer.weight:sum():item())
    assert.equal(6, layer.parametrizations.weight.original:sum():item())
  end)

  it("of a pruned module are not assigned to, but its parameter is", function()
    local layer = made.pruned()
    assert.error_matches(function() layer.weight = nn.Parameter(moth.ones(2, 3)) end,
      "weight_orig %* weight_mask: write to weight_orig, or call nn.utils.prune.remove")
    nn.init.ones_(layer.weight_orig)
    assert.equal(3, layer.weight:sum():item())
    nn.init.ones_(prune.remove(layer, "weight").weight)
    assert.equal(6, layer.weight:sum():item())
  end)
end)
