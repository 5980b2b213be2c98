-- Parametrisations, pruning, batch norm folded into layers, outputs inside models, hooks of state dicts.
local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional
local P = nn.utils.parametrize

local function positions(list) return moth.tensor(list, { dtype = moth.int64 }) end

describe("parametrisations #quick", function()
  local Symmetric = nn.class("Symmetric")
  function Symmetric:forward(x) return x:triu() + x:triu(1):t() end -- luacheck: ignore self
  function Symmetric:right_inverse(w) return w:triu() end -- luacheck: ignore self

  it("compute a tensor each time it is read, and train what it is made of", function()
    local m = P.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
    assert.is_true(m.weight:equal(m.weight:t()))
    assert.is_true(P.is_parametrized(m, "weight"))
    assert.is_false(P.is_parametrized(m, "bias"))
    assert.matches("^ParametrizedLinear", tostring(m))
    local names = {}
    for name in m:named_parameters() do names[#names + 1] = name end
    table.sort(names)
    assert.same({ "bias", "parametrizations.weight.original" }, names)
    m(moth.ones(2, 3)):sum():backward()
    assert.is_not_nil(m.parametrizations.weight.original.grad)
    local other = P.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
    other:load_state_dict(m:state_dict())
    assert.is_true(other.weight:equal(m.weight))
    m.weight = moth.ones(3, 3)
    assert.is_true(m.weight:equal(moth.ones(3, 3)))
    P.cached(function() assert.is_true(rawequal(m.weight, m.weight)) end)
    P.remove_parametrizations(m, "weight")
    assert.equal(nn.Linear, getmetatable(m))
    assert.is_true(nn.Parameter.is(m.weight) and m.weight:equal(moth.ones(3, 3)))
    assert.error_matches(function() P.register_parametrization(m, "wait", Symmetric()) end,
      "no parameter or buffer 'wait'")
    local Cut = nn.class("Cut")
    function Cut:forward(x) return x:narrow(1, 1, 1) end -- luacheck: ignore self
    assert.error_matches(function() P.register_parametrization(m, "weight", Cut()) end, "give unsafe = true")
  end)

  it("weight_norm keeps the weight and trains its length", function()
    local m = nn.Conv2d(2, 3, 2)
    local before = m.weight:detach():clone()
    nn.utils.parametrizations.weight_norm(m)
    assert.is_true(m.weight:allclose(before, 1e-5, 1e-6))
    assert.equal("[3, 1, 1, 1]", tostring(m.parametrizations.weight.original0:size()))
    moth.no_grad(function() m.parametrizations.weight.original0:mul_(2) end)
    assert.is_true(m.weight:allclose(before * 2, 1e-5, 1e-6))
    local linear = nn.Linear(2, 2)
    local norm = linear.weight:norm():item()
    nn.utils.parametrizations.weight_norm(linear, "weight", false)
    assert.is_near(norm, linear.parametrizations.weight.original0:item(), 1e-6)
  end)

  it("spectral_norm divides by the largest singular value", function()
    moth.manual_seed(3)
    local m = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4))
    for _ = 1, 30 do m(moth.randn(1, 5)) end
    m:eval()
    local w = m.weight:detach()
    local v = moth.randn(5)
    for _ = 1, 50 do
      v = w:t():mv(w:mv(v))
      v = v / v:norm()
    end
    assert.is_near(1, w:mv(v):norm():item(), 1e-3)
    assert.is_true(m.weight:equal(m.weight))
  end)

  it("orthogonal keeps rows or columns orthonormal while training", function()
    for _, size in ipairs { { 4, 4 }, { 6, 3 }, { 3, 5 } } do
      local m = nn.utils.parametrizations.orthogonal(nn.Linear(size[1], size[2]):double())
      local opt = moth.optim.SGD(m:parameters(), { lr = 0.1 })
      for _ = 1, 3 do
        opt:zero_grad()
        m(moth.randn({ 2, size[1] }, { dtype = moth.float64 })):square():sum():backward()
        opt:step()
      end
      local w = m.weight:detach()
      local small = math.min(size[1], size[2])
      local product = size[2] <= size[1] and w:matmul(w:t()) or w:t():matmul(w)
      assert.is_true(product:allclose(moth.eye(small, { dtype = moth.float64 }), 1e-8, 1e-8))
    end
  end)
