--- moth.nn.parallel: modules on several processes.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

M.DataParallel = signature("nn.parallel.DataParallel(any... module)", function()
  check.fail("[nn.parallel.DataParallel] is not offered: use nn.parallel.DistributedDataParallel, one process for each "
    .. "device (docs/distributed.md)")
end)

return require("moth.lang.lazy")(M, "moth.distributed.", { DistributedDataParallel = "ddp" }, "moth.nn.parallel")
