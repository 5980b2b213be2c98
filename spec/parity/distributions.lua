-- Distributions against PyTorch: values and gradients of what distributions.py wrote.
-- Usage: python3 spec/parity/distributions.py FILE; luajit spec/parity/distributions.lua FILE
local moth = require "moth"
local D = moth.distributions
moth.set_default_dtype(moth.float64)

local file = assert(io.open(arg[1]))
local all = require("cjson").decode(file:read("*a"))
file:close()
local null = require("cjson").null

local function tensor(t)
  if type(t) ~= "table" then return t end
  if #t.shape == 0 then return moth.tensor(t.data[1]) end
  return moth.tensor(t.data):reshape(t.shape)
end

local failed, checked = 0, 0
local function differs(where, text, ...)
  failed = failed + 1
  print(("%s: %s"):format(where, text:format(...)))
end
-- Where PyTorch is less exact, or wrong.
local rough = { VonMises = 1e-4 } -- Bessel functions to six places, and their derivatives
local explained = {
  ["Kumaraswamy mode"] = "NaN for all concentration0 above 1",
  ["Dirichlet mode"] = "of concentrations below 1: not the corner of the largest",
  ["Wishart log_prob gradient of scale_tril"] = "has elements above the diagonal, which are not read",
}
local function compare(where, mine, theirs)
  checked = checked + 1
  if explained[where:gsub("^%d+ ", "")] then return end
  local want = tensor(theirs)
  if not moth.is_tensor(mine) then return differs(where, "no tensor, %s", tostring(mine)) end
  mine = mine:detach():double()
  if tostring(mine:size()) ~= tostring(want:size()) then
    return differs(where, "shape %s, PyTorch %s", tostring(mine:size()), tostring(want:size()))
  end
  if not moth.allclose(mine, want, { rtol = rough[where:match "%a+"] or 1e-7, atol = 1e-9, equal_nan = true }) then
    differs(where, "%s, PyTorch %s", tostring(mine), tostring(want))
  end
end
-- A result with the gradients of its weighted sum.
local function compare_grads(where, fn, theirs, leaves)
  if theirs == nil or theirs == null then return end
  local ok, y = pcall(fn)
  if not ok then
    checked = checked + 1
    return differs(where, "%s", (tostring(y):gsub("\n.*", "")))
  end
  compare(where, y, theirs.value)
  if next(theirs.grads) == nil then return end
  local w = moth.arange(1, y:numel() + 1):double():reshape(y:size())
  for _, leaf in pairs(leaves) do leaf.grad = nil end
  local done, message = pcall(function() (y * w):sum():backward { retain_graph = true } end)
  if not done then return differs(where, "backward: %s", (tostring(message):gsub("\n.*", ""))) end
  for name, g in pairs(theirs.grads) do
    local leaf = leaves[name]
    if leaf then compare(where .. " gradient of " .. name, leaf.grad or moth.zeros_like(leaf), g) end
  end
end
local function make(name, given, leaves, prefix)
  local args = {}
  for k, v in pairs(given) do
    args[k] = tensor(v)
    if moth.is_tensor(args[k]) and k ~= "total_count" then
      args[k]:requires_grad_()
      leaves[(prefix or "") .. k] = args[k]
    end
  end
  return D[name](args)
end

for i, case in ipairs(all.cases) do
  local leaves = {}
  local where = ("%d %s"):format(i, case.name)
  local d = make(case.name, case.args, leaves)
  if table.concat(d.batch_shape, " ") ~= table.concat(case.batch, " ")
    or table.concat(d.event_shape, " ") ~= table.concat(case.event, " ") then
    differs(where, "batch_shape %s, event_shape %s", tostring(d.batch_shape), tostring(d.event_shape))
  end
  local x = tensor(case.x)
  if case.positions then x = (x + 1):long() elseif not d.support.is_discrete then x:requires_grad_() end
  leaves.x = x
  compare_grads(where .. " log_prob", function() return d:log_prob(x) end, case.log_prob, leaves)
  compare_grads(where .. " cdf", function() return d:cdf(x) end, case.cdf, leaves)
  compare_grads(where .. " icdf", function() return d:icdf(tensor(case.u)) end, case.icdf, leaves)
  compare_grads(where .. " entropy", function() return d:entropy() end, case.entropy, leaves)
  for field, theirs in pairs(case.fields) do
    if not (case.positions and field == "mode") then
      compare_grads(where .. " " .. field, function() return d[field] end, theirs, leaves)
    end
  end
  if case.support then
    for k = 1, 2 do
      local values = d:enumerate_support(k == 1)
      compare(where .. " support", case.positions and values - 1 or values, case.support[k])
    end
  end
  local wide = d:expand { 4, unpack(case.batch) } -- expanded: the same densities
  local p = moth.no_grad(wide.log_prob, wide, x:detach():unsqueeze(2):expand(3, 4, unpack(x:size(), 2)))
  compare(where .. " expanded", p:select(2, 3), case.log_prob.value)
  local s = d:sample { 2, 5 }
  local want = { 2, 5, unpack(case.batch) }
  for _, n in ipairs(case.event) do want[#want + 1] = n end
  if table.concat(s:size(), " ") ~= table.concat(want, " ") then differs(where, "samples %s", tostring(s:size())) end
  if not d.support:check(s):all():item() then differs(where, "samples outside of the support") end
end
for _, case in ipairs(all.kl) do
  local leaves = {}
  local p, q = make(case.p, case.p_args, leaves, "p_"), make(case.q, case.q_args, leaves, "q_")
  compare_grads(("KL of %s and %s"):format(case.p, case.q), function() return D.kl_divergence(p, q) end, case.result,
    leaves)
end
for i, case in ipairs(all.transforms) do
  local where = ("%d %s"):format(i, case.name)
  local t = D[case.name](unpack(case.args))
  local x = tensor(case.x):requires_grad_()
  compare_grads(where, function() return t(x) end, case.y, { x = x })
  compare(where .. " inverse", t.inv(t(x)), case.back)
  compare_grads(where .. " log_abs_det_jacobian", function() return t:log_abs_det_jacobian(x, t(x)) end, case.log_det,
    { x = x })
end
print(("%d comparisons of distributions, %d differ"):format(checked, failed))
os.exit(failed == 0 and 0 or 1)
