--- Messages from one rank to another. Those from one rank to another arrive in their order; a receive takes the first
-- one with its tag. Tensors have the same dtype and shape on both sides.
local check = require "moth.utils.check"
local collectives = require "moth.distributed.collectives"
local groups = require "moth.distributed.group"
local signature = require "moth.utils.signature"

local M = {}

local OPTIONS = "*, ProcessGroup group?, int tag=0, number timeout?"

local function send(t, dst, o, async)
  local g = groups.of(o.group, "send")
  o.root, o.async = groups.rank_in(g, dst, "send", "dst"), async
  return collectives.start("send", g, collectives.given(t, "cpu"), nil, o)
end

local function receive(t, src, o, async)
  local g = groups.of(o.group, "recv")
  local own, after = collectives.wanted(t, "cpu")
  o.root, o.async = src and groups.rank_in(g, src, "recv", "src") or -1, true
  local work = collectives.start("recv", g, nil, own, o, after)
  if async then return work end
  work:wait()
  return g.ranks[work:source_rank() + 1]
end

--- Sends a tensor to rank dst; returns when the tensor may be changed.
M.send = signature("distributed.send(Tensor tensor, size dst, " .. OPTIONS .. ")",
  function(t, dst, o) send(t, dst, o, false) end, true)
--- Receives from rank src (nil: any) into a tensor; returns the rank that sent.
M.recv = signature("distributed.recv(Tensor tensor, size src?, " .. OPTIONS .. ")",
  function(t, src, o) return receive(t, src, o, false) end, true)
--- The same without waiting: they return a Work.
M.isend = signature("distributed.isend(Tensor tensor, size dst, " .. OPTIONS .. ")",
  function(t, dst, o) return send(t, dst, o, true) end, true)
--- Receives without waiting: returns a Work.
M.irecv = signature("distributed.irecv(Tensor tensor, size src?, " .. OPTIONS .. ")",
  function(t, src, o) return receive(t, src, o, true) end, true)

--- Starts a list of { dist.isend or dist.irecv, tensor, peer }; returns a list of works.
M.batch_isend_irecv = signature("distributed.batch_isend_irecv(table p2p_op_list)", function(list)
  local works = {}
  for i, op in ipairs(list) do
    if type(op) ~= "table" or (op[1] ~= M.isend and op[1] ~= M.irecv) then
      check.fail("[distributed.batch_isend_irecv] %d: expected { dist.isend or dist.irecv, tensor, peer }", i)
    end
    works[i] = op[1](op[2], op[3], { group = op.group, tag = op.tag })
  end
  return works
end)

return M
