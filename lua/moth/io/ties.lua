--- Tensors of a list that share memory, so that a file can keep it: tied weights, a tensor and its views.
--
--     local bases, places = ties.plan(tensors)
--
-- bases: the tensors to write, each once. places[i]: { base = number, view = nil: it is the base, or { size,
-- stride, offset } in the elements of the base }. Those that share elements have one base: the one among them that has
-- all their elements, in order; else their elements as one vector (flat = true in places). Tensors whose elements lie
-- apart have bases of their own, even in one storage: which nothing but as_strided could tell.
local ffi = require "ffi"
local B = require "moth_lua"
local each = require "moth.each"
local ops = B.ops

local M = {}

local function extent(size, stride)
  local n = 1
  for d = 1, #size do n = n + (size[d] - 1) * stride[d] end
  return n
end

local function entry(i, t)
  local e = { i = i, t = t }
  if B.numel(t) == 0 or B.is_fake(t) then return e end
  e.size, e.stride, e.item = B.size(t), B.stride(t), B.tensor_dtype(t).itemsize
  e.n = extent(e.size, e.stride)
  e.from = tonumber(ffi.cast("uintptr_t", B.data_ptr(t)))
  e.to = e.from + e.n * e.item
  e.kind = tostring(B.tensor_device(t)) .. B.tensor_dtype(t).name
  return e
end

-- The entries in groups of those whose elements overlap.
local function groups(entries)
  local by_kind, out = {}, {}
  for _, e in ipairs(entries) do
    if e.kind then
      by_kind[e.kind] = by_kind[e.kind] or {}
      table.insert(by_kind[e.kind], e)
    else
      out[#out + 1] = { e }
    end
  end
  for _, list in each(by_kind) do
    table.sort(list, function(a, b) return a.from ~= b.from and a.from < b.from or a.from == b.from and a.i < b.i end)
    local group
    for _, e in ipairs(list) do
      if group and e.from < group.to and (e.from - group.from) % e.item == 0 then
        group[#group + 1] = e
        group.to = math.max(group.to, e.to)
      else
        group = { e, from = e.from, to = e.to }
        out[#out + 1] = group
      end
    end
  end
  for _, g in ipairs(out) do
    table.sort(g, function(a, b) return a.i < b.i end)
  end
  table.sort(out, function(a, b) return a[1].i < b[1].i end)
  return out
end

local function same(a, b)
  if a.from ~= b.from or #a.size ~= #b.size then return false end
  for d = 1, #a.size do
    if a.size[d] ~= b.size[d] or a.size[d] > 1 and a.stride[d] ~= b.stride[d] then return false end
  end
  return true
end

-- The entry that has all elements of a group, in order; or the first, if all are the same.
local function base_of(group)
  local alike = true
  for _, e in ipairs(group) do
    alike = alike and same(e, group[1])
    if e.from == group.from and e.to == group.to and B.is_contiguous(e.t) then return e end
  end
  return alike and group[1] or nil
end

--- See above.
function M.plan(tensors)
  local entries, bases, places = {}, {}, {}
  for i, t in ipairs(tensors) do entries[i] = entry(i, t) end
  for _, group in ipairs(groups(entries)) do
    local base, k, e1 = group[1], #bases + 1, group[1]
    if group[2] then base = base_of(group) end
    bases[k] = base and base.t or ops.as_strided(B.alias(e1.t, false), { (group.to - group.from) / e1.item }, { 1 },
      e1.t:storage_offset() - (e1.from - group.from) / e1.item)
    for _, e in ipairs(group) do
      local place = { base = k, flat = base == nil or nil, from = base and base.i or group[1].i }
      if base ~= e and not (base and same(e, base)) then
        place.view = { e.size, e.stride, (e.from - group.from) / e.item }
      end
      places[e.i] = place
    end
  end
  return bases, places
end

--- The view of a base; nil: it does not lie within the base.
function M.view(base, size, stride, offset)
  local function whole(v) return type(v) == "number" and v >= 0 and v == math.floor(v) and v < 2 ^ 53 end
  if type(size) ~= "table" or type(stride) ~= "table" or #size ~= #stride or not whole(offset) then return nil end
  for d = 1, #size do
    if not whole(size[d]) or size[d] == 0 or not whole(stride[d]) then return nil end
  end
  if offset + extent(size, stride) > B.numel(base) or not B.is_contiguous(base) then return nil end
  local plain = B.alias(base, false)
  return B.alias(ops.as_strided(plain, size, stride, plain:storage_offset() + offset), false)
end

return M
