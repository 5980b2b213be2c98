-- Exports a layer for moth serve, and prints its weight. Usage: moth serve_bridge.lua FILE
local moth = require "moth"
local cjson = require "cjson"
moth.manual_seed(1)
local net = moth.nn.Linear(4, 3, { bias = false })
local batch = moth.Dim("batch", { max = 64 })
moth.export.save(moth.export(net, { moth.randn(2, 4) }, { dynamic_shapes = { { [1] = batch } } }), arg[1])
print(cjson.encode(net.weight:detach():totable()))
