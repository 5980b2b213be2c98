--- The rows of the table. Each has: name, threads, unit, torch = { row, size } of torch_server.py; goal.floor and
-- goal.torch, limits of the time as multiples of the floor's and PyTorch's; and make(threads), which returns moth(n)
-- and floor(n), which run n iterations, and check(): whether both computed the same.
local ffi = require "ffi"
local moth = require "moth"
local floor = require "bench.floor"
local C = floor.C

local rows = {}

local function row(r)
  r.goal = r.goal or {}
  r.goal.torch = r.goal.torch or 1
  rows[#rows + 1] = r
end

local function pointer(t) return ffi.cast("const float *", t:detach():data()) end

-- A result buffer of the floor, and the same bytes as a tensor.
local function buffer(...)
  local n = 1
  for _, s in ipairs({ ... }) do n = n * s end
  local p = ffi.gc(ffi.cast("float *", C.floor_buffer(n * 4)), C.floor_release)
  return p, moth.from_ptr(p, { ... })
end

-- tiny tensors ------------------------------------------------------------------------------------

local function tiny(grad, drop)
  return function()
    local a, b = moth.randn(2, 3, { requires_grad = grad }), moth.randn(2, 3)
    local pa, pb, out, t = pointer(a), pointer(b), buffer(2, 3)
    return {
      moth = drop and function(n)
        for _ = 1, n do local _ = a + b end
      end or function(n)
        for _ = 1, n do
          local c = a + b
          c:free()
        end
      end,
      floor = function(n) C.floor_tiny(out, pa, pb, grad and 1 or 0, n) end,
      check = function() return moth.allclose((a + b):detach(), t) end,
    }
  end
end

row { name = "tiny add, freed", unit = "ns", torch = { "tiny", 0 }, absolute = 300, make = tiny(false, false) }
row { name = "tiny add, dropped", unit = "ns", torch = { "tiny", 0 }, absolute = 300, make = tiny(false, true) }
row { name = "tiny add with grad, freed", unit = "ns", torch = { "tiny_grad", 0 }, make = tiny(true, false) }
row { name = "tiny add with grad, dropped", unit = "ns", torch = { "tiny_grad", 0 }, make = tiny(true, true) }

local function chain(forward)
  return function()
    local x = (moth.rand(3, 3) * 0.02 + 0.99):requires_grad_(true)
    local one, px, dx, t = moth.ones(3, 3), pointer(x), buffer(3, 3)
    local function make()
      local y = x
      for _ = 1, 100 do y = y * x end
      return y
    end
    local y = make()
    return {
      moth = forward and function(n)
        for _ = 1, n do
          x.grad = nil
          make():backward(one)
        end
      end or function(n)
        for _ = 1, n do
          x.grad = nil
          y:backward(one, { retain_graph = true })
        end
      end,
      floor = function(n) C.floor_chain(dx, px, 100, forward and 1 or 0, n) end,
      check = function() return moth.allclose(x.grad, t, 1e-4) end,
    }
  end
end

row { name = "chain of 100 muls, both ways", unit = "us", torch = { "chain", 0 }, make = chain(true) }
row { name = "chain of 100 muls, backward", unit = "us", torch = { "chain_backward", 0 }, goal = { torch = 0.4 },
  make = chain(false) }

-- pointwise ---------------------------------------------------------------------------------------

for op, name in ipairs({ "add", "exp", "tanh", "gelu" }) do
  for _, size in ipairs({ 1e5, 1e6, 1e7 }) do
    row { name = ("%s 1e%d"):format(name, math.log10(size) + 0.5), threads = { 1, 2 }, unit = "us",
      torch = { name, size }, goal = { floor = 1.25 }, make = function(threads)
        local a, b, f = moth.randn(size), name == "add" and moth.randn(size) or nil, moth[name]
        local pa, pb, out, t = pointer(a), b and pointer(b), buffer(size)
        return {
          moth = b and function(n)
            for _ = 1, n do
              local c = f(a, b)
              c:free()
            end
          end or function(n)
            for _ = 1, n do
              local c = f(a)
              c:free()
            end
          end,
          floor = function(n) C.floor_pointwise(op - 1, out, pa, pb, size, threads, n) end,
          check = function() return moth.allclose(f(a, b), t, 1e-5, 1e-7) end,
        }
      end }
  end
end

-- sum, softmax ------------------------------------------------------------------------------------

row { name = "sum 4096x1024", threads = { 1, 2 }, unit = "us", torch = { "sum", 0 }, goal = { floor = 1.25 },
  make = function(threads)
    local a = moth.rand(4096, 1024)
    local pa, sum = pointer(a), 0
    return {
      moth = function(n)
        for _ = 1, n do
          local c = moth.sum(a)
          c:free()
        end
      end,
      floor = function(n) sum = C.floor_sum(pa, 4096 * 1024, threads, n) end,
      check = function() return math.abs(moth.sum(a):item() - sum) < 1e-5 * sum end,
    }
  end }

row { name = "softmax 4096x1024", threads = { 1, 2 }, unit = "us", torch = { "softmax", 0 }, goal = { floor = 1.25 },
  make = function(threads)
    local a = moth.randn(4096, 1024)
    local pa, out, t = pointer(a), buffer(4096, 1024)
    return {
      moth = function(n)
        for _ = 1, n do
          local c = moth.softmax(a, 2)
          c:free()
        end
      end,
      floor = function(n) C.floor_softmax(out, pa, 4096, 1024, threads, n) end,
      check = function() return moth.allclose(moth.softmax(a, 2), t, 1e-5, 1e-7) end,
    }
  end }

-- gemm, training step -----------------------------------------------------------------------------

for _, size in ipairs(floor.has_blas and { 256, 512, 1024 } or {}) do
  row { name = ("gemm %d"):format(size), threads = { 1, 2 }, unit = "us", torch = { "gemm", size }, pairs = 31,
    goal = { floor = 1.05 }, make = function(threads)
      local a, b = moth.randn(size, size), moth.randn(size, size)
      local pa, pb, out, t = pointer(a), pointer(b), buffer(size, size)
      return {
        moth = function(n)
          for _ = 1, n do
            local c = moth.mm(a, b)
            c:free()
          end
        end,
        floor = function(n) C.floor_gemm(out, pa, pb, size, threads, n) end,
        check = function() return moth.allclose(moth.mm(a, b), t, 1e-4, 1e-4 * size) end,
      }
    end }
end

local function network()
  local nn = moth.nn
  return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.2),
    nn.Linear(256, 10))
