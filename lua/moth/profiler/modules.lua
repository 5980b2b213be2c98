--- Ranges of modules: while a profile with with_modules records, nn.Module's call runs through this function.
local recording = require "moth.profiler.recording"
local range = require "moth.profiler.range"
local class = require "moth.class"
local memory_text = require("moth.profiler.averages").memory
local time_text = require("moth.profiler.averages").time

local M = {}

local names = setmetatable({}, { __mode = "k" }) -- of modules, below the outermost one that was called
local stack = {}

-- The name of `child` below `parent`, through containers that are not called themselves.
local function path(parent, child, depth)
  for name, m in require("moth.each")(parent._modules) do
    if rawequal(m, child) then return name end
    local below = depth > 0 and path(m, child, depth - 1)
    if below then return name .. "." .. below end
  end
end

local function name_of(module)
  local known = names[module]
  if known then return known end
  local parent = stack[#stack]
  local own = parent and path(parent, module, 4)
  local above = parent and names[parent]:match("^(.-) %(") or nil
  local kind = class.name(module)
  local at = own and above and above ~= "" and above .. "." .. own or own
  local text = parent and ("%s (%s)"):format(at or "?", kind) or (" (%s)"):format(kind)
  names[module] = text
  return text
end

local function run(call, self, ...) return call(self, ...) end

local function left(depth, ...)
  for k = #stack, depth, -1 do stack[k] = nil end
  return ...
end

local function guarded(depth, ok, ...)
  left(depth)
  if not ok then require("moth.lang.trace").rethrow((...)) end
  return ...
end

--- call(module, ...) within a range "features.2 (Conv2d)".
function M.call(call, self, ...)
  local name = name_of(self):gsub("^ %((.*)%)$", "%1")
  stack[#stack + 1] = self
  return guarded(#stack, pcall(range, recording.kinds.module, name, run, call, self, ...))
end

local Table = {}
Table.__index = Table

function Table:__tostring()
  local lines = { ("%-40s %8s %12s %12s"):format("module", "calls", "memory", "time") }
  for _, row in ipairs(self) do
    lines[#lines + 1] = ("%-40s %8d %12s %12s"):format(row.name, row.count, memory_text(row.bytes), time_text(row.time))
  end
  return table.concat(lines, "\n")
end

--- Bytes that live behind the forward of each module less those before it, that is what it retains for backward and its
-- results: a list of { name, count, bytes, time (us) } in the order of the first calls.
function M.memory(r)
  local rows, list = {}, setmetatable({}, Table)
  for _, t in ipairs(r.tracks) do
    for i = 0, t.n - 1 do
      local e = recording.event(t, i)
      if e.kind == recording.kinds.module then
        local name = r.names[e.name]
        local row = rows[name]
        if not row then
          row = { name = name, count = 0, bytes = 0, time = 0 }
          rows[name] = row
          list[#list + 1] = row
        end
        row.count = row.count + 1
        row.bytes = row.bytes + tonumber(e.bytes)
        row.time = row.time + (t.stop[i] - t.start[i]) / 1e3
      end
    end
  end
  return list
end

return M
