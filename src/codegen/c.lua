-- Prints kernels of the loop IR as C, for gcc and clang: loops over operands that lie in any way (MothLoop,
-- kernels/cpu/loop.h). The text needs that header and the formulas that ir.formulas names.
local M = {}

--- What a file of formulas and loops begins with: warnings that code for every type cannot avoid.
M.head = [[
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wsign-conversion"
]]

-- A node as a C expression. `at`: the text of the element of input i in memory.
local function expression(k, d, formulas, node, at)
  if node.op == "load" then
    return at(node.input)
  elseif node.op == "param" then
    return "k" .. node.k
  elseif node.op == "const" then
    return ("((%s)%s)"):format(d.real, node.text)
  end
  local list = {}
  for i, argument in ipairs(node) do list[i] = expression(k, d, formulas, argument, at) end
  return ("%s(%s)"):format(formulas.name("m_" .. node.name, d), table.concat(list, ", "))
end

-- What is written for a value: C type of the result, and the value in it.
local function out_type(k, d) return k.out == "mask" and "uint8_t" or k.out == "part" and d.part or d.stored end

local function stored_value(k, d, formulas, at)
  local text = expression(k, d, formulas, k.value, at)
  if k.out == "mask" then return "(uint8_t)" .. text end
  return d.kind == 5 and ("(%s != 0)"):format(text) or text
end

local function input_type(k, d, i) return k.inputs[i] == "mask" and "uint8_t" or d.stored end

-- Whether a kernel is one formula m_x of elements for which there are m_x_easy and m_x_fast, as kernels/math_f64.h says.
local function has_easy(k, d, formulas)
  for _, argument in ipairs(k.value) do
    if argument.op ~= "load" then return false end
  end
  return k.value.op == "apply" and not d.part and formulas.has("m_" .. k.value.name .. "_easy", d.kind)
end

