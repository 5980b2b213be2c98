--- moth.cuda.make_graphed_callables: a function or module whose forward and backward are one graph each.
--
--     local fast = moth.cuda.make_graphed_callables(model, { x })      -- x: a sample of the later sizes
--     fast(x):sum():backward()
--
-- Sizes, dtypes and which inputs require grad are fixed by the sample. The next call overwrites the results of a call.
local B = require "moth_lua"
local check = require "moth.utils.check"
local autograd = require "moth.autograd"
local cuda = require "moth.cuda"

local where = "make_graphed_callables"

local function pack(...) return { n = select("#", ...), ... } end

local function is_module(f) return type(f) == "table" and type(f.parameters) == "function" end

local function plain(x) return B.alias(x, false) end

-- A callable with the tensors that its graphs read and write.
local function prepare(callable, sample)
  local c = { callable = callable, inputs = {}, parameters = {}, wanted = {} }
  if type(sample) ~= "table" then check.fail("%s: expected a table of sample tensors, got %s", where, type(sample)) end
  for i, x in ipairs(sample) do
    if not B.is_tensor(x) or B.tensor_device(x).type ~= "cuda" then
      check.fail("%s: sample %d must be a CUDA tensor", where, i)
    end
    c.inputs[i] = B.ops.clone(plain(x))
    B.set_requires_grad(c.inputs[i], B.requires_grad(x))
  end
  if is_module(callable) then
    for _, p in ipairs(callable:parameters()) do
      if B.requires_grad(p) then c.parameters[#c.parameters + 1] = p end
    end
  end
  for _, list in ipairs { c.inputs, c.parameters } do
    for _, t in ipairs(list) do
      if B.requires_grad(t) then c.wanted[#c.wanted + 1] = t end
    end
  end
  return c
end

local function forward(c)
  local out = pack(c.callable(unpack(c.inputs)))
  c.outputs, c.roots = out, {}
  for i = 1, out.n do
    if not B.is_tensor(out[i]) then check.fail("%s: a callable must return tensors, got %s", where, type(out[i])) end
    if B.requires_grad(out[i]) then c.roots[#c.roots + 1] = out[i] end
  end
end

-- The gradients of inputs and parameters that require grad: a list with holes.
local function backward(c, o)
  if #c.roots == 0 or #c.wanted == 0 then
    c.gradients = { n = 0 }
    return
  end
  c.gradients = pack(autograd.grad(c.roots, c.wanted, { grad_outputs = c.root_gradients,
    allow_unused = o.allow_unused_input }))
end

local function ones_like(list)
  local out = {}
  for i, t in ipairs(list) do out[i] = B.ops.ones_like(plain(t)) end
  return out
end

local function replayed(c)
  local nin = #c.inputs
  local f = autograd.Function {
    name = "Graphed",
    forward = function(ctx, ...)
      for i = 1, nin do
        local x = select(i, ...)
        if B.data_ptr(x) ~= B.data_ptr(c.inputs[i]) then B.ops.copy_(plain(c.inputs[i]), plain(x)) end
      end
      c.forward:replay()
      local out, constant = {}, {}
      for i = 1, c.outputs.n do
        out[i] = plain(c.outputs[i])
        if not B.requires_grad(c.outputs[i]) then constant[#constant + 1] = out[i] end
      end
      ctx:mark_non_differentiable(unpack(constant))
      return unpack(out, 1, c.outputs.n)
    end,
    backward = function(_, ...)
      for k, g in ipairs(c.root_gradients) do B.ops.copy_(g, plain((select(k, ...)))) end
      if c.backward then c.backward:replay() end
      local out, at = {}, 0
      for i = 1, nin + #c.parameters do
        local t = i <= nin and c.inputs[i] or c.parameters[i - nin]
        if B.requires_grad(t) then
          at = at + 1
          -- a copy: a .grad must not change at the next replay
          out[i] = c.gradients[at] and B.ops.clone(plain(c.gradients[at]))
        end
      end
      return unpack(out, 1, nin + #c.parameters)
    end,
  }
  return function(...)
    local n = select("#", ...)
    if n ~= nin then check.fail("a graphed callable of %d tensors was given %d", nin, n) end
    local args = { ... }
    for i = 1, nin do
      local x, s = args[i], c.inputs[i]
      if not B.is_tensor(x) or tostring(B.format(x)) ~= tostring(B.format(s)) then
        check.fail("a graphed callable takes what its sample was: argument %d must be %s, got %s", i, B.format(s),
          B.is_tensor(x) and B.format(x) or type(x))
      end
    end
    for i, p in ipairs(c.parameters) do args[nin + i] = p end
    return f(unpack(args, 1, nin + #c.parameters))
  end
end

--- One callable with its samples, or a list of them with a list of samples each (they must run in this order, and share
-- one pool). A module's forward is replaced, for its current mode (training or not); the module is returned.
-- Options: num_warmup_iters (3), allow_unused_input (false), pool.
return require "moth.utils.signature"("make_graphed_callables(callable|table callables, table samples, \z
  *, size num_warmup_iters=3, bool allow_unused_input=false, any pool?)", function(callables, samples, o)
  local single = type(callables) == "function" or is_module(callables)
  if single then callables, samples = { callables }, { samples } end
  if type(callables) ~= "table" or #callables == 0 then check.fail("%s: expected a function or a module", where) end
  local list = {}
  for i, f in ipairs(callables) do list[i] = prepare(f, samples[i]) end
  if cuda.why() then check.fail("%s: CUDA cannot be used here: %s", where, cuda.why()) end

  local side = cuda.Stream()
  cuda.synchronize()
  side:wait_stream(cuda.current_stream())
  cuda.stream(side, function()
    for _, c in ipairs(list) do
      for _ = 1, o.num_warmup_iters do
        forward(c)
        c.root_gradients = ones_like(c.roots)
        backward(c, o)
      end
      c.outputs, c.roots, c.root_gradients, c.gradients = nil, nil, nil, nil
    end
  end)
  cuda.synchronize()

  local pool = o.pool or cuda.graph_pool_handle()
  for _, c in ipairs(list) do
    c.forward = cuda.graph(function() forward(c) end, { pool = pool })
    c.root_gradients = ones_like(c.roots)
  end
  for i = #list, 1, -1 do
    local c = list[i]
    if #c.roots > 0 and #c.wanted > 0 then
      c.backward = cuda.graph(function() backward(c, o) end, { pool = pool })
    end
  end

  local out = {}
  for i, c in ipairs(list) do
    local fast = replayed(c)
    if is_module(c.callable) then
      local module, slow, training = c.callable, c.callable.forward, c.callable.training
      rawset(module, "forward", function(self, ...)
        if self.training == training then return fast(...) end
        return slow(self, ...)
      end)
      out[i] = module
    else
      out[i] = fast
    end
  end
  return unpack(out)
end, true)
