--- Datasets with random access. The contract is two methods:
--
--     local Squares = data.Dataset:subclass("Squares")
--     function Squares:size() return 100 end
--     function Squares:get(i) return i, i * i end       -- i from 1 to size(); any number of values
--     local ds = Squares()
--     #ds, ds[3]                                        --> 100, { 3, 9 }: several values are a list
--     for x, y in ds:iter() do … end
--     for i, x, y in ds() do … end                      -- with the position; or ds:enumerate()
--
-- A dataset with `get_batch(positions)` (an int64 tensor) returns whole batches, collated: the DataLoader then makes no
-- single samples.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local own_fields = require "moth.each"

local M = {}

local Dataset = class.sequence(class("Dataset"), function(self, i)
  if i ~= math.floor(i) or i < 1 or i > self:size() then self:check_position(i) end
  local function one(first, ...)
    if select("#", ...) == 0 then return first end
    return { first, ... }
  end
  return one(self:get(i))
end)
M.Dataset = Dataset

Dataset.__init = signature.init("data.Dataset()", function() end)

--- The number of samples: what a dataset of one's own defines.
function Dataset:size() check.fail("%s has no size; write function %s:size()", self.__name, self.__name) end
--- get(i): sample i, from 1, one value or several: what a dataset of one's own defines.
function Dataset:get() check.fail("%s has no get; write function %s:get(i)", self.__name, self.__name) end

--- Checks a position: an integer from 1 to size().
function Dataset:check_position(i)
  if type(i) ~= "number" or i ~= math.floor(i) or i < 1 or i > self:size() then
    check.fail("%s: position %s is out of range: expected 1 to %d", self.__name, tostring(i), self:size())
  end
  return i
end

--- An iterator over the samples: for x, y in dataset:iter() do.
function Dataset:iter()
  local i, n = 0, self:size()
  return function()
    i = i + 1
    if i <= n then return self:get(i) end
  end
end

--- The same with the position first: for i, x, y in dataset:enumerate() do, or in dataset() do.
function Dataset:enumerate()
  local i, n = 0, self:size()
  return function()
    i = i + 1
    if i <= n then return i, self:get(i) end
  end
end

function Dataset.__call(self, ...)
  if select("#", ...) > 0 then
    check.fail("%s: write for x, y in dataset:iter() do, or for i, x, y in dataset() do", self.__name)
  end
  return self:enumerate()
end

function Dataset.__tostring(self) return ("%s(%d samples)"):format(self.__name, self:size()) end

-- ---- tensors ---------------------------------------------------------------------------------------

--- data.TensorDataset(x, y, …): sample i is x[i], y[i], …
local TensorDataset = class("TensorDataset", Dataset)
M.TensorDataset = TensorDataset

TensorDataset.__init = signature.init("data.TensorDataset(Tensor... tensors)", function(self, o)
  self.tensors = o.tensors
  if #self.tensors == 0 then check.fail("[data.TensorDataset] expected at least one tensor") end
  for k, t in ipairs(self.tensors) do
    if B.dim(t) == 0 then check.fail("[data.TensorDataset] tensor %d has no dimensions", k) end
    if B.size(t, 1) ~= B.size(self.tensors[1], 1) then
      check.fail("[data.TensorDataset] tensor %d has %d rows, the first has %d", k, B.size(t, 1),
        B.size(self.tensors[1], 1))
    end
  end
end)

function TensorDataset:size() return B.size(self.tensors[1], 1) end

local function each(tensors, fn, ...)
  local out = {}
  for k, t in ipairs(tensors) do out[k] = fn(t, 1, ...) end
  return unpack(out)
end

function TensorDataset:get(i) return each(self.tensors, moth.select, self:check_position(i)) end
--- The samples at positions (an int64 tensor) as one batch: a tensor for each of the set's.
function TensorDataset:get_batch(positions) return each(self.tensors, moth.index_select, positions) end

signature.type("Dataset", function(v)
  local kind = type(v)
  return (kind == "table" or kind == "userdata" and class.is_a(v, Dataset)) and type(v.size) == "function"
    and type(v.get) == "function"
end, "a dataset with size() and get(i)")

-- ---- streams ---------------------------------------------------------------------------------------

--- Samples one after the other, as many as come. The contract is iter(info), which returns a function that gives the
-- next sample (any number of values), or nil at the end:
--
--     local Lines = data.IterableDataset:subclass("Lines")
--     function Lines:iter(info) return io.lines(self.path) end
--
-- info: { id (from 0), num_workers, seed, base_seed (the same in all workers), dataset }. One that looks at info (or at
-- data.get_worker_info()) takes care that each worker gives other samples; else the loader gives every num_workers-th
-- sample to a worker.
local IterableDataset = class("IterableDataset")
M.IterableDataset = IterableDataset
IterableDataset.__init = signature.init("data.IterableDataset()", function() end)
--- iter(info): an iterator over the samples, of worker info.id of info.num_workers; what such a set defines.
function IterableDataset:iter()
  check.fail("%s has no iter; write function %s:iter(info)", self.__name, self.__name)
end
function IterableDataset.__tostring(self) return self.__name end

signature.type("Iterable", function(v)
  local kind = type(v)
  return (kind == "table" or kind == "userdata" and class.is_a(v, Dataset)) and type(v.iter) == "function"
end, "an IterableDataset with iter()")

