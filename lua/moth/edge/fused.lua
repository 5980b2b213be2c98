--- Programs of kernels and generated code, for libraries of their own (moth.inductor.aot_compile).
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local explain = require "moth.compile.explain"
local file = require "moth.edge.file"
local inductor = require "moth.compile.inductor"
local native = require "moth.kernel.native"
local controls = require("moth.export.program").controls
local runtime = require "moth.compile.runtime"
local tree = require "moth.lang.tree"
local C = B.compile

local M = {}

-- The graph of a program at the example's sizes. All tensors are its inputs, as in compiled segments: those of the
-- program come behind its arguments, in the order of `names`.
local function graph_of(ep, names)
  local list, count = {}, #ep.program.inputs
  for i, input in ipairs(ep.program.inputs) do list[i] = B.ops.zeros(input.shape, { dtype = input.dtype }) end
  for i, name in ipairs(names) do list[count + i] = B.alias(ep.tensors[name], false) end
  local graph = explain.capture(function(...)
    local given, state = { ... }, {}
    for i, name in ipairs(names) do state[name] = given[count + i] end
    return ep.program:run(state, ep.program.example, given, "cpu")
  end, list)
  return graph, list
end

-- The generated kernel of a step, as the file and the source describe it.
local function kernel_of(step, low)
  local k = step.kernel
  k.call = ffi.cast("void *", 0)
  local launch = runtime.launch(step)
  local out = { results = {}, operands = {}, temporaries = launch.temporaries, launches = launch.launches }
  for i, ref in ipairs(launch.results) do out.results[i] = low.nodes[ref[1]][ref[2]] end
  for i, ref in ipairs(launch.operands) do
    local id = low.nodes[ref[1]][ref[2]]
    local v = low.values[id]
    if v.kind ~= "made" and not v.whole then
      check.fail("[aot_compile] a tensor of the program is not row-major: make it contiguous() before the export")
    end
    out.operands[i] = id
  end
  return out
end

--- The program with its calls and kernels in their order, as moth.edge.file.write takes it; the C text of the
-- kernels; what moth_lua says of the graph; the list of calls of it and { kernel = … }.
function M.lower(ep, names)
  file.check_program(ep)
  ep = file.without_writes(ep)
  for node in ep.program:calls() do
    if controls[node.op] then
      check.fail("[aot_compile] %s (%s): code is generated for calls one after the other\nHINT: moth.edge.export keeps "
        .. "branches and loops; or compile one program for each case", node.op, node.at)
    end
  end
  local held, count = tree.keys(ep.tensors), #ep.program.inputs
  local graph, steps = inductor.steps(graph_of(ep, held))
  if not graph then check.fail("[aot_compile] the program cannot be compiled: %s", steps) end
  local programs = {}
  for _, step in ipairs(steps) do
    if step.fused then programs[#programs + 1] = step.kernel end
  end
  local text = native.text(programs)
  local low = C.graph_lowered(graph.handle)
  for _, v in ipairs(low.values) do
    if v.kind == "input" and v.input > count then v.kind, v.tensor = "held", ep.tensors[held[v.input - count]] end
  end
  local of_node, list = {}, {}
  for _, call in ipairs(low.calls) do
    of_node[call.node] = of_node[call.node] or {}
    table.insert(of_node[call.node], call)
  end
  for _, step in ipairs(steps) do
    if step.fused then
      list[#list + 1] = { kernel = kernel_of(step, low) }
    else
      for _, call in ipairs(of_node[step.calls[1].node] or {}) do list[#list + 1] = call end
    end
  end
  return file.of_calls(ep, low, list, { output_names = names }), text, low, list
end

return M
