-- nn.SyncBatchNorm: alone it is batch norm; with an exchange, the statistics are those of all processes.
local moth = require "moth"
local nn = moth.nn

describe("SyncBatchNorm #quick", function()
  after_each(function() nn.SyncBatchNorm.exchange = nil end)

  it("takes the place of every batch norm, with its parameters and statistics", function()
    local net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm1d(2), nn.LayerNorm(2)))
    local weight, mean = net[2].weight, net[2].running_mean
    net[3][1]:eval()
    local out = nn.SyncBatchNorm.convert_sync_batchnorm(net, "group")
    assert.equal(net, out)
    assert.equal(nn.SyncBatchNorm, getmetatable(net[2]))
    assert.equal(weight, net[2].weight)
    assert.equal(mean, net[2].running_mean)
    assert.equal("group", net[3][1].process_group)
    assert.is_false(net[3][1].training)
    assert.equal(nn.LayerNorm, getmetatable(net[3][2]))
    assert.equal(nn.SyncBatchNorm, getmetatable(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm3d(2))))
    assert.error_matches(function() nn.SyncBatchNorm.convert_sync_batchnorm({}) end, "module")
  end)

  it("normalizes alone as batch norm does", function()
    local bn = nn.BatchNorm2d(3)
    local sync = nn.SyncBatchNorm.convert_sync_batchnorm(bn:clone())
    local x = moth.randn(4, 3, 2, 5)
    assert.is_true(bn(x):equal(sync(x)))
    assert.is_true(bn.running_var:equal(sync.running_var))
  end)

  it("is, for two processes with the same batch, batch norm of it twice", function()
    for _, momentum in ipairs { 0.3, false } do
      local bn = nn.BatchNorm2d(3, { momentum = momentum }):double()
      local sync = nn.SyncBatchNorm.convert_sync_batchnorm(bn:clone())
      local x = moth.randn({ 2, 3, 2, 5 }, { dtype = moth.float64, requires_grad = true })
      local w = moth.randn({ 2, 3, 2, 5 }, { dtype = moth.float64 })
      local whole = bn(moth.cat { x, x })
      local expected = moth.autograd.grad((whole * moth.cat { w, w }):sum(), x)
      nn.SyncBatchNorm.exchange = function(t) return t * 2 end
      local y = sync(x)
      assert.is_close(whole:narrow(1, 1, 2), y)
      -- The gradient that this process gets is its half of the whole's.
      assert.is_close(expected, 2 * moth.autograd.grad((y * w):sum(), x))
      assert.is_close(bn.running_mean, sync.running_mean)
      assert.is_close(bn.running_var, sync.running_var)
      assert.is_true(sync:eval()(x):allclose(bn:eval()(x)))
    end
  end)
end)
