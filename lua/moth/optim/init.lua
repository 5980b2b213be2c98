--- moth.optim: optimizers and learning-rate schedules. Each file is loaded when it is first asked for.
local class = require "moth.class"
local signature = require "moth.utils.signature"

local files = { Optimizer = "optimizer", SGD = "sgd", Adam = "adam", AdamW = "adamw", RMSprop = "rmsprop",
  Adagrad = "adagrad", Adadelta = "adadelta", Adamax = "adamax", NAdam = "nadam", RAdam = "radam", Rprop = "rprop",
  ASGD = "asgd", Lion = "lion", LAMB = "lamb", SparseAdam = "sparse_adam", Adafactor = "adafactor",
  Muon = "muon", LBFGS = "lbfgs", swa_utils = "swa_utils", lr_scheduler = "lr_scheduler" }

local optim = {}

--- A class for an optimizer of one's own: `local MySGD = optim.class("MySGD")`; see examples/custom_optimizer.lua.
function optim.class(name, base) return class(name, base or require "moth.optim.optimizer") end

--- The learning rate for `replicas` times the batch (the linear scaling rule): scale_lr(1e-4, 4) is 4e-4.
optim.scale_lr = signature("optim.scale_lr(number lr, count replicas)", function(lr, replicas) return lr * replicas end)

return require("moth.lang.lazy")(optim, "moth.optim.", files)
