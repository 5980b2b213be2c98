--- Sparse tensors: values and their places; all other elements are 0.
--
--     local s = moth.sparse_coo_tensor(moth.tensor{ { 1, 3 }, { 2, 1 } }, moth.tensor{ 5, 7 }, { 3, 2 })
--     s:to_dense(), s:indices(), s:values(), s:mm(x), s * 2, s + s, s:t(), moth.save(s, path)
--
-- A class of Lua over ordinary tensors: a pattern (pattern.lua), which is shared and never changes, and values
-- (nnz, …), through which gradients go. Layouts: COO, of any number of sparse dimensions in front and dense ones behind
-- them, and CSR, of matrices. A call of an op with a sparse tensor comes here by __op (src/lua/call.c): to the method
-- of that name, or an error that names to_dense().
-- This file: facts and conversions. arithmetic.lua, products.lua, shapes.lua and reductions.lua add methods.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local Pattern = require "moth.sparse.pattern"
local ops = B.ops

local Sparse = class("SparseTensor")
local Size = getmetatable(moth.zeros(0):size())
local M = { SparseTensor = Sparse }

local function is_sparse(v) return type(v) == "table" and getmetatable(v) == Sparse end
signature.type("Sparse", is_sparse, "a sparse tensor")
local double, float = ffi.typeof("complex"), ffi.typeof("complex float")
local function is_complex(v) return ffi.istype(double, v) or ffi.istype(float, v) end
signature.type("complex", is_complex, "a complex number")
function M.is_number(v) return type(v) == "number" or is_complex(v) end
M.is_sparse = is_sparse

--- A sparse tensor; moth.sparse has the constructors for users.
function M.new(pattern, values, size)
  return setmetatable({ pattern = pattern, elements = values, full = setmetatable(size, Size) }, Sparse)
end
local new = M.new
--- Other values at the same places.
function M.with(s, values) return new(s.pattern, values, s.full) end
local with = M.with

local methods = {} -- of every sparse tensor
M.methods = methods

--- Defines a method by its signature.
function M.method(text, fn) methods[text:match("^[%w_]+")] = signature.method(text, fn) end
local method = M.method

