-- The kinds of ops, and the facts that follow from a kind: the memory of results, and the transformations that a
-- compiler may apply to a call. Derived only here; C reads them in MothOp (src/dispatch/dispatch.h), Lua in
-- moth.ops.get(name).
--
--   memory    "new": results have new memory; "view": they share the storage of the first argument; "self": the first
--             argument, written to; "none": no results; "parts": decided by the ops of a composite
--   fuses     the record defines the elements, so that one kernel may compute them together with other ops
--   drops     a call with unused results may be removed. One that draws still advances the generator.
--   draws     takes random numbers: calls that draw from one generator keep their order
--   repeats   the same arguments give the same results: two equal calls that write nothing may become one
--   writes    names of the arguments that are written to: the call keeps its order with readers and writers of them
--   factory   makes tensors from no tensor: has the options dtype, device, requires_grad
--
-- All other calls may be reordered.
local M = {}

-- kind -> memory of the results; the fields that define an element, of which one is enough (true: always fused); the
-- fields that a record must have, and fields that it may have.
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
  composite = { memory = "parts", fuses = true, may = { "expr", "loop", "join" } },
}

-- Fields of some kinds only.
local special = {}
for _, kind in pairs(kinds) do
  for _, list in ipairs({ kind.needs or {}, kind.may or {} }) do
    for _, field in ipairs(list) do special[field] = true end
  end
end

--- The mistake in the fields of a record of this kind, as a message, or nil.
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

--- Whether the kind gives the shapes of results: a record then has no patterns for them.
function M.gives_shape(op)
  return op.returns_self or op.kind == "pointwise" or op.kind == "reduce" or op.kind == "scan" or op.kind == "matmul"
end

M.names = { "pointwise", "view", "reduce", "scan", "gather", "scatter", "matmul", "window", "random", "factory", "fused",
  "effect", "extern", "composite" } -- in the order of MothKind
for _, name in ipairs(M.names) do assert(kinds[name]) end

local tensors = { TENSOR = true, OPERAND = true, TENSORS = true }

--- The facts about op, a record read by schema.lua.
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
    drops = op.kind ~= "effect" and #writes == 0 and not op.collective,
    draws = generator or op.kind == "random",
    repeats = not generator and op.kind ~= "random" and op.none == nil and not op.collective,
    writes = writes,
    factory = not tensor and op.nresults > 0,
  }
end

return M
