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
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

local Muon = require "moth.optim.stepped" ("Muon", {
  parameters = "number|Tensor lr=1e-3, number weight_decay=0.1, number momentum=0.95, bool nesterov=true, \z
    number[] ns_coefficients?, number eps=1e-7, size ns_steps=5, \z
    'original'|'match_rms_adamw'|'spectral_unclamped' adjust_lr_fn='original'",
  verify = function(_, o)
    o.ns_coefficients = o.ns_coefficients or { 3.4445, -4.7750, 2.0315 }
    if #o.ns_coefficients ~= 3 then
      check.fail("[optim.Muon] ns_coefficients are three numbers, got %d", #o.ns_coefficients)
    end
    if o.ns_steps >= 100 then check.fail("[optim.Muon] ns_steps must be below 100, got %d", o.ns_steps) end
  end,
  op = "muon_step", whole = true, states = { "momentum_buffer" }, scalars = {},
  call = function(op, l, group, _, _, ...)
    local c = group.ns_coefficients
    op(l.params, l.grads, l.momentum_buffer, Optimizer.get_lr(group), group.weight_decay, group.momentum,
      group.nesterov, c[1], c[2], c[3], group.eps, group.ns_steps, group.adjust_lr_fn, ...)
  end,
})

function Muon:add_param_group(group)
  Optimizer.add_param_group(self, group)
  for i, p in ipairs(self.param_groups[#self.param_groups].params) do
    if B.dim(p) ~= 2 then
      check.fail("optim.Muon takes matrices only; parameter %d has the shape %s: give it to optim.AdamW", i,
        tostring(p:size()))
    end
  end
end

return Muon