--- The samples of several IterableDatasets, one after the other: data.ChainDataset{ a, b }.
local ChainDataset = class("ChainDataset", IterableDataset)
M.ChainDataset = ChainDataset
ChainDataset.__init = signature.init("data.ChainDataset(Iterable[] datasets)", function(self, o)
  self.datasets = o.datasets
end)
function ChainDataset:iter(info)
  local k, next_sample = 0, nil
  local function found(...)
    if (...) == nil then
      next_sample = nil
      return false
    end
    return true, ...
  end
  local function step()
    if not next_sample then
      k = k + 1
      if not self.datasets[k] then return nil end
      next_sample = self.datasets[k]:iter(info)
    end
    return found(next_sample())
  end
  local function skip(ok, ...)
    if ok == nil then return nil end
    if ok then return ... end
    return skip(step())
  end
  return function() return skip(step()) end
end

-- ---- parts and sums --------------------------------------------------------------------------------

--- The samples of `ds` at `positions` (a list or an int64 tensor).
local Subset = class("Subset", Dataset)
M.Subset = Subset

Subset.__init = signature.init("data.Subset(Dataset dataset, Tensor|Index[] indices)", function(self, o)
  local ds, positions = o.dataset, o.indices
  if not B.is_tensor(positions) then positions = moth.tensor(positions, { dtype = moth.int64 }) end
  self.dataset, self.positions = ds, positions
  if ds.get_batch then
    self.get_batch = function(this, at) return ds:get_batch(this.positions:index_select(1, at)) end
  end
end)

function Subset:size() return B.size(self.positions, 1) end
function Subset:get(i) return self.dataset:get(B.item(self.positions[self:check_position(i)])) end

--- Several datasets, one after the other: data.ConcatDataset{ a, b }.
local ConcatDataset = class("ConcatDataset", Dataset)
M.ConcatDataset = ConcatDataset

ConcatDataset.__init = signature.init("data.ConcatDataset(Dataset[] datasets)", function(self, o)
  local list = o.datasets
  if #list == 0 then check.fail("[data.ConcatDataset] expected a list of datasets, got an empty one") end
  self.datasets, self.ends = list, {}
  local n = 0
  for k, ds in ipairs(list) do
    n = n + ds:size()
    self.ends[k] = n
  end
end)

function ConcatDataset:size() return self.ends[#self.ends] end

function ConcatDataset:get(i)
  self:check_position(i)
  local k = 1
  while i > self.ends[k] do k = k + 1 end
  return self.datasets[k]:get(i - (self.ends[k - 1] or 0))
end

--- Several datasets of one size side by side: sample i has the values of the i-th sample of each. By names,
-- data.StackDataset{ image = a, label = b }, a sample is one table { image = …, label = … }.
local StackDataset = class("StackDataset", Dataset)
M.StackDataset = StackDataset

StackDataset.__init = signature.init("data.StackDataset(table datasets)", function(self, o)
  self.datasets, self.names = o.datasets, {}
  for name, ds in own_fields(o.datasets) do
    if type(ds) ~= "table" and type(ds) ~= "userdata" or type(ds.size) ~= "function" then
      check.fail("[data.StackDataset] '%s' is no dataset", tostring(name))
    end
    self.names[#self.names + 1] = name
    self.n = self.n or ds:size()
    if ds:size() ~= self.n then
      check.fail("[data.StackDataset] dataset '%s' has %d samples, another one %d", tostring(name), ds:size(), self.n)
    end
  end
  if not self.n then check.fail("[data.StackDataset] there are no datasets") end
end)

function StackDataset:size() return self.n end
function StackDataset:get(i)
  self:check_position(i)
  local out, n = {}, 0
  if #self.datasets == 0 then
    for _, name in ipairs(self.names) do
      local function one(first, ...) return select("#", ...) == 0 and first or { first, ... } end
      out[name] = one(self.datasets[name]:get(i))
    end
    return out
  end
  local function add(...)
    for k = 1, select("#", ...) do out[n + k] = (select(k, ...)) end
    n = n + select("#", ...)
  end
  for _, ds in ipairs(self.datasets) do add(ds:get(i)) end
  return unpack(out, 1, n)
end

--- Disjoint random parts: local train, val = random_split(ds, { 80, 20 }) or, as shares, { 0.8, 0.2 }.
-- @return a Subset for each length
M.random_split = signature("data.random_split(Dataset dataset, number[] lengths, Generator generator?)",
function(ds, lengths, generator)
  local n, sum = ds:size(), 0
  for _, l in ipairs(lengths) do sum = sum + check.number("data.random_split", "a length", l, 0) end
  if sum <= 1 + 1e-9 and n ~= sum then -- shares: the remainder is dealt out from the first part on
    if math.abs(sum - 1) > 1e-9 then check.fail("data.random_split: the shares add up to %g, not 1", sum) end
    local counts, left = {}, n
    for k, share in ipairs(lengths) do
      counts[k] = math.floor(share * n + 1e-9)
      left = left - counts[k]
    end
    for k = 1, left do counts[(k - 1) % #counts + 1] = counts[(k - 1) % #counts + 1] + 1 end
    lengths = counts
  elseif sum ~= n then
    check.fail("data.random_split: the lengths add up to %g, the dataset has %d samples", sum, n)
  end
  local order, parts, at = moth.randperm(n, { generator = generator }), {}, 1
  for k, l in ipairs(lengths) do
    check.integer("data.random_split", "a length", l)
    parts[k] = Subset(ds, order:narrow(1, math.min(at, math.max(n, 1)), l):clone())
    at = at + l
  end
  return unpack(parts)
end)

return M
