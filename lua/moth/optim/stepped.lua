--- Optimizers whose step is one op: what differs is a table.
--
--     stepped("Lion", { parameters = "number lr=1e-4, …", op = "lion_step", states = { "exp_avg" },
--       call = function(op, lists, group, rate, s, …) op(lists.params, lists.grads, lists.exp_avg, rate, …) end })
--
--   states      names of tensors like the parameter, zeros at first
--   optional    name -> function(group, p): whether p has that state (else its list is empty)
--   sort        function(p): parameters of one call have the same; for ops that take one sort of states
--   start       name -> function(group, p): the first value of a state, instead of zeros
--   scalars     numbers of a state, with "step" first; those of parameters with the same numbers are advanced together
--   begin       name -> function(group): the first value of a number, instead of 0
--   before, after   function(group, s): { name = value }, the new numbers before and after the op; before: step + 1
--   call        calls the op; the values at the end are grad_scale and found_inf
--   whole       the op looks at whole tensors (their norm, their rows and columns): parameters that are cut over ranks
--               are put together for it, one at a time; states in own_shape are those of the whole one, on all ranks
--   parts       in place of `call` for those parameters, which stay in parts
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local each = require "moth.each"
local Optimizer = require "moth.optim.optimizer"

-- New numbers: into the tensors that all parameters of the bucket share, unless a gradient overflowed, or as numbers.
local function advance(bucket, new, found)
  for key, value in each(new) do
    local old = bucket.states[1][key]
    if B.is_tensor(old) then
      if not B.is_tensor(value) then value = moth.full_like(old, value) end
      old:copy_(found and moth.where(found:ne(0), old, value) or value)
    else
      for _, s in ipairs(bucket.states) do s[key] = value end
    end
  end
end

local function one_more(_, s) return { step = s.step + 1 } end

-- The module of parameters that are cut over ranks, if there may be some.
local function placement() return package.loaded["moth.distributed.placement"] end

-- A tensor of the shape that p is a part of, without memory.
local function whole_of(p)
  local m = placement()
  local place = m and m.of(p)
  return place and moth.zeros({}, { dtype = p:dtype(), device = p:device() }):expand(place.shape) or p
end

local function new_state(self, spec, group, p, shared)
  local s = {}
  for _, name in ipairs(spec.states) do
    local optional = spec.optional and spec.optional[name]
    if not optional or optional(group, p) then
      local start = spec.start and spec.start[name]
      s[name] = keep(start and start(group, self.own_shape[name] and whole_of(p) or p) or moth.zeros_like(p))
    end
  end
  for _, key in ipairs(self.scalars) do
    local value = spec.begin and spec.begin[key] and spec.begin[key](group) or 0
    s[key] = group.capturable and Optimizer.new_count(shared, p, key, value) or value
  end
  return s
end

-- What parameters have in common that are updated by one call.
local function key_of(s, scalars)
  if #scalars == 0 then return true end
  local first = s[scalars[1]]
  if #scalars < 2 or B.is_tensor(first) then return first or true end
  local parts = {}
  for i, key in ipairs(scalars) do parts[i] = ("%.17g"):format(s[key]) end
  return table.concat(parts, " ")
end

local function new_bucket(spec)
  local lists = { params = {}, grads = {} }
  for _, name in ipairs(spec.states) do lists[name] = {} end
  return { lists = lists, states = {} }
end

-- Steps the parameters of a bucket that are cut over ranks, and returns the lists of the others.
local function step_parts(self, spec, m, lists, group, rate, s, scale, found)
  local rest, cut = new_bucket(spec).lists, new_bucket(spec).lists
  for i, p in ipairs(lists.params) do
    local to = m.of(p) and cut or rest
    for name, list in each(lists) do table.insert(to[name], list[i]) end
  end
  if spec.parts then
    if #cut.params > 0 then spec.parts(cut, group, rate, s, scale, found) end
    return rest
  end
  for i, p in ipairs(cut.params) do
    local names, parts, one = {}, {}, {}
    for name, list in each(lists) do
      one[name] = { cut[name][i] }
      if #list > 0 and not self.own_shape[name] then names[#names + 1] = name end
    end
    table.sort(names) -- all ranks gather in this order
    for k, name in ipairs(names) do parts[k] = one[name][1] end
    m.with_whole(parts, p, function(whole)
      for k, name in ipairs(names) do one[name] = { whole[k] } end
      spec.call(B.ops[spec.op], one, group, rate, s, scale, found)
    end)
  end
  return rest
end

return function(name, spec)
  local cls = class(name, Optimizer)
  cls.__init = Optimizer.init("optim." .. name, spec.parameters, spec.verify)
  cls.scalars, cls.supports_found_inf = spec.scalars or { "step" }, true
  local before, states = spec.before or #cls.scalars > 0 and one_more, spec.states

  --- One op call for all parameters that have taken as many steps.
  function cls:step_group(group)
    local buckets, order, shared, scalars, absent = {}, {}, {}, self.scalars, {}
    for _, p in ipairs(group.params) do
      local grad = B.get_grad(p)
      if grad then
        local s = rawget(self.state, p)
        if not s or next(s) == nil then
          s = new_state(self, spec, group, p, shared)
          self.state[p] = s
        end
        local key = key_of(s, scalars)
        if spec.sort then key = ("%s %s"):format(tostring(key), tostring(spec.sort(p))) end
        local bucket = buckets[key]
        if not bucket then
          bucket = new_bucket(spec)
          buckets[key] = bucket
          order[#order + 1] = bucket
        end
        local lists, n = bucket.lists, #bucket.states + 1
        bucket.states[n], lists.params[n], lists.grads[n] = s, p, grad
        for _, state in ipairs(states) do lists[state][n] = s[state] end
      elseif group.capturable then
        absent[#absent + 1] = rawget(self.state, p)
      end
    end
    Optimizer.part_counts(absent, buckets, scalars)
    local scale, found = self:scale_and_found()
    for _, bucket in ipairs(order) do
      local lists, s = bucket.lists, bucket.states[1]
      local rate = group.lr and Optimizer.rate(group, lists.params[1])
      if before then advance(bucket, before(group, s), found) end
      local m, rest = (spec.whole or spec.parts) and placement(), lists
      if m and m.any(lists.params) then rest = step_parts(self, spec, m, lists, group, rate, s, scale, found) end
      if #rest.params > 0 then spec.call(B.ops[spec.op], rest, group, rate, s, scale, found) end
      if spec.after then advance(bucket, spec.after(group, s), found) end
      -- Free our handles now, so that zero_grad releases the gradients while their memory is still in cache.
      B.free_all(lists.grads)
    end
  end
  return cls
end
