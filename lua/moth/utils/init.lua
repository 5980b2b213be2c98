--- moth.utils: what training scripts need beside tensors. Loaded piece by piece.
local files = { progress = "utils.progress", fmt = "fmt" }

return require("moth.lazy")({}, "moth.", files)
