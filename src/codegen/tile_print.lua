-- Prints programs of the tile IR as C and as CUDA C++. Both have the same shape: scalars are constants of the function,
-- blocks are computed in loops over their elements; the dialects (tile_c.lua, tile_cuda.lua) say how such a loop is
-- written, how reductions, scans, products and atomics are, and where arrays lie.
local plan = require "moth.codegen.tile_plan"
local tile = require "moth.codegen.tile"

local M = {}

local Printer = {}
Printer.__index = Printer
M.Printer = Printer

local function real(d) return d.real end
-- A truth is an int while it is computed with: gcc makes no vectors of bytes beside doubles.
local function local_type(d) return d.class == "bool" and "int" or d.real end
--- C type of an element in memory.
function M.stored(d) return d.form ~= 0 and "unsigned short" or d.real end

-- ---- text ---------------------------------------------------------------------------------------

function Printer:put(text, ...)
  if select("#", ...) > 0 then text = text:format(...) end
  self.out[#self.out + 1] = ("  "):rep(self.indent) .. text
end
function Printer:open(text, ...)
  self:put(text, ...)
  self.indent = self.indent + 1
end
function Printer:close(text)
  self.indent = self.indent - 1
  self:put(text or "}")
end

--- The name of a formula of kernels/math*.h in this file.
function Printer:formula(name, d)
  local full = "m_" .. name
  if not self.formulas.has(full, d.kind) then
    error(("there is no formula '%s' for %s"):format(name, d.name), 0)
  end
  local key = full .. " " .. d.suffix
  if not self.used[key] then
    self.used[key] = true
    self.uses[#self.uses + 1] = { full, d }
  end
  return self.formulas.name(full, d)
end

--- A number as C writes it; `p` is the printer.
function M.literal(p, v, d)
  if d.class == "bool" then return v ~= 0 and "1" or "0" end
  if d.is_float then
    local double = d.name == "float64"
    if v ~= v then return p:formula("nan", d) .. "()" end
    if v == math.huge or v == -math.huge then return (v < 0 and "(-" or "(") .. p:formula("inf", d) .. "())" end
    local text = (double and "%.17g" or "%.9g"):format(v)
    if not text:find("[.e]") then text = text .. ".0" end
    if not double then text = text .. "f" end
    return (v < 0 or 1 / v < 0) and "(" .. text .. ")" or text
  end
  local text = ("%.0f"):format(v)
  if text == "-9223372036854775808" then return "(-9223372036854775807LL - 1)" end
  local suffix = d.name == "uint64" and "ULL" or d.size == 8 and "LL" or ""
  return v < 0 and ("(%s%s)"):format(text, suffix) or text .. suffix
end

-- ---- values -------------------------------------------------------------------------------------

local infix = { lt = "<", le = "<=", gt = ">", ge = ">=", eq = "==", ne = "!=", bitwise_and = "&", bitwise_or = "|",
  bitwise_xor = "^", add = "+", sub = "-", mul = "*" }

-- What converts text of a dtype to another.
function Printer:cast(text, from, to)
  if from == to then return text end
  if to.class == "bool" then return ("(%s)(%s != 0)"):format(real(to), text) end
  if from.class == "bool" and to.form == 0 then return ("(%s ? (%s)1 : (%s)0)"):format(text, real(to), real(to)) end
  if to.form ~= 0 then
    local half = to.form == 1 and "f16" or "bf16"
    local wide = from.name == "float64" or not from.is_float
    local narrow = self:formula(("%s_to_%s"):format(wide and "f64" or "f32", half), to)
    return ("%s(%s(%s))"):format(self:formula(half .. "_to_f32", to), narrow, wide and "(double)" .. text or text)
  end
  if to.is_float or not from.is_float then return ("(%s)%s"):format(real(to), text) end
  return ("%s(%s)"):format(self:formula(from.real == "double" and "from_f64" or "from_f32", to), text)
end

--- The text of `apply` of texts.
function Printer:apply(n, list)
  local op, d = infix[n.name], n.compute
  if n.exact then return self.dialect.exact(self, n, list) end
  if op and (d.is_float or d.size == 8 or d.class == "bool") then
    local text = ("%s %s %s"):format(list[1], op, list[2])
    return n.d.class == "bool" and ("(%s)(%s)"):format(real(n.d), text) or text
  elseif n.name == "div" then
    return ("%s / %s"):format(list[1], list[2])
  elseif n.name == "neg" and d.is_float then
    return "-" .. list[1]
  elseif n.name == "logical_not" or n.name == "bitwise_not" and d.class == "bool" then
    return ("(%s)!%s"):format(real(n.d), list[1])
  end
  return ("%s(%s)"):format(self:formula(n.name, d), table.concat(list, ", "))
end

local accesses = { "load of", "store to", "atomic on" }
local access_number = { ["load of"] = 0, ["store to"] = 1, ["atomic on"] = 2 }

--- Of a program whose accesses are checked (o.checked of M.body): the text of whether an offset of statement s lies in
-- its buffer. If it does not, the launch notes the first such access, as M.fault reads it. The buffer has as many
-- elements as the argument `reach` of its pointer says.
function Printer:inside(s, offset, what)
  self:helper("inside", self.dialect.inside)
  local place = s.place or self.last_place or ""
  if not self.sites[place] then
    table.insert(self.sites, place)
    self.sites[place] = #self.sites
  end
  return ("MOTH_IN(%d, %s, %d, %d)"):format(s.root, offset, s.root * #accesses + access_number[what] + 1,
    self.sites[place])
end

--- What is noted of an access outside of its buffer, { which, offset, site, program }: the number of the pointer among
-- the parameters, from 1, what was done ("load of") and where the statement stands. sites: of the printer.
function M.fault(noted, sites)
  local which = noted[1] - 1
  return math.floor(which / #accesses) + 1, accesses[which % #accesses + 1], sites[noted[3]]
end

--- The text of an element in memory as a value; of a value as what is stored.
function Printer:read_memory(text, d)
  if d.form ~= 0 then
    return ("%s(%s)"):format(self:formula((d.form == 1 and "f16" or "bf16") .. "_to_f32", d), text)
  end
  return d.class == "bool" and ("(%s)(%s != 0)"):format(real(d), text) or text
end
function Printer:write_memory(text, d)
  if d.form ~= 0 then
    return ("%s(%s)"):format(self:formula("f32_to_" .. (d.form == 1 and "f16" or "bf16"), d), text)
  end
  return text
end

--- Position in an array of a shape: idx is a list of texts, one for each dimension.
function M.flat(shape, idx)
  local parts, stride = {}, 1
  for k = #shape, 1, -1 do
    if shape[k] > 1 and idx[k] ~= "0" then
      table.insert(parts, 1, stride == 1 and idx[k] or ("%s * %d"):format(idx[k], stride))
    end
    stride = stride * shape[k]
  end
  return #parts > 0 and table.concat(parts, " + ") or "0"
end

-- Positions of a view's operand.
local function behind(n, idx)
  local x, out = n[1], {}
  if n.op == "broadcast" then
    local skip = #n.shape - #x.shape
    for k, size in ipairs(x.shape) do out[k] = size == 1 and "0" or idx[k + skip] end
  elseif n.op == "expand" then
    for k = 1, #idx do
      if k ~= n.dim then out[#out + 1] = idx[k] end
    end
  elseif n.op == "permute" then
    for k, dim in ipairs(n.dims) do out[dim] = idx[k] end
  else
    local flat, stride = M.flat(n.shape, idx), tile.numel(x.shape)
    for k, size in ipairs(x.shape) do
      stride = stride / size
      local text = stride == 1 and "(" .. flat .. ")" or ("((%s) / %d)"):format(flat, stride)
      if k > 1 then text = ("(%s %% %d)"):format(text, size) end
      out[k] = size == 1 and "0" or text
    end
  end
  return out
end

-- The name of the array or scalar of a node.
local function name_of(n) return (n.op == "var" and not n.array and "V" .. n.var.id) or "v" .. n.id end
M.name_of = name_of

--- The element of a node at positions, within the loop that is being printed: a name or a literal. What it needs is
-- printed at the level of the innermost loop that the positions name.
function Printer:element(n, idx)
  if n.op == "const" then return M.literal(self, n.value, n.d) end
  if self.loop.holds[n] then return "1" end
  if #n.shape == 0 then return "v" .. n.id end
  if plan.views[n.op] and not (n.array and not self.loop.filling[n]) then return self:element(n[1], behind(n, idx)) end
  local key = n.id .. "@" .. table.concat(idx, ",")
  local known = self.loop.memo[key]
  if known then return known end
  local text
  if n.op == "arange" then
    text = ("(long long)(%s) + %d"):format(idx[1], n.lo)
  elseif n.array and not self.loop.filling[n] then
    text = ("v%d[%s]"):format(n.id, M.flat(n.shape, idx))
  elseif n.op == "var" then
    text = ("V%d[%s]"):format(n.var.id, M.flat(n.shape, idx))
  else
    local list = {}
    local mask = n.op == "where" and n[1] or n.op == "load" and n[2]
    for i, x in ipairs(n) do
      list[i] = i == 3 and mask and self.loop.holds[mask] and "0" or self:element(x, idx)
    end
    text = self:value(n, list)
  end
  local name = ("t%d_%d"):format(n.id, self.loop.count)
  self.loop.count = self.loop.count + 1
  self:line(idx, ("const %s %s = %s;"):format(local_type(n.d), name, text))
  self.loop.memo[key] = name
  return name
end

-- The text of a value of texts.
function Printer:value(n, list)
  if n.op == "apply" then return self:apply(n, list) end
  if n.op == "cast" then return self:cast(list[1], n[1].d, n.d) end
  if n.op == "where" then
    return list[1] == "1" and list[2] or ("%s ? %s : %s"):format(list[1], list[2], list[3])
  end
  if n.op == "load" then
    local text = ("p%d[%s]"):format(n.root, list[1])
    if self.checked then text = ("(%s ? %s : 0)"):format(self:inside(n, list[1], "load of"), text) end
    text = self:read_memory(text, n.d)
    return list[2] and list[2] ~= "1" and ("%s ? %s : %s"):format(list[2], text, list[3]) or text
  end
  error("a tile program has the value '" .. n.op .. "' where there can be none", 0)
end

--- Prints a line at the level of positions.
function Printer:line(idx, text)
  local level = 0
  for _, one in ipairs(idx) do
    for k in one:gmatch("i(%d+)") do level = math.max(level, self.loop.level[tonumber(k)]) end
  end
  table.insert(self.loop.lines[level], text)
end

-- ---- bounds -------------------------------------------------------------------------------------

-- The loop's dimensions behind a view's: a list with false where the operand has one element.
local function dims_behind(n, dims)
  local x, out = n[1], {}
  if n.op == "broadcast" then
    local skip = #n.shape - #x.shape
    for k, size in ipairs(x.shape) do out[k] = size > 1 and dims[k + skip] end
  elseif n.op == "expand" then
    for k, dim in ipairs(dims) do
      if k ~= n.dim then out[#out + 1] = dim end
    end
  elseif n.op == "permute" then
    for k, dim in ipairs(n.dims) do out[dim] = dims[k] end
  else
    return nil
  end
  return out
end

-- The text of a block that is one number for all; nil: it is not.
function Printer:uniform(n)
  while n.op == "broadcast" or n.op == "expand" do n = n[1] end
  return #n.shape == 0 and self:element(n, {}) or nil
end

-- Of integers that grow by one along a dimension of the loop: that dimension, and the text of the first one.
function Printer:growing(n, dims)
  if n.op == "arange" then return dims[1], tostring(n.lo) end
  if n.op == "apply" and n.name == "add" and n.compute.name == "int64" then
    for k = 1, 2 do
      local start = self:uniform(n[k])
      if start then
        local dim, first = self:growing(n[3 - k], dims)
        return dim, dim and ("%s + %s"):format(start, first)
      end
    end
  elseif plan.views[n.op] then
    local behind_it = dims_behind(n, dims)
    if behind_it then return self:growing(n[1], behind_it) end
  end
end

-- Adds to `bounds` ([dim] = list of texts: how many elements of the dimension) where mask n is true, and to its
-- `holds` the masks that say so. Returns whether n is nothing but such bounds.
function Printer:bound(n, dims, bounds)
  local all = false
  if n.op == "apply" and n.name == "bitwise_and" then
    local one, other = self:bound(n[1], dims, bounds), self:bound(n[2], dims, bounds)
    all = one and other
  elseif n.op == "apply" and n.name == "lt" and n.compute.name == "int64" then
    local stop = self:uniform(n[2])
    local dim, first = self:growing(n[1], dims)
    if stop and dim then
      bounds[dim] = bounds[dim] or {}
      table.insert(bounds[dim], ("%s - (%s)"):format(stop, first))
      all = true
    end
  elseif plan.views[n.op] and not n.array then
    local behind_it = dims_behind(n, dims)
    all = behind_it and self:bound(n[1], behind_it, bounds) or false
  end
  if all then bounds.holds[n] = true end
  return all
end

--- Where a mask of a shape ends each dimension of a loop; nil: nowhere. For `bounds` of each_element, by dialects whose
-- loops run in order.
function Printer:bounds(mask, shape)
  if not mask or not self.dialect.bounded then return nil end
  local dims, bounds = {}, { holds = {} }
  for k, size in ipairs(shape) do dims[k] = size > 1 and k end
  self:bound(mask, dims, bounds)
  for k = 1, #shape do
    if bounds[k] then return bounds end
  end
  return nil
end

--- A loop over the elements of a shape. body(idx) prints into it by `line` and `element`. options: order of the
-- dimensions, `before` and `after`, lists of lines by level; simd, a clause; filling, a set of the arrays it fills;
-- bounds: what bounds() gave.
function Printer:each_element(shape, body, options)
  options = options or {}
  local order = options.order
  if not order then
    order = {}
    for k = 1, #shape do order[k] = k end
  end
  local loop = { memo = {}, lines = {}, level = {}, count = 0, shape = shape, order = order,
    filling = options.filling or {}, holds = options.bounds and options.bounds.holds or {} }
  local idx = {}
  for k = 0, #shape do loop.lines[k] = {} end
  for position, dim in ipairs(order) do
    loop.level[dim] = position
    idx[dim] = shape[dim] == 1 and "0" or "i" .. dim
  end
  local outer = self.loop
  self.loop = loop
  body(idx, loop)
  self.loop = outer
  self.dialect.loop(self, loop, options)
end

-- ---- statements ---------------------------------------------------------------------------------

-- Arrays that are filled ahead of a statement: those of one shape in one loop, unless one reads another elsewhere.
function Printer:fill(list)
  local i = 1
  local function reads(n, group)
    local found = false
    local function look(x, moved)
      if found or #x.shape == 0 then return end
      if group[x] then found = found or moved return end
      if x.array or plan.own[x.op] then return end
      for _, operand in ipairs(x) do look(operand, moved or plan.views[x.op]) end
    end
    for _, operand in ipairs(n) do look(operand, plan.views[n.op]) end
    return found
  end
  while i <= #list do
    local group, members = {}, {}
    local shape = list[i].shape
    while i <= #list and tile.same(list[i].shape, shape) and not reads(list[i], group) do
      members[#members + 1] = list[i]
      group[list[i]] = true
      i = i + 1
    end
    for _, n in ipairs(members) do self.dialect.array(self, "v" .. n.id, n.d, n.shape) end
    self:each_element(shape, function(idx)
      for _, n in ipairs(members) do
        local text = self:element(n, idx)
        self.loop.memo[n.id .. "@" .. table.concat(idx, ",")] = text
        self:effect(("v%d[%s] = %s;"):format(n.id, M.flat(shape, idx), text))
      end
    end, { filling = group, simd = "" })
  end
end

--- A line with an effect: in the innermost loop.
function Printer:effect(text) table.insert(self.loop.lines[#self.loop.shape], text) end

local statements = {}

-- The line of an element of a store or an assignment, and what it needs ahead of it. `x`: the value to assign.
local function effect_of(p, s, x, idx)
  if s.op == "assign" then
    return ("V%d[%s] = %s;"):format(s.var.id, M.flat(s.shape, idx), p:element(x, idx))
  end
  local offset = p:element(s[1], idx)
  if x.op == "cast" and x.d == s.d and x.d.form ~= 0 and x[1].d.name == "float32" then x = x[1] end
  local value = p:element(x, idx)
  local mask = s[3] and p:element(s[3], idx)
  local condition = mask ~= "1" and mask or nil
  if p.checked then condition = (condition and condition .. " && " or "") .. p:inside(s, offset, "store to") end
  return ("%sp%d[%s] = %s;"):format(condition and ("if (%s) "):format(condition) or "", s.root, offset,
    p:write_memory(value, s.d))
end

-- The mask behind which nothing is stored, assigned or joined.
local function mask_of(s)
  local x = s[1]
  if s.op == "store" then return s[3] end
  if x.op ~= "where" then return nil end
  return (s.op == "reduce" or x[3].op == "var" and x[3].var == s.var and not x[3].array) and x[1] or nil
end

-- Those that share a loop (plan): all their values come before all their effects.
local function elements(p, s)
  if s.leader then return end
  local mask, group = mask_of(s), s.together or { s }
  local shape = s.op == "reduce" and s[1].shape or s.shape
  local bounds = p:bounds(mask, shape)
  local before, after, clauses, accumulators = {}, {}, {}, {}
  for _, one in ipairs(group) do
    if one.op == "assign" and bounds and not bounds.holds[mask] then bounds = nil end
    if one.op == "reduce" then
      local name, a = "v" .. one.id, p.dialect.accumulator(p, one, "acc" .. one.id)
      p:put("%s %s;", one.d.real, name)
      accumulators[one] = a
      for _, text in ipairs(a.before) do before[#before + 1] = text end
      for _, text in ipairs(a.after) do after[#after + 1] = text end
      after[#after + 1] = ("%s = acc%d;"):format(name, one.id)
      clauses[#clauses + 1] = a.clause
    end
  end
  p:each_element(shape, function(idx)
    local effects = {}
    for _, one in ipairs(group) do
      local value = one.op == "store" and one[2] or one[1]
      if one.op == "assign" and bounds then value = value[2] end -- behind the bounds they stay
      if accumulators[one] then
        for _, text in ipairs(accumulators[one].effects(p:element(value, idx))) do effects[#effects + 1] = text end
      else
        effects[#effects + 1] = effect_of(p, one, value, idx)
      end
    end
    for _, text in ipairs(effects) do p:effect(text) end
  end, { simd = table.concat(clauses, " "), once = #shape == 0, bounds = bounds, before = { [0] = before },
    after = { after } })
end

statements.store = elements

function statements.assign(p, s)
  if s.skip then return end
  if #s.shape > 0 then return elements(p, s) end
  p:put("V%d = %s;", s.var.id, p:element(s[1], {}))
end

function statements.reduce(p, s)
  if s.together or s.leader then return elements(p, s) end
  p.dialect.reduce(p, s)
end
function statements.scan(p, s) p.dialect.scan(p, s) end
function statements.dot(p, s) p.dialect.dot(p, s) end
function statements.barrier(p) p.dialect.barrier(p) end

function statements.atomic(p, s)
  if #s.shape > 0 then p.dialect.array(p, "v" .. s.id, s.d, s.shape) end
  local result = #s.shape == 0 and p.dialect.shared_scalar(p, "v" .. s.id, s.d)
  p:each_element(s.shape, function(idx)
    local offset, value = p:element(s[1], idx), p:element(s[2], idx)
    local mask = s.mask and p:element(s[3], idx)
    local compare = s.kind == "cas" and p:element(s.mask and s[4] or s[3], idx)
    local call = ("%s(p%d + %s, %s%s)"):format(p.dialect.atomic(p, s.kind, s.d), s.root, offset,
      compare and compare .. ", " or "", value)
    if p.checked then call = ("(%s ? %s : 0)"):format(p:inside(s, offset, "atomic on"), call) end
    if mask then call = ("%s ? %s : 0"):format(mask, call) end
    p:effect(("%s = %s;"):format(result or ("v%d[%s]"):format(s.id, M.flat(s.shape, idx)), call))
  end, { once = #s.shape == 0 })
  if result then p.dialect.share_scalar(p, "v" .. s.id, s.d, result) end
end

statements["if"] = function(p, s)
  p:open("if (%s) {", p:element(s[1], {}))
  p:list(s.yes)
  if #s.no > 0 then
    p.indent = p.indent - 1
    p:open("} else {")
    p:list(s.no)
  end
  p:close()
end

statements["for"] = function(p, s)
  local lo, hi = p:element(s[1], {}), p:element(s[2], {})
  local i = s.index.id
  p:open("for (long long v%d = %s; v%d %s %s; v%d += %s) {", i, lo, i, s.step > 0 and "<=" or ">=", hi, i,
    M.literal(p, s.step, { size = 8, name = "int64" }))
  p:list(s.body)
  p.dialect.turn(p)
  p:close()
end

function statements.loop(p, s)
  p:open("for (;;) {")
  p:list(s.body)
  p.dialect.turn(p)
  p:close()
end

statements["break"] = function(p)
  p.dialect.turn(p)
  p:put("break;")
end
statements["return"] = function(p) p:put("return;") end

-- A scalar value.
local function scalar(p, s)
  if s.op == "const" then return end
  local text
  if s.op == "param" then
    text = p.dialect.param(p, s)
  elseif s.op == "program_id" then
    text = "pid" .. s.axis
  elseif s.op == "num_programs" then
    text = "programs" .. s.axis
  elseif s.op == "var" then
    text = "V" .. s.var.id
  else
    local list = {}
    for i, x in ipairs(s) do list[i] = p:element(x, {}) end
    text = p:value(s, list)
    if s.op == "load" and p.dialect.scalar_load(p, s, text) then return end
  end
  p:put("const %s v%d = %s;", real(s.d), s.id, text)
end

function Printer:list(list)
  local mark = self.shared_at -- arrays end with the list that they are made in
  for _, s in ipairs(list) do
    if s.before then self:fill(s.before) end
    local place = s.place
    if statements[s.op] then
      if place and place ~= self.last_place then
        self:put("/* %s */", (place:gsub("%*/", "* /")))
        self.last_place = place
      end
      statements[s.op](self, s)
    elseif s.op ~= "index" and #s.shape == 0 then
      if plan.views[s.op] then
        self:put("const %s v%d = %s;", real(s.d), s.id, self:element(s[1], {}))
      else
        scalar(self, s)
      end
    end
  end
  self.shared_at = mark
end

--- The statements of a prepared program, as the printer that wrote them and their text. o: prog, dialect, formulas (a
-- reader), texts (of files of kernels/), checked (whether each access to memory is: Printer:inside).
function M.body(o)
  local p = setmetatable({ prog = o.prog, dialect = o.dialect, formulas = o.formulas, used = {}, uses = {}, out = {},
    indent = 1, helpers = {}, helper_order = {}, threads = o.threads, checked = o.checked, sites = {} }, Printer)
  p.loop = { memo = {}, lines = { [0] = {} }, level = {}, count = 0, shape = {}, filling = {}, holds = {} }
  local vars = {}
  local function find(list)
    for _, s in ipairs(list) do
      if s.op == "assign" and not vars[s.var] then vars[s.var], vars[#vars + 1] = true, s.var end
      if s.body then find(s.body) end
      if s.yes then find(s.yes) find(s.no) end
    end
  end
  find(o.prog.body)
  table.sort(vars, function(a, b) return a.id < b.id end)
  for _, var in ipairs(vars) do
    if #var.shape == 0 then
      p:put("%s V%d;", real(var.d), var.id)
    else
      o.dialect.array(p, "V" .. var.id, var.d, var.shape)
    end
  end
  p:list(o.prog.body)
  return p, table.concat(p.out, "\n")
end

--- The formulas and helpers that texts of printers need.
function M.needs(printers, formulas)
  local done, parts, by_dtype, keys = {}, {}, {}, {}
  for _, p in ipairs(printers) do
    for _, use in ipairs(p.uses) do
      local d = use[2]
      local key = d.suffix .. d.kind
      if not by_dtype[key] then
        by_dtype[key] = { d = d }
        keys[#keys + 1] = key
      end
      table.insert(by_dtype[key], use[1])
    end
  end
  table.sort(keys)
  for _, key in ipairs(keys) do
    table.sort(by_dtype[key])
    parts[#parts + 1] = formulas.text(by_dtype[key], by_dtype[key].d, done)
  end
  for _, p in ipairs(printers) do
    for _, helper in ipairs(p.helper_order) do
      if not done[helper] then parts[#parts + 1] = helper end
      done[helper] = true
    end
  end
  return table.concat(parts, "\n")
end

--- The file of a prepared program, and the printer's sites; o as for body.
function M.print(o)
  local p, body = M.body(o)
  return o.dialect.file(p, o, M.needs({ p }, o.formulas), body), p.sites
end

--- Adds a function that the text needs, once.
function Printer:helper(name, text)
  if not self.helpers[name] then
    self.helpers[name] = true
    self.helper_order[#self.helper_order + 1] = text
  end
  return name
end

return M
