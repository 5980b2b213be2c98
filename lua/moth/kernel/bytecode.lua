--- Reads the bytecode of a Lua function, as string.dump writes it: LuaJIT 2.1's format (version 2), with or without
-- debug information. string.dump undoes what the JIT compiler has patched, and has the descriptors of upvalues.
--
-- read(dump) -> proto, or nil and a message if the text is not such a dump (of any kind: nothing here trusts a length):
--   nparams, framesize, first (line of the function), vararg
--   code[pc] = { op = "ADDVV", a, b, c, d, line }    pc from 1; line nil where it was stripped
--   strings…: kgc[index] (a string, { table }, { child }), numbers: kn[index], indices from 0 as operands have them
--   uv[i] = descriptor, uvnames[i], params[i] = names, nil where stripped
local bit = require "bit"
local ffi = require "ffi"
local each = require "moth.each"

local M = {}

local names = {}
for name in ([[ISLT ISGE ISLE ISGT ISEQV ISNEV ISEQS ISNES ISEQN ISNEN ISEQP ISNEP ISTC ISFC IST ISF ISTYPE ISNUM
  MOV NOT UNM LEN ADDVN SUBVN MULVN DIVVN MODVN ADDNV SUBNV MULNV DIVNV MODNV ADDVV SUBVV MULVV DIVVV MODVV POW CAT KSTR
  KCDATA KSHORT KNUM KPRI KNIL UGET USETV USETS USETN USETP UCLO FNEW TNEW TDUP GGET GSET TGETV TGETS TGETB
  TGETR TSETV TSETS TSETB TSETM TSETR CALLM CALL CALLMT CALLT ITERC ITERN VARG ISNEXT RETM RET RET0 RET1 FORI
  JFORI FORL IFORL JFORL ITERL IITERL JITERL LOOP ILOOP JLOOP JMP]]):gmatch("%S+") do
  names[#names + 1] = name
end

-- What the running LuaJIT calls them has to agree: a fork may have other numbers.
local function agrees()
  local ok, vmdef = pcall(require, "jit.vmdef")
  if not ok or type(vmdef.bcnames) ~= "string" then return true end -- nothing to compare with
  for i, name in ipairs(names) do
    if vmdef.bcnames:sub(i * 6 - 5, i * 6):gsub("%s+$", "") ~= name then return false, name end
  end
  return true
end

local Reader = {}
Reader.__index = Reader

-- All errors of reading are this table, so that a mistake of this file is not taken for one of the dump.
local Bad = {}
local function bad(text) error(setmetatable({ text = text }, Bad), 0) end

function Reader:byte()
  local b = self.text:byte(self.at)
  if not b then bad "it ends too early" end
  self.at = self.at + 1
  return b
end

function Reader:bytes(n)
  if n < 0 or self.at + n - 1 > #self.text then bad "it ends too early" end
  local s = self.text:sub(self.at, self.at + n - 1)
  self.at = self.at + n
  return s
end

function Reader:uleb()
  local v, scale = 0, 1
  for _ = 1, 5 do
    local b = self:byte()
    v = v + bit.band(b, 127) * scale
    if b < 128 then return v end
    scale = scale * 128
  end
  bad "a number is too long"
end

-- A count of things that take at least `size` bytes each.
function Reader:count(size, n)
  if n * size > #self.text - self.at + 1 then bad "a count is too large" end
  return n
end

local double = ffi.new("union { double d; uint32_t u[2]; }")
local function number(lo, hi)
  double.u[0], double.u[1] = lo, hi
  return tonumber(double.d)
end

function Reader:table_item()
  local kind = self:uleb()
  if kind == 0 then return nil end
  if kind == 1 or kind == 2 then return kind == 2 end
  if kind == 3 then
    local v = self:uleb()
    return tonumber(ffi.cast("int32_t", ffi.cast("uint32_t", v)))
  end
  if kind == 4 then
    local lo = self:uleb()
    return number(lo, self:uleb())
  end
  return self:bytes(kind - 5)
end

function Reader:constant()
  local kind = self:uleb()
  if kind == 0 then return { child = true } end
  if kind == 1 then
    local narray, nhash = self:uleb(), self:uleb()
    local t = {}
    self:count(1, narray)
    for i = 0, narray - 1 do t[i] = self:table_item() end
    self:count(2, nhash)
    for _ = 1, nhash do
      local key = self:table_item()
      local value = self:table_item()
      if key == nil or key ~= key then bad "a table has no key" end
      t[key] = value
    end
    return { table = t }
  elseif kind == 2 or kind == 3 then
    local lo = self:uleb()
    return { cdata = true, lo, self:uleb() }
  elseif kind == 4 then
    for _ = 1, 4 do self:uleb() end
    return { cdata = true }
  end
  return self:bytes(kind - 5)
end

local two = { ISLT = true, ISGE = true, ISLE = true, ISGT = true } -- operands A and D
local jumps = { JMP = true, FORI = true, FORL = true, ITERL = true, LOOP = true, ISNEXT = true, UCLO = true }
for name in each { ISEQV = 1, ISNEV = 1, ISEQS = 1, ISNES = 1, ISEQN = 1, ISNEN = 1, ISEQP = 1, ISNEP = 1, ISTC = 1,
  ISFC = 1, IST = 1, ISF = 1 } do
  two[name] = true
end
M.tests = two

-- What a compiled loop has been patched to, which string.dump undoes; as it is, it is the same loop.
local plain = { IFORL = "FORL", IITERL = "ITERL", ILOOP = "LOOP" }

function Reader:proto(big_endian, stripped)
  local p = { code = {}, kgc = {}, kn = {}, uv = {}, uvnames = {}, params = {} }
  local flags = self:byte()
  p.nparams, p.framesize = self:byte(), self:byte()
  p.vararg = bit.band(flags, 2) ~= 0
  local nuv = self:byte()
  local nkgc, nkn, nbc = self:uleb(), self:uleb(), self:uleb()
  local ndebug, nlines = 0, 0
  if not stripped then
    ndebug = self:uleb()
    if ndebug > 0 then p.first, nlines = self:uleb(), self:uleb() end
  end
  if big_endian then bad "it is of a big-endian machine" end
  self:count(4, nbc)
  for pc = 1, nbc do
    local op, a, c, b = self:bytes(4):byte(1, 4)
    local name = names[op + 1]
    if not name then bad(("instruction %d is of no kind that is known"):format(pc)) end
    name = plain[name] or name
    local i = { op = name, a = a, b = b, c = c, d = c + 256 * b }
    if jumps[name] then
      i.to = pc + 1 + i.d - 0x8000
      if i.to < 1 or i.to > nbc + 1 then bad(("instruction %d jumps outside"):format(pc)) end
    end
    p.code[pc] = i
  end
  for pc, i in ipairs(p.code) do
    local follows = p.code[pc + 1]
    if two[i.op] and not (follows and follows.op == "JMP") then bad(("instruction %d has no jump"):format(pc)) end
  end
  for i = 0, nuv - 1 do p.uv[i] = self:byte() + 256 * self:byte() end
  self:count(1, nkgc)
  for i = nkgc - 1, 0, -1 do p.kgc[i] = self:constant() end
  self:count(1, nkn)
  for i = 0, nkn - 1 do
    local first = self:byte() -- a number of 33 bits: the lowest says that it is a double
    self.at = self.at - 1
    local v = self:uleb33()
    p.kn[i] = first % 2 == 1 and number(v, self:uleb()) or tonumber(ffi.cast("int32_t", ffi.cast("uint32_t", v)))
  end
  if ndebug > 0 then self:debug(p, ndebug, nbc, nlines, nuv) end
  return p
end

function Reader:uleb33()
  local b = self:byte()
  local v, scale = math.floor(bit.band(b, 127) / 2), 64
  if b < 128 then return v end
  for _ = 1, 4 do
    b = self:byte()
    v = v + bit.band(b, 127) * scale
    if b < 128 then return v % 2 ^ 32 end
    scale = scale * 128
  end
  bad "a number is too long"
end

function Reader:debug(p, ndebug, nbc, nlines, nuv)
  local stop = self.at + self:count(1, ndebug)
  local size = nlines < 256 and 1 or nlines < 65536 and 2 or 4
  self:count(size, nbc)
  for pc = 1, nbc do
    local line, scale = 0, 1
    for _ = 1, size do
      line, scale = line + self:byte() * scale, scale * 256
    end
    p.code[pc].line = p.first + line
  end
  local function name()
    local from = self.at
    local last = self.text:find("\0", from, true)
    if not last or last >= stop then bad "a name does not end" end
    self.at = last + 1
    return self.text:sub(from, last - 1)
  end
  for i = 0, nuv - 1 do p.uvnames[i] = name() end
  local slot = 0 -- locals come in the order of their first instruction: parameters first
  while self.at < stop and slot < p.nparams do
    local kind = self.text:byte(self.at)
    if kind == 0 then break end
    if kind < 7 then break end -- of a loop: those are no parameters
    local text = name()
    local start = self:uleb()
    self:uleb()
    if start ~= 0 then break end
    slot = slot + 1
    p.params[slot] = text
  end
  self.at = stop
end

local function read(text)
  local r = setmetatable({ text = text, at = 1 }, Reader)
  if text:sub(1, 3) ~= "\27LJ" then bad "it is not bytecode of LuaJIT" end
  r.at = 4
  local version = r:byte()
  if version ~= 2 then bad(("it is of version %d, not 2"):format(version)) end
  local flags = r:uleb()
  local stripped, two_slots = bit.band(flags, 2) ~= 0, bit.band(flags, 8) ~= 0
  local chunk = not stripped and r:bytes(r:uleb()) or nil
  local last
  while true do
    local size = r:uleb()
    if size == 0 then break end
    local from = r.at
    last = r:proto(bit.band(flags, 1) ~= 0, stripped)
    if r.at ~= from + size then bad "a function has another size than it says" end
  end
  if not last then bad "it has no function" end
  last.chunk, last.call_gap = chunk, two_slots and 2 or 1 -- slots of a call before its arguments
  return last
end

--- A dump as a table, or nil and why it is none.
function M.read(text)
  local ok, result = pcall(read, text)
  if ok then return result end
  if getmetatable(result) ~= Bad then error(result, 0) end
  return nil, result.text
end

--- The function as a table; nil and why not: a C function, or a LuaJIT whose bytecode is another one.
function M.of(f)
  local ok, name = agrees()
  if not ok then return nil, ("this LuaJIT has other bytecode (%s)"):format(name) end
  local dumped, text = pcall(string.dump, f)
  if not dumped then return nil, "it is a C function" end
  return M.read(text)
end

return M
