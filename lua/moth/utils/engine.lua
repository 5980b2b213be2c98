--- Warns on stderr, once a process, about a LuaJIT with a known bug, or one that compiles nothing.
-- MOTH_LUAJIT_WARNING=0 turns the warning off.
--
-- All versions from 2017 to August 2023 call themselves "LuaJIT 2.1.0-beta3". Until April 2022 compiled loops over
-- pairs() or next() could read a wrong address under register pressure (LuaJIT's issue 829) and crash; moth's own loops
-- avoid them (moth.each). OpenResty's LuaJIT, Debian's luajit2, has newer packages; it is recognized by a function that
-- only it has.
local M = {}

M.text = "moth: warning: this LuaJIT (%s) may be one from before April 2022, which miscompiles loops over pairs() and "
  .. "next(); HINT: Debian's package luajit2 is newer; MOTH_LUAJIT_WARNING=0 silences this"

M.slow = "moth: warning: LuaJIT's compiler is off (%s): loops in Lua run many times slower, ops as fast as ever; "
  .. "HINT: start without -joff, or install a LuaJIT that has its compiler; MOTH_LUAJIT_WARNING=0 silences this"

--- Whether an engine with this jit table may have the bug.
function M.is_old(engine) return engine.version == "LuaJIT 2.1.0-beta3" and not engine.prngstate end

return setmetatable(M, { __call = function(_, first)
  if not first or os.getenv("MOTH_LUAJIT_WARNING") == "0" then return end
  local text = not jit.status() and M.slow or M.is_old(jit) and M.text
  if text then io.stderr:write(text:format(jit.version), "\n") end
end })
