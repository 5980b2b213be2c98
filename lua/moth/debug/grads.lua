--- Gradients of a model, and what is often forgotten in a training step.
local B = require "moth_lua"
local check = require "moth.utils.check"

local M = {}

local Report = {}
Report.__index = Report

function Report:__tostring()
  local lines = {}
  for k, r in ipairs(self) do
    lines[k] = r.norm and ("%-20s grad mean=%.6f std=%.6f norm=%.3g%s"):format(r.name, r.mean, r.std, r.norm,
      r.flag and "  <- " .. r.flag or "") or ("%-20s no grad%s"):format(r.name, r.flag and "  <- " .. r.flag or "")
  end
  return table.concat(lines, "\n")
end

--- The gradients of a model's parameters: a list of { name, norm, mean, std, max, flag }, which prints. flag:
-- "vanishing" (norm below `vanishing`), "exploding" (above `exploding`), "nan", "inf", "none" (there is no gradient,
-- though the parameter requires one), or nil. `flagged` is the list of those with a flag.
function M.grad_report(model, vanishing, exploding)
  local report = setmetatable({ flagged = {} }, Report)
  for name, p in model:named_parameters() do
    local g, r = p.grad, { name = name }
    if g then
      local x = B.ops.detach(g):float()
      r.norm, r.mean, r.max = x:norm():item(), x:mean():item(), x:abs():max():item()
      r.std = x:numel() > 1 and x:std():item() or 0
      if r.norm ~= r.norm then
        r.flag = "nan"
      elseif r.norm == math.huge then
        r.flag = "inf"
      elseif r.norm < vanishing then
        r.flag = "vanishing"
      elseif r.norm > exploding then
        r.flag = "exploding"
      end
    elseif B.requires_grad(p) then
      r.flag = "none"
    end
    report[#report + 1] = r
    if r.flag then report.flagged[#report.flagged + 1] = r end
  end
  return report
end

-- "fc1.weight is on cuda:0, x on cpu", or nil.
local function mixed(model, ...)
  local first, of
  local function look(t, name)
    local device = tostring(B.tensor_device(t))
    if not first then first, of = device, name end
    return device ~= first and ("%s is on %s, %s on %s"):format(name, device, of, first) or nil
  end
  for name, p in model:named_parameters() do
    local wrong = look(p, name)
    if wrong then return wrong end
  end
  for name, b in model:named_buffers() do
    local wrong = look(b, name)
    if wrong then return wrong end
  end
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    local wrong = B.is_tensor(v) and look(v, "input " .. i)
    if wrong then return wrong end
  end
end

--- An error if parameters, buffers and inputs are not all on one device; it names the first that is not where the
-- others are.
function M.assert_same_device(model, ...)
  local wrong = mixed(model, ...)
  if wrong then check.fail("[assert_same_device] %s; move them with :to(device)", wrong) end
end

--- check_step{ model =, opt =, loss =, inputs =, accumulate = }: to be called between forward and loss:backward(). An
-- error that lists what is wrong: gradients of the last step are still there (zero_grad), the model is in evaluation
-- mode, tensors are on several devices, the loss is no scalar, not finite or requires no gradient, parameters that the
-- optimizer does not have. accumulate = true: gradients are summed over several calls of backward, so that earlier ones
-- may be there.
function M.check_step(model, opt, loss, inputs, accumulate)
  local wrong = {}
  local function tell(...) wrong[#wrong + 1] = string.format(...) end
  if not model.training then tell("the model is in evaluation mode: call model:train()") end
  local device = mixed(model, inputs)
  if device then tell("%s", device) end
  local stale
  for name, p in model:named_parameters() do
    if accumulate or stale then break end
    if p.grad and p.grad:numel() > 0 and p.grad:abs():max():item() ~= 0 then stale = name end
  end
  if stale then
    tell("%s has a gradient already: call opt:zero_grad() before backward, or say accumulate = true", stale)
  end
  if loss then
    if loss:numel() ~= 1 then tell("the loss has %d elements: reduce it with :mean() or :sum()", loss:numel()) end
    if not B.requires_grad(loss) then
      tell("the loss requires no gradient: it was detached, made under no_grad, or no parameter requires one")
    end
    local value = loss:numel() == 1 and loss:item()
    if value and (value ~= value or math.abs(value) == math.huge) then tell("the loss is %s", tostring(value)) end
  end
  if opt ~= nil then
    local owned = {}
    for _, group in ipairs(opt.param_groups) do
      for _, p in ipairs(group.params) do owned[p] = true end
    end
    for name, p in model:named_parameters() do
      if B.requires_grad(p) and not owned[p] then
        tell("%s is in no parameter group of the optimizer: it does not learn", name)
        break
      end
    end
  end
  if #wrong > 0 then check.fail("[check_step] %s", table.concat(wrong, ";\n  ")) end
end

return require("moth.utils.signature").all(M, {
  "grad_report(Module model, *, number vanishing=1e-7, number exploding=1e3)",
  "check_step(*, Module model, any opt?, Tensor loss?, any inputs?, bool accumulate=false)",
  "assert_same_device(Module model, ...)" })
