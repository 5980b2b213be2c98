--- The first place where NaN or Inf comes up in a model.
local B = require "moth_lua"
local moth = require "moth"
local ops = B.ops
local graph = require "moth.autograd.graph"

local M = {}

-- "nan", "inf" or nil, and the position (from 1) of the first such element.
local looking = false -- a handler of ours need not look at what this calls

local function look(t)
  if not B.is_tensor(t) or not B.tensor_dtype(t).is_floating_point then return nil end
  local probe = ops.sum(ops.mul(ops.detach(t), 0)):item() -- NaN if and only if an element is NaN or infinite
  if probe == probe then return nil end
  local nan = ops.isnan(t)
  local what = ops.any(nan):item() and "nan" or "inf"
  local at = moth.nonzero(what == "nan" and nan or ops.isinf(t))[1]:totable()
  return what, at
end

local function wrong(t)
  local outer = looking
  looking = true
  local what, at = look(t)
  looking = outer
  return what, at
end

-- Calls visit(tensor) for each tensor of values, tables of them, and so on.
local function each_tensor(visit, ...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if B.is_tensor(v) then
      visit(v)
    elseif type(v) == "table" and getmetatable(v) == nil then
      for _, w in ipairs(v) do each_tensor(visit, w) end
    end
  end
end

local function finite(...)
  local good = true
  each_tensor(function(t) good = good and not wrong(t) end, ...)
  return good
end

-- The call that a dispatch mode has intercepted.
local function again(func, args, kwargs)
  if not kwargs.out then return func(unpack(args, 1, args.n)) end
  local all = { unpack(args, 1, args.n) }
  all[args.n + 1] = kwargs
  return func(unpack(all, 1, args.n + 1))
end
M.again = again

local Found = {}
Found.__index = Found

function Found:__tostring()
  local at = self.index and (" at {%s}"):format(table.concat(self.index, ", ")) or ""
  if self.phase == "before" then return ("%s in %s%s, before anything ran"):format(self.what, self.name, at) end
  local module = self.module == "" and ("the model (%s)"):format(self.kind)
    or ("%s (%s)"):format(self.module, self.kind)
  local of = self.phase == "forward" and "output" or "gradients"
  local parts = { ("%s in the %s of %s"):format(self.what, of, module) }
  if self.op then parts[#parts + 1] = self.op end
  local text = table.concat(parts, ", ") .. at
  if self.inputs_finite ~= nil then
    text = text .. (self.inputs_finite and "; its inputs were finite" or "; its inputs were not finite")
  end
  return self.place and text .. "; called at " .. self.place or text
end

-- What changes while the model runs is put back: buffers, the state of the generator.
local function kept(model, fn)
  local buffers, rng = {}, moth.get_rng_state()
  for name, b in model:named_buffers() do buffers[name] = { b, b:clone() } end
  local ok, e = pcall(fn)
  moth.no_grad(function()
    for _, pair in require("moth.each")(buffers) do pair[1]:copy_(pair[2]) end
  end)
  moth.set_rng_state(rng)
  if not ok then error(e, 0) end
end

--- Runs model(...), and backward from the sum of its results: what first is NaN, or Inf in a module's result. nil:
-- nothing is. A table that prints as a line: { what = "nan" or "inf", phase = "before", "forward" or "backward", module
-- (its path; "" is the model), kind, op, index (of the first such element), inputs_finite, place (of the call), name
-- (of a parameter or input) }. Gradients, buffers and the generator's state stay as they were.
function M.find_nan(model, ...)
  local found
  local function tell(t)
    found = found or setmetatable(t, Found)
  end
  for name, p in model:named_parameters() do
    local what, at = wrong(p)
    if what then tell { phase = "before", what = what, index = at, name = "parameter " .. name } end
  end
  local n = 0
  each_tensor(function(t)
    n = n + 1
    local what, at = wrong(t)
    if what then tell { phase = "before", what = what, index = at, name = "input " .. n } end
  end, ...)
  if found then return found end

  local stack, handles = {}, {}
  for name, m in model:named_modules() do
    handles[#handles + 1] = m:register_forward_pre_hook(function() stack[#stack + 1] = { name, m.__name } end)
    handles[#handles + 1] = m:register_forward_hook(function(_, inputs, output)
      stack[#stack] = nil
      each_tensor(function(t)
        local what, at = wrong(t)
        if what and not found then
          tell { phase = "forward", what = what, index = at, module = name, kind = m.__name,
            inputs_finite = finite(unpack(inputs)) }
        end
      end, output)
    end)
  end
  local function handler(func, args, kwargs)
    local results = { again(func, args, kwargs) }
    for _, r in ipairs(results) do
      local what, at = nil, nil
      if not found and not looking then what, at = wrong(r) end
      if what == "nan" then
        local top = stack[#stack] or { "", model.__name }
        tell { phase = "forward", what = what, index = at, module = top[1], kind = top[2], op = "op " .. func.name,
          inputs_finite = finite(unpack(args, 1, args.n)), place = (B.profile.frames(1):gsub("\n", "")) }
      end
    end
    return unpack(results)
  end
  local function made(node)
    node.metadata.module = stack[#stack]
    node.metadata.place = (B.profile.frames(1):gsub("\n", ""))
  end
  local function finish(node, grads)
    for i = 1, grads and grads.n or 0 do
      local what = not found and wrong(grads[i])
      local of = node.metadata.module or { "", model.__name }
      if what then
        tell { phase = "backward", what = what, module = of[1], kind = of[2], op = node:name(),
          place = node.metadata.place }
      end
    end
  end
  local inputs = { n = select("#", ...), ... }
  local ok, e = pcall(kept, model, function()
    graph.watch_nodes({ made = made, finish = finish }, function()
      local results = { moth.dispatch_mode(handler, function() return model(unpack(inputs, 1, inputs.n)) end) }
      if found then return end
      local total
      each_tensor(function(t)
        if B.requires_grad(t) then total = total and total + t:sum() or t:sum() end
      end, unpack(results))
      local parameters = {}
      for _, p in model:named_parameters() do if B.requires_grad(p) then parameters[#parameters + 1] = p end end
      if total and #parameters > 0 then
        moth.autograd.grad(total, parameters, nil, nil, false, true)
      end
    end)
  end)
  for _, h in ipairs(handles) do h:remove() end
  if not ok and not found then error(e, 0) end
  return found
end

return require("moth.utils.signature").all(M, {
  "find_nan(Module model, ...)" })
