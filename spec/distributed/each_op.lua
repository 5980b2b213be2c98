-- The collective ops on one rank: values against moth.distributed's calls, derivatives by the adjoint: summed over the
-- ranks, <w, A x> is <A' w, x>, and differentiating A' w again gives A.
local moth = require "moth"
local dist = require "moth.distributed"

local function total(x)
  local t = x:sum():view(1):to(moth.float64)
  dist.all_reduce(t)
  return t[1]:item()
end

local function adjoint(what, x, op)
  x = x:to(moth.float64):requires_grad_()
  local y = op(x)
  local w = moth.randn(y.shape, { dtype = moth.float64 }):requires_grad_()
  local g = moth.autograd.grad({ y }, { x }, { grad_outputs = { w }, create_graph = true })
  local a, b = total(w:detach() * y:detach()), total(g:detach() * x:detach())
  assert(math.abs(a - b) < 1e-9 * (1 + math.abs(a)), what .. ": " .. a .. " " .. b)
  local v = moth.randn(x.shape, { dtype = moth.float64 })
  local again = moth.autograd.grad({ g }, { w }, { grad_outputs = { v } })
  assert(moth.allclose(again, op(v), 1e-12, 1e-12), what .. " twice")
end

return function(rank, size)
  moth.manual_seed(rank + 1)
  local D = dist.nn
  local x = moth.randn(2 * size, 3)
  local sum = x:clone()
  dist.all_reduce(sum)
  assert(moth.equal(D.all_reduce(x), sum), "all_reduce")
  assert(moth.allclose(D.all_reduce(x, { op = "avg" }), sum / size), "avg")
  local most = x:clone()
  dist.all_reduce(most, { op = "max" })
  assert(moth.equal(D.all_reduce(x, { op = "max" }), most), "max")
  local all = moth.empty(2 * size * size, 3)
  dist.all_gather_into_tensor(all, x)
  assert(moth.equal(D.all_gather(x), all), "all_gather")
  assert(D.all_gather(x, { dim = 2 }).shape[2] == 3 * size and D.all_gather(x, { dim = -1 }):size(1) == 2 * size)
  assert(moth.equal(D.reduce_scatter(x), sum:narrow(1, 2 * rank + 1, 2)), "reduce_scatter")
  assert(moth.equal(D.shift(moth.full({ 2 }, rank)), moth.full({ 2 }, (rank - 1) % size)), "shift")
  assert(D.broadcast(moth.full({ 2 }, rank), size - 1)[1]:item() == size - 1, "broadcast")
  assert(D.reduce(moth.ones(2), 0)[1]:item() == (rank == 0 and size or 0), "reduce")
  assert(moth.equal(D.copy_to(x), x) and moth.equal(D.reduce_from(x), sum))

  adjoint("all_reduce", x:t(), D.all_reduce)
  adjoint("all_gather", x, function(t) return D.all_gather(t, { dim = 2 }) end)
  adjoint("reduce_scatter", x, D.reduce_scatter)
  adjoint("broadcast", x, function(t) return D.broadcast(t, size - 1) end)
  adjoint("reduce", x, function(t) return D.reduce(t, 0) end)
  adjoint("shift", x, D.shift)
  adjoint("all_to_all", x, D.all_to_all)
  local rows = {}
  for r = 0, size - 1 do rows[r + 1] = (rank + r) % 2 + 1 end
  local n = 0
  for _, k in ipairs(rows) do n = n + k end
  adjoint("all_to_all", moth.randn(n, 2), function(t) return D.all_to_all(t, rows, rows) end)

  -- Megatron's pair: what is cut over the ranks between copy_to and reduce_from is as if it were whole
  moth.manual_seed(5)
  local whole, input = moth.randn(4 * size, 6), moth.randn(3, 6)
  local a, b = input:clone():requires_grad_(), input:clone():requires_grad_()
  local part = whole:narrow(1, 4 * rank + 1, 4)
  local y = D.reduce_from(D.copy_to(a):matmul(part:t()):pow(2):sum(2))
  local z = b:matmul(whole:t()):pow(2):sum(2)
  y:sum():backward()
  z:sum():backward()
  assert(moth.allclose(y, z, 1e-4, 1e-4) and moth.allclose(a.grad, b.grad, 1e-4, 1e-4), "copy_to and reduce_from")

  -- as any op: counted, traced, on fakes, in errors
  assert(moth.dispatch.count(function() D.all_gather(x) end) == 1, "counted")
  local ok, message = pcall(D.reduce_scatter, moth.randn(size * 2 + 1))
  assert(size == 1 or not ok and message:find(size .. " ranks do not divide", 1, true), message)
  dist.barrier()
end
