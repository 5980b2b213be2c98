--- moth.utils: what training scripts need beside tensors. Loaded piece by piece.
local files = { progress = "moth.utils.progress", fmt = "moth.fmt" }

return setmetatable({}, {
  __index = function(t, key)
    local file = files[key]
    if not file then return nil end
    local value = require(file)
    rawset(t, key, value)
    return value
  end,
})
