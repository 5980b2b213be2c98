--- moth.utils: loggers, progress bars and other tools of training scripts. Each file is loaded when first asked for.
local files = {
  data = "data", progress = "utils.progress", fmt = "lang.fmt", system = "utils.system",
  CSVLogger = { "utils.logger", "CSVLogger" }, JSONLLogger = { "utils.logger", "JSONLLogger" },
}

return require("moth.lang.lazy")({}, "moth.", files, "moth.utils")
