--- The checklist of the course, as demonstrations that pass or fail: what you should be able to do with moth, and where
-- each is taught.
--
--     moth examples/checklist.lua
local moth = require "moth"
local nn = moth.nn
moth.manual_seed(0)

local items = {}
local function item(text, page, run) items[#items + 1] = { text = text, page = page, run = run } end

item("explain strides, and why view sometimes fails", "phase01", function()
  local x = moth.arange(6):view(2, 3)
  local ok, why = pcall(x:t().view, x:t(), 6)
  return x:t():stride()[1] == 1 and not ok and why:find("reshape", 1, true)
    and not x:t():reshape(6):shares_storage(x)
end)

item("a Function with forward and backward of its own", "phase02", function()
  local cube = moth.autograd.Function {
    forward = function(ctx, t)
      ctx:save_for_backward(t)
      return t ^ 3
    end,
    backward = function(ctx, g) return g * 3 * ctx:saved_tensors() ^ 2 end,
  }
  return moth.autograd.gradcheck(cube.apply, { moth.randn(4, { dtype = moth.float64, requires_grad = true }) })
end)

item("backprop by hand through two layers", "phase02", function()
  local x, y = moth.randn(8, 3), moth.randn(8, 2)
  local w1, w2 = moth.randn(3, 5, { requires_grad = true }), moth.randn(5, 2, { requires_grad = true })
  local loss = ((x:mm(w1):tanh():mm(w2) - y) ^ 2):mean()
  loss:backward()
  return moth.no_grad(function()
    local h = x:mm(w1):tanh()
    local d = (h:mm(w2) - y) * (2 / 16)
    local dh = d:mm(w2:t()) * (1 - h ^ 2)
    return moth.allclose(h:t():mm(d), w2.grad) and moth.allclose(x:t():mm(dh), w1.grad, { atol = 1e-6 })
  end)
end)

item("an optimizer of one's own", "phase03", function()
  local Plain = moth.optim.class("Plain")
  Plain.__init = moth.optim.Optimizer.init("Plain", "number lr=1e-3")
  function Plain:step()
    moth.no_grad(function()
      for _, group in ipairs(self.param_groups) do
        for _, p in ipairs(group.params) do p:sub_(p.grad, group.lr) end
      end
    end)
  end
  local p, q = moth.ones(3, { requires_grad = true }), moth.ones(3, { requires_grad = true })
  for parameter, optimizer in pairs { [p] = Plain({ p }, { lr = 0.1 }), [q] = moth.optim.SGD({ q }, { lr = 0.1 }) } do
    (parameter ^ 2):sum():backward()
    optimizer:step()
  end
  return p:equal(q)
end)

item("a profiler trace, captured and read", "phase05", function()
  local net, path = nn.Linear(16, 16), os.tmpname()
  local prof = moth.profiler.profile({ record_shapes = true }, function() net(moth.randn(4, 16)):sum():backward() end)
  prof:export_chrome_trace(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  os.remove(path)
  return text:find('"traceEvents"', 1, true) and text:find("linear", 1, true) and #prof:key_averages() > 2
end)

item("bfloat16 or float16: range or precision", "phase05", function()
  local tiny, large = moth.tensor(1e-8), moth.tensor(1e6)
  return tiny:half():item() == 0 and large:half():isinf():item() and tiny:bfloat16():item() > 0
    and large:bfloat16():isfinite():item() and moth.tensor(1.001):bfloat16():item() == 1
end)

item("compile, and its graph breaks", "phase05", function()
  local function broken(t)
    local s = (t * 2):sum()
    if s:item() > 1e9 then return s end
    local y = t:relu()
    return y + 1
  end
  local x = moth.randn(10)
  return moth.allclose(moth.compile(broken)(x), broken(x))
    and moth.compile.explain(broken, x).graph_break_count == 1
end)

item("a kernel in Lua", "phase06", function()
  local tl = moth.kernel.lang
  local double = moth.kernel.jit(function(x_ptr, out_ptr, n, BLOCK)
    local offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    local mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, { mask = mask, other = 0 }) * 2, { mask = mask })
  end, { constexpr = { "BLOCK" } })
  local x = moth.randn(101)
  local out = moth.empty_like(x)
  double{ moth.kernel.cdiv(101, 32) }(x, out, 101, { BLOCK = 32 })
  return out:equal(x * 2)
end)

