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
local B = require "moth_lua"
local graphs = require "moth.compile.graph"
local lower = require "moth.compile.lower"
require "moth.kernel.native" -- declares the types

local M = {}

local Slots = ffi.typeof("MothKernelSlot[?]")

-- What runs a fused step on a table of values and the graph's numbers. step.kernel: of moth.compile.schedule, with what
-- native.programs adds: `call`, the function of a range of programs, and `number`, which of its kernels it is.
local function launch(step)
  local k = step.kernel
  local args, n = k.args, #k.args
  -- which kernel, the arguments, the grid, a place for "no memory"
  local slots = Slots(n + 5)
  slots[0].i = k.number
  local pointers, numbers = {}, {}
  for i, a in ipairs(args) do
    if a.value then
      pointers[#pointers + 1] = { i, a.value }
    elseif a.scratch then
      pointers[#pointers + 1] = { i, a, { a.numel }, { dtype = a.scratch } }
    elseif a.size then
      slots[i].i = a.size
    elseif graphs.is_number(a.number) then
      numbers[#numbers + 1] = { i, a.number.index }
    elseif a.float then
      slots[i].d = a.number
    else
      slots[i].i = a.number
    end
  end
  slots[n + 1].i, slots[n + 2].i, slots[n + 3].i = k.grid, 1, 1
  local made = {}
  for _, v in ipairs(step.results) do
    made[#made + 1] = { v, v.facts.shape, { dtype = v.facts.dtype.name }, not lower.is_dense(v.facts) and v.facts.stride }
  end
  local nmade, npointers, nnumbers = #made, #pointers, #numbers
  local make, data_ptr, strided = B.ops.empty, B.data_ptr, B.ops.as_strided
  local call, grid, second, phase, grain = k.call, k.grid, k.second, k.phase and k.phase + 1, k.grain
  return function(values, given)
    for i = 1, nmade do
      local m = made[i]
      local t = make(m[2], m[3])
      if m[4] then t = strided(t, m[2], m[4]) end
      values[m[1]] = t
    end
    for i = 1, npointers do
      local p = pointers[i]
      if p[3] then values[p[2]] = make(p[3], p[4]) end
      slots[p[1]].p = data_ptr(values[p[2]])
    end
    for i = 1, nnumbers do slots[numbers[i][1]].d = given[numbers[i][2]] end
    if phase then slots[phase].i = 0 end
    C.moth_parallel_for(grid, grain, call, slots)
    if second then
      slots[phase].i = 1
      C.moth_parallel_for(second, grain, call, slots)
    end
    return k
  end
end

-- What runs a call as it was recorded.
local function single(call)
  local fn, args, n = call.fn, call.args, call.args.n
  local function given(v, values, numbers)
    if type(v) ~= "table" then return v end
    if v.facts then return values[v] end
    if graphs.is_number(v) then return numbers[v.index] end
    local list = {}
    for i = 1, v.n or #v do list[i] = given(v[i], values, numbers) end
    return list
  end
  local results = call.results
  return function(values, numbers)
    local list = {}
    for i = 1, n do list[i] = given(args[i], values, numbers) end
    if #results == 1 then
      values[results[1]] = fn(unpack(list, 1, n))
      return
    end
    local got = { fn(unpack(list, 1, n)) }
    for i, r in ipairs(results) do values[r] = got[i] end
  end
end

--- The function of a graph: of its inputs and a list of its numbers, a list of its outputs. steps: of moth.compile.fuse,
-- the fused ones with their kernels; inputs, outputs: lists of values; held: a list of { value, tensor }.
function M.program(steps, inputs, held, outputs)
  local run = {}
  for i, step in ipairs(steps) do run[i] = step.fused and launch(step) or single(step.calls[1]) end
  local ninputs, nsteps, noutputs = #inputs, #run, #outputs
  return function(...)
    local values, numbers = {}, (select(ninputs + 1, ...))
    for i = 1, ninputs do values[inputs[i]] = (select(i, ...)) end
    for i = 1, #held do values[held[i][1]] = held[i][2] end
    for i = 1, nsteps do run[i](values, numbers) end
    local list = {}
    for i = 1, noutputs do list[i] = values[outputs[i]] end
    return list
  end
end

return M
