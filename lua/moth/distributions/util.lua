--- What distributions share: tensors of parameters, probabilities and their logits, shapes.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"

local M = {}
local Size = getmetatable(moth.zeros(0):size())

--- A list of sizes that prints as those of tensors do: the joined lists.
function M.shape(...)
  local out = {}
  for i = 1, select("#", ...) do
    for _, n in ipairs((select(i, ...))) do out[#out + 1] = n end
  end
  return setmetatable(out, Size)
end
--- The elements i to j (the last one) of a list of sizes.
function M.part(list, i, j)
  local out = {}
  for k = i, j or #list do out[#out + 1] = list[k] end
  return setmetatable(out, Size)
end
function M.same(a, b) return table.concat(a, " ") == table.concat(b, " ") end
function M.numel(shape)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  return n
end

--- Tensors of one shape, dtype and device, from tensors and numbers: numbers take that of the tensors, integers the
-- default float dtype.
function M.broadcast(...)
  local n, list, dtype, device = select("#", ...), { ... }, nil, nil
  for i = 1, n do
    if B.is_tensor(list[i]) then
      local own = B.tensor_dtype(list[i])
      device = device or B.tensor_device(list[i])
      if own.is_floating_point then dtype = dtype and B.promote(dtype, own) or own end
    end
  end
  dtype = dtype or B.default_dtype()
  for i = 1, n do
    local v = list[i]
    if not B.is_tensor(v) then
      list[i] = moth.tensor(v, { dtype = dtype, device = device })
    elseif B.tensor_dtype(v) ~= dtype then
      list[i] = v:to(dtype)
    end
  end
  if n == 1 then return list[1] end
  return moth.broadcast_tensors(unpack(list))
end

--- A number or tensor as a tensor like another one.
function M.like(value, t)
  if B.is_tensor(value) then return value end
  return moth.tensor(value, { dtype = B.tensor_dtype(t), device = B.tensor_device(t) })
end
function M.options(t, generator)
  return { dtype = B.tensor_dtype(t), device = B.tensor_device(t), generator = generator }
end
function M.finfo(t) return moth.finfo(B.tensor_dtype(t)) end

--- Probabilities away from 0 and 1 by the dtype's resolution.
function M.clamp_probs(p)
  local eps = M.finfo(p).eps
  return p:clamp(eps, 1 - eps)
end
--- log p, or of a yes-or-no probability log(p / (1 - p)).
function M.probs_to_logits(p, binary)
  p = M.clamp_probs(p)
  if binary then return p:log() - (-p):log1p() end
  return p:log()
end
function M.logits_to_probs(logits, binary)
  if binary then return logits:sigmoid() end
  return logits:softmax(-1)
end
--- Of a yes-or-no distribution log p, log(1 - p), p and 1 - p. Where logits are given none comes from another one by
-- 1 - p or a logarithm: confident logits round p to 0 or 1, and the rest would be lost.
-- Logarithms of 0 are finite: what they are multiplied with is 0 (see times).
function M.chances(d)
  local p = d.probs
  if d.given == "logits" then
    local l = d.logits
    return moth.F.logsigmoid(l), moth.F.logsigmoid(-l), p, (-l):sigmoid()
  end
  local info = M.finfo(p)
  return p:clamp(info.tiny):log(), (-p:clamp(nil, 1 - info.eps / 2)):log1p(), p, 1 - p
end
--- log(log(1 + exp(l))).
function M.log_softplus(l)
  local small = l:lt(math.log(M.finfo(l).eps) / 2)
  return moth.where(small, l - l:clamp(nil, 0):exp() * 0.5, (-moth.F.logsigmoid(-moth.where(small, 0, l))):log())
end
--- p * x, and 0 where p is: what is left out of a sum has no value, and no gradient.
function M.times(p, x) return (moth.where(p:eq(0), 0, p * x)) end
--- The cross entropy of yes-or-no logits, elementwise.
function M.bce(logits, target)
  return (moth.F.binary_cross_entropy_with_logits(logits, target, { reduction = "none" }))
end
--- Sums over the last n dimensions.
function M.sum_last(x, n)
  for _ = 1, n do x = x:sum(-1) end
  return x
end

--- Values where a condition holds, a number elsewhere, without a gradient of what is left out.
function M.where(condition, x, otherwise) return (moth.where(condition, x, otherwise)) end

--- Exactly one of the named options of a constructor: its name and value.
function M.one_of(where, o, ...)
  local name
  for i = 1, select("#", ...) do
    local key = (select(i, ...))
    if o[key] ~= nil then
      if name then check.fail("[%s] both '%s' and '%s' are given; give one", where, name, key) end
      name = key
    end
  end
  if not name then check.fail("[%s] one of these must be given: %s", where, table.concat({ ... }, ", ")) end
  return name, o[name]
end

--- Raises an error unless value holds: `what` must be …: got … at …
function M.verify(where, what, constraint, value)
  if B.is_fake(value) then return end
  local ok = B.batch_values(constraint:check(value:detach())) -- of all elements, inside vmap
  if B.numel(ok) == 0 or ok:all():item() then return end
  local at = ok:logical_not():nonzero():select(1, 1):totable()
  local place = #at > 0 and " at position {" .. table.concat(at, ", ") .. "}" or ""
  local got = ""
  value = B.batch_values(value:detach())
  if constraint.event_dim == 0 and B.numel(value) == B.numel(ok) then
    got = (": got %g"):format(tonumber(value:item(unpack(at))))
  end
  check.fail("[%s] %s must be %s%s%s%s", where, what, constraint.name, got, place,
    B.dim(value) > 0 and " of " .. B.format(value) or "")
end

return M