end)

describe("pruning #quick", function()
  local prune = nn.utils.prune
  it("holds elements at 0, and takes more the next time", function()
    local m = nn.Linear(4, 5)
    prune.l1_unstructured(m, "weight", 0.5)
    assert.equal(10, m.weight:eq(0):sum():item())
    assert.is_true(m.weight:abs():sum():item() > 0)
    prune.random_unstructured(m, "weight", 0.5)
    assert.equal(15, m.weight:eq(0):sum():item())
    m(moth.randn(2, 4)):sum():backward()
    assert.equal(0, m.weight_orig.grad:masked_select(m.weight_mask:eq(0)):abs():sum():item())
    assert.is_true(prune.is_pruned(nn.Sequential(m)))
    assert.equal("Linear(in_features=4, out_features=5, bias=True)", tostring(m))
    local zeros = m.weight:eq(0)
    prune.remove(m, "weight")
    assert.is_true(m.weight:eq(0):equal(zeros) and nn.Parameter.is(m.weight) and getmetatable(m) == nn.Linear)
    assert.error_matches(function() prune.remove(m, "weight") end, "is not pruned")
    assert.error_matches(function() prune.l1_unstructured(m, "weight", 1.5) end,
      "a share from 0 to 1, or a count up to 20")
  end)
  it("by slices, by a mask, over several modules", function()
    local m = nn.Conv2d(2, 4, 3)
    moth.no_grad(function() m.weight:select(1, 2):fill_(1e-6) end)
    prune.ln_structured(m, "weight", 1, 2, 1)
    assert.equal(0, m.weight:select(1, 2):abs():sum():item())
    assert.is_true(m.weight:select(1, 1):abs():sum():item() > 0)
    local a, b = nn.Linear(2, 2, false), nn.Linear(2, 2, false)
    moth.no_grad(function()
      a.weight:fill_(1)
      b.weight:fill_(0.1)
    end)
    prune.global_unstructured({ { a, "weight" }, { b, "weight" } }, "l1", 0.5)
    assert.same({ 0, 4 }, { a.weight:eq(0):sum():item(), b.weight:eq(0):sum():item() })
    local c = prune.custom_from_mask(nn.Linear(2, 2), "bias", moth.tensor { 0, 1 })
    assert.equal(0, c.bias[1]:item())
    assert.error_matches(function() prune.custom_from_mask(nn.Linear(2, 2), "bias", moth.ones(3)) end,
      "shape of 'bias'")
  end)
end)

