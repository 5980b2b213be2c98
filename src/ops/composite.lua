-- Writes the composites that are expressions (`expr` in the record, with its conditions in `check`) as C functions of
-- dispatched ops, and so the steps of optimizers whose `update` is more than a formula of elements (a kernel for all
-- devices: one parameter after the other): build/gen/composite.c.
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
      leaf.whole = a.type == "INT" and not a.optional
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

local step_text = [[
/* %s */
static MothStatus step_of_%s(MothCall *c, uint32_t i) {
  MothStatus status = MOTH_OK;
%s
%s
  goto done;
done:
  moth_drop_values(v, %d);
  return status;
}
MothStatus moth_cpu_%s(MothCall *c);
MothStatus moth_cpu_%s(MothCall *c) {
  MothStatus status = MOTH_OK;
  bool grad = moth_set_grad_enabled(false);
  for (uint32_t i = 0; i < c->args[%d].n && status == MOTH_OK; i++)
    if (c->args[%d].u.tensors[i]->numel > 0)
      status = step_of_%s(c, i);
  moth_set_grad_enabled(grad);
  return status;
}
]]

--- The kernel of an optimizer step by dispatched ops.
function M.step(op, ops)
  local state, lists = { temps = 0, lists = 0 }, {}
  for element, list in pairs(op.over) do lists[element] = op.index[list].at end
  local graph
  graph = expr.graph(function(name)
    local at, leaf = lists[name]
    if at then
      leaf = graph.node("leaf", "tensor", {}, "element " .. at)
      leaf.c = ("moth_list_tensor(c->args[%d], i)"):format(at)
    else
      local a = op.index[name]
      if not a then return nil end
      leaf = graph.node("leaf", formula.kind_of[a.type], {}, "argument " .. a.at)
      leaf.c = (a.type == "TENSOR" and "moth_v_given(c->args[%d].u.t)" or "c->args[%d]"):format(a.at)
      leaf.values = a.values or false
    end
    return leaf
  end, ops, define)
  local ok, values = pcall(graph.evaluate, op.update[2], op.place)
  if not ok then schema.fail(op, "update: " .. tostring(values)) end
  local writer = emit.writer(graph, values, state, 1)
  local lines = writer.block()
  local targets = {}
  for name in op.update[1]:gmatch("[%w_]+") do targets[#targets + 1] = name end
  for k, name in ipairs(targets) do
    local at = lists[name]
    lines[#lines + 1] = ("  if (c->args[%d].n)\n    MOTH_GO(moth_eval_store(c->args[%d].u.tensors[i], %s));"):format(at, at,
      writer.value(values[k]))
  end
  local params = lists.param
  return step_text:format(op.place, op.name, emit.declare(state), table.concat(lines, "\n"), math.max(1, state.temps),
    op.name, op.name, params, params, op.name)
end

return M
