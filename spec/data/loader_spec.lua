local moth = require "moth"
local data = moth.data

local function rows(n) return data.TensorDataset(moth.arange(1, n + 1):float():view(n, 1), moth.arange(1, n + 1)) end

local function epoch(loader)
  local out = {}
  for x, y in loader:iter() do out[#out + 1] = { x, y } end
  return out
end

describe("DataLoader #quick", function()
  it("cuts tensors into batches without making samples", function()
    local ds, calls = rows(10), 0
    ds.get = function() calls = calls + 1 end
    local loader = data.DataLoader(ds, { batch_size = 4 })
    local batches = epoch(loader)
    assert.equal(3, loader:size())
    assert.equal(3, #batches)
    assert.same({ { 9 }, { 10 } }, batches[3][1]:totable())
    assert.same({ 5, 6, 7, 8 }, batches[2][2]:totable())
    assert.equal(0, calls)
    local n = 0
    for _ in loader() do n = n + 1 end
    assert.equal(3, n)
    loader = data.DataLoader(ds, { batch_size = 4, drop_last = true })
    assert.equal(2, loader:size())
    assert.equal(2, #epoch(loader))
    assert.equal(0, #epoch(data.DataLoader(rows(0))))
  end)

  it("is looped over by its name alone, once an epoch", function()
    local loader = data.DataLoader(rows(10), { batch_size = 4 })
    for _ = 1, 2 do
      local seen = {}
      for x, y in loader do
        assert.same(x:view(-1):totable(), y:float():totable())
        seen[#seen + 1] = y:size(1)
        assert.is_true(#seen <= 3)
      end
      assert.same({ 4, 4, 2 }, seen)
    end
    loader(nil, nil) -- a loop that is broken off
    local n, pairs_seen = 0, 0
    for a in loader do
      n = n + 1
      for b in loader do
        pairs_seen = pairs_seen + (a:size(1) * b:size(1))
      end
    end
    assert.equal(3, n)
    assert.equal(100, pairs_seen)
    assert.is_nil((data.DataLoader(rows(0))(nil, nil)))
    assert.error_matches(function() loader(nil, moth.ones(1)) end, "write for x, y in loader:iter%(%) do")
    local D = data.Dataset:subclass("D") -- samples that are numbers and strings
    function D.size() return 5 end
    function D.get(_, i) return "n" .. i end
    n = 0
    for names in data.DataLoader(D(), { collate_fn = function(list) return list[1][1] end }) do
      n = n + 1
      assert.equal("n" .. n, names)
    end
    assert.equal(5, n)
  end)

  it("shuffles anew each epoch, repeatably with a generator #M246", function()
    local function order(loader)
      local out = {}
      for _, b in ipairs(epoch(loader)) do
        for _, v in ipairs(b[2]:totable()) do out[#out + 1] = v end
      end
      return out
    end
    local function make() return data.DataLoader(rows(20), { batch_size = 3, shuffle = true,
      generator = moth.Generator(7) }) end
    local a, b = make(), make()
    local first, second = order(a), order(a)
    assert.is_not.same(first, second)
    assert.same(first, order(b))
    table.sort(first)
    for i = 1, 20 do assert.equal(i, first[i]) end
  end)

  it("collates samples: tensors, numbers, tables, strings, booleans", function()
    local D = data.Dataset:subclass("D")
    function D.size() return 3 end
    function D.get(_, i)
      return moth.full({ 2 }, i), i, i + 0.5, { name = "n" .. i, pair = { i, moth.ones(1) } }, i > 1
    end
    local x, k, f, t, b = data.DataLoader(D(), { batch_size = 2 }):iter()()
    assert.same({ { 1, 1 }, { 2, 2 } }, x:totable())
    assert.equal(moth.int64, k:dtype())
    assert.same({ 1.5, 2.5 }, f:totable())
    assert.same({ "n1", "n2" }, t.name)
    assert.same({ 1, 2 }, t.pair[1]:totable())
    assert.equal("[2, 1]", tostring(t.pair[2]:size()))
    assert.same({ false, true }, b:totable())
    -- Whole numbers beyond 2^53, as files of JSON and CSV give them, beside others.
    for _, other in ipairs { 7, 9007199254740995LL } do
      local ids = data.default_collate { { 9007199254740993LL }, { other } }
      assert.equal("[9007199254740993, " .. tostring(other):match "%d+" .. "]\n[moth.int64 2, cpu]",
        (tostring(ids):gsub(",%s+", ", ")))
    end
    assert.equal(moth.float32, data.default_collate({ { 9007199254740993LL }, { 0.5 } }):dtype())
  end)

  it("says which sample does not fit", function()
    local D = data.Dataset:subclass("D")
    function D.size() return 2 end
    function D.get(_, i) if i == 1 then return 1 else return "x" end end
    local function first() return data.DataLoader(D(), { batch_size = 2 }):iter()() end
    assert.error_matches(first, "sample 2 of a batch has string")
    function D.get(_, i) if i == 1 then return { a = 1 } else return {} end end
    assert.error_matches(first, "has no field 'a'")
  end)

  it("takes a collate function, a sampler, a batch sampler", function()
    local ragged = data.Dataset:subclass("Ragged")
    function ragged.size() return 4 end
    function ragged.get(_, i) return moth.ones(i), i end
    local loader = data.DataLoader(ragged(), { batch_size = 4, collate_fn = function(samples)
      local list = {}
      for i, s in ipairs(samples) do list[i] = s[1] end
      return moth.nn.utils.pad_sequence(list)
    end })
    local x, lengths = loader:iter()()
    assert.equal("[4, 4]", tostring(x:size()))
    assert.same({ 1, 2, 3, 4 }, lengths:totable())
    local plain = { size = function() return 2 end, iter = function()
      local list, i = { 3, 1 }, 0
      return function() i = i + 1; return list[i] end
    end }
    assert.same({ { 3 }, { 1 } }, epoch(data.DataLoader(rows(3), { sampler = plain, batch_size = 2 }))[1][1]:totable())
    loader = data.DataLoader(rows(5), { batch_sampler = data.BatchSampler(data.SequentialSampler(5), 2) })
    assert.equal(3, loader:size())
    assert.same({ 5 }, epoch(loader)[3][2]:totable())
  end)

  it("gives samples as they are where there are no batches", function()
    local ds = data.TensorDataset(moth.arange(6):view(3, 2), moth.arange(3))
    for workers = 0, 2, 2 do
      local first = {}
      for x, y in data.DataLoader(ds, { batch_size = false, num_workers = workers }):iter() do
        assert.same({ 1, 0 }, { x:dim(), y:dim() })
        first[#first + 1] = x[1]:item()
      end
      assert.same({ 0, 2, 4 }, first)
    end
    local sum = function(x, y) return x:sum() + y end
    local loader = data.DataLoader(ds, { batch_size = false, collate_fn = sum })
    assert.equal(3, loader:size())
    assert.equal(1, loader:iter()():item())
    assert.error_matches(function() data.DataLoader(ds, { batch_size = false, drop_last = true }) end,
      "excludes batch_sampler and drop_last")
  end)

  it("says what is wrong", function()
    local ds = rows(3)
    assert.error_matches(function() data.DataLoader(ds, { num_workers = -1 }) end, "'num_workers'")
    assert.error_matches(function()
      data.DataLoader(ds, { seed = 1, generator = moth.Generator(1) })
    end, "say the same")
    assert.error_matches(function() data.DataLoader(ds, { batch_size = 0 }) end,
      "'batch_size': expected an integer of at least 1")
    assert.error_matches(function() data.DataLoader(ds, { shufle = true }) end, "unknown option 'shufle'")
    assert.error_matches(function() data.DataLoader(moth.ones(3)) end, "expected a dataset")
    assert.error_matches(function()
      data.DataLoader(ds, { shuffle = true, sampler = data.SequentialSampler(3) })
    end, "one or the other")
  end)

  it("does not take a missing value for the end", function()
    local D = data.Dataset:subclass("D")
    function D.size() return 3 end
    function D.get(_, i) if i < 2 then return i end end
    for n = 0, 1 do
      local next_batch = data.DataLoader(D(), { num_workers = n }):iter()
      assert.same({ 1 }, next_batch():totable())
      assert.error_matches(function() next_batch() end, "get%(2%) of the dataset returned nothing")
      local loader = data.DataLoader(rows(2), { num_workers = n, collate_fn = function() end })
      assert.error_matches(function() loader:iter()() end, "collate_fn returned nothing: the loop would end here")
    end
    D.get_batch = function() end
    assert.error_matches(function() data.DataLoader(D()):iter()() end, "get_batch%(positions%) returned nothing")
  end)

  it("goes on where another stood, within an epoch and after it", function()
    local function labels(iterator, n)
      local out = {}
      for _, y in iterator do
        for _, v in ipairs(y:totable()) do out[#out + 1] = v end
        if n and #out >= n then break end
      end
      return out
    end
    local makers = {
      function() return { batch_size = 3, shuffle = true, generator = moth.Generator(4) } end,
      function() return { batch_size = 3, shuffle = true } end,
      function() return { batch_size = 3, sampler = data.WeightedRandomSampler(moth.ones(20), 20) } end,
      function() return { batch_size = 2, sampler = data.DistributedSampler(20, { num_replicas = 2, rank = 1 }) } end,
      function()
        return { batch_sampler = data.BatchSampler(data.RandomSampler(20, { generator = moth.Generator(4) }), 3) }
      end,
    }
    for i, options in ipairs(makers) do
      moth.manual_seed(i)
      local a, b = data.DataLoader(rows(20), options()), data.DataLoader(rows(20), options())
      if a.sampler.set_epoch then a.sampler:set_epoch(7) end
      labels(a:iter()) -- an epoch before
      local iterator = a:iter()
      labels(iterator, 6)
      local sd, rng = a:state_dict(), moth.get_rng_state()
      local rest = labels(iterator)
      local after = labels(a:iter())
      moth.manual_seed(99)
      b:load_state_dict(sd)
      assert.same(sd, b:state_dict()) -- saved again before it continued
      if not b.order.generator then assert.same(rng, moth.get_rng_state()) end
      assert.same(rest, labels(b:iter()), "case " .. i)
      assert.same(after, labels(b:iter()), "case " .. i)
      assert.is_nil(b:state_dict().start) -- between epochs
    end
  end)
end)
