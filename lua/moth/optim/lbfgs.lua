--- optim.LBFGS: the quasi-Newton method of limited memory (Nocedal 1980), for few parameters and whole batches.
--
--     local opt = optim.LBFGS(params, { line_search_fn = "strong_wolfe" })
--     opt:step(function() opt:zero_grad(); local loss = f(); loss:backward(); return loss end)
--
-- Arguments: params (one group), lr = 1, max_iter = 20, max_eval = 1.25 max_iter, tolerance_grad = 1e-7,
-- tolerance_change = 1e-9, history_size = 100, line_search_fn = nil (each step is lr long) or "strong_wolfe"
--
-- A step() takes up to max_iter iterations, each with one evaluation of the closure or more:
--   1. d = -H g, H from the last history_size differences of parameters (old_stps) and gradients (old_dirs)
--   2. t = lr (in the first iteration of all lr / |g|_1, at most lr), or by a line search along d
--   3. x = x + t d
-- It ends early where the largest gradient is at most tolerance_grad, or the step or the change of the loss at most
-- tolerance_change. All is one state, that of the first parameter.
--
-- Of parameters that are cut over ranks products are those of whole vectors. Where ranks train on parts of a batch, as
-- with DistributedDataParallel, the loss is their mean.
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"
local Optimizer = require "moth.optim.optimizer"
local line_search = require "moth.optim.line_search"

local LBFGS = class("LBFGS", Optimizer)
LBFGS.own_shape, LBFGS.nullable = { d = true, prev_flat_grad = true }, { line_search_fn = "string" }

LBFGS.__init = Optimizer.init("optim.LBFGS", "number|Tensor lr=1, count max_iter=20, count max_eval?, \z
  number tolerance_grad=1e-7, number tolerance_change=1e-9, count history_size=100, 'strong_wolfe' line_search_fn?",
  function(_, o)
    o.max_eval = o.max_eval or math.floor(o.max_iter * 5 / 4)
    o.line_search_fn = o.line_search_fn or false
  end)

function LBFGS:add_param_group(group)
  if #self.param_groups > 0 then check.fail("optim.LBFGS takes one group of parameters") end
  Optimizer.add_param_group(self, group)
end

local function flat_grad(params)
  local views = {}
  for i, p in ipairs(params) do
    local g = B.get_grad(p)
    views[i] = g and g:reshape(-1) or moth.zeros({ p:numel() }, { dtype = p:dtype(), device = p:device() })
  end
  return moth.cat(views, 1)
end

-- x = x + t d
local function move(params, d, t)
  local from = 1
  for _, p in ipairs(params) do
    local n = p:numel()
    p:add_(d:narrow(1, from, n):view(p:size()), t)
    from = from + n
  end
end

-- What an iteration needs of vectors: the parameters in their order, and functions.
local function vectors(params)
  local placement, total, mean = package.loaded["moth.distributed.placement"], nil, nil
  if placement and placement.any_or_replicas(params) then params, total, mean = placement.vector(params) end
  local function over(fn, op, a, b)
    if not total then return fn(a, b) end
    return total(function(from, n) return fn(a:narrow(1, from, n), b and b:narrow(1, from, n)) end, op)
  end
  local function dot(a, b) return a:dot(b):item() end
  local function largest(x) return x:numel() > 0 and x:abs():max():item() or 0 end
  local function sum(x) return x:abs():sum():item() end
  return {
    params = params,
    loss = function(t) return (mean and mean(t) or t):item() end,
    dot = function(a, b) return over(dot, "sum", a, b) end,
    largest = function(x) return over(largest, "max", x) end,
    abs_sum = function(x) return over(sum, "sum", x) end,
  }
end

