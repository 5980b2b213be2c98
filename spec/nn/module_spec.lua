local moth = require "moth"
local class = require "moth.class"
local nn = moth.nn

local function names(iterator)
  local out = {}
  for name in iterator do out[#out + 1] = name end
  return out
end

local function lab_model(hidden)
  local Net = nn.class("FashionClassifier")
  function Net:__init(h)
    self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, h), nn.ReLU(), nn.Dropout(0.2), nn.Linear(h, h), nn.ReLU(),
      nn.Dropout(0.2), nn.Linear(h, 10))
  end
  function Net:forward(x) return self.net(x) end
  return Net(hidden)
end

describe("moth.class #quick", function()
  it("makes classes, subclasses and instances", function()
    local Point = class("Point")
    function Point:__init(x, y) self.x, self.y = x, y end
    function Point:sum() return self.x + self.y end
    function Point.__add(a, b) return Point(a.x + b.x, a.y + b.y) end
    local Pixel = Point:subclass("Pixel")
    function Pixel:sum() return Point.sum(self) * 10 end
    local p = Pixel(1, 2)
    assert.equal(30, p:sum())
    assert.equal(7, (p + Point(1, 3)):sum())
    assert.is_true(p:is_a(Point) and p:is_a(Pixel))
    assert.is_false(Point(1, 2):is_a(Pixel))
    assert.is_false(class.is_a(3, Point))
    assert.equal("Pixel", class.name(p))
    assert.equal("class Pixel", tostring(Pixel))
    assert.equal(Point, Pixel.super)
  end)

  it("refuses a class without a name", function()
    assert.error_matches(function() class() end, "expected a name")
  end)
end)

