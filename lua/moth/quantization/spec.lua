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

--- The description of a layer, or nil: it cannot be quantised.
function M.of(m)
  local nn = moth.nn
  local cls = getmetatable(m)
  local spec = { text = m:extra_repr(), relu = false }
  if m.weight and m.weight:numel() == 0 then return nil end
  if cls == nn.Linear then
    spec.kind = "linear"
  elseif cls == nn.Embedding then
    if m.max_norm or m.sparse then return nil end
    spec.kind = "embedding"
  elseif cls == nn.Conv2d or cls == nn.Conv1d then
    spec.kind = cls == nn.Conv2d and "conv2d" or "conv1d"
    spec.padding = padding_of(m)
    if not spec.padding then return nil end
    spec.stride, spec.dilation, spec.groups = m.stride, m.dilation, m.groups
  else
    return nil
  end
  return spec
end

--- The layer's result with this weight and bias.
function M.apply(spec, x, w, b)
  local y
  if spec.kind == "linear" then
    y = moth.linear(x, w, b)
  elseif spec.kind == "embedding" then
    y = moth.embedding(w, x)
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
    if not known[cls] then
      check.fail("[%s] layer %d of the list is %s, which cannot be quantised; nn.Linear and nn.Embedding can", where,
        i, type(cls) == "table" and rawget(cls, "__name") and "nn." .. cls.__name
          or type(cls) == "string" and "'" .. cls .. "'" or class.name(cls))
    end
    set[cls] = true
  end
  return set
end

return M
