--- A model's ops as TensorFlow's GraphDef, which TensorBoard draws.
local pb = require "moth.tensorboard.proto"
local class = require "moth.class"
local B = require "moth_lua"
local each = require "moth.each"
local M = {}

local function node(name, op, inputs, shape)
  local parts = { pb.bytes(1, name), pb.bytes(2, op) }
  for _, i in ipairs(inputs) do parts[#parts + 1] = pb.bytes(3, i) end
  if shape then
    local dims = {}
    for i, s in ipairs(shape) do dims[i] = pb.bytes(2, pb.int(1, s)) end
    local value = pb.bytes(1, pb.bytes(7, table.concat(dims)))
    parts[#parts + 1] = pb.bytes(5, pb.bytes(1, "_output_shapes") .. pb.bytes(2, value))
  end
  return pb.bytes(1, table.concat(parts))
end

--- model: a module or a function, which is called once with the arguments, without gradients.
function M.define(model, ...)
  local names, used, nodes, kept = {}, {}, {}, {}
  local function unique(name)
    used[name] = (used[name] or 0) + 1
    return used[name] == 1 and name or name .. "_" .. used[name] - 1
  end
  -- Views share storage and results may be made in place: a tensor is identified by its address and shape. Named
  -- tensors are retained, so that no address is used twice.
  local function id(t) return B.data_ptr(t) .. ":" .. table.concat(B.size(t), ",") end
  local function name_tensor(t, name, op, inputs)
    kept[#kept + 1] = t
    names[id(t)] = name
    nodes[#nodes + 1] = node(name, op, inputs, B.size(t))
  end
  if class.is_a(model, require("moth.nn.module")) then
    for name, p in model:named_parameters() do name_tensor(p, (name:gsub("%.", "/")), "Parameter", {}) end
  end
  local args = { ... }
  for i, a in ipairs(args) do
    if B.is_tensor(a) then name_tensor(a, unique("input" .. (i > 1 and i or "")), "Placeholder", {}) end
  end
  local function inputs_of(values, out)
    for _, v in each(values) do
      if B.is_tensor(v) then out[#out + 1] = names[id(v)]
      elseif type(v) == "table" then inputs_of(v, out) end
    end
    return out
  end
  local moth = require "moth"
  moth.no_grad(function()
    require("moth.dispatch").dispatch_mode(function(func, values, kwargs)
      local results = { func(unpack(values)) }
      local inputs = inputs_of(kwargs or {}, inputs_of(values, {}))
      local name = unique(func.name)
      for _, r in ipairs(results) do
        if B.is_tensor(r) then name_tensor(r, name, func.name, inputs) end
      end
      return unpack(results)
    end, function() return model(unpack(args)) end)
  end)
  return table.concat(nodes) .. pb.bytes(4, pb.int(1, 22))
end

return M
