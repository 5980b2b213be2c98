-- What the specs of cut modules compare: see each_tp.lua.
local moth = require "moth"
local dist = require "moth.distributed"

local M = {}

function M.close(what, a, b, tolerance)
  tolerance = tolerance or 1e-6
  assert(tostring(a:size()) == tostring(b:size()), what .. ": " .. tostring(a:size()) .. " " .. tostring(b:size()))
  local far = a:numel() > 0 and ((a:detach() - b:detach()):abs():max() / (1 + b:detach():abs():max())):item() or 0
  assert(far <= tolerance, ("%s: off by %g"):format(what, far))
end

-- t is the same to the bit on all ranks.
function M.same(what, t, group)
  local first = t:detach():clone()
  dist.broadcast(first, dist.get_process_group_ranks(group)[1], { group = group })
  assert(moth.equal(first, t:detach()), what .. " differs between ranks")
end

-- The parameters of `cut` and their gradients, put together, against those of `one`.
function M.modules(what, cut, one, tolerance, scale)
  local of = {}
  for name, p in one:named_parameters() do of[name] = p end
  for name, p in cut:named_parameters() do
    local q = of[name]
    M.close(what .. " " .. name, dist.full_tensor(p), q:detach(), tolerance)
    assert((p.grad == nil) == (q.grad == nil), what .. ": gradient of " .. name)
    if p.grad then
      local full = dist.full_tensor(p.grad, p)
      M.close(what .. " gradient of " .. name, full * (scale or 1), q.grad, tolerance)
      M.same(what .. " gradient of " .. name, full)
    end
  end
end

return M
