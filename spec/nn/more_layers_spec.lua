-- Layers in three dimensions, bags, lists of parameters, lazy modules, adaptive softmax. spec/parity/nn.lua compares
-- all of them with PyTorch; here is what needs no PyTorch.
local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional

local function positions(list) return moth.tensor(list, { dtype = moth.int64 }) end

describe("three dimensions #quick", function()
  it("a convolution with a kernel of depth 1 is that of each plane", function()
    local x = moth.randn({ 2, 3, 4, 5, 6 }, { dtype = moth.float64 })
    local w = moth.randn({ 4, 3, 1, 3, 2 }, { dtype = moth.float64 })
    local y = F.conv3d(x, w, nil, 1, { 0, 1, 1 })
    for d = 1, 4 do
      assert.is_true(y:select(3, d):allclose(F.conv2d(x:select(3, d), w:squeeze(3), nil, 1, 1)))
    end
  end)
  it("transposed is the derivative of plain", function()
    local w = moth.randn({ 3, 2, 2, 3, 2 }, { dtype = moth.float64 })
    local x = moth.randn({ 1, 2, 5, 6, 7 }, { dtype = moth.float64, requires_grad = true })
    local y = F.conv3d(x, w, nil, 2, 1)
    local g = moth.randn(y:size(), { dtype = moth.float64 })
    local dx = moth.autograd.grad(y, x, { grad_outputs = g })
    local module = nn.ConvTranspose3d(3, 2, { 2, 3, 2 }, { stride = 2, padding = 1, bias = false }):double()
    module.weight:detach():copy_(w)
    assert.is_true(module(g, { 5, 6, 7 }):allclose(dx))
    assert.error_matches(function() module(g, { 9, 6, 7 }) end, "output_size must be between 4 and 5 in dimension 3")
    assert.error_matches(function() module(g, { output_sizes = 9 }) end, "did you mean 'output_size'")
  end)
  it("unpooling puts maxima back", function()
    for n = 1, 3 do
      local size = { 2, 3, 4, 6, 4 }
      while #size > n + 2 do size[#size] = nil end
      local x = moth.rand(size) + 1
      local y, at = F["max_pool" .. n .. "d"](x, 2, { return_indices = true })
      local back = nn["MaxUnpool" .. n .. "d"](2)(y, at)
      assert.is_true(moth.where(back:gt(0), x, 0):equal(back))
      assert.is_near(y:sum():item(), back:sum():item(), 1e-3)
    end
    local at = positions { { { { 1, 2 }, { 3, 4 } } } }
    assert.error_matches(function() F.max_unpool2d(moth.ones(1, 1, 2, 2), at, 2, 2, 0, { 9, 4 }) end,
      "%[F.max_unpool2d%] output_size must be between 3 and 5 in dimension 3, got 9")
  end)
end)

describe("fractional pooling #quick", function()
  it("takes a maximum of each window, with its position", function()
    moth.manual_seed(1)
    local x = moth.randn(2, 3, 9, 8)
    local y, at = F.fractional_max_pool2d(x, 2, { 4, 5 }, nil, true)
    assert.equal("[2, 3, 4, 5]", tostring(y:size()))
    assert.is_true(x:flatten(3):gather(3, at:flatten(3)):equal(y:flatten(3)))
    assert.error_matches(function() F.fractional_max_pool2d(x, 2, 9) end,
      "9 windows of size 2 do not fit into 9 elements")
    assert.error_matches(function() nn.FractionalMaxPool3d(2) end, "give output_size or output_ratio")
  end)
end)

