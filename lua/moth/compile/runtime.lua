--- What the backend "inductor" gives to the plan of a graph (src/graph/plan.h): how the kernel of a group is called.
--
-- moth_lua.compile.plan_new(graph.handle, steps) returns a callable of the graph's inputs. A step is the id of a node,
-- which runs as recorded, or a kernel:
--
--     { nodes = ids of the calls that it computes,
--       results = { { id of a node, result }, … }, operands = the same,
--       temporaries = { bytes of a block of memory for the time of the step, … },
--       in_place = true: each element of an operand is read before the same element of a result is written,
--       launches = { { fn = address of a MothKernelRange, n =, grain = what moth_parallel_for gets,
--                      slots = bytes of its MothKernelSlots,
--                      at = { the slot, from 0, of the address of each result, operand and temporary, or -1 },
--                      numbers = { { slot =, number = index of a number of the graph, is_float = }, … } }, … } }
--
-- Steps run in their order, launches one after the other. The plan keeps the library that fn is in.
local ffi = require "ffi"
require "moth.kernel.native" -- declares the types

local M = {}

local Slots = ffi.typeof("MothKernelSlot[?]")
local CHUNK = require("moth.compile.kernel_text").CHUNK

--- The step of a group that kernel_text has made a kernel of: number `number` of a library.
function M.launch(step, k, number, lib)
  local it, n = k.it, #k.operands
  local size = 3 + 2 * n + #k.numbers + #it.sizes * (n + 1)
  local slots = Slots(size)
  local pieces, rows = math.max(1, math.ceil(it.n / CHUNK)), 1
  for _, length in ipairs(it.sizes) do rows = rows * length end
  slots[0].i, slots[1].i, slots[2].i = number, pieces, it.n
  for i = 1, n do slots[2 + n + i].i = it.inner[i] end
  local at = 3 + 2 * n
  for _, x in ipairs(k.numbers) do
    if x.integer then slots[at].i = x.value else slots[at].d = x.value end
    at = at + 1
  end
  for _, length in ipairs(it.sizes) do
    slots[at].i = length
    at = at + 1
  end
  for i = 1, n do
    for _, stride in ipairs(it.strides[i]) do
      slots[at].i = stride
      at = at + 1
    end
  end
  local out = { nodes = {}, results = {}, operands = {} }
  for i, call in ipairs(step.calls) do out.nodes[i] = call.node end
  local addresses = {}
  for i, v in ipairs(k.operands) do
    local list = i <= k.nresults and out.results or out.operands
    list[#list + 1] = { v.node, v.result }
    addresses[i] = 2 + i
  end
  local empty = it.n == 0 or rows == 0
  local grain = math.max(1, math.floor(32768 / math.max(1, math.min(it.n, CHUNK))))
  out.launches = { { fn = tonumber(ffi.cast("intptr_t", lib.moth_kernel)), n = empty and 0 or rows * pieces,
    grain = grain, slots = ffi.string(slots, size * 8), at = addresses } }
  return out
end

return M
