-- Derivative formulas. A formula is an expression (expr.lua) over the names of an op's arguments, `grad`, `grad1`
-- (of results 1, 2 …), `result`, `result1`; it may call the helpers of src/autograd/formulas.h beside ops. One formula
-- for several arguments, `["query, key"] = "name(…)"`, is one call of an op whose results are their gradients, in order,
-- or of moth_gradset_name, which computes the needed ones; the bits of `need` tell which. A formula may be two texts,
-- { once = that call, again = an expression of as many values }: the second if the gradients are differentiated again.
local define = require "define"
local emit = require "emit"
local expr = require "expr"
local schema = require "schema"

local M = {}

local kind_of = {
  TENSOR = "tensor", OPERAND = "any", SCALAR = "number", INT = "number", DIM = "number", INDEX = "number",
  ENUM = "enum", INDEX_BASE = "number", FLOAT = "number", BOOL = "number", INTS = "list", DIMS = "list", TENSORS = "tensors",
  STRING = "string", DTYPE = "number", DEVICE = "number", GENERATOR = "number",
}
M.kind_of = kind_of

local function mask_of(set)
  local m = 0
  for at in pairs(set) do m = m + 2 ^ at end
  return m
end

-- Properties of an argument that the node has without saving it.
local geometry_of = { shape = "moth_node_shape", stride = "moth_node_stride", offset = "moth_node_offset" }

-- Does autograd record what is made of the tensors that a formula reads?
local function is_recorded(op, formula)
  local text = "records(grad)"
  for name in formula:gmatch("[%w_]+") do
    local a = op.index[name]
    if a and a.type == "TENSOR" then text = ("either(%s, records(%s))"):format(text, name) end
  end
  return text
end

