--- The engine of exported programs (files of moth.export.save): see engine.lua.
local moth = require "moth"
local check = require "moth.utils.check"

local M = {}

-- The dimension that is the first of all inputs and, unchanged, of all outputs: its name; nil: there is none.
local function batch_of(sig)
  local name
  for i, input in ipairs(sig.inputs) do
    local first = input.shape[1]
    if type(first) ~= "string" or i > 1 and first ~= name then return nil end
    name = first
  end
  for _, output in ipairs(sig.outputs) do
    local f = output.shape[1]
    if type(f) == "string" then f = { terms = { { 1, f } } } end
    if type(f) ~= "table" or #f.terms ~= 1 or #f.terms[1] ~= 2 or f.terms[1][1] ~= 1 or f.terms[1][2] ~= name
      or (f.add or 0) ~= 0 or f.div or f.of then
      return nil
    end
  end
  return name
end

local function shape_of(shape, batch)
  local out = {}
  for i, n in ipairs(shape) do out[i] = type(n) == "number" and not (batch and i == 1) and n or -1 end
  return out
end

local Program = {}
Program.__index = Program

--- Runs the program on a list of tensors; a list of tensors. They may lie on the CPU.
function Program:run(inputs)
  local ep, dims = self.ep, {}
  local given = {}
  for i, input in ipairs(ep.program.inputs) do
    given[i] = self.device and inputs[i]:to(self.device) or inputs[i]
    for k, size in ipairs(input.shape) do
      if type(size) == "string" then dims[size] = given[i]:size(k) end
    end
  end
  local made, out = { ep.placed:run(ep.tensors, dims, given, ep.device) }, {}
  for i, k in ipairs(self.order) do out[i] = made[k] end
  return out
end

function Program:warm()
  local inputs, ep = {}, self.ep
  for i, input in ipairs(ep.program.inputs) do
    local shape = {}
    for k, n in ipairs(input.shape) do shape[k] = type(n) == "string" and ep.example[n] or n end
    inputs[i] = moth.ones(shape, { dtype = input.dtype })
  end
  moth.no_grad(function() self:run(inputs) end)
end

--- options: path; device ("cpu", "cuda").
function M.load(options)
  local ep = moth.export.load(options.path, options.device and { map_location = options.device } or {})
  local sig = ep.signature
  local names, batch = ep.program:result_names "y", batch_of(sig)
  for _, leaf in ipairs(ep.program.results.leaves) do
    if not leaf.tensor then
      check.fail("[serve] %s gives %s among its results: export a function that gives tensors alone", options.path,
        tostring(leaf.constant))
    end
  end
  local out = { platform = "moth_export", inputs = {}, outputs = {} }
  for i, input in ipairs(sig.inputs) do
    out.inputs[i] = { name = input.name, dtype = input.dtype, shape = shape_of(input.shape, batch) }
  end
  for i, leaf in ipairs(ep.program.results.leaves) do
    local output = sig.outputs[leaf.tensor]
    out.outputs[i] = { name = names[leaf.tensor], dtype = output.dtype, shape = shape_of(output.shape, batch) }
  end
  local range = batch and ep.program.dims[batch]
  if range then out.batch = { min = math.max(range.min, 1), max = range.max, multiple_of = range.multiple_of } end
  out.dims = {} -- ranges of the other dimensions, by input and position: checked before a request is queued
  for i, input in ipairs(sig.inputs) do
    for k, n in ipairs(input.shape) do
      local r = type(n) == "string" and ep.program.dims[n]
      if r then
        out.dims[#out.dims + 1] = { input = i, at = k, name = n, min = r.min, max = r.max, step = r.multiple_of }
      end
    end
  end
  local order = {}
  for i, leaf in ipairs(ep.program.results.leaves) do order[i] = leaf.tensor end
  return setmetatable({ ep = ep, signature = out, device = options.device, order = order }, Program)
end

return M
