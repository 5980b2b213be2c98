-- Loaders and CUDA: pinned batches, tensors of a device from workers, copies beside the computation.
local moth = require "moth"
local data = moth.data

describe("data for CUDA", function()
  if not moth.cuda.is_available() then
    pending("needs CUDA")
    return
  end

  it("pins batches, in tables too, with workers and without #M227", function()
    local D = data.Dataset:subclass("D")
    function D.size() return 4 end
    function D.get(_, i) return moth.full({ 2 }, i), { a = moth.ones(1), list = { i, { moth.ones(3), "text" } } } end
    for n = 0, 1 do
      local loader = data.DataLoader(D(), { batch_size = 2, pin_memory = true, num_workers = n })
      local batches = 0
      for x, t in loader:iter() do
        batches = batches + 1
        assert.is_true(x:is_pinned() and t.a:is_pinned() and t.list[1]:is_pinned() and t.list[2][1]:is_pinned())
        assert.same({ "text", "text" }, t.list[2][2])
        assert.same({ { 1, 1 }, { 2, 2 } }, batches == 1 and x:totable() or { { 1, 1 }, { 2, 2 } })
      end
      assert.equal(2, batches)
    end
  end)

  it("a worker may use CUDA: it is a thread, not a fork #M222", function()
    local D = data.Dataset:subclass("D")
    function D.size() return 6 end
    function D.get(_, i) return moth.full({ 3 }, i):cuda() * 2 end
    local sum = 0
    for x in data.DataLoader(D(), { batch_size = 2, num_workers = 2 }):iter() do
      assert.equal("cuda", x:device().type)
      sum = sum + x:sum():item()
    end
    assert.equal(2 * 3 * 21, sum)
  end)

  it("copies of the next batch go beside the computation #M241", function()
    local x = moth.randn(50, 8)
    local loader = data.DataLoader(data.TensorDataset(x, moth.arange(1, 51)), { batch_size = 8, pin_memory = true,
      num_workers = 1 })
    local seen, w = {}, moth.randn(8, 8):cuda()
    for a, i in data.prefetcher(loader, "cuda") do
      assert.equal("cuda", a:device().type)
      for _ = 1, 3 do a = a:mm(w) end
      seen[#seen + 1] = i:cpu()
      assert.is_true(a:isfinite():all():item())
    end
    assert.is_true(moth.equal(moth.arange(1, 51), moth.cat(seen)))
  end)

  it("moth.diagnose: copies that take the time are transfer bound #M240", function()
    local batch = moth.randn(2000, 1000)
    local loader = { iter = function() return function() return batch end end }
    local r = moth.diagnose(loader, function(x) assert.is_true(x:is_cuda()) end,
      { steps = 5, device = "cuda", quiet = true })
    assert.equal("transfer bound", r.verdict)
    assert.matches("pin_memory = true", r.advice)
  end)
end)
