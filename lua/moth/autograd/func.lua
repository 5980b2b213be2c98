--- Functions of functions: models as functions of their parameters, and derivatives as functions. `moth.func`.
--
--     local params = {}
--     for name, p in model:named_parameters() do params[name] = p - 0.1 * gradient[name] end
--     local y = moth.func.functional_call(model, params, x) -- differentiable by the tensors that params depend on
local trace = require "moth.lang.trace"
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local ops = B.ops
local M = {}

local function pack(...) return { n = select("#", ...), ... } end

-- where[path] = { { registry, name }, … }: every registry entry of the parameter or buffer of that path. A tied one
-- has several, under each of its paths.
local function entries(model)
  local where, of = {}, {}
  local function visit(registry, path, m, name, t)
    of[t] = of[t] or {}
    table.insert(of[t], { m[registry], name })
    where[path == "" and name or path .. "." .. name] = of[t]
  end
  local function walk(m, path, above)
    if above[m] then check.fail("functional_call: the module at '%s' holds itself", path) end
    above[m] = true
    for _, registry in ipairs({ "_parameters", "_buffers" }) do
      for name, t in each(m:registry(registry)) do visit(registry, path, m, name, t) end
    end
    for name, child in each(m:registry("_modules")) do
      walk(child, path == "" and name or path .. "." .. name, above)
    end
    above[m] = nil
  end
  walk(model, "", {})
  return where
end

local function put(changes)
  for i, c in ipairs(changes) do
    local map, name, value = c[1], c[2], c[3]
    changes[i] = { map, name, rawget(map, name) }
    rawset(map, name, value)
  end
  return changes
end

local function restore(changes)
  for i = #changes, 1, -1 do rawset(changes[i][1], changes[i][2], changes[i][3]) end
end

--- Calls model(...) with other tensors for its parameters and buffers: `params` maps their names, as in a state
-- dict, to tensors; others are not replaced. The model is restored when the call returns or fails.
function M.functional_call(model, params, ...)
  local where, changes = entries(model), {}
  for path, t in each(params) do
    if not where[path] then check.fail("functional_call: the model has no parameter or buffer '%s'", tostring(path)) end
    if not B.is_tensor(t) then check.fail("functional_call: '%s' must be a tensor, got %s", path, type(t)) end
    for _, entry in ipairs(where[path]) do changes[#changes + 1] = { entry[1], entry[2], t } end
  end
  put(changes)
  local results = pack(xpcall(model, trace.keep, ...))
  restore(changes)
  if not results[1] then trace.rethrow(results[2]) end
  return unpack(results, 2, results.n)
end

local function positions(argnums, n)
  local list = type(argnums) == "table" and argnums or { argnums or 1 }
  for _, i in ipairs(list) do
    if type(i) ~= "number" or i < 1 or i > n then
      check.fail("func: there is no argument %s to differentiate by; got %d arguments", tostring(i), n)
    end
  end
  return list
end

-- An argument as a variable of this call: a new leaf, or a view of a tensor with a history, so that functions nest.
local function variable(t, where)
  if not B.is_tensor(t) then
    check.fail("[func.%s] an argument to differentiate by must be a tensor, got %s", where, type(t))
  end
  if B.requires_grad(t) then return ops.view(t, B.size(t)) end
  t = B.detach(t, false)
  B.set_requires_grad(t, true)
  return t
end

local frames = {} -- the leaves made by each running call, innermost last

-- Calls f with recording on. Returns its results, and all leaves made for it and for calls within it.
local function record(f, args, inputs)
  local frame = { unpack(inputs) }
  frames[#frames + 1] = frame
  local ok, value = xpcall(require("moth.autograd").enable_grad, trace.keep, f, unpack(args, 1, args.n))
  frames[#frames] = nil
  if not ok then trace.rethrow(value) end
  local outer = frames[#frames]
  if outer then
    for _, leaf in ipairs(frame) do outer[#outer + 1] = leaf end
  end
  return value, frame
end

-- The id of the node that adds to leaf.grad; nil of a leaf without one.
local function accumulator(leaf)
  local node = require("moth.autograd").enable_grad(ops.view, leaf, B.size(leaf)).grad_fn
  return node and node:next_functions()[1][1]:id()
end

-- Whether value depends on a leaf outside `leaves`: a variable of an enclosing function, or a parameter of the user's.
-- Only then does the derivative need a history.
local function depends_on_others(value, leaves)
  local seen, stack = {}, { value.grad_fn }
  for _, x in ipairs(leaves) do
    local id = B.is_leaf(x) and accumulator(x)
    if id then seen[id] = true end
  end
  while #stack > 0 do
    local node = table.remove(stack)
    for _, edge in ipairs(node:next_functions()) do
      local n = edge[1]
      if n and not seen[n:id()] then
        if n:name() == "AccumulateGrad" then return true end
        seen[n:id()] = true
        stack[#stack + 1] = n
      end
    end
  end
  return false
end

--- grad_and_value(f, argnums): a function of f's arguments that returns the gradient by argument number `argnums`
-- (default 1; a list: a table of gradients) and f's result, a tensor of one element.
function M.grad_and_value(f, argnums)
  return function(...)
    local args, recording = pack(...), B.grad_enabled()
    local inputs = {}
    for k, i in ipairs(positions(argnums, args.n)) do
      args[i] = variable(args[i], "grad")
      inputs[k] = args[i]
    end
    local value, leaves = record(f, args, inputs)
    if not B.is_tensor(value) or B.numel(value) ~= 1 then
      check.fail("func.grad: the function must return a tensor of one element; see func.vjp for others")
    end
    local gradients = {}
    if B.requires_grad(value) then
      recording = recording and depends_on_others(value, leaves)
      gradients = { require("moth.autograd").collect({ value }, inputs, nil, recording, recording, true) }
      if not recording then value = B.alias(value, false) end
    end
    for k = 1, #inputs do gradients[k] = gradients[k] or B.alias(ops.zeros_like(inputs[k]), false) end
    return type(argnums) == "table" and gradients or gradients[1], value
  end
end

--- grad(f, argnums): a function that returns the gradient of f. It nests: grad(grad(f)) is the second derivative.
function M.grad(f, argnums)
  local g = M.grad_and_value(f, argnums)
  return function(...) return (g(...)) end
end

--- vjp(f, x, …): f's result y at x, …, and a function that takes v (y's shape) to the products v·dy/dx, ….
function M.vjp(f, ...)
  local args = pack(...)
  for i = 1, args.n do args[i] = variable(args[i], "vjp") end
  local y, leaves = record(f, args, args)
  if not B.is_tensor(y) then check.fail("[func.vjp] the function must return a tensor, got %s", type(y)) end
  local others = B.requires_grad(y) and depends_on_others(y, leaves)
  return others and B.grad_enabled() and y or B.alias(y, false), function(v)
    local out = {}
    -- The products are linear in v, so they have a derivative by v, too.
    local create = B.grad_enabled() and (others or B.is_tensor(v) and B.requires_grad(v))
    if B.requires_grad(y) then
      out = { require("moth.autograd").collect({ y }, args, { v }, true, create, true, not others) }
    end
    for i = 1, args.n do out[i] = out[i] or ops.zeros_like(args[i]) end
    return unpack(out, 1, args.n)
  end
end

return signature.all(M, { "functional_call(Module model, table params, ...)",
  "grad(callable f, int|int[] argnums=1)", "grad_and_value(callable f, int|int[] argnums=1)", "vjp(callable f, ...)" })
