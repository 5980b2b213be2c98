--- The C text of fused groups of pointwise calls (moth.compile.fuse): one function for a group, one file for a graph.
--
-- Sizes, strides and numbers are arguments of a kernel, so that graphs which differ in these alone share it. Values are
-- computed by eager's formulas, in the order and precision of the calls; a product of one call is kept out of the sum
-- of the next by a multiplication with a 1 that the compiler does not know, in an FMA. Results are eager's bits, but where
-- the compiler contracts sums and products inside a formula in another way than in eager's loop: the last bit of acosh,
-- atanh and log1p, so far.
local fuse = require "moth.compile.fuse"
local texts = require "moth.codegen.texts"

local M = {}

local Reader = fuse.reader

-- Elements of a row that one call of a kernel takes, and of a block in which a number is repeated.
local CHUNK, BLOCK = 16384, 1024
M.CHUNK = CHUNK
local function input(d, text)
  if d.form == 0 then return text end
  return ("%s(%s)"):format(Reader.name(d.form == 1 and "m_f16_to_f32" or "m_bf16_to_f32", d), text)
end
local function stored(d, text)
  if d.form == 0 then return text end
  return ("%s(%s)"):format(Reader.name(d.form == 1 and "m_f32_to_f16" or "m_f32_to_bf16", d), text)
end

-- Formulas in which an operand that is one number for all may be computed with ahead of the loop: no addition in them
-- could take up a product.
local apart = {}
for name in ("mul div maximum minimum eq ne lt le gt ge where masked_fill relu neg abs"):gmatch("%S+") do
  apart[name] = true
end
-- Formulas that do not end in a product.
local sums = {}
local plain = "add sub div maximum minimum relu neg abs where masked_fill clamp floor ceil round trunc sqrt"
for name in plain:gmatch("%S+") do sums[name] = true end
local function is_apart(f)
  return apart[f.op.name] or (f.op.name == "add" or f.op.name == "sub") and f.parameters[1] == 1
end

-- ---- geometry ---------------------------------------------------------------------------------------

