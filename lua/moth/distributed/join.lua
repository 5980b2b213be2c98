--- moth.distributed.join: uneven inputs. A rank whose inputs are at their end goes on with the calls of
-- DistributedDataParallel, with zeros, until all ranks are done; then all take the parameters of one that was last.
--
--     dist.join(net, function()
--       for x, y in loader:iter() do … end       -- not the same number of times on all ranks
--     end)
--
-- Gradients are divided by the number of all ranks, also of those that are done. The function makes no other collective
-- calls that not all ranks make.
local B = require "moth_lua"
local check = require "moth.utils.check"
local collectives = require "moth.distributed.collectives"
local moth = require "moth"
local signature = require "moth.utils.signature"
require "moth.distributed.ddp" -- for the type of its signature

local R = B.reducer

-- Which ranks of the group have inputs: the first of them, and how many.
local function active(net, mine)
  local group = net._group
  local t = moth.zeros({ group.size }, { dtype = moth.int32 })
  if mine then t[group.rank + 1] = 1 end
  collectives.all_reduce(t, { group = group })
  local first, n
  for i, on in ipairs(t:totable()) do
    if on == 1 then first, n = first or group.ranks[i], (n or 0) + 1 end
  end
  return first, n or 0
end

local function stop(net, n)
  net._joining.over = true
  check.fail("[distributed.join] %d of %d ranks have no more inputs", net._group.size - n, net._group.size)
end

-- For a rank with inputs, in front of each forward whose backward is reduced. Returns the rank whose buffers count.
local function announce(net)
  local first, n = active(net, true)
  if net._joining.throws and n < net._group.size then stop(net, n) end
  net._joining.last = first
  return first
end

local function shadow(net)
  while true do
    local first, n = active(net, false)
    if n == 0 then break end
    if net._joining.throws then stop(net, n) end
    net._joining.last = first
    net:_broadcast_buffers(first)
    R.shadow(net._reducer)
    net._shadowed = true
  end
  net:_broadcast_all(net._joining.last or net._group.ranks[1])
end

--- Runs fn on all ranks, which call net, a DistributedDataParallel, and backward in it, not equally often. Returns the
-- results of fn. throw_on_early_termination: all ranks get an error when the first one is done.
return signature("distributed.join(DistributedDataParallel net, function fn, *, \z
  bool throw_on_early_termination=false)", function(net, fn, o)
  if net._joining then check.fail "[distributed.join] is called within itself" end
  net._joining = { announce = announce, throws = o.throw_on_early_termination }
  local function done(ok, ...)
    local message
    if ok then ok, message = pcall(shadow, net) else message = (...) end
    local over = net._joining.over -- on all ranks alike
    net._joining = nil
    if not ok then
      if not over and net._group.handle then
        B.comm.group_break(net._group.handle, ("rank %d left join by an error: %s"):format(
          net._group.ranks[net._group.rank + 1], tostring(message)))
      end
      error(message, 0)
    end
    return ...
  end
  return done(pcall(fn))
end, true)
