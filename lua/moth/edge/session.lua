--- Runs files of moth.edge.export in this process, by the code of the edge library (src/edge) on libmoth's kernels.
local ffi = require "ffi"
local B = require "moth_lua"
local capi = require "moth.capi"
local check = require "moth.utils.check"
local class = require "moth.class"

ffi.cdef(require "moth.edge_cdef")

local M = {}
local C = capi.C

local function raise(status)
  if status ~= 0 then check.fail("%s", ffi.string(C.moth_edge_error())) end
end

local Session = class("EdgeSession")

local function io_list(n, get, model)
  local list = {}
  for i = 1, n do
    local io = get(model, i - 1)
    list[i] = { name = ffi.string(io.name), dtype = ffi.string(io.dtype), io = io }
  end
  return list
end

function Session:__init(model)
  self.model = model
  self.inputs = io_list(C.moth_edge_inputs(model), C.moth_edge_input, model)
  self.outputs = io_list(C.moth_edge_outputs(model), C.moth_edge_output, model)
  self.ndims = C.moth_edge_dims(model)
end

-- Checks the tensors, and notes the sizes of dynamic dimensions.
function Session:bind(tensors, dims)
  local kept, known = {}, {}
  if table.maxn(tensors) ~= #self.inputs then
    check.fail("[edge] the model takes %d tensors, got %d", #self.inputs, table.maxn(tensors))
  end
  for i, input in ipairs(self.inputs) do
    local t, io = tensors[i], input.io
    if not B.is_tensor(t) or t:dtype().name ~= input.dtype or t:dim() ~= io.ndim then
      check.fail("[edge] input %s: expected a tensor of %s with %d dimensions, got %s", input.name, input.dtype,
        io.ndim, B.is_tensor(t) and ("%s with %d"):format(t:dtype().name, t:dim()) or class.name(t))
    end
    for k = 0, io.ndim - 1 do
      local n = t:size(k + 1)
      local dim = io.dim[k]
      if dim >= 0 then
        if known[dim] and known[dim] ~= n then
          check.fail("[edge] input %s: %s is %d here, and %d in another input", input.name,
            ffi.string(C.moth_edge_dim(self.model, dim).name), n, known[dim])
        end
        known[dim], dims[dim] = n, n
      elseif n ~= tonumber(io.shape[k]) then
        check.fail("[edge] input %s: dimension %d is %d, and the model was exported for %d", input.name, k + 1, n,
          tonumber(io.shape[k]))
      end
    end
    if B.is_fake(t) then check.fail("[edge] input %s: a fake tensor has no elements to run on", input.name) end
    kept[i] = B.ops.contiguous(B.ops.to(B.alias(t, false), { device = "cpu" }))
  end
  return kept
end

--- Runs the model on tensors; returns its outputs.
function Session:__call(...)
  local dims = ffi.new("int64_t[?]", self.ndims + 1)
  local kept = self:bind({ ... }, dims)
  local bytes = tonumber(C.moth_edge_arena(self.model, dims))
  if bytes == 0 then raise(1) end
  if not self.memory or self.bytes < bytes then self.memory, self.bytes = ffi.new("char[?]", bytes), bytes end
  local arena = self.memory
  local given, taken = ffi.new("const void *[?]", #kept + 1), ffi.new("void *[?]", #self.outputs + 1)
  -- An empty tensor has no address.
  local nowhere = ffi.new("char[64]")
  local function address(t)
    return t:numel() > 0 and ffi.cast("char *", capi.C.moth_tensor_data(capi.tensor(t))) or nowhere
  end
  local results = {}
  for i, t in ipairs(kept) do given[i - 1] = address(t) end
  for i, output in ipairs(self.outputs) do
    local shape = {}
    for k = 1, output.io.ndim do shape[k] = tonumber(output.io.shape[k - 1]) end
    results[i] = B.ops.empty(shape, { dtype = output.dtype })
    taken[i - 1] = address(results[i])
  end
  raise(C.moth_edge_run(self.model, given, dims, taken, arena))
  return unpack(results, 1, #results)
end

function Session:__tostring()
  local inputs, outputs = {}, {}
  for i, input in ipairs(self.inputs) do
    local sizes = {}
    for k = 0, input.io.ndim - 1 do
      local dim = input.io.dim[k]
      sizes[k + 1] = dim >= 0 and ffi.string(C.moth_edge_dim(self.model, dim).name)
        or ("%d"):format(tonumber(input.io.shape[k]))
    end
    inputs[i] = ("%s: %s[%s]"):format(input.name, input.dtype, table.concat(sizes, ", "))
  end
  for i, output in ipairs(self.outputs) do outputs[i] = ("%s: %s"):format(output.name, output.dtype) end
  return ("EdgeSession(%s) -> %s"):format(table.concat(inputs, ", "), table.concat(outputs, ", "))
end

--- Gives the tensors that the program writes to their elements of the file again.
function Session:reset() C.moth_edge_reset(self.model) end

--- Bytes of memory that a run needs for the example's sizes.
function Session:arena() return tonumber(C.moth_edge_arena(self.model, nil)) end

function M.load(path)
  local out = ffi.new("MothModel *[1]")
  raise(C.moth_edge_load(path, out))
  return Session(ffi.gc(out[0], C.moth_edge_free))
end

return M
