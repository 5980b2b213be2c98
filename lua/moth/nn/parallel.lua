--- moth.nn.parallel: modules on several processes.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

--- PyTorch's single-process parallelism, which moth does not have: an error that says what to use.
M.DataParallel = signature("nn.parallel.DataParallel(any... module)", function()
  check.fail("[nn.parallel.DataParallel] is not offered: use nn.parallel.DistributedDataParallel, one process for each "
    .. "device (docs/distributed.md)")
end)

return require("moth.lang.lazy")(M, "moth.distributed.", { DistributedDataParallel = "ddp" }, "moth.nn.parallel")
