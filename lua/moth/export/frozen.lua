--- Programs whose tensors do not change: batch norms become a part of what they follow, and a call runs by a plan.
--
-- A batch norm by its running statistics is y * a + b for each channel. Behind a convolution or linear whose result
-- nobody else reads, a goes into its weight and b into its bias; elsewhere it is a product and a
-- sum. So a frozen program has tensors of its own, which are made again when those of the program were written to.
local B = require "moth_lua"
local moth = require "moth"
local each = require "moth.each"
local explain = require "moth.compile.explain"
local interpreted = require "moth.compile.interpreted"
local is_recorded = require "moth.export.active"
local programs = require "moth.export.program"
local tree = require "moth.lang.tree"
local C = B.compile

local M = {}

-- ---- batch norms ---------------------------------------------------------------------------------

-- Ops that a norm may follow: dimensions of their results; of a transposed one the argument that has its groups.
local bearers = { conv1d = { 3 }, conv2d = { 4 }, conv3d = { 5 }, linear = { 2 }, conv_transpose1d = { 3, groups = 7 },
  conv_transpose2d = { 4, groups = 7 }, conv_transpose3d = { 5, groups = 7 } }

local function is_norm(node) return node.op == "batch_norm" and not node.args[6] end

-- How often each value is read.
local function uses_of(program)
  local uses = {}
  for _, node in ipairs(program.nodes) do
    programs.visit_call(node, function(v)
      if v.kind == "value" then uses[v.name] = (uses[v.name] or 0) + 1 end
    end)
  end
  for _, name in ipairs(program.outputs) do uses[name] = (uses[name] or 0) + 2 end
  return uses
end

-- The tensor of an argument that is one of the program's; nil, and whether the argument is left out.
local function tensor_of(held, v)
  if v == nil then return nil, true end
  local s = type(v) == "table" and v.kind == "state" and held[v.name]
  return s and s.tensor or nil, false
end

-- a and b of a norm, float64; nil: it has others than tensors of the program of dtype `dtype`.
local function scale_of(node, held, dtype)
  local list = {}
  for i = 2, 5 do
    local t, none = tensor_of(held, node.args[i])
    if not t and not (none and i >= 4) or t and (t:dtype().name ~= dtype or t:dim() ~= 1) then return nil end
    list[i] = t and t:to(moth.float64)
  end
  local a = 1 / (list[3] + (node.args[8] or 1e-5)):sqrt()
  if list[4] then a = a * list[4] end
  local b = -list[2] * a
  return a, list[5] and b + list[5] or b
end

-- The weight and bias of `node` with y * a + b behind it; nil: they are none of the program's.
local function weights_of(node, held, a, b, dtype)
  local w = tensor_of(held, node.args[2])
  local bias, none = tensor_of(held, node.args[3])
  if not w or w:dtype().name ~= dtype or not bias and not none then return nil end
  local at = bearers[node.op].groups
  local groups = at and (node.args[at] or 1)
  if at and type(groups) ~= "number" or w:device().type ~= "cpu" then return nil end
  local by = a:to(w:dtype())
  if at then
    local shape = { groups, w:size(1) / groups, w:size(2), -1 }
    w = (w:reshape(shape) * by:reshape({ groups, 1, -1, 1 })):reshape(w:size())
  else
    local ones = { -1 }
    for i = 2, w:dim() do ones[i] = 1 end
    w = w * by:reshape(ones)
  end
  return w, (bias and b + bias:to(moth.float64) * a or b):to(by:dtype())
end

