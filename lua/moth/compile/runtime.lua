--- What the backend "inductor" gives to the plan of a graph (src/graph/plan.h): how the kernel of a group is called.
--
-- moth_lua.compile.plan_new(graph.handle, steps) returns a callable of the graph's inputs. A step is the id of a node,
-- which runs as recorded, or a kernel:
--
--     { nodes = ids of the calls that it computes,
--       results = { { id of a node, result }, … }, operands = the same,
--       temporaries = { bytes of a block of memory for the time of the step, … },
--       in_place = true: each element of an operand is read before the same element of a result is written,
--       launches = { { fn = address of a MothKernelRange, n =, grain = what moth_parallel_for gets; on CUDA: program,
--                      kernel (from 1), threads, shared of a MothPlanLaunch, and n,
--                      slots = bytes of its MothKernelSlots,
--                      at = { the slot, from 0, of the address of each result, operand and temporary, or -1 },
--                      numbers = { { slot =, number = index of a number of the graph, is_float = }, … },
--                      no_memory =, reach =, outside = of MothPlanLaunch }, … },
--       text = what is fused }
--
-- Steps run in their order, launches one after the other. The plan keeps the library that fn is in.
local ffi = require "ffi"
local B = require "moth_lua"
local graphs = require "moth.compile.graph"
local native = require "moth.kernel.native" -- declares the types

local M = {}

local Slots = ffi.typeof("MothKernelSlot[?]")

--- The step of a group, whose kernel is one of moth.compile.schedule and compiled (moth.kernel.native or .cuda).
-- values: the value of a size that may be a symbol (moth.compile.templates); nil: there are none.
function M.launch(step, values)
  values = values or function(v) return v end
  local k = step.kernel
  local compiled = k.kernel
  local n = #k.args
  -- Which kernel, the arguments, the grid, a place for "no memory", and what src/codegen/tile_c.lua says.
  local on_gpu = compiled.program ~= nil -- there is no "no memory", and one slot for the address of what is outside
  local nslots = on_gpu and (k.checked and n * 2 + 5 or n + 4) or k.checked and n * 2 + 9 or n + 5
  local slots = Slots(nslots)
  slots[0].i = compiled.number
  local out = { nodes = {}, results = {}, operands = {}, temporaries = {}, in_place = k.in_place or false,
    text = k.text }
  local into = {}
  for _, call in ipairs(step.calls) do
    if not call.moved then out.nodes[#out.nodes + 1] = call.node end
    if call.into then into[call.results[1]] = call.into end
  end
  local is_result, at, numbers = {}, { {}, {}, {} }, {}
  for _, v in ipairs(step.results) do is_result[v] = not into[v] end
  for i, a in ipairs(k.args) do
    if a.value then
      local list, v = is_result[a.value] and out.results or out.operands, into[a.value] or a.value
      list[#list + 1] = { v.node, v.result }
      table.insert(at[list == out.results and 1 or 2], i)
    elseif a.scratch then
      table.insert(out.temporaries, values(a.numel) * 8)
      table.insert(at[3], i)
    elseif a.size then
      slots[i].i = values(a.size)
    elseif graphs.is_number(a.number) then
      numbers[#numbers + 1] = { slot = i, number = a.number.index, is_float = true }
    elseif a.float then
      slots[i].d = values(a.number)
    else
      slots[i].i = values(a.number)
    end
  end
  local addresses = {}
  for _, list in ipairs(at) do
    for _, slot in ipairs(list) do addresses[#addresses + 1] = slot end
  end
  local grid = values(k.grid)
  slots[n + 1].i, slots[n + 2].i, slots[n + 3].i = grid, 1, 1
  local function launch(programs)
    if on_gpu then
      return { program = compiled.program, kernel = compiled.number, threads = compiled.threads,
        shared = compiled.shared, n = programs, slots = ffi.string(slots, nslots * 8), at = addresses,
        numbers = numbers, reach = k.checked and n + 3 or 0, outside = k.checked and n * 2 + 4 or 0 }
    end
    return { fn = tonumber(ffi.cast("intptr_t", compiled.call)), n = programs,
      grain = math.max(1, math.floor(32768 / values(k.work))),
      slots = ffi.string(slots, nslots * 8), at = addresses, numbers = numbers, no_memory = n + 4,
      reach = k.checked and n + 4 or 0, outside = k.checked and n * 2 + 5 or 0 }
  end
  out.values = {} -- of results and operands, in their order
  for kind = 1, 2 do
    for _, slot in ipairs(at[kind]) do table.insert(out.values, into[k.args[slot].value] or k.args[slot].value) end
  end
  out.launches = { launch(grid) }
  if k.second then
    slots[k.phase + 1].i = 1
    out.launches[2] = launch(values(k.second))
  end
  return out
end

--- A function that runs a launch by itself, for its time: addresses are those of results, operands and temporaries.
function M.runner(l, addresses, device)
  local nslots = #l.slots / 8
  local slots = Slots(nslots)
  ffi.copy(slots, l.slots, #l.slots)
  for i, address in ipairs(addresses) do
    if l.at[i] >= 0 then slots[l.at[i]].p = address end
    if l.at[i] >= 0 and l.reach > 0 then slots[l.at[i] + l.reach].i = 2 ^ 53 end
  end
  for _, n in ipairs(l.numbers) do slots[n.slot].d = 1 end
  if not l.program then
    local fn = ffi.cast("MothKernelRange", l.fn)
    return function() native.launch(l.n, l.grain, fn, slots) end
  end
  local C, index, args = B.cuda, tonumber(device:match("%d+")) or 0, {}
  for i = 1, nslots - 1 do args[i] = ffi.string(slots + i, 8) end
  return function()
    C.launch(l.program, l.kernel, index, l.n, 1, 1, l.threads, 1, 1, l.shared, unpack(args, 1, nslots - 1))
  end
end

return M