end

local function flat(model)
  local all = {}
  for _, p in ipairs(model:parameters()) do all[#all + 1] = p:detach():reshape(-1) end
  return moth.cat(all, 1)
end

-- Five steps without dropout from the same parameters, here and in the floor.
local function same_steps(x, labels, px, plabels, threads)
  local model, criterion = network(), moth.nn.CrossEntropyLoss()
  model:eval()
  local optimizer = moth.optim.Adam(model:parameters(), { lr = 1e-3 })
  C.floor_step_init(pointer(flat(model)))
  for _ = 1, 5 do
    optimizer:zero_grad()
    local loss = criterion(model(x), labels)
    loss:backward()
    optimizer:step()
    if math.abs(loss:item() - C.floor_step(px, plabels, 0, threads, 1)) > 1e-3 then return false end
  end
  local p, t = buffer(tonumber(C.floor_step_size()))
  C.floor_step_params(p)
  return (flat(model) - t):abs():mean():item() < 1e-5
end

if floor.has_blas then
  row { name = "training step", threads = { 1, 2 }, unit = "us", torch = { "step", 0 }, goal = { floor = 1.25 },
    make = function(threads)
      local model, criterion = network(), moth.nn.CrossEntropyLoss()
      local optimizer = moth.optim.Adam(model:parameters(), { lr = 1e-3 })
      local x, labels = moth.rand(64, 784), moth.randint(1, 11, { 64 })
      local px, plabels = pointer(x), ffi.cast("const int64_t *", labels:data())
      local agree = same_steps(x, labels, px, plabels, threads)
      C.floor_step_init(pointer(flat(model)))
      return {
        moth = function(n)
          for _ = 1, n do
            optimizer:zero_grad()
            local loss = criterion(model(x), labels)
            loss:backward()
            optimizer:step()
          end
        end,
        floor = function(n) C.floor_step(px, plabels, 0.2, threads, n) end,
        check = function() return agree end,
        keep = { x, labels },
      }
    end }
end

for _, file in ipairs { "bench.rows_conv", "bench.rows_nn" } do
  for _, r in ipairs(require(file)) do
    r.goal, r.threads, r.unit = { torch = 1, floor = 1.25 }, { 1, 2 }, "us"
    rows[#rows + 1] = r
  end
end

return rows