-- The direction from the gradient g and the memory of the state.
local function direction(s, g, history_size, dot)
  if s.n_iter == 1 then
    s.old_dirs, s.old_stps, s.ro, s.H_diag = {}, {}, {}, 1
    return g:neg()
  end
  local y, step = g - s.prev_flat_grad, s.d * s.t
  local ys = dot(y, step)
  if ys > 1e-10 then
    if #s.old_dirs == history_size then
      for _, list in ipairs { s.old_dirs, s.old_stps, s.ro } do table.remove(list, 1) end
    end
    local n = #s.old_dirs + 1
    s.old_dirs[n], s.old_stps[n], s.ro[n] = keep(y), keep(step), 1 / ys
    s.H_diag = ys / dot(y, y)
  end
  local q, al = g:neg(), {}
  for i = #s.old_dirs, 1, -1 do
    al[i] = dot(s.old_stps[i], q) * s.ro[i]
    q:add_(s.old_dirs[i], -al[i])
  end
  local r = q:mul_(s.H_diag)
  for i = 1, #s.old_dirs do
    r:add_(s.old_stps[i], al[i] - dot(s.old_dirs[i], r) * s.ro[i])
  end
  return r
end

local function iterate(self, closure)
  local group = self.param_groups[1]
  local v, lr, s = vectors(group.params), Optimizer.get_lr(group), self.state[group.params[1]]
  local params, dot, largest = v.params, v.dot, v.largest
  s.func_evals, s.n_iter = s.func_evals or 0, s.n_iter or 0
  local function evaluate() return moth.enable_grad(closure) end
  local first = evaluate()
  local loss, evals, n = v.loss(first), 1, 0
  s.func_evals = s.func_evals + 1
  local g = flat_grad(params)
  if largest(g) <= group.tolerance_grad then return first end
  while n < group.max_iter do
    n, s.n_iter = n + 1, s.n_iter + 1
    local d = keep(direction(s, g, group.history_size, dot))
    s.d, s.prev_flat_grad = d, keep(g:clone())
    local before = loss
    s.prev_loss = loss
    local t = s.n_iter == 1 and math.min(1, 1 / v.abs_sum(g)) * lr or lr
    s.t = t
    local slope = dot(g, d)
    if slope > -group.tolerance_change then break end
    local more = 0
    if group.line_search_fn then
      local start = {}
      for i, p in ipairs(params) do start[i] = p:clone() end
      local function at(length)
        move(params, d, length)
        local value = v.loss(evaluate())
        local gradient = flat_grad(params)
        for i, p in ipairs(params) do p:copy_(start[i]) end
        return value, gradient, dot(gradient, d)
      end
      loss, g, t, more = line_search.strong_wolfe(at, loss, g, slope, t, { norm = largest(d),
        tolerance_change = group.tolerance_change, max_ls = group.max_eval - evals })
      s.t = t
      move(params, d, t)
    else
      move(params, d, t)
      if n ~= group.max_iter then -- the last one is evaluated by the next step
        loss, more = v.loss(evaluate()), 1
        g = flat_grad(params)
      end
    end
    evals, s.func_evals = evals + more, s.func_evals + more
    if n == group.max_iter or evals >= group.max_eval or largest(g) <= group.tolerance_grad
      or largest(d) * math.abs(t) <= group.tolerance_change
      or math.abs(loss - before) < group.tolerance_change then
      break
    end
  end
  return first
end

--- @tparam function closure clears the gradients, computes the loss and its gradients, and returns the loss
-- @return the loss at the beginning
function LBFGS:step(closure)
  if type(closure) ~= "function" then
    check.fail("[optim.LBFGS] step: expected a function that computes the loss and its gradients, got %s",
      class.name(closure))
  end
  return moth.no_grad(iterate, self, closure)
end

--- A state of PyTorch's, too, whose numbers are tensors and whose `al` is not needed.
function LBFGS:load_state_dict(sd)
  Optimizer.load_state_dict(self, sd)
  local s = rawget(self.state, self.param_groups[1].params[1])
  if not s then return end
  s.al = nil
  for key, value in each(s) do
    if B.is_tensor(value) and not LBFGS.own_shape[key] then s[key] = value:item() end
  end
  for i, value in ipairs(s.ro or {}) do s.ro[i] = B.is_tensor(value) and value:item() or value end
end

return LBFGS
