--- Derivatives of functions at a point: moth.autograd.functional, with PyTorch's names. moth.func has the same as
-- functions of functions.
--
--     local J = moth.autograd.functional.jacobian(f, x)              -- (f(x)'s shape, x's shape)
--     local y, Hv = moth.autograd.functional.hvp(loss, x, v)         -- the Hessian's product with v
--
-- inputs is a tensor, or a list of tensors, which are the function's arguments; results are of the same form. With
-- create_graph results have a history, where inputs have one.
local B = require "moth_lua"
local func = require "moth.autograd.func"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local M = {}

-- f with a result that is checked.
local function checked(name, f)
  return function(...)
    local y = f(...)
    local list = B.is_tensor(y) and { y } or type(y) == "table" and y or {}
    for _, t in ipairs(list) do if not B.is_tensor(t) then list = {} end end
    if #list == 0 then check.fail("[%s] the function must return a tensor, or a list of tensors", name) end
    return y
  end
end

-- inputs as a list, without history unless create_graph; and whether they are one tensor.
local function prepared(name, inputs, create_graph)
  local single = B.is_tensor(inputs)
  if not single and #inputs == 0 then check.fail("[%s] argument 'inputs': expected at least one tensor", name) end
  local list = {}
  for i, x in ipairs(single and { inputs } or inputs) do list[i] = create_graph and x or B.ops.detach(x) end
  return list, single
end

local function numbers(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end

-- v as a list of tensors like others.
local function like(name, v, others, what)
  local list = B.is_tensor(v) and { v } or v
  if list == nil then
    if #others == 1 and B.numel(others[1]) == 1 then return { B.alias(B.ops.ones_like(others[1]), false) } end
    check.fail("[%s] argument 'v' is needed, unless %s is one tensor of one element", name, what)
  end
  if #list ~= #others then check.fail("[%s] argument 'v': expected %d tensors, got %d", name, #others, #list) end
  for i, t in ipairs(list) do
    if tostring(t:size()) ~= tostring(others[i]:size()) then
      check.fail("[%s] argument 'v': tensor %d must have the shape %s of %s, got %s", name, i,
        tostring(others[i]:size()), what, tostring(t:size()))
    end
  end
  return list
end

local function form(list, single) return single and list[1] or list end
local function plain(create_graph, value)
  if create_graph then return value end
  return require("moth.lang.tree").map(function(t) return B.ops.detach(t) end, value)
end

--- vjp(f, inputs, v, { create_graph = }): f's result, and the product of v (like it) with the Jacobian, like inputs.
function M.vjp(f, inputs, v, create_graph)
  local list, single = prepared("vjp", inputs, create_graph)
  local y, pull = func.vjp(checked("vjp", f), unpack(list))
  local vs = like("vjp", v, B.is_tensor(y) and { y } or y, "the result")
  return plain(create_graph, y), plain(create_graph, form({ pull(form(vs, B.is_tensor(y))) }, single))
end

--- jvp(f, inputs, v, { create_graph = }): f's result, and the product of the Jacobian with v (like inputs), by forward
-- mode.
function M.jvp(f, inputs, v, create_graph)
  local list = prepared("jvp", inputs, create_graph)
  local y, t = func.jvp(checked("jvp", f), list, like("jvp", v, list, "inputs"))
  return plain(create_graph, y), plain(create_graph, t)
end

--- jacobian(f, inputs, { create_graph =, strategy = }): the Jacobian; for several inputs or results a list for each
-- result with one for each input. strategy "reverse-mode" or "forward-mode"; each runs all directions at once.
function M.jacobian(f, inputs, create_graph, strategy)
  local list, single = prepared("jacobian", inputs, create_graph)
  local by = strategy == "forward-mode" and func.jacfwd or func.jacrev
  return plain(create_graph, by(checked("jacobian", f), single and 1 or numbers(#list))(unpack(list)))
end

-- f with a result of one element, as the second derivatives need it.
local function scalar(name, f)
  return function(...)
    local y = f(...)
    if not B.is_tensor(y) or B.numel(y) ~= 1 then
      check.fail("[%s] the function must return a tensor of one element", name)
    end
    return y:dim() == 0 and y or y:reshape({})
  end
end

--- hessian(f, inputs, { create_graph = }): the second derivatives of f, whose result has one element.
function M.hessian(f, inputs, create_graph)
  local list, single = prepared("hessian", inputs, create_graph)
  return plain(create_graph, func.hessian(scalar("hessian", f), single and 1 or numbers(#list))(unpack(list)))
end

--- hvp(f, inputs, v, { create_graph = }): f's result, and the Hessian's product with v, by forward over reverse mode.
function M.hvp(f, inputs, v, create_graph)
  local list, single = prepared("hvp", inputs, create_graph)
  local both = func.grad_and_value(scalar("hvp", f), numbers(#list))
  local value
  local _, t = func.jvp(function(...)
    local g
    g, value = both(...)
    return g
  end, list, like("hvp", v, list, "inputs"))
  return plain(create_graph, value), plain(create_graph, form(t, single))
end

--- vhp(f, inputs, v, { create_graph = }): the same by reverse mode twice.
function M.vhp(f, inputs, v, create_graph)
  local list, single = prepared("vhp", inputs, create_graph)
  local vs, y = like("vhp", v, list, "inputs"), nil
  local gradient = func.grad_and_value(scalar("vhp", f), numbers(#list))
  local _, pull = func.vjp(function(...)
    local g, value = gradient(...)
    y = value
    return g
  end, unpack(list))
  return plain(create_graph, y), plain(create_graph, form({ pull(vs) }, single))
end

return signature.all(M, {
  "vjp(callable f, Tensor|Tensor[] inputs, Tensor|Tensor[] v?, bool create_graph=false)",
  "jvp(callable f, Tensor|Tensor[] inputs, Tensor|Tensor[] v?, bool create_graph=false)",
  "jacobian(callable f, Tensor|Tensor[] inputs, bool create_graph=false, \z
    'reverse-mode'|'forward-mode' strategy='reverse-mode')",
  "hessian(callable f, Tensor|Tensor[] inputs, bool create_graph=false)",
  "hvp(callable f, Tensor|Tensor[] inputs, Tensor|Tensor[] v?, bool create_graph=false)",
  "vhp(callable f, Tensor|Tensor[] inputs, Tensor|Tensor[] v?, bool create_graph=false)",
})
