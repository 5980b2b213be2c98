--- Makes a program's calls that write to tensors calls that make values: from then on what was written to, and all that
-- shows the same memory, stands for new values. What is left are copies, at the end, to inputs and to tensors of the
-- program (moth.export.record asks for it; docs/export.md).
--
-- The program runs once on tensors without values: their storages tell which values show the same memory, and their
-- strides how. A value is read as a view of the newest value of what it shows (reads of views are made anew behind a
-- write), and a write to a view is put into what it is a view of.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local programs = require "moth.export.program"
local sizes = require "moth.compile.sizes"
local ops = B.ops

local M = {}

-- ---- what a call writes to -----------------------------------------------------------------------

local function value(name) return { kind = "value", name = name } end

local function list(t)
  local out = { kind = "list", n = #t }
  for i, v in ipairs(t) do out[i] = v end
  return out
end

local function is_name(v) return type(v) == "table" and (v.kind == "value" or v.kind == "state") end

-- What is known of a value or tensor of the program stands under this: a value may have a tensor's name.
local function key_of(v) return v.kind == "state" and "@" .. v.name or v.name end

-- The op's facts, and whether the call is one that writes the result of another op to its first argument ("relu_").
local function facts_of(op)
  local facts = programs.facts(op)
  if facts then return facts, false end
  facts = programs.facts((op:gsub("_$", "")))
  return facts, facts ~= nil
end

-- Of an op: the numbers of the arguments that calls write to, and of the one without which they do not.
local known_writes = {}
local NOTHING = { mutated = {} }
local function written_of(op)
  local known = known_writes[op]
  if known then return known end
  local facts, inplace = facts_of(op)
  known = { mutated = { inplace and 1 or nil } }
  local i = 0
  for _, a in ipairs(facts and not inplace and facts.args or {}) do
    if a.type ~= "INDEX_BASE" then
      i = i + 1
      if a.mutated then table.insert(known.mutated, i) end
      if a.name == "training" and a.type == "BOOL" then known.training = i end -- a norm's
    end
  end
  if #known.mutated == 0 then known = NOTHING end
  if not op:find("::", 1, true) then known_writes[op] = known end -- one's own may be defined anew
  return known
end

local function add_names(v, i, out, at)
  programs.visit(v, function(name) out[#out + 1], at[#at + 1] = name, i end)
end

--- The names that a call writes to, in their order, and the numbers of the arguments they stand in.
function M.targets(node)
  local out, at = {}, {}
  local known = programs.controls[node.op] and NOTHING or written_of(node.op)
  if not known.training or node.args[known.training] then
    for _, k in ipairs(known.mutated) do add_names(node.args[k], k, out, at) end
  end
  for _, v in ipairs(node.into or {}) do add_names(v, 0, out, at) end
  return out, at
end

--- The number of the last call that is not one of the copies at the end.
local function last_call(program)
  local outside, last = {}, #program.nodes
  for _, input in ipairs(program.inputs) do outside[input.name] = true end
  while last > 0 do
    local node = program.nodes[last]
    local target = node.args[1]
    if node.op ~= "copy_" or not (target.kind == "state" or outside[target.name]) then break end
    last = last - 1
  end
  return last
end

M.last_call = last_call

--- Whether a program, or one of those in it, writes to other than inputs and tensors of its own at the end.
function M.any(program)
  local last = last_call(program)
  for i, node in ipairs(program.nodes) do
    if i <= last and not node.fresh and #M.targets(node) > 0 then return true end
    for k = 1, node.args.n do
      local v = node.args[k]
      if type(v) == "table" and v.kind == "program" and M.any(v.program) then return true end
    end
  end
  return false
end

--- What a program, or one of those in it, writes to that is not its own: { kind, name }, and the call; nil: nothing.
function M.outside(program)
  local inputs = {}
  for _, input in ipairs(program.inputs) do inputs[input.name] = true end
  for _, node in ipairs(program.nodes) do
    for _, target in ipairs((M.targets(node))) do
      if target.kind == "state" or inputs[target.name] then return target, node end
    end
    for k = 1, node.args.n do
      local v = node.args[k]
      if type(v) == "table" and v.kind == "program" then
        local target, at = M.outside(v.program)
        if target then return target, at end
      end
    end
  end
end

--- The program without the copies to its inputs at the end.
function M.without_copies(program)
  local last = last_call(program)
  local out, nodes = {}, {}
  for i, node in ipairs(program.nodes) do
    if i <= last or node.args[1].kind == "state" then nodes[#nodes + 1] = node end
  end
  if #nodes == #program.nodes then return program end
  for key, v in each(program) do out[key] = v end
  out.nodes, out.ends = nodes, nil
  return programs.new(out)
end

local function refuse(node, what, ...)
  check.fail("[export] %s (%s) writes to %s", node.op, node.at, what:format(...))
end

M.is_name, M.key_of = is_name, key_of

-- ---- which values show the same memory -----------------------------------------------------------

local function same_list(a, b)
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then return false end
  end
  return true
end

local function same_geometry(a, b)
  if a:dtype() ~= b:dtype() or a:storage_offset() ~= b:storage_offset() or not same_list(a:size(), b:size()) then
    return false
  end
  local s, t = a:stride(), b:stride()
  for i, n in ipairs(a:size()) do
    if n ~= 1 and s[i] ~= t[i] and a:numel() > 0 then return false end
  end
  return true
end

-- How r, a view, shows `of`: an op and its arguments behind the first; nil: as no one call does.
local function relation(of, r)
  local function fits(op, ...)
    local ok, made = pcall(ops[op], of, ...)
    return ok and same_geometry(made, r)
  end
  local size, stride, was, steps = r:size(), r:stride(), of:size(), of:stride()
  if fits("view", size) then return "view", { n = 1, list(size) } end
  if #size == #was then
    local dims, used = {}, {}
    for i = 1, #size do
      for k = 1, #was do
        if not dims[i] and not used[k] and size[i] == was[k] and (stride[i] == steps[k] or size[i] == 1) then
          dims[i], used[k] = k, true
        end
      end
    end
    if #dims == #size and fits("permute", dims) then return "permute", { n = 1, list(dims) } end
    for d, n in ipairs(was) do
      local first = steps[d] > 0 and (r:storage_offset() - of:storage_offset()) / steps[d] or 0
      if size[d] < n and first % 1 == 0 and first >= 0 and fits("narrow", d, first + 1, size[d]) then
        return "narrow", { n = 3, d, first + 1, size[d] }
      end
    end
  elseif #size == #was - 1 then
    for d, n in ipairs(was) do
      local at = steps[d] > 0 and (r:storage_offset() - of:storage_offset()) / steps[d] or 0
      if at % 1 == 0 and at >= 0 and at < n and fits("select", d, at + 1) then return "select", { n = 2, d, at + 1 } end
    end
  end
  if #size >= #was and fits("expand", size) then return "expand", { n = 1, list(size) } end
end

local put = {} -- by op: how a view's new value is put into what it is a view of

-- Runs the program on fakes. Gives, by name: fakes; root, the name that owns the memory; links, { of, op, args, node }
-- for a view (without op: the same view again); by call: like, the fake of what a call in place writes to its target.
-- at: { dims, device }, the sizes and the one device to take, for a program of open sizes.
local function look(program, tensors, state, at)
  local about = { fakes = {}, root = {}, links = {}, like = {}, held = {}, shared = {}, maker = {} }
  local by_storage, count = {}, 0
  local dims, device = at and at.dims or {}, at and at.device
  local function fake_of(t)
    if not device then return B.fake(t) end
    local size, stride, last = t:size(), t:stride(), t:storage_offset() + 1
    for i, n in ipairs(size) do last = last + math.max(n - 1, 0) * stride[i] end
    return ops.as_strided(ops.empty({ last }, { dtype = t:dtype(), device = device }), size, stride, t:storage_offset())
  end
  local function begin(name, t, real)
    about.fakes[name] = fake_of(t)
    about.root[name] = name
    by_storage[B.storage_id(about.fakes[name])] = name
    if real then -- tensors of a program may show each other's memory
      local id = B.storage_id(t)
      local other = about.held[id]
      if other then about.shared[name], about.shared[other] = true, true end
      about.held[id] = name
    end
  end
  local function between(of, name, op, args, node)
    count = count + 1
    local made = ("%s %d"):format(name, count)
    about.fakes[made] = ops[op](about.fakes[of], unpack(args, 1, args.n))
    about.root[made] = about.root[of]
    about.links[made] = { of = of, op = op, args = args, node = node }
    return made
  end
  local function link(name, node)
    local r = about.fakes[name]
    local root = by_storage[B.storage_id(r)]
    if not root then
      about.root[name] = name
      by_storage[B.storage_id(r)] = name
      return
    end
    about.root[name] = root
    local of
    programs.visit_call(node, function(v)
      if not of and about.root[key_of(v)] == root then of = key_of(v) end
    end)
    of = of or root
    local t = about.fakes[of]
    if put[node.op] and node.op ~= "as_strided" and is_name(node.args[1]) and key_of(node.args[1]) == of then
      about.links[name] = { of = of, op = node.op, node = node,
        args = { n = node.args.n - 1, unpack(node.args, 2, node.args.n) } }
      return
    end
    if t:is_complex() and not r:is_complex() then
      of = between(of, name, "view_as_real", { n = 0 }, node)
      t = about.fakes[of]
    end
    local op, args
    if same_geometry(t, r) then
      about.links[name] = { of = of }
      return
    elseif t:dtype() == r:dtype() then
      op, args = relation(t, r)
      local whole = about.fakes[root]
      if not op and whole:dtype() == r:dtype() and whole:is_contiguous() and whole:storage_offset() == 0 then
        of, op = root, "as_strided"
        args = { n = 3, list(r:size()), list(r:stride()), r:storage_offset() }
      end
    end
    about.links[name] = { of = of, op = op or "?", args = args, node = node }
  end
  local fakes = {}
  moth.no_grad(moth.fake_mode, function()
    local inputs = {}
    for i, input in ipairs(program.inputs) do
      begin(input.name, tensors[i])
      inputs[i] = about.fakes[input.name]
    end
    for name in each(program.of_state) do
      begin("@" .. name, state[name].tensor, true)
      fakes[name] = about.fakes["@" .. name]
    end
    for _, node in ipairs(program.nodes) do
      for _, name in ipairs(node.out) do about.maker[name] = node end
    end
    program:run(fakes, dims, inputs, device, nil, {
      values = about.fakes,
      control = function(args, node)
        local out, operands = {}, args[4] or args[3]
        local like = { device = operands[1] and operands[1]:device() }
        for i, meta in ipairs(node.metas) do
          like.dtype = B.dtype(meta.dtype)
          out[i] = ops.empty(sizes.shape_at(meta.shape, dims), like)
        end
        return unpack(out)
      end,
      before = function(node, args)
        local op = node.op:gsub("_$", "")
        if programs.facts(node.op) and not node.into then return end
        local like = { programs.op(op)(unpack(args, 1, args.n)) }
        about.like[node] = like
      end,
      behind = function(node)
        for _, name in ipairs(node.out) do link(name, node) end
      end,
    })
  end)
  return about
end

M.look = look

-- ---- views and writes as values ------------------------------------------------------------------

local Pass = {}
Pass.__index = Pass

local function meta_of(t) return { dtype = t:dtype().name, shape = t:size() } end

-- A call that the pass makes, like the fake t; it goes where nothing reads it.
function Pass:add(op, args, t, node, fresh)
  self.count = self.count + 1
  local name = (" %d"):format(self.count)
  self.nodes[#self.nodes + 1] = { op = op, args = args, out = { name }, metas = { meta_of(t) }, at = node.at,
    made = true, fresh = fresh }
  return value(name)
end

-- The newest value of a name.
function Pass:newest(name)
  local about = self.about
  local root = about.root[name]
  local version = self.version[root] or 0
  local l = about.links[name]
  if not l or (self.at[name] or 0) == version and self.now[name] then return self.now[name] end
  local of = self:newest(l.of)
  local made = of
  if l.op == "?" then
    check.fail("[export] %s (%s) shows memory that was written to, in a way that cannot be followed: use the op "
      .. "without _, or take a clone", l.node.op, l.node.at)
  elseif l.op then
    local op = l.op
    if op == "view" then op = "reshape" end -- of any strides
    if op == "as_strided" or op == "view_as_complex" then
      of = self:add("contiguous", { n = 1, of }, about.fakes[l.of], l.node)
    end
    made = self:add(op, { n = l.args.n + 1, of, unpack(l.args, 1, l.args.n) }, about.fakes[name], l.node)
  end
  self.now[name], self.at[name] = made, version
  return made
end

local function reshaped(self, base, _, v, l)
  return self:add("reshape", { n = 2, v, list(base:size()) }, base, l.node)
end
for _, op in ipairs { "view", "squeeze", "unsqueeze" } do put[op] = reshaped end

function put.expand(self, base, whole, v, l)
  local size, was = l.args[1], base:size()
  local same = size.n == #was
  for i = 1, #was do same = same and (size[i] == was[i] or size[i] == -1) end
  if same then return reshaped(self, base, whole, v, l) end
end

function put.select(self, base, whole, v, l)
  return self:add("select_scatter", { n = 4, whole, v, l.args[1], l.args[2] }, base, l.node)
end

function put.narrow(self, base, whole, v, l)
  local dim, first, length = unpack(l.args, 1, 3)
  local n = base:size(dim)
  first = first > 0 and first - 1 or first + n
  return self:add("slice_scatter", { n = 6, whole, v, dim, first, first + length, 1 }, base, l.node)
end

function put.slice(self, base, whole, v, l)
  local dim, first, last, step = unpack(l.args, 1, 4)
  return self:add("slice_scatter", { n = 6, whole, v, dim, first, last, step }, base, l.node)
end

function put.diagonal(self, base, whole, v, l)
  return self:add("diagonal_scatter", { n = 5, whole, v, unpack(l.args, 1, 3) }, base, l.node)
end

function put.as_strided(self, base, whole, v, l)
  return self:add("as_strided_scatter", { n = 5, whole, v, unpack(l.args, 1, 3) }, base, l.node)
end

function put.permute(self, base, _, v, l)
  local dims, inverse = l.args[1], { kind = "list", n = #base:size() }
  for i = 1, dims.n do
    local d = dims[i] > 0 and dims[i] or dims[i] + dims.n + 1
    inverse[d] = i
  end
  return self:add("permute", { n = 2, v, inverse }, base, l.node)
end

function put.transpose(self, base, _, v, l)
  return self:add("transpose", { n = 3, v, l.args[1], l.args[2] }, base, l.node)
end

function put.view_as_real(self, base, _, v, l)
  v = self:add("contiguous", { n = 1, v }, self.about.fakes[l.name], l.node)
  return self:add("view_as_complex", { n = 1, v }, base, l.node)
end

function put.view_as_complex(self, base, _, v, l)
  return self:add("view_as_real", { n = 1, v }, base, l.node)
end

-- Whether a result of a program may be an operand or a tensor of the program itself.
local function gives_outside(program, state)
  local tensors, outside = {}, {}
  for i, input in ipairs(program.inputs) do
    tensors[i] = moth.fake_mode(ops.empty, input.shape, { dtype = B.dtype(input.dtype), device = input.device })
    outside[input.name] = true
  end
  local about = look(program, tensors, state)
  for _, name in ipairs(program.outputs) do
    local root = about.root[name] or "@"
    if outside[root] or root:find "^@" then return true end
  end
  return false
end

-- A name has a new value: so have all that show its memory.
function Pass:write(name, v, node)
  local about = self.about
  local maker = about.maker[about.root[name]]
  for k = 2, maker and maker.op == "cond" and 3 or 0 do
    if gives_outside(maker.args[k].program, self.state) then
      refuse(node, "a result of cond (%s), which may be one of its operands itself: use the op without _", maker.at)
    end
  end
  local root, path, values = about.root[name], { name }, { v }
  while about.links[name] do
    local l = about.links[name]
    if l.op then
      local back = put[l.op]
      l.name = name
      local made = back and back(self, about.fakes[l.of], self:newest(l.of), v, l)
      if not made then
        refuse(node, "memory that %s (%s) shows in a way that cannot be followed: use the op without _, or take a "
          .. "clone", l.node.op, l.node.at)
      end
      v = made
    end
    name = l.of
    path[#path + 1], values[#values + 1] = name, v
  end
  self.version[root] = (self.version[root] or 0) + 1
  for i, shown in ipairs(path) do self.now[shown], self.at[shown] = values[i], self.version[root] end
end

-- ---- calls ---------------------------------------------------------------------------------------

-- Whether an op gives a view or a copy, as its argument lies in memory.
local function is_either(op)
  local record = require("moth.dispatch.ops").get(op)
  local parts = record and (record.decompose or record.expr) or ""
  return parts:find("viewable(", 1, true) or parts:find("is_contiguous(", 1, true) or parts:find("reshape(", 1, true)
end

-- An argument with the newest values.
function Pass:read(v)
  return programs.mapped(v, function(name)
    self.reads[key_of(name)] = true
    return self:newest(key_of(name))
  end)
end

local function device_of(t) return { kind = "device", name = t:device().type } end

-- v, the newest value of a name, as one of the dtype, device and size of `like`, which does not show an input or a
-- tensor of the program: these are written to at the end.
function Pass:converted(v, name, like, node)
  local about = self.about
  local t, maker = about.fakes[name], about.maker[about.root[name]]
  local facts = maker and facts_of(maker.op)
  if not same_list(t:size(), like:size()) then v = self:add("expand", { n = 2, v, list(like:size()) }, like, node) end
  if t:dtype() == like:dtype() and t:device().type == like:device().type then
    if facts and facts.memory == "new" then return v end
    return self:add("clone", { n = 1, v }, like, node)
  end
  return self:add("to_copy", { n = 3, v, like:dtype(), device_of(like) }, like, node)
end

-- A call with other arguments, whose results are these.
function Pass:again(node, op, args, out, metas)
  self.nodes[#self.nodes + 1] = { op = op, args = args, out = out, metas = metas, at = node.at,
    autocast = node.autocast, default_dtype = node.default_dtype, fresh = op == node.op }
end

-- What a call that only fills its first argument puts there; nil: it is another one.
function Pass:filling(node, args, target)
  local like, v = self.about.fakes[target], args[2]
  if node.op == "copy_" or node.op == "fill_" and is_name(v) then
    return self:converted(v, key_of(node.args[2]), like, node)
  elseif node.op == "fill_" or node.op == "zero_" then
    local number = node.op == "fill_" and v or 0
    return self:add("full", { n = 4, list(like:size()), number, like:dtype(), device_of(like) }, like, node)
  end
end

-- A call that keeps writing, to copies that nothing else reads before.
function Pass:copies(node, args, at)
  local fresh = {}
  local function copy(v)
    if not is_name(v) then return v end
    local key, about, made = key_of(v), self.about
    local maker = about.maker[key]
    if maker and maker.op == "clone" and not self.first[key] and (self.version[key] or 0) == 0 then
      made = self:newest(key) -- nobody has read it
    else
      made = self:add("clone", { n = 1, self:newest(key) }, about.fakes[key], node)
    end
    fresh[#fresh + 1] = made
    return made
  end
  local done = {}
  for _, i in ipairs(at) do
    local v = node.args[i]
    if not done[i] and is_name(v) then
      args[i] = copy(v)
    elseif not done[i] then
      args[i] = { kind = "list", n = v.n }
      for k = 1, v.n do args[i][k] = copy(v[k]) end
    end
    done[i] = true
  end
  return fresh
end

function Pass:writer(node, args, targets, at)
  local about, out, metas = self.about, node.out, node.metas
  local facts, inplace = facts_of(node.op)
  local results = {}
  if inplace or node.into then
    local op = inplace and node.op:gsub("_$", "") or node.op
    local like = about.like[node]
    local made, own = {}, {}
    for i, t in ipairs(like) do
      self.count = self.count + 1
      made[i], own[i] = (" %d"):format(self.count), meta_of(t)
    end
    self:again(node, op, args, made, own)
    for i, target in ipairs(targets) do
      local t, wanted = like[i], about.fakes[key_of(target)]
      results[i] = value(made[i])
      if not same_list(t:size(), wanted:size()) then
        refuse(node, "a result of another size: make it by the op without `out`")
      elseif t:dtype() ~= wanted:dtype() then
        results[i] = self:add("to_copy", { n = 3, results[i], wanted:dtype(), device_of(wanted) }, wanted, node)
      end
    end
  else
    local filled = facts.returns_self and self:filling(node, args, key_of(targets[1]))
    if filled then
      results[1] = filled
    else
      results = self:copies(node, args, at)
      self.count = self.count + 1
      local self_name = (" %d"):format(self.count)
      self:again(node, node.op, args, facts.returns_self and { self_name } or out, metas)
      if facts.returns_self then results[1] = value(self_name) end
    end
  end
  for i, target in ipairs(targets) do self:write(key_of(target), results[i], node) end
end

-- The tensors of a program that the programs of a call read or write to.
local function inner_state(node)
  local read, written = {}, {}
  for i = 1, node.args.n do
    local v = node.args[i]
    if type(v) == "table" and v.kind == "program" then
      for name in each(v.program.of_state) do read[name] = true end
      for inner in v.program:calls() do
        for _, target in ipairs((M.targets(inner))) do
          if target.kind == "state" then written[target.name] = true end
        end
      end
    end
  end
  return read, written
end

-- An operand that a function writes to has memory of its own among them; each knows its last value only.
function Pass:check_operands(node)
  local about, operands = self.about, node.args[node.op == "cond" and 4 or 3]
  for _, k in ipairs(node.written or {}) do
    for i = 1, operands.n do
      if i ~= k and about.root[key_of(operands[i])] == about.root[key_of(operands[k])] then
        refuse(node, "operand %d, whose memory operand %d shows, too: take a clone of it", k, i)
      end
    end
  end
end

-- The state has to be in its memory where programs of cond and while_loop read it.
function Pass:control(node)
  self:check_operands(node)
  local read, written = inner_state(node)
  for name in each(read) do
    local key = "@" .. name
    local v = self.now[key]
    if v and v.kind ~= "state" then
      self:finish({ kind = "state", name = name }, node)
      self.version[key] = (self.version[key] or 0) + 1
      self.now[key] = { kind = "state", name = name }
    end
  end
  return function()
    for name in each(written) do
      local key = "@" .. name
      if self.now[key] then self.version[key] = (self.version[key] or 0) + 1 end
    end
  end
end

-- Copies the newest value of an input or tensor of the program to its memory.
function Pass:finish(target, node)
  local key = key_of(target)
  self.count = self.count + 1
  self.nodes[#self.nodes + 1] = { op = "copy_", args = { n = 2, target, self.now[key] },
    out = { (" %d"):format(self.count) }, metas = { meta_of(self.about.fakes[key]) },
    at = node and node.at or self.last[key] or "" }
end

function Pass:call(node)
  local after = programs.controls[node.op] and self:control(node)
  local args, targets, at = { n = node.args.n }, M.targets(node)
  self.first = {}
  for i = 1, args.n do
    local v = node.args[i]
    if is_name(v) then
      self.first[key_of(v)] = self.reads[key_of(v)]
      if is_either(node.op) then self.depends[self.about.root[key_of(v)]] = true end
    end
  end
  for i = 1, args.n do args[i] = self:read(node.args[i]) end
  local tracked = #targets > 0
  for _, target in ipairs(targets) do
    local root = self.about.root[key_of(target)]
    tracked = tracked and not self.about.shared[root]
    self.last[root] = node.at
  end
  local link = #targets == 0 and #node.out == 1 and self.about.links[node.out[1]]
  if link and link.op and link.op ~= "?" and (self.version[self.about.root[node.out[1]]] or 0) > 0 then
    return -- its strides may be others than those of the record: it is made where it is read
  end
  if tracked then
    self:writer(node, args, targets, at)
  else
    local copy = {}
    for key, v in each(node) do copy[key] = v end
    copy.args = args
    for i, v in ipairs(node.into or {}) do
      if i == 1 then copy.into = {} end
      copy.into[i] = self:read(v)
    end
    copy.fresh = #targets > 0 or nil
    self.nodes[#self.nodes + 1] = copy
  end
  for _, name in ipairs(node.out) do
    local root = self.about.root[name]
    if not tracked or not self.about.links[name] then
      self.now[name], self.at[name] = value(name), self.version[root] or 0
    end
  end
  if after then after() end
end

-- ---- the whole -----------------------------------------------------------------------------------

-- Takes out what this pass and views made for nothing, and numbers the values in their order.
local function settle(program, nodes)
  program.nodes, program.ends = nodes, nil
  program:prune(function(node)
    local facts = programs.facts(node.op)
    return node.made or facts ~= nil and facts.memory == "view"
  end)
  local names, count = {}, 0
  for _, node in ipairs(program.nodes) do
    for i, name in ipairs(node.out) do
      count = count + 1
      names[name] = tostring(count)
      node.out[i] = names[name]
    end
    node.made = nil
  end
  local function renamed(v) return v.kind == "value" and names[v.name] and value(names[v.name]) or v end
  for _, node in ipairs(program.nodes) do
    for i = 1, node.args.n do node.args[i] = programs.mapped(node.args[i], renamed) end
    for i, v in ipairs(node.into or {}) do node.into[i] = programs.mapped(v, renamed) end
  end
  for i, name in ipairs(program.outputs) do program.outputs[i] = names[name] or name end
  for k, name in each(program.mutated or {}) do program.mutated[k] = names[name] or name end
end

--- The program with its writes as values. tensors: like its inputs; state: { name = { tensor } }. is_part: it is one of
-- cond or while_loop; then program.mutated is { [number of an input] = name of its last value }.
function M.functional(program, tensors, state, is_part)
  if not M.any(program) then return program end
  local about = look(program, tensors, state)
  local self = setmetatable({ program = program, state = state, about = about, nodes = {}, now = {}, at = {},
    version = {}, last = {}, reads = {}, first = {}, depends = {}, count = 0 }, Pass)
  for _, input in ipairs(program.inputs) do self.now[input.name] = value(input.name) end
  for name in each(program.of_state) do self.now["@" .. name] = { kind = "state", name = name } end
  for _, node in ipairs(program.nodes) do self:call(node) end
  for i, name in ipairs(program.outputs) do
    program.outputs[i] = self:newest(about.fakes[name] and name or "@" .. name).name
  end
  local mutated = {}
  for i, input in ipairs(program.inputs) do
    local v = self.now[input.name]
    if v.name ~= input.name then
      mutated[i] = v.name
      if not is_part then
        self:finish(value(input.name))
        local depends = self.depends[input.name] and about.fakes[input.name]:is_contiguous()
        input.row_major = input.row_major or depends or nil
      end
    end
  end
  if is_part then program.mutated = next(mutated) and mutated or nil end
  local names = {}
  for name in each(program.of_state) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    if self.now["@" .. name].kind ~= "state" then self:finish { kind = "state", name = name } end
  end
  settle(program, self.nodes)
  return program
end

return M
