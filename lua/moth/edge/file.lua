--- Files of moth.edge.export: safetensors, whose metadata has the calls of kernels as JSON. src/edge/file.c reads
-- them, and says what they look like.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local moth = require "moth"
local explain = require "moth.compile.explain"
local ffi = require "ffi"
local fnv = require "moth.lang.fnv"
local placed = require "moth.export.placed"
local programs = require "moth.export.program"
local key_of = B.memory_key
local merging = require "moth.export.merge"
local sizes = require "moth.compile.sizes"
local tree = require "moth.lang.tree"

local M = {}
local C = B.compile

-- ---- what the program comes down to ---------------------------------------------------------------------

local lowered

-- While a program is lowered, calls of cond and while_loop are those of ops that stand for them, by node and by name.
local function stand_ins(program, point)
  local of = {}
  for _, node in ipairs(program.nodes) do
    if programs.controls[node.op] then
      local like, parts = {}, programs.parts(node)
      for i, meta in ipairs(node.metas) do
        like[i] = { dtype = meta.dtype, shape = sizes.shape_at(meta.shape, point) }
      end
      local ops = require("moth.export.control").stand_in(node.op, like, function() end)
      of[node] = ops
      for i, made in ipairs(ops) do
        of[made.op] = { name = node.op, parts = parts, place = node.at, is_rest = i > 1 }
      end
    end
  end
  return of
end

