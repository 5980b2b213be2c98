-- What users of other languages write: #dataset, dataset[i], #loader, #sequential, ipairs(list), loader:enumerate().
local moth = require "moth"
local class = require "moth.class"
local nn, data = moth.nn, moth.data

describe("datasets, loaders and samplers #quick", function()
  local x = moth.arange(1, 11):float():view(10, 1)

  it("have a length and samples by position", function()
    local ds = data.TensorDataset(x, moth.arange(1, 11))
    assert.equal(10, #ds)
    assert.same({ 3 }, ds[3][1]:totable())
    assert.equal(3, ds[3][2]:item())
    assert.same({ 4 }, data.TensorDataset(x)[4]:totable()) -- one value is no list
    for _, i in ipairs { 0, 11, -1, 1.5 } do
      assert.error_matches(function() return ds[i] end, "out of range: expected 1 to 10")
    end
    local Squares = data.Dataset:subclass("Squares")
    function Squares:__init(n) self.n = n end
    function Squares:size() return self.n end
    function Squares.get(_, i) return i, i * i end
    local squares = Squares(4)
    assert.equal(4, #squares)
    assert.same({ 3, 9 }, squares[3])
    squares.n = 5
    assert.equal(5, #squares)
    assert.equal("Squares(5 samples)", tostring(squares))
    assert.is_true(squares:is_a(data.Dataset) and class.is_a(squares, Squares))
    assert.equal("Squares", class.name(squares))
    local part = data.Subset(squares, { 5, 1 })
    assert.equal(2, #part)
    assert.same({ 5, 25 }, part[1])
    assert.equal(7, #data.ConcatDataset { squares, part })
    assert.equal(20, #moth.datasets.Synthetic { n = 20 })
    assert.error_matches(function() ipairs(squares) end, "table expected") -- not: no samples
  end)

  it("count batches, and number them", function()
    local loader = data.DataLoader(data.TensorDataset(x), 4)
    assert.equal(3, #loader)
    local seen = {}
    for i, batch in loader:enumerate() do seen[i] = batch:size(1) end
    assert.same({ 4, 4, 2 }, seen)
    for i, batch in loader() do seen[i] = seen[i] - batch:size(1) end
    assert.same({ 0, 0, 0 }, seen)
    assert.error_matches(function() return loader[1] end, "cannot be indexed: loop over loader:iter%(%)")
    assert.equal(2, #data.BatchSampler(data.SequentialSampler(7), 4))
    assert.equal(7, #data.RandomSampler(7))
    assert.error_matches(function() return data.SequentialSampler(7)[1] end, "use iter%(%)")
    assert.equal(3, #data.DataLoader(data.TensorDataset(x), 4, true, { generator = moth.Generator(1) }))
    assert.equal(2, #data.DataLoader { dataset = data.TensorDataset(x), batch_size = 4, drop_last = true })
  end)

  it("are looped over by their samples, with and without the position", function()
    local ds = data.TensorDataset(x, moth.arange(10))
    local sum, at = 0, 0
    for row, y in ds:iter() do sum = sum + y:item() + row:numel() * 0 end
    assert.equal(45, sum)
    for i, _, y in ds() do sum, at = sum - y:item(), at + i end
    assert.same({ 0, 55 }, { sum, at })
    for i, a, b in data.Subset(ds, { 3, 2 }):enumerate() do sum = sum + i * b:item() + a:numel() * 0 end
    assert.equal(1 * 2 + 2 * 1, sum)
    assert.error_matches(function() for _ in ds do error("no") end end, "write for x, y in dataset:iter%(%) do")
  end)

  it("random_split gives the parts one after the other", function()
    local train, val = data.random_split(data.TensorDataset(x), { 8, 2 })
    assert.same({ 8, 2 }, { #train, #val })
  end)

  it("are collected with what they hold", function()
    local weak = setmetatable({}, { __mode = "v" })
    for i = 1, 5 do
      local ds = data.TensorDataset(x)
      ds.own = function() return ds end -- a cycle
      weak[i] = ds
    end
    collectgarbage()
    collectgarbage()
    assert.equal(0, #weak)
  end)
end)

describe("lists of modules #quick", function()
  it("have a length, and ipairs goes over them", function()
    local a, b, c = nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)
    for _, list in ipairs { nn.Sequential(a, b, c), nn.ModuleList { a, b, c } } do
      assert.equal(3, #list)
      local seen = {}
      for i, m in ipairs(list) do seen[i] = m end
      assert.same({ true, true, true }, { rawequal(a, seen[1]), rawequal(b, seen[2]), rawequal(c, seen[3]) })
      assert.is_true(rawequal(list[-1], c))
      assert.is_nil(list[4])
      assert.equal(4, #list:parameters())
      assert.equal(4, #list:modules())
      list:append(nn.Tanh())
      assert.equal(4, #list)
      list[2] = nn.Sigmoid()
      assert.equal("Sigmoid()", tostring(list:children()[2]))
      assert.equal("Sigmoid()", tostring(list:get_submodule("1")))
      assert.equal("Tanh()", tostring(table.remove(list)))
      table.remove(list, 2)
      assert.equal(2, list:size())
      assert.same({ "0.weight", "0.bias", "1.weight", "1.bias" }, list:state_dict():keys())
      table.insert(list, 1, nn.Identity())
      assert.same({ "1.weight", "1.bias", "2.weight", "2.bias" }, list:state_dict():keys())
      local copy = list:clone()
      assert.equal(3, #copy)
      assert.is_false(rawequal(copy[2], list[2]))
      assert.is_true(rawequal(copy[2], copy:children()[2]))
      assert.error_matches(function() list[5] = nn.ReLU() end, "there are 3 modules")
      list[1] = "no module"
      assert.error_matches(function() list:parameters() end, "element 1 is no module but string")
    end
  end)

  it("with names keep those", function()
    local seq = nn.Sequential({ { "first", nn.Linear(2, 3) }, { "act", nn.ReLU() }, { "last", nn.Linear(3, 1) } })
    assert.equal(3, #seq)
    assert.equal("ReLU()", tostring(seq[2]))
    seq[2] = nn.Tanh()
    assert.equal("Tanh()", tostring(seq.act))
    table.remove(seq, 1)
    assert.same({ "last.weight", "last.bias" }, seq:state_dict():keys())
    assert.equal("Tanh()", tostring(seq[1]))
    seq:add_module("more", nn.ReLU())
    assert.equal(3, #seq)
    seq.act = nil
    assert.equal(2, #seq)
    assert.equal("[1, 1]", tostring(seq(moth.ones(1, 3)):size()))
  end)
end)
