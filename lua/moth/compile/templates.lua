--- Code for graphs of any sizes: what moth.compile.inductor makes of a dynamic graph, with sizes as symbols.
--
-- A graph's form (C.graph_form) is all but its sizes; these are a list of numbers. Equal ones are one symbol
-- (moth.compile.symbols), but for 0, 1 and negative ones, which are constants. The calls that the graph is taken apart
-- into, and the kernels, are made with symbols: their arguments are formulas, and each comparison on the way is a
-- guard. For another graph of this form nothing is taken apart: where the guards hold, its calls are inserted with the
-- formulas' values, and must give the sizes that were expected.
local ffi = require "ffi"
local each = require "moth.each"
local sizes = require "moth.compile.sizes"
local symbols = require "moth.compile.symbols"
local within = require "moth.dispatch.within"
local B = require "moth_lua"
local C = B.compile

local size_of, stride_of, numel_of = B.size, B.stride, B.numel

local M = {}

local MOST_FORMS, MOST_OF_FORM = 256, 6 -- that are kept: forms, templates of one

-- ---- sizes of a graph -------------------------------------------------------------------------------

local doubles, bits = ffi.typeof "const double *", ffi.typeof "const int64_t *"

local function is_open(v) return v >= 2 and v < 2 ^ 53 or v % 1 ~= 0 and v == v and v > -2 ^ 53 and v < 2 ^ 53 end

--- The sizes of a graph as symbols: open:number(v), open:list(list), and of a fake that is computed from them
-- open:shape(fake), open:stride(fake). `bytes` are its sizes.
local Open = {}
Open.__index = Open

function Open.new(bytes)
  local self = setmetatable({ bytes = bytes, n = #bytes / 8, first = {}, leaves = {},
    shapes = setmetatable({}, { __mode = "k" }) }, Open)
  local v = ffi.cast(doubles, bytes)
  for i = 0, self.n - 1 do
    if is_open(v[i]) and not self.first[v[i]] then self.first[v[i]] = i end
  end
  return self
end

--- The symbol of a number; one that is no size of the graph stays a number.
function Open:number(v)
  if type(v) ~= "number" or not self.first[v] then return v end
  local leaf = self.leaves[v]
  if not leaf then
    leaf = symbols.leaf(("v[%d]"):format(self.first[v]), v)
    self.leaves[v] = leaf
  end
  return leaf
end

