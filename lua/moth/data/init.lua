--- moth.data: datasets, samplers, loaders. Each file is loaded when it is first asked for.
local files = { DataLoader = { "loader" }, default_collate = { "collate", "default" } }
for _, name in ipairs({ "Dataset", "TensorDataset", "Subset", "ConcatDataset", "random_split" }) do
  files[name] = { "dataset", name }
end
for _, name in ipairs({ "Sampler", "SequentialSampler", "RandomSampler", "WeightedRandomSampler", "DistributedSampler",
  "BatchSampler" }) do
  files[name] = { "sampler", name }
end

return setmetatable({}, {
  __index = function(t, key)
    local file = files[key]
    if not file then return nil end
    local value = require("moth.data." .. file[1])
    if file[2] then value = value[file[2]] end
    rawset(t, key, value)
    return value
  end,
})
