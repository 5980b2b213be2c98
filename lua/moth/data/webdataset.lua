--- Samples streamed from .tar files (also .tar.gz, .tar.zst, .zip), in the form of the Python library WebDataset: the
-- files 0001.png and 0001.cls, one after the other, are one sample with the fields png and cls.
--
--     local ds = data.WebDataset("train-{000..009}.tar"):shuffle(1000):decode():to_tuple("png", "cls")
--     for images, labels in data.DataLoader(ds, { batch_size = 64, num_workers = 2 }):iter() do … end
--
-- Files may be URLs (https://…, s3://bucket/key) and commands that write an archive ("pipe:zstdcat a.tar.zst"), too.
-- Nothing is unpacked to disk. Each worker (and each rank) reads files of its own; where there are fewer files than
-- workers, all read all files and keep a share of the samples.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local fetch = require "moth.data.fetch"
local shards = require "moth.data.shards"
local IterableDataset = require("moth.data.dataset").IterableDataset

local WebDataset = class("WebDataset", IterableDataset)

local MOST = 1e6 -- names of files

-- "a-{00..02}{x,y}.tar" -> a list of names. whole: the pattern that a name is part of.
local function expand(pattern, out, whole)
  local before, inside, after = pattern:match("^(.-){(.-)}(.*)$")
  if not before then
    if #out == MOST then
      check.fail("[data.WebDataset] '%s' stands for more than %d files: name fewer, or give a list", whole, MOST)
    end
    out[#out + 1] = pattern
    return out
  end
  local from, to = inside:match("^(%d+)%.%.(%d+)$")
  if from then
    local form, first, last = #from > 1 and "%0" .. #from .. "d" or "%d", tonumber(from), tonumber(to)
    if math.abs(last - first) >= MOST then
      check.fail("[data.WebDataset] '%s': {%s} stands for %.0f files, more than %d: name fewer, or give a list", whole,
        inside, math.abs(last - first) + 1, MOST)
    end
    for k = first, last, first <= last and 1 or -1 do expand(before .. form:format(k) .. after, out, whole) end
  else
    for part in (inside .. ","):gmatch("([^,]*),") do expand(before .. part .. after, out, whole) end
  end
  return out
end

--- urls: names of files, with {000..009} or {a,b} for several. shardshuffle: the order of the files is drawn for each
-- epoch. rank, world_size: of several processes; these need a seed that all have, and set_epoch(e) for another order.
-- retries: how often a stream that breaks is begun again (what was given of it is passed over). cache_dir: a folder
-- that keeps what was streamed to its end; later epochs read it from there.
WebDataset.__init = signature.init("data.WebDataset(string|string[] urls, *, bool shardshuffle=false, size rank=0, \z
  count world_size=1, size seed=0, size retries=3, path cache_dir?)", function(self, o)
  self.shards, self.stages, self.epoch = {}, {}, 0
  for _, name in ipairs(type(o.urls) == "string" and { o.urls } or o.urls) do
    expand(name, self.shards, name)
  end
  if #self.shards == 0 then check.fail("[data.WebDataset] there are no files") end
  for _, name in ipairs(self.shards) do shards.parse(name) end
  if o.rank >= o.world_size then
    check.fail("[data.WebDataset] rank %d is none of %d; ranks count from 0", o.rank, o.world_size)
  end
  self.shardshuffle, self.rank, self.world_size, self.seed = o.shardshuffle, o.rank, o.world_size, o.seed
  self.retries, self.cache_dir = o.retries, o.cache_dir
end)

--- Says which epoch comes: each has an order of its own.
function WebDataset:set_epoch(epoch) self.epoch = epoch end

-- ---- stages ----------------------------------------------------------------------------------------------

-- A copy with one more stage.
local function with(self, stage)
  local out = setmetatable({}, getmetatable(self))
  for key, value in require "moth.each"(self) do out[key] = value end
  out.stages = { unpack(self.stages) }
  out.stages[#out.stages + 1] = stage
  return out
end

local function numbers(text, key)
  local n = tonumber(text)
  if not n then check.fail("'%s' holds no number: %s", key, text:sub(1, 40)) end
  return n
end

local function json(text)
  local value, why = require("cjson.safe").decode(text)
  if value == nil then check.fail("json: %s", tostring(why)) end
  return value
end

-- What decode makes of a file with this suffix. Class ids count from 0 in files.
local decoders = {
  cls = function(text, key) return numbers(text, key) + 1 end, cls2 = numbers, index = numbers, id = numbers,
  txt = function(text) return text end, text = function(text) return text end, json = json,
  npy = function(text)
    local t, shape, reversed = B.media.decode_npy(text)
    if not reversed then return t:view(shape) end
    local back, order = {}, {}
    for k = 1, #shape do back[k], order[k] = shape[#shape - k + 1], #shape - k + 1 end
    return t:view(back):permute(unpack(order)):contiguous()
  end,
}
for _, suffix in ipairs({ "jpg", "jpeg", "png", "webp" }) do
  decoders[suffix] = function(text, _, channels) return B.media.decode_image(text, channels) end
end

local apply = {}

-- next_sample gives a sample, and the file that it comes from.
function apply.decode(stage, next_sample)
  return function()
    local sample, file = next_sample()
    if sample == nil then return nil end
    for key, text in require "moth.each"(sample) do
      local suffix = key:match("%.?([^.]*)$"):lower()
      local fn = stage.own[key] or stage.own[suffix] or decoders[suffix]
      if fn and type(text) == "string" and key ~= "__key__" then
        local ok, value = pcall(fn, text, key, stage.channels)
        if not ok then
          check.fail("[data.WebDataset] %s: sample %s: %s", file, sample.__key__, tostring(value))
        end
        sample[key] = value
      end
    end
    return sample, file
  end
end

function apply.shuffle(stage, next_sample)
  local buffer, files, n = {}, {}, 0
  local function fill(to)
    while n < to do
      local sample, file = next_sample()
      if sample == nil then return end
      n = n + 1
      buffer[n], files[n] = sample, file
    end
  end
  return function()
    fill(stage.size)
    if n == 0 then return nil end
    local k = math.random(1, n)
    local sample, file = buffer[k], files[k]
    buffer[k], files[k], buffer[n], files[n] = buffer[n], files[n], nil, nil
    n = n - 1
    return sample, file
  end
end

function apply.map(stage, next_sample)
  return function()
    local sample, file = next_sample()
    if sample == nil then return nil end
    return stage.fn(sample), file
  end
end

function apply.select(stage, next_sample)
  return function()
    while true do
      local sample, file = next_sample()
      if sample == nil then return nil end
      if stage.fn(sample) then return sample, file end
    end
  end
end

local function field(sample, names, file)
  for name in names:gmatch("[^;]+") do
    if sample[name] ~= nil then return sample[name] end
  end
  check.fail("[data.WebDataset] %s: sample %s has no %s", file, sample.__key__, names)
end

--- The order of samples is mixed: a buffer of so many is kept full, and each sample drawn from it. The order of the
-- files, too.
WebDataset.shuffle = signature.method("data.WebDataset:shuffle(count size)", function(self, size)
  local out = with(self, { kind = "shuffle", size = size })
  out.shardshuffle = true
  return out
end)
--- Bytes become values: images uint8 (H, W, C), cls a position (from 1), json a table, txt a string, npy a tensor. More
-- by the suffix: decode { wav = function(bytes, key) … end }.
WebDataset.decode = signature.method("data.WebDataset:decode(table decoders?, *, size channels=3)",
  function(self, own, channels) return with(self, { kind = "decode", own = own or {}, channels = channels }) end)
--- fn(sample) -> another sample, a table of fields; those for which it gives true.
WebDataset.map = signature.method("data.WebDataset:map(callable fn)",
  function(self, fn) return with(self, { kind = "map", fn = fn }) end)
--- Keeps the samples for which fn(sample) is true.
WebDataset.select = signature.method("data.WebDataset:select(callable fn)",
  function(self, fn) return with(self, { kind = "select", fn = fn }) end)
--- Samples become these fields, in this order: to_tuple("jpg;png", "cls"). Comes last, but for map_tuple.
function WebDataset:to_tuple(...)
  local names = { ... }
  if #names == 1 and type(names[1]) == "string" and names[1]:find(" ") then
    local list = {}
    for name in names[1]:gmatch("%S+") do list[#list + 1] = name end
    names = list
  end
  for k, name in ipairs(names) do
    if type(name) ~= "string" then
      check.fail("[data.WebDataset:to_tuple] expected names of fields, got %s as argument %d", type(name), k)
    end
  end
  local out = with(self, nil)
  out.names = names
  return out
end
--- Functions of the values of to_tuple, one for each; nil or false leaves one as it is.
function WebDataset:map_tuple(...)
  if not self.names then check.fail("[data.WebDataset:map_tuple] comes after to_tuple") end
  local out = with(self, nil)
  out.functions = { n = select("#", ...), ... }
  return out
end

-- ---- reading -----------------------------------------------------------------------------------------------

-- A function that gives the samples of the files, one after the other, and the name of the file.
local function read(files, retries, cache_dir)
  local k, members, shown, pending = 0, nil, nil, nil
  return function()
    local sample = pending
    pending = nil
    while true do
      if not members then
        if sample then return sample, shown end
        k = k + 1
        if not files[k] then return nil end
        members, shown = shards.members(files[k], retries, cache_dir), select(2, shards.parse(files[k]))
      end
      local name, bytes = members()
      if not name then
        members = nil
      else
        local folder, base, suffix = name:match("^(.-)([^/.][^/.]*)%.([^/]*)$")
        if base then
          local key = folder .. base
          suffix = suffix:lower() -- x.JPG is the field jpg, as in the Python library
          if sample and sample.__key__ ~= key then
            pending = { __key__ = key, [suffix] = bytes }
            return sample, shown
          end
          sample = sample or { __key__ = key }
          if sample[suffix] then
            check.fail("[data.WebDataset] %s: sample %s has two files for the field %s", shown, key, suffix)
          end
          sample[suffix] = bytes
        end
      end
    end
  end
end

-- The same order in all workers of an epoch.
local function shuffled(self, base)
  local seed = self.world_size > 1 and fetch.seed(self.seed, self.epoch + 1) or fetch.seed(base, 2 ^ 33)
  local order, out = moth.randperm(#self.shards, { generator = moth.Generator(seed) }):totable(), {}
  for k, i in ipairs(order) do out[k] = self.shards[i] end
  return out
end

--- An iterator over the samples, of worker info.id of info.num_workers.
function WebDataset:iter(info)
  info = info or { id = 0, num_workers = 1, base_seed = 0 }
  local parts, part = self.world_size * info.num_workers, self.rank * info.num_workers + info.id
  local files = self.shardshuffle and shuffled(self, info.base_seed) or self.shards
  local by_file, mine = #files >= parts, files
  if by_file then
    mine = {}
    for k = part + 1, #files, parts do mine[#mine + 1] = files[k] end
  end
  local next_sample = read(mine, self.retries, self.cache_dir)
  if not by_file then
    local all, n = next_sample, -1
    next_sample = function()
      while true do
        local sample, file = all()
        if sample == nil then return nil end
        n = n + 1
        if n % parts == part then return sample, file end
      end
    end
  end
  for _, stage in ipairs(self.stages) do next_sample = apply[stage.kind](stage, next_sample) end
  local names, functions = self.names, self.functions or {}
  if not names then return function() return (next_sample()) end end
  return function()
    local sample, file = next_sample()
    if sample == nil then return nil end
    local values = {}
    for k, name in ipairs(names) do
      values[k] = field(sample, name, file)
      if functions[k] then values[k] = functions[k](values[k]) end
    end
    return unpack(values, 1, #names)
  end
end

function WebDataset.__tostring(self) return ("WebDataset(%d files)"):format(#self.shards) end

return WebDataset
