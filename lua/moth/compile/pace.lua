--- Whether a compiled callable is worth it: after a while some of its calls run uncompiled, in turn with compiled ones,
-- and if these are slower, all run uncompiled from then on, with one warning. Each class of sizes (the elements of the
-- first tensor among the arguments) is measured by itself: what is slower on small tensors may be faster on large ones.
--
-- The fastest of each kind is compared, so that collections of garbage and other programs count little. Calls that
-- record something new do not count. Calls whose results require grad do where nothing is compiled: what a compiled
-- forward costs and saves shows in backward, too. On other devices than the CPU nothing is measured, as kernels run on
-- when a call returns.
local B = require "moth_lua"
local element = require "moth.tensor.element"
local C = B.compile

local M = {}

-- Calls before the first that is measured; those measured, every second one uncompiled; how many of each kind must
-- count, and how often this is tried. A callable is slower above this factor.
local FIRST, CALLS, ENOUGH, ROUNDS, FACTOR = 24, 24, 6, 3, 1.05

--- How many callables were turned off, for one class of sizes each, since the start or reset().
M.turned_off = 0

-- How many calls of keep() there were.
local kept = 0

--- Called where all ranks of a group must take the same way: what is being recorded stays compiled, whatever it takes.
function M.keep() kept = kept + 1 end

local numel, mt = element.number("numel", B.numel), B.Tensor

--- What is known of a callable: by class of sizes "off", "on" (decided), or what its calls are measured in; some_off:
-- one of them is off.
function M.new() return {} end

local function measure(round) return { calls = 0, round = round, n = { 0, 0 }, best = { math.huge, math.huge } } end

local function first_tensor(x, ...)
  if getmetatable(x) == mt then return x end
  for i = 1, select("#", x, ...) do
    local v = select(i, x, ...)
    if getmetatable(v) == mt or B.is_tensor(v) then return v end
    if type(v) == "table" and getmetatable(v) == nil and B.is_tensor(v[1]) then return v[1] end
  end
end

-- Classes end at these numbers of elements.
local function class_of(n)
  if n <= 1024 then return n <= 64 and 64 or 1024 end
  if n <= 262144 then return n <= 16384 and 16384 or 262144 end
  return n <= 4194304 and 4194304 or math.huge
end

-- Whether a call can count. Where it is not on the CPU, none of the callable's does.
local function counts(box, t)
  if not t then return true end
  if tostring(B.tensor_device(t)) ~= "cpu" then
    box.pace = nil
    return false
  end
  return not B.requires_grad(t) or not C.is_compiled(box.trace)
end

local function decide(box, class, p)
  if not box.pace then return end
  if p.n[1] < ENOUGH or p.n[2] < ENOUGH then
    box.pace[class] = p.round < ROUNDS and measure(p.round + 1) or "on"
    return
  end
  box.pace[class] = "on"
  if p.best[1] <= p.best[2] * FACTOR then return end
  box.pace[class], box.pace.some_off = "off", true
  M.turned_off = M.turned_off + 1
  local sizes = class == math.huge and "more than 4194304" or "up to " .. class
  io.stderr:write(("[moth] warning: compile: %s takes %.3g us compiled and %.3g us uncompiled: on tensors of %s "
    .. "elements it runs uncompiled from now on; moth.compile.config.measure = false keeps it compiled\n")
    :format(box.name, p.best[1] / 1e3, p.best[2] / 1e3, sizes))
end

-- kind: 1 compiled, 2 uncompiled, 0 not measured. t: the first tensor.
local function done(box, class, t, kind, begin, before, ...)
  local took, p = C.clock() - begin, box.pace and box.pace[class]
  if type(p) == "table" and p.kept ~= kept then box.pace, p = nil, nil end
  if type(p) ~= "table" then return ... end -- decided by a call inside of this one
  if kind > 0 and C.progress() == before and counts(box, t) then
    p.n[kind] = p.n[kind] + 1
    p.best[kind] = math.min(p.best[kind], took)
  end
  if p.calls >= FIRST + CALLS then decide(box, class, p) end
  return ...
end

--- Whether calls with these arguments run uncompiled. LuaJIT compiles this into the program's loop.
function M.is_off(p, ...)
  local t = first_tensor(...)
  return p[t and class_of(numel(t)) or 64] == "off"
end

--- fn(...), by compiled(box, fn, ...) or as it is.
function M.call(box, compiled, fn, ...)
  local t = first_tensor(...)
  local class = t and class_of(numel(t)) or 64
  local p = box.pace[class]
  if p == "on" then return compiled(box, fn, ...) end
  if not p then
    p = measure(1)
    box.pace[class] = p
  end
  p.calls, p.kept = p.calls + 1, kept
  -- Small tensors gain little by other code than the first: they need not wait for it.
  if p.calls == FIRST + 1 and class > 1024 and C.in_trial(box.trace) then p.calls = FIRST end
  local kind = p.calls <= FIRST and 0 or p.calls % 2 + 1
  if kind == 2 then return done(box, class, t, 2, C.clock(), C.progress(), fn(...)) end
  return done(box, class, t, kind, C.clock(), C.progress(), compiled(box, fn, ...))
end

return M