local function run_stand_in(found)
  return function(args, node)
    local out = {}
    for _, made in ipairs(found[node]) do
      for _, t in ipairs { made.fn(node.op == "cond" and { args[1], unpack(args[4]) } or args[3]) } do
        out[#out + 1] = t
      end
    end
    return unpack(out)
  end
end

-- The calls of kernels at given sizes; calls of control have `control` = "cond" or "while_loop" and `parts`, lowered.
-- copied: arguments that are copied before a call, { call = { number = true } }.
function lowered(program, state, point, copied)
  local args, found = {}, stand_ins(program, point)
  for i, input in ipairs(program.inputs) do
    args[i] = B.ops.empty(sizes.shape_at(input.shape, point), { dtype = input.dtype })
  end
  local graph = explain.capture(function(...)
    return program:run(state, point, { ... }, "cpu", nil, { control = run_stand_in(found),
      before = copied and function(node, list)
        for i in each(copied[node] or {}) do list[i] = B.ops.clone(list[i]) end
      end })
  end, args)
  local low = C.graph_lowered(graph.handle)
  local calls, last = {}, nil
  for _, call in ipairs(low.calls) do
    local control = found[call.op]
    if control and control.is_rest then
      for _, id in ipairs(call.results) do table.insert(last.results, id) end
    else
      calls[#calls + 1] = call
    end
    if control and not control.is_rest then
      last = call
      call.op, call.control, call.place, call.parts = control.name, control.name, control.place, {}
      for i, part in ipairs(control.parts) do call.parts[i] = lowered(part, state, point) end
    end
  end
  low.calls = calls
  return low
end

local function refuse(call, why)
  check.fail("[edge.export] %s (%s): %s", call.op, call.place ~= "" and call.place or "?", why)
end

local function check_call(call, values)
  for _, id in ipairs(call.results) do
    if values[id].dtype:find "^complex" then refuse(call, "the edge library has no complex numbers") end
  end
  if call.op:find("::", 1, true) then refuse(call, "an op of one's own is not in the edge library") end
  if call.dynamic then
    refuse(call, "the sizes of its results depend on elements, and the edge library plans memory before it runs")
  end
end

-- What values at all points have in common: a number is one, or, unless `fixed`, a formula of the dimensions.
local function merge_value(list, about, call, fixed)
  local first, same, out = list[1], true, {}
  for _, v in ipairs(list) do
    same = same and v == first
    local alike = type(v) == type(first) and (type(v) == "table" and #v == #first or type(v) == "number" or v == first)
    if not alike or fixed and type(v) == "number" and not same then refuse(call, "an argument depends on a size") end
  end
  if type(first) == "table" then
    for k in ipairs(first) do
      local items = {}
      for i, v in ipairs(list) do items[i] = v[k] end
      out[k] = merge_value(items, about, call, fixed)
    end
    return out
  end
  local f = same and first
  if not same then f = about.follow(list) end
  if f ~= nil then return f end
  local other = 2
  while list[other] == first do other = other + 1 end
  return refuse(call, ("a number depends on a size in no way that can be followed: it is %s with %s, %s with %s\nHINT: "
    .. "give that dimension a fixed size"):format(tostring(first), merging.point_text(about.points[1]),
      tostring(list[other]), merging.point_text(about.points[other])))
end

local function merge_arg(args, about, call)
  local kind, list = args[1][1], {}
  for i, a in ipairs(args) do
    if kind == "int" and a[1] == "float" then kind = "float" end
    if a[1] ~= kind and not (kind == "float" and a[1] == "int") then refuse(call, "an argument depends on a size") end
    list[i] = a[2]
  end
  return { kind, merge_value(list, about, call, kind:find "^value" ~= nil) }
end

local merge

-- The parts of call k, and the sizes of its results.
local function merge_control(list, k, about)
  local call = list[1].calls[k]
  for p in ipairs(call.parts) do
    local parts = {}
    for i, l in ipairs(list) do parts[i] = l.calls[k].parts[p] end
    merge(parts, about)
    for v, made in ipairs(parts[1].values) do
      local shapes = {}
      for i, part in ipairs(parts) do shapes[i] = { "ints", part.values[v].shape } end
      made.sizes = made.kind ~= "held" and v == parts[1].outputs[1] and merge_arg(shapes, about, call)
    end
  end
  call.sizes = {}
  for r, id in ipairs(call.results) do
    local shapes = {}
    for i, l in ipairs(list) do shapes[i] = { "ints", l.values[l.calls[k].results[r]].shape } end
    call.sizes[r] = merge_arg(shapes, about, call)
    list[1].values[id].sizes = call.sizes[r]
  end
end

-- The calls of all points as one list, with formulas.
function merge(list, about)
  local out = list[1]
  for k, call in ipairs(out.calls) do
    for i = 2, #list do
      local other = list[i].calls[k]
      if not other or other.op ~= call.op or #list[i].calls ~= #out.calls then
        refuse(call, "which calls of kernels there are depends on a size")
      end
    end
    for j = 1, call.args.n do
      local args = {}
      for i, l in ipairs(list) do args[i] = l.calls[k].args[j] end
      if #args > 0 and #args ~= #list then refuse(call, "an argument depends on a size") end
      if args[1] then call.args[j] = merge_arg(args, about, call) end
    end
    if call.control then merge_control(list, k, about) end
  end
  for k, v in ipairs(out.values) do
    for i = 2, #list do
      local other = list[i].values[k]
      if v.tensor and not (other.tensor and key_of(other.tensor) == key_of(v.tensor))
        and not moth.equal(other.tensor, v.tensor) then
        check.fail("[edge.export] a tensor that the program holds depends on a size: make it by ops (arange, full, …)")
      end
    end
  end
  return out
end

-- Which value's memory each one lies in.
local function find_roots(low)
  local root = {}
  for id in ipairs(low.values) do root[id] = id end
  for _, call in ipairs(low.calls) do
    local is_view = (require("moth.dispatch.ops").get(call.op) or {}).memory == "view"
    local self = call.args[1] and call.args[1][1] == "value" and call.args[1][2]
    if is_view and self then
      root[call.results[1]] = root[self]
      if call.geometry and not low.values[root[self]].whole then
        refuse(call, "it looks at the memory of a tensor that is not row-major")
      end
    end
  end
  return root
end

-- ---- the file's calls -------------------------------------------------------------------------------------

local Writer = {}
Writer.__index = Writer

-- Calls of the file: { op, args, results = how many }. Values are numbered as the file has them, from 0.
function Writer:add(op, args, count)
  local file = self.file
  local first = file.count
  file.calls[#file.calls + 1] = { op = op, args = args }
  file.count = first + count
  return first
end

local function value(id) return { "value", id } end

function Writer:arg(a)
  if a[1] == "value" then return value(self.of[a[2]]) end
  if a[1] ~= "values" then return a end
  local list = {}
  for i, id in ipairs(a[2]) do list[i] = self.of[id] end
  return { "values", list }
end

-- Whether a call has an argument `training` that is false: then it writes to no statistics.
local function is_inference(call)
  for i, a in ipairs(B.op_facts(call.op).args) do
    if a.name == "training" and a.type == "BOOL" then return call.args[i] and call.args[i][2] == false end
  end
end

-- Notes the tensors of the program that calls write to; exported programs write to nothing else but what they made.
function Writer:note_written(calls)
  local function note(call, id)
    local v = self.values[self.root[id]]
    if v.kind == "held" then
      self.file.written[self.file.state_ids[key_of(v.tensor)]] = true
    elseif v.kind == "input" then
      refuse(call, "it writes to an input: take a clone of it")
    end
  end
  for _, call in ipairs(calls) do
    for _, id in ipairs(call.targets) do note(call, id) end
    for _, i in ipairs((call.control or is_inference(call)) and {} or call.writes) do
      local a = call.args[i] or {}
      for _, id in ipairs(a[1] == "value" and { a[2] } or a[1] == "values" and a[2] or {}) do note(call, id) end
    end
  end
end

function Writer:call(call)
  local args, targets = { n = call.args.n }, {}
  for i = 1, args.n do args[i] = call.args[i] and self:arg(call.args[i]) end
  for i, id in ipairs(call.targets) do targets[i] = self.of[id] end
  local first = self:add(call.op, args, #call.results)
  for i, id in ipairs(call.results) do
    if not self.of[id] then self.of[id] = first + i - 1 end
    if targets[i] and not call.is_self then
      self:add("copy_", { value(targets[i]), value(first + i - 1), { "bool", false } }, 1)
    end
  end
end

-- Generated code (fused.lua): the file has its number and operands.
function Writer:kernel(k)
  self.kernels = self.kernels + 1
  local args = {}
  for i, id in ipairs(k.operands) do args[i] = value(self.of[id]) end
  local first = self:add(nil, args, #k.results)
  self.file.calls[#self.file.calls].kernel = self.kernels
  for i, id in ipairs(k.results) do self.of[id] = first + i - 1 end
end

-- ---- cond and while_loop: blocks of calls ---------------------------------------------------------------------

-- A value in front of a block, which calls in the block copy to.
function Writer:room(shape, dtype)
  return self:add("full", { shape, { "int", 0 }, { "dtype", dtype }, { "device", "cpu" }, n = 4 }, 1)
end

function Writer:copy(to, from) self:add("copy_", { value(to), value(from), { "bool", false } }, 1) end

-- The calls of a part, whose inputs are these values; its outputs. fresh: none of them is an input.
function Writer:part(low, inputs, fresh)
  local part = setmetatable({ file = self.file, kernels = 0, of = {}, values = low.values, root = find_roots(low) },
    Writer)
  for id, v in ipairs(low.values) do
    if v.kind == "input" then
      part.of[id] = inputs[v.input]
    elseif v.tensor then
      part.of[id] = self.file.state_ids[key_of(v.tensor)]
    end
  end
  part:run(low.calls)
  local outputs = {}
  for i, id in ipairs(low.outputs) do
    outputs[i] = part.of[id]
    if fresh and low.values[part.root[id]].kind ~= "made" then
      outputs[i] = self:add("clone", { value(outputs[i]) }, 1)
    end
  end
  return outputs
end

-- The operands of a call of control: of cond the condition is the first.
local function operands_of(self, call)
  local list = {}
  for _, a in ipairs(call.args) do
    if a[1] == "value" then list[#list + 1] = self.of[a[2]] end
    for _, id in ipairs(a[1] == "values" and a[2] or {}) do list[#list + 1] = self.of[id] end
  end
  return list
end

function Writer:cond(call)
  local operands, results, file = operands_of(self, call), {}, self.file
  for i, id in ipairs(call.results) do results[i] = self:room(call.sizes[i], self.values[id].dtype) end
  local control = { control = "if", pred = table.remove(operands, 1) }
  file.calls[#file.calls + 1] = control
  for k, part in ipairs(call.parts) do
    local before = #file.calls
    for i, id in ipairs(self:part(part, operands)) do self:copy(results[i], id) end
    control[k] = #file.calls - before
  end
  return results
end

function Writer:while_loop(call)
  local state, file = {}, self.file
  for i, id in ipairs(operands_of(self, call)) do state[i] = self:add("clone", { value(id) }, 1) end
  local test, body = unpack(call.parts)
  local answer = test.values[test.outputs[1]]
  local control = { control = "while", pred = self:room(answer.sizes or { "ints", answer.shape }, answer.dtype) }
  file.calls[#file.calls + 1] = control
  local before = #file.calls
  self:copy(control.pred, self:part(test, state)[1])
  control[1], before = #file.calls - before, #file.calls
  for i, id in ipairs(self:part(body, state, true)) do self:copy(state[i], id) end
  control[2] = #file.calls - before
  return state
end

-- all: with those that became generated code.
function Writer:run(calls, all)
  self:note_written(all or calls)
  for _, call in ipairs(calls) do
    if call.kernel then
      self:kernel(call.kernel)
    elseif call.control then
      local made = self[call.control](self, call)
      for i, id in ipairs(call.results) do self.of[id] = made[i] end
    else
      check_call(call, self.values)
      self:call(call)
    end
  end
end

-- ---- JSON ---------------------------------------------------------------------------------------------------

local bits = ffi.typeof("union { double d; int64_t i; }")

local function double_text(d) return (tostring(bits({ d = d }).i):gsub("LL$", "")) end

-- A formula as a list of numbers and operations; index: dims, by name.
local function expression_text(f, index)
  local list = {}
  for i, step in ipairs(sizes.postfix(f)) do
    if type(step) == "table" then
      list[i] = ('%d,"dim"'):format(index[step.dim])
    elseif type(step) == "string" then
      list[i] = ('"%s"'):format(step)
    else
      list[i] = step % 1 == 0 and math.abs(step) < 2 ^ 53 and ("%d"):format(step) or double_text(step) .. ',"bits"'
    end
  end
  return "[" .. table.concat(list, ",") .. "]"
end

local function size_text(n, index)
  if type(n) == "table" or index[n] then return ('{"x":%s}'):format(expression_text(n, index)) end
  return type(n) == "string" and n or ("%d"):format(n)
end

local function list_text(list, fn)
  local out = {}
  for i, v in ipairs(list) do out[i] = fn(v) end
  return "[" .. table.concat(out, ",") .. "]"
end

local function arg_text(a, index, quote)
  if not a then return "null" end
  local kind, v = a[1], a[2]
  local function size(n) return size_text(n, index) end
  if kind == "int" then return size(v) end
  if kind == "float" then
    return type(v) == "table" and ('{"r":%s}'):format(expression_text(v, index)) or ('{"f":%s}'):format(double_text(v))
  end
  if kind == "bool" then return tostring(v) end
  if kind == "ints" then return ('{"i":%s}'):format(list_text(v, size)) end
  if kind == "value" then return ('{"v":%d}'):format(v) end
  if kind == "values" then return ('{"vs":%s}'):format(list_text(v, size)) end
  if kind == "string" then return ('{"s":%s}'):format(quote(v)) end
  if kind == "dtype" then return ('{"d":%s}'):format(quote(v)) end
  if kind == "device" then return '{"dev":"cpu"}' end
  return "null" -- a generator: the library's own
end

local function program_text(self, ep, state, outputs, quote)
  local index, dims, inputs, ops, numbers, calls = {}, {}, {}, {}, {}, {}
  for i, name in ipairs(tree.keys(ep.program.dims)) do
    local r = ep.program.dims[name]
    index[name] = i - 1
    dims[i] = ("[%s,%d,%d,%d,%d]"):format(quote(name), r.min, r.max or -1, r.multiple_of or 1, ep.program.example[name])
  end
  for i, input in ipairs(ep.program.inputs) do
    inputs[i] = ("[%s,%s,%s]"):format(quote(input.name), quote(input.dtype), list_text(input.shape, function(n)
      return size_text(n, index)
    end))
  end
  for i, call in ipairs(self.file.calls) do
    if call.op and not numbers[call.op] then
      ops[#ops + 1] = ("[%s,%d]"):format(quote(call.op), fnv(B.op_facts(call.op).schema))
      numbers[call.op] = #ops - 1
    end
    local parts = { call.control and quote(call.control) or call.op and numbers[call.op] or -call.kernel }
    if call.control then
      for k, n in ipairs { call.pred, call[1], call[2] } do parts[k + 1] = ("%d"):format(n) end
      call.args = { n = 0 }
    end
    for k = 1, call.args.n or #call.args do parts[k + 1] = arg_text(call.args[k], index, quote) end
    calls[i] = "[" .. table.concat(parts, ",") .. "]"
  end
  local guards, written = {}, {}
  for i, g in ipairs(ep.program.guards or {}) do
    local condition = { op = g.op, a = g.a, b = g.b }
    if not g.holds then condition = { op = "not", a = condition } end
    guards[i] = ("[%s,%s]"):format(expression_text(condition, index), quote(sizes.guard_text(g)))
  end
  for id in each(self.file.written) do written[#written + 1] = id - #ep.program.inputs end
  table.sort(written)
  return ('{"dims":[%s],%s"inputs":[%s],"tensors":%s,%s"ops":[%s],"calls":[%s],"outputs":%s}'):format(
    table.concat(dims, ","), #guards > 0 and ('"guards":[%s],'):format(table.concat(guards, ",")) or "",
    table.concat(inputs, ","), list_text(state, function(s) return quote(s.name) end),
    #written > 0 and ('"written":[%s],'):format(table.concat(written, ",")) or "", table.concat(ops, ","),
    table.concat(calls, ","), list_text(outputs, function(o)
      return ("[%s,%d]"):format(quote(o.name), o.id)
    end))
end

-- ---- the whole ----------------------------------------------------------------------------------------------

-- The tensors of the program, those with the largest elements first, so that each begins at a multiple of them.
local function state_of(ep, low)
  local names, list, known = {}, {}, {}
  for name, s in each(ep.held) do names[key_of(s.tensor)] = name end
  local function visit(part)
    for _, v in ipairs(part.values) do
      local key = v.tensor and key_of(v.tensor)
      if key and not known[key] then
        local t = B.ops.contiguous(B.ops.to(B.alias(v.tensor, false), { device = "cpu" }))
        list[#list + 1] = { name = names[key], tensor = t, key = key, of = v.tensor, at = #list + 1 }
        known[key] = true
      end
    end
    for _, call in ipairs(part.calls) do
      for _, inner in ipairs(call.parts or {}) do visit(inner) end
    end
  end
  visit(low)
  local count = 0
  for _, s in ipairs(list) do
    if not s.name then
      repeat count = count + 1 until not ep.held["tensor_" .. count]
      s.name = "tensor_" .. count
    end
  end
  table.sort(list, function(a, b)
    local x, y = a.tensor:element_size(), b.tensor:element_size()
    if x ~= y then return x > y end
    return a.at < b.at
  end)
  return list
end

-- Tensors that are written to lie in memory of their own in C: another one that shows a part of it would not change.
local function check_written(state, file, ninputs)
  for i, s in ipairs(state) do
    for k, other in ipairs(state) do
      if i ~= k and file.written[ninputs + i - 1] and B.storage_id(s.of) == B.storage_id(other.of) then
        check.fail("[edge.export] the program writes to %s, whose memory it shows as %s, too: give them memory of "
          .. "their own", s.name, other.name)
      end
    end
  end
end

local function output_names(ep, count, given)
  local names, used = given or ep.program:result_names "output_", {}
  for i = 1, #names do
    if type(names[i]) ~= "string" or used[names[i]] then
      check.fail("[edge.export] output_names: expected different names as strings, got %s", tostring(names[i]))
    end
    used[names[i]] = true
  end
  if given and #given ~= count then
    check.fail("[edge.export] output_names: the program has %d outputs, got %d names", count, #given)
  end
  return names
end

local function check_program(ep)
  for name, s in each(ep.held) do
    if s.tensor:is_complex() then
      check.fail("[edge.export] %s is %s: the edge library has no complex numbers", name, s.tensor:dtype().name)
    end
  end
  for _, input in ipairs(ep.program.inputs) do
    if input.dtype:find "^complex" then
      check.fail("[edge.export] input %s is %s: the edge library has no complex numbers", input.name, input.dtype)
    end
  end
  if moth.get_default_dtype().name ~= "float32" then
    check.fail("[edge.export] the default dtype is %s, that of the edge library float32",
      moth.get_default_dtype().name)
  end
  for node in ep.program:calls() do
    if node.default_dtype then
      check.fail("[edge.export] %s (%s) was recorded where the default dtype was %s; the edge library's is float32",
        node.op, node.at, node.default_dtype)
    end
  end
end
M.check_program = check_program

--- The program without writes to what C gives; those to its tensors are in place, where they may be.
function M.without_writes(ep)
  if ep.program:writes() then ep = ep:decompose {} end -- of a file that an older moth wrote
  ep = setmetatable({ program = ep.program:without_copies() }, { __index = ep })
  ep.program = placed.of(ep)
  return ep
end

-- The arguments that are row-major at some sizes alone, as a part of a dimension may be: what composed ops do with them
-- differs. { call = { number = true } }; nil: there are none, or calls write.
local function either_of(ep)
  local is, found = {}, nil
  for _, point in ipairs((merging.points_of(ep.program))) do
    local ok, about = pcall(placed.look, ep, point)
    for _, node in ipairs(ok and ep.program.nodes or {}) do
      if #programs.targets(node) > 0 then return nil end
      for i = 1, node.args.n do
        local v = node.args[i]
        if type(v) == "table" and v.kind == "value" then
          local row_major = about.fakes[v.name]:is_contiguous()
          if is[v.name] == not row_major then
            found = found or {}
            found[node] = found[node] or {}
            found[node][i] = true
          end
          if is[v.name] == nil then is[v.name] = row_major end
        end
      end
    end
  end
  return found
end

--- What is written: { text = the program as JSON, state = its tensors, calls, outputs, needs = names of ops and
-- dtypes for `make edge`, low = what moth_lua says of the graph at the example's sizes }.
function M.lower(ep, o)
  check_program(ep)
  ep = M.without_writes(ep)
  local program, held = require("moth.export.frozen").freeze(ep)
  if program then
    local tensors = {}
    for name, s in each(held) do tensors[name] = s.tensor end
    ep = setmetatable({ program = program, held = held, tensors = tensors }, { __index = ep })
  end
  local function at_sizes(copied)
    return merging.at_sizes(ep.program, function(point)
      return lowered(ep.program, ep.tensors, point, copied)
    end, function(list, points, _, follow)
      return merge(list, { points = points, follow = follow })
    end, function(message) error(message, 0) end)
  end
  local ok, low = pcall(at_sizes)
  if not ok then
    local copied = either_of(ep)
    if not copied then error(low, 0) end
    low = at_sizes(copied)
  end
  return M.of_calls(ep, low, low.calls, o)
end

--- The same of calls of `low`, and of generated code among them, { kernel = { results, operands } }.
function M.of_calls(ep, low, calls, o)
  local state, file = state_of(ep, low), { calls = {}, written = {}, state_ids = {} }
  local self = setmetatable({ file = file, kernels = 0, of = {}, values = low.values, root = find_roots(low) }, Writer)
  for id, v in ipairs(low.values) do
    if v.kind == "input" then self.of[id] = v.input - 1 end
  end
  for i, s in ipairs(state) do file.state_ids[s.key] = #ep.program.inputs + i - 1 end
  for id, v in ipairs(low.values) do
    if v.tensor then self.of[id] = file.state_ids[key_of(v.tensor)] end
  end
  file.count = #ep.program.inputs + #state
  self:run(calls, low.calls)
  check_written(state, file, #ep.program.inputs)
  local outputs, given = {}, output_names(ep, #low.outputs, o.output_names)
  for i, id in ipairs(low.outputs) do outputs[i] = { name = given[i], id = self.of[id] } end
  local ok, cjson = pcall(require, "cjson.safe")
  if not ok then check.fail("[edge.export] files need lua-cjson (Debian: lua-cjson)") end
  local ops, dtypes = {}, {}
  local format = next(ep.program.dims) and 3 or next(file.written) and 2 or 1
  for _, call in ipairs(file.calls) do
    if call.op then ops[call.op] = true end
    if call.control then format = math.max(format, 2) end
  end
  local function note(part)
    for _, v in ipairs(part.values) do dtypes[v.dtype] = true end
    for _, call in ipairs(part.calls) do
      for _, inner in ipairs(call.parts or {}) do note(inner) end
    end
  end
  note(low)
  local needs = table.concat(tree.keys(ops), " ") .. ";" .. table.concat(tree.keys(dtypes), " ")
  return { needs = needs, text = program_text(self, ep, state, outputs, cjson.new().encode), state = state,
    calls = file.calls, low = low, outputs = outputs, format = "moth.edge " .. format }
end

function M.save(ep, path, o) M.write(M.lower(ep, o), path) end

--- Writes what M.lower gives.
function M.write(made, path)
  local names, tensors = {}, {}
  for i, s in ipairs(made.state) do names[i], tensors[i] = s.name, s.tensor end
  B.save_safetensors(path, names, tensors, { { "format", made.format }, { "moth", B.version_string },
    { "needs", made.needs },
    { "graph", made.text } }, false)
end

return M
