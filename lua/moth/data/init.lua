--- moth.data: datasets, samplers, loaders. Each file is loaded when it is first asked for.
local files = {
  DataLoader = { "loader" }, default_collate = { "collate", "default" }, pad_collate = { "collate", "PadCollate" },
  get_worker_info = { "fetch", "get_worker_info" }, worker_info = { "fetch", "worker_info" },
  WebDataset = { "webdataset" }, Tokenizer = { "tokenizer" }, arrow = { "arrow" }, HDF5 = { "hdf5" },
  LMDB = { "lmdb" }, SQLite = { "sqlite" },
  prefetcher = { "diagnose", "prefetcher" },
}
for _, name in ipairs({ "Dataset", "TensorDataset", "Subset", "ConcatDataset", "random_split", "IterableDataset",
  "ChainDataset", "StackDataset" }) do
  files[name] = { "dataset", name }
end
for _, name in ipairs({ "TokenStream", "TextLines", "JSONL", "CSV", "read_image", "decode_image" }) do
  files[name] = { "files", name }
end
for _, name in ipairs({ "Sampler", "SequentialSampler", "RandomSampler", "WeightedRandomSampler", "DistributedSampler",
  "BatchSampler", "SubsetRandomSampler" }) do
  files[name] = { "sampler", name }
end

return require("moth.lang.lazy")({}, "moth.data.", files)
