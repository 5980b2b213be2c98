--- Collectives: all ranks of a group call them in the same order, with tensors of the same dtypes and shapes; what
-- differs is an error on all ranks that quotes both calls. Tensors are written in place. With async = true they return
-- a Work at once. Not recorded by autograd: dist.nn has those that are.
local B = require "moth_lua"
local check = require "moth.utils.check"
local groups = require "moth.distributed.group"
local moth = require "moth"
local signature = require "moth.utils.signature"
local Work = require "moth.distributed.work"

local C = B.comm
local M = {}

signature.type("ReduceOp", function(v)
  return v == "sum" or v == "avg" or v == "prod" or v == "min" or v == "max" or v == "band" or v == "bor" or v == "bxor"
end, "'sum', 'avg', 'prod', 'min', 'max', 'band', 'bor' or 'bxor'")
local COMMON = "*, ProcessGroup group?, bool async=false, number timeout?"
local REDUCING = "*, ReduceOp op='sum', ProcessGroup group?, bool async=false, number timeout?"

-- Memory --------------------------------------------------------------------------------------------

-- The group's collectives take tensors on the host, or on the device of its NCCL; sends and receives on the host.
local function is_plain(t, device)
  if not t:is_contiguous() then return false end
  local own = t:device()
  return own.type == "cpu" and device == "cpu" or tostring(own) == device
end

-- t's elements, contiguous, on the device.
local function given(t, device)
  if is_plain(t, device) then return t end
  return moth.no_grad(function() return t:detach():to(device):contiguous() end)
end
-- Memory for t's elements, and a function that puts them into t, if that is not t itself.
local function wanted(t, device)
  if is_plain(t, device) then return t end
  local own = moth.empty(t.shape, { dtype = t:dtype(), device = device })
  return own, function() moth.no_grad(function() t:detach():copy_(own) end) end
end
-- For tensors that are read and written.
local function changed(t, device)
  if is_plain(t, device) then return t end
  local own = given(t, device)
  return own, function() moth.no_grad(function() t:detach():copy_(own) end) end
end

local function same_shape(a, b)
  if a:dim() ~= b:dim() then return false end
  for i, n in ipairs(a.shape) do if n ~= b.shape[i] then return false end end
  return true
end

