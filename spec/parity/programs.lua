-- Random programs against PyTorch: programs.py writes programs with what its tensors held after each step, this runs
-- them and compares values, gradients, requires_grad, and which steps are errors.
-- Usage: python3 spec/parity/programs.py FILE FIRST COUNT; luajit spec/parity/programs.lua FILE
local moth = require "moth"
local json = require "cjson"
moth.set_default_dtype(moth.float64)

local function wave(shape, phase)
  local values, n = {}, 1
  for _, s in ipairs(shape) do n = n * s end
  if n == 0 then return moth.zeros(shape) end
  for i = 0, n - 1 do values[i + 1] = math.sin(1.7 * i + phase) end
  return moth.tensor(values):reshape(shape):clone()
end
local function loss(t)
  local values = {}
  for i = 0, t:numel() - 1 do values[i + 1] = math.cos(0.9 * i) end
  return (t * moth.tensor(values, { dtype = moth.float64 }):reshape(t:size())):sum()
end
local function index(...) return moth.tensor({ ... }, { dtype = moth.int64 }) end

local nought = 1e-9 -- what rounding leaves of 0 is not positive

-- As in programs.py; dimensions and positions count from 1.
local makes = {
  narrow = function(t, _, d, k) return t:narrow(d, k + 1, 1) end,
  select = function(t, _, d, k) return t:select(d, k + 1) end,
  transpose = function(t, _, d) return t:transpose(d, 1) end,
  unsqueeze = function(t, _, d) return t:unsqueeze(d) end,
  squeeze = function(t, _, d) return t:squeeze(d) end,
  expand = function(t) return t:expand({ 2, unpack(t:size()) }) end,
  diagonal = function(t, _, _, k) return t:diagonal(k - 1) end,
  every_second = function(t, _, _, k) return t[{ { k % 2 + 1, -1, 2 } }] end,
  detach = function(t) return t:detach() end,
  view = function(t) return t:view(-1) end,
  sum = function(t, _, d) return t:sum(d) end,
  mean = function(t) return t:mean() end,
  amax = function(t, _, d) return t:amax(d) end,
  max = function(t, _, d) return (t:max(d)) end,
  logsumexp = function(t, _, d) return t:logsumexp(d) end,
  softmax = function(t, _, d) return t:softmax(d) end,
  cumsum = function(t, _, d) return t:cumsum(d) end,
  cumprod = function(t, _, d) return t:cumprod(d) end,
  flip = function(t, _, d) return t:flip(d) end,
  var = function(t, _, d) return t:var(d, 0) end,
  positive = function(t) return t[t:gt(nought)] end,
  index_select = function(t, _, d, k) return t:index_select(d, index(k + 1, 1, k + 1)) end,
  times = function(t, _, _, k) return t * (k - 0.5) end,
  power = function(t, _, _, k) return t ^ (k + 2) end,
  add = function(t, u) return t + u end,
  sub = function(t, u) return t - u end,
  mul = function(t, u) return t * u end,
  div = function(t, u) return t / (u * u + 1) end,
  matmul = function(t, u) return t:matmul(u) end,
  maximum = function(t, u) return moth.maximum(t, u) end,
  cat = function(t, u) return moth.cat({ t, u }) end,
  stack = function(t, u) return moth.stack({ t, u }) end,
  where = function(t, u) return moth.where(t:gt(nought), t, u) end,
}
for name in ("tanh sin relu sigmoid square clone tril"):gmatch("%w+") do
  makes[name] = function(t) return t[name](t) end
end
local writes = {
  tanh_ = function(t) t:tanh_() end,
  zero_ = function(t) t:zero_() end,
  relu_ = function(t) t:relu_() end,
  times_ = function(t, _, _, k) t:mul_(k - 0.5) end,
  masked_fill_ = function(t, _, _, k) t:masked_fill_(t:detach():gt(nought), k) end,
  index_add_ = function(t, _, d) t:index_add_(d, index(1), moth.ones_like(t:narrow(d, 1, 1))) end,
  set_number = function(t, _, _, k) t[1] = k end,
  set_tensor = function(t, u) t[-1] = u end,
  set_slice = function(t, u) t[{ { 1, 1 } }] = u end,
  add_ = function(t, u) t:add_(u) end,
  mul_ = function(t, u) t:mul_(u) end,
  copy_ = function(t, u) t:copy_(u) end,
  addcmul_ = function(t, u) t:addcmul_(u, u, 0.5) end,
  lerp_ = function(t, u) t:lerp_(u, 0.3) end,
}

-- By a key of the step's own.
local function key_of(entries)
  local key = {}
  for i, e in ipairs(entries) do
    local at = {}
    for k, x in ipairs(e.tensor or {}) do at[k] = x < 0 and x or x + 1 end
    local function shaped(list, dtype)
      return #list == 0 and moth.zeros(e.shape, { dtype = dtype }) or moth.tensor(list):to(dtype):reshape(e.shape)
    end
    key[i] = e.number and (e.number < 0 and e.number or e.number + 1)
      or e.slice and { e.slice[1] + 1, e.slice[2], e.slice[3] } or e.tensor and shaped(at, moth.int64)
      or e.mask and shaped(e.mask, moth.bool) or e.new and moth.newaxis or e.rest and "..." or {}
  end
  return key
