--- What can be said of a kernel before it has arguments: instructions that no kernel has, names that there are not,
-- calls of what cannot be called. Errors have file and line.
local bytecode = require "moth.kernel.bytecode"
local reader = require "moth.kernel.reader"

local M = {}

local refused = reader.refused

-- Names as far as they can be followed from instruction to instruction: registers[r] = a known value of the reader's.
local function follow(c, frame, i, regs)
  local p = frame.p
  if i.op == "UGET" then
    regs[i.a] = c:upvalue(frame, i.d)
  elseif i.op == "GGET" then
    regs[i.a] = c:global(frame, p.kgc[i.d])
  elseif i.op == "TGETS" then
    local v = regs[i.b]
    regs[i.a] = v and v.k == "module" and c:field(v, p.kgc[i.c]) or nil
  elseif i.op == "MOV" then
    regs[i.a] = regs[i.d]
  elseif i.op == "TDUP" or i.op == "TNEW" then
    regs[i.a] = { k = "own" }
  elseif i.op:find("^TSET[SBV]") then
    local v = regs[i.b]
    if v and v.k == "module" then c:fail("%s is written to; a kernel writes by tl.store", v.name) end
  elseif i.op:find("^CALL") then
    local f = regs[i.a]
    if f and f.k == "fn" and not c.lang.names[f.f] then
      local inner, why = bytecode.of(f.f)
      if not inner then
        c:fail("'%s' is no function that a kernel calls (%s); there are those of tl, of math, and plain Lua functions",
          f.name or "?", why)
      end
    elseif f and f.k ~= "fn" and f.k ~= "own" then
      c:fail("%s is called", reader.describe(f))
    end
    regs[i.a] = nil
  else
    regs[i.a] = nil
  end
end

--- Checks a kernel; errors are reader.Error.
function M.check(kernel, lang)
  local frame = reader.frame(kernel.f, kernel.proto)
  local c = setmetatable({ name = kernel.name, lang = lang, captures = {}, frame = frame, source = frame.source },
    reader.Context)
  if kernel.proto.vararg then c:fail("a kernel has no `...`; it has named parameters") end
  local regs = {}
  for pc, i in ipairs(kernel.proto.code) do
    frame.pc = pc
    if refused[i.op] then c:fail("not allowed in a kernel: %s", refused[i.op]) end
    follow(c, frame, i, regs)
  end
end

return M
