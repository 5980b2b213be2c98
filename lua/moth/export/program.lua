--- What an exported function does, as data: inputs, calls of ops in their order, outputs. It is run, printed, checked
-- and written to files; docs/export.md.
--
--     program.inputs    { { name = "x", dtype = "float32", shape = { "batch" or size, … } }, … }
--     program.nodes     { { op = "linear", args = { n =, … }, out = { names of results },
--                       metas = { { dtype =, shape = }, … }, at = "model.lua:12",
--                       autocast = { cpu = "bfloat16" } or nil, default_dtype = nil: float32 }, … }
--     program.outputs   names of values and of tensors of the state
--     program.dims      { name = { min =, max = } }, program.example = { name = size }
--
-- An argument is a number, string, boolean, dtype or nil as the op takes it, or a table with a `kind`: "value" and
-- "state" (name), "size" (a formula of moth.compile.sizes), "device" (type), "list" (n, items), "program" (of cond and
-- while_loop). Positions count from 1, as in Lua.
local B = require "moth_lua"
local check = require "moth.utils.check"
local is_recorded = require "moth.export.active"
local sizes = require "moth.compile.sizes"
local each = require "moth.each"
local within = require "moth.dispatch.within"

local M = {}

local Program = {}
Program.__index = Program
Program.__module_name = "moth.export.Program"

--- Makes a table of this form a program.
function M.new(t) return setmetatable(t, Program) end

local known_facts = {}

--- What moth_lua says of an op; nil: there is none.
function M.facts(op)
  local facts = known_facts[op]
  if not facts then
    facts = B.op_facts(op)
    if not op:find("::", 1, true) then known_facts[op] = facts end -- one's own may be defined anew
  end
  return facts
end

--- The facts of a call's op, and whether the call writes the op's result to its first argument ("relu_").
function M.call_facts(op)
  local facts = M.facts(op)
  if facts then return facts, false end
  facts = M.facts((op:gsub("_$", "")))
  return facts, facts ~= nil
end

--- Ops that are calls of other programs, by name: function(args, node, env) -> results. moth.export.control fills it.
M.controls = {}

-- ---- running -------------------------------------------------------------------------------------

local function resolve(v, env)
  if type(v) ~= "table" then return v end
  local kind = v.kind
  if kind == "value" then return env.values[v.name] end
  if kind == "state" then return env.state[v.name] end
  if kind == "size" then return sizes.evaluate(v, env.dims) end
  if kind == "device" then return env.device or v.name end
  if kind == "program" then
    return function(...)
      return v.program:run(env.state, env.dims, { n = select("#", ...), ... }, env.device, env.decompose,
        env.watch and { control = env.watch.control })
    end
  end
  local list = {}
  for i = 1, v.n do list[i] = resolve(v[i], env) end
  return list
end

--- Calls fn(v) for each value and tensor of the program in an argument.
function M.visit(v, fn)
  if type(v) ~= "table" then return end
  if v.kind == "value" or v.kind == "state" then return fn(v) end
  for i = 1, v.kind == "list" and v.n or 0 do M.visit(v[i], fn) end
end

--- The same for all arguments of a call, what it writes to by `out` among them.
function M.visit_call(node, fn)
  for i = 1, node.args.n do M.visit(node.args[i], fn) end
  for _, v in ipairs(node.into or {}) do M.visit(v, fn) end
end

--- An argument with fn(v) in the place of each value and tensor of the program.
function M.mapped(v, fn)
  if type(v) ~= "table" then return v end
  if v.kind == "value" or v.kind == "state" then return fn(v) end
  if v.kind ~= "list" then return v end
  local out = { kind = "list", n = v.n }
  for i = 1, v.n do out[i] = M.mapped(v[i], fn) end
  return out
end