end
local function fitting(t, u, key) return wave(t:detach()[key]:size(), 0.4) * u:sum() end
local keyed = {
  index = function(t, _, key) return t[key] end,
  index_of_square = function(t, _, key) return (t * t)[key] end,
}
local keyed_writes = {
  set_places = function(t, u, key) t[key] = fitting(t, u, key) end,
  set_places_number = function(t, _, key) t[key] = 0.5 end,
  set_places_any = function(t, u, key) t[key] = u end,
  add_places = function(t, u, key) t:index_put_(key, fitting(t, u, key), true) end,
}
for name, form in pairs(keyed_writes) do writes[name], keyed[name] = form, form end

local function run(step, tensors)
  local t, u = tensors[step.t + 1], tensors[step.u + 1]
  if step.op == "backward" then return loss(t):backward({ retain_graph = step.k > 0 }) end
  if step.op == "grad" then
    local grad = moth.autograd.grad(loss(t), u, { create_graph = true, allow_unused = true })
    return grad and grad * 1 -- its own memory: either may give an expanded view
  end
  if step.op == "all" then
    local total = 0
    for _, x in ipairs(tensors) do
      if x:requires_grad() then total = total + loss(x) end
    end
    return total:backward()
  end
  local form = makes[step.op] or writes[step.op]
  local d = step.d < 0 and step.d or step.d + 1
  local function call()
    if step.key then return keyed[step.op](t, writes[step.op] and t ~= u and u * 1 or u, key_of(step.key)) end
    return form(t, writes[step.op] and t ~= u and u * 1 or u, d, step.k)
  end
  if step.no_grad then return moth.no_grad(call) end
  return call()
end

-- Errors of one side that need not be those of the other. PyTorch: moth saves less for backward, reads operands before
-- it writes to what they share memory with, lays results out row by row, and adds to all of a tensor where a key is
-- empty (PyTorch's derivative of that is an error). moth: writing to an expanded view, and slices that begin past the
-- end, are errors, and a product keeps its operands, not copies of their batches. Results are laid out row by row,
-- whatever the operands' strides: other views are possible of them.
local theirs = {
  "modified by an inplace operation", "second time", "single memory location", "view size is not compatible",
  "INTERNAL ASSERT FAILED", "at least one index must be provided",
}
local ours = {
  "several elements in one place", "of size 0", "an input of BmmBackward0, is at version", "[view] view size is not",
}
local function any(message, patterns)
  for _, p in ipairs(patterns) do
    if message:find(p, 1, true) then return true end
  end
end

local function difference(t, want, name)
  local shape = table.concat(t:size(), ",")
  if shape ~= table.concat(want.shape, ",") then return name .. " has the shape " .. shape end
  for i, value in ipairs(t:detach():reshape({ -1 }):tolist()) do
    local expected = tonumber(want.data[i]) or 0 / 0
    local near = math.abs(value - expected) <= 1e-7 * math.max(1, math.abs(expected))
    if not near and value ~= expected and (value == value or expected == expected) then
      return ("%s is %.15g at %d, not %.15g"):format(name, value, i, expected)
    end
  end
end

-- Runs a program until it ends or an allowed difference; gives what differs, or nil, and the number of steps.
local function compare(program)
  local tensors = {}
  local derived = false -- PyTorch says of some constant second derivatives that they require gradients
  for i, leaf in ipairs(program.leaves) do
    tensors[i] = wave(leaf.shape, i - 0.5)
    if leaf.requires_grad then tensors[i]:requires_grad_() end
  end
  for at, step in ipairs(program.steps) do
    local leaf = tensors[step.t + 1]:is_leaf()
    local ok, made = pcall(run, step, tensors)
    local message = not ok and tostring(made)
    derived = derived or step.op == "grad"
    if ok and step.error then
      local allowed = any(step.error, theirs) or (not leaf and step.error:find("^a leaf Variable"))
      return not allowed and "no error: " .. step.error or nil, at
    end
    if not ok and not step.error then
      local allowed = any(message, ours) or (derived and message:find("does not require grad", 1, true))
      return not allowed and message or nil, at
    end
    if not step.tensors then return nil, at end
    if ok and not writes[step.op] and made ~= nil then tensors[#tensors + 1] = made end
    if #tensors ~= #step.tensors then return "makes " .. #tensors .. " tensors, not " .. #step.tensors, at end
    for i, want in ipairs(step.tensors) do
      local wrong = difference(tensors[i], want, "T" .. i)
      if not wrong and not derived and tensors[i]:requires_grad() ~= want.requires_grad then
        wrong = "requires_grad of T" .. i
      end
      if wrong then return wrong, at end
    end
    for i, want in ipairs(step.gradients) do
      local grad = tensors[i].grad
      local wrong = (grad ~= nil) ~= (want ~= false) and "T" .. i .. " has a gradient or none"
        or grad and difference(grad, want, "gradient of T" .. i)
      if wrong then return wrong, at end
    end
  end
  return nil, #program.steps
end

local programs, steps, failed = 0, 0, 0
for line in io.lines(arg[1]) do
  local program = json.decode(line)
  local wrong, at = compare(program)
  programs, steps = programs + 1, steps + at
  if wrong then
    failed = failed + 1
    print(("program %d: %s"):format(program.seed, wrong))
    for i = 1, at do
      local s = program.steps[i]
      print(("  %s(T%d, T%d, d=%d, k=%d)%s%s"):format(s.op, s.t + 1, s.u + 1, s.d, s.k, s.no_grad and " no_grad" or "",
        s.error and " error" or s.makes and " -> T" .. #s.tensors or ""))
    end
  end
end
print(("programs: %d, %d steps, %d differ"):format(programs, steps, failed))
os.exit(failed == 0 and programs > 0 and 0 or 1, true)