-- The program with its norms in others, and its tensors.
local function fold_norms(program, held)
  local uses, maker, gone, before = uses_of(program), {}, {}, {}
  local new = setmetatable({}, { __index = held })
  local function hold(name, t)
    while new[name] do name = name .. "_" end
    new[name] = { kind = "constant", tensor = t }
    return { kind = "state", name = name }
  end
  local instead = {}
  for i, node in ipairs(program.nodes) do
    for _, name in ipairs(node.out) do maker[name] = i end
    local x = is_norm(node) and not node.autocast and node.args[1]
    local meta = node.metas[1]
    local a, b
    if x and x.kind == "value" and (meta.dtype == "float32" or meta.dtype == "float64") and #meta.shape > 1 then
      a, b = scale_of(node, held, meta.dtype)
    end
    local at = a and maker[x.name]
    local from = at and program.nodes[at]
    local bearer = from and not from.autocast and uses[x.name] == 1 and bearers[from.op]
    local w, bias
    if bearer and bearer[1] == #meta.shape then w, bias = weights_of(from, held, a, b, meta.dtype) end
    if w then
      local args = { n = math.max(3, from.args.n), unpack(from.args, 1, from.args.n) }
      args[2], args[3] = hold(from.args[2].name .. ".norm", w), hold(from.args[2].name .. ".norm_bias", bias)
      gone[at], instead[i] = true, setmetatable({ args = args, out = node.out, metas = node.metas }, { __index = from })
    elseif a then
      local shape = { -1 }
      for k = 2, #meta.shape - 1 do shape[k] = 1 end
      local name = x.name .. ".norm"
      local scale = hold(name, a:to(B.dtype(meta.dtype)):reshape(shape))
      local shift = hold(name .. "_bias", b:to(B.dtype(meta.dtype)):reshape(shape))
      local function made(op, v, t, out)
        return { op = op, args = { n = 2, { kind = "value", name = v }, t }, out = { out }, metas = node.metas,
          at = node.at, default_dtype = node.default_dtype }
      end
      before[i] = made("mul", x.name, scale, name)
      instead[i] = made("add", name, shift, node.out[1])
    end
  end
  local out, nodes = {}, {}
  for k, v in each(program) do out[k] = v end
  for i, node in ipairs(program.nodes) do
    if not gone[i] then
      nodes[#nodes + 1] = before[i]
      nodes[#nodes + 1] = instead[i] or node
    end
  end
  out.nodes, out.ends = nodes, nil
  local kept = {}
  for _, node in ipairs(nodes) do
    programs.visit_call(node, function(v)
      if v.kind == "state" then kept[v.name] = new[v.name] end
    end)
  end
  for _, name in ipairs(program.outputs) do kept[name] = new[name] end
  return programs.new(out), kept
end

--- The program and tensors { name = { kind, tensor } } of an exported program, frozen; nil: it writes to tensors.
function M.freeze(ep)
  for node in ep.program:calls() do
    if programs.controls[node.op] or #programs.targets(node) > 0 then return nil end
  end
  return moth.no_grad(fold_norms, ep.program, ep.held)
end

--- Makes the exported program the frozen one, whose tensors nobody else has.
function M.freeze_in_place(ep)
  local program, held = M.freeze(ep)
  if not program then return end
  ep.program, ep.held, ep.tensors, ep.placed = program, held, {}, nil
  for name, s in each(held) do ep.tensors[name] = s.tensor end
end

-- ---- plans ---------------------------------------------------------------------------------------

local KEPT = 32 -- plans of a program, for other sizes

local function key_of(ep, known, dims)
  known.names = known.names or tree.keys(ep.program.dims)
  local parts = {}
  for i, name in ipairs(known.names) do parts[i] = dims[name] or "" end
  return table.concat(parts, " ")
end

local function make_plan(ep, known, tensors, dims)
  if known.program == nil then
    local program, held = M.freeze(ep)
    known.program, known.tensors = program or false, {}
    for name, s in each(held or {}) do known.tensors[name] = s.tensor end
  end
  if not known.program then return false end
  local inputs = moth.fake_mode(function()
    local list = {}
    for i, t in ipairs(tensors) do list[i] = B.ops.empty(t:size(), { dtype = t:dtype() }) end
    return list
  end)
  local graph = moth.no_grad(explain.capture, function(...)
    return known.program:run(known.tensors, dims, { ... })
  end, inputs)
  C.graph_eliminate(graph.handle)
  C.graph_fold(graph.handle)
  local plan = C.plan_new(graph.handle)
  C.plan_freeze(plan, known.sources)
  return plan
end

--- The plan that runs a program on these tensors, or nil: its calls are to run. It is made when their sizes come for
-- the second time, or where no other sizes may come, for the first.
function M.plan(ep, tensors, dims)
  local known = ep.plans
  if known == false or is_recorded() or C.recording() then return nil end
  if not known then
    known = { seen = {}, order = {}, sources = {} }
    for _, t in each(ep.tensors) do known.sources[#known.sources + 1] = t end
    rawset(ep, "plans", known)
  end
  local key = key_of(ep, known, dims)
  local plan = known.seen[key]
  if plan == nil then
    plan = true
    known.seen[key] = true
    known.order[#known.order + 1] = key
    if #known.order > KEPT then known.seen[table.remove(known.order, 1)] = nil end
    if #known.names > 0 then return nil end
  end
  for _, t in ipairs(tensors) do
    if not B.is_contiguous(t) then return nil end
  end
  if not C.plan_may_freeze(tensors, plan ~= true and plan or nil) then return nil end
  if plan == true then
    if not C.plan_may_freeze(known.sources) then return nil end
    local ok, made = pcall(interpreted, make_plan, ep, known, tensors, dims)
    if not ok and tostring(made):find("interrupted", 1, true) then error(made, 0) end
    plan = ok and made -- else the calls say what is wrong
    if not plan then
      rawset(ep, "plans", false)
      return nil
    end
    known.seen[key] = plan
    B.empty_cache() -- of what it took to make it
  elseif not C.plan_is_fresh(plan) then
    rawset(ep, "plans", nil)
    return nil
  end
  return plan
end

return M