describe("nn.utils #quick", function()
  it("folds batch norms into layers", function()
    local bn = nn.BatchNorm2d(4):eval()
    moth.no_grad(function()
      bn.running_mean:normal_()
      bn.running_var:uniform_(0.5, 2)
      bn.weight:normal_()
    end)
    local x = moth.randn(2, 3, 6, 6)
    for _, conv in ipairs { nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, { bias = false }), nn.ConvTranspose2d(3, 4, 3) } do
      conv:eval()
      local fused = nn.utils.fuse_conv_bn_eval(conv, bn, conv.__name == "ConvTranspose2d")
      assert.is_true(fused(x):allclose(bn(conv(x)), 1e-4, 1e-4))
    end
    local linear, bn1 = nn.Linear(3, 4):eval(), nn.BatchNorm1d(4):eval()
    bn1.running_mean:normal_()
    local y = moth.randn(2, 3)
    assert.is_true(nn.utils.fuse_linear_bn_eval(linear, bn1)(y):allclose(bn1(linear(y)), 1e-4, 1e-5))
    assert.error_matches(function() nn.utils.fuse_linear_bn_eval(linear, nn.BatchNorm1d(4)) end, "call eval")
  end)
  it("gives outputs inside a model by path #M171", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    local x = moth.randn(2, 3)
    local features = nn.utils.create_feature_extractor(net, { "0", "1.0" })
    local out = features(x)
    assert.is_true(out["0"]:equal(net[1](x)))
    assert.is_true(out["1.0"]:equal(net[1](x):relu()))
    assert.is_true(nn.utils.create_feature_extractor(net, { ["1.1"] = "head" })(x).head:equal(net(x)))
    assert.error_matches(function() nn.utils.create_feature_extractor(net, { "7" }) end, "no submodule '7'")
  end)
  it("changes state dicts by hooks and prefixes #M191", function()
    local net = nn.Linear(2, 2)
    local sd = nn.utils.consume_prefix_in_state_dict_if_present(nn.Sequential(net):state_dict(), "0.")
    assert.same({ "weight", "bias" }, sd:keys())
    local outer = nn.Sequential(nn.Linear(2, 2))
    local handle = outer[1]:register_load_state_dict_pre_hook(function(_, dict, prefix)
      dict[prefix .. "weight"], dict[prefix .. "w"] = dict[prefix .. "w"], nil
    end)
    outer:load_state_dict { ["0.w"] = moth.ones(2, 2), ["0.bias"] = moth.zeros(2) }
    assert.equal(4, outer[1].weight:sum():item())
    handle:remove()
    assert.error_matches(function() outer:load_state_dict { ["0.w"] = moth.ones(2, 2), ["0.bias"] = moth.zeros(2) } end,
      "missing keys")
    outer[1]:register_state_dict_post_hook(function(_, dict, prefix) dict[prefix .. "version"] = moth.tensor(3) end)
    assert.equal(3, outer:state_dict()["0.version"]:item())
    local seen
    outer:register_load_state_dict_post_hook(function(_, missing, unexpected) seen = { #missing, #unexpected } end)
    outer:load_state_dict({ ["0.bias"] = moth.zeros(2) }, false)
    assert.same({ 1, 0 }, seen)
  end)
end)

describe("grid_sample #quick", function()
  it("at an identity's grid gives the image back", function()
    local x = moth.randn({ 2, 3, 4, 5 }, { dtype = moth.float64 })
    local theta = moth.tensor({ { { 1, 0, 0 }, { 0, 1, 0 } } }, { dtype = moth.float64 }):expand(2, 2, 3)
    for _, corners in ipairs { true, false } do
      local grid = F.affine_grid(theta, { 2, 3, 4, 5 }, corners)
      for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
        assert.is_true(F.grid_sample(x, grid, mode, "border", corners):allclose(x, 1e-9, 1e-9))
      end
    end
    assert.error_matches(function() F.grid_sample(x, moth.zeros(2, 1, 1, 3)) end, "%[F.grid_sample%] expected")
  end)
end)

describe("ctc_loss #quick", function()
  -- The sum over all paths of 3 classes in T steps that give the target.
  local function by_paths(p, target, T, blank)
    local total = 0
    local function walk(t, path, product)
      if t > T then
        local out, last = {}, nil
        for _, k in ipairs(path) do
          if k ~= last and k ~= blank then out[#out + 1] = k end
          last = k
        end
        if table.concat(out, " ") == table.concat(target, " ") then total = total + product end
        return
      end
      for k = 1, 3 do
        path[t] = k
        walk(t + 1, path, product * p[t][k]:item())
      end
      path[t] = nil
    end
    walk(1, {}, 1)
    return -math.log(total)
  end

  it("is the probability of all alignments", function()
    local x = moth.randn({ 5, 3 }, { dtype = moth.float64 })
    for _, case in ipairs { { { 2, 3 }, 1 }, { { 2, 2 }, 1 }, { { 1 }, 3 }, { {}, 1 } } do
      local target, blank = unpack(case)
      local labels = #target > 0 and positions(target) or moth.zeros({ 0 }, { dtype = moth.int64 })
      local loss = F.ctc_loss(x:log_softmax(2), labels, 5, #target, blank, "sum")
      assert.is_near(by_paths(x:softmax(2), target, 5, blank), loss:item(), 1e-10)
    end
  end)
  it("has the right derivative, also with infinite losses", function()
    local x = moth.randn({ 4, 2, 3 }, { dtype = moth.float64, requires_grad = true })
    local function loss(v)
      return F.ctc_loss(v:log_softmax(3), positions { { 2, 3 }, { 3, 2 } }, positions { 4, 3 }, positions { 2, 1 })
    end
    assert.is_true(moth.autograd.gradcheck(loss, { x }))
    local impossible = F.ctc_loss(x:log_softmax(3), positions { 2, 2, 2, 3 }, positions { 4, 4 }, positions { 3, 1 },
      { zero_infinity = true, reduction = "none" })
    assert.equal(0, impossible[1]:item())
    impossible:sum():backward()
    assert.equal(0, x.grad:select(2, 1):abs():sum():item())
    assert.error_matches(function() F.ctc_loss(x, positions { { 1 }, { 2 } }, { 4, 4 }, { 1, 1 }) end, "is the blank")
    assert.equal(0, nn.CTCLoss { reduction = "sum" }(x:detach():mul(0), positions { { 2 }, { 2 } }, positions { 0, 0 },
      positions { 0, 0 }):item())
  end)
end)

describe("orthogonal #quick", function()
  local orthogonal = nn.utils.parametrizations.orthogonal

  local function layer(rows, columns, map, o)
    return orthogonal(nn.Linear(columns, rows):double(), "weight", map, o)
  end
  local function is_orthogonal(w)
    local g = w:size(-2) >= w:size(-1) and w.mT:matmul(w) or w:matmul(w.mT)
    return g:allclose(moth.eye(g:size(-1), { dtype = g:dtype() }):expand(g:size()), 1e-9, 1e-9)
  end

  it("holds for each map and shape, after steps too, and takes orthogonal values", function()
    for _, map in ipairs { "matrix_exp", "cayley", "householder" } do
      for _, size in ipairs { { 3, 3 }, { 2, 4 }, { 4, 2 } } do
        local m = layer(size[1], size[2], map)
        assert.is_true(is_orthogonal(m.weight:detach()))
        local before = m.weight:detach():clone()
        local sgd = moth.optim.SGD(m:parameters(), { lr = 0.1 })
        m(moth.randn({ 5, size[2] }, { dtype = moth.float64 })):square():sum():backward()
        sgd:step()
        assert.is_true(is_orthogonal(m.weight:detach()))
        assert.is_false(m.weight:detach():allclose(before))
        m.weight = before
        assert.is_true(m.weight:detach():allclose(before))
      end
    end
  end)
  it("begins without a base at reflections of the value; the other maps have no inverse", function()
    local q = moth.linalg.qr(moth.randn({ 4, 2 }, { dtype = moth.float64 }))
    local plain = nn.Linear(2, 4):double()
    plain.weight:detach():copy_(q)
    orthogonal(plain, "weight", "householder", { use_trivialization = false })
    assert.is_close(q, plain.weight:detach())
    local m = layer(3, 3, "cayley", { use_trivialization = false })
    assert.is_true(is_orthogonal(m.weight:detach()))
    assert.error_matches(function() m.weight = moth.eye(3):double() end, "no inverse without a base")
    assert.error_matches(function() layer(3, 3, "cayleigh") end, "orthogonal_map")
  end)
  it("takes batches of matrices", function()
    local conv = nn.Conv1d(3, 2, 4):double()
    orthogonal(conv)
    assert.is_true(is_orthogonal(conv.weight:detach()))
  end)
end)

describe("weight_norm of older programs #quick", function()
  it("loads weight_g and weight_v", function()
    local m = nn.utils.weight_norm(nn.Linear(2, 3))
    m:load_state_dict { bias = moth.zeros(3), weight_g = moth.full({ 3, 1 }, 2), weight_v = moth.ones(3, 2) }
    assert.is_close(moth.full({ 3, 2 }, math.sqrt(2)), m.weight:detach())
    nn.utils.remove_weight_norm(m)
    assert.equal(nn.Linear, getmetatable(m))
    assert.is_close(moth.full({ 3, 2 }, math.sqrt(2)), m.weight:detach())
  end)
end)

describe("pruning classes #quick", function()
  local prune = nn.utils.prune
  it("apply as the functions do, and take masks of one's own", function()
    local m = nn.Linear(4, 4)
    prune.L1Unstructured.apply(m, "weight", 0.5)
    assert.equal(8, m.weight:eq(0):sum():item())
    local First = require "moth.class" ("First", prune.BasePruningMethod)
    function First:__init(n) self.n = n end
    function First:compute_mask(_, mask)
      mask:view(-1):narrow(1, 1, self.n):zero_()
      return mask
    end
    First:apply(m, "bias", 3)
    assert.same({ true, true, true, false }, m.bias:eq(0):totable())
    prune.global_unstructured({ { m, "weight" } }, prune.L1Unstructured, 8)
    assert.equal(16, m.weight:eq(0):sum():item())
    assert.error_matches(function() prune.global_unstructured({ { m, "weight" } }, {}, 1) end, "pruning_method")
  end)
end)
