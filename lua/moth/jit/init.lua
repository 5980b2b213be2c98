--- moth.jit: PyTorch's older spellings of moth.export. Each prints one line that says so.
--
--     local traced = moth.jit.trace(model, { x })
--     moth.jit.save(traced, "model.mth2")
--     local same = moth.jit.load("model.mth2")
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local tree = require "moth.lang.tree"
local export = require "moth.export"
local M = {}

local said = {}
local function deprecated(name, other)
  if said[name] then return end
  said[name] = true
  io.stderr:write(("[moth] warning: jit.%s is deprecated: use %s\n"):format(name, other))
end

local function compare(fn, ep, args)
  local a, b = tree.flatten({ fn(unpack(args)) }), tree.flatten({ ep(unpack(args)) })
  for i = 1, math.max(#a, #b) do
    local same = B.is_tensor(a[i]) and B.is_tensor(b[i]) and moth.allclose(a[i], b[i], { equal_nan = true })
      or a[i] == b[i]
    if not same then
      check.fail("[jit.trace] result %d differs from the function's on the check inputs: it depends on elements or on "
        .. "Lua state\nHINT: moth.cond, moth.while_loop; random ops: check_trace = false", i)
    end
  end
end

--- The program of fn, a function or module, at the sizes of the example; it is checked on `check_inputs`, or on the
-- example itself, unless check_trace is false.
M.trace = signature("jit.trace(any fn, any example_inputs, *, any check_inputs?, bool check_trace=true)",
  function(fn, args, check_inputs, checked)
    deprecated("trace", "moth.export(fn, { x })")
    if B.is_tensor(args) then args = { args } end
    local ep = export(fn, args)
    if checked then moth.no_grad(compare, fn, ep, check_inputs or args) end
    return ep:module()
  end)

local Scripted = require("moth.class")("ScriptModule")
function Scripted:__init(fn) self.fn, self.programs = fn, {} end

-- The program for these arguments' sizes and dtypes.
local function program_for(self, ...)
  local leaves = tree.flatten({ ... })
  local parts = {}
  for i, v in ipairs(leaves) do
    parts[i] = B.is_tensor(v) and v:dtype().name .. table.concat(v:size(), ",") or tostring(v)
  end
  local key = table.concat(parts, ";")
  local ep = self.programs[key]
  if not ep then
    ep = export(self.fn, { n = select("#", ...), ... })
    self.programs[key], self.last = ep, ep
  end
  return ep
end
-- While a compiled function is recorded, what is scripted is a part of it.
function Scripted:__call(...)
  if B.compile.recording() then return self.fn(...) end
  return program_for(self, ...)(...)
end
function Scripted:__tostring() return self.last and tostring(self.last) or "ScriptModule (called with nothing yet)" end
--- The exported program of the last call.
function Scripted:program()
  return self.last or check.fail("[jit.script] there is no program before the first call, which shows dtypes and sizes")
end

--- fn, exported for the arguments of each call; branches and loops on elements are moth.cond and moth.while_loop. What
-- is scripted or compiled already is returned as it is.
M.script = signature("jit.script(any fn)", function(fn)
  if require("moth.class").is_a(fn, Scripted) then return fn end
  if not check.is_callable(fn) or B.is_tensor(fn) then
    check.fail("[jit.script] expected a function or a module, got %s", require("moth.class").name(fn))
  end
  deprecated("script", "moth.export(fn, { x })")
  return Scripted(fn)
end)

local function program_of(where, m)
  if require("moth.class").is_a(m, Scripted) then return m:program() end
  if export.is_exported(m) then return m end
  if type(m) == "table" and type(rawget(m, "program_of")) == "function" then return (m.program_of()) end
  return check.fail("[%s] expected what jit.trace or jit.script gives, got %s", where, require("moth.class").name(m))
end

--- Writes a traced or scripted program: moth.export.save.
M.save = signature("jit.save(any m, path path)", function(m, path) export.save(program_of("jit.save", m), path) end)
--- Reads it as a module: moth.export.load(path):module().
M.load = signature("jit.load(path path, device map_location?)", function(path, device)
  return export.load(path, { map_location = device }):module()
end)

return M
