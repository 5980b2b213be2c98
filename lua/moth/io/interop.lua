--- Files of other programs: `moth.interop`. moth.load recognises them by their content; these require one kind.
--
--     local sd = moth.interop.load_pth("resnet18.pth")
--     local missing, unexpected = model:load_state_dict(sd, { strict = false })
--
-- PyTorch's .pt is a Python program (a pickle) in an archive; moth allows a fixed list of names that make tensors and
-- plain values, and refuses all others by name. Dictionaries become tables (with unchanged keys: PyTorch counts from
-- 0), an OrderedDict a state dict, lists and tuples lists (None leaves a hole, and n is set), integers beyond 2^53
-- int64_t. Tensors of one storage share it.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local M = {}

local MAX_EXPANDED = 2 ^ 30

-- A sparse tensor of PyTorch's parts, whose positions count from 0; size: its place among them.
local function sparse(parts)
  local layout, size = parts[1], parts[1] == "torch.sparse_coo" and 4 or 5
  if layout ~= "torch.sparse_coo" and layout ~= "torch.sparse_csr" then
    check.fail("[load] the file has a sparse tensor of the layout %s, which moth does not have; save \z
      x.to_sparse_csr() or x.to_dense()", layout)
  end
  for k = 2, size do
    if k == size and type(parts[k]) ~= "table" or k < size and not B.is_tensor(parts[k]) then
      check.fail("[load] a sparse tensor of the layout %s without its parts (damaged?)", layout)
    end
  end
  local made = { layout = layout:sub(-3), size = parts[size], values = parts[size - 1], sorted = parts[5] == true }
  local first, second = parts[2] + 1, size == 5 and parts[3] + 1 or nil
  if second then made.crow, made.cols = first, second else made.indices = first end
  return require("moth.sparse").__from_parts(made)
end

local callbacks = {
  sparse = sparse,
  ordered = function(keys, values) return require("moth.nn.state_dict").from(keys, values) end,
  integer = function(high, low) return ffi.cast("int64_t", high) * 2LL ^ 32 + ffi.cast("int64_t", low) end,
  leaf = function(t) B.set_requires_grad(t, true) end,
}

--- Loads a file of a kind ("zip", "npy") for moth.load. place(t) moves a tensor to its device (nil: it stays).
-- is_copied: no tensor stays in the mapped file. offset, length: the bytes of an archive that lies in a file.
-- "records": the index of a distributed checkpoint of PyTorch, its objects as tables of their fields.
function M.load(kind, path, place, max_expanded, is_copied, offset, length)
  if kind == "records" then return B.load_records(path, callbacks) end
  if kind == "npy" then
    local t = B.ops.contiguous(B.load_npy(path))
    return place and place(t) or t
  end
  local with = { place = place }
  for name, fn in each(callbacks) do with[name] = fn end
  local what, value = B.load_zip(path, with, max_expanded or MAX_EXPANDED, is_copied, offset, length)
  if what == "npz" then
    for name, t in each(value) do value[name] = place and place(B.ops.contiguous(t)) or B.ops.contiguous(t) end
  end
  return value, what
end

-- A loader of one kind of file.
local function only(expected, fn)
  return signature(fn .. "(path path)", function(path)
    local kind, why = require("moth.io.kinds").of(path)
    if not kind then check.fail("[%s] %s: %s", fn, path, why) end
    local value, what = nil, kind
    if kind == "zip" then value, what = M.load(kind, path) elseif kind == "npy" then value = M.load(kind, path) end
    if what ~= expected then check.fail("[%s] %s: this is a file of another kind: %s", fn, path, what) end
    return value
  end)
end

--- Loads a file of torch.save: tensors, and tables, numbers and strings that contain them.
M.load_pth = only("pth", "load_pth")
--- The tensor of a .npy file.
M.load_npy = only("npy", "load_npy")
--- { name = tensor } of a .npz file.
M.load_npz = only("npz", "load_npz")

return signature.all(M, { "interop.load('zip'|'npy'|'records' kind, path path, any place?, \z
  number max_expanded?, bool is_copied?, number offset?, number length?)" })