describe("EmbeddingBag #quick", function()
  it("joins rows, by offsets or rows, and knows empty bags", function()
    local bag = nn.EmbeddingBag(5, 3, { mode = "sum" })
    local w = bag.weight:detach()
    local y = bag(positions { 1, 3, 3, 5 }, positions { 1, 3, 3 })
    assert.is_true(y[1]:allclose(w[1] + w[3]))
    assert.is_true(y[2]:equal(moth.zeros(3)))
    assert.is_true(y[3]:allclose(w[3] + w[5]))
    assert.is_true(bag(positions { { 1, 3 }, { 3, 5 } }):allclose(moth.stack { y[1], y[3] }))
    assert.error_matches(function() bag(positions { 1, 2 }) end,
      "%[F.embedding_bag%] a 1%-D input needs offsets; in EmbeddingBag")
    assert.error_matches(function()
      F.embedding_bag(positions { { 1 } }, w, { per_sample_weights = moth.ones(1, 1) })
    end, "mode = 'sum'")
  end)
  it("has the values and derivatives of its parts, in all modes", function()
    moth.manual_seed(8)
    local double = { dtype = moth.float64 }
    local index, starts = positions { 3, 1, 3, 5, 2, 2, 5 }, positions { 1, 4, 4, 6 }
    local ends = { { 1, 3 }, { 4, 3 }, { 4, 5 }, { 6, 7 } }
    local w = moth.randn(5, 3, double):requires_grad_()
    local worth = moth.randn(7, double):requires_grad_()
    local function plain(mode, weights, padding)
      local bags = {}
      for b, range in ipairs(ends) do
        local rows = {}
        for i = range[1], range[2] do
          local row = index[i]:item()
          if row ~= padding then rows[#rows + 1] = w[row] * (weights and weights[i] or 1) end
        end
        local all = #rows > 0 and moth.stack(rows)
        bags[b] = not all and moth.zeros(3, double) or mode == "max" and all:amax(1) or mode == "sum" and all:sum(1)
          or all:mean(1)
      end
      return moth.stack(bags)
    end
    for _, mode in ipairs { "sum", "mean", "max" } do
      for _, padding in ipairs { 0, 3 } do
        local pad = padding > 0 and padding or nil
        local y = F.embedding_bag(index, w, starts, { mode = mode, padding_idx = pad })
        local want = plain(mode, nil, pad)
        assert.is_true(y:allclose(want))
        local g = moth.randn(4, 3, double)
        assert.is_true(moth.autograd.grad(y, w, g):allclose(moth.autograd.grad(want, w, g)))
        local function fn(x) return F.embedding_bag(index, x, starts, { mode = mode, padding_idx = pad }) end
        assert.is_true(moth.autograd.gradgradcheck(fn, { w }))
        local last = positions { 1, 4, 4, 6, 8 }
        assert.is_true(F.embedding_bag(index, w, last, { mode = mode, padding_idx = pad, include_last_offset = true })
          :equal(y))
        local less = F.embedding_bag(index, w, positions { 1, 4, 4, 6, 7 }, { mode = mode, padding_idx = pad,
          include_last_offset = true }) -- position 7 is in no bag
        assert.is_true(less:equal(F.embedding_bag(index[{ { 1, 6 } }], w, starts, { mode = mode, padding_idx = pad })))
      end
    end
    local y = F.embedding_bag(index, w, starts, { mode = "sum", per_sample_weights = worth })
    local want, g = plain("sum", worth), moth.randn(4, 3, double)
    assert.is_true(y:allclose(want))
    local a, b = { moth.autograd.grad(y, { w, worth }, g) }, { moth.autograd.grad(want, { w, worth }, g) }
    assert.is_true(a[1]:allclose(b[1]) and a[2]:allclose(b[2]))
    local function weighted(x, v)
      return F.embedding_bag(index, x, starts, { mode = "sum", per_sample_weights = v })
    end
    assert.is_true(moth.autograd.gradgradcheck(weighted, { w, worth }))
    -- the gradient of equal maxima goes to the first row, as in PyTorch
    local same = moth.ones(5, 3):requires_grad_()
    F.embedding_bag(positions { { 2, 4, 2 } }, same, { mode = "max" }):sum():backward()
    assert.same({ 0, 1, 0, 0, 0 }, same.grad:select(2, 1):tolist())
    assert.same({ 4, 3 }, { unpack(F.embedding_bag(positions {}, w, positions { 1, 1, 1, 1 }):size()) })
    for _, mode in ipairs { "sum", "mean", "max" } do
      for _, pad in ipairs { 0, 2 } do
        local o = { mode = mode, padding_idx = pad > 0 and pad or nil }
        local few = positions { 1, 2, 3, 4 }
        for why, list in pairs { ["offsets must begin with 1, where the first bag begins, got 2"] = { 2 },
          ["offsets must not fall, got 2 behind 3 %(at 3%)"] = { 1, 3, 2 },
          ["offsets: 9 is out of range: the input has 4 positions, so that an offset is 5 at most"] = { 1, 9 } } do
          assert.error_matches(function() F.embedding_bag(few, w, positions(list), o) end, "F.embedding_bag%] " .. why)
        end
        assert.same({ 0, 3 }, { unpack(F.embedding_bag(few, w, positions {}, o):size()) })
      end
    end
    assert.error_matches(function() F.embedding_bag(index, w, moth.tensor { 1.5 }) end, "offsets must have an integer")
    assert.error_matches(function() F.embedding_bag(moth.ones(3), w, positions { 1 }) end, "input must have an integer")
  end)
  it("Embedding with max_norm changes the rows that it reads, and no other", function()
    local e = nn.Embedding.from_pretrained(moth.full({ 3, 4 }, 2), { max_norm = 1 })
    e(positions { 2, 2 })
    assert.is_near(1, e.weight[2]:norm():item(), 1e-5)
    assert.equal(4, e.weight[1]:norm():item())
    assert.same({}, { e.weight.grad })
    assert.is_false(e(positions { 1 }):requires_grad())
  end)
  it("scale_grad_by_freq divides by how often a row is read", function()
    local e = nn.Embedding(3, 2, { scale_grad_by_freq = true })
    e(positions { 1, 1, 3 }):sum():backward()
    assert.same({ { 1, 1 }, { 0, 0 }, { 1, 1 } }, e.weight.grad:totable())
  end)
end)

describe("lists of parameters #quick", function()
  it("by position", function()
    local list = nn.ParameterList { moth.ones(2), nn.Parameter(moth.zeros(3)) }
    list:append(moth.ones(1))
    assert.same({ 3, 3 }, { #list, #list:parameters() })
    list[2] = nn.Parameter(moth.full({ 4 }, 7))
    assert.equal("[4]", tostring(list:state_dict()["1"]:size()))
    assert.is_true(rawequal(list[-1], list[3]))
    local copy = list:clone()
    copy[1]:detach():fill_(5)
    assert.equal(1, list[1][1]:item())
    assert.error_matches(function() nn.ParameterList { 3 } end, "expected a parameter, got number")
  end)
  it("by name", function()
    local dict = nn.ParameterDict { b = moth.ones(2), a = moth.zeros(1) }
    assert.same({ "a", "b" }, dict:keys())
    assert.is_true(nn.Parameter.is(dict.a))
    assert.error_matches(function() nn.ParameterDict { a = 3 } end, "'a' must be a parameter or a tensor, got number")
  end)
end)

describe("lazy modules #quick", function()
  it("take sizes from the first input, under the same handles", function()
    local net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    local opt = moth.optim.SGD(net:parameters(), { lr = 0.1 })
    local handle = net[5].weight
    net(moth.randn(2, 3, 6, 6)):sum():backward()
    local before = net[5].weight:detach():clone()
    opt:step()
    assert.is_true(rawequal(handle, net[5].weight))
    assert.is_false(before:equal(net[5].weight:detach()))
    assert.equal("Linear(in_features=64, out_features=3, bias=True)", tostring(net[5]))
    assert.equal(nn.Conv2d, getmetatable(net[1]))
  end)
  it("take them from a state dict, too, and the dtype that they were given", function()
    local lazy = nn.LazyConvTranspose1d(4, 3):double()
    lazy:load_state_dict(nn.ConvTranspose1d(2, 4, 3):double():state_dict())
    assert.same({ moth.float64, 2 }, { lazy.weight:dtype(), lazy.in_channels })
    assert.error_matches(function() nn.LazyLinear(3)(3) end, "argument 'input': expected a tensor")
  end)
end)

describe("AdaptiveLogSoftmaxWithLoss #quick", function()
  it("is one softmax over all classes", function()
    local m = nn.AdaptiveLogSoftmaxWithLoss(16, 20, { 4, 10 })
    local x, y = moth.randn(6, 16), positions { 1, 4, 5, 10, 11, 20 }
    local out, loss = m(x, y)
    local all = m:log_prob(x)
    assert.is_true(all:exp():sum(2):allclose(moth.ones(6), 1e-5, 1e-5))
    assert.is_true(all:gather(2, y:unsqueeze(2)):squeeze(2):allclose(out, 1e-5, 1e-5))
    assert.is_near(-out:mean():item(), loss:item(), 1e-6)
    assert.is_true(m:predict(x):equal(all:argmax(2)))
    assert.error_matches(function() m(x, y + 1) end, "targets are from 1 to 20, got 2 to 21")
  end)
end)

describe("interpolate #quick", function()
  it("antialias keeps means of what shrinks; bicubic keeps the corners", function()
    local x = moth.rand({ 1, 1, 12, 12 }, { dtype = moth.float64 })
    for _, mode in ipairs { "bilinear", "bicubic" } do
      local y = F.interpolate(x, { size = 4, mode = mode, antialias = true })
      assert.is_near(x:mean():item(), y:mean():item(), 0.1)
    end
    local y = F.interpolate(x, { scale_factor = 1.5, mode = "bicubic", align_corners = true })
    assert.is_near(x[1][1][12][12]:item(), y[1][1][18][18]:item(), 1e-12)
    assert.error_matches(function() F.interpolate(x, { size = 4, antialias = true }) end, "antialias is for bilinear")
  end)
end)

describe("norms without bias #quick", function()
  it("have a weight alone", function()
    for _, m in ipairs { nn.LayerNorm(4, { bias = false }), nn.GroupNorm(2, 4, { bias = false }),
      nn.BatchNorm2d(4, { bias = false }), nn.InstanceNorm2d(4, { affine = true, bias = false }) } do
      assert.same({ true, nil }, { m.weight ~= nil, m.bias })
      assert.matches("bias=False", tostring(m))
      assert.equal("[2, 4, 4, 4]", tostring(m(moth.randn(2, 4, 4, 4)):size()))
    end
  end)
end)

describe("initialisers #quick", function()
  it("dirac_ passes channels on, sparse_ leaves zeros, trunc_normal_ stays inside", function()
    local conv = nn.Conv2d(3, 3, 3, { padding = 1, bias = false })
    nn.init.dirac_(conv.weight)
    local x = moth.randn(1, 3, 5, 5)
    assert.is_true(conv(x):allclose(x))
    local w = nn.init.sparse_(moth.empty(10, 4), 0.25)
    assert.same({ 3, 3, 3, 3 }, w:eq(0):sum(1):totable())
    local t = nn.init.trunc_normal_(moth.empty(2000), 1, 2, 0, 2)
    assert.is_true(t:amin():item() >= 0 and t:amax():item() <= 2)
    assert.is_near(1, t:mean():item(), 0.1)
  end)
end)

describe("rows of the table of what must work #quick", function()
  it("batch norm moves its statistics while training, with momentum 0.1, and uses them in evaluation #M185", function()
    local bn = nn.BatchNorm1d(1)
    local x = moth.tensor { { 1 }, { 3 }, { 5 } }
    bn(x)
    assert.is_near(0.3, bn.running_mean:item(), 1e-6)
    assert.is_near(0.9 + 0.1 * 4, bn.running_var:item(), 1e-6)
    bn:eval()
    assert.is_near((1 - 0.3) / math.sqrt(1.3 + 1e-5), bn(x)[1][1]:item(), 1e-5)
  end)
  it("evaluation during training leaves the statistics alone #M195", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    net(moth.randn(8, 3))
    local mean = net[2].running_mean:clone()
    net:eval()
    net(moth.randn(8, 3))
    assert.is_true(mean:equal(net[2].running_mean))
    net:train()
    net(moth.randn(8, 3))
    assert.is_false(mean:equal(net[2].running_mean))
  end)
  it("a block of 512 features and 8 heads runs #M186", function()
    local x = moth.randn(1, 16, 512)
    local block = nn.TransformerEncoderLayer(512, 8, 64, { batch_first = true })
    assert.equal("[1, 16, 512]", tostring(block(x):size()))
    local mha = nn.MultiheadAttention(512, 8, { batch_first = true })
    assert.equal("[1, 16, 512]", tostring((mha(nn.LayerNorm(512)(x), x, x)):size()))
  end)
  it("a module that is already there is moved for nothing #M198", function()
    local net = nn.Linear(3, 4)
    local before = net.weight
    assert.is_true(rawequal(net:to("cpu"), net) and rawequal(net.weight, before))
    local x = moth.randn(2, 3)
    assert.is_true(rawequal(x:to("cpu"), x))
  end)
end)

describe("what few programs call #quick", function()
  it("CrossMapLRN2d divides by the channels around", function()
    local x = moth.randn(2, 7, 2, 3)
    assert.is_close(F.local_response_norm(x, 3, 0.5, 0.75, 2), nn.CrossMapLRN2d(3, 0.5, 0.75, 2)(x))
    -- an even size reaches as far as the odd one below it
    assert.is_close(F.local_response_norm(x, 3, 0.5 * 3 / 4, 0.75, 2), nn.CrossMapLRN2d(4, 0.5, 0.75, 2)(x))
    assert.error_matches(function() nn.CrossMapLRN2d(3)(x[1]) end, "4 dimensions")
  end)
  it("conv_tbc convolves along time", function()
    local x, w, b = moth.randn(6, 2, 3), moth.randn(3, 3, 4), moth.randn(4)
    local y = F.conv_tbc(x, w, b, 1)
    assert.equal("[6, 2, 4]", tostring(y:size()))
    local first = b:clone()
    for k = 2, 3 do first = first + x[k - 1]:matmul(w[k]) end
    assert.is_close(first, y[1])
  end)
  it("multi_head_attention_forward is the module's, with keys and values of one's own", function()
    local m = nn.MultiheadAttention(8, 2, { add_bias_kv = true })
    local q, k = moth.randn(3, 2, 8), moth.randn(5, 2, 8)
    local function call(query, key, o)
      return F.multi_head_attention_forward(query, key, key, 8, 2, m.in_proj_weight, m.in_proj_bias, m.bias_k, m.bias_v,
        false, 0, m.out_proj.weight, m.out_proj.bias, o or {})
    end
    local y, w = m(q, k, k)
    local y2, w2 = call(q, k)
    assert.is_true(y:equal(y2) and w:equal(w2))
    assert.is_close(m(q:select(2, 1), k:select(2, 1)), (call(q:select(2, 1), k:select(2, 1))))
    local own = moth.randn(4, 7, 4)
    assert.equal("[2, 3, 7]", tostring(select(2, call(q, k, { static_k = own, static_v = own })):size()))
    assert.error_matches(function() call(q, k, { static_k = moth.randn(4, 7, 3) }) end, "static_k: expected")
  end)
  it("lists take modules at a position, dictionaries give them back", function()
    local list = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
    list:insert(2, nn.Tanh())
    assert.same({ "0", "1", "2" }, list._modules:keys())
    assert.equal(nn.Tanh, getmetatable(list[2]))
    assert.equal(nn.ReLU, getmetatable(list:pop(1)))
    assert.equal(2, #list)
    assert.error_matches(function() list:pop(3) end, "position 3: there are 2 modules")
    local dict = nn.ModuleDict { { "b", nn.ReLU() }, { "a", nn.Tanh() } }
    local names = {}
    for name in dict:items() do names[#names + 1] = name end
    assert.same({ "b", "a" }, names)
    assert.equal(nn.ReLU, getmetatable(dict:pop "b"))
    dict:clear()
    assert.equal(0, dict:size())
  end)
  it("modules have parts by path", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert.equal(net[1].weight, net:get_parameter "0.weight")
    assert.equal(net[2].running_mean, net:get_buffer "1.running_mean")
    assert.error_matches(function() net:get_buffer "1.mean" end, "has no buffer '1.mean'")
    net:set_submodule("1", nn.ReLU())
    assert.equal(nn.ReLU, getmetatable(net[2]))
    local one = nn.ReLU()
    local list = nn.ModuleList { one, one, one } -- only the place of that name
    list:set_submodule("1", nn.Tanh())
    assert.is_true(rawequal(list[1], one) and getmetatable(list[2]) == nn.Tanh and rawequal(list[3], one))
    net:type(moth.float64):to_empty { device = "cpu" }
    assert.equal(moth.float64, net[1].weight:dtype())
    net:apply(function(m) m:reset_parameters() end)
    assert.is_true(net[1].weight:abs():amax():item() <= 1 / math.sqrt(2))
  end)
  it("skip_init leaves out the filling of parameters, also after an error", function()
    local seen
    local Net = nn.class("Net")
    function Net:__init(fail)
      self.w = nn.Parameter(moth.full({ 2 }, 7))
      nn.init.zeros_(self.w)
      seen = self.w
      if fail then error "no" end
    end
    assert.same({ 7, 7 }, nn.utils.skip_init(Net).w:detach():totable())
    assert.has_error(function() nn.utils.skip_init(Net, true) end)
    assert.same({ 0, 0 }, nn.init.zeros_(seen):detach():totable())
  end)
end)
