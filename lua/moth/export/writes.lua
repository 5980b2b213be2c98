--- Makes a program's calls that write to tensors calls that make values: from then on what was written to, and all that
-- shows the same memory, stands for new values. What is left are copies, at the end, to inputs and to tensors of the
-- program (moth.export.record asks for it; docs/export.md).
--
-- The program runs once on tensors without values: their storages tell which values show the same memory, and their
-- strides how. A value is read as a view of the newest value of what it shows (calls of views are made anew behind a
-- write), and a write to a view is put into what it is a view of.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local programs = require "moth.export.program"
local sizes = require "moth.compile.sizes"
local ops = B.ops

local M = {}

local function value(name) return { kind = "value", name = name } end

local function state_of(name) return { kind = "state", name = name } end

local function list(t)
  local out = { kind = "list", n = #t }
  for i, v in ipairs(t) do out[i] = v end
  return out
end

local function is_name(v) return type(v) == "table" and (v.kind == "value" or v.kind == "state") end

-- What is known of a value or tensor of the program stands under this: a value may have a tensor's name.
local function key_of(v) return v.kind == "state" and "@" .. v.name or v.name end

M.is_name, M.key_of = is_name, key_of

local function refuse(node, what, ...)
  check.fail("[export] %s (%s) writes to %s", node.op, node.at, what:format(...))
end

-- ---- which values show the same memory -----------------------------------------------------------

local function same_size(a, b) return table.concat(a:size(), ",") == table.concat(b:size(), ",") end

-- Of two that show one storage; a stride of a dimension of one element says nothing.
local function same_geometry(a, b)
  return same_size(a, b) and (a:numel() == 0 and a:dtype() == b:dtype()
    or B.memory_key(ops.squeeze(a)) == B.memory_key(ops.squeeze(b)))
end

local scatters = { select = "select_scatter", narrow = "slice_scatter", slice = "slice_scatter",
  diagonal = "diagonal_scatter", view_as_real = "view_as_complex", view_as_complex = "view_as_real" }

-- How a new value of r, the result of a call that gives a view of `of`, is put into that: an op, and its arguments
-- behind the tensors. A view of all elements has them in their order, or has other dimensions. nil: no op does.
local function way_back(node, of, r)
  local a, op = node.args, scatters[node.op]
  if node.op == "real" or node.op == "imag" then
    return "select_scatter", { n = 2, of:dim(), node.op == "real" and 1 or 2 }
  elseif op then
    return op, { n = a.n - 1, unpack(a, 2, a.n) }
  end
  local function fits(view, ...)
    local ok, made = pcall(ops[view], of, ...)
    return ok and same_geometry(made, r)
  end
  local size, was, stride, steps = r:size(), of:size(), r:stride(), of:stride()
  if fits("view", size) then return "reshape", { n = 1, list(was) } end
  local dims, back = {}, {}
  for i = 1, #size == #was and #size or 0 do
    for k = 1, #was do
      if not dims[i] and not back[k] and size[i] == was[k] and (stride[i] == steps[k] or size[i] == 1) then
        dims[i], back[k] = k, i
      end
    end
  end
  if #dims == #was and fits("permute", dims) then return "permute", { n = 1, list(back) } end
end

-- Runs the program on fakes. Gives, by name: fakes; root, the name that owns the memory; links, { of, node, op, args }
-- for a view: the call that makes it, and how it is put back (no node: the same view again; no op: it is not); by call:
-- like, the fakes of what a call in place writes to its targets.
-- at: { dims, device }, the sizes and the one device to take, for a program of open sizes.
local function look(program, tensors, state, at)
  local about = { fakes = {}, root = {}, links = {}, like = {}, shared = {}, maker = {} }
  local by_storage, held = {}, {}
  local dims, device = at and at.dims or {}, at and at.device
  local function fake_of(t)
    if not device then return B.fake(t) end
    local size, stride, last = t:size(), t:stride(), t:storage_offset() + 1
    for i, n in ipairs(size) do last = last + math.max(n - 1, 0) * stride[i] end
    return ops.as_strided(ops.empty({ last }, { dtype = t:dtype(), device = device }), size, stride, t:storage_offset())
  end
  local function enter(name, t)
    local id = B.storage_id(t)
    local root = by_storage[id] or name
    about.fakes[name], about.root[name], by_storage[id] = t, root, root
    return root
  end
  local function link(name, node)
    local r, of = about.fakes[name], nil
    local root = enter(name, r)
    if root == name then return end
    programs.visit_call(node, function(v)
      if not of and about.root[key_of(v)] == root then of = key_of(v) end
    end)
    of = of or root
    local t, whole = about.fakes[of], about.fakes[root]
    if not scatters[node.op] and same_geometry(t, r) then
      about.links[name] = { of = of }
      return
    end
    if t:is_complex() and not r:is_complex() and node.op ~= "view_as_real" then
      local parts = name .. " parts"
      enter(parts, ops.view_as_real(t))
      about.links[parts] = { of = of, op = "view_as_complex", args = { n = 0 },
        node = { op = "view_as_real", args = { n = 1, node.args[1] }, at = node.at } }
      of, t = parts, about.fakes[parts]
    end
    local l = { of = of, node = node }
    l.op, l.args = way_back(node, t, r)
    if not l.op and whole:dtype() == r:dtype() and whole:is_contiguous() and whole:storage_offset() == 0 then
      l.of, l.op = root, "as_strided_scatter"
      l.args = { n = 3, list(r:size()), list(r:stride()), r:storage_offset() }
    end
    about.links[name] = l
  end
  local fakes = {}
  moth.no_grad(moth.fake_mode, function()
    local inputs = {}
    for i, input in ipairs(program.inputs) do
      enter(input.name, fake_of(tensors[i]))
      inputs[i] = about.fakes[input.name]
    end
    for name in each(program.of_state) do
      local key, id = "@" .. name, B.storage_id(state[name].tensor)
      enter(key, fake_of(state[name].tensor))
      fakes[name] = about.fakes[key]
      if held[id] then about.shared[key], about.shared[held[id]] = true, true end -- they show each other's memory
      held[id] = key
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
        if programs.facts(node.op) and not node.into then return end
        about.like[node] = { programs.op((node.op:gsub("_$", "")))(unpack(args, 1, args.n)) }
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

-- A call, whose results get names by their order.
function Pass:emit(call)
  call.out = {}
  for i = 1, #call.metas do
    self.count = self.count + 1
    call.out[i] = tostring(self.count)
  end
  self.nodes[#self.nodes + 1] = call
  return call
end

local function meta_of(t) return { dtype = t:dtype().name, shape = t:size() } end

-- A call that the pass makes, like the fake t; it goes where nothing reads it.
function Pass:add(op, args, t, node)
  return value(self:emit({ op = op, args = args, metas = { meta_of(t) }, at = node.at, made = op ~= "copy_" }).out[1])
end

-- A call of the program, in other words.
function Pass:again(node, changes)
  local call = {}
  for key, v in each(node) do call[key] = v end
  for key, v in each(changes) do call[key] = v end
  return self:emit(call)
end

-- v is the newest value of a name, until its root is forgotten.
function Pass:set(name, v)
  local root = self.about.root[name]
  self.now[name], self.known[root] = v, self.known[root] or {}
  table.insert(self.known[root], name)
end

-- The newest value of a name. A view has the strides of the record no more.
function Pass:newest(name)
  local l, t, made = self.about.links[name], self.about.fakes[name], self.now[name]
  if made or not l then return made end
  made = self:newest(l.of)
  local op = l.node and l.node.op
  local function flat() return self:add("contiguous", { n = 1, made }, self.about.fakes[l.of], l.node) end
  if op == "as_strided" then
    made = self:add(op, { n = 4, flat(), unpack(l.args, 1, 3) }, t, l.node)
  elseif op == "view_as_complex" then
    made = self:add(op, { n = 1, flat() }, t, l.node)
  elseif l.op == "reshape" and programs.facts(op).memory ~= "view" then -- of parts that need strides
    made = self:add("reshape", { n = 2, made, list(t:size()) }, t, l.node)
  elseif op then
    local args = { n = l.node.args.n }
    for i = 1, args.n do args[i] = self:read(l.node.args[i]) end
    made = self:add(op == "view" and "reshape" or op, args, t, l.node)
  end
  self:set(name, made)
  return made
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

-- v, the new value of what a link is of, from that of the view.
function Pass:put(l, name, v)
  local args, base = l.args, self.about.fakes[l.of]
  if l.node.op == "narrow" then
    local dim, first, length = unpack(args, 1, 3)
    first = first > 0 and first - 1 or first + base:size(dim)
    args = { n = 4, dim, first, first + length, 1 }
  end
  if l.op == "view_as_complex" then v = self:add("contiguous", { n = 1, v }, self.about.fakes[name], l.node) end
  if l.op:find "_scatter$" then
    return self:add(l.op, { n = 2 + args.n, self:newest(l.of), v, unpack(args, 1, args.n) }, base, l.node)
  end
  return self:add(l.op, { n = 1 + args.n, v, unpack(args, 1, args.n) }, base, l.node)
end

-- Nobody knows the values of what shows a root's memory.
function Pass:forget(root)
  self.written[root] = true
  for _, name in ipairs(self.known[root] or {}) do self.now[name] = nil end
  self.known[root] = nil
end

-- A name has a new value: so have all that show its memory.
function Pass:write(name, v, node)
  local about = self.about
  local root, path, values = about.root[name], { name }, { v }
  local maker = about.maker[root]
  for k = 2, maker and maker.op == "cond" and 3 or 0 do
    if gives_outside(maker.args[k].program, self.state) then
      refuse(node, "a result of cond (%s), which may be one of its operands itself: use the op without _", maker.at)
    end
  end
  local l = about.links[name]
  while l do
    if l.op then
      v = self:put(l, name, v)
    elseif l.node then
      refuse(node, "memory that %s (%s) shows in a way that cannot be followed: use the op without _, or take a clone",
        l.node.op, l.node.at)
    end
    name = l.of
    l = about.links[name]
    path[#path + 1], values[#values + 1] = name, v
  end
  self:forget(root)
  for i, shown in ipairs(path) do self:set(shown, values[i]) end
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

local function type_of(t) return t:dtype(), { kind = "device", name = t:device().type } end

-- What a call that only fills `like`, its first argument, puts there, which does not show an input or a tensor of the
-- program: these are written to at the end. nil: it is another one.
function Pass:filling(node, args, like)
  local v = args[2]
  if not (node.op == "copy_" or node.op == "fill_" and is_name(v)) then
    if node.op ~= "fill_" and node.op ~= "zero_" then return nil end
    return self:add("full", { n = 4, list(like:size()), node.op == "fill_" and v or 0, type_of(like) }, like, node)
  end
  local about, name = self.about, key_of(node.args[2])
  local t, maker = about.fakes[name], about.maker[about.root[name]]
  if not same_size(t, like) then v = self:add("expand", { n = 2, v, list(like:size()) }, like, node) end
  if t:dtype() ~= like:dtype() or t:device().type ~= like:device().type then
    return self:add("to_copy", { n = 3, v, type_of(like) }, like, node)
  end
  local facts = maker and programs.call_facts(maker.op)
  return facts and facts.memory == "new" and v or self:add("clone", { n = 1, v }, like, node)
end

-- A copy for a call that keeps writing; a clone that nobody has read is one.
function Pass:copy(key, unread, node)
  local maker = self.about.maker[key]
  local own = maker and maker.op == "clone" and unread[key] and not self.written[key]
  local v = self:newest(key)
  return own and v or self:add("clone", { n = 1, v }, self.about.fakes[key], node)
end

function Pass:writer(node, args, targets, at, unread)
  local about, results, call = self.about, {}, nil
  local facts, inplace = programs.call_facts(node.op)
  if inplace or node.into then
    local like, metas = about.like[node], {}
    for i, t in ipairs(like) do metas[i] = meta_of(t) end
    call = self:again(node, { op = inplace and node.op:gsub("_$", "") or node.op, args = args, metas = metas })
    call.into = nil
    for i, target in ipairs(targets) do
      local t, wanted = like[i], about.fakes[key_of(target)]
      results[i] = value(call.out[i])
      if not same_size(t, wanted) then
        refuse(node, "a result of another size: make it by the op without `out`")
      elseif t:dtype() ~= wanted:dtype() then
        results[i] = self:add("to_copy", { n = 3, results[i], type_of(wanted) }, wanted, node)
      end
    end
  else
    results[1] = facts.returns_self and self:filling(node, args, about.fakes[key_of(targets[1])]) or nil
    if not results[1] then
      local done = {}
      for _, i in ipairs(at) do
        args[i] = done[i] and args[i] or programs.mapped(node.args[i], function(v)
          results[#results + 1] = self:copy(key_of(v), unread, node)
          return results[#results]
        end)
        done[i] = true
      end
      call = self:again(node, { args = args, fresh = true })
      if facts.returns_self then results[1] = value(call.out[1]) end
    end
  end
  for i, target in ipairs(targets) do self:write(key_of(target), results[i], node) end
  return call
end

-- Of cond and while_loop: the state is in its memory where their programs are. An operand that a function writes to has
-- memory of its own among them; each knows its last value only.
function Pass:control(node)
  local root, operands = self.about.root, node.args[node.op == "cond" and 4 or 3]
  for _, k in ipairs(node.written or {}) do
    for i = 1, operands.n do
      if i ~= k and root[key_of(operands[i])] == root[key_of(operands[k])] then
        refuse(node, "operand %d, whose memory operand %d shows, too: take a clone of it", k, i)
      end
    end
  end
  for _, part in ipairs(programs.parts(node)) do
    for name in each(part.of_state) do
      local key = "@" .. name
      local v = self.now[key]
      if v and v.kind ~= "state" then self:finish(state_of(name), node) end
      self:forget(key)
      self.now[key] = v and state_of(name)
    end
  end
end

-- Copies the newest value of an input or tensor of the program to its memory.
function Pass:finish(target, node)
  local key = key_of(target)
  self:add("copy_", { n = 2, target, self.now[key] }, self.about.fakes[key], node or { at = self.last[key] or "" })
end

function Pass:call(node)
  local about, args, unread = self.about, { n = node.args.n }, {}
  local targets, at = programs.targets(node)
  local tracked = #targets > 0
  for _, target in ipairs(targets) do
    local key = key_of(target)
    local root = about.root[key]
    unread[key] = not self.reads[key]
    tracked = tracked and not about.shared[root]
    self.last[root] = node.at
  end
  if is_either(node.op) then
    programs.visit_call(node, function(v) self.depends[about.root[key_of(v)]] = true end)
  end
  for i = 1, args.n do args[i] = self:read(node.args[i]) end
  if programs.controls[node.op] then self:control(node) end
  local call
  local link = #targets == 0 and about.links[node.out[1]]
  if link and link.node and self.written[about.root[node.out[1]]] then
    return -- its strides may be others than those of the record: it is made where it is read
  elseif tracked then
    call = self:writer(node, args, targets, at, unread)
  else
    call = self:again(node, { args = args, fresh = #targets > 0 or nil })
    for i, v in ipairs(node.into or {}) do
      if i == 1 then call.into = {} end
      call.into[i] = self:read(v)
    end
  end
  for i, name in ipairs(node.out) do
    if not tracked or not about.links[name] then self:set(name, value(call.out[i])) end
  end
end

-- ---- the whole -----------------------------------------------------------------------------------

--- The program with its writes as values. tensors: like its inputs; state: { name = { tensor } }. is_part: it is one of
-- cond or while_loop; then program.mutated is { [number of an input] = name of its last value }.
function M.functional(program, tensors, state, is_part)
  if not program:writes() then return program end
  local about = look(program, tensors, state)
  local self = setmetatable({ program = program, state = state, about = about, nodes = {}, now = {}, known = {},
    written = {}, last = {}, reads = {}, depends = {}, count = 0 }, Pass)
  for _, input in ipairs(program.inputs) do self.now[input.name] = value(input.name) end
  for name in each(program.of_state) do self.now["@" .. name] = state_of(name) end
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
    if self.now["@" .. name].kind ~= "state" then self:finish(state_of(name)) end
  end
  program.nodes, program.ends = self.nodes, nil
  program:prune(function(node) -- what this pass and views made for nothing
    local facts = programs.facts(node.op)
    return node.made or facts ~= nil and facts.memory == "view"
  end)
  return program
end

return M
