--- moth.utils: what training scripts need beside tensors. Loaded piece by piece.
local files = {
  progress = "utils.progress", fmt = "fmt", system = "utils.system",
  CSVLogger = { "utils.logger", "CSVLogger" }, JSONLLogger = { "utils.logger", "JSONLLogger" },
}

return require("moth.lazy")({}, "moth.", files)