-- A list of tensors of the shape of `like` as one tensor with a dimension in front.
local function stacked(list, like, group, what, name)
  if #list ~= group.size then
    check.fail("[distributed.%s] %s: expected a tensor for each of %d ranks, got %d", what, name, group.size, #list)
  end
  for i, t in ipairs(list) do
    if t:dtype() ~= like:dtype() or not same_shape(t, like) then
      check.fail("[distributed.%s] %s: tensor %d is %s [%s], the others are %s [%s]", what, name, i, t:dtype().name,
        table.concat(t.shape, ", "), like:dtype().name, table.concat(like.shape, ", "))
    end
  end
  local shape = { group.size }
  for i, n in ipairs(like.shape) do shape[i + 1] = n end
  return moth.empty(shape, { dtype = like:dtype(), device = group.device })
end
local function fill(all, list)
  moth.no_grad(function() for i, t in ipairs(list) do all:select(1, i):copy_(t:detach()) end end)
  return all
end
local function spread(all, list)
  return function()
    moth.no_grad(function() for i, t in ipairs(list) do t:detach():copy_(all:select(1, i)) end end)
  end
end

-- Calls ---------------------------------------------------------------------------------------------

--- Starts a call; for files of this folder. o: group, async, timeout, op, root, tag, uneven, in_splits, out_splits.
function M.start(name, group, from, to, o, after)
  local any = from or to
  if group.backend == "fake" and (any and B.is_fake(any) or not any and M.recorder) then -- dist.record
    local finish = M.recorder and M.recorder(name, group, from, to, o.async)
    return o.async and Work(nil, finish) or nil
  end
  local handle = C.start(group.handle, name, from, to, o.op, o.root, o.tag, o.timeout, o.uneven, o.in_splits,
    o.out_splits, not o.async)
  local work = Work(handle, after)
  if o.async then return work end
  work:wait()
end
local start = M.start

local function define(text, fn)
  local name = text:match("^([%w_]+)")
  M[name] = signature("distributed." .. text, function(...) return fn(...) end, true)
end

--- Reduces a tensor over all ranks; each has the result in place. sum, avg (floats), prod, min, max; band, bor, bxor
-- (integers, bool). The result is the same to the bit on all ranks.
define("all_reduce(Tensor tensor, " .. REDUCING .. ")", function(t, o)
  local g = groups.of(o.group, "all_reduce")
  local own, after = changed(t, g.device)
  return start("all_reduce", g, own, own, o, after)
end)

--- The tensor of rank src, to all.
define("broadcast(Tensor tensor, size src, " .. COMMON .. ")", function(t, src, o)
  local g = groups.of(o.group, "broadcast")
  local own, after = changed(t, g.device)
  o.root = groups.rank_in(g, src, "broadcast", "src")
  return start("broadcast", g, own, own, o, g.rank ~= o.root and after or nil)
end)

--- As all_reduce, but only dst has the result; the tensors of the others stay as they are.
define("reduce(Tensor tensor, size dst, " .. REDUCING .. ")", function(t, dst, o)
  local g = groups.of(o.group, "reduce")
  o.root = groups.rank_in(g, dst, "reduce", "dst")
  local own, after = changed(t, g.device)
  return start("reduce", g, own, g.rank == o.root and own or nil, o, g.rank == o.root and after or nil)
end)

--- The tensors of all ranks into one: along the first dimension, or with a dimension of the group's size in front.
define("all_gather_into_tensor(Tensor output, Tensor input, " .. COMMON .. ")", function(out, t, o)
  local g = groups.of(o.group, "all_gather_into_tensor")
  local own, after = wanted(out, g.device)
  return start("all_gather", g, given(t, g.device), own, o, after)
end)

--- The tensors of all ranks, which have one shape, into a list of tensors, by rank + 1.
define("all_gather(Tensor[] tensor_list, Tensor tensor, " .. COMMON .. ")", function(list, t, o)
  local g = groups.of(o.group, "all_gather")
  local all = stacked(list, t, g, "all_gather", "tensor_list")
  return start("all_gather", g, given(t, g.device), all, o, spread(all, list))
end)

--- Reduces tensors of size ranks * n; rank r has the r-th part, of size n.
define("reduce_scatter_tensor(Tensor output, Tensor input, " .. REDUCING .. ")", function(out, t, o)
  local g = groups.of(o.group, "reduce_scatter_tensor")
  local own, after = wanted(out, g.device)
  return start("reduce_scatter", g, given(t, g.device), own, o, after)
end)

--- The same from a list of tensors, one for each rank.
define("reduce_scatter(Tensor output, Tensor[] input_list, " .. REDUCING .. ")", function(out, list, o)
  local g = groups.of(o.group, "reduce_scatter")
  local all = fill(stacked(list, out, g, "reduce_scatter", "input_list"), list)
  local own, after = wanted(out, g.device)
  return start("reduce_scatter", g, all, own, o, after)
end)

-- Rows for each rank as elements.
local function elements(splits, t, g, name)
  if not splits then return nil end
  local rows, sum = t:size(1), 0
  for _, n in ipairs(splits) do sum = sum + n end
  if #splits ~= g.size or sum ~= rows then
    check.fail("[distributed.all_to_all_single] %s: expected %d numbers of rows whose sum is %d, got %d, sum %d", name,
      g.size, rows, #splits, sum)
  end
  local per_row = rows > 0 and t:numel() / rows or 0
  local list = {}
  for i, n in ipairs(splits) do list[i] = n * per_row end
  return list
end

--- Rows of the input to each rank, rows of the output from each: the same number, or input_split_sizes and
-- output_split_sizes.
define("all_to_all_single(Tensor output, Tensor input, size[] output_split_sizes?, size[] input_split_sizes?, "
  .. COMMON .. ")", function(out, t, out_splits, in_splits, o)
  local g = groups.of(o.group, "all_to_all_single")
  for name, x in require "moth.each" { output = out, input = t } do
    if x:dim() == 0 then check.fail("[distributed.all_to_all_single] %s: expected at least one dimension", name) end
  end
  local function even(x)
    local list = {}
    if x:size(1) % g.size ~= 0 then
      check.fail("[distributed.all_to_all_single] %d rows are not divisible among %d ranks: give split sizes",
        x:size(1), g.size)
    end
    for i = 1, g.size do list[i] = x:size(1) / g.size end
    return list
  end
  local own, after = wanted(out, g.device)
  if out_splits or in_splits then
    o.uneven = true
    o.out_splits = elements(out_splits or even(out), out, g, "output_split_sizes")
    o.in_splits = elements(in_splits or even(t), t, g, "input_split_sizes")
  end
  return start("all_to_all", g, given(t, g.device), own, o, after)
end)

--- The i-th tensor of the input list to rank i - 1; the output list has theirs. Shapes may differ.
define("all_to_all(Tensor[] output_tensor_list, Tensor[] input_tensor_list, " .. COMMON .. ")", function(outs, ins, o)
  local g = groups.of(o.group, "all_to_all")
  local function flat(list, name)
    if #list ~= g.size then
      check.fail("[distributed.all_to_all] %s: expected a tensor for each of %d ranks, got %d", name, g.size, #list)
    end
    local splits, sum = {}, 0
    for i, t in ipairs(list) do
      if t:dtype() ~= list[1]:dtype() then
        check.fail("[distributed.all_to_all] %s: tensors of two dtypes, %s and %s", name, list[1]:dtype().name,
          t:dtype().name)
      end
      splits[i], sum = t:numel(), sum + t:numel()
    end
    return moth.empty({ sum }, { dtype = list[1]:dtype(), device = g.device }), splits
  end
  local to, out_splits = flat(outs, "output_tensor_list")
  local from, in_splits = flat(ins, "input_tensor_list")
  local function parts(all, list, fn)
    moth.no_grad(function()
      local at = 1
      for _, t in ipairs(list) do
        fn(t:detach(), all:narrow(1, at, t:numel()):view(t.shape))
        at = at + t:numel()
      end
    end)
  end
  parts(from, ins, function(t, part) part:copy_(t) end)
  o.uneven, o.in_splits, o.out_splits = true, in_splits, out_splits
  return start("all_to_all", g, from, to, o, function()
    parts(to, outs, function(t, part) t:copy_(part) end)
  end)
end)

--- The tensors of all ranks into a list of tensors at rank dst; the others give no list.
define("gather(Tensor tensor, Tensor[] gather_list?, size dst=0, " .. COMMON .. ")", function(t, list, dst, o)
  local g = groups.of(o.group, "gather")
  o.root = groups.rank_in(g, dst, "gather", "dst")
  local at_root = g.rank == o.root
  if at_root ~= (list ~= nil) then
    check.fail("[distributed.gather] gather_list: rank %d, dst, needs it, and no other rank has one", dst)
  end
  local all = at_root and stacked(list, t, g, "gather", "gather_list") or nil
  return start("gather", g, given(t, g.device), all, o, all and spread(all, list))
end)

--- The tensors of a list of rank src to the ranks; the others give no list.
define("scatter(Tensor tensor, Tensor[] scatter_list?, size src=0, " .. COMMON .. ")", function(t, list, src, o)
  local g = groups.of(o.group, "scatter")
  o.root = groups.rank_in(g, src, "scatter", "src")
  local at_root = g.rank == o.root
  if at_root ~= (list ~= nil) then
    check.fail("[distributed.scatter] scatter_list: rank %d, src, needs it, and no other rank has one", src)
  end
  local own, after = wanted(t, g.device)
  local all = at_root and fill(stacked(list, t, g, "scatter", "scatter_list"), list) or nil
  return start("scatter", g, all, own, o, after)
end)

--- Waits until all ranks have called it.
define("barrier(" .. COMMON .. ")", function(o)
  return start("barrier", groups.of(o.group, "barrier"), nil, nil, o)
end)

--- A barrier with its own timeout (default: that of the group): its error names the ranks that did not come.
define("monitored_barrier(*, ProcessGroup group?, number timeout?)", function(o)
  return start("barrier", groups.of(o.group, "monitored_barrier"), nil, nil, o)
end)

M.given, M.wanted = given, wanted

return M
