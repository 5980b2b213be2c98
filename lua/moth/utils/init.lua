--- moth.utils: loggers, progress bars and other tools of training scripts. Each file is loaded when first asked for.
local files = {
  data = "data", progress = "utils.progress", fmt = "lang.fmt", system = "utils.system",
  checkpoint = { "utils.checkpoint", "checkpoint" },
  checkpoint_sequential = { "utils.checkpoint", "checkpoint_sequential" },
  checkpoint_wrapper = { "utils.checkpoint", "checkpoint_wrapper" },
  apply_activation_checkpointing = { "utils.checkpoint", "apply_activation_checkpointing" },
  create_selective_checkpoint_contexts = { "utils.checkpoint", "create_selective_checkpoint_contexts" },
  CheckpointPolicy = { "utils.checkpoint", "CheckpointPolicy" },
  offload_checkpoint = { "utils.checkpoint", "offload_checkpoint" },
  CSVLogger = { "utils.logger", "CSVLogger" }, JSONLLogger = { "utils.logger", "JSONLLogger" },
}

return require("moth.lang.lazy")({}, "moth.", files, "moth.utils")
