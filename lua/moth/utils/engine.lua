--- Which LuaJIT runs: one with a known bug is named on stderr, once a process. MOTH_LUAJIT_WARNING=0: nothing is said.
--
-- "LuaJIT 2.1.0-beta3" is what all versions from 2017 to August 2023 call themselves. Until April 2022 compiled loops
-- over pairs() or next() could read a wrong address where registers are few (LuaJIT's issue 829), and end the process;
-- moth's own loops go round it (moth.each). OpenResty's version of the engine, Debian's luajit2, is told by a function
-- of its own; its packages are newer.
local M = {}

M.text = "moth: warning: this LuaJIT (%s) may be one from before April 2022, which miscompiles loops over pairs() and "
  .. "next(); HINT: Debian's package luajit2 is newer; MOTH_LUAJIT_WARNING=0 silences this"

--- Whether an engine with this jit table may have the bug.
function M.is_old(engine) return engine.version == "LuaJIT 2.1.0-beta3" and not engine.prngstate end

return setmetatable(M, { __call = function(_, first)
  if first and M.is_old(jit) and os.getenv("MOTH_LUAJIT_WARNING") ~= "0" then
    io.stderr:write(M.text:format(jit.version), "\n")
  end
end })
