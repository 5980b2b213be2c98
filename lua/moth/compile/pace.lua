--- Whether a compiled callable is worth it: after a while some of its calls run uncompiled, in turn with compiled ones,
-- and if these are slower, all run uncompiled from then on, with one warning.
--
-- The fastest of each kind is compared, so that collections of garbage and other programs count little. Calls that
-- record something new do not count. Calls whose results require grad do where nothing is compiled: what a compiled
-- forward costs and saves shows in backward, too. On other devices than the CPU nothing is measured, as kernels run on
-- when a call returns.
local B = require "moth_lua"
local C = B.compile

local M = {}

-- Calls before the first that is measured; those measured, every second one uncompiled; how many of each kind must
-- count, and how often this is tried. A callable is slower above this factor.
local FIRST, CALLS, ENOUGH, ROUNDS, FACTOR = 24, 24, 6, 3, 1.08

--- How many callables were turned off since the start or reset().
M.turned_off = 0

--- What a callable's calls are measured in.
function M.new(round) return { calls = 0, round = round or 1, n = { 0, 0 }, best = { math.huge, math.huge } } end

local function first_tensor(...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if B.is_tensor(v) then return v end
    if type(v) == "table" and getmetatable(v) == nil and B.is_tensor(v[1]) then return v[1] end
  end
end

-- What a call says about the pace: false where it cannot count.
local function counts(box, ...)
  local t = first_tensor(...)
  if not t then return true end
  if tostring(B.tensor_device(t)) ~= "cpu" then
    box.pace = nil
    return false
  end
  return not B.requires_grad(t) or not C.is_compiled(box.trace)
end

local function decide(box)
  local p = box.pace
  if p.n[1] < ENOUGH or p.n[2] < ENOUGH then
    box.pace = p.round < ROUNDS and M.new(p.round + 1) or nil
    return
  end
  box.pace = nil
  if p.best[1] <= p.best[2] * FACTOR then return end
  box.off = true
  M.turned_off = M.turned_off + 1
  io.stderr:write(("[moth] warning: compile: %s takes %.3g us compiled and %.3g us uncompiled: it runs uncompiled "
    .. "from now on; moth.compile.config.measure = false keeps it compiled\n"):format(box.name, p.best[1] / 1e3,
    p.best[2] / 1e3))
end

-- kind: 1 compiled, 2 uncompiled, 0 not measured.
local function done(box, kind, begin, before, ...)
  local took, p = C.clock() - begin, box.pace
  if p and kind > 0 and C.progress() == before and counts(box, ...) then
    p.n[kind] = p.n[kind] + 1
    p.best[kind] = math.min(p.best[kind], took)
  end
  if box.pace and p.calls >= FIRST + CALLS then decide(box) end
  return ...
end

--- fn(...), by compiled(box, fn, ...) or as it is.
function M.call(box, compiled, fn, ...)
  local p = box.pace
  p.calls = p.calls + 1
  local kind = p.calls <= FIRST and 0 or p.calls % 2 + 1
  if kind == 2 then return done(box, 2, C.clock(), C.progress(), fn(...)) end
  return done(box, kind, C.clock(), C.progress(), compiled(box, fn, ...))
end

return M
