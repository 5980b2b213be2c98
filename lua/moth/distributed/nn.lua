--- moth.distributed.nn: collectives that give new tensors and that autograd differentiates. All ranks call them, and
-- their backward, in the same order.
local B = require "moth_lua"
local check = require "moth.utils.check"
require "moth.distributed.collectives" -- for the types of its signatures
local groups = require "moth.distributed.group"
local signature = require "moth.utils.signature"

local M = {}

local function define(text, fn)
  local name = text:match("^([%w_]+)")
  M[name] = signature("distributed.nn." .. text, function(...)
    local o = select(select("#", ...), ...)
    local g = groups.of(o.group, name)
    return fn(g, ...)
  end, true)
end

-- fn(x) along the first dimension, for dimension `dim`.
local function along(x, dim, fn)
  if dim == 1 or dim == -x:dim() then return fn(x) end
  return fn(x:transpose(1, dim)):transpose(1, dim)
end

--- The sum over the ranks (op: avg too; its derivative follows; or min, max, prod, which have none). Its gradient is
-- summed over the ranks, too.
define("all_reduce(Tensor tensor, *, ReduceOp op='sum', ProcessGroup group?)", function(g, x, o)
  if o.op == "sum" then return (B.ops.comm_all_reduce(x, g.number, g.size)) end
  if o.op == "avg" then return B.ops.comm_all_reduce(x, g.number, g.size) / g.size end
  return (B.ops.comm_reduce_by(x, o.op, g.number, g.size))
end)
--- The tensors of all ranks, one behind the other along dim.
define("all_gather(Tensor tensor, *, Dim dim=1, ProcessGroup group?)", function(g, x, o)
  return along(x, o.dim, function(y) return (B.ops.comm_all_gather(y, g.number, g.size)) end)
end)
--- The sum over the ranks, cut along dim: each rank has its part.
define("reduce_scatter(Tensor tensor, *, Dim dim=1, ProcessGroup group?)", function(g, x, o)
  return along(x, o.dim, function(y) return (B.ops.comm_reduce_scatter(y, g.number, g.size)) end)
end)
--- Rows for each rank, rows from each rank: as dist.all_to_all_single.
define("all_to_all(Tensor tensor, size[] output_split_sizes?, size[] input_split_sizes?, *, ProcessGroup group?)",
function(g, x, receive, send)
  local function even(what)
    if x:dim() == 0 or x:size(1) % g.size ~= 0 then
      check.fail("[distributed.nn.all_to_all] %s: %d ranks do not divide the rows: give split sizes", what, g.size)
    end
    local list = {}
    for i = 1, g.size do list[i] = x:size(1) / g.size end
    return list
  end
  receive, send = receive or even "output_split_sizes", send or even "input_split_sizes"
  local rows = 0
  for _, n in ipairs(receive) do rows = rows + n end
  return (B.ops.comm_all_to_all(x, send, receive, rows, g.number, g.size))
end)
--- The tensor of rank src; its gradient is summed there.
define("broadcast(Tensor tensor, size src, *, ProcessGroup group?)", function(g, x, src)
  return (B.ops.comm_broadcast(x, groups.rank_in(g, src, "nn.broadcast", "src"), g.number, g.size))
end)
--- The sum over the ranks at rank dst, zeros elsewhere.
define("reduce(Tensor tensor, size dst, *, ProcessGroup group?)", function(g, x, dst)
  return (B.ops.comm_reduce(x, groups.rank_in(g, dst, "nn.reduce", "dst"), g.number, g.size))
end)
--- Gives x to the rank `steps` further around the ring, and takes that of the rank as far before.
define("shift(Tensor tensor, int steps=1, *, ProcessGroup group?)", function(g, x, steps)
  return (B.ops.comm_permute(x, (g.rank + steps) % g.size, (g.rank - steps) % g.size, g.number, g.size))
end)
--- x, which all ranks have; its gradient is the sum of theirs. Stands in front of what is cut over the ranks.
define("copy_to(Tensor tensor, *, ProcessGroup group?)", function(g, x)
  return (B.ops.comm_copy_to(x, g.number, g.size))
end)
--- The sum over the ranks, whose gradient, which all ranks have, goes on as it is. Stands behind what is cut.
define("reduce_from(Tensor tensor, *, ProcessGroup group?)", function(g, x)
  return (B.ops.comm_reduce_from(x, g.number, g.size))
end)

return M
