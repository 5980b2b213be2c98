--- What a clock says around a large product: before and after waiting for the device.
--
--     moth examples/async_timing.lua [n]
--
-- On a GPU, or on a stream of the CPU where there is none, a call returns when its work is queued. So a clock around it
-- measures the launch; the work is over when something has waited for it. Events measure on the device itself.
local moth = require "moth"
local now = require("moth.utils.system").now

local n = moth.cli({ { "[N]", "rows of the matrices", 1024, min = 1 } }).n
local device = moth.cuda.is_available() and "cuda" or "cpu"
local stream = moth.Stream(device)
local a, b = moth.randn(n, n, { device = device }), moth.randn(n, n, { device = device })
local function product() return a:mm(b) end

moth.stream(stream, product) -- the first call opens libraries
stream:synchronize()

local from = moth.Event { device = device, enable_timing = true }
local to = moth.Event { device = device, enable_timing = true }
from:record(stream)
local start = now() -- moth.tic would wait for the devices, as a timer should
local c = moth.stream(stream, product)
local launch = now() - start
to:record(stream)
stream:synchronize()
local whole = now() - start

print(("product of %d x %d on a stream of %s"):format(n, n, device))
print(("  the clock when the call has returned:   %8.3f ms (the launch alone)"):format(launch * 1e3))
print(("  the clock when the stream is done:      %8.3f ms"):format(whole * 1e3))
print(("  two events of the stream:               %8.3f ms"):format(from:elapsed_time(to)))
print(("  launch is the smaller one: %s; the result is there: %s"):format(tostring(launch < whole),
  tostring(c:isfinite():all():item())))
