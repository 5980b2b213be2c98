--- Runs what the backend "inductor" compiles: a list of steps, each a kernel or a call, on a table of values.
local ffi = require "ffi"
local B = require "moth_lua"
require "moth.kernel.native" -- declares the types

local M = {}

local C = ffi.load("libmoth.so")
local Slots = ffi.typeof("MothKernelSlot[?]")
local CHUNK = require("moth.compile.kernel_text").CHUNK

--- What runs a group on a table of values.
function M.launch(k, number, lib)
  local it, n = k.it, #k.operands
  local slots = Slots(3 + 2 * n + #k.numbers + #it.sizes * (n + 1))
  local pieces, rows = math.max(1, math.ceil(it.n / CHUNK)), 1
  for _, size in ipairs(it.sizes) do rows = rows * size end
  slots[0].i, slots[1].i, slots[2].i = number, pieces, it.n
  for i = 1, n do slots[2 + n + i].i = it.inner[i] end
  local at = 3 + 2 * n
  for _, x in ipairs(k.numbers) do
    if x.integer then slots[at].i = x.value else slots[at].d = x.value end
    at = at + 1
  end
  for _, size in ipairs(it.sizes) do
    slots[at].i = size
    at = at + 1
  end
  for i = 1, n do
    for _, stride in ipairs(it.strides[i]) do
      slots[at].i = stride
      at = at + 1
    end
  end
  local made = {}
  for i = 1, k.nresults do
    local m = k.operands[i].facts
    made[i] = { m.shape, { dtype = m.dtype.name } }
  end
  local empty = it.n == 0 or rows == 0
  local call = ffi.cast("MothKernelRange", lib.moth_kernel)
  local grain = math.max(1, math.floor(32768 / math.max(1, math.min(it.n, CHUNK))))
  local operands, nresults, total = k.operands, k.nresults, rows * pieces
  local make, data_ptr = B.ops.empty, B.data_ptr
  local own = { lib, call } -- stay while this does
  return function(values)
    for i = 1, nresults do values[operands[i]] = make(made[i][1], made[i][2]) end
    if empty then return own end
    for i = 1, n do slots[2 + i].p = data_ptr(values[operands[i]]) end
    C.moth_parallel_for(total, grain, call, slots)
  end
end

--- What runs a call as it was recorded.
function M.single(call)
  local fn, args, n = B.ops[call.target], call.args, call.args.n
  local function given(v, values)
    if type(v) ~= "table" then return v end
    if v.facts then return values[v] end
    local list = {}
    for i = 1, v.n or #v do list[i] = given(v[i], values) end
    return list
  end
  local results = call.results
  return function(values)
    local list = {}
    for i = 1, n do list[i] = given(args[i], values) end
    if #results == 1 then
      values[results[1]] = fn(unpack(list, 1, n))
      return
    end
    local got = { fn(unpack(list, 1, n)) }
    for i, r in ipairs(results) do values[r] = got[i] end
  end
end

--- The function of a graph: of its inputs, a list of its outputs. run: functions of the table of values, in order;
-- inputs, outputs: lists of values; held: a list of { value, tensor }.
function M.program(run, inputs, held, outputs)
  local ninputs, nsteps, noutputs = #inputs, #run, #outputs
  return function(...)
    local values = {}
    for i = 1, ninputs do values[inputs[i]] = (select(i, ...)) end
    for i = 1, #held do values[held[i][1]] = held[i][2] end
    for i = 1, nsteps do run[i](values) end
    local list = {}
    for i = 1, noutputs do list[i] = values[outputs[i]] end
    return list
  end
end

return M
