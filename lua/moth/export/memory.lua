--- Which values of a program show the same memory, and how: it runs once on tensors without values, whose storages and
-- strides tell.
local B = require "moth_lua"
local moth = require "moth"
local each = require "moth.each"
local programs = require "moth.export.program"
local sizes = require "moth.compile.sizes"
local ops = B.ops

local M = {}

local function list(t)
  local out = { kind = "list", n = #t }
  for i, v in ipairs(t) do out[i] = v end
  return out
end

local function is_name(v) return type(v) == "table" and (v.kind == "value" or v.kind == "state") end

-- What is known of a value or tensor of the program stands under this: a value may have a tensor's name.
local function key_of(v) return v.kind == "state" and "@" .. v.name or v.name end

--- Whether two tensors have the same sizes.
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
    if programs.controls[node.op] then
      about.links[name] = { of = of, node = node }
      return
    elseif not scatters[node.op] and same_geometry(t, r) then
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
      if held[id] then about.shared[key], about.shared[held[id]] = true, true end -- they show each other's memory
      fakes[name], held[id] = about.fakes[key], key
    end
    for _, node in ipairs(program.nodes) do
      for _, name in ipairs(node.out) do about.maker[name] = node end
    end
    program:run(fakes, dims, inputs, device, nil, {
      values = about.fakes,
      control = function(args, node) -- new results, or those of a branch that show what was there
        local out, operands = {}, args[args.n]
        local like = { device = operands[1] and operands[1]:device() }
        for i, meta in ipairs(node.metas) do
          like.dtype = B.dtype(meta.dtype)
          out[i] = ops.empty(sizes.shape_at(meta.shape, dims), like)
        end
        for k = 2, node.op == "cond" and 3 or 0 do
          for i, t in ipairs { args[k](unpack(operands)) } do
            out[i] = by_storage[B.storage_id(t)] and t or out[i]
          end
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

M.is_name, M.key_of, M.list, M.same_size, M.look = is_name, key_of, list, same_size, look

return M
