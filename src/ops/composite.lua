-- Writes the composites that are expressions (`expr` in the record, with its conditions in `check`) as C functions of
-- dispatched ops: build/gen/composite.c.
local define = require "define"
local emit = require "emit"
local expr = require "expr"
local formula = require "formula"
local schema = require "schema"
local shapes = require "shapes"

local M = {}

--- The function of a record; or, of the given name, that of what a fused op is made of (`decompose`). ops: by name.
function M.text(op, ops, symbol, expression)
  local state = { temps = 0, lists = 0 }
  local function new_graph()
    local graph
    graph = expr.graph(function(name)
      local a = op.index[name]
      if not a then return nil end
      local leaf = graph.node("leaf", formula.kind_of[a.type], {}, "argument " .. a.at)
      leaf.c, leaf.values = ("c->args[%d]"):format(a.at), a.values or false
      leaf.position, leaf.is_dtype = a.type == "DIM" or a.type == "INDEX", a.type == "DTYPE"
      return leaf
    end, ops, define)
    return graph
  end
  local function evaluate(graph, text, what)
    local ok, results = pcall(graph.evaluate, text, op.place)
    if not ok then schema.fail(op, what .. ": " .. tostring(results)) end
    return results
  end

  local lines = {}
  for _, check in ipairs(not expression and op.check or {}) do
    shapes.condition(op, check, state, function(text)
      local graph = new_graph()
      return graph, evaluate(graph, text, "check")
    end, function(l) lines[#lines + 1] = l end)
  end

  local graph = new_graph()
  local values = evaluate(graph, expression or op.expr, expression and "decompose" or "expr")
  symbol = symbol or op.composite
  if #values ~= op.nresults then
    schema.fail(op, ("expr gives %d values, the schema has %d results"):format(#values, op.nresults))
  end
  for i, v in ipairs(values) do
    local kind = expr.kind_of(v)
    if kind ~= "tensor" then schema.fail(op, ("expr: result %d is no tensor, but of kind %s"):format(i, kind)) end
  end
  local writer = emit.writer(graph, values, state, 1)
  for _, l in ipairs(writer.block()) do lines[#lines + 1] = l end
  for i, v in ipairs(values) do lines[#lines + 1] = ("  c->results[%d] = %s;"):format(i - 1, writer.take(v)) end
  return table.concat({ ("/* %s */"):format(op.place), ("MothStatus %s(MothCall *c);"):format(symbol),
    ("MothStatus %s(MothCall *c) {\n  MothStatus status = MOTH_OK;"):format(symbol), emit.declare(state),
    table.concat(lines, "\n"),
    ("  goto done;\ndone:\n  moth_drop_values(v, %d);\n  return status;\n}\n"):format(math.max(1, state.temps)) }, "\n")
end

return M
