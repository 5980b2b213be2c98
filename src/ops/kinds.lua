-- The kinds of ops, and what a kind decides: where results lie, and what a compiler may do with a call. It is derived
-- here alone, when moth is built; C reads it in MothOp (src/dispatch/dispatch.h), Lua in moth.ops.get(name).
--
--   memory    "new": results have memory of their own; "view": they lie in the storage of the first argument;
--             "self": the first argument, written to; "none": no results; "parts": as the ops that a composite
--             is made of give them
--   fuses     the record says how elements are computed, so that one kernel may compute them with those of others
--   drops     a call whose results nobody reads may be left out. One that draws still counts its numbers.
--   draws     takes random numbers: calls that draw from one generator keep their order
--   repeats   the same arguments give the same results: of two equal calls one is enough
--   writes    names of the arguments that are written to: the call keeps its place among those that read or write them
--   factory   makes tensors from no tensor: has the options dtype, device, requires_grad
--
-- All other calls may change their order.
local M = {}

-- kind -> where results lie; the field by which an element is computed (true: always fused).
local kinds = {
  pointwise = { memory = "new", fuses = true },
  view = { memory = "view", fuses = true },
  reduce = { memory = "new", fuses = "join" },
  scan = { memory = "new", fuses = "join" },
  gather = { memory = "new", fuses = "loop" },
  scatter = { memory = "new", fuses = "loop" },
  matmul = { memory = "new", fuses = "contract" },
  window = { memory = "new", fuses = "window" },
  random = { memory = "new", fuses = "draw" },
  factory = { memory = "new", fuses = "loop" },
  fused = { memory = "new", fuses = "decompose" },
  effect = { memory = "none", fuses = "update" },
  extern = { memory = "new" },
  composite = { memory = "parts", fuses = true },
}

M.names = { "pointwise", "view", "reduce", "scan", "gather", "scatter", "matmul", "window", "random", "factory", "fused",
  "effect", "extern", "composite" } -- in the order of MothKind
for _, name in ipairs(M.names) do assert(kinds[name]) end

local tensors = { TENSOR = true, OPERAND = true, TENSORS = true }

--- What may be done with calls of op, a record that schema.lua has read.
function M.facts(op)
  local kind = kinds[op.kind]
  local writes, generator, tensor = {}, false, false
  for _, a in ipairs(op.args) do
    if a.mutated then writes[#writes + 1] = a.name end
    generator = generator or a.type == "GENERATOR"
    tensor = tensor or tensors[a.type] or false
  end
  return {
    memory = op.returns_self and "self" or op.nresults == 0 and "none" or kind.memory,
    fuses = not op.keep and (kind.fuses == true or op[kind.fuses or false] ~= nil),
    drops = op.kind ~= "effect" and #writes == 0,
    draws = generator or op.kind == "random",
    repeats = not generator and op.kind ~= "random" and op.none == nil,
    writes = writes,
    factory = not tensor and op.nresults > 0,
  }
end

return M
