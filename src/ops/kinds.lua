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

-- kind -> where results lie; the fields by which an element is computed (true: always fused), of which one is enough;
-- the fields that a record must have, and those that it may have.
local kinds = {
  pointwise = { memory = "new", fuses = true, needs = { "scalar", "promote" }, may = { "limits", "ref" } },
  view = { memory = "view", fuses = true },
  reduce = { memory = "new", fuses = { "join" }, needs = { "join" }, may = { "map", "finish" } },
  scan = { memory = "new", fuses = { "join" }, needs = { "join" }, may = { "map" } },
  gather = { memory = "new", fuses = { "loop" }, needs = { "loop" } },
  scatter = { memory = "new", fuses = { "loop" }, needs = { "loop", "store", "over" }, may = { "start", "finish" } },
  matmul = { memory = "new", fuses = { "contract" }, needs = { "contract" }, may = { "finish" } },
  window = { memory = "new", fuses = { "loop", "map" }, needs = { "window" },
    may = { "loop", "over", "map", "join", "finish", "store", "start" } },
  random = { memory = "new", fuses = { "draw" }, needs = { "draw" }, may = { "finish", "decompose" } },
  factory = { memory = "new", fuses = { "loop" }, may = { "loop" } },
  fused = { memory = "new", fuses = { "decompose" }, needs = { "decompose" }, may = { "update" } },
  effect = { memory = "none", fuses = { "update" }, needs = { "update", "over" } },
  extern = { memory = "new" },
  composite = { memory = "parts", fuses = true, may = { "expr", "check" } },
}

-- Fields of some kinds only.
local special = {}
for _, kind in pairs(kinds) do
  for _, list in ipairs({ kind.needs or {}, kind.may or {} }) do
    for _, field in ipairs(list) do special[field] = true end
  end
end

--- What is wrong with the fields of a record of this kind; nil if nothing is.
function M.mistake(record)
  local kind, fits = kinds[record.kind], {}
  for _, field in ipairs(kind.needs or {}) do
    if record[field] == nil then
      return ("a record of kind %s needs %s, which says how an element is computed"):format(record.kind, field)
    end
    fits[field] = true
  end
  for _, field in ipairs(kind.may or {}) do fits[field] = true end
  local names = {}
  for field in pairs(special) do names[#names + 1] = field end
  table.sort(names)
  for _, field in ipairs(names) do
    if record[field] ~= nil and not fits[field] then
      return ("a record of kind %s has no %s"):format(record.kind, field)
    end
  end
end

M.names = { "pointwise", "view", "reduce", "scan", "gather", "scatter", "matmul", "window", "random", "factory", "fused",
  "effect", "extern", "composite" } -- in the order of MothKind
for _, name in ipairs(M.names) do assert(kinds[name]) end

local tensors = { TENSOR = true, OPERAND = true, TENSORS = true }

--- What may be done with calls of op, a record that schema.lua has read.
function M.facts(op)
  local kind = kinds[op.kind]
  local writes, generator, tensor = {}, false, false
  local told = kind.fuses == true
  for _, field in ipairs(not told and kind.fuses or {}) do told = told or op[field] ~= nil end
  for _, a in ipairs(op.args) do
    if a.mutated then writes[#writes + 1] = a.name end
    generator = generator or a.type == "GENERATOR"
    tensor = tensor or tensors[a.type] or false
  end
  return {
    memory = op.returns_self and "self" or op.nresults == 0 and "none" or kind.memory,
    fuses = not op.keep and told,
    drops = op.kind ~= "effect" and #writes == 0,
    draws = generator or op.kind == "random",
    repeats = not generator and op.kind ~= "random" and op.none == nil,
    writes = writes,
    factory = not tensor and op.nresults > 0,
  }
end

return M
