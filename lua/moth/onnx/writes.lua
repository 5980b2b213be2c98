--- Calls that write in place, in a file whose values never change: what was written to, and all that shows the same
-- memory, stand for new values from then on.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local rules = require "moth.onnx.rules"

local M = {}

local function set(words)
  local out = {}
  for word in words:gmatch "%S+" do out[word] = true end
  return out
end

-- Ops made of others that give views always, and those that give a view or a copy.
local views = set "t movedim moveaxis view_as unflatten unfold expand_as broadcast_to swapaxes swapdims"
local either = set "reshape reshape_as flatten ravel contiguous to type_as"

local function is_view(op)
  local facts = B.op_facts(op)
  return views[op] or either[op] or facts ~= nil and facts.memory == "view"
end

-- ---- a view's new value, put into that of which it is a view -------------------------------------

local END = 2 ^ 53 -- behind the last element of any dimension

local function made(w, base, op, inputs, attributes)
  return rules.value(w:node(op, inputs, 1, attributes or {}, "")[1], base.dtype, base.shape)
end

local function axis_of(base, dim) return dim > 0 and dim - 1 or #base.shape + dim end

-- v in place of the elements first to last - 1, from 0, of a dimension; below 0: from the end. nil: not to be told.
local function between(w, base, v, axis, first, last)
  if type(first) ~= "number" or type(last) ~= "number" then return nil end
  local function part(from, to)
    local input = { base.name, w:ints({ from }).name, w:ints({ to }).name, w:ints({ axis }).name }
    return made(w, base, "Slice", input).name
  end
  local parts = { v.name }
  if first ~= 0 then table.insert(parts, 1, part(0, first)) end
  if not (first < 0 and last >= 0) and last < END then parts[#parts + 1] = part(last, END) end
  return made(w, base, "Concat", parts, { axis = axis })
end

local function reshaped(w, base, v)
  local shape = w:node("Shape", { base.name }, 1, {}, "")[1]
  return made(w, base, "Reshape", { v.name, shape }, { allowzero = 1 })
end

local back = {}
for op in each(set "view view_as unflatten squeeze unsqueeze detach alias") do back[op] = reshaped end

function back.select(w, base, v, dim, index)
  if type(index) ~= "number" then return nil end
  local axis, first = axis_of(base, dim), index > 0 and index - 1 or index
  return between(w, base, made(w, base, "Unsqueeze", { v.name, w:ints({ axis }).name }), axis, first, first + 1)
end

function back.narrow(w, base, v, dim, start, length)
  if type(start) ~= "number" or type(length) ~= "number" then return nil end
  local first = start > 0 and start - 1 or start
  return between(w, base, v, axis_of(base, dim), first, first + length)
end

function back.slice(w, base, v, dim, first, last, step)
  if (step or 1) ~= 1 then return nil end
  local axis = axis_of(base, dim)
  if last == nil or last == base.shape[axis + 1] then last = END end
  return between(w, base, v, axis, first or 0, last)
end

function back.permute(w, base, v, dims)
  local inverse = {}
  for i = 1, dims.n do inverse[axis_of(base, dims[i]) + 1] = i - 1 end
  return made(w, base, "Transpose", { v.name }, { perm = inverse })
end

function back.transpose(w, base, v, a, b)
  local dims = { n = #base.shape }
  for i = 1, dims.n do dims[i] = i end
  a, b = axis_of(base, a) + 1, axis_of(base, b) + 1
  dims[a], dims[b] = dims[b], dims[a]
  return back.permute(w, base, v, dims)
end

function back.t(w, base, v) return #base.shape < 2 and v or back.transpose(w, base, v, 1, 2) end

-- ---- who shows what ------------------------------------------------------------------------------

-- Names that the calls behind the at-th read, and the results.
local function read_later(program, at)
  local names = {}
  local function note(v)
    if type(v) ~= "table" then return end
    if v.kind == "value" then names[v.name] = true end
    for i = 1, v.kind == "list" and v.n or 0 do note(v[i]) end
  end
  for i = at + 1, #program.nodes do
    local args = program.nodes[i].args
    for k = 1, args.n do note(args[k]) end
  end
  for _, name in ipairs(program.outputs) do names[name] = true end
  return names
end

local function refuse(node, what, ...)
  check.fail("[onnx.export] %s (%s) writes to %s", node.op, node.at, what:format(...))
end

-- Notes that `name` shows what `of` does: as the view that a call gives, or, without one, as it is.
local function link(w, name, of, node)
  local root = w.root[of] or of
  w.root[name], w.links[name] = root, { of = of, node = node }
  w.family[root] = w.family[root] or {}
  table.insert(w.family[root], name)
end

--- Notes what the at-th call of the writer's program, whose results have values now, shows or writes to.
-- w.root: name of the value whose memory it is; w.links: { of = name, node = call or nil } of what shows another one;
-- w.family: root -> the names that show it, in their order.
function M.call(w, node, at)
  local first = node.args[1]
  if type(first) ~= "table" or first.kind ~= "value" and first.kind ~= "state" then return end
  if is_view(node.op) then
    for _, name in ipairs(node.out) do link(w, name, first.name, node) end
    return
  end
  if not node.op:find "_$" then return end
  local root, out = w.root[first.name] or first.name, node.out[1]
  local outside = w.ep.tensors[root] ~= nil
  for _, input in ipairs(w.program.inputs) do outside = outside or input.name == root end
  if outside then refuse(node, "%s, which is not the program's own\nHINT: call :eval() before the export", root) end
  link(w, out, first.name)
  w.values[first.name] = w.values[out]
  local live, others = read_later(w.program, at), false
  local family = w.family[root]
  for i = #family, 1, -1 do -- a view that is read wants what it is a view of
    local name = family[i]
    if live[name] and name ~= out and name ~= first.name then
      others = true
      live[w.links[name].of] = true
    end
  end
  if not others and (root == first.name or not live[root]) then return end
  local name, value, known = first.name, w.values[out], { [out] = true, [first.name] = true }
  while w.links[name] do
    local up = w.links[name]
    local base, view = w.values[up.of], up.node
    if view then
      local put = not either[view.op] and back[view.op]
      value = put and put(w, base, w:shifted(value, w.index[base.name]), unpack(view.args, 2, view.args.n))
      if not value then
        refuse(node, "memory that another view shows (%s at %s): use the op without _", view.op, view.at)
      end
      w.index[value.name] = w.index[base.name]
    end
    name = up.of
    w.values[name], known[name] = value, true
  end
  for _, other in ipairs(family) do
    local of, view = w.links[other].of, w.links[other].node
    if live[other] and not known[other] then
      if not view then
        w.values[other] = w.values[of]
      elseif either[view.op] then
        refuse(node, "memory that %s at %s shows, or has copied: use the op without _", view.op, view.at)
      else
        w:emit(view)
      end
    end
  end
end

return M
