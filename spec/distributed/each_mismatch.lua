-- One rank calls something else than the others, in each collective: all ranks get an error that quotes both calls.
local moth = require "moth"
local dist = require "moth.distributed"
local calls = require "distributed.calls"

-- what differs; the change of o for the odd rank; a part of its call as messages have it
local changes = {
  { "shape", function(o) o.n = o.n + 1 end, not_bare = true },
  { "dtype", function(o) o.dtype = moth.float64 end, not_bare = true },
  { "op", function(o, k) o.call = calls[k % #calls + 1] end },
  { "reduction", function(o) o.options.op = "max" end, reduces = true },
  { "root", function(o) o.root = (o.root + 1) % o.size end, rooted = true },
}

local detail = os.getenv "MOTH_DISTRIBUTED_DEBUG" == "DETAIL"

return function(rank, size, large)
  for k, call in ipairs(calls) do
    for i, change in ipairs(changes) do
      if (not change.not_bare or not call.bare) and (not change.reduces or call.reduces)
        and (not change.rooted or call.rooted) then
        local group = dist.new_group(nil, { timeout = 10 })
        local odd = (k + i) % size
        local o = { rank = rank, size = size, n = large and 100000 or 5, dtype = moth.float32, root = k % size,
          options = { group = group }, call = call }
        if rank == odd then change[2](o, k) end
        local ok, message = pcall(o.call[2], o)
        local early = not ok
        if ok then ok, message = pcall(dist.barrier, { group = group }) end
        local what = ("%s, other %s: rank %d: %s"):format(call[1], change[1], rank, tostring(message))
        assert(not ok, what)
        assert(message:find("do not match", 1, true) or message:find("ranks differ", 1, true), what)
        local name = rank == odd and o.call[1] or change[1] == "op" and calls[k % #calls + 1][1] or call[1]
        assert(message:find(("rank %d calls #1 "):format(odd) .. name, 1, true), what)
        for r = 0, size - 1 do
          if message:find(("rank %d calls #1 "):format(r), 1, true) and r ~= odd then ok = true end
        end
        assert(ok, what)
        assert(early or not detail, what)
        assert(message:find("%.lua:%d"), what)
        assert(not pcall(dist.barrier, { group = group }), "broken for good")
        dist.destroy_process_group(group)
      end
    end
  end
  dist.barrier()
end
