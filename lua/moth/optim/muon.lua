--- optim.Muon: momentum whose matrices are made nearly orthogonal (Jordan et al. 2024), for the matrices of hidden
-- layers; give biases, norms, embeddings and the last layer to optim.AdamW.
--
-- Arguments: params (matrices), lr = 1e-3, weight_decay = 0.1, momentum = 0.95, nesterov = true,
-- ns_coefficients = { 3.4445, -4.7750, 2.0315 }, eps = 1e-7, ns_steps = 5, adjust_lr_fn = "original",
-- "match_rms_adamw" or "spectral_unclamped"
--
-- For each parameter x (A, B) with gradient g:
--   1. b = momentum b + (1 - momentum) g          (momentum_buffer)
--   2. u = b, or with nesterov (1 - momentum) g + momentum b
--   3. u = u / |u|; ns_steps times u = c1 u + (c2 G + c3 G^2) u with G = u u^T, in bfloat16
--   4. x = x - lr weight_decay x - lr s u, s = sqrt(max(1, A / B)), 0.2 sqrt(max(A, B)) or sqrt(A / B)
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

local Muon = class("Muon", Optimizer)

local init = Optimizer.init("optim.Muon", "number|Tensor lr=1e-3, number weight_decay=0.1, number momentum=0.95, \z
  bool nesterov=true, number[] ns_coefficients?, number eps=1e-7, size ns_steps=5, \z
  'original'|'match_rms_adamw'|'spectral_unclamped' adjust_lr_fn='original'", function(_, o)
  o.ns_coefficients = o.ns_coefficients or { 3.4445, -4.7750, 2.0315 }
  if #o.ns_coefficients ~= 3 then
    check.fail("[optim.Muon] ns_coefficients are three numbers, got %d", #o.ns_coefficients)
  end
  if o.ns_steps >= 100 then check.fail("[optim.Muon] ns_steps must be below 100, got %d", o.ns_steps) end
end)
Muon.__init = init

function Muon:add_param_group(group)
  Optimizer.add_param_group(self, group)
  for i, p in ipairs(self.param_groups[#self.param_groups].params) do
    if B.dim(p) ~= 2 then
      check.fail("optim.Muon takes matrices only; parameter %d has the shape %s: give it to optim.AdamW", i,
        tostring(p:size()))
    end
  end
end

-- Nearly orthogonal: singular values between about 0.5 and 1.5.
local function orthogonal(g, group)
  local c, turned = group.ns_coefficients, g:size(1) > g:size(2)
  local u = g:to(moth.bfloat16)
  if turned then u = u:t() end
  u = u / moth.linalg_vector_norm(u):clamp(group.eps)
  for _ = 1, group.ns_steps do
    local gram = u:matmul(u:t())
    local sum = moth.addmm(gram, gram, gram, { beta = c[2], alpha = c[3] })
    u = moth.addmm(u, sum, u, { beta = c[1] })
  end
  return turned and u:t() or u
end

local scales = {
  original = function(a, b) return math.sqrt(math.max(1, a / b)) end,
  match_rms_adamw = function(a, b) return 0.2 * math.sqrt(math.max(a, b)) end,
  spectral_unclamped = function(a, b) return math.sqrt(a / b) end,
}

function Muon:step_group(group)
  local lr = Optimizer.get_lr(group)
  for _, p in ipairs(group.params) do
    local g = B.get_grad(p)
    if g and p:numel() > 0 then
      local s = self.state[p]
      s.momentum_buffer = s.momentum_buffer or keep(moth.zeros_like(p))
      s.momentum_buffer:lerp_(g, 1 - group.momentum)
      local u = orthogonal(group.nesterov and g:lerp(s.momentum_buffer, group.momentum) or s.momentum_buffer, group)
      p:mul_(1 - lr * group.weight_decay)
      p:sub_(u:to(p:dtype()), lr * scales[group.adjust_lr_fn](p:size(1), p:size(2)))
    end
  end
end

return Muon
