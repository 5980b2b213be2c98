--- moth.debug: what is wrong with a run, in one call.
--
--     print(moth.debug.find_nan(model, x))            -- the first module whose output or gradient has NaN or Inf
--     print(moth.debug.grad_report(model))            -- vanishing and exploding gradients, by parameter
--     moth.debug.check_step { model = model, opt = opt, loss = loss }
--     print(moth.debug.compare_runs(f, g))            -- the first op that gives other bits
local M = {}
return require("moth.lang.lazy")(M, "moth.debug.", {
  leak_check = { "leak", "leak_check" },
  find_nan = { "nan", "find_nan" },
  grad_report = { "grads", "grad_report" },
  check_step = { "grads", "check_step" },
  assert_same_device = { "grads", "assert_same_device" },
  digest = { "runs", "digest" },
  compare_runs = { "runs", "compare_runs" },
  accuracy = { "accuracy", "accuracy" },
  determinism_audit = { "runs", "determinism_audit" },
}, "moth.debug")
