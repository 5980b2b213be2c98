-- nn.SyncBatchNorm alone is batch norm. Several processes: spec/distributed/sync_batchnorm_spec.lua.
local moth = require "moth"
local nn = moth.nn

describe("SyncBatchNorm #quick", function()
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

  it("says what is no process group", function()
    local sync = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3), "group")
    assert.error_matches(function() sync(moth.randn(4, 3, 2, 5)) end,
      "must be a process group of moth.distributed, got string")
    sync:eval()(moth.randn(4, 3, 2, 5))
  end)
end)
