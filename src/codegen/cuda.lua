-- Prints kernels of the loop IR as CUDA C++: a function object for an element, and the host function that launches it
-- over operands that lie in any way (kernels/cuda/typed/pointwise.cuh).
local M = {}

-- How an element is read and written, for the storage forms.
local read = { [0] = "%s", "f16_load(%s)", "m_bf16_to_f32(%s)" }
local write = { [0] = "(%s)(%s)", "f16_store(%s)", "m_f32_to_bf16(%s)" }

local function expression(k, d, formulas, node)
  if node.op == "load" then
    local name = "a" .. node.input
    return k.inputs[node.input] == "mask" and name or read[d.form]:format(name)
  elseif node.op == "param" then
    return "k" .. node.k
  elseif node.op == "const" then
    return ("((%s)%s)"):format(d.real, node.text)
  end
  local list = {}
  for i, argument in ipairs(node) do list[i] = expression(k, d, formulas, argument) end
  return ("%s(%s)"):format(formulas.name("m_" .. node.name, d), table.concat(list, ", "))
end

--- Formulas that elements of a dtype are read and written by.
function M.conversions(d)
  if d.form == 1 then return { "m_f16_to_f32", "m_f32_to_f16" } end
  return d.form == 2 and { "m_bf16_to_f32", "m_f32_to_bf16" } or {}
end

--- The function `name` of type MothCudaLoop.
function M.launch(k, d, name, formulas)
  local types, parameters, fields, init = {}, {}, {}, {}
  for i, input in ipairs(k.inputs) do
    types[i] = input == "mask" and "uint8_t" or d.stored
    parameters[i] = ("%s a%d"):format(types[i], i)
  end
  for i = 0, k.nparams - 1 do
    fields[#fields + 1] = ("  %s k%d;"):format(d.real, i)
    init[#init + 1] = d.part and ("  f.k%d.re = (%s)p->params[%d].d;\n  f.k%d.im = 0;"):format(i, d.part, i, i)
      or ("  f.k%d = (%s)p->params[%d].%s;"):format(i, d.real, i, d.is_float and "d" or "i")
  end
  local out = k.out == "mask" and "uint8_t" or k.out == "part" and d.part or d.stored
  local value = expression(k, d, formulas, k.value)
  if k.out == "mask" then
    value = "(uint8_t)" .. value
  elseif d.kind == 5 then
    value = ("(%s)(%s != 0)"):format(d.stored, value)
  else
    value = d.part and value or d.form == 0 and write[0]:format(d.stored, value) or write[d.form]:format(value)
  end
  return ([[
/* %s */
struct %s_f {
%s
  __device__ __forceinline__ %s operator()(%s) const {
    return %s;
  }
};
MothStatus %s(const MothPointwise *p) {
  %s_f f;
%s
  return pointwise<%s_f, %s>("%s", p, f);
}
]]):format(k.place, name, table.concat(fields, "\n"), out, table.concat(parameters, ", "), value, name, name,
    #init > 0 and table.concat(init, "\n") or "  (void)f;", name, out .. ", " .. table.concat(types, ", "), name)
end

return M
