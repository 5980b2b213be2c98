--- Computes once what a program computes of its tensors alone, as graph/fold.c does in a graph.
local B = require "moth_lua"
local moth = require "moth"
local each = require "moth.each"
local programs = require "moth.export.program"

local M = {}

local SMALL = 4096 -- bytes that a file may grow by for a tensor that goes

-- Calls fn(v) for each value and tensor of the program that a call reads.
local function each_name(node, fn)
  programs.visit_call(node, fn)
  for _, part in ipairs(programs.parts(node)) do
    part:find(function(inner) programs.visit_call(inner, fn) end)
  end
end

-- Whether a call gives the same each time, if its tensors are the same.
local function repeats(node)
  local facts = programs.facts(node.op)
  local pure = facts and (facts.drops or facts.memory == "view") and not facts.draws and not facts.defined
  if not pure or node.autocast or node.into or #programs.targets(node) > 0 then return false end
  local function plain(v)
    if type(v) == "table" and v.kind == "list" then
      for i = 1, v.n do
        if not plain(v[i]) then return false end
      end
    end
    return type(v) ~= "table" or v.kind ~= "size" and v.kind ~= "program"
  end
  for i = 1, node.args.n do
    if not plain(node.args[i]) then return false end
  end
  return true
end

local function bytes_of(node)
  local all = 0
  for _, meta in ipairs(node.metas) do
    local n = B.dtype(meta.dtype).itemsize
    for _, size in ipairs(meta.shape) do n = type(size) == "number" and n * size or math.huge end
    all = all + n
  end
  return all
end

-- Which calls are of constants alone, and how many bytes calls make of each value and tensor, infinitely many where one
-- reads it that is not of constants.
local function look(program)
  local constant, becomes, seen = {}, {}, {}
  for _, node in ipairs(program.nodes) do
    local is, some, text = repeats(node), false, programs.call_text(node)
    each_name(node, function(v)
      is, some = is and (v.kind == "state" or constant[v.name]), true
    end)
    is = is and some
    each_name(node, function(v)
      local more = not is and math.huge or seen[text] and 0 or bytes_of(node)
      becomes[v.kind .. v.name] = (becomes[v.kind .. v.name] or 0) + more
    end)
    constant[node], seen[text] = is, is
    for _, name in ipairs(node.out) do constant[name] = is end
  end
  for _, name in ipairs(program.outputs) do
    becomes["value" .. name], becomes["state" .. name] = math.huge, math.huge
  end
  return constant, becomes
end

--- The exported program with tensors in the place of calls on tensors of it alone. A tensor that other calls read, too,
-- or that would become more bytes, stays as it is.
function M.fold(ep)
  local constant, becomes = look(ep.program)
  local tensors, renamed, results, nodes, of_state, program = {}, {}, {}, {}, {}, {}
  for name, t in each(ep.tensors) do tensors[name] = t end
  local function now(v) return v.kind == "value" and renamed[v.name] or v end
  local function hold(base, t)
    local name, n = base, 1
    while tensors[name] do
      n = n + 1
      name = base .. "_" .. n
    end
    tensors[name] = t
    return { kind = "state", name = name }
  end
  for _, node in ipairs(ep.program.nodes) do
    local call = setmetatable({ args = { n = node.args.n } }, { __index = node })
    for i = 1, node.args.n do call.args[i] = programs.mapped(node.args[i], now) end
    local folds, first = constant[node], nil
    each_name(node, function(v)
      local t = tensors[now(v).name]
      first = first or now(v).name
      folds = folds and t and becomes[v.kind .. v.name] <= t:numel() * t:element_size() + SMALL
    end)
    if folds then
      local text = programs.call_text(call)
      if not results[text] then
        results[text] = { moth.no_grad(function()
          local out = { programs.new({ inputs = {}, nodes = { call }, outputs = node.out }):run(tensors, {}, {}) }
          for i, t in ipairs(out) do out[i] = hold(first .. "_" .. node.op, B.ops.contiguous(t:detach())) end
          return unpack(out)
        end) }
      end
      for i, name in ipairs(node.out) do renamed[name] = results[text][i] end
    else
      nodes[#nodes + 1] = call
      each_name(call, function(v) of_state[v.name] = v.kind == "state" or of_state[v.name] end)
    end
  end
  if #nodes == #ep.program.nodes then return ep end
  for key, v in each(ep.program) do program[key] = v end
  program.nodes, program.ends, program.of_state = nodes, nil, of_state
  for _, name in ipairs(program.outputs) do of_state[name] = ep.program.of_state[name] or of_state[name] end
  return setmetatable({ program = programs.new(program), tensors = tensors }, { __index = ep })
end

return M
