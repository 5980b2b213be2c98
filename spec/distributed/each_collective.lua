-- Every collective, on one rank, against values computed here: run by collectives_spec on processes and on threads.
local moth = require "moth"
local dist = require "moth.distributed"

local kinds = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "complex64" }

local function same(a, b, what)
  a, b = a:to(moth.float64), b:to(moth.float64)
  assert(moth.equal(moth.tensor(a.shape), moth.tensor(b.shape)), what .. ": shapes")
  assert(moth.equal(a, b), what)
end

-- What rank r gives: small integers, which all dtypes hold.
local function of(r, n, kind)
  return ((moth.arange(n) * (r + 1) + r) % 4):to(moth[kind or "float32"])
end

-- Values that do not differ between ranks, reduced by `op`.
local function reduced(op, n, size, kind)
  local x = of(0, n, kind):to(moth.float64)
  for r = 1, size - 1 do
    local y = of(r, n, kind):to(moth.float64)
    x = op == "prod" and x * y or op == "min" and x:minimum(y) or op == "max" and x:maximum(y) or x + y
  end
  return op == "avg" and x / size or x
end

return function(rank, size)
  -- sizes: none, fewer than ranks, odd, beyond what goes around the ring
  for _, n in ipairs { 0, 1, size - 1, 1001, 70001 } do
    for _, op in ipairs { "sum", "avg", "max", "min" } do
      local t = of(rank, n)
      dist.all_reduce(t, { op = op })
      assert(moth.allclose(t:to(moth.float64), reduced(op, n, size), 1e-6, 1e-6), "all_reduce " .. op .. " " .. n)
    end
    local all = moth.empty(size * n)
    dist.all_gather_into_tensor(all, of(rank, n))
    local want = {}
    for r = 0, size - 1 do want[r + 1] = of(r, n) end
    same(all, moth.cat(want), "all_gather " .. n)
    local part, whole = moth.empty(n), {}
    for r = 0, size - 1 do whole[r + 1] = of(rank + r, n) end
    dist.reduce_scatter_tensor(part, moth.cat(whole))
    local sum = moth.zeros(n)
    for r = 0, size - 1 do sum = sum + of(rank + r, n) end
    same(part, sum, "reduce_scatter " .. n)
    for root = 0, size - 1, math.max(size - 1, 1) do
      local t = of(rank, n)
      dist.broadcast(t, root)
      same(t, of(root, n), "broadcast " .. n)
      t = of(rank, n)
      dist.reduce(t, root)
      same(t, rank == root and reduced("sum", n, size):to(moth.float32) or of(rank, n), "reduce " .. n)
    end
  end
  local long = moth.arange(700003):remainder(1001):float() + rank -- longer than the rings of shared memory
  dist.all_reduce(long)
  local sums = moth.arange(700003):remainder(1001):float() * size + size * (size - 1) / 2
  assert(moth.equal(long, sums), "all_reduce of what is long")
  for _, kind in ipairs(kinds) do
    for _, n in ipairs { 17, 40003 } do
      for _, op in ipairs { "sum", "prod", kind ~= "complex64" and "max" or "sum" } do
        local t = of(rank, n, kind)
        dist.all_reduce(t, { op = op })
        local want = reduced(op, n, size, kind)
        same(t:abs(), want:abs(), kind .. " " .. op .. " " .. n)
      end
    end
  end
  local bits = moth.tensor({ rank, 6, 7 }, { dtype = moth.int32 })
  dist.all_reduce(bits, { op = "bxor" })
  assert(bits[2]:item() == (size % 2) * 6, "bxor")
  local flag = moth.tensor { rank == 0, true, false }
  dist.all_reduce(flag, { op = "band" })
  assert(flag[1]:item() == (size == 1) and flag[2]:item(), "band of bool")

  -- a view that is not contiguous, a list, NaN
  local base = moth.zeros(4, 6)
  local view = base:t():narrow(1, 2, 3)
  view:fill_(rank + 1)
  dist.all_reduce(view)
  assert(base:sum():item() == 12 * size * (size + 1) / 2, "view")
  local nan = moth.tensor { rank == 0 and 0 / 0 or 1, 2 }
  dist.all_reduce(nan, { op = "max" })
  assert(nan[1]:item() ~= nan[1]:item() and nan[2]:item() == 2, "NaN")
  local list = {}
  for r = 1, size do list[r] = moth.zeros(2, 3) end
  dist.all_gather(list, moth.full({ 2, 3 }, rank))
  for r = 1, size do assert(list[r]:sum():item() == 6 * (r - 1), "all_gather of a list") end
  local out = moth.zeros(2)
  local parts = {}
  for r = 1, size do parts[r] = moth.full({ 2 }, rank * 10 + r) end
  dist.reduce_scatter(out, parts)
  assert(out[1]:item() == 5 * size * (size - 1) + size * (rank + 1), "reduce_scatter of a list")

  -- all_to_all: even, uneven, by lists
  local x = moth.arange(size * 2):to(moth.float32) + 100 * rank
  local y = moth.empty(size * 2)
  dist.all_to_all_single(y, x)
  for r = 0, size - 1 do assert(y[2 * r + 1]:item() == 100 * r + 2 * rank, "all_to_all_single") end
  local give, take, rows, more = {}, {}, 0, 0
  for r = 0, size - 1 do
    give[r + 1], take[r + 1] = (rank + r) % 3, (rank + r) % 3
    rows, more = rows + give[r + 1], more + take[r + 1]
  end
  y = moth.empty(more, 2)
  dist.all_to_all_single(y, moth.full({ rows, 2 }, rank), take, give)
  local at = 1
  for r = 0, size - 1 do
    for _ = 1, take[r + 1] do
      assert(y[at][1]:item() == r, "all_to_all_single with splits")
      at = at + 1
    end
  end
  local ins, outs = {}, {}
  for r = 0, size - 1 do ins[r + 1], outs[r + 1] = moth.full({ r + 1 }, rank), moth.empty(rank + 1) end
  dist.all_to_all(outs, ins)
  for r = 0, size - 1 do assert(outs[r + 1]:sum():item() == r * (rank + 1), "all_to_all") end

  -- gather, scatter
  local root = size - 1
  list = {}
  for r = 1, size do list[r] = moth.zeros(3) end
  dist.gather(moth.full({ 3 }, rank), rank == root and list or nil, root)
  if rank == root then for r = 1, size do assert(list[r][1]:item() == r - 1, "gather") end end
  local mine = moth.zeros(3)
  for r = 1, size do list[r] = moth.full({ 3 }, r * 7) end
  dist.scatter(mine, rank == root and list or nil, root)
  assert(mine[3]:item() == (rank + 1) * 7, "scatter")

  -- messages around the ring; large ones, and tags out of order
  local to, from = (rank + 1) % size, (rank - 1) % size
  if size > 1 then
    local works = { dist.isend(moth.full({ 300000 }, rank), to, { tag = 1 }),
      dist.isend(moth.full({ 2 }, rank + 0.5), to, { tag = 2 }) }
    local small, large = moth.empty(2), moth.empty(300000)
    assert(dist.recv(small, from, { tag = 2 }) == from)
    assert(dist.recv(large, nil, { tag = 1 }) == from)
    for _, w in ipairs(works) do w:wait() end
    assert(small[1]:item() == from + 0.5 and large:sum():item() == 300000 * from, "send and recv")
  end

  -- values, asynchronous calls in a row, groups
  local values = dist.all_gather_object { rank = rank, t = moth.arange(rank) }
  assert(#values == size and values[size].rank == size - 1 and values[size].t:numel() == size - 1)
  local objects = rank == 0 and { "a", { 1, 2 } } or { 0, 0 }
  dist.broadcast_object_list(objects, 0)
  assert(objects[1] == "a" and objects[2][2] == 2)
  local gathered = dist.gather_object(rank * 2, 0)
  assert(rank ~= 0 and gathered == nil or rank == 0 and gathered[size] == 2 * (size - 1))
  local one = {}
  dist.scatter_object_list(one, rank == 0 and { "r0", "r1", "r2", "r3" } or nil, 0)
  assert(one[1] == "r" .. rank)
  local works, ts = {}, {}
  for i = 1, 20 do
    ts[i] = moth.full({ 100 * i }, rank)
    works[i] = dist.all_reduce(ts[i], { async = true })
  end
  for i = 1, 20 do
    assert(works[i]:wait() == true and works[i]:is_completed())
    assert(ts[i][1]:item() == size * (size - 1) / 2, "async")
  end
  local ranks = size > 2 and { 0, size - 1 } or { 0 }
  local group = dist.new_group(ranks)
  if group then
    local t = moth.ones(5)
    dist.all_reduce(t, { group = group })
    assert(t[1]:item() == #ranks and dist.get_world_size(group) == #ranks, "group")
    if size > 2 then
      dist.broadcast(t:fill_(rank), size - 1, { group = group })
      assert(t[1]:item() == size - 1)
    end
  else
    assert(rank ~= 0 and rank ~= size - 1 or size == 2)
  end

  -- A rank that comes later: the others' threads go on with what their callers began, in order with what comes after.
  local busy, later_ones = moth.randn(160, 160), {}
  for i = 1, 3 * size do
    if i % size == rank then for _ = 1, 8 do busy:mm(busy) end end
    local t, later = moth.ones(3) * (rank + i), moth.ones(2) * i
    later_ones[i] = { dist.all_reduce(later, { async = true }), later, i }
    dist.all_reduce(t, { op = "max" })
    assert(t[1]:item() == size - 1 + i, "late rank")
    dist.all_reduce(t:fill_(rank + 1))
    assert(t[3]:item() == size * (size + 1) / 2, "late rank")
  end
  for _, w in ipairs(later_ones) do
    w[1]:wait()
    assert(w[2][2]:item() == size * w[3], "asynchronous beside those that wait")
  end
  dist.barrier()
end