--- The programs among a call's arguments.
function M.parts(node)
  local out = {}
  for i = 1, node.args.n do
    local v = node.args[i]
    if type(v) == "table" and v.kind == "program" then out[#out + 1] = v.program end
  end
  return out
end

--- fn(node, its number, its program) of the calls of the program, and of those in it, in their order: the first result
-- that is not nil or false.
function Program:find(fn)
  for i, node in ipairs(self.nodes) do
    local found = fn(node, i, self)
    for _, part in ipairs(found and {} or M.parts(node)) do found = found or part:find(fn) end
    if found then return found end
  end
end

--- Iterates over these calls.
function Program:calls()
  local list, i = {}, 0
  self:find(function(node) list[#list + 1] = node end)
  return function()
    i = i + 1
    return list[i]
  end
end

-- The values that are used for the last time by each node: they are let go behind it.
local function last_uses(program)
  local at, ends = {}, {}
  for i, node in ipairs(program.nodes) do
    for _, name in ipairs(node.out) do at[name] = i end
    M.visit_call(node, function(v)
      if v.kind == "value" then at[v.name] = i end
    end)
  end
  for _, name in ipairs(program.outputs) do at[name] = nil end
  for name, i in each(at) do
    ends[i] = ends[i] or {}
    table.insert(ends[i], name)
  end
  return ends
end

--- The op with a name, of the table or of one's own; nil: there is none.
function M.op(name)
  if B.ops[name] then return B.ops[name] end
  return M.facts(name) and require("moth.dispatch.ops").object(name) or nil
end

-- The op by what its record says that it is made of.
local function run_parts(node, args)
  local records = require "moth.records"
  local record, named, at = require("moth.dispatch.ops").get(node.op), {}, 0
  for _, a in ipairs(record.args) do
    if a.type ~= "INDEX_BASE" then
      at = at + 1
      named[a.name] = args[at]
    end
  end
  return records.run(record, records.canonical(record, named))
end

-- Files have no weights in the layout of the kernels (moth.quantization): a program packs those of its state once.
local packs = { linear_int8 = 8, linear_int8_dynamic = 6, conv2d_int8 = 12 } -- the argument

local function give_packed(node, args)
  local at, w = packs[node.op], args[2]
  if is_recorded() then return end
  if B.compile.recording() then -- nothing may be asked of the tensor: Program:pack came before, or nobody did
    if node.packed and node.packed.of == w then args.n, args[at] = at, node.packed.tensor end
    return
  end
  if args[at] ~= nil or node.args[2].kind ~= "state" or B.is_fake(w) or B.tensor_device(w).type ~= "cpu" then return end
  local p = node.packed
  if not p or p.of ~= w or p.version ~= B.version(w) then
    local conv = node.op == "conv2d_int8"
    local dilation = conv and args[9] or 1
    if type(dilation) == "table" then dilation = dilation[#dilation] end
    p = { of = w, version = B.version(w),
      tensor = B.ops.pack_int8(w, conv and args[10] or 1, conv and dilation > 1 and B.size(w, 4) > 1) }
    node.packed = p
  end
  args.n, args[at] = at, p.tensor
end

local function call(node, args, env)
  local control = M.controls[node.op]
  if control then return (env.watch and env.watch.control or control)(args, node, env) end
  if packs[node.op] and not (env.decompose and env.decompose[node.op]) then give_packed(node, args) end
  local parts = env.decompose and env.decompose[node.op]
  if parts then
    if parts ~= true then return parts(unpack(args, 1, args.n)) end
    return run_parts(node, args)
  end
  if env.watch and env.watch.before then env.watch.before(node, args) end
  local fn = M.op(node.op)
  if not fn then check.fail("[export] there is no op '%s' (at %s)", node.op, node.at) end
  if node.into then
    local out = {}
    for i, v in ipairs(node.into) do out[i] = resolve(v, env) end
    args.n = args.n + 1
    args[args.n] = { out = #out == 1 and out[1] or out }
  end
  return fn(unpack(args, 1, args.n))
end

-- The dtypes of factories, ones({ 2 }), and of autocast are those of the call's record, not of the caller.
local function set_default(dtype)
  local was = B.default_dtype()
  B.default_dtype(dtype)
  return was
end

local function autocast_call(node, args, env)
  return within(B.set_autocast, B.set_autocast, node.autocast, call, node, args, env)
end

--- Runs it: `state` are tensors by name, dims sizes by name, inputs a list. Returns the outputs. decompose: ops by name
-- that are computed by what they are made of: true, by the record; a function of the call's arguments. watch: who looks
-- on, { control(args, node) = what is called for cond and while_loop, before(node, args), behind(node) = called around
-- each call, values = {}, where they stay }; each may be left out.
function Program:run(state, dims, inputs, device, decompose, watch)
  self.ends = self.ends or last_uses(self)
  local values, default = watch and watch.values or {}, B.default_dtype().name
  local env = { values = values, state = state, dims = dims, device = device, decompose = decompose, watch = watch }
  for i, input in ipairs(self.inputs) do values[input.name] = inputs[i] end
  for i, node in ipairs(self.nodes) do
    local args = { n = node.args.n }
    for k = 1, args.n do args[k] = resolve(node.args[k], env) end
    local out, fn, results = node.out, node.autocast and autocast_call or call, nil
    if (node.default_dtype or "float32") ~= default then
      results = { within(set_default, B.default_dtype, node.default_dtype or "float32", fn, node, args, env) }
    elseif #out == 1 then
      values[out[1]] = fn(node, args, env)
    else
      results = { fn(node, args, env) }
    end
    if results then
      for k, name in ipairs(out) do values[name] = results[k] end
    end
    if watch and watch.behind then watch.behind(node) end
    for _, name in ipairs(not (watch and watch.values) and self.ends[i] or {}) do values[name] = nil end
  end
  local outputs = {}
  for i, name in ipairs(self.outputs) do
    local v = values[name]
    if v == nil then v = state[name] end
    outputs[i] = v
  end
  return unpack(outputs, 1, #self.outputs)
end

--- The names of the outputs: the keys of the tables that they stand in, joined by dots; prefix .. its number for one
-- that has none.
function Program:result_names(prefix)
  local names, used, at = {}, {}, 0
  local function visit(node, path, named)
    if node then
      for i, key in ipairs(node.keys) do
        local word = type(key) == "number" and ("%d"):format(key) or tostring(key)
        visit(node[i], path and path .. "." .. word or word, named or type(key) == "string")
      end
      return
    end
    at = at + 1
    local n = self.results.leaves[at].tensor
    if not n then return end
    local name = named and path:gsub("^%d", prefix .. "%0") or prefix .. n
    names[n] = used[name] and name .. "_" .. n or name
    used[names[n]] = true
  end
  local spec = self.results.spec -- of the list of all values that the function returns
  visit(#spec.keys == 1 and spec[1] or spec)
  for i = 1, #self.outputs do names[i] = names[i] or prefix .. i end
  return names
end

--- Takes out calls that only make values which nothing reads; may(node), if given, says which may go.
function Program:prune(may)
  local read, kept = {}, {}
  local function note(v)
    if v.kind == "value" then read[v.name] = true end
  end
  for _, name in ipairs(self.outputs) do read[name] = true end
  for _, name in each(self.mutated or {}) do read[name] = true end
  for i = #self.nodes, 1, -1 do
    local node = self.nodes[i]
    local facts = M.facts(node.op)
    local pure = facts and facts.drops and not facts.draws and not node.into
    if may then pure = may(node) end
    local used = not pure
    for _, name in ipairs(node.out) do used = used or read[name] end
    if used then
      table.insert(kept, 1, node)
      M.visit_call(node, note)
    end
  end
  self.nodes, self.ends = kept, nil
end

--- Packs the weights that are not packed yet, so that a recorded run does not do it in each call.
function Program:pack(state)
  for _, node in ipairs(self.nodes) do
    if packs[node.op] then
      local args = { n = node.args.n }
      for i = 1, args.n do
        local v = node.args[i]
        if type(v) ~= "table" or v.kind == "state" or v.kind == "list" then args[i] = resolve(v, { state = state }) end
      end
      give_packed(node, args)
    end
  end
end

-- ---- writes --------------------------------------------------------------------------------------

--- The values and tensors of the program that a call writes to, in their order, and the numbers of the arguments they
-- stand in.
function M.targets(node)
  local out, at, i = {}, {}, 0
  local function add(v, k)
    M.visit(v, function(name) out[#out + 1], at[#at + 1] = name, k end)
  end
  local facts, inplace = M.call_facts(node.op)
  if inplace then add(node.args[1], 1) end
  for _, a in ipairs(facts and not inplace and facts.args or {}) do
    if a.type ~= "INDEX_BASE" then
      i = i + 1
      if a.mutated then add(node.args[i], i) end
      if a.name == "training" and a.type == "BOOL" and not node.args[i] then out, at = {}, {} end -- of a norm
    end
  end
  for _, v in ipairs(node.into or {}) do add(v, 0) end
  return out, at
end

-- Whether v is an input or a tensor of the program.
local function is_outside(self, v)
  local found = v.kind == "state"
  for _, input in ipairs(self.inputs) do found = found or input.name == v.name end
  return found
end

--- The number of the last call that is not one of the copies to inputs and tensors of the program at the end.
function Program:last_call()
  local nodes, last = self.nodes, #self.nodes
  while last > 0 and nodes[last].op == "copy_" and is_outside(self, nodes[last].args[1]) do last = last - 1 end
  return last
end

--- Whether it, or a program in it, writes otherwise than by these copies.
function Program:writes()
  return self:find(function(node, i, own)
    return not node.fresh and #M.targets(node) > 0 and i <= own:last_call()
  end) or false
end

--- What it, or a program in it, writes to that is not its own: { kind, name }, and the call; nil: nothing.
function Program:written_outside()
  local writer
  return self:find(function(node, _, own)
    writer = node
    for _, target in ipairs((M.targets(node))) do
      if is_outside(own, target) then return target end
    end
  end), writer
end

--- The program without the copies to its inputs at the end.
function Program:without_copies()
  local last, out = self:last_call(), {}
  for key, v in each(self) do out[key] = v end
  out.nodes, out.ends = {}, nil
  for i, node in ipairs(self.nodes) do
    if i <= last or node.args[1].kind == "state" then table.insert(out.nodes, node) end
  end
  return M.new(out)
end

-- ---- text ----------------------------------------------------------------------------------------

--- A shape with its formulas.
function M.shape_text(shape)
  local list = {}
  for i, n in ipairs(shape) do
    list[i] = type(n) == "table" and sizes.text(n) or type(n) == "number" and ("%d"):format(n) or tostring(n)
  end
  return "[" .. table.concat(list, ", ") .. "]"
end

local function meta_text(meta) return meta.dtype .. M.shape_text(meta.shape) end

local function arg_text(v)
  if type(v) == "string" then return "'" .. v .. "'" end
  if B.is_dtype(v) then return v.name end
  if type(v) ~= "table" then return tostring(v) end
  if v.kind == "value" then return "%" .. v.name end
  if v.kind == "state" then return v.name end
  if v.kind == "size" then return sizes.text(v) end
  if v.kind == "device" then return "'" .. v.name .. "'" end
  if v.kind == "program" then return ("program of %d calls"):format(#v.program.nodes) end
  local list = {}
  for i = 1, v.n do list[i] = arg_text(v[i]) end
  return "{" .. table.concat(list, ", ") .. "}"
end

local function trimmed(args)
  local n, list = args.n, {}
  while n > 0 and args[n] == nil do n = n - 1 end
  for i = 1, n do list[i] = arg_text(args[i]) end
  return table.concat(list, ", ")
end

--- A call's op and arguments: the text of equal calls is equal.
function M.call_text(node) return node.op .. "(" .. trimmed(node.args) .. ")" end

local function node_lines(program, indent, lines)
  for _, node in ipairs(program.nodes) do
    local metas, names = {}, {}
    for i, meta in ipairs(node.metas) do metas[i] = meta_text(meta) end
    for i, name in ipairs(node.out) do names[i] = "%" .. name end
    lines[#lines + 1] = ("%s%-56s %s  %s"):format(indent, table.concat(names, ", ") .. " = " .. M.call_text(node),
      table.concat(metas, ", "), node.at):gsub("%s+$", "")
    for k, part in ipairs(M.parts(node)) do
      lines[#lines + 1] = indent .. "  argument " .. (node.op == "cond" and k + 1 or k) .. ":"
      node_lines(part, indent .. "    ", lines)
    end
  end
  local names = {}
  for i, name in ipairs(program.outputs) do names[i] = program.of_state[name] and name or "%" .. name end
  lines[#lines + 1] = indent .. "return " .. table.concat(names, ", ")
end

function Program:__tostring()
  local inputs, lines = {}, {}
  for i, input in ipairs(self.inputs) do inputs[i] = ("%%%s: %s"):format(input.name, meta_text(input)) end
  lines[1] = ("program(%s)"):format(table.concat(inputs, ", "))
  node_lines(self, "  ", lines)
  return table.concat(lines, "\n")
end

M.Program = Program
return M
