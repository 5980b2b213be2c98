--- The control flow of bytecode: where jumps lead, where two ways meet again, what loops write.
local bytecode = require "moth.kernel.bytecode"
local each = require "moth.each"

local M = {}

M.returns = { RET = true, RET0 = true, RET1 = true, RETM = true, CALLT = true, CALLMT = true }

-- Where jumps lead: through jumps to jumps, also back to the head of an outer loop. LuaJIT itself does so with some.
function M.resolve(p, pc)
  for _ = 1, #p.code do
    local i = p.code[pc]
    if not i or i.op ~= "JMP" or (p.code[i.to] and p.code[i.to].op == "ITERC") then return pc end
    pc = i.to
  end
  return pc
end

-- loops[header] = last instruction of it, of the loops that are made of jumps backwards.
function M.find_loops(p)
  local loops = {}
  for pc, i in ipairs(p.code) do
    if i.op == "JMP" and i.to <= pc then loops[i.to] = math.max(loops[i.to] or 0, pc) end
  end
  p.loops = loops
end

-- Where a loop is left to: the first instruction behind it.
function M.loop_exit(p, header) return M.resolve(p, p.loops[header] + 1) end

local function successors(frame, pc)
  local p = frame.p
  local i = p.code[pc]
  if not i then return {} end
  if p.loops[pc] and not (frame.loop and frame.loop.header == pc) then return { M.loop_exit(p, pc) } end
  if bytecode.tests[i.op] then return { pc + 2, M.resolve(p, p.code[pc + 1].to) } end
  if i.op == "JMP" then
    local target = p.code[i.to]
    if target and target.op == "ITERC" then return { M.resolve(p, i.to + 2) } end
    return { M.resolve(p, i.to) }
  elseif i.op == "FORI" then
    return { M.resolve(p, i.to) }
  elseif i.op == "UCLO" then
    return { i.to }
  elseif M.returns[i.op] then
    return (frame.inlined or pc == #p.code) and { #p.code + 1 } or {} -- an early return leads nowhere
  end
  return { pc + 1 }
end

-- Whether pc is outside of the loop that is being read.
function M.leaves(frame, pc)
  local l = frame.loop
  return l and (pc < l.first or pc > l.last)
end

-- All that can be reached from pc without `without`, up to `stop`.
local function reach(frame, pc, stop, without, seen)
  seen = seen or {}
  if pc == without or seen[pc] or (M.leaves(frame, pc) and pc ~= stop) then return seen end
  seen[pc] = true
  if pc == stop then return seen end
  for _, to in ipairs(successors(frame, pc)) do reach(frame, to, stop, without, seen) end
  return seen
end

-- Where two ways meet again, at the latest `stop`.
function M.meeting(frame, a, b, stop)
  local of_a, of_b, both = reach(frame, a, stop), reach(frame, b, stop), {}
  for pc in each(of_a) do
    if of_b[pc] and pc ~= stop then both[#both + 1] = pc end
  end
  table.sort(both)
  for _, pc in ipairs(both) do
    if not reach(frame, a, stop, pc)[stop] and not reach(frame, b, stop, pc)[stop] then return pc end
  end
  return stop
end

-- The registers that instructions write.
local writers = {}
for name in ([[MOV NOT UNM LEN ADDVN SUBVN MULVN DIVVN MODVN ADDNV SUBNV MULNV DIVNV MODNV ADDVV SUBVV MULVV DIVVV MODVV
  POW CAT KSTR KCDATA KSHORT KNUM KPRI UGET FNEW TNEW TDUP GGET TGETV TGETS TGETB TGETR ISTC ISFC]]):gmatch("%S+") do
  writers[name] = true
end
function M.written(p, first, last)
  local set = {}
  for pc = first, last do
    local i = p.code[pc]
    if writers[i.op] then
      set[i.a] = true
    elseif i.op == "KNIL" then
      for r = i.a, i.d do set[r] = true end
    elseif i.op == "CALL" or i.op == "CALLM" then
      for r = i.a, i.a + math.max(i.b - 2, 0) do set[r] = true end
    elseif i.op == "FORI" then
      for r = i.a, i.a + 3 do set[r] = true end
    elseif i.op == "ITERC" or i.op == "ITERN" then
      for r = i.a, i.a + i.b - 2 do set[r] = true end
    end
  end
  return set
end

return M
