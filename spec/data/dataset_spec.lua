local moth = require "moth"
local data = moth.data

local function positions(t) return moth.tensor(t, { dtype = moth.int64 }) end

describe("datasets #quick", function()
  local x = moth.arange(1, 7):float():view(6, 1)
  local y = moth.arange(11, 17)

  it("TensorDataset gives samples and batches", function()
    local ds = data.TensorDataset(x, y)
    assert.equal(6, ds:size())
    local a, b = ds:get(3)
    assert.equal(3, a:item())
    assert.equal(13, b:item())
    a, b = ds:get_batch(positions { 6, 1, 6 })
    assert.same({ { 6 }, { 1 }, { 6 } }, a:totable())
    assert.same({ 16, 11, 16 }, b:totable())
    assert.error_matches(function() ds:get(7) end, "position 7 is out of range: expected 1 to 6")
    assert.error_matches(function() ds:get(0) end, "position 0 is out of range")
    assert.error_matches(function() data.TensorDataset(x, y[{ { 1, 2 } }]) end, "tensor 2 has 2 rows, the first has 6")
    assert.error_matches(function() data.TensorDataset() end, "'tensors' is missing")
    assert.error_matches(function() data.TensorDataset({ 1 }) end, "expected a list, each a tensor")
  end)

  it("a dataset of one's own has size and get #M218", function()
    local Squares = data.Dataset:subclass("Squares")
    function Squares.size() return 4 end
    function Squares.get(_, i) return i, i * i end
    local ds = Squares()
    assert.equal(4, ds:size())
    assert.same({ 3, 9 }, { ds:get(3) })
    local Empty = data.Dataset:subclass("Empty")
    assert.error_matches(function() Empty():size() end, "write function Empty:size%(%)")
    assert.error_matches(function() Empty():get(1) end, "write function Empty:get%(i%)")
  end)

  it("Subset and ConcatDataset", function()
    local ds = data.TensorDataset(x, y)
    local part = data.Subset(ds, { 5, 2 })
    assert.equal(2, part:size())
    assert.equal(5, part:get(1):item())
    assert.same({ { 2 }, { 5 } }, (part:get_batch(positions { 2, 1 })):totable())
    local both = data.ConcatDataset({ part, ds })
    assert.equal(8, both:size())
    assert.equal(2, both:get(2):item())
    assert.equal(1, both:get(3):item())
    assert.equal(6, both:get(8):item())
    assert.error_matches(function() both:get(9) end, "out of range")
    assert.error_matches(function() part:get(3) end, "out of range")
  end)

  it("random_split is disjoint, complete and repeatable", function()
    local ds = data.TensorDataset(moth.arange(1, 11))
    local function split(lengths)
      local all, parts = {}, { data.random_split(ds, lengths, { generator = moth.Generator(3) }) }
      for _, part in ipairs(parts) do
        for i = 1, part:size() do all[#all + 1] = part:get(i):item() end
      end
      return parts, all
    end
    local parts, all = split({ 7, 3 })
    assert.same({ 7, 3 }, { parts[1]:size(), parts[2]:size() })
    local _, again = split({ 7, 3 })
    assert.same(all, again)
    table.sort(all)
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, all)
    parts = split({ 0.5, 0.25, 0.25 })
    assert.same({ 6, 2, 2 }, { parts[1]:size(), parts[2]:size(), parts[3]:size() })
    assert.same({ 10, 0 }, { split({ 10, 0 })[1]:size(), split({ 10, 0 })[2]:size() })
    assert.error_matches(function() split({ 7, 4 }) end, "add up to 11, the dataset has 10")
    assert.error_matches(function() split({ 0.5, 0.2 }) end, "not 1")
  end)
end)

describe("samplers #quick #M229", function()
  local function list(sampler)
    local out = {}
    for i in sampler:iter() do out[#out + 1] = i end
    return out
  end

  it("sequential, random, batches", function()
    assert.same({ 1, 2, 3 }, list(data.SequentialSampler(3)))
    local random = data.RandomSampler(50, { generator = moth.Generator(1) })
    local a, b = list(random), list(random)
    assert.equal(50, #a)
    assert.is_not.same(a, b)
    table.sort(a)
    assert.equal(1, a[1])
    assert.equal(50, a[50])
    for _, wrong in ipairs { newproxy(true), "x", moth } do
      assert.error_matches(function() data.RandomSampler(wrong) end, "expected a dataset or a number, got")
      assert.error_matches(function() data.BatchSampler(wrong, 2, false) end, "expected a sampler with iter%(%), got")
    end
    assert.same(list(data.RandomSampler(9, { generator = moth.Generator(2) })),
      list(data.RandomSampler(9, { generator = moth.Generator(2) })))
    assert.equal(7, #list(data.RandomSampler(3, { num_samples = 7 })))
    assert.equal(7, #list(data.RandomSampler(3, { num_samples = 7, replacement = true })))
    local batches = data.BatchSampler(data.SequentialSampler(5), 2)
    assert.same({ { 1, 2 }, { 3, 4 }, { 5 } }, list(batches))
    assert.equal(3, batches:size())
    batches = data.BatchSampler(data.SequentialSampler(5), 2, { drop_last = true })
    assert.same({ { 1, 2 }, { 3, 4 } }, list(batches))
    assert.equal(2, batches:size())
  end)

  it("weighted sampling balances a 9:1 set #M230", function()
    local weights = {}
    for i = 1, 1000 do weights[i] = i <= 900 and 1 / 900 or 1 / 100 end
    local rare = 0
    for _, i in ipairs(list(data.WeightedRandomSampler(weights, 2000, { generator = moth.Generator(5) }))) do
      if i > 900 then rare = rare + 1 end
    end
    assert.is_true(rare > 900 and rare < 1100)
  end)

  it("a distributed sampler gives disjoint shares of equal size #M231 #M232", function()
    local function share(rank, epoch, o)
      o = o or {}
      local s = data.DistributedSampler(11, { num_replicas = 3, rank = rank, shuffle = o.shuffle,
        drop_last = o.drop_last })
      if epoch then s:set_epoch(epoch) end
      local out = list(s)
      assert.equal(s:size(), #out)
      return out
    end
    local seen = {}
    for rank = 0, 2 do
      for _, i in ipairs(share(rank)) do seen[i] = (seen[i] or 0) + 1 end
      assert.equal(4, #share(rank))
    end
    local n = 0
    for i = 1, 11 do n = n + seen[i] end
    assert.equal(12, n) -- one sample is repeated to fill up
    assert.same(share(1), share(1))
    assert.is_not.same(share(1), share(1, 2))
    assert.same({ 1, 4, 7, 10 }, share(0, nil, { shuffle = false }))
    assert.same({ 3, 6, 9 }, share(2, nil, { shuffle = false, drop_last = true }))
    assert.error_matches(function() share(3) end, "rank 3 is none of the 3 replicas")
  end)
end)
