--- Units of fully_shard while moth.compile records: their collectives are ops, so that graphs have them as nodes.
--
-- A unit's whole parameters are results of comm_unshard, one for each parameter. They are in the module's fields during
-- its forward. The derivative of comm_unshard reduces the gradient to that of the shard. There are no hooks and no
-- buffers of the unit. Each parameter has a call of its own, as the gradient of one that took no part must stay nil.
--
-- Graphs have the same collectives in the same order on all ranks: rows are padded on all ranks or on none.
local B = require "moth_lua"
local pace = require "moth.compile.pace"

local M = {}

--- Why a unit cannot be recorded now, or nil.
function M.reason(unit)
  if unit.offload then return "its shards are in the host's memory (offload)" end
  if not unit.sync then return "gradients are not reduced (set_requires_gradient_sync)" end
  for i, p in ipairs(unit.shards) do
    local place = unit.places[i][1]
    if place[1]._parameters[place[2]] ~= p then return "its parameters are gathered (unshard)" end
    if B.get_grad(unit.full[i]) then return "gradients of an uncompiled backward are not reduced yet" end
  end
end

-- Rows are cut as torch.chunk does: the last ranks may have fewer, or none.
local function whole(unit, i)
  local p, full, group, replicas = unit.shards[i], unit.full[i], unit.group, unit.replicas
  local shape, dtype, reduce = full.shape, full:dtype(), unit.mp.reduce_dtype
  local scalar, ranks = #shape == 0, group.size
  local rows, t = scalar and 1 or shape[1], p
  if replicas and replicas.size > 1 then
    ranks = ranks * replicas.size
    t = B.ops.comm_copy_to(t, replicas.number, replicas.size)
  end
  local share = math.ceil(rows / group.size)
  if share * group.size ~= rows then
    local pad = {}
    for k = 1, 2 * math.max(#shape, 1) - 1 do pad[k] = 0 end
    pad[#pad + 1] = share - p:size(1)
    t = t:pad(pad)
  end
  if ranks > 1 or dtype ~= p:dtype() then
    t = B.ops.comm_unshard(t, group.number, group.size, ranks, dtype, dtype.is_floating_point and reduce or nil)
  end
  if share * group.size ~= rows then t = t:narrow(1, 1, rows) end
  return scalar and t:reshape {} or t
end

--- Puts the whole parameters in the fields of the unit's modules.
function M.gather(unit)
  pace.keep()
  local list = {}
  for i in ipairs(unit.shards) do list[i] = whole(unit, i) end
  for i, places in ipairs(unit.places) do
    for _, place in ipairs(places) do place[1]:put_registered("_parameters", place[2], list[i]) end
  end
end

return M
