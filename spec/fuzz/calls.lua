--- Random calls of the ops, made of their schemas and samples: functions, methods, in-place, out=, by keyword, and
-- derivatives. A source of lines for spec/fuzz/api.lua: source(chance, program) gives a line and whether it is pure.
local B = require "moth_lua"
local P = require "fuzz.program"
local records = require "moth.ops_table"
local moth = require "moth"

local methods = require("moth.tensor").methods
local is_tensor = B.is_tensor

local entries = {}
for _, op in ipairs(records) do
  entries[#entries + 1] = { op = op, name = op.name }
  if op.inplace then entries[#entries + 1] = { op = op, name = op.name .. "_", inplace = true } end
end

local function sizes_text(list) return "{" .. table.concat(list, ",") .. "}" end

-- A tensor's place in the pool; the last ones more often.
local function somewhere(c) return c:int(P.POOL) end

local function alive(t) return is_tensor(t) and pcall(B.size, t) and t or nil end
local function shape_of(t) return t and B.size(t) or {} end

-- Sizes that nearly fit: those of self with one taken away, set to 1, another one, or one more.
local function near(c, shape)
  local out = { unpack(shape) }
  local n = c:int(10)
  if n <= 5 then return out end
  if n == 6 and #out > 0 then out[c:int(#out)] = 1
  elseif n == 7 and #out > 0 then table.remove(out, 1)
  elseif n == 8 then table.insert(out, c:int(#out + 1), c:int(0, 3))
  elseif n == 9 and #out > 0 then out[c:int(#out)] = c:int(0, 5)
  end
  return out
end

local fresh = P.fresh

local strings = { "'mean'", "'sum'", "'none'", "'constant'", "'reflect'", "'replicate'", "'circular'", "'x'", "''" }
local some_dtypes = { "'float32'", "'float64'", "'float16'", "'bfloat16'", "'int64'", "'int8'", "'uint8'", "'bool'",
  "moth.int32", "moth.int16", "'float31'" }

local make = {}
function make.TENSOR(c, a, self)
  local shape = shape_of(self)
  local dtype = self and B.tensor_dtype(self).name
  if a.name:find("ind") or a.name == "target" then
    if c:one_in(3) then return ("p[%d]"):format(somewhere(c)) end
    return ("I(%d,%s,'%s')"):format(shape[1] or 1, sizes_text(near(c, shape)), c:one_in(6) and "int32" or "int64")
  end
  if (a.name == "mask" or a.name == "condition") and not c:one_in(4) then
    return fresh(c, near(c, shape), "bool")
  end
  local n = c:int(10)
  if n <= 4 then return ("p[%d]"):format(somewhere(c)) end
  return fresh(c, near(c, shape), n <= 8 and dtype or nil)
end
function make.OPERAND(c, a, self)
  if c:one_in(3) then return c:one_in(8) and "true" or c:number() end
  return make.TENSOR(c, a, self)
end
function make.SCALAR(c) return c:one_in(12) and "true" or c:number() end
make.FLOAT = function(c) return c:number() end
make.INT = function(c) return c:integer() end
function make.BOOL(c) return c:one_in(2) and "true" or "false" end
function make.DIM(c, _, self)
  local d = #shape_of(self)
  if c:one_in(12) then return c:integer() end
  return tostring(c:one_in(2) and c:int(math.max(d, 1)) or -c:int(math.max(d, 1)))
end
function make.INDEX(c, _, self)
  if c:one_in(10) then return c:integer() end
  local n = shape_of(self)[1] or 1
  return tostring(c:one_in(2) and c:int(n + 1) or -c:int(n + 1))
end
function make.INTS(c, _, self)
  local shape, n = shape_of(self), c:int(12)
  if n <= 3 then return sizes_text(near(c, shape)) end
  if n == 4 then return sizes_text({ -1 }) end
  if n == 5 and #shape > 1 then
    local total = B.numel(self)
    return sizes_text({ total > 0 and shape[1] or 0, -1 })
  end
  if n == 6 then return c:integer() end
  local list = {}
  for i = 1, c:one_in(40) and c:pick({ 16, 40, 97 }) or c:int(0, 5) do
    list[i] = c:one_in(8) and c:integer() or tostring(c:int(0, 4))
  end
  return sizes_text(list)
end
function make.DIMS(c, a, self)
  local d, list = #shape_of(self), {}
  if c:one_in(6) then return make.DIM(c, a, self) end
  if c:one_in(2) then
    for i = 1, d do list[i] = i end
    for i = d, 2, -1 do
      local j = c:int(i)
      list[i], list[j] = list[j], list[i]
    end
  else
    for i = 1, c:int(0, 3) do list[i] = make.DIM(c, a, self) end
  end
  return sizes_text(list)
end
function make.TENSORS(c, a, self)
  local list = {}
  for i = 1, c:one_in(10) and 0 or c:int(3) do
    list[i] = i == 1 and self and "p[1]" or make.TENSOR(c, a, self)
  end
  return sizes_text(list)
end
function make.STRING(c) return c:pick(strings) end
function make.DTYPE(c) return c:pick(some_dtypes) end
function make.DEVICE(c, _, _, device)
  return c:one_in(6) and c:pick({ "'cuda:7'", "'tpu'", "'cpu'", "'cuda:-1'", "'cuda'" }) or ("'%s'"):format(device)
end
function make.GENERATOR(c) return c:one_in(4) and "nil" or "gen()" end

-- A call by the schema: self out of the pool, the others to go with it.
local function by_schema(c, op, program)
  local self, self_text
  local args, named = {}, {}
  local by_name = c:one_in(4) and #op.args > 1 and c:int(2, #op.args) or #op.args + 1
  for i, a in ipairs(op.args) do
    local text
    if a.type == "INDEX_BASE" then
      text = nil
    elseif a.default ~= nil and c:one_in(2) and i < by_name then
      by_name = i -- what comes after goes by name, or is left out
    elseif c:one_in(60) then
      text = c:oddity()
    elseif not self and (a.type == "TENSOR" or a.type == "OPERAND") then
      local k = somewhere(c)
      self_text = ("p[%d]"):format(k)
      self = alive(program.env.p[k])
      text = self_text
    else
      text = make[a.type](c, a, self, program.device)
    end
    if text then
      if i < by_name then args[#args + 1] = text
      elseif a.default == nil or c:one_in(2) then named[#named + 1] = a.name .. "=" .. text
      end
    end
  end
  return args, named, self
end

local function changes(op, inplace)
  if inplace or op.returns_self then return true end
  for _, a in ipairs(op.args) do if a.mutated then return true end end
  return false
end

-- The text of a call: as a function of moth, of the raw ops, or as a method.
local function call(c, name, args, whole)
  local form = c:int(4)
  if form == 1 and whole and args:find("^p%[%d+%]") and methods[name] == B.ops[name] then
    local self, rest = args:match("^(p%[%d+%]),?(.*)$")
    return ("%s:%s(%s)"):format(self, name, rest)
  end
  if form == 2 and rawget(moth, name) == B.ops[name] then return ("moth.%s(%s)"):format(name, args) end
  return ("ops.%s(%s)"):format(name, args)
end

-- A sample's text, some of its tensors out of the pool, some of its numbers changed.
local function by_sample(c, op)
  local text = c:pick(op.samples)
  while c:one_in(3) do text = c:change_number(text) end
  return (text:gsub("%f[%w_]randn%b()", function(t) return c:one_in(8) and ("p[%d]"):format(somewhere(c)) or t end))
end

local state_changes = { ":free()", ".grad = nil", ":retain_grad()", ":detach():zero_()", ".grad = p[1]:detach()",
  ".data:fill_(3)", ".data = p[2]" }

--- The next line: its text, whether it leaves its arguments as they are, what it is a call of.
return function(c, program, i)
  local n, p = c:int(100), program.env.p
  if i == 1 then return P.first_line(c), true, "pool" end
  local head = ("seed(%d,'%s','%s') "):format(c:int(99999), c:pick(c:one_in(3) and P.dtypes or P.floats),
    c:pick(P.layouts))
  local k = somewhere(c)
  if not p[k] or n <= 6 then
    return head .. ("K(%d, %s)"):format(k, P.some_tensor(c)), true, "T"
  end
  if n <= 12 then return head .. ("G(p[%d], %s)"):format(k, c:one_in(2) and "true" or "false"), true, "backward" end
  if n <= 17 then return head .. ("GG(p[%d], %d)"):format(k, somewhere(c)), true, "double backward" end
  if n == 18 and not program.plain then
    return ("p[%d]:requires_grad_(%s)"):format(k, c:one_in(3) and "false" or "true"), false, "requires_grad_"
  end
  if n == 19 then
    return ("p[%d]%s"):format(k, c:pick(state_changes)), false, "state"
  end
  local entry = c:pick(entries)
  local op = entry.op
  local pure = not changes(op, entry.inplace)
  local text
  if #op.samples > 0 and c:int(100) <= 45 then
    text = call(c, entry.name, by_sample(c, op))
  else
    local args, named = by_schema(c, op, program)
    if pure and op.nresults == 1 and c:one_in(12) then
      named[#named + 1] = ("out=p[%d]"):format(somewhere(c))
      pure = false
    end
    if #named > 0 then args[#args + 1] = "{" .. table.concat(named, ",") .. "}" end
    local other = c:int(4)
    args = table.concat(args, ",")
    local given = args == "" and "" or "," .. args
    if other == 1 and pure and not op.none then
      text = ("real_and_fake('%s'%s)"):format(op.name, given)
    elseif other == 2 and pure and op.kind == "pointwise" and #named == 0 then
      text = ("row_major('%s'%s)"):format(op.name, given)
    elseif other <= 2 and entry.inplace then
      text = ("in_place('%s'%s)"):format(op.name, given)
    else
      text = call(c, entry.name, args, true)
    end
  end
  if c:one_in(25) then return head .. ("moth.no_grad(function() K(%d, %s) end)"):format(k, text), pure, entry.name end
  text = head .. ("K(%d, %s)"):format(k, text)
  if pure and c:one_in(4) then text = text .. (" GG(p[%d], %d)"):format(k, somewhere(c)) end
  return text, pure, entry.name
end