-- The lines that make the gradients of args by the expression joint[2].again.
local function differentiable_again(op, joint, args, graph, evaluate, state)
  local lines = {}
  local values = evaluate(graph, joint[2].again, joint[1])
  if #values ~= #args then
    schema.fail(op, ("the derivative by %s gives %d values"):format(joint[1], #values))
  end
  for i, a in ipairs(args) do
    local kind = expr.kind_of(values[i])
    if kind ~= "tensor" and kind ~= "none" then
      schema.fail(op, ("the derivative by %s: value %d is no tensor, but of kind %s"):format(joint[1], i, kind))
    end
    local needed = graph.node("needed", "condition", {}, 2 ^ a.at)
    values[i] = graph.node("when", "tensor", { needed, values[i], graph.node("none", "none") })
  end
  local writer = emit.writer(graph, values, state, 3)
  for _, line in ipairs(writer.block()) do lines[#lines + 1] = line end
  for i, a in ipairs(args) do
    lines[#lines + 1] = ("      out[moth_node_edge(node, %d)] = %s.u.t;"):format(a.at, writer.take(values[i]))
  end
  return lines
end

--- The C function of an op's derivative, and what it saves.
-- @return text, saves_for ({ [arg] = mask of arguments (bits 0..15) and results (16..) }), geometry (bool),
-- differentiable (mask)
function M.backward(op, by_name, helpers)
  local saves_for, geometry, differentiable = {}, false, {}
  local state = { temps = 0, lists = 0 }

  -- Helpers look like ops of one result to expressions.
  local ops = setmetatable({}, { __index = function(_, name)
    if by_name[name] then return by_name[name] end
    if helpers[name] then return { nresults = 1, args = {}, helper = true } end
  end })

  -- The derivative of a holomorphic function, conjugated, is the formula of conjugated values (PyTorch's convention).
  local conjugated = (op.dtypes or ""):find("complex", 1, true) and op.holomorphic ~= false and "_conj" or ""

  -- The graph of a formula, with what it loads noted in `saved`.
  local function new_graph(saved, extra)
    local graph
    local function load(text, kind, bit)
      local node = graph.node("load", kind, {}, text)
      node.on_write = function() saved[bit] = true end
      return node
    end
    local function names(name)
      if extra and extra[name] then return extra[name] end
      local a = op.index[name]
      if a then
        local node = load(("moth_node_arg%s(node, %d"):format(conjugated, a.at), kind_of[a.type], a.at)
        node.values = a.values or false
        if a.type == "TENSOR" then
          node.field = function(field)
            if not geometry_of[field] then return nil end
            geometry = geometry or field ~= "shape"
            local leaf = graph.node("leaf", field == "offset" and "number" or "list", {},
              ("%s(node, %d)"):format(geometry_of[field], a.at))
            leaf.c = leaf.more
            return leaf
          end
        end
        return node
      end
      if name == "need" then
        local leaf = graph.node("leaf", "number", {}, "need")
        leaf.c = "moth_v_int(need)"
        return leaf
      end
      local what, i = name:match("^(%a+)(%d*)$")
      i = tonumber(i) or 0
      if what == "grad" and i < op.nresults then
        local leaf = graph.node("leaf", "tensor", {}, "grad" .. i)
        leaf.c = (op.absent and "moth_v_given(grads[%d])" or "moth_v_tensor(grads[%d])"):format(i)
        return leaf
      elseif what == "result" and i < op.nresults then
        return load(("moth_node_result%s(node, %d"):format(conjugated, i), "tensor", 16 + i)
      end
    end
    graph = expr.graph(names, ops, define)
    graph.helpers = helpers
    return graph
  end

  local function evaluate(graph, text, of)
    local ok, results = pcall(graph.evaluate, text, op.place)
    if not ok then schema.fail(op, "the derivative of " .. of .. ": " .. tostring(results)) end
    return results
  end

  local text = {}
  -- Joint formulas; each of their arguments gets the formula, for readers of the record.
  local joint, alone = {}, {}
  for names, formula in pairs(op.grad) do
    if names:find(",", 1, true) then joint[#joint + 1] = { names, formula } else alone[names] = formula end
  end
  table.sort(joint, function(a, b) return a[1] < b[1] end)
  for _, j in ipairs(joint) do
    local args, needed = {}, 0
    for name in j[1]:gmatch("[%w_]+") do
      local a = op.index[name] or schema.fail(op, "grad names '" .. name .. "', which is no argument")
      args[#args + 1] = a
      needed = needed + 2 ^ a.at
    end
    local once = type(j[2]) == "table" and j[2].once or j[2]
    local target = once:match("^([%w_]+)%(.*%)$")
    local set = helpers["set " .. tostring(target)]
    if not set and not (by_name[target] and by_name[target].nresults == #args) then
      schema.fail(op, "the derivative by " .. j[1] .. " must be a call of an op with as many results, or of a gradset")
    end
    local saved, values, nvalues = {}, {}, 0
    local twice = type(j[2]) == "table"
    local graph = new_graph(saved, { [target] = function(...) values, nvalues = { ... }, select("#", ...) return 0 end })
    evaluate(graph, once, j[1])
    for i = 1, nvalues do if values[i] == nil then values[i] = graph.node("none", "none") end end
    local outputs = { unpack(values) }
    if twice then outputs[#outputs + 1] = evaluate(graph, is_recorded(op, once), j[1])[1] end
    local writer = emit.writer(graph, outputs, state, 2)
    local lines = writer.block()
    if twice then
      lines[#lines + 1] = ("    if %s {"):format(writer.condition(outputs[#outputs]))
      for _, line in ipairs(differentiable_again(op, j, args, new_graph(saved), evaluate, state)) do
        lines[#lines + 1] = line
      end
      lines[#lines + 1] = "    } else {"
    end
    local c, at = {}, state.temps
    for i, v in ipairs(values) do c[i] = writer.value(v) end
    state.temps = at + #args
    local list = ("(MothValue[]){%s}"):format(table.concat(c, ", "))
    lines[#lines + 1] = set and ("    MOTH_GO(moth_gradset_%s(%s, need, v + %d));"):format(target, list, at)
      or ("    MOTH_GO(moth_eval_all(MOTH_OP(%s), %d, %s, v + %d));"):format(target, nvalues, list, at)
    for i, a in ipairs(args) do
      lines[#lines + 1] = ("    if (need & %du)\n      out[moth_node_edge(node, %d)] = moth_take_value(&v[%d]);"):format(
        2 ^ a.at, a.at, at + i - 1)
      differentiable[a.at] = true
      saves_for[a.at] = mask_of(saved)
      op.grad[a.name] = once
    end
    op.grad[j[1]] = nil
    if twice then lines[#lines + 1] = "    }" end
    text[#text + 1] = ("  if (need & %du) { /* %s: %s */\n%s\n  }"):format(needed, j[1], once, table.concat(lines, "\n"))
  end

  for _, a in ipairs(op.args) do
    local formula = alone[a.name]
    if formula then
      differentiable[a.at] = true
      local saved, lines = {}
      if formula == "unimplemented" then
        lines = { ("    MOTH_GO(moth_unimplemented(\"%s\", \"%s\"));"):format(op.name, a.name) }
      elseif a.type == "TENSORS" then
        local fn, given = formula:match("^([%w_]+)%(grad, " .. a.name .. ", (.+)%)$")
        if not fn then schema.fail(op, "the derivative of a list must be one helper(grad, " .. a.name .. ", …)") end
        local graph = new_graph(saved)
        local values = evaluate(graph, given, a.name)
        local writer = emit.writer(graph, values, state, 2)
        lines = writer.block()
        lines[#lines + 1] = ("    MOTH_GO(moth_gradlist_%s(node, grads[0], %s, out));"):format(fn, writer.value(values[1]))
      else
        local graph = new_graph(saved)
        local values = evaluate(graph, formula, a.name)
        if #values ~= 1 then schema.fail(op, ("the derivative of %s gives %d values"):format(a.name, #values)) end
        if expr.kind_of(values[1]) ~= "tensor" then
          schema.fail(op, ("the derivative of %s: '%s' is no tensor, but of kind %s"):format(a.name, formula,
            expr.kind_of(values[1])))
        end
        local writer = emit.writer(graph, values, state, 2)
        lines = writer.block()
        lines[#lines + 1] = ("    out[moth_node_edge(node, %d)] = %s.u.t;"):format(a.at, writer.take(values[1]))
      end
      text[#text + 1] = ("  if (need & %du) { /* %s: %s */\n%s\n  }"):format(2 ^ a.at, a.name,
        formula:gsub("%s+", " "):gsub("%*/", "* /"), table.concat(lines, "\n"))
      saves_for[a.at] = mask_of(saved)
    end
  end

  local c = { ("/* %s */"):format(op.place),
    ("static MothStatus backward_%s(MothNode *node, MothTensor *const *grads, uint32_t need, MothTensor **out) {"):format(op.name),
    "  MothStatus status = MOTH_OK;", emit.declare(state), "  (void)node, (void)grads, (void)need, (void)out;",
    table.concat(text, "\n"),
    ("  goto done;\ndone:\n  moth_drop_values(v, %d);\n  return status;\n}\n"):format(math.max(1, state.temps)) }
  return table.concat(c, "\n"), saves_for, geometry, mask_of(differentiable)
end

return M
