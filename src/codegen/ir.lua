-- The loop IR: what a kernel computes, without saying how. Values are nodes, plain tables:
--   load(i)            the element of input i at the loop's position, in the compute type; of a mask, 1 or 0
--   param(k)           the k-th number of the call
--   const(text)        a number, as C writes it
--   apply(name, …)     a scalar formula of kernels/math*.h (without its m_) of nodes
-- A kernel is a table:
--   name, place        of the function, and what it stands for, for readers of the generated text
--   inputs             a list of "element" (of the dtype) or "mask" (bytes that are 0 or 1)
--   nparams            how many numbers it takes
--   out                "element", "mask", or "part": of complex dtypes a float, else an element
--   value              the node that each element of the result is
--   long               whether the formula is long enough to be worth a function with a schedule of its own
-- The printers (c.lua, cuda.lua) turn it into text for a dtype.
local M = {}

function M.load(input) return { op = "load", input = input } end
function M.param(k) return { op = "param", k = k } end
function M.const(text) return { op = "const", text = tostring(text) } end
function M.apply(name, ...) return { op = "apply", name = name, ... } end

--- The formulas that a node uses, as names of kernels/math*.h.
function M.formulas(node, list, seen)
  list, seen = list or {}, seen or {}
  if node.op == "apply" then
    local name = "m_" .. node.name
    if not seen[name] then
      seen[name] = true
      list[#list + 1] = name
    end
    for _, argument in ipairs(node) do M.formulas(argument, list, seen) end
  end
  return list
end

--- The kernel of a pointwise record of the op table: its formula of its tensors, then its numbers.
function M.pointwise(op)
  local inputs, arguments, nparams = {}, {}, 0
  for _, a in ipairs(op.args) do
    if a.type ~= "SCALAR" then
      inputs[#inputs + 1] = op.cond == a.name and "mask" or "element"
      arguments[#arguments + 1] = M.load(#inputs)
    end
  end
  for _, a in ipairs(op.args) do
    if a.type == "SCALAR" then
      arguments[#arguments + 1] = M.param(nparams)
      nparams = nparams + 1
    end
  end
  return {
    name = op.name, place = op.schema, inputs = inputs, nparams = nparams,
    out = op.out == "bool" and "mask" or op.out == "real" and "part" or "element",
    value = M.apply(op.scalar, unpack(arguments)),
    long = #inputs == 1 and nparams == 0 and (op.dtypes == "float" or op.promote == "float"),
  }
end

return M
