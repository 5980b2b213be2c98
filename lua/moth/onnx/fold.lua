--- Weights that a model's nodes only turn round or cut are written that way: tools look for products with constants,
-- among them onnxruntime's quantisers, which leave a product with a Transpose of a constant as it is.
local B = require "moth_lua"
local ops = B.ops

-- The result of a node on constants, row-major; nil: it is another one.
local folds = {
  Transpose = function(t, given)
    local perm = {}
    for i = 1, t:dim() do perm[i] = given.perm and given.perm[i] + 1 or t:dim() + 1 - i end
    return ops.contiguous(ops.permute(t, perm))
  end,
  Slice = function(t, _, starts, ends, axes, steps)
    if not axes or steps and not ops.all(ops.eq(steps, 1)):item() then return nil end
    starts, ends, axes = starts:totable(), ends:totable(), axes:totable()
    for i, axis in ipairs(axes) do
      local dim = axis < 0 and axis + t:dim() + 1 or axis + 1
      local n = t:size(dim)
      local from = math.min(starts[i] < 0 and starts[i] + n or starts[i], n)
      local to = math.min(ends[i] < 0 and ends[i] + n or ends[i], n)
      if from < 0 or to < from then return nil end
      t = ops.narrow(t, dim, from + 1, to - from)
    end
    return ops.contiguous(t)
  end,
}

local function attributes_of(node)
  local given = {}
  for _, a in ipairs(node.attributes) do given[a[1]] = a[2] end
  return given
end

local function bytes(t) return t:numel() * t:element_size() end

-- What the readers of a constant make of it: { [node] = key }, { [key] = tensor }; nil: it is read otherwise, too, or
-- there would be more bytes than before.
local function made_of(name, constants, readers)
  local key_of, made, sum = {}, {}, 0
  for _, node in ipairs(readers) do
    local fold, rest, key = folds[node.op], {}, { node.op }
    if not fold or node.inputs[1] ~= name then return nil end
    for i = 2, #node.inputs do
      rest[i - 1] = constants[node.inputs[i]]
      key[i] = node.inputs[i]
      if not rest[i - 1] then return nil end
    end
    local given = attributes_of(node)
    key = table.concat(key, " ") .. " " .. table.concat(given.perm or {}, ",")
    if not made[key] then
      made[key] = fold(ops.detach(constants[name]), given, rest[1], rest[2], rest[3], rest[4])
      if not made[key] then return nil end
      sum = sum + bytes(made[key])
    end
    key_of[node] = key
  end
  if sum <= bytes(constants[name]) then return key_of, made end
end

--- The nodes that are left of a graph and its constants, { { name, tensor }, … }. fresh(name): a name that is free.
return function(nodes, initializers, fresh)
  local constants, readers, wanted = {}, {}, {}
  for _, pair in ipairs(initializers) do constants[pair[1]] = pair[2] end
  for _, node in ipairs(nodes) do
    -- their graphs read by name
    if node.op == "If" or node.op == "Loop" or node.op == "Scan" then return nodes, initializers end
    for _, name in ipairs(node.inputs) do
      readers[name] = readers[name] or {}
      table.insert(readers[name], node)
    end
  end
  local left, renamed, decided, list = {}, {}, {}, {}
  for i, pair in ipairs(initializers) do list[i] = pair end
  for _, node in ipairs(nodes) do
    local source = node.inputs[1]
    if folds[node.op] and constants[source] and B.dim(constants[source]) > 0 then
      if decided[source] == nil then
        local key_of, made = made_of(source, constants, readers[source])
        decided[source] = key_of and { key_of = key_of, made = made, names = {} } or false
      end
      local own = decided[source]
      if own then
        local key, out = own.key_of[node], node.outputs[1]
        local name = own.names[key]
        if not name then
          name = fresh(source .. "_" .. node.op:lower())
          own.names[key], constants[name] = name, own.made[key]
          list[#list + 1] = { name, own.made[key] }
        end
        renamed[out] = name
        readers[name] = readers[name] or {}
        for _, reader in ipairs(readers[out] or {}) do
          for i, input in ipairs(reader.inputs) do
            if input == out then reader.inputs[i] = name end
          end
          table.insert(readers[name], reader)
        end
      end
    end
    if not renamed[node.outputs[1]] then left[#left + 1] = node end
  end
  for _, node in ipairs(left) do
    for _, name in ipairs(node.inputs) do wanted[name] = true end
  end
  local kept = {}
  for _, pair in ipairs(list) do
    if wanted[pair[1]] or not readers[pair[1]] then kept[#kept + 1] = pair end
  end
  return left, kept
end
