-- Programs of the tile IR as functions of the kernel language (docs/kernel.md), for moth.kernel.jit: what generated
-- kernels look like to their readers. The program is one that has not been prepared.
local tile = require "moth.codegen.tile"

local M = {}

local infix = { add = "+", sub = "-", mul = "*", div = "/" }
local renamed = { div_floor = "floordiv", bitwise_or = "logical_or", bitwise_and = "logical_and" }
local LONGEST = 60 -- of a text that is put into another

local function number(v)
  if v ~= v then return "(0 / 0)" end
  if v == math.huge then return "(1 / 0)" end
  if v == -math.huge then return "(-1 / 0)" end
  local text = v == math.floor(v) and math.abs(v) < 2 ^ 53 and ("%.0f"):format(v) or ("%.17g"):format(v)
  return (v < 0 or 1 / v < 0) and "(" .. text .. ")" or text
end

local Printer = {}
Printer.__index = Printer

function Printer:put(text, ...)
  if select("#", ...) > 0 then text = text:format(...) end
  self.out[#self.out + 1] = ("  "):rep(self.indent) .. text
end

local function shape(list) return "{ " .. table.concat(list, ", ") .. " }" end

-- The text of a value: a name, or what it is.
function Printer:text(n)
  if n.op == "const" then
    if n.d.class == "bool" then return n.value ~= 0 and "true" or "false" end
    return number(n.value)
  end
  if n.op == "broadcast" then return self:text(n[1]) end
  return assert(self.texts[n], n.op)
end

-- Whether an addition or product of a record is Lua's.
local function operator(n)
  if not n.exact then return infix[n.name] end
  local alpha = n[3]
  while alpha and alpha.op == "broadcast" do alpha = alpha[1] end
  local plain = alpha and alpha.op == "const" and alpha.value == 1
  return (plain or n.name ~= "add" and n.name ~= "sub") and infix[n.name] or nil
end

function Printer:apply(n)
  local list = {}
  for i, x in ipairs(n) do list[i] = self:text(x) end
  local op = n.compute.is_float == n.d.is_float and operator(n)
  if op then return ("(%s %s %s)"):format(list[1], op, list[2]) end
  if not n.exact then return ("tl.%s(%s)"):format(renamed[n.name] or n.name, table.concat(list, ", ")) end
  table.insert(list, 1, ('"%s", tl.%s'):format(n.name, n.compute.name))
  return ("tl.formula(%s)"):format(table.concat(list, ", "))
end

function Printer:value(n)
  if n.op == "param" then return self.names[n.index] end
  if n.op == "program_id" then return ("tl.program_id(%d)"):format(n.axis) end
  if n.op == "arange" then return ("tl.arange(%d, %d)"):format(n.lo, n.lo + n.shape[1]) end
  if n.op == "apply" then return self:apply(n) end
  if n.op == "cast" then return ("tl.cast(%s, tl.%s)"):format(self:text(n[1]), n.d.name) end
  if n.op == "where" then
    return ("tl.where(%s, %s, %s)"):format(self:text(n[1]), self:text(n[2]), self:text(n[3]))
  end
  if n.op == "expand" then return ("tl.expand(%s, %d)"):format(self:text(n[1]), n.dim) end
  if n.op == "permute" then return ("tl.permute(%s, %s)"):format(self:text(n[1]), shape(n.dims)) end
  if n.op == "reshape" then return ("tl.reshape(%s, %s)"):format(self:text(n[1]), shape(n.shape)) end
  if n.op == "load" then
    local mask = n[2] and (", { mask = %s, other = %s }"):format(self:text(n[2]), self:text(n[3])) or ""
    return ("tl.load(%s + %s%s)"):format(self.names[n.root], self:text(n[1]), mask)
  end
  if n.op == "reduce" then return ("tl.%s(%s%s)"):format(n.kind, self:text(n[1]), n.dim and ", " .. n.dim or "") end
  if n.op == "var" then return "V" .. n.var.id end
  error("a program for readers has no '" .. n.op .. "'", 0)
end

local in_place = { apply = true, cast = true, where = true, param = true, arange = true, program_id = true }

function Printer:statement(s)
  if s.op == "store" then
    local mask = s[3] and (", { mask = %s }"):format(self:text(s[3])) or ""
    self:put("tl.store(%s + %s, %s%s)", self.names[s.root], self:text(s[1]), self:text(s[2]), mask)
  elseif s.op == "assign" then
    local x = s[1]
    local text = self:text(x)
    if x.op == "broadcast" then
      text = ("tl.full(%s, %s, tl.%s)"):format(shape(x.shape), text, x.d.name)
    elseif x.op == "const" then
      text = ("tl.cast(%s, tl.%s)"):format(text, x.d.name)
    end
    self:put("%sV%d = %s", self.known[s.var] and "" or "local ", s.var.id, text)
    self.known[s.var] = true
  elseif s.op == "for" then
    self.texts[s.index] = "i" .. s.index.id
    self:put("for i%d = %s, %s, %d do", s.index.id, self:text(s[1]), self:text(s[2]), s.step)
    self:list(s.body)
    self:put("end")
  elseif s.op == "if" then
    self:put("if %s then", self:text(s[1]))
    self:list(s.yes)
    if #s.no > 0 then
      self:put("else")
      self:list(s.no)
    end
    self:put("end")
  elseif s.op ~= "const" and s.op ~= "index" and s.op ~= "broadcast" and self.uses[s] then
    local text = self:value(s)
    if s.op == "param" or in_place[s.op] and self.uses[s] == 1 and #text <= LONGEST then
      self.texts[s] = text
    else
      self:put("local v%d = %s", s.id, text)
      self.texts[s] = "v" .. s.id
    end
  end
end

function Printer:list(list)
  self.indent = self.indent + 1
  for _, s in ipairs(list) do self:statement(s) end
  self.indent = self.indent - 1
end

-- How often values are used, through views that are not written.
local function count(list, uses)
  for i = #list, 1, -1 do
    local s = list[i]
    for _, part in ipairs { s.body or {}, s.no or {}, s.yes or {} } do count(part, uses) end
    local effect = s.op == "store" or s.op == "assign" or s.op == "for" or s.op == "if"
    if effect or uses[s] then
      for k = 1, tile.OPERANDS do
        if s[k] then uses[s[k]] = (uses[s[k]] or 0) + (s.op == "broadcast" and uses[s] or 1) end
      end
    end
  end
end

--- The function of a program as text: "function(out, in, …) … end". names: of its parameters, in their order.
function M.print(prog, names)
  local self = setmetatable({ out = {}, indent = 0, texts = {}, uses = {}, known = {}, names = {} }, Printer)
  for i, name in ipairs(names) do self.names[i - 1] = name end
  count(prog.body, self.uses)
  self:list(prog.body)
  return ("function(%s)\n%s\nend"):format(table.concat(names, ", "), table.concat(self.out, "\n"))
end

return M