-- Each in two processes: the function has no upvalues, and an error in a rank is one here.
-- luacheck: push ignore 431
local function on_two(f) return (pcall(moth.multiprocessing.spawn, f, { nprocs = 2 })) end

item("training on several processes (DDP)", "phase07", function()
  return on_two(function(rank)
    local moth = require "moth"
    local dist, nn = moth.distributed, moth.nn
    dist.init_process_group "gloo"
    moth.manual_seed(0)
    local x, one = moth.randn(8, 4), nn.Linear(4, 1)
    local net = nn.parallel.DistributedDataParallel(one:clone())
    one(x):square():mean():backward()                                 -- one process, the whole batch
    net(x:narrow(1, rank * 4 + 1, 4)):square():mean():backward()      -- half of it, then the mean over ranks
    assert(moth.allclose(net:parameters()[1].grad, one.weight.grad, { atol = 1e-6 }))
    dist.destroy_process_group()
  end)
end)

item("a model sharded over several (FSDP)", "phase07", function()
  return on_two(function(rank)
    local moth = require "moth"
    local dist, nn = moth.distributed, moth.nn
    dist.init_process_group "gloo"
    moth.manual_seed(0)
    local x, one = moth.randn(8, 4), nn.Linear(4, 6)
    local net = one:clone()
    dist.fully_shard(net)
    assert(net.weight:size(1) == 3, "a rank has half of the rows")
    one(x):square():mean():backward()
    net(x:narrow(1, rank * 4 + 1, 4)):square():mean():backward()
    assert(moth.allclose(net.weight.grad, one.weight.grad:narrow(1, rank * 3 + 1, 3), { atol = 1e-6 }))
    dist.destroy_process_group()
  end)
end)

-- luacheck: pop
item("a model exported", "phase08", function()
  local net, x, path = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)):eval(), moth.randn(3, 4), os.tmpname()
  moth.export.save(moth.export(net, { x }, { dynamic_shapes = { { [1] = "batch" } } }), path)
  local same, other = moth.export.load(path), moth.randn(7, 4) -- a program without this code
  moth.onnx.export(net, { x }, path)
  os.remove(path)
  return moth.equal(same(other), net(other))
end)

item("a NaN, a leak and a difference between runs, diagnosed", "phase09", function()
  local Root = nn.class("Root")
  function Root.__init() end
  function Root.forward(_, x)
    local y = (-x - 1):sqrt()
    return y
  end
  local found = moth.debug.find_nan(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Root()), moth.ones(1, 2))
  local kept = {}
  local leak = moth.debug.leak_check(function() kept[#kept + 1] = moth.ones(64) end, { steps = 3 })
  local differs = moth.debug.compare_runs(function() return moth.rand(3):exp() end,
    function() return moth.rand(3):exp() * 2 end)
  return found.module == "2" and tostring(leak):find("checklist", 1, true)
    and not differs.equal and differs.first.op == "mul"
end)

item("a piece of the source, read", "phase10", function()
  local record = moth.library and require("moth.dispatch.ops").get("relu")
  local line = moth.dispatch.trace(function() return moth.ones(2):relu() end)[2]
  return record.place:find("src/ops/pointwise.lua", 1, true) and line:find("moth_cpu_pointwise", 1, true)
end)

local failed = 0
for i, it in ipairs(items) do
  local ok, result = pcall(it.run)
  local verdict = ok and result and "pass" or "FAIL" .. (ok and "" or ": " .. tostring(result))
  if verdict ~= "pass" then failed = failed + 1 end
  print(("%2d  %-58s docs/%s.md  %s"):format(i, it.text, it.page, verdict))
end
if failed > 0 then os.exit(1, true) end
