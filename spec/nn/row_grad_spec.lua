-- Embeddings whose gradient has only the rows that were read, and optimizers that use such gradients.
local moth = require "moth"
local nn, optim, F = moth.nn, moth.optim, moth.nn.functional
local function int(t) return moth.tensor(t, { dtype = moth.int64 }) end
local function close(a, b) assert.is_true(moth.allclose(a, b, 1e-5, 1e-6)) end

-- Two embeddings with the same values.
local function pair(options)
  local dense = nn.Embedding(7, 3, options)
  local sparse = nn.Embedding(7, 3, { sparse = true, padding_idx = options and options.padding_idx })
  sparse:load_state_dict(dense:state_dict())
  return dense, sparse
end
local index, weights = int { { 2, 5, 2 }, { 7, 2, 1 } }, moth.randn(2, 3, 3)
local function loss_of(m, w) return (m(index) * (w or weights)):sum() end

describe("sparse embedding #M118 #quick", function()
  it("has a row gradient, which accumulates and equals the dense one", function()
    local dense, sparse = pair()
    close(dense(index), sparse(index))
    for _ = 1, 2 do
      loss_of(dense):backward()
      loss_of(sparse):backward()
    end
    local g = sparse.weight.grad
    assert.is_true(g:is_sparse())
    assert.is_false(dense.weight.grad:is_sparse())
    assert.equal(12, g:indices():numel())
    close(g:to_dense(), dense.weight.grad)
    assert.equal("[1, 12]", tostring(g:indices():size()))
    g = g:coalesce()
    assert.same({ { 1, 2, 5, 7 } }, g:indices():totable())
    assert.equal("[4, 3]", tostring(g:values():size()))
    close(g:to_dense(), dense.weight.grad)
    assert.matches("%[moth.float32 7x3, cpu, sparse COO, nnz = 4%]$", tostring(g))
    assert.same({ 7, 3 }, { unpack(g:size()) })
    sparse:zero_grad()
    assert.is_nil(sparse.weight.grad)
    loss_of(sparse):backward()
    sparse.weight.grad = nil
    assert.is_nil(sparse.weight.grad)
    assert.equal("Embedding(7, 3, sparse=True)", tostring(sparse))
  end)

  it("runs the hooks of the weight, with an ordinary gradient", function()
    local dense, sparse = pair()
    local seen = {}
    local doubled = sparse.weight:register_hook(function(g)
      seen[#seen + 1] = g:size(1)
      return g * 2
    end)
    local after = sparse.weight:register_post_accumulate_grad_hook(function(p) seen[#seen + 1] = p.grad:is_sparse() end)
    loss_of(dense):backward()
    local loss = loss_of(sparse) + loss_of(sparse) -- two lookups, one gradient
    loss:backward()
    assert.same({ 7, false }, seen)
    close(sparse.weight.grad, dense.weight.grad * 4)
    doubled:remove()
    after:remove()
    loss_of(sparse):backward() -- rows again, added to the ordinary gradient
    close(sparse.weight.grad, dense.weight.grad * 5)
    sparse.weight.grad = nil
    loss_of(sparse):backward()
    assert.is_true(sparse.weight.grad:is_sparse())
    sparse.weight:register_hook(function() seen[#seen + 1] = "late" end) -- there is a row gradient already
    loss_of(sparse):backward()
    assert.equal("late", seen[3])
    close(sparse.weight.grad, dense.weight.grad * 2)
  end)

  it("leaves out the padding row", function()
    local dense, sparse = pair { padding_idx = 2 }
    loss_of(dense):backward()
    loss_of(sparse):backward()
    assert.equal(3, sparse.weight.grad:indices():numel())
    close(sparse.weight.grad:to_dense(), dense.weight.grad)
  end)

  it("adds to an ordinary gradient of a tied weight, in either order", function()
    for _, first in ipairs { true, false } do
      local dense, sparse = pair()
      local x = moth.randn(2, 3)
      for _, m in ipairs { dense, sparse } do
        if first then loss_of(m):backward() end
        F.linear(x, m.weight):sum():backward()
        if not first then loss_of(m):backward() end
      end
      assert.is_false(sparse.weight.grad:is_sparse())
      close(sparse.weight.grad, dense.weight.grad)
    end
  end)

  it("feeds SGD and Adagrad, whose steps are those of the dense gradient", function()
    for _, make in ipairs {
      function(p) return optim.SGD(p, { lr = 0.1 }) end,
      function(p) return optim.Adagrad(p, { lr = 0.1, lr_decay = 0.1 }) end,
    } do
      local dense, sparse = pair()
      local before = dense.weight:detach():clone()
      local a, b = make(dense:parameters()), make(sparse:parameters())
      for _ = 1, 3 do
        a:zero_grad()
        b:zero_grad()
        loss_of(dense):backward()
        loss_of(sparse):backward()
        a:step()
        b:step()
      end
      close(dense.weight, sparse.weight)
      assert.is_false(moth.allclose(before, sparse.weight))
      assert.is_true(moth.equal(before[3], sparse.weight[3])) -- a row that was not read
    end
  end)

  it("is clipped with the other gradients", function()
    local dense, sparse = pair()
    loss_of(dense):backward()
    loss_of(sparse):backward()
    local a, b = nn.utils.clip_grad_norm_(dense:parameters(), 0.5), nn.utils.clip_grad_norm_(sparse:parameters(), 0.5)
    close(a, b)
    close(sparse.weight.grad:to_dense(), dense.weight.grad)
  end)

  it("is an ordinary one where the weight is no leaf, and none without recording", function()
    local w = moth.randn(7, 3, { requires_grad = true })
    F.embedding(index, w * 2, { sparse = true }):sum():backward()
    assert.is_false(w.grad:is_sparse())
    local _, sparse = pair()
    assert.is_false(moth.no_grad(function() return sparse(index) end):requires_grad())
  end)

  it("saves positions by the saved-tensor hooks in force", function()
    local _, sparse = pair()
    local seen
    local loss = moth.autograd.graph.saved_tensors_hooks(function(x)
      if x:dtype() == index:dtype() then seen = x:numel() end
      return x
    end, function(x) return x end, function() return sparse(index):sum() end)
    loss:backward()
    assert.equal(index:numel(), seen)
    assert.is_true(sparse.weight.grad:is_sparse())
  end)

  it("says who does not take it", function()
    local _, sparse = pair()
    local adam = optim.Adam(sparse:parameters())
    loss_of(sparse):backward()
    assert.error_matches(function() adam:step() end, "optim.Adam does not take row gradients")
    assert.error_matches(function() optim.SGD(sparse:parameters(), { lr = 1, momentum = 0.9 }):step() end,
      "without momentum")
    assert.error_matches(function() moth.autograd.grad(loss_of(sparse), sparse.weight) end, "autograd.grad does not")
    sparse:zero_grad()
    adam:step()
    loss_of(sparse):backward() -- and after that error backward works as before
    assert.is_true(sparse.weight.grad:is_sparse())
  end)

  it("goes with its parameter", function()
    local base = moth.memory.stats().live
    for _ = 1, 20 do
      local _, sparse = pair()
      loss_of(sparse):backward()
    end
    for _ = 1, 4 do
      collectgarbage()
      moth.zeros(1)
    end
    collectgarbage()
    assert.is_true(moth.memory.stats().live <= base + 4096)
  end)
end)
