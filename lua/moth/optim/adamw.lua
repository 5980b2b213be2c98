--- optim.AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019).
--
-- Arguments: as optim.Adam, but weight_decay = 0.01 unless given.
--
-- For each parameter x with gradient g:
--   1. x = x - lr weight_decay x
--   2. the steps of Adam, without its weight decay
local class = require "moth.class"
local Adam = require "moth.optim.adam"

local AdamW = class("AdamW", Adam)
AdamW.__init = Adam.with_decay("optim.AdamW", 1e-2, true)

return AdamW
