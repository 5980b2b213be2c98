--- A program as it is run: where the last value of an argument or a buffer comes from what was in it, each step writes
-- to its memory, so that a cache of which a call writes a row is not copied.
local B = require "moth_lua"
local moth = require "moth"
local each = require "moth.each"
local memory = require "moth.export.memory"
local programs = require "moth.export.program"
local sizes = require "moth.compile.sizes"

local M = {}

--- Which values show the same memory, at some sizes.
function M.look(ep, point)
  local tensors = {}
  for i, input in ipairs(ep.program.inputs) do
    local shape = sizes.shape_at(input.shape, point)
    tensors[i] = moth.fake_mode(B.ops.empty, shape, { dtype = B.dtype(input.dtype) })
  end
  return memory.look(ep.program, tensors, ep.held, { dims = point, device = "cpu" })
end

-- A view whose elements an op replaces: the op and its arguments behind the first; nil: there is none.
local function view_of(node)
  local a = node.args
  if node.op == "select_scatter" then return "select", { n = 2, a[3], a[4] } end
  if node.op == "slice_scatter" and a[4] and a[5] then return "slice", { n = 4, a[3], a[4], a[5], a[6] or 1 } end
  if node.op == "diagonal_scatter" then return "diagonal", { n = 3, a[3] or 0, a[4] or 1, a[5] or 2 } end
end

-- Of a call that makes a value like its first argument: whether it can write to that instead.
local function has_place(node)
  if node.op == "clone" or view_of(node) then return true end
  local facts = programs.facts(node.op)
  return not node.into and facts ~= nil and (facts.returns_self or #node.out == 1 and B.ops[node.op .. "_"] ~= nil)
end

-- The calls from `target` to its last value v, in their order; nil: one of them needs memory of its own.
local function chain_of(about, target, v, made, last_read)
  local chain, key = {}, memory.key_of(v)
  local fake = about.fakes[memory.key_of(target)]
  if last_read[about.root[key]] == math.huge then return nil end
  while key ~= memory.key_of(target) do
    local at = made[key]
    local node, t = at and at.node, about.fakes[key]
    local first = node and node.args[1]
    if not first or not memory.is_name(first) or not has_place(node) or t:dtype() ~= fake:dtype()
      or table.concat(t:size(), ",") ~= table.concat(fake:size(), ",") then
      return nil
    end
    table.insert(chain, 1, node)
    key = memory.key_of(first)
    local root = about.root[key]
    if last_read[root] > at.i or about.links[key] then return nil end
    local shown = false
    for i = 2, node.args.n do -- another argument shows it, too
      programs.visit(node.args[i], function(other) shown = shown or about.root[memory.key_of(other)] == root end)
    end
    if shown then return nil end
  end
  return chain
end

local function placed(ep, first_copy)
  local program = ep.program
  local about, made, last_read = M.look(ep, program.example), {}, {}
  local function read(v, i)
    programs.visit(v, function(name)
      local root = about.root[memory.key_of(name)]
      last_read[root] = math.max(last_read[root] or 0, i)
    end)
    for name in each(type(v) == "table" and v.kind == "program" and v.program.of_state or {}) do
      read({ kind = "state", name = name }, i)
    end
  end
  for i, node in ipairs(program.nodes) do
    for k = 1, i < first_copy and node.args.n or 0 do read(node.args[k], i) end
    if i >= first_copy and node.args[2].kind == "state" then read(node.args[2], math.huge) end
    for _, name in ipairs(node.out) do made[name] = { node = node, i = i } end
  end
  for _, name in ipairs(program.outputs) do
    read(about.fakes[name] and { kind = "value", name = name } or { kind = "state", name = name }, math.huge)
  end
  local instead, gone, places = {}, {}, {}
  for i = first_copy, #program.nodes do
    local node = program.nodes[i]
    local target, v = node.args[1], node.args[2]
    local chain = not about.shared[memory.key_of(target)] and v.kind == "value"
      and chain_of(about, target, v, made, last_read)
    for _, call in ipairs(chain or {}) do
      instead[call.out[1]], places[call] = target, target
    end
    gone[node] = chain
  end
  if next(gone) == nil then return program end
  local function now(v) return v.kind == "value" and instead[v.name] or v end
  local nodes, out = {}, {}
  for _, node in ipairs(program.nodes) do
    local target = places[node]
    local call = setmetatable({ args = { n = node.args.n } }, { __index = node })
    for k = 1, node.args.n do call.args[k] = programs.mapped(node.args[k], now) end
    if target and node.op ~= "clone" then
      local op, args = view_of(node)
      call.args[1] = target
      if op then
        local part = node.out[1] .. " part"
        nodes[#nodes + 1] = { op = op, args = { n = args.n + 1, target, unpack(args, 1, args.n) }, out = { part },
          metas = { { dtype = node.metas[1].dtype, shape = {} } }, at = node.at }
        call = { op = "copy_", args = { n = 2, { kind = "value", name = part }, call.args[2] }, out = node.out,
          metas = node.metas, at = node.at }
      elseif not programs.facts(node.op).returns_self then
        call.op = node.op .. "_"
      end
    end
    if not gone[node] and not (target and node.op == "clone") then nodes[#nodes + 1] = call end
  end
  for key, v in each(program) do out[key] = v end
  out.nodes, out.ends = nodes, nil
  return programs.new(out)
end

-- Whether the sizes of all results follow from those of the inputs.
local function has_sizes(program)
  for node in program:calls() do
    for _, meta in ipairs(node.metas) do
      for _, n in ipairs(meta.shape) do
        if n == "?" then return false end
      end
    end
  end
  return true
end

--- The program of an exported one that writes in place where nothing else reads what was there.
function M.of(ep)
  local first = ep.program:last_call() + 1
  if first > #ep.program.nodes or not has_sizes(ep.program) then return ep.program end
  return placed(ep, first)
end

return M