function Open:list(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = self:number(v) end
  return out
end

-- What stands for the graph in values and numbers, which outlive it.
function Open:owner(handle)
  self.graph = { handle = handle, known = {} }
  return self.graph
end

-- A size that no size of the graph is: a product of two.
function Open:product(v)
  local least
  for a in each(self.first) do
    if a % 1 == 0 and a * a <= v and v % a == 0 and self.first[v / a] and a < (least or v) then least = a end
  end
  return least and self:number(least) * self:number(v / least) or v
end

--- The sizes of a fake, which is the result of a call with these arguments where it is new. What they are taken for is
-- what they have to be in another graph.
function Open:shape(fake, args)
  if self.shapes[fake] then return { unpack(self.shapes[fake]) } end
  local shape = size_of(fake)
  for i, v in ipairs(shape) do
    shape[i] = self:number(v)
    for _, list in each(args or {}) do -- reshape, expand
      local given = type(list) == "table" and #list == #shape and list[i]
      if given and symbols.is(given) and symbols.hint(given) == v then shape[i] = given end
    end
    if type(shape[i]) == "number" and v >= 2 then shape[i] = self:product(v) end
  end
  self.shapes[fake] = shape
  return { unpack(shape) }
end

function Open:stride(fake, shape)
  local stride, step = stride_of(fake), 1
  for i = #stride, 1, -1 do
    stride[i] = stride[i] == symbols.hint(step) and step or self:number(stride[i])
    step = step * shape[i]
  end
  return stride
end

-- ---- templates --------------------------------------------------------------------------------------

-- Whether sizes (doubles) are equal where those of the template are, and its constants; and what symbols for them may
-- be, as moth.compile.sizes has ranges.
local function classes_of(open)
  local v, raw = ffi.cast(doubles, open.bytes), ffi.cast(bits, open.bytes)
  local n, first, whole, ranges = open.n, {}, {}, {}
  for i = 0, n - 1 do first[i] = open.first[v[i]] or -1 end
  for size, i in each(open.first) do
    ranges[("v[%d]"):format(i)] = { min = size % 1 == 0 and 2 or -math.huge }
    if size % 1 == 0 then whole[#whole + 1] = i end
  end
  local function is_same(bytes)
    local other, number = ffi.cast(bits, bytes), ffi.cast(doubles, bytes)
    for _, i in ipairs(whole) do
      if number[i] < 2 or number[i] % 1 ~= 0 then return false end
    end
    for i = 0, n - 1 do
      local k = first[i]
      if k >= 0 then
        if other[i] ~= other[k] then return false end
      elseif other[i] ~= raw[i] then
        return false
      end
    end
    return true
  end
  return is_same, ranges
end

-- The guards that do not hold anyway.
local function needed(guards, ranges)
  local list, known = {}, {}
  for _, g in ipairs(guards) do
    local ok, decided = pcall(sizes.guard_decided, g, ranges)
    local key = ("%s %s %s %s"):format(g.op, sizes.text(g.a), sizes.text(g.b), g.holds)
    if not (ok and decided) and not known[key] then list[#list + 1], known[key] = g, true end
  end
  return list
end

local Template = {}
Template.__index = Template

--- The values of symbols for the sizes of a graph: a function of a symbol or a number.
function Template:values(bytes)
  local v, known, codes = ffi.cast(doubles, bytes), {}, self.codes
  return function(x)
    if not symbols.is(x) then return x end
    local id = x.id
    if not known[id] then
      codes[id] = codes[id] or assert(loadstring(sizes.code_names .. "return function(v) return "
        .. sizes.code(self.expressions[id]) .. " end", "=size"))()
      known[id] = codes[id](v)
    end
    return known[id]
  end
end

--- Whether the template is for a graph with these sizes and these numbers.
function Template:holds(bytes, numbers)
  if not self.same(bytes) or sizes.broken(self.guards, ffi.cast(doubles, bytes)) then return false end
  for k, value in each(self.pins) do
    if numbers[k] ~= value then return false end
  end
  return true
end

--- Guards as a list of texts: "x:size(1) > 16", of a graph, which has not been changed yet. Sizes that are equal in it
-- are called by the first of them.
function Template:texts(graph)
  local list, called, known = {}, M.names_of(graph), {}
  for _, g in ipairs(self.guards) do
    local line = sizes.guard_text(g):gsub("v%[(%d+)%]", function(i) return called[tonumber(i)] or "?" end)
    if not known[line] then list[#list + 1], known[line] = line, true end
  end
  return list
end

local forms, count = {}, 0

local function list_of(key)
  if not forms[key] then
    if count >= MOST_FORMS then forms, count = {}, 0 end
    forms[key], count = {}, count + 1
  end
  return forms[key]
end

--- Forgets all.
function M.reset() forms, count = {}, 0 end

--- What the sizes of a graph's form are called, from 0, in their order (graph/form.c).
function M.names_of(graph)
  local called, n = {}, 0
  local function add(name) called[n], n = name, n + 1 end
  for _, id in ipairs(C.graph_nodes(graph.handle)) do
    local f = C.graph_node(graph.handle, id, true)
    for i = 1, f.kind == "call" and f.args.n or 0 do
      local size = type(f.args[i]) == "table" and f.args[i].size
      local what = ("an argument of %s%s"):format(f.target or "", f.place ~= "" and " at " .. f.place or "")
      for _ = 1, size and (type(size) == "table" and #size or 1) or 0 do add(what) end
    end
    for k, meta in ipairs(f.kind ~= "output" and f.metas or {}) do
      local name = #f.metas > 1 and f.name .. "[" .. k .. "]" or f.name
      for _, what in ipairs { "size", "stride" } do
        for d = 1, #meta.shape do add(("%s:%s(%d)"):format(name, what, d)) end
      end
    end
  end
  return called
end

--- The form of a graph: what is known of such, and its sizes and numbers. kind: of what else the code depends on.
function M.form(graph, kind)
  local text, bytes = C.graph_form(graph.handle)
  local pinned, numbers = C.graph_pins(graph.handle)
  return { list = list_of(kind .. text), bytes = bytes, numbers = numbers, pinned = pinned }
end

--- What fn() says of a graph, as it said of another of this form. graph false: just fn().
function M.remembered(graph, fn)
  if not graph then return fn() end
  local list = list_of("fact " .. C.graph_form(graph.handle))
  if list.fact == nil then list.fact = fn() end
  return list.fact
end

-- All that the code of a graph does, as text.
local function described(code, values)
  local parts, inserted = {}, {}
  local function put(v) parts[#parts + 1] = tostring(v) end
  for i, call in ipairs(code.change.inserted) do inserted[call] = "+" .. i end
  local function ref(v) put(("%s:%d"):format(inserted[v.call] or v.node, inserted[v.call] and 1 or v.result)) end
  local function put_value(v)
    if type(v) ~= "table" then
      v = values(v)
      return put(type(v) == "number" and ("%.17g"):format(v) or v)
    end
    if v.facts then return ref(v) end
    if v.index then return put("k" .. v.index) end
    put("{")
    for i = 1, v.n or #v do put_value(v[i]) end
    put("}")
  end
  for _, call in ipairs(code.change.inserted) do
    put(call.target)
    put(call.unit.call.node)
    put_value(call.args)
    for _, v in ipairs(call.results) do
      put_value(v.facts.shape)
      put_value(v.facts.stride)
    end
  end
  for _, id in ipairs(code.change.replaced) do put(id) end
  for _, r in ipairs(code.change.values) do
    put(r[1])
    put(r[2])
    ref(r[3])
  end
  for _, step in ipairs(code.steps) do
    for _, call in ipairs(step.calls) do put(inserted[call] or call.node) end
    local k = step.fused and step.kernel
    if k then
      put(k.kernel)
      for _, name in ipairs { "grid", "second", "phase", "work", "in_place" } do put_value(k[name]) end
      for _, a in ipairs(k.args) do
        if a.value then ref(a.value) end
        for _, name in ipairs { "number", "size", "numel", "scratch" } do put_value(a[name]) end
      end
      for _, v in ipairs(step.results) do ref(v) end
    end
  end
  return table.concat(parts, " ")
end

--- The template that holds for a form; nil: none does. Where it is used for the first time, it is compared with
-- concrete(), the code for the form's sizes alone: it was made with the numbers of one graph, and a number that is not
-- known to be a size would show here.
function M.find(form, concrete)
  for _, t in ipairs(form.list) do
    if t:holds(form.bytes, form.numbers) then
      if not t.checked and t.bytes ~= form.bytes then
        local code = concrete()
        t.checked = code == t.code
          or code and t.code and described(code, function(v) return v end) == described(t.code, t:values(form.bytes))
        if not t.checked then
          form.list.off = true
          M.drop(form, t)
          return nil
        end
      end
      return t
    end
  end
end

--- The template is of no use.
function M.drop(form, template)
  for i, t in ipairs(form.list) do
    if t == template then table.remove(form.list, i) break end
  end
end

--- Whether a call that has been inserted as node `id` is what the template expects.
function M.is_same(handle, call, id, values)
  local text, bytes = C.graph_form(handle, id)
  call.form = call.form or text
  if call.form ~= text or call.node ~= id then return false end
  local v, at = ffi.cast(doubles, bytes), 0
  for _, result in ipairs(call.results) do
    for _, list in ipairs { result.facts.shape, result.facts.stride } do
      for _, size in ipairs(list) do
        if v[at] ~= values(size) then return false end
        at = at + 1
      end
    end
  end
  return at == #bytes / 8
end

-- fn(), where records that ask for the sizes of fakes get symbols.
local function answered(open, fn)
  B.size = function(x, d)
    local shape = open:shape(x)
    return d and shape[d > 0 and d or d + #shape + 1] or shape
  end
  B.stride = function(x, d)
    local stride = open:stride(x, open:shape(x))
    return d and stride[d > 0 and d or d + #stride + 1] or stride
  end
  B.numel = function(x)
    local n = 1
    for _, size in ipairs(open:shape(x)) do n = n * size end
    return n
  end
  return within(function() end, function() B.size, B.stride, B.numel = size_of, stride_of, numel_of end, nil, fn)
end

--- make(open) with the sizes of a form as symbols; what it returns is the template's `code`, false: there is nothing to
-- be made of such a graph. nil and why: there are
-- enough of this form, or it has failed, where a number was asked for that no symbol can be.
function M.make(form, make)
  if form.list.off or #form.list >= MOST_OF_FORM then return nil end
  local open, out = Open.new(form.bytes), { codes = {} }
  local ok, code = pcall(symbols.compute, out, function()
    return answered(open, function() return make(open) end)
  end)
  if not ok then
    if tostring(code):find("interrupted", 1, true) then error(code, 0) end
    return nil, code
  end
  if open.graph then open.graph.handle = nil end
  if code == nil then return nil end
  local ranges
  out.same, ranges = classes_of(open)
  out.code, out.guards, out.pins, out.bytes = code, needed(out.guards, ranges), {}, form.bytes
  return setmetatable(out, Template)
end

--- Keeps a template, which holds for a graph that has been compiled with it. after: which numbers it has pinned.
function M.keep(form, template, after)
  for k, pinned in ipairs(after) do
    if pinned and not form.pinned[k] then template.pins[k] = form.numbers[k] end
  end
  table.insert(form.list, 1, template)
end

M.reset()
return M