-- The iteration of a group: { sizes = outer sizes, n = inner size, strides[k] = outer strides of operand k, in bytes,
-- inner[k] = its inner stride in elements }. Dimensions that lie one behind the other in all operands are one.
local function iteration(shape, operands)
  local rank = #shape
  local strides = {}
  for k, v in ipairs(operands) do
    local s, m = {}, v.facts
    local shift = rank - #m.shape
    for i = 1, rank do
      local own = i > shift and m.shape[i - shift] or 1
      s[i] = own ~= 1 and m.stride[i - shift] or 0
    end
    strides[k] = s
  end
  local sizes, kept = {}, {}
  for k = 1, #operands do kept[k] = {} end
  for i = 1, rank do
    if shape[i] ~= 1 then
      local last = #sizes
      local joined = last > 0
      for k = 1, #operands do
        joined = joined and kept[k][last] == strides[k][i] * shape[i]
      end
      if joined then
        sizes[last] = sizes[last] * shape[i]
        for k = 1, #operands do kept[k][last] = strides[k][i] end
      else
        sizes[last + 1] = shape[i]
        for k = 1, #operands do kept[k][last + 1] = strides[k][i] end
      end
    end
  end
  local it = { sizes = {}, n = sizes[#sizes] or 1, strides = {}, inner = {} }
  for i = 1, #sizes - 1 do it.sizes[i] = sizes[i] end
  for k, v in ipairs(operands) do
    it.strides[k] = {}
    for i = 1, #sizes - 1 do it.strides[k][i] = kept[k][i] * v.facts.dtype.size end
    it.inner[k] = #sizes > 0 and kept[k][#sizes] or 0
  end
  return it
end

-- ---- text --------------------------------------------------------------------------------------------

--- The C of a group, without its name, what formulas it needs by dtype, and how it is called: operands (values),
-- numbers ({ value, integer }), iteration.
function M.kernel(step, wanted)
  local operands, at, numbers = {}, {}, {}
  local function operand(v)
    if not at[v] then
      operands[#operands + 1] = v
      at[v] = #operands
    end
    return at[v]
  end
  for _, v in ipairs(step.results) do operand(v) end
  local nresults = #operands
  local inside = {}
  for _, call in ipairs(step.calls) do inside[call] = true end
  for _, call in ipairs(step.calls) do
    for _, v in ipairs(call.formula.operands) do
      if type(v) == "table" and not inside[v.call] then operand(v) end
    end
  end
  local it = iteration(step.shape, operands)
  local head, setup, body = {}, {}, {}
  local function want(name, d)
    local list = wanted[d.suffix] or { dtype = d, names = {} }
    wanted[d.suffix] = list
    list.names[#list.names + 1] = name
    return Reader.name(name, d)
  end
  local function needs_halves(d)
    if d.form == 0 then return end
    for _, name in ipairs { "m_f16_to_f32", "m_f32_to_f16", "m_bf16_to_f32", "m_f32_to_bf16", "m_f64_to_f16",
      "m_f64_to_bf16" } do
      want(name, d)
    end
  end
  for _, v in ipairs(operands) do needs_halves(v.facts.dtype) end
  local function block(name, type_, value)
    setup[#setup + 1] = ("  %s %s_[%d];\n  for (long i = 0; i < %d && i < m; i++) %s_[i] = %s;"):format(type_, name,
      BLOCK, BLOCK, name, value)
    return name .. "_[i]"
  end
  local plain_inner = true
  for k, v in ipairs(operands) do
    local d, c = v.facts.dtype, k <= nresults and "" or "const "
    local stride = it.inner[k]
    if stride == 1 or it.n == 1 then
      head[#head + 1] = ("  %s%s *p%d = (%s%s *)at[%d] + from;"):format(c, d.stored, k, c, d.stored, k - 1)
    elseif stride == 0 then
      head[#head + 1] = ("  const %s s%d = *(const %s *)at[%d];"):format(d.stored, k, d.stored, k - 1)
    else
      plain_inner = false
      head[#head + 1] = ("  const long t%d = args[%%INNER%% + %d].i;\n  %s%s *p%d = (%s%s *)at[%d] + from * t%d;")
        :format(k, k - 1, c, d.stored, k, c, d.stored, k - 1, k)
    end
  end
  local function element(k)
    if it.inner[k] == 1 or it.n == 1 then return ("p%d[b + i]"):format(k) end
    return ("p%d[(b + i) * t%d]"):format(k, k)
  end
  local scalars = {} -- of operands that are one number in a row
  local function load(v, f)
    local k = at[v]
    local d = v.facts.dtype
    if it.inner[k] ~= 0 or it.n == 1 then return input(d, element(k)) end
    if is_apart(f) then return input(d, "s" .. k) end
    scalars[k] = scalars[k] or block("s" .. k, d.real, input(d, "s" .. k))
    return scalars[k]
  end
  local function number(value, d, rounded)
    numbers[#numbers + 1] = { value = value, integer = not d.is_float }
    local slot = ("args[%%NUMBERS%% + %d].%s"):format(#numbers - 1, d.is_float and "d" or "i")
    local text = ("(%s)%s"):format(d.real, slot)
    if rounded and d.form ~= 0 then
      needs_halves(d)
      text = input(d, ("%s(%s)"):format(Reader.name(d.form == 1 and "m_f64_to_f16" or "m_f64_to_bf16", d), slot))
    end
    setup[#setup + 1] = ("  const %s k%d = %s;"):format(d.real, #numbers, text)
    return "k" .. #numbers
  end
  local variable = {}
  for i, call in ipairs(step.calls) do
    local f, list = call.formula, {}
    local d, out = f.dtype, call.results[1]
    for _, v in ipairs(f.operands) do
      if type(v) == "number" then
        local name = number(v, d, true)
        list[#list + 1] = is_apart(f) and name or block(name, d.real, name)
      elseif inside[v.call] then
        list[#list + 1] = variable[v]
      else
        list[#list + 1] = load(v, f)
      end
    end
    for _, v in ipairs(f.parameters) do
      list[#list + 1] = is_apart(f) and f.op.name ~= "masked_fill" and v == 1 and ("(%s)1"):format(d.real)
        or number(v, d, false)
    end
    needs_halves(d)
    local text = ("%s(%s)"):format(want("m_" .. f.name, d), table.concat(list, ", "))
    if f.op.name == "neg" and d.is_float then -- gcc would negate inside the FMA before it, which turns -0 into 0
      text = ("(%s * %s)"):format(list[1], number(-1, d, false))
    end
    local o = out.facts.dtype
    variable[out] = "v" .. i
    if o.name == "bool" then
      text = d.name == "bool" and ("(%s != 0)"):format(text) or "(uint8_t)" .. text
      body[#body + 1] = ("    const uint8_t v%d = %s;"):format(i, text)
    elseif o.form ~= 0 then
      body[#body + 1] = ("    const uint16_t h%d = %s;\n    const float v%d = %s;"):format(i, stored(o, text), i,
        input(o, "h" .. i))
    elseif o.is_float then
      if not sums[f.op.name] then text = ("EACH_%s(%s)"):format(o.real, text) end
      body[#body + 1] = ("    const %s v%d = %s;"):format(o.real, i, text)
    else
      body[#body + 1] = ("    const %s v%d = (%s)%s;"):format(o.stored, i, o.stored, text)
    end
    if at[out] then
      body[#body + 1] = ("    %s = %s%d;"):format(element(at[out]), o.form ~= 0 and "h" or "v", i)
    end
  end
  numbers[#numbers + 1] = { value = 1 }
  setup[#setup + 1] = ("  const double one = args[%%NUMBERS%% + %d].d;"):format(#numbers - 1)
  local n, rank = #operands, #it.sizes
  -- args: which kernel, pieces of a row, n, pointers, inner strides, numbers, outer sizes, outer strides by operand
  local first_inner, first_number = 3 + n, 3 + 2 * n
  local first_size = first_number + #numbers
  local t = {}
  t[#t + 1] = "(const union slot *args, long begin, long end) {"
  t[#t + 1] = "const long pieces = args[1].i, n = args[2].i;"
  t[#t + 1] = "for (long piece = begin; piece < end; piece++) {"
  t[#t + 1] = ("  long row = piece / pieces;\n  const long from = piece %% pieces * %d;"):format(CHUNK)
  t[#t + 1] = ("  const long m = n - from < %d ? n - from : %d;"):format(CHUNK, CHUNK)
  t[#t + 1] = ("  char *at[%d];\n  for (int k = 0; k < %d; k++) at[k] = args[3 + k].p;"):format(n, n)
  if rank > 0 then
    t[#t + 1] = ([[
  for (int d = %d; d >= 0; d--) {
    const long size = args[%d + d].i, index = row %% size;
    row /= size;
    for (int k = 0; k < %d; k++) at[k] += index * args[%d + k * %d + d].i;
  }]]):format(rank - 1, first_size, n, first_size + rank, rank)
  else
    t[#t + 1] = "  (void)row;"
  end
  t[#t + 1] = table.concat(head, "\n")
  t[#t + 1] = table.concat(setup, "\n")
  t[#t + 1] = ("  for (long b = 0; b < m; b += %d) {\n  const long e = m - b < %d ? m - b : %d;"):format(BLOCK, BLOCK,
    BLOCK)
  t[#t + 1] = plain_inner and "  VECTOR for (long i = 0; i < e; i++) {" or "  for (long i = 0; i < e; i++) {"
  t[#t + 1] = table.concat(body, "\n")
  t[#t + 1] = "  }\n  }\n}\n}\n"
  local text = table.concat(t, "\n"):gsub("%%INNER%%", first_inner):gsub("%%NUMBERS%%", first_number)
  return { text = text, operands = operands, nresults = nresults, numbers = numbers, it = it }
end

local HEAD = [[
typedef __INT64_TYPE__ int64_t; typedef __UINT64_TYPE__ uint64_t; typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t; typedef __INT16_TYPE__ int16_t; typedef __UINT16_TYPE__ uint16_t;
typedef __INT8_TYPE__ int8_t; typedef __UINT8_TYPE__ uint8_t;
union slot { void *p; long i; double d; };
#if defined(__clang__)
#pragma clang fp contract(on)
#define VECTOR _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTOR _Pragma("GCC ivdep")
#endif
#if defined(__FMA__) || defined(__aarch64__)
#define EACH_float(x) __builtin_fmaf(x, (float)one, -0.0f)
#define EACH_double(x) __builtin_fma(x, one, -0.0)
#else
#define EACH_float(x) (x)
#define EACH_double(x) (x)
#endif
]]

--- The C file of a list of kernels.
function M.file(kernels, wanted)
  local parts = { HEAD, "#define MOTH_FN static inline __attribute__((always_inline, unused))\n",
    (texts["math_libm.h"]:gsub('#include "[^\n]*\n', "")) }
  local suffixes, done = {}, {}
  for suffix in require("moth.each")(wanted) do suffixes[#suffixes + 1] = suffix end
  table.sort(suffixes)
  for _, suffix in ipairs(suffixes) do
    local w = wanted[suffix]
    table.sort(w.names)
    parts[#parts + 1] = Reader.text(w.names, w.dtype, done)
  end
  for i, text in ipairs(kernels) do parts[#parts + 1] = ("static void fused_%d%s"):format(i, text) end
  parts[#parts + 1] = "__attribute__((visibility(\"default\"))) void moth_kernel(const union slot *args, long begin, \z
    long end) {\nswitch (args[0].i) {"
  for i = 1, #kernels do parts[#parts + 1] = ("case %d: fused_%d(args, begin, end); break;"):format(i, i) end
  parts[#parts + 1] = "}\n}\n"
  return table.concat(parts, "\n")
end

return M
