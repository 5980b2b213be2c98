-- Writes the composites that are expressions (`expr` in the record, with its conditions in `check`) as C functions of
-- dispatched ops: build/gen/composite.c.
local define = require "define"
local emit = require "emit"
local expr = require "expr"
local formula = require "formula"
local schema = require "schema"

local M = {}

-- The C format of a value in a message, and the C expression for it.
local function shown(node, writer)
  local c = writer.value(node)
  if node.what == "dtype" then return "%s", ("moth_dtype_name((MothDType)(%s).u.i)"):format(c) end
  if node.kind == "list" then
    return "%s", ("moth_shape_format((int)(%s).n, (%s).u.ints, (char[200]){0}, 200)"):format(c, c)
  end
  if node.position then return "\1%d", ("(int)%s.u.i"):format(c) end -- MOTH_AT
  if node.what == "ndim" or node.what == "length" then return "%d", ("(int)%s.u.i"):format(c) end
  if node.kind == "string" then return "%s", ("(%s).u.s"):format(c) end
  return "%.14g", ("moth_as_double(%s)"):format(c)
end

--- The function of a record. ops: by name.
function M.text(op, ops)
  local state = { temps = 0, lists = 0 }
  local function new_graph()
    local graph
    graph = expr.graph(function(name)
      local a = op.index[name]
      if not a then return nil end
      local leaf = graph.node("leaf", formula.kind_of[a.type], {}, "argument " .. a.at)
      leaf.c, leaf.values = ("c->args[%d]"):format(a.at), a.values or false
      leaf.position = a.type == "DIM" or a.type == "INDEX"
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
  for _, check in ipairs(op.check or {}) do
    local graph, values = new_graph(), {}
    values[1] = evaluate(graph, check[1], "check")[1]
    local message = check[2]:gsub("%%", "%%%%"):gsub("{(.-)}", function(text)
      values[#values + 1] = evaluate(graph, text, "check")[1]
      return "\0"
    end)
    local writer = emit.writer(graph, values, state, 1)
    for _, l in ipairs(writer.block()) do lines[#lines + 1] = l end
    local args, k = {}, 1
    message = message:gsub("%z", function()
      k = k + 1
      local format, c = shown(values[k], writer)
      args[#args + 1] = ",\n                       " .. c
      return format
    end)
    lines[#lines + 1] = ("  if (!%s)\n    MOTH_GO(moth_fail(%s, %q%s));"):format(writer.condition(values[1]),
      check[3] == "type" and "MOTH_ERR_TYPE" or "MOTH_ERR_VALUE", message, table.concat(args))
  end

  local graph = new_graph()
  local values = evaluate(graph, op.expr, "expr")
  if #values ~= op.nresults then
    schema.fail(op, ("expr gives %d values, the schema has %d results"):format(#values, op.nresults))
  end
  local writer = emit.writer(graph, values, state, 1)
  for _, l in ipairs(writer.block()) do lines[#lines + 1] = l end
  for i, v in ipairs(values) do lines[#lines + 1] = ("  c->results[%d] = %s;"):format(i - 1, writer.take(v)) end
  return table.concat({ ("/* %s */"):format(op.place), ("MothStatus %s(MothCall *c);"):format(op.composite),
    ("MothStatus %s(MothCall *c) {\n  MothStatus status = MOTH_OK;"):format(op.composite), emit.declare(state),
    table.concat(lines, "\n"),
    ("  goto done;\ndone:\n  moth_drop_values(v, %d);\n  return status;\n}\n"):format(math.max(1, state.temps)) }, "\n")
end

return M
