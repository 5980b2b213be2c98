--- What quantisation knows of a layer: its kind and sizes, apart from its weight.
--
--     { kind = "linear" | "conv2d" | "conv1d" | "embedding", relu = bool, stride =, padding =, dilation =, groups =,
--       text = the layer as it prints itself }
local moth = require "moth"
local class = require "moth.class"
local sizes = require "moth.nn.sizes"

local M = {}

-- Conv1d and Conv2d pad with zeros on both sides alike; nil where a layer does not.
local function padding_of(m)
  if m.padding_mode ~= "zeros" then return nil end
  if type(m.padding) ~= "string" then return m.padding end
  local pad, more = sizes.named_padding("padding", m.padding, m.kernel_size, m.stride, m.dilation)
  for i = 1, more and #m.kernel_size or 0 do if more[i] then return nil end end
  return type(pad) == "table" and pad or { pad, pad }
end

--- A layer's class, apart from those that compute its weight, by parametrizations or masks; second result: do they?
function M.class_of(m)
  local cls, computed = getmetatable(m), false
  for _, mark in ipairs { "_parametrized", "_pruned" } do
    if rawget(m, mark) then cls, computed = cls.super, true end
  end
  return cls, computed
end

--- A copy of a layer whose weight and bias are plain parameters.
function M.plain(m)
  local copy, utils = m:clone(), moth.nn.utils
  for _, name in ipairs { "weight", "bias" } do
    if rawget(copy, "_pruned") and copy._pruned[name] then utils.prune.remove(copy, name) end
    if utils.parametrize.is_parametrized(copy, name) then utils.parametrize.remove_parametrizations(copy, name) end
  end
  return copy
end

local MOST = 65536 -- products whose sum fits in int32

--- The description of a layer, or nil: it cannot be quantised, to so many bits (nil: 8).
function M.of(m, bits)
  local nn = moth.nn
  local cls = M.class_of(m)
  if rawget(m, "forward") then return nil end -- a function of its own
  local spec = { text = m:extra_repr(), relu = false }
  if cls == nn.Linear then
    spec.kind = "linear"
  elseif cls == nn.Embedding then
    if m.max_norm or m.sparse then return nil end
    spec.kind, spec.padding_idx, spec.by_freq = "embedding", m.padding_idx, m.scale_grad_by_freq
  elseif cls == nn.Conv2d or cls == nn.Conv1d then
    spec.kind = cls == nn.Conv2d and "conv2d" or "conv1d"
    spec.padding = padding_of(m)
    if not spec.padding then return nil end
    spec.stride, spec.dilation, spec.groups = m.stride, m.dilation, m.groups
  else
    return nil
  end
  local w = m.weight
  if w:numel() == 0 or bits ~= 4 and spec.kind ~= "embedding" and w:numel() / w:size(1) > MOST then return nil end
  return spec
end

--- The layer's result with this weight and bias.
function M.apply(spec, x, w, b)
  local y
  if spec.kind == "linear" then
    y = moth.linear(x, w, b)
  elseif spec.kind == "embedding" then
    y = moth.nn.functional.embedding(x, w, spec.padding_idx, nil, 2, spec.by_freq)
  else
    y = moth[spec.kind](x, w, b, spec.stride, spec.padding, spec.dilation, spec.groups)
  end
  return spec.relu and y:relu() or y
end

--- The classes that a list names, as a set; an error for one that cannot be quantised. `known`: kinds by class.
function M.classes(where, list, known)
  local check = require "moth.utils.check"
  local set = {}
  for i, cls in ipairs(list) do
    if known[getmetatable(cls)] then
      check.fail("[%s] layer %d of the list is one %s, not the class: write nn.%s", where, i, cls.__name, cls.__name)
    elseif not known[cls] then
      check.fail("[%s] layer %d of the list is %s, which cannot be quantised; nn.Linear and nn.Embedding can", where,
        i, type(cls) == "table" and rawget(cls, "__name") and "nn." .. cls.__name
          or type(cls) == "string" and "'" .. cls .. "'" or class.name(cls))
    end
    set[cls] = true
  end
  return set
end

return M
