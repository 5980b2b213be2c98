--- Makes a program's calls that write to tensors calls that make values: from then on what was written to, and all that
-- shows the same memory, stands for new values. What is left are copies, at the end, to inputs and to tensors of the
-- program (moth.export.record asks for it; docs/export.md).
--
-- moth.export.memory tells which values show the same memory. A value is read as a view of the newest value of what it
-- shows (calls of views are made anew behind a write), and a write to a view is put into what it is a view of.
local check = require "moth.utils.check"
local each = require "moth.each"
local memory = require "moth.export.memory"
local programs = require "moth.export.program"

local M = {}

local is_name, key_of, list, same_size = memory.is_name, memory.key_of, memory.list, memory.same_size

local function value(name) return { kind = "value", name = name } end

local function state_of(name) return { kind = "state", name = name } end

local function refuse(node, what, ...)
  check.fail("[export] %s (%s) writes to %s", node.op, node.at, what:format(...))
end

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

-- What a call shows whose result is not put back.
local function shown_by(node)
  return ((programs.controls[node.op] and "a result of %s (%s), which may be one of its operands itself"
    or "memory that %s (%s) shows in a way that cannot be followed"):format(node.op, node.at))
end

-- The newest value of a name. A view has the strides of the record no more.
function Pass:newest(name)
  local l, t, made = self.about.links[name], self.about.fakes[name], self.now[name]
  if made or not l then return made end
  made = self:newest(l.of)
  local op = l.node and l.node.op
  local function flat() return self:add("contiguous", { n = 1, made }, self.about.fakes[l.of], l.node) end
  if programs.controls[op] then
    check.fail("[export] %s, is read behind a write to that: use the op without _, or take a clone", shown_by(l.node))
  elseif op == "as_strided" then
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
  local l = about.links[name]
  while l do
    if l.op then
      v = self:put(l, name, v)
    elseif l.node then
      refuse(node, "%s: use the op without _, or take a clone", shown_by(l.node))
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
    local written = {}
    part:find(function(inner)
      for _, target in ipairs((programs.targets(inner))) do written[key_of(target)] = true end
    end)
    for name in each(part.of_state) do
      local key = "@" .. name
      if self.now[key].kind ~= "state" then self:finish(state_of(name), node) end
      if written[key] then self:forget(key) end
      self.now[key] = state_of(name)
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
  local call
  local link = #targets == 0 and about.links[node.out[1]]
  if programs.controls[node.op] then
    self:control(node)
    call = self:again(node, { args = args })
  elseif link and link.node and self.written[about.root[node.out[1]]] then
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
  local about = memory.look(program, tensors, state)
  local self = setmetatable({ about = about, nodes = {}, now = {}, known = {}, written = {}, last = {}, reads = {},
    depends = {}, count = 0 }, Pass)
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
