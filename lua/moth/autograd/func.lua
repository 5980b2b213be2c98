--- Functions of functions: models as functions of their parameters, and derivatives as functions. `moth.func`.
--
--     local params = {}
--     for name, p in model:named_parameters() do params[name] = p - 0.1 * gradient[name] end
--     local y = moth.func.functional_call(model, params, x) -- differentiable by the tensors that params depend on
--     local gradients = moth.func.vmap(moth.func.grad(loss), { false, 1, 1 })(params, xs, ys) -- one for each sample
local trace = require "moth.lang.trace"
local tree = require "moth.lang.tree"
local B = require "moth_lua"
local around = require "moth.autograd.around"
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
    table.insert(of[t], { m, registry, name })
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
  local before = {}
  for i, c in ipairs(changes) do
    local m, registry, name, value = c[1], c[2], c[3], c[4]
    before[i] = { m, registry, name, rawget(m[registry], name) }
    m:put_registered(registry, name, value)
  end
  return before
end

local function restore(changes)
  for i = #changes, 1, -1 do
    local c = changes[i]
    c[1]:put_registered(c[2], c[3], c[4])
  end
end

--- Calls model(...) with other tensors for its parameters and buffers: `params` maps their names, as in a state
-- dict, to tensors; others are not replaced. The model is restored when the call returns or fails.
function M.functional_call(model, params, ...)
  local where, changes = entries(model), {}
  for path, t in each(params) do
    if not where[path] then check.fail("functional_call: the model has no parameter or buffer '%s'", tostring(path)) end
    if not B.is_tensor(t) then check.fail("functional_call: '%s' must be a tensor, got %s", path, type(t)) end
    for _, entry in ipairs(where[path]) do changes[#changes + 1] = { entry[1], entry[2], entry[3], t } end
  end
  local before, outer = put(changes), around.push(put, restore, changes)
  local results = pack(xpcall(model, trace.keep, ...))
  around.pop(outer)
  restore(before)
  if not results[1] then trace.rethrow(results[2]) end
  return unpack(results, 2, results.n)
end

--- stack_module_state(models): the parameters of models of the same architecture, stacked along a new first dimension,
-- and their buffers: two tables by name, for vmap of functional_call.
function M.stack_module_state(models)
  if #models == 0 then check.fail("[stack_module_state] expected at least one module") end
  for i, model in ipairs(models) do
    if type(model) ~= "table" or not model.__module then
      check.fail("[stack_module_state] argument 'models': expected modules, element %d is a %s", i, type(model))
    end
  end
  local function stacked(each_of, requires)
    local lists, order = {}, {}
    for i, model in ipairs(models) do
      for name, t in model[each_of](model) do
        if i == 1 then lists[name], order[#order + 1] = {}, name end
        local list = lists[name]
        if not list or #list ~= i - 1 or tostring(t:size()) ~= tostring((list[1] or t):size()) then
          check.fail("[stack_module_state] the models differ: '%s' of model %d", name, i)
        end
        list[i] = t
      end
    end
    local out = {}
    for _, name in ipairs(order) do
      if #lists[name] ~= #models then check.fail("[stack_module_state] the models differ: '%s'", name) end
      out[name] = require("moth.autograd").no_grad(ops.stack, lists[name])
      if requires and B.requires_grad(lists[name][1]) then B.set_requires_grad(out[name], true) end
    end
    return out
  end
  return stacked("named_parameters", true), stacked("named_buffers", false)
end

-- ---- derivatives ------------------------------------------------------------------------------------

local function positions(argnums, n)
  local list = type(argnums) == "table" and argnums or { argnums or 1 }
  for _, i in ipairs(list) do
    if type(i) ~= "number" or i < 1 or i > n then
      check.fail("func: there is no argument %s to differentiate by; got %d arguments", tostring(i), n)
    end
  end
  return list
end

-- t without history, with its tangents.
local function plain(t)
  local alias = B.alias(t, false)
  return B.dual_levels(t) and B.dual_share(alias, t) or alias
end

-- An argument as a variable of this call: a new leaf, or a view of a tensor with a history, so that functions nest.
local function variable(t, where)
  if not B.is_tensor(t) then
    check.fail("[func.%s] an argument to differentiate by must be a tensor, got %s", where, type(t))
  end
  if B.requires_grad(t) then return ops.view(t, B.size(t)) end
  t = plain(t)
  B.set_requires_grad(t, true)
  return t
end

local function variables(value, where)
  if type(value) ~= "table" then return variable(value, where) end
  return tree.map(function(t) return variable(t, where) end, value)
end

local frames = {} -- the leaves made by each running call, innermost last

-- Calls f with recording on. Returns a list of its results, and all leaves made for it and for calls within it.
local function record(f, args, inputs)
  local frame = { unpack(inputs) }
  frames[#frames + 1] = frame
  local results = pack(xpcall(require("moth.autograd").enable_grad, trace.keep, f, unpack(args, 1, args.n)))
  frames[#frames] = nil
  if not results[1] then trace.rethrow(results[2]) end
  local outer = frames[#frames]
  if outer then
    for _, leaf in ipairs(frame) do outer[#outer + 1] = leaf end
  end
  table.remove(results, 1)
  results.n = results.n - 1
  return results, frame
end

-- The id of the node that adds to leaf.grad; nil of a leaf without one.
local function accumulator(leaf)
  local node = require("moth.autograd").enable_grad(ops.view, leaf, B.size(leaf)).grad_fn
  return node and node:next_functions()[1][1]:id()
end

-- Whether one of the values depends on a leaf outside `leaves`: a variable of an enclosing function, or a parameter of
-- the user's. Only then does the derivative need a history.
local function depends_on_others(values, leaves)
  local seen, stack = {}, {}
  for _, value in ipairs(values) do stack[#stack + 1] = value.grad_fn end
  for _, x in ipairs(leaves) do
    local id = B.is_leaf(x) and accumulator(x)
    if id then seen[id] = true end
  end
  for _, value in ipairs(values) do
    if B.is_leaf(value) and B.requires_grad(value) and not seen[accumulator(value)] then return true end
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

local function collect(...) return require("moth.autograd").collect(...) end

-- The gradient by arguments, the value, and what f returned beside it if it has_aux.
local function differentiate(f, argnums, has_aux, where, ...)
  local args, recording = pack(...), B.grad_enabled()
  local list, inputs = positions(argnums, args.n), {}
  for _, i in ipairs(list) do
    args[i] = variables(args[i], where)
    for _, x in ipairs((tree.flatten(args[i]))) do inputs[#inputs + 1] = x end
  end
  local results, leaves = record(f, args, inputs)
  local value = results[1]
  if not B.is_tensor(value) or B.numel(value) ~= 1 then
    check.fail("func.%s: the function must return a tensor of one element; see func.vjp for others", where)
  end
  if has_aux and results.n ~= 2 then
    check.fail("func.%s: with has_aux the function must return two values, got %d", where, results.n)
  end
  local gradients = {}
  if B.requires_grad(value) then
    recording = recording and depends_on_others({ value }, leaves)
    gradients = { collect({ value }, inputs, nil, recording, recording, true) }
    if not recording then value = plain(value) end
  end
  for k = 1, #inputs do gradients[k] = gradients[k] or B.alias(ops.zeros_like(inputs[k]), false) end
  local at, by = 0, {}
  for k, i in ipairs(list) do
    by[k] = tree.map(function()
      at = at + 1
      return gradients[at]
    end, args[i])
  end
  return type(argnums) == "table" and by or by[1], value, results[2]
end

--- grad_and_value(f, argnums, { has_aux = }): a function of f's arguments that returns the gradient by argument number
-- `argnums` (default 1; a list: a table of gradients; an argument may be a table of tensors) and f's result, a tensor
-- of one element. With has_aux f returns something else beside it, which comes third.
function M.grad_and_value(f, argnums, has_aux)
  return function(...)
    local g, value, aux = differentiate(f, argnums, has_aux, "grad_and_value", ...)
    if has_aux then return g, value, aux end
    return g, value
  end
end

--- value_and_grad(f, argnums, { has_aux = }): the same, the value first.
function M.value_and_grad(f, argnums, has_aux)
  return function(...)
    local g, value, aux = differentiate(f, argnums, has_aux, "value_and_grad", ...)
    if has_aux then return value, g, aux end
    return value, g
  end
end

--- grad(f, argnums, { has_aux = }): a function that returns the gradient of f. It nests: grad(grad(f)) is the second
-- derivative.
function M.grad(f, argnums, has_aux)
  return function(...)
    local g, _, aux = differentiate(f, argnums, has_aux, "grad", ...)
    if has_aux then return g, aux end
    return g
  end
end

-- The tensors of a result, a tensor or a table of them.
local function tensors_of(value, where)
  local list, spec = tree.flatten(value)
  for _, t in ipairs(list) do
    if not B.is_tensor(t) then
      check.fail("[func.%s] the function must return a tensor, or a table of tensors, got %s", where, type(t))
    end
  end
  if #list == 0 then check.fail("[func.%s] the function must return a tensor, got %s", where, type(value)) end
  return list, spec
end

--- vjp(f, x, …): f's result y at x, …, and a function that takes v (like y) to the products v·dy/dx, ….
function M.vjp(f, ...)
  local args, inputs = pack(...), {}
  for i = 1, args.n do
    args[i] = variables(args[i], "vjp")
    for _, x in ipairs((tree.flatten(args[i]))) do inputs[#inputs + 1] = x end
  end
  local results, leaves = record(f, args, inputs)
  local ys, spec = tensors_of(results[1], "vjp")
  local depending = {}
  for _, y in ipairs(ys) do if B.requires_grad(y) then depending[#depending + 1] = y end end
  local others = #depending > 0 and depends_on_others(depending, leaves)
  local keep = others and B.grad_enabled()
  local shown = {}
  for i, y in ipairs(ys) do shown[i] = keep and y or plain(y) end
  return tree.unflatten(shown, spec), function(v)
    local out, roots, weights, needs = {}, {}, {}, false
    local given = tree.flatten(v)
    if #given ~= #ys then check.fail("[func.vjp] expected a table of %d tensors like the function's result", #ys) end
    for i, y in ipairs(ys) do
      if not B.is_tensor(given[i]) then
        check.fail("[func.vjp] expected a tensor like the result, got %s", type(given[i]))
      end
      needs = needs or B.requires_grad(given[i])
      if B.requires_grad(y) then roots[#roots + 1], weights[#weights + 1] = y, given[i] end
    end
    -- The products are linear in v, so they have a derivative by v, too.
    local create = B.grad_enabled() and (others or needs)
    if #roots > 0 then out = { collect(roots, inputs, weights, true, create, true, not others) } end
    local at, by = 0, {}
    for i = 1, args.n do
      by[i] = tree.map(function(x)
        at = at + 1
        return out[at] or ops.zeros_like(x)
      end, args[i])
    end
    return unpack(by, 1, args.n)
  end, results[2]
end

local function as_list(x) return (B.is_tensor(x) or not check.is_plain(x)) and { x } or x end

--- jvp(f, primals, tangents, { has_aux = }): f's result at primals (a list of its arguments: tensors, or tables of
-- them) and its derivative in the direction of tangents, which are like primals.
function M.jvp(f, primals, tangents, has_aux)
  primals, tangents = as_list(primals), as_list(tangents)
  if #primals ~= #tangents then
    check.fail("[func.jvp] there are %d primals and %d tangents", #primals, #tangents)
  end
  return require("moth.autograd.forward_ad").with_level(function(level)
    local inputs = {}
    for i, x in ipairs(primals) do
      inputs[i] = tree.map(function(t, tangent)
        if not B.is_tensor(t) or not B.is_tensor(tangent) then
          check.fail("[func.jvp] primals and tangents must be tensors, or tables of tensors")
        end
        return B.dual_make(t, tangent, level)
      end, x, tangents[i])
    end
    local y, aux = f(unpack(inputs, 1, #primals))
    tensors_of(y, "jvp")
    local tangent = tree.map(function(t) return B.dual_tangent(t, level) or B.alias(ops.zeros_like(t), false) end, y)
    if has_aux then return y, tangent, aux end
    return y, tangent
  end)
end

--- linearize(f, x, …): f's result at x, …, and a function of tangents like x, … that returns its derivative in their
-- direction; f runs once.
function M.linearize(f, ...)
  local args, inputs = pack(...), {}
  for i = 1, args.n do
    args[i] = variables(args[i], "linearize")
    for _, x in ipairs((tree.flatten(args[i]))) do inputs[#inputs + 1] = x end
  end
  local results = record(f, args, inputs)
  local ys, spec = tensors_of(results[1], "linearize")
  local roots, vs, shown, of = {}, {}, {}, {}
  for i, y in ipairs(ys) do
    shown[i] = plain(y)
    if B.requires_grad(y) then
      roots[#roots + 1] = y
      vs[#roots] = B.set_requires_grad(B.alias(ops.zeros_like(y), false), true)
      of[i] = #roots
    end
  end
  local products = {} -- v·dy/dx, linear in v: what comes back from there are the derivatives by x in a direction
  if #roots > 0 then
    products = pack(require("moth.autograd").enable_grad(collect, roots, inputs, vs, true, true, true))
  end
  return tree.unflatten(shown, spec), function(...)
    local given, directions, at = {}, pack(...), 0
    if directions.n ~= args.n then check.fail("[func.linearize] expected %d tangents, got %d", args.n, directions.n) end
    for i = 1, args.n do
      tree.map(function(x, t)
        at = at + 1
        if not B.is_tensor(t) or tostring(t:size()) ~= tostring(x:size()) then
          check.fail("[func.linearize] a tangent must be like its tensor, of shape %s", tostring(x:size()))
        end
        given[at] = t
      end, args[i], directions[i])
    end
    local from, weights, out = {}, {}, {}
    for k = 1, #inputs do
      if products[k] and B.requires_grad(products[k]) then
        from[#from + 1], weights[#weights + 1] = products[k], given[k]
      end
    end
    local found = #from > 0 and { collect(from, vs, weights, true, false, true) } or {}
    for i, y in ipairs(ys) do out[i] = of[i] and found[of[i]] or B.alias(ops.zeros_like(y), false) end
    return tree.unflatten(out, spec)
  end
end

-- ---- Jacobians -----------------------------------------------------------------------------------------

-- The unit vectors of a tensor's shape, along a new first dimension.
local function basis(t)
  local n = B.numel(t)
  return ops.view(ops.eye(n, { dtype = B.tensor_dtype(t), device = B.tensor_device(t) }), n, unpack(B.size(t)))
end

local function joined(a, b)
  local out = {}
  for _, n in ipairs(a) do out[#out + 1] = n end
  for _, n in ipairs(b) do out[#out + 1] = n end
  return out
end

-- by argument: for each result a tensor of shape (result, argument); by(y, i, x) makes it.
local function blocks(y, args, list, argnums, make)
  local out = tree.map(function(leaf)
    local row = {}
    for k, i in ipairs(list) do row[k] = tree.map(function(x) return make(leaf, x) end, args[i]) end
    return { argnums_list = row }
  end, { y })
  local function open(node)
    if node.argnums_list then return type(argnums) == "table" and node.argnums_list or node.argnums_list[1] end
    for key, part in each(node) do node[key] = open(part) end
    return node
  end
  return open(out)[1]
end

--- jacrev(f, argnums, { has_aux =, chunk_size = }): a function that returns the Jacobian of f by argument `argnums`, of
-- shape (result's shape, argument's shape), by one backward for each element of the result, all at once (vmap).
function M.jacrev(f, argnums, has_aux, chunk_size)
  return function(...)
    local args = pack(...)
    local list, by = positions(argnums, args.n), {}
    for k, i in ipairs(list) do by[k] = args[i] end
    local y, pull, aux = M.vjp(function(...)
      local full, given = { n = args.n, unpack(args, 1, args.n) }, { ... }
      for k, i in ipairs(list) do full[i] = given[k] end
      return f(unpack(full, 1, full.n))
    end, unpack(by))
    local leaves, spec = tensors_of(y, "jacrev")
    local rows = {} -- rows[leaf][k]: the tree of argument k
    for i, leaf in ipairs(leaves) do
      rows[leaf] = pack(M.vmap(function(v)
        local all = {}
        for j, other in ipairs(leaves) do all[j] = j == i and v or ops.zeros_like(other) end
        return pull(tree.unflatten(all, spec))
      end, 1, 1, "error", chunk_size)(basis(leaf)))
    end
    local flat = {}
    for _, leaf in ipairs(leaves) do
      flat[leaf] = {}
      for k = 1, #list do
        local at, xs = 0, tree.flatten(args[list[k]])
        local parts = tree.flatten(rows[leaf][k])
        for _, x in ipairs(xs) do
          at = at + 1
          flat[leaf][x] = ops.reshape(parts[at], joined(B.size(leaf), B.size(x)))
        end
      end
    end
    local result = blocks(y, args, list, argnums, function(leaf, x) return flat[leaf][x] end)
    if has_aux then return result, aux end
    return result
  end
end

--- jacfwd(f, argnums, { has_aux =, randomness =, chunk_size = }): the same by one forward-mode derivative for each
-- element of the arguments: better where these have fewer elements than the result.
function M.jacfwd(f, argnums, has_aux, randomness, chunk_size)
  return function(...)
    local args = pack(...)
    local list, columns, y, aux = positions(argnums, args.n), {}, nil, nil
    for _, i in ipairs(list) do
      for _, x in ipairs((tree.flatten(args[i]))) do
        local value, tangent, extra = M.vmap(function(t)
          local full = { n = args.n, unpack(args, 1, args.n) }
          return M.jvp(function(moved)
            full[i] = tree.map(function(other) return other == x and moved or other end, args[i])
            return f(unpack(full, 1, full.n))
          end, { x }, { t }, has_aux)
        end, 1, has_aux and { false, -1, false } or { false, -1 }, randomness, chunk_size)(basis(x))
        columns[x], y, aux = tree.flatten(tangent), value, extra
      end
    end
    local number = {}
    for k, leaf in ipairs((tree.flatten(y))) do number[leaf] = k end
    local result = blocks(y, args, list, argnums, function(leaf, x)
      return ops.reshape(columns[x][number[leaf]], joined(B.size(leaf), B.size(x)))
    end)
    if has_aux then return result, aux end
    return result
  end
end

--- hessian(f, argnums): a function that returns the second derivatives of f, whose result has one element, by argument
-- `argnums`: jacfwd of jacrev.
function M.hessian(f, argnums) return M.jacfwd(M.jacrev(f, argnums), argnums) end

--- vmap(f, in_dims, out_dims, { randomness =, chunk_size = }): a function of batches, made of one of one element.
-- f sees tensors without their dimension in_dims (1; a list with a dimension for each argument, false: the argument is
-- the same for all; a table of dimensions for an argument that is a table), and each of its results gets a dimension of
-- the batch, out_dims (1; a list for several results). vmap nests, and takes and gives derivatives. Random ops need
-- randomness = "different" (each element draws) or "same" (one draw for all). chunk_size: at most so many elements at
-- once.
function M.vmap(f, in_dims, out_dims, randomness, chunk_size)
  return function(...) return require("moth.autograd.vmap").call(f, in_dims, out_dims, randomness, chunk_size, ...) end
end

return signature.all(M, { "functional_call(Module model, table params, ...)", "stack_module_state(list models)",
  "grad(callable f, int|int[] argnums=1, bool has_aux=false)",
  "grad_and_value(callable f, int|int[] argnums=1, bool has_aux=false)",
  "value_and_grad(callable f, int|int[] argnums=1, bool has_aux=false)", "vjp(callable f, ...)",
  "jvp(callable f, Tensor|table primals, Tensor|table tangents, bool has_aux=false)", "linearize(callable f, ...)",
  "jacrev(callable f, int|int[] argnums=1, bool has_aux=false, count chunk_size?)",
  "jacfwd(callable f, int|int[] argnums=1, bool has_aux=false, 'error'|'same'|'different' randomness='error', \z
    count chunk_size?)",
  "hessian(callable f, int|int[] argnums=1)",
  "vmap(callable f, int|false|list in_dims=1, int|list out_dims=1, \z
    'error'|'same'|'different' randomness='error', count chunk_size?)" })
