--- What asynchronous calls return. A result must not be read, nor an input changed, before wait.
local B = require "moth_lua"
local class = require "moth.class"
local signature = require "moth.utils.signature"

local C = B.comm

local Work = class("Work")

--- handle: of the binding, nil for one that dist.record has made; after: called once it is done, with the work.
function Work:__init(handle, after) self.handle, self.after = handle, after end

--- Waits; raises the error of the call. With a timeout (seconds): false if it is not done by then.
Work.wait = signature.method("distributed.Work.wait(number timeout?)", function(self, timeout)
  if self.handle and not C.work_wait(self.handle, timeout) then return false end
  local after = self.after
  if after then
    self.after = nil
    after(self)
  end
  return true
end)

--- Whether it has ended, by success or by an error.
Work.is_completed = signature.method("distributed.Work.is_completed()", function(self)
  local state = self.handle and C.work_state(self.handle)
  return not state or state == "done" or state == "failed"
end)
--- Its error as a text, or nil.
Work.exception = signature.method("distributed.Work.exception()", function(self)
  return (select(2, C.work_state(self.handle)))
end)
--- Of a receive that is done: the rank that sent, in the group.
Work.source_rank = signature.method("distributed.Work.source_rank()", function(self)
  return (select(3, C.work_state(self.handle)))
end)
function Work:__tostring() return ("Work(%s)"):format((C.work_state(self.handle))) end

return Work
