-- Tensor and sequence parallelism on one rank, against one process.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local nn, F, tp = moth.nn, moth.nn.functional, dist.tp
local close, same = compare.close, compare.same

-- Runs a module and its clone, cut by `plan`, and compares results, input's and parameters' gradients.
local function check(what, size, module, plan, x, o)
  o = o or {}
  local cut = module:clone()
  if o.before then o.before(cut) end
  tp.parallelize(cut, o.mesh or dist.device_mesh { size }, plan)
  local a, b = x:clone(), x:clone()
  if x:dtype().is_floating_point then
    a:requires_grad_()
    b:requires_grad_()
  end
  local call = o.call or function(m, v) return m(v) end
  local y, z = call(cut, a, true), call(module, b, false)
  close(what, y, z)
  same(what, y)
  moth.manual_seed(11)
  local w = moth.randn(z.shape)
  y:backward(w)
  z:backward(w)
  if a.grad then
    close(what .. " input", a.grad, b.grad)
    same(what .. " input", a.grad)
  end
  compare.modules(what, cut, module)
  local n = nn.utils.clip_grad_norm_(cut:parameters(), 0.1)
  close(what .. " norm", n, nn.utils.clip_grad_norm_(module:parameters(), 0.1))
  compare.modules(what .. " clipped", cut, module)
  return cut
end

