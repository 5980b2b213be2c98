--- memory.leak_check: tensors that each step leaves behind, with the lines that made them and who refers to them.
local B = require "moth_lua"
local signature = require "moth.utils.signature"
local check = require "moth.utils.check"
local history = require "moth.memory.history"
local summary = require "moth.memory.summary"
local each = require "moth.each"

local M = {}

-- ---- who refers to tensors -----------------------------------------------------------------------------------

local function key_text(key)
  if type(key) == "string" and key:find("^[%a_][%w_]*$") then return "." .. key end
  return ("[%s]"):format(type(key) == "string" and ("%q"):format(key) or tostring(key))
end

-- Calls visit(tensor, path) for the tensors that Lua can reach: breadth first, so that paths are short.
local function reach(roots, visit)
  local seen, queue, first = {}, {}, 1
  local function add(value, path, where)
    local kind = type(value)
    if kind ~= "table" and kind ~= "function" and kind ~= "userdata" and kind ~= "thread" or seen[value] then return end
    if B.is_tensor(value) then
      visit(value, path .. where)
      return
    end
    seen[value] = true
    queue[#queue + 1] = { value, path, where }
  end
  seen[package.loaded] = true
  for name, module in each(package.loaded) do
    if type(name) == "string" and (name:find("^moth") or name == "_G") then seen[module] = name ~= "_G" or nil end
  end
  for _, root in ipairs(roots) do add(root[1], root[2], root[3]) end
  while queue[first] do
    local value, path, where = unpack(queue[first])
    queue[first] = nil
    first = first + 1
    if type(value) == "table" then
      for k, v in each(value) do
        add(v, path .. key_text(k), where)
        if type(k) ~= "string" and type(k) ~= "number" then add(k, "a key of " .. path, where) end
      end
      local mt = debug.getmetatable(value)
      if mt then add(mt, "the metatable of " .. path, where) end
    elseif type(value) == "function" then
      for i = 1, 255 do
        local name, v = debug.getupvalue(value, i)
        if not name then break end
        add(v, name, (" (upvalue of %s)%s"):format(path, where))
      end
    elseif type(value) == "userdata" then
      local env = debug.getfenv(value)
      if type(env) == "table" then add(env, path, where) end
    end
  end
end

-- "@…/lua/moth/": what chunk names of moth's own files begin with.
local own = debug.getinfo(1, "S").source:match("^(.*[/\\])memory[/\\]leak%.lua$") or "@?"

local function roots_of(fn, level)
  local roots = {}
  while true do
    local info = debug.getinfo(level, "Sl")
    if not info then break end
    if info.what ~= "C" and info.source:sub(1, #own) ~= own then
      for i = 1, 250 do
        local name, value = debug.getlocal(level, i)
        if not name then break end
        if name:sub(1, 1) ~= "(" then
          roots[#roots + 1] = { value, name, (" (local at %s:%d)"):format(info.short_src, info.currentline) }
        end
      end
    end
    level = level + 1
  end
  if fn then
    for i = 1, 255 do
      local name, value = debug.getupvalue(fn, i)
      if not name then break end
      roots[#roots + 1] = { value, name, " (upvalue)" }
    end
  end
  roots[#roots + 1] = { _G, "_G", "" }
  return roots
end

--- The tensors that Lua can reach from here, the largest storages first: a list of { path, bytes, tensor }, by locals,
-- upvalues and globals. Those that only a graph retains are not among them.
M.holders = signature("memory.holders(size most=20)", function(most)
  local list, by = {}, {}
  reach(roots_of(nil, 3), function(t, path)
    local id = B.storage_id(t)
    if not by[id] then
      by[id] = true
      list[#list + 1] = { path = path, bytes = B.storage_nbytes(t), tensor = t }
    end
  end)
  table.sort(list, function(a, b) return a.bytes > b.bytes end)
  for i = #list, most + 1, -1 do list[i] = nil end
  return list
end)

-- ---- leaks ------------------------------------------------------------------------------------------------------

local Report = {}
Report.__index = Report
function Report:__tostring()
  if #self.leaks == 0 then return ("no leak in %d steps"):format(self.steps) end
  local out = { ("%s and %.3g tensors more with each of %d steps:"):format(summary.size(self.bytes_per_step),
    self.tensors_per_step, self.steps) }
  for _, leak in ipairs(self.leaks) do
    out[#out + 1] = ("  %10s in %.3g %s a step  %s%s"):format(summary.size(leak.bytes_per_step), leak.per_step,
      leak.kind == "tensor" and "tensors" or "other blocks", leak.line, leak.held_by
        and "\n             held by " .. leak.held_by or "")
  end
  return table.concat(out, "\n")
end

local function collect()
  for _ = 1, 3 do
    collectgarbage()
    B.ops.zeros({ 1 }) -- what hooks have released is removed when a handle is made
  end
  collectgarbage()
end

-- An address as B.storage_id and B.storage_ptr give it.
local function number_of(address) return tonumber(address:match("0x(%x+)"), 16) end

local function run(fn, o)
  for i = 1, o.warmup do fn(i) end
  collect()
  local recording = B.history_on()
  if not recording then history.record_history(true, { max_entries = 0 }) end
  local from = 0
  for _, b in ipairs(B.history_blocks()) do from = math.max(from, b.serial) end
  local bounds = { from }
  for i = 1, o.steps do
    fn(o.warmup + i)
    collect()
    local last = bounds[i]
    for _, b in ipairs(B.history_blocks()) do last = math.max(last, b.serial) end
    bounds[i + 1] = last
  end
  local s = history.snapshot()
  if not recording then history.record_history(false) end
  return s, bounds
end

-- The step in which an allocation was made, or nil.
local function step_of(serial, bounds)
  for i = 1, #bounds - 1 do
    if serial > bounds[i] and serial <= bounds[i + 1] then return i end
  end
end

--- Calls fn(step) for warmup and then for steps, and looks for blocks that each of these steps has left behind.
-- Returns { leaks, steps, bytes_per_step, tensors_per_step }, which prints as a text; leaks: a list of { line (that
-- made them), kind ("tensor", or "other": nodes of graphs, headers), per_step, bytes_per_step, held_by (a path from a
-- local, an upvalue or a global, of those that Lua refers to; nil: a graph retains them), trace }, first those that Lua
-- refers to. Options: steps = 4, warmup = 2.
M.leak_check = signature("memory.leak_check(callable fn, *, count steps=4, size warmup=2)", function(fn, o)
  if o.steps + o.warmup > 1000 then
    check.fail("[memory.leak_check] steps and warmup: at most 1000 together, got %g", o.steps + o.warmup)
  end
  if o.steps < 3 then check.fail("[memory.leak_check] steps: three are needed to tell a leak, got %d", o.steps) end
  local s, bounds = run(fn, o)
  local by, leaks, blocks = {}, {}, {}
  for _, b in ipairs(s.blocks) do
    local step = step_of(b.serial, bounds)
    if step then
      local key = b.kind .. "\n" .. table.concat(b.trace, "\n")
      local leak = by[key]
      if not leak then
        leak = { kind = b.kind, line = b.line, trace = b.trace, count = 0, bytes = 0, steps = {} }
        by[key] = leak
        leaks[#leaks + 1] = leak
      end
      leak.count, leak.bytes, leak.steps[step] = leak.count + 1, leak.bytes + b.size, true
      blocks[number_of(b.address)] = leak
    end
  end
  local found = setmetatable({ leaks = {}, steps = o.steps, bytes_per_step = 0, tensors_per_step = 0 }, Report)
  for _, leak in ipairs(leaks) do
    local whole = true
    for i = 1, o.steps - 1 do whole = whole and leak.steps[i] end -- the last step's may still be in use
    if whole then
      leak.per_step, leak.bytes_per_step = leak.count / o.steps, leak.bytes / o.steps
      found.leaks[#found.leaks + 1] = leak
      found.bytes_per_step = found.bytes_per_step + leak.bytes_per_step
      if leak.kind == "tensor" then found.tensors_per_step = found.tensors_per_step + leak.per_step end
    end
  end
  if #found.leaks > 0 then
    reach(roots_of(type(fn) == "function" and fn or nil, 3), function(t, path)
      local leak = blocks[B.storage_id(t)] or blocks[B.storage_ptr(t)]
      if leak and not leak.held_by then leak.held_by = path end
    end)
  end
  table.sort(found.leaks, function(a, b)
    if (a.held_by ~= nil) ~= (b.held_by ~= nil) then return a.held_by ~= nil end
    if a.kind ~= b.kind then return a.kind == "tensor" end
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.line < b.line
  end)
  for _, leak in ipairs(found.leaks) do leak.steps = nil end
  return found
end, true)

return M