local function unknown(key)
  if rawget(require("moth.tensor").methods, key) then
    check.fail("[%s] takes no sparse tensor; use s:to_dense():%s(…)", key, key)
  end
  local names = {}
  for name in each(methods) do names[#names + 1] = name end
  check.fail("a sparse tensor has no method or field '%s'%s", key, check.suggest(key, names))
end

function Sparse.__index(self, key)
  local value = methods[key]
  if value ~= nil then return value end
  if key == "shape" then return self:size() end
  if key == "T" then return self:t() end
  if key == "grad" then
    local g = self.elements.grad
    return g and with(self, g) or nil
  end
  if type(key) ~= "string" then return methods.at(self, key) end
  if key:sub(1, 1) == "_" or key == "is_a" or key == "state_dict" then return Sparse[key] end -- asked of any object
  unknown(key)
end
function Sparse.__newindex(self, key, value)
  if key == "grad" and value == nil then
    self.elements.grad = nil
    return
  end
  if type(key) == "string" then check.fail("a sparse tensor has no settable field '%s'", key) end
  check.fail("elements of a sparse tensor cannot be set; change s:values(), or use s:to_dense()")
end

--- Ops with a sparse tensor that is not their first argument: name -> function of the op's arguments.
M.reversed = {}
--- Ops of a list of sparse tensors.
M.of_lists = {}

function Sparse.__op(name, ...)
  local first, fn = ..., nil
  if is_sparse(first) then
    fn = methods[name]
  elseif M.of_lists[name] then
    return M.of_lists[name](...)
  else
    for i = 2, select("#", ...) do if is_sparse((select(i, ...))) then fn = M.reversed[name] end end
  end
  if not fn then
    check.fail("[%s] takes no sparse tensor%s; use s:to_dense()", name,
      not is_sparse(first) and methods[name] and " as this argument" or "")
  end
  return fn(...)
end

-- ---- facts -----------------------------------------------------------------------------------------

--- A dimension from 1 on, of a negative one, too.
function M.dim(name, s, d)
  local n = #s.full
  if d > n or d < -n or d == 0 then
    check.fail("[%s] dimension %d is out of range for %d dimensions", name, d, n)
  end
  return d > 0 and d or n + 1 + d
end

method("size(Dim dim?)", function(s, dim)
  if dim ~= nil then return s.full[M.dim("size", s, dim)] end
  return setmetatable({ unpack(s.full) }, Size)
end)
local function fact(name, of) method(name .. "()", of) end
fact("is_sparse", function(s) return s.pattern.layout == "coo" end)
fact("is_sparse_csr", function(s) return s.pattern.layout == "csr" end)
--- moth.sparse_coo or moth.sparse_csr.
fact("layout", function(s) return "sparse_" .. s.pattern.layout end)
fact("dim", function(s) return #s.full end)
methods.ndim = methods.dim
fact("numel", function(s) return Pattern.total(s.full) end)
--- The number of values, also of those that are 0.
fact("nnz", function(s) return s.pattern:nnz() end)
methods._nnz = methods.nnz
fact("sparse_dim", function(s) return #s.pattern.size end)
fact("dense_dim", function(s) return #s.full - #s.pattern.size end)
fact("dtype", function(s) return B.tensor_dtype(s.elements) end)
fact("device", function(s) return B.tensor_device(s.elements) end)
fact("is_cuda", function(s) return B.tensor_device(s.elements).type == "cuda" end)
fact("is_floating_point", function(s) return B.tensor_dtype(s.elements).is_floating_point end)
fact("requires_grad", function(s) return B.requires_grad(s.elements) end)
fact("is_leaf", function(s) return B.is_leaf(s.elements) end)
fact("is_coalesced", function(s) return s.pattern:is_sorted() end)

--- The values, (nnz, …), with their history.
fact("values", function(s) return s.elements end)
methods._values = methods.values
--- The positions of COO: (sparse dimensions, nnz).
fact("indices", function(s)
  if s.pattern.layout ~= "coo" then
    check.fail("[indices] the tensor is CSR: it has crow_indices and col_indices, or use to_sparse_coo()")
  end
  return s.pattern:indices()
end)
methods._indices = methods.indices
local function of_csr(name, get)
  fact(name, function(s)
    if s.pattern.layout ~= "csr" then check.fail("[%s] the tensor is COO: use to_sparse_csr()", name) end
    return get(s.pattern)
  end)
end
--- The number of the first value of each row of CSR: (rows + 1), from 1 to nnz + 1.
of_csr("crow_indices", function(p) return p.of_crow end)
of_csr("col_indices", function(p) return p.of_cols end)

-- ---- autograd, dtypes, devices ---------------------------------------------------------------------

method("requires_grad_(bool requires_grad=true)", function(s, on)
  B.set_requires_grad(s.elements, on)
  return s
end)
fact("detach", function(s) return with(s, s.elements:detach()) end)
fact("clone", function(s) return with(s, ops.clone(s.elements)) end)
fact("retain_grad", function(s) s.elements:retain_grad() end)
--- s:to(dtype | device | tensor | {dtype=, device=}), as of dense tensors.
function methods.to(s, ...)
  local values = s.elements:to(...)
  return new(s.pattern:to(B.tensor_device(values)), values, s.full)
end
B.names[methods.to] = "to"
fact("cpu", function(s) return s:to { device = "cpu" } end)
method("cuda(size|device device='cuda')", function(s, device)
  return s:to { device = type(device) == "number" and ("cuda:%d"):format(device) or device }
end)
for name, dtype in each({ float = "float32", double = "float64", half = "float16", bfloat16 = "bfloat16",
  int = "int32", long = "int64", bool = "bool", cfloat = "complex64", cdouble = "complex128" }) do
  fact(name, function(s) return s:to { dtype = dtype } end)
end

-- ---- conversions -----------------------------------------------------------------------------------

--- Sums of the rows of values (nnz, …) by number: (n, …).
function M.sums(values, n, at)
  local size = B.size(values)
  size[1] = n
  local zeros = ops.zeros(size, { dtype = B.tensor_dtype(values), device = B.tensor_device(values) })
  return ops.index_add(zeros, 1, at, values)
end
local sums = M.sums

--- The same with each position once, in order.
fact("coalesce", function(s)
  if s.pattern.layout == "csr" then return s end
  local p, inverse = s.pattern:coalesced()
  if not inverse then return s end
  return new(p, sums(s.elements, p:nnz(), inverse), s.full)
end)
--- An ordinary tensor.
fact("to_dense", function(s)
  return (ops.reshape(sums(s.elements, Pattern.total(s.pattern.size), s.pattern:flat()), s.full))
end)
fact("to_sparse_coo", function(s)
  if s.pattern.layout == "coo" then return s end
  return new((s.pattern:coalesced()), s.elements, s.full)
end)
--- s, which has two sparse dimensions and no other, or an error.
function M.matrix(s, name)
  if #s.full ~= 2 or #s.pattern.size ~= 2 then
    check.fail("[%s] expected a sparse matrix, got %d sparse and %d dense dimensions", name, #s.pattern.size,
      #s.full - #s.pattern.size)
  end
  return s
end
fact("to_sparse_csr", function(s)
  if s.pattern.layout == "csr" then return s end
  s = M.matrix(s, "to_sparse_csr"):coalesce()
  return new(s.pattern:as_csr(), s.elements, s.full)
end)
local layouts = { sparse_coo = methods.to_sparse_coo, sparse_csr = methods.to_sparse_csr }
method("to_sparse(*, 'sparse_coo'|'sparse_csr' layout='sparse_coo')", function(s, layout) return layouts[layout](s) end)
--- In the layout of another one.
function M.as(s, other) return other.pattern.layout == "csr" and s:to_sparse_csr() or s end

--- The list size with n in front.
function M.behind(n, size)
  local out = { n }
  for _, v in ipairs(size) do out[#out + 1] = v end
  return out
end
--- The sizes of the dense dimensions.
function M.dense_size(s)
  local list = {}
  for d = #s.pattern.size + 1, #s.full do list[#list + 1] = s.full[d] end
  return list
end
--- The values of a dense tensor at the places of s: (nnz, …).
function M.at_places(name, x, s)
  if tostring(x:size()) ~= tostring(s:size()) then
    check.fail("[%s] the sizes differ: %s and %s", name, tostring(x:size()), tostring(s:size()))
  end
  local rows = ops.reshape(x, M.behind(Pattern.total(s.pattern.size), M.dense_size(s)))
  return ops.index_select(rows, 1, s.pattern:flat())
end
--- A dense tensor as COO: the elements that are not 0, rows of the dimensions behind the first sparse_dim.
function M.from_dense(x, sparse_dim)
  local size, sparse, dense = B.size(x), {}, {}
  for d, n in ipairs(size) do
    if d <= sparse_dim then sparse[d] = n else dense[#dense + 1] = n end
  end
  local there = ops.ne(ops.reshape(B.alias(x, false), { Pattern.total(sparse), Pattern.total(dense) }), 0)
  local flat = ops.reshape(ops.nonzero(ops.any(there, 2)), { -1 })
  local rows = ops.reshape(x, M.behind(Pattern.total(sparse), dense))
  return new(Pattern.of_positions(sparse, flat), ops.index_select(rows, 1, flat), size)
end

-- ---- printing --------------------------------------------------------------------------------------

function Sparse:__tostring()
  local parts = {}
  local function add(name, t)
    local text = tostring(B.alias(t, false)):gsub("\n%[moth%.[^\n]*$", "")
    parts[#parts + 1] = ("%s = %s"):format(name, (text:gsub("\n", "\n" .. (" "):rep(#name + 3))))
  end
  if self.pattern.layout == "csr" then
    add("crow_indices", self.pattern.of_crow)
    add("col_indices", self.pattern.of_cols)
  else
    add("indices", self.pattern:indices())
  end
  add("values", self.elements)
  return ("%s\n[moth.%s %s, %s, sparse %s, nnz = %d%s]"):format(table.concat(parts, "\n"), self:dtype().name,
    table.concat(self.full, "x"), tostring(self:device()), self.pattern.layout:upper(), self:nnz(),
    self:requires_grad() and ", requires_grad" or "")
end
function Sparse.__concat(a, b) return tostring(a) .. tostring(b) end

return M