return function(rank, size)
  moth.manual_seed(3)
  local mesh = dist.device_mesh({ size }, { "tp" })
  assert(mesh:rank "tp" == rank and mesh.tp:size() == size and mesh:group().size == size)
  local x = moth.randn(2, 8, 12)

  local mlp = nn.Sequential(nn.Linear(12, 10), nn.GELU(), nn.Linear(10, 5)) -- 10 is uneven for 3, 4, 8 ranks
  check("mlp", size, mlp, { ["0"] = "column", ["2"] = "row" }, x, { mesh = mesh })
  check("hidden", size, mlp:clone(), { [""] = "hidden" }, x)
  check("gather", size, mlp:clone(), { ["0"] = tp.ColwiseParallel { output_layouts = "replicate" },
    ["2"] = tp.RowwiseParallel { input_layouts = "replicate" } }, x)
  local frozen = mlp:clone()
  frozen[1].weight:requires_grad_(false)
  check("frozen", size, frozen, { ["*"] = "replicate" }, x)
  check("frozen", size, frozen:clone(), { ["0"] = "column", ["2"] = "row" }, x)

  -- one weight of query, key and value, by heads of 3
  local qkv = nn.Linear(12, 3 * 24)
  check("parts", size, qkv, { [""] = { "column", parts = 3, unit = 3 } }, x, { call = function(m, v, is_cut)
    local y = m(v)
    local q, k, w = unpack(y:chunk(3, -1))
    local z = q * k + w -- 24 features, 8 heads
    return is_cut and tp.gather(z:view(2, 8, -1, 3), 3, mesh, 8):view(2, 8, 24) or z
  end })

  -- attention by heads #M388
  local mha = nn.MultiheadAttention(24, 8, { batch_first = true })
  local wide = moth.randn(2, 8, 24)
  check("attention", size, mha, { [""] = "heads" }, wide, { call = function(m, v)
    return (m(v, v, v, nil, false, nil, true, true))
  end })
  local three = nn.MultiheadAttention(24, 8, { kdim = 5, vdim = 6, add_bias_kv = true })
  local key, value = moth.randn(7, 3, 5), moth.randn(7, 3, 6)
  check("attention of three", size, three, { [""] = "heads" }, moth.randn(4, 3, 24), { call = function(m, v)
    return (m(v, key, value, nil, false))
  end })

  -- a block, then with the sequence cut between its layers #M388 #M413
  local function block() return nn.TransformerEncoderLayer(24, 8, 20, 0, { batch_first = true, norm_first = true }) end
  local calls = dist.stats(mesh:group()).calls.all_reduce
  check("block", size, block(), { self_attn = "heads", linear1 = "column", linear2 = "row" }, wide, { mesh = mesh,
    call = function(m, v, is_cut)
      if not is_cut then return m(v) end
      calls = dist.stats(mesh:group()).calls.all_reduce
      local y = m(v)
      assert(dist.stats(mesh:group()).calls.all_reduce - calls == 2, "an all_reduce for attention, one for the MLP")
      calls = calls + 2
      return y
    end })
  check("sequence", size, block(), { self_attn = "heads", linear1 = "column", linear2 = "row", sequence = true },
    moth.randn(2, 24, 24), { mesh = mesh, call = function(m, v, is_cut)
      if not is_cut then return m(v) end
      local part = tp.split(v, 2, mesh)
      local y = m(part)
      assert(y:size(2) == 24 / size)
      return tp.gather(y, 2, mesh)
    end })

  -- models of moth.models
  if 4 % size == 0 then
    local plan = { ["h.*.attn.c_attn"] = { "column", parts = 3, unit = 4 }, ["h.*.attn.c_proj"] = "row",
      ["h.*.c_fc"] = "column", ["h.*.c_proj"] = "row" }
    local words = moth.randint(1, 12, { 2, 6 })
    check("GPT", size, moth.models.GPT { vocab_size = 11, n_layer = 2, n_head = 4, n_embd = 16, block_size = 8 }, plan,
      words)
    local names = {}
    for name in ("q_proj k_proj v_proj"):gmatch "%S+" do names["model.*.*.*." .. name] = { "column", unit = 4 } end
    for name in ("gate_proj up_proj"):gmatch "%S+" do names["model.*.*.*." .. name] = "column" end
    for name in ("o_proj down_proj"):gmatch "%S+" do names["model.*.*.*." .. name] = "row" end
    check("Llama", size, moth.models.Llama { vocab_size = 11, hidden_size = 16, intermediate_size = 20,
      num_hidden_layers = 2, num_attention_heads = 8 / 2, num_key_value_heads = math.max(2, size), head_dim = 4 },
      names, words)
  end

  -- embeddings by rows and by columns, the loss on a cut vocabulary
  local ids = moth.randint(1, 14, { 3, 5 })
  check("vocabulary", size, nn.Embedding(13, 6, 2), { [""] = "row" }, ids)
  check("columns", size, nn.Embedding(13, 9), { [""] = "column" }, ids)
  local head, targets = nn.Linear(12, 13), moth.tensor({ 1, 13, 4, -100, 7, 8, 9, 2 }, { dtype = moth.int64 })
  for _, smoothing in ipairs { 0, 0.1 } do
    check("loss", size, head:clone(), { [""] = "column" }, moth.randn(8, 12), { call = function(m, v, is_cut)
      local o = { label_smoothing = smoothing }
      if not is_cut then return F.cross_entropy(m(v), targets, o) end
      o.num_classes, o.mesh = 13, mesh
      return tp.cross_entropy(m(v), targets, o)
    end })
  end
  if 16 % size == 0 then
    local logits = moth.randn(4, 16)
    local goal = moth.tensor({ 3, 16, 1, 9 }, { dtype = moth.int64 })
    local loss = tp.loss_parallel(mesh, function() return F.cross_entropy(tp.split(logits, 2, mesh), goal) end)
    close("loss_parallel", loss, F.cross_entropy(logits, goal))
    local criterion = nn.CrossEntropyLoss { reduction = "sum", label_smoothing = 0.2 }
    loss = tp.loss_parallel(mesh, function() return criterion(tp.split(logits, 2, mesh), goal) end)
    close("loss_parallel", loss, criterion(logits, goal))
  end

  -- layers #M387
  local colwise = tp.ColumnParallelLinear(12, 20, { gather_output = true })
  local rowwise = tp.RowParallelLinear(20, 12, { input_is_parallel = false })
  local y = rowwise(colwise(x))
  close("layers", y, F.linear(F.linear(x, dist.full_tensor(colwise.weight), colwise.bias and
    dist.full_tensor(colwise.bias)), dist.full_tensor(rowwise.weight), rowwise.bias))
  local c = math.ceil(20 / size)
  assert(colwise.weight:size(1) == math.max(0, math.min(c, 20 - rank * c)))
  assert(tostring(tp.VocabParallelEmbedding(9, 4)(moth.tensor({ 9 }, { dtype = moth.int64 })):size()) == "[1, 4]")

  -- gradients across ranks
  local small = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)):double()
  tp.parallelize(small, mesh, { ["0"] = "column", ["2"] = "row" })
  local v = moth.randn({ 2, 3 }, { dtype = moth.float64 }):requires_grad_()
  assert(moth.autograd.gradcheck(function(t) return small(t) end, v))
  assert(moth.autograd.gradgradcheck(function(t) return small(t) end, v))
  assert(moth.autograd.gradcheck(function(t) return tp.gather(tp.split(t, 2, mesh):exp(), 2, mesh, 3) end, v))

  -- errors
  local function fails(text, fn, ...)
    local ok, message = pcall(fn, ...)
    assert(not ok and message:find(text, 1, true), message)
  end

  -- weights that are tied stay so
  local Tied = nn.class("Tied")
  function Tied:__init()
    self.e, self.h = nn.Embedding(9, 6), nn.Linear(6, 9, { bias = false })
    self.h.weight = self.e.weight
  end
  function Tied:forward(index) return self.h(self.e(index)) end
  local one = Tied()
  local tied = one:clone()
  assert(tied.h.weight == tied.e.weight)
  fails("parameter 'h.weight' is shared with Embedding.weight, which is cut along dimension 1", tp.parallelize,
    tied:clone(), mesh, { e = "row" })
  fails("is shared with Embedding.weight, which is cut along dimension 1", tp.parallelize, tied:clone(), mesh,
    { e = "row", h = "row" })
  tp.parallelize(tied, mesh, { e = "row", h = tp.ColwiseParallel { output_layouts = "replicate" } })
  local words = moth.tensor({ 1, 5, 9, 3 }, { dtype = moth.int64 })
  for _ = 1, 2 do
    for _, m in ipairs { one, tied } do
      m:zero_grad()
      m(words):square():sum():backward()
      moth.optim.LAMB(m:parameters(), { lr = 0.1 }):step()
    end
    compare.modules("tied", tied, one, 1e-5)
  end
  fails("no module is called '3' in Sequential", tp.parallelize, mlp, mesh, { ["3"] = "row" })
  fails("expected a style", tp.parallelize, mlp, mesh, { ["0"] = "rows" })
  fails("style 'heads' takes nn.MultiheadAttention, got nn.Linear", tp.parallelize, mlp, mesh, { ["0"] = "heads" })
  fails("unknown option 'part'", tp.parallelize, mlp, mesh, { ["0"] = { "column", part = 2 } })
  fails("dimension 1 has 10 rows, which 3 blocks of units of 1 do not divide", tp.parallelize, mlp:clone(), mesh,
    { ["0"] = { "column", parts = 3 } })
  if size > 2 then
    fails("with 2 heads has none for rank " .. size - 1, tp.parallelize, nn.MultiheadAttention(4, 2), mesh,
      { [""] = "heads" })
  end
  if size == 3 then fails("3 ranks do not divide", dist.nn.reduce_scatter, moth.ones(4)) end
  if size % 2 == 0 then
    local two = dist.device_mesh({ size / 2, 2 }, { "dp", "tp" })
    fails("expected a mesh of one dimension, got DeviceMesh(dp=" .. size / 2 .. ", tp=2)", tp.parallelize, mlp, two, {})
    check("mlp of two", size, mlp:clone(), { ["0"] = "column", ["2"] = "row" }, x, { mesh = two.tp })
  end
  dist.barrier()
end
