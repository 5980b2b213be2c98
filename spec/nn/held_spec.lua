-- Modules and parameters in plain tables of a module's fields.
local moth = require "moth"
local nn = moth.nn

local Net = nn.class("NetOfTables")
function Net:__init()
  self.first = nn.Linear(2, 2)
  self.layers = {}
  for i = 1, 2 do self.layers[i] = nn.Linear(2, 2) end
  self.heads = { small = nn.Linear(2, 1), large = nn.Linear(2, 3) }
  self.scales = { nn.Parameter(moth.ones(2)), nn.Buffer(moth.zeros(2)) }
  self.deep = { { nn.Dropout(0.5), "relu" }, 3 }
  self.last = nn.Linear(2, 1)
end
function Net:forward(x)
  x = self.first(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.last(x * self.scales[1] + self.scales[2])
end

local function names(m)
  local out = {}
  for name in m:named_parameters() do out[#out + 1] = name end
  return table.concat(out, " ")
end

describe("modules in plain tables", function()
  it("have the names that ModuleList and ModuleDict give, in the order of assignment", function()
    local m = Net()
    assert.equal("first.weight first.bias layers.0.weight layers.0.bias layers.1.weight layers.1.bias \z
      heads.large.weight heads.large.bias heads.small.weight heads.small.bias scales.0 last.weight last.bias", names(m))
    local sd = m:state_dict()
    assert.equal(14, sd:len())
    assert.is_true(sd["layers.1.weight"]:equal(m.layers[2].weight))
    assert.equal(m.layers[1], m:get_submodule("layers.0"))
    assert.matches("%(layers%): table%(\n    %(0%): Linear", tostring(m))
    assert.matches("%(0%): Dropout", tostring(m))
  end)

  it("are found when the table changes", function()
    local m = Net()
    table.insert(m.layers, nn.Linear(2, 2))
    assert.matches("layers%.2%.bias", names(m))
    table.remove(m.layers, 1)
    table.remove(m.layers, 1)
    assert.is_nil(names(m):find("layers.1", 1, true))
    m.layers = nil
    assert.is_nil(names(m):find("layers", 1, true))
    assert.is_nil(m.layers)
    m.layers = { nn.Linear(3, 3) }
    assert.equal("[3, 3]", tostring(m:state_dict()["layers.0.weight"]:size()))
    m.layers = nn.ModuleList { nn.Linear(1, 1) }
    assert.equal("[1, 1]", tostring(m:state_dict()["layers.0.weight"]:size()))
  end)

  it("take part in train, to, apply, zero_grad, requires_grad_, clone and load", function()
    local m = Net()
    m:eval()
    assert.is_false(m.layers[1].training)
    assert.is_false(m.deep[1][1].training)
    m:double()
    assert.equal(moth.float64, m.heads.small.weight:dtype())
    assert.equal(moth.float64, m.scales[2]:dtype())
    assert.equal(2, m.state_dict(m)["scales.1"]:numel())
    local count = 0
    m:apply(function(l) count = count + (l:is_a(nn.Linear) and 1 or 0) end)
    assert.equal(6, count)
    m(moth.ones(1, 2, { dtype = moth.float64 })):sum():backward()
    assert.is_not_nil(m.layers[2].weight.grad)
    m:zero_grad()
    assert.is_nil(m.layers[2].weight.grad)
    local copy = m:clone()
    moth.no_grad(function() copy.layers[1].weight:zero_() end)
    assert.equal(0, copy:get_parameter("layers.0.weight"):abs():sum():item())
    assert.not_equal(0, m.layers[1].weight:abs():sum():item())
    m:load_state_dict(copy:state_dict())
    assert.equal(0, m.layers[1].weight:abs():sum():item())
    m:requires_grad_(false)
    assert.is_false(m.heads.large.weight:requires_grad())
  end)

  it("load what a model with nn.ModuleList wrote", function()
    local Other = nn.class("Other")
    function Other:__init() self.layers = nn.ModuleList { nn.Linear(2, 2), nn.Linear(2, 2) } end
    local Plain = nn.class("Plain")
    function Plain:__init() self.layers = { nn.Linear(2, 2), nn.Linear(2, 2) } end
    local a, b = Other(), Plain()
    b:load_state_dict(a:state_dict())
    assert.is_true(b.layers[2].weight:equal(a.layers[2].weight))
  end)

  it("are trained, saved and replaced by functional_call", function()
    local m = Net()
    local opt = moth.optim.SGD(m:parameters(), { lr = 0.1 })
    local before = m.layers[1].weight:clone()
    m(moth.ones(3, 2)):square():sum():backward()
    opt:step()
    assert.is_false(m.layers[1].weight:equal(before))
    local path = os.tmpname() .. ".moth"
    finally(function() os.remove(path) end)
    moth.save(m:state_dict(), path)
    local n = Net()
    n:load_state_dict(moth.load(path))
    local x = moth.ones(3, 2)
    assert.is_true(n(x):equal(m(x)))
    local scale = m.scales[1]
    local y = moth.func.functional_call(m, { ["scales.0"] = moth.zeros(2), ["scales.1"] = moth.zeros(2) }, x)
    assert.is_true(y:allclose(m.last.bias:expand { 3, 1 }))
    assert.equal(scale, m.scales[1])
    assert.is_true(n(x):equal(m(x)))
  end)

  it("are left alone where other fields lead to them, and in tables with a metatable", function()
    local Both = nn.class("Both")
    function Both:__init(o)
      self.options, self.left = o, o.left
      self.right = nn.Linear(1, 1)
      self.both = { self.left, self.right, self.right.weight }
      self.others = setmetatable({ nn.Linear(1, 1) }, {})
    end
    local m = Both { left = nn.Linear(1, 1), size = 3 }
    assert.equal("left.weight left.bias right.weight right.bias", names(m))
    assert.equal(4, m:state_dict():len())
    m.right.up = { m }
    assert.error_matches(function() m:state_dict() end, "at 'right%.up%.0' holds itself")
    assert.matches("Both%(%.%.%.%)", tostring(m))
  end)

  it("need keys that can be names", function()
    local m = Net()
    m.heads["a.b"] = nn.Linear(1, 1)
    assert.error_matches(function() m:parameters() end, "NetOfTables%.heads: 'a%.b' cannot name a module")
  end)
end)

describe("functional_call", function()
  it("replaces the parameters of a ParameterList where forward reads them", function()
    local List = nn.class("ListOfParameters")
    function List:__init() self.ps = nn.ParameterList { moth.ones(2) } end
    function List:forward(x) return x * self.ps[1] end
    local m = List()
    assert.equal(0, moth.func.functional_call(m, { ["ps.0"] = moth.zeros(2) }, moth.ones(2)):sum():item())
    assert.equal(2, m(moth.ones(2)):sum():item())
  end)
end)