describe("nn.Module #quick", function()
  it("runs forward when it is called, and hooks only then #M163 #M164", function()
    local Net = nn.class("Net")
    function Net:__init(h) self.fc1 = nn.Linear(784, h) end
    function Net:forward(x) return self.fc1(x) end
    local m, calls = Net(256), 0
    m:register_forward_hook(function() calls = calls + 1 end)
    assert.equal("[2, 256]", tostring(m(moth.randn(2, 784)):size()))
    assert.equal(1, calls)
    m:forward(moth.randn(2, 784))
    assert.equal(1, calls)
    assert.error_matches(function() nn.class("Empty")()(1) end, "Empty has no forward")
  end)

  it("registers what is assigned, in order, and follows changes #M165", function()
    local m = nn.Module()
    m.zeta = nn.Linear(2, 3)
    m.scale = nn.Parameter(moth.ones(3))
    m.alpha = nn.ReLU()
    m.plain = 7
    m.free = moth.zeros(2)
    assert.same({ "zeta", "alpha" }, m._modules:keys())
    assert.same({ "scale" }, m._parameters:keys())
    assert.equal(m.zeta, m._modules.zeta)
    assert.is_nil(rawget(m, "zeta"))
    local other = nn.Linear(2, 4)
    m.zeta = other
    assert.same({ "zeta", "alpha" }, m._modules:keys())
    assert.equal(other, m.zeta)
    m.alpha = nil
    assert.is_nil(m.alpha)
    assert.same({ "zeta" }, names(m:named_children()))
    m.zeta = nil
    m.zeta = nn.Parameter(moth.ones(1))
    assert.same({ "scale", "zeta" }, m._parameters:keys())
    assert.equal(2, #m:parameters())
  end)

  it("finds a module that was assigned over a plain field", function()
    local m = nn.Module()
    m.head = false
    m.head = nn.Linear(2, 2)
    assert.equal(2, #m:parameters())
    m.head = nil
    assert.equal(0, #m:parameters())
  end)

  it("says what cannot be assigned", function()
    local m = nn.Sequential(nn.Linear(2, 2))
    assert.error_matches(function() m.train = nn.ReLU() end, "'train' is a method")
    assert.error_matches(function() m["a.b"] = nn.ReLU() end, "a name is a string without dots")
    assert.error_matches(function() m[1].weight = moth.zeros(2, 2) end, "weight is a parameter; assign an nn.Parameter")
    local _, message = pcall(function() m[1].weight = 3 end)
    assert.matches("module_spec.lua:%d+: Linear.weight is a parameter", message)
    assert.error_matches(function() nn.Parameter(3) end, "expected a tensor")
  end)

  it("walks depth first in registration order, shared parameters once #M166", function()
    local m = nn.Module()
    m.b = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, { bias = false }))
    m.a = nn.Linear(2, 2)
    m.a.weight = m.b[1].weight
    m.own = nn.Parameter(moth.ones(1))
    assert.same({ "own", "b.0.weight", "b.0.bias", "b.1.weight", "a.bias" }, names(m:named_parameters()))
    assert.same({ "own" }, names(m:named_parameters({ recurse = false })))
    assert.same({ "x.own" }, names(m:named_parameters({ recurse = false, prefix = "x" })))
    assert.same({ "", "b", "b.0", "b.1", "a" }, names(m:named_modules()))
    assert.equal(5, #m:modules())
    assert.equal(2, #m:children())
    assert.equal(m.b[2], m:get_submodule("b.1"))
    assert.error_matches(function() m:get_submodule("b.7") end, "no submodule 'b.7'")
  end)

  it("keeps buffers: saved and moved, not trained #M167", function()
    local m = nn.Module()
    m:register_buffer("mean", moth.zeros(3))
    m:register_buffer("scratch", moth.zeros(2), { persistent = false })
    assert.same({ "mean", "scratch" }, names(m:named_buffers()))
    assert.equal(0, #m:parameters())
    assert.same({ "mean" }, m:state_dict():keys())
    m.mean = moth.ones(3)
    assert.equal(3, m:state_dict().mean:sum():item())
    m:double()
    assert.equal(moth.float64, m.mean:dtype())
    m.mean = nil
    assert.same({ "scratch" }, names(m:named_buffers()))
    assert.error_matches(function() m:register_buffer("x", 3) end, "'tensor': expected a tensor")
    local data = moth.zeros(2)
    m.count = nil
    m.kept, m.passing = nn.Buffer(data), nn.Buffer(data, false)
    data:fill_(3)
    assert.same({ 3, 3 }, m.kept:totable())
    assert.same({ "kept" }, m:state_dict():keys())
    assert.equal(3, #names(m:named_buffers()))
    m.kept = moth.ones(2)
    assert.same({ "kept" }, m:state_dict():keys())
  end)

  it("switches training and evaluation recursively #M168", function()
    local m = lab_model(8)
    assert.is_true(m.training)
    assert.equal(m, m:eval())
    for _, sub in ipairs(m:modules()) do assert.is_false(sub.training) end
    m:train()
    assert.is_true(m.net[4].training)
  end)

  it("prints PyTorch's nested listing #M193", function()
    assert.equal([[
FashionClassifier(
  (net): Sequential(
    (0): Flatten(start_dim=2, end_dim=-1)
    (1): Linear(in_features=784, out_features=256, bias=True)
    (2): ReLU()
    (3): Dropout(p=0.2, inplace=False)
    (4): Linear(in_features=256, out_features=256, bias=True)
    (5): ReLU()
    (6): Dropout(p=0.2, inplace=False)
    (7): Linear(in_features=256, out_features=10, bias=True)
  )
)]], tostring(lab_model(256)))
    assert.equal("Linear(in_features=2, out_features=3, bias=False)", tostring(nn.Linear(2, 3, { bias = false })))
    assert.equal("ModuleList()", tostring(nn.ModuleList()))
    local two = nn.class("Two")
    function two.extra_repr() return "a=1\nb=2" end
    local m = two()
    m.child = nn.ReLU()
    assert.equal("Two(\n  a=1\n  b=2\n  (child): ReLU()\n)", tostring(m))
  end)

  it("counts parameters #M194 #M520", function()
    local m = lab_model(256)
    assert.equal(269322, m:num_parameters())
    assert.equal("269,322", moth.fmt.commas(m:num_parameters()))
    m.net[2]:requires_grad_(false)
    assert.equal(269322 - 200960, m:num_parameters({ trainable = true }))
  end)

  it("converts floating-point parameters and buffers", function()
    local m = nn.Sequential(nn.Linear(3, 2))
    m:register_buffer("steps", moth.zeros({ 1 }, { dtype = moth.int64 }))
    local w = m[1].weight:detach():clone()
    assert.equal(m, m:to(moth.float64))
    assert.equal(moth.float64, m[1].weight:dtype())
    assert.is_true(m[1].weight:requires_grad())
    assert.equal(moth.int64, m.steps:dtype())
    m:float()
    assert.is_true(w:equal(m[1].weight))
    local same = m[1].weight
    m:to({ dtype = moth.float32, device = "cpu" }):cpu()
    assert.is_true(rawequal(same, m[1].weight))
    assert.error_matches(function() m:to(moth.int64) end, "floating%-point")
    assert.error_matches(function() m:to({ dtyp = moth.float64 }) end, "unknown option 'dtyp'")
  end)

  it("keeps a shared parameter shared when it converts", function()
    local m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    m[2].weight = m[1].weight
    m:double()
    assert.is_true(rawequal(m[1].weight, m[2].weight))
    assert.equal(3, #m:parameters())
  end)

  it("zeroes gradients", function()
    local m = nn.Linear(3, 2)
    m(moth.ones(1, 3)):sum():backward()
    m:zero_grad({ set_to_none = false })
    assert.equal(0, m.weight.grad:abs():sum():item())
    m:zero_grad()
    assert.is_nil(m.weight.grad)
  end)

  it("applies a function, children first", function()
    local order = {}
    lab_model(4):apply(function(m) order[#order + 1] = m.__name end)
    assert.equal("Flatten", order[1])
    assert.equal("Sequential", order[#order - 1])
    assert.equal("FashionClassifier", order[#order])
  end)

  it("frees an unused module with its parameters", function()
    local m = nn.Linear(3, 2)
    local weak = setmetatable({ m, m.weight }, { __mode = "v" })
    m(moth.ones(1, 3)):sum():backward()
    m = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.is_nil(weak[1])
    assert.is_nil(weak[2])
  end)
end)

describe("state dicts #quick", function()
  it("slices of lists have the same modules, both ends included", function()
    local s = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 3), nn.Tanh()):eval()
    local part = s[{ 2, 3 }]
    assert.same({ "2.weight", "2.bias" }, part:state_dict():keys())
    assert.equal(s[3], part[2])
    assert.is_false(part.training)
    assert.same({ 4, 2, 3, 0 }, { #s[{}], #s[{ { 1, 2 } }], #s[{ -3, -1 }], #s[{ 3, 2 }] })
    assert.same({ "0.weight", "0.bias" }, nn.ModuleList({ nn.ReLU(), nn.Linear(1, 1) })[{ 2 }]:state_dict():keys())
    assert.error_matches(function() return s[{ 1, 2, 3 }] end, "written list%[{ first, last }%]")
  end)

  it("nn.Sequential frees what goes from one child to the next, and only what nobody else may hold", function()
    local Keeper = nn.class("Keeper")
    function Keeper:forward(x)
      self.seen, self.made = x, x * 2
      return self.made
    end
    local Mine = nn.class("ReLU", nn.ReLU) -- a user's, whatever its name
    function Mine:forward(x)
      self.made = nn.ReLU.forward(self, x)
      return self.made
    end
    local x = moth.randn(4, 3)
    local function usable(t) return t:sum():item() == t:sum():item() end
    local keeper, mine, kept = Keeper(), Mine(), nil
    local hooked = nn.ReLU()
    hooked:register_forward_hook(function(_, _, y) kept = y end)
    local net = nn.Sequential(nn.Identity(), nn.Dropout(0), keeper, nn.Linear(3, 3), mine, nn.Flatten(), hooked,
      nn.ReLU{ inplace = true }, nn.Linear(3, 2), nn.Sequential(Keeper(), nn.Identity()), nn.Identity())
    for _, mode in ipairs({ "train", "eval" }) do
      net[mode](net)
      local seen = {}
      local y = moth.dispatch.dispatch_mode(function(f, args, kwargs)
        local r = f(unpack(args))
        seen[#seen + 1] = r
        return r, kwargs and nil
      end, function() return net(x) end)
      assert.is_true(usable(y) and usable(x) and usable(keeper.seen) and usable(keeper.made) and usable(mine.made))
      assert.is_true(usable(kept) and usable(net[10][1].made))
      for _, t in ipairs(seen) do assert.is_true(usable(t)) end
      assert.is_true(usable(moth.no_grad(function() return net(x) end)))
    end

    local deep = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    local big = moth.randn(256, 256)
    moth.no_grad(function()
      deep(big)
      collectgarbage()
      collectgarbage()
      collectgarbage("stop")
      local before = moth.memory.stats().live
      deep(big)
      collectgarbage("restart")
      assert.is_true(moth.memory.stats().live - before < 1.5 * 256 * 1024)
    end)
  end)

  it("are ordered, named as PyTorch's, and share storage #M189 #M177", function()
    local m = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    local sd = m:state_dict()
    assert.same({ "0.weight", "0.bias", "2.weight", "2.bias" }, sd:keys())
    local seen = {}
    for name, t in sd:items() do seen[#seen + 1] = name .. tostring(t:size()) end
    assert.equal("0.weight[3, 2]", seen[1])
    assert.is_true(sd["2.bias"]:shares_storage(m[3].bias))
    assert.is_false(sd["2.bias"]:requires_grad())
    assert.same({ "net.0.weight" }, { m:state_dict({ prefix = "net." }):keys()[1] })
  end)

  it("print what they hold, an entry a line #M189", function()
    local sd = nn.Linear(2, 3):state_dict()
    sd.epoch = 3
    assert.equal("{\n  weight: float32 [3, 2] cpu\n  bias: float32 [3] cpu\n  epoch: 3\n}", tostring(sd))
    assert.equal("{}", tostring(nn.ReLU():state_dict()))
  end)

  it("load in place, from any table of tensors #M189", function()
    local a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    local handle, at = b.weight, b.weight:data_ptr()
    local missing, unexpected = b:load_state_dict({ weight = a.weight:detach(), bias = a.bias:detach():double() })
    assert.same({}, missing)
    assert.same({}, unexpected)
    assert.is_true(rawequal(handle, b.weight))
    assert.equal(at, b.weight:data_ptr())
    assert.is_true(b.weight:equal(a.weight) and b.bias:equal(a.bias))
    assert.is_true(b.weight:requires_grad())
  end)

  it("list what is missing, unexpected and of another size #M190", function()
    local m = nn.Linear(3, 2)
    local before = m.weight:detach():clone()
    local ok, message = pcall(m.load_state_dict, m, { weight = moth.zeros(3, 3), extra = moth.zeros(1) })
    assert.is_false(ok)
    assert.matches('missing keys: "bias"', message, 1, true)
    assert.matches('unexpected keys: "extra"', message, 1, true)
    assert.matches("size mismatch for weight: the checkpoint has shape [3, 3], the model has [2, 3]", message, 1, true)
    assert.is_true(before:equal(m.weight))
    local missing, unexpected = m:load_state_dict({ weight = moth.zeros(2, 3), extra = moth.zeros(1) },
      { strict = false })
    assert.same({ "bias" }, missing)
    assert.same({ "extra" }, unexpected)
    assert.equal(0, m.weight:detach():abs():sum():item())
    assert.error_matches(function() m:load_state_dict({ weight = moth.zeros(2, 2) }, { strict = false }) end,
      "size mismatch")
    assert.error_matches(function() m:load_state_dict(3) end, "expected a state dict")
  end)

  it("load what fits of another model, and say what does not #M190", function()
    local m = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))
    local before = m[2].weight:detach():clone()
    local sd = { ["0.weight"] = moth.ones(2, 3), ["0.bias"] = moth.ones(2), ["1.weight"] = moth.ones(5, 2),
      ["head.weight"] = moth.ones(1) }
    local missing, unexpected, mismatched = m:load_state_dict(sd, { strict = false, ignore_mismatched_sizes = true })
    assert.same({ "1.bias" }, missing)
    assert.same({ "head.weight" }, unexpected)
    assert.equal(1, #mismatched)
    assert.equal("1.weight", mismatched[1].name)
    assert.equal("[5, 2]", tostring(mismatched[1].checkpoint))
    assert.equal("[4, 2]", tostring(mismatched[1].model))
    assert.is_true(m[1].weight:eq(1):all():item() and before:equal(m[2].weight))
    local ok, message = pcall(m.load_state_dict, m, sd, { ignore_mismatched_sizes = true })
    assert.is_false(ok)
    assert.matches('missing keys: "1.bias"', message, 1, true)
    assert.is_nil(message:find("size mismatch", 1, true))
    local text = { ["0.weight"] = "text" }
    assert.error_matches(function() m:load_state_dict(text, { strict = false }) end, "expected a tensor, got string")
  end)

  it("say how names of a wrapped model are taken back #M191", function()
    local m, wrapped = nn.Linear(3, 2), {}
    for name, t in m:state_dict():items() do wrapped["module." .. name] = t end
    local ok, message = pcall(m.load_state_dict, m, wrapped)
    assert.is_false(ok)
    assert.matches('HINT: all names begin with "module.": moth.remap(sd, { ["^module%."] = "" })', message, 1, true)
    m:load_state_dict(moth.remap(wrapped, { ["^module%."] = "" }))
    wrapped["other.weight"] = moth.ones(1)
    ok, message = pcall(m.load_state_dict, m, wrapped)
    assert.is_true(not ok and not message:find("HINT", 1, true))
  end)

  it("can be renamed and averaged #M191", function()
    local a, b = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    local renamed = nn.utils.remap(a:state_dict(), { ["^0%."] = "backbone.0.", bias = false })
    assert.same({ "backbone.0.weight" }, { renamed:keys()[1] })
    local mean = nn.utils.average({ a:state_dict(), b:state_dict() })
    assert.is_true(mean["0.bias"]:allclose((a[1].bias:detach() + b[1].bias:detach()) / 2))
  end)

  it("survive a parameter that is named like a method", function()
    local m = nn.Module()
    m.keys = nn.Parameter(moth.ones(2))
    m.items = nn.Parameter(moth.ones(3))
    local other = nn.Module()
    other.keys, other.items = nn.Parameter(moth.zeros(2)), nn.Parameter(moth.zeros(3))
    other:load_state_dict(m:state_dict())
    assert.equal(3, other.items:detach():sum():item())
    assert.equal(5, m:num_parameters())
  end)
end)

describe("module hooks #quick", function()
  it("see shapes over named_children, and nothing after removal #M170", function()
    local m = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    local lines, hooks = {}, {}
    local function print_shape(module, input, output)
      assert.equal(1, input.n)
      lines[#lines + 1] = ("%-15s output shape: %s"):format(module.__name, tostring(output:size()))
    end
    for _, layer in m:named_children() do hooks[#hooks + 1] = layer:register_forward_hook(print_shape) end
    m(moth.randn(1, 784))
    assert.same({ "Linear          output shape: [1, 128]", "ReLU            output shape: [1, 128]",
      "Linear          output shape: [1, 10]" }, lines)
    for _, h in ipairs(hooks) do
      h:remove()
      h:remove()
    end
    m(moth.randn(1, 784))
    assert.equal(3, #lines)
    assert.is_false(rawget(m[1], "_hooks"))
  end)

  it("replace inputs and outputs, and gradients flow through #M169 #M173", function()
    local m = nn.Linear(2, 2, { bias = false })
    moth.no_grad(function() m.weight:copy_(moth.eye(2)) end)
    local scale = moth.tensor({ 3 }, { requires_grad = true })
    local h1 = m:register_forward_pre_hook(function(_, input) return input[1] * 2 end)
    local h2 = m:register_forward_hook(function(_, _, output) return output * scale end)
    local y = m(moth.ones(1, 2))
    assert.same({ { 6, 6 } }, y:detach():totable())
    y:sum():backward()
    assert.equal(4, scale.grad:item())
    assert.same({ { 6, 6 }, { 6, 6 } }, m.weight.grad:totable())
    h1:remove()
    h2:remove()
    assert.same({ { 1, 1 } }, m(moth.ones(1, 2)):detach():totable())
  end)

  it("see and replace all gradients of a module #M169", function()
    local Mul = nn.class("Mul")
    function Mul.forward(_, a, b) return a * b, a + b end
    local m = Mul()
    local x = moth.tensor({ 2, 3 }, { requires_grad = true })
    local y = moth.tensor({ 5, 7 }, { requires_grad = true })
    local seen = {}
    m:register_full_backward_pre_hook(function(_, grad_output)
      return { grad_output[1] * 10, grad_output[2] }
    end)
    local h = m:register_full_backward_hook(function(_, grad_input, grad_output)
      seen.input, seen.output = grad_input, grad_output
      return { grad_input[1] + 1, grad_input[2] }
    end)
    local product, sum = m(x, y)
    -- x is used outside the module too: the hook must not see that part
    moth.autograd.backward(product:sum() + sum:sum() + x:sum())
    assert.same({ 10, 10 }, seen.output[1]:totable())
    assert.same({ 51, 71 }, seen.input[1]:totable())
    assert.same({ 21, 31 }, seen.input[2]:totable())
    assert.same({ 53, 73 }, x.grad:totable())
    assert.same({ 21, 31 }, y.grad:totable())
    h:remove()
    seen.input = nil
    x.grad = nil
    product, sum = m(x, y)
    moth.autograd.backward(product:sum() + sum:sum())
    assert.is_nil(seen.input)
    assert.same({ 51, 71 }, x.grad:totable())
  end)

  it("of backward run where no input requires grad, and not under no_grad", function()
    local m, calls = nn.Linear(2, 2), 0
    m:register_full_backward_hook(function(_, grad_input, grad_output)
      calls = calls + 1
      assert.is_nil(grad_input[1])
      assert.equal("[1, 2]", tostring(grad_output[1]:size()))
    end)
    m(moth.ones(1, 2)):sum():backward()
    assert.equal(1, calls)
    moth.no_grad(function() m(moth.ones(1, 2)) end)
    assert.equal(1, calls)
  end)

  it("with prepend come first; other options are refused", function()
    local m, seen = nn.ReLU(), {}
    for i, o in ipairs { { prepend = false }, { prepend = true } } do
      m:register_forward_pre_hook(function() seen[#seen + 1] = i end, o)
      m:register_forward_hook(function() seen[#seen + 1] = i + 10 end, o)
      m:register_full_backward_hook(function() seen[#seen + 1] = i + 20 end, o)
    end
    m(moth.ones(1, { requires_grad = true })):backward()
    assert.same({ 2, 1, 12, 11, 22, 21 }, seen)
    for _, name in ipairs { "forward_pre", "forward", "full_backward_pre", "full_backward" } do
      assert.error_matches(function() m["register_" .. name .. "_hook"](m, print, { prepen = true }) end,
        "unknown option 'prepen'; did you mean 'prepend'")
    end
    assert.error_matches(function() m:register_state_dict_pre_hook(print, { prepend = true }) end, "unknown option")
  end)

  it("pass errors on, and must be functions", function()
    local m = nn.ReLU()
    assert.error_matches(function() m:register_forward_hook(3) end, "expected a function")
    local h = m:register_forward_hook(function() error("from the hook") end)
    assert.error_matches(function() m(moth.ones(1)) end, "from the hook")
    h:remove()
    assert.equal(1, m(moth.ones(1)):item())
  end)
end)