--- The formulas that the loop of a kernel calls.
function M.formulas(k, d, formulas, list, seen)
  require("moth.codegen.ir").formulas(k.value, list, seen)
  if has_easy(k, d, formulas) then
    list[#list + 1] = "m_" .. k.value.name .. "_easy"
    list[#list + 1] = "m_" .. k.value.name .. "_fast"
  end
end

--- A loop of a kernel for a dtype that is stored as it is computed. Options: `lanes`, the name of a loop over
-- contiguous elements that is written by hand for some instruction sets; `linkage` of the function, static; `short`:
-- a long formula is not computed four vectors at a time.
--
-- An operand that is one number for all is read from a block of equal ones by the same loop: in one of its own, gcc
-- would compute what depends on it alone ahead of the loop, and a product that was computed there is no part of an FMA
-- any more, so that the last bit of a result would depend on whether an operand is expanded.
function M.loop(k, d, name, formulas, options)
  local lanes, linkage = options and options.lanes, options and options.linkage or "static"
  local out, n = out_type(k, d), #k.inputs
  local stretch, repeated = 1024 / d.size, 4096 / d.size
  local t = {}
  local function put(text, ...) t[#t + 1] = select("#", ...) > 0 and text:format(...) or text end
  -- A line for each input: # is its number, TYPE its type.
  local function each(form, separator)
    local list = {}
    for i = 1, n do list[i] = form:gsub("#", i):gsub("TYPE", (input_type(k, d, i))) end
    return table.concat(list, separator or "\n")
  end
  local function value(form, kernel)
    return stored_value(kernel or k, d, formulas, function(i)
      return (form:gsub("#", i):gsub("TYPE", (input_type(k, d, i))))
    end)
  end
  local easy = has_easy(k, d, formulas)
  -- k with another formula of the same elements.
  local function like(suffix)
    local v = { op = "apply", name = k.value.name .. suffix }
    for i, argument in ipairs(k.value) do v[i] = argument end
    return { value = v, out = k.out }
  end
  -- A loop from `from` to `to`; where there is an easy formula, in blocks that are all easy or not.
  local function loop(indent, vector, from, to, left, form)
    if not easy then
      put("%s%s for (int64_t i = %s; i < %s; i++) %s = %s;", indent, vector, from, to, left, value(form))
      return
    end
    put(([[
@for (int64_t j = %s; j < %s; j += 128) {
@  const int64_t to = %s - j < 128 ? %s : j + 128;
@  int hard = 0;
@  MOTH_VECTOR for (int64_t i = j; i < to; i++) hard |= !%s;
@  if (hard) {
@    MOTH_VECTOR for (int64_t i = j; i < to; i++) %s = %s;
@  } else {
@    %s for (int64_t i = j; i < to; i++) %s = %s;
@  }
@}]]):gsub("@", indent):format(from, to, to, to, value(form, like "_easy"), left, value(form), vector, left,
      value(form, like "_fast")))
  end
  put("/* %s */", k.place)
  if k.long then
    -- In a function of its own: constants stay in memory, and registers are free. `restrict` lets loads go before
    -- stores of other elements; that of an element itself waits for its load, so that out may be the input exactly.
    if lanes then put("#ifdef %s\n#define %s_row %s\n#else", lanes, name, lanes) end
    local short = options and options.short or not d.is_float
    put("static %s void %s_row(%s *restrict o, const %s *restrict a1, int64_t n) {",
      short and "__attribute__((noinline))" or "MOTH_ROW", name, out, input_type(k, d, 1))
    loop("  ", short and "MOTH_VECTOR" or "MOTH_VECTOR_LONG", "0", "n", "o[i]", "a#[i]")
    put("}")
    if lanes then put("#endif") end
  end
  put("%s void %s(char **p, const int64_t *s, int64_t n, const MothParam *k) {", linkage, name)
  for i = 0, k.nparams - 1 do
    if d.part then put("  const %s k%d = {(%s)k[%d].d, 0};", d.real, i, d.part, i)
    else put("  const %s k%d = (%s)k[%d].%s;", d.real, i, d.real, i, d.is_float and "d" or "i") end
  end
  if k.nparams == 0 then put("  (void)k;") end
  if k.long then
    put("  if (s[0] == sizeof(%s) && s[1] == sizeof(%s)) {", out, input_type(k, d, 1))
    put("    %s_row((%s *)p[0], (const %s *)p[1], n);\n    return;\n  }", name, out, input_type(k, d, 1))
    -- Elements that lie apart go through the same function: as many vectors, the same bits.
    put(([[
  FOR_CHUNKS(128, n, from, end) {
    TYPE in[128];
    OUT value[128];
    const int64_t m = end - from;
    for (int64_t i = 0; i < m; i++)
      in[i] = *(const TYPE *)(p[1] + (from + i) * s[1]);
    %s_row(value, in, m);
    for (int64_t i = 0; i < m; i++)
      *(OUT *)(p[0] + (from + i) * s[0]) = value[i];
  }
}
]]):gsub("TYPE", (input_type(k, d, 1))):gsub("OUT", out):format(name))
    return table.concat(t, "\n")
  else
    put("  if (s[0] == sizeof(%s) && %s) {", out, each("(s[#] == sizeof(TYPE) || s[#] == 0)", " && "))
    put("    %s *o = (%s *)p[0];", out, out)
    put(each(([[
    const TYPE *a# = (const TYPE *)p[#];
    TYPE block#[%d];
    if (s[#] == 0)
      REPEATED(block#, *a#, n, %d);]]):format(repeated, repeated)))
    put("    STRETCHES(o, n, from, end, %d, %s ? %d : n) {", stretch, each("s[#] == 0", " || "), repeated)
    put("      if (far) { /* what it waits for is memory */\n        ASK_AHEAD_OUT(o, from, %d);", stretch)
    put(each(("        if (s[#] != 0)\n          ASK_AHEAD(a#, from, %d);"):format(stretch)))
    put("      }\n      %s *at = o + from;", out)
    put(each("      const TYPE *in# = s[#] == 0 ? block# : a# + from;"))
    loop("      ", "MOTH_VECTOR", "0", "end - from", "at[i]", "in#[i]")
    put("    }\n    return;\n  }")
  end
  put("  for (int64_t i = 0; i < n; i++)\n    *(%s *)(p[0] + i * s[0]) = %s;\n}\n", out,
    value("*(const TYPE *)(p[#] + i * s[#])"))
  return table.concat(t, "\n")
end

--- The same for a 16-bit dtype: through the loop for float32, by `through` (kernels/cpu/typed/half.h).
function M.loop_through(k, name, loop, through)
  local bytes = k.out == "mask" and 1 or 0
  for i, input in ipairs(k.inputs) do
    if input == "mask" then bytes = bytes + 2 ^ i end
  end
  return ([[
void %s(char **p, const int64_t *s, int64_t n, const MothParam *k) {
  %s(%s, %d, %du, p, s, n, k);
}
]]):format(name, through, loop, #k.inputs, bytes)
end

--- A C file for run time that includes nothing of moth's: the loops of kernels for a dtype, exported under their names.
-- texts: moth.codegen.texts.
function M.file(kernels, d, formulas, texts)
  local parts, used, seen, loops = { M.head }, {}, {}, {}
  for _, name in ipairs { "common/param.h", "cpu/loop.h", "math_libm.h" } do
    parts[#parts + 1] = (texts[name]:gsub('#include "[^\n]*\n', ""))
  end
  for i, k in ipairs(kernels) do
    M.formulas(k, d, formulas, used, seen)
    loops[i] = M.loop(k, d, k.name, formulas, { linkage = '__attribute__((visibility("default")))' })
  end
  parts[#parts + 1] = formulas.text(used, d, {})
  return table.concat(parts, "\n") .. "\n" .. table.concat(loops, "\n")
end

return M
