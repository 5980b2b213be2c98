--- What a call runs inside of that a checkpoint within enters again when it computes the call again: functions that put
-- other tensors into the places of a module for a while (a unit of fully_shard, functional_call).
--
--     local outer = around.push(enter, leave, value)  -- entered already; as dispatch.within, was = enter(value)
--     …                                               -- the call: also where it fails
--     around.pop(outer)
local within = require "moth.dispatch.within"

local M = {}

local top -- { enter, leave, value, outer }

--- Notes that what follows is inside of enter(value); returns what pop takes.
function M.push(enter, leave, value)
  local outer = top
  top = { enter, leave, value, outer }
  return outer
end

function M.pop(outer) top = outer end

--- What is entered now, for again; nil: nothing.
function M.now() return top end

local function enter(scope)
  local was = scope[1](scope[3])
  return { scope, was, M.push(scope[1], scope[2], scope[3]) }
end

local function leave(state)
  M.pop(state[3])
  state[1][2](state[2])
end

--- Notes a fact in all that is entered now: now()[name] is true, until it is left.
function M.note(name)
  local scope = top
  while scope do
    scope[name], scope = true, scope[4]
  end
end

--- fn(...) inside of what was entered then.
function M.again(scope, fn, ...)
  if not scope then return fn(...) end
  return M.again(scope[4], within, enter, leave, scope, fn, ...)
end

return M
