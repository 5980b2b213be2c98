--- The backend "inductor": groups of pointwise calls (moth.compile.fuse) become kernels of generated C; all other calls
-- run as recorded. For segments that record no gradient, write to nothing and draw no random numbers; the rest, and all
-- where there is no C compiler, runs call by call.
--
-- The kernels of a graph are one file, deduplicated by text. Sizes, strides and numbers are arguments of a kernel, so
-- graphs that differ in these alone share it. Values are computed by eager's formulas, in the order and precision of
-- the calls; a product of one call is kept out of the sum of the next by a multiplication with a 1 that the compiler
-- does not know, in an FMA. Results are eager's bits, but where the compiler contracts sums and products inside a
-- formula in another way than in eager's loop: the last bit of acosh, atanh and log1p, so far.
local ffi = require "ffi"
local B = require "moth_lua"
local fuse = require "moth.compile.fuse"
local native = require "moth.kernel.native"
local texts = require "moth.codegen.texts"
local toolchain = require "moth.utils.toolchain"

local M = {}

local C = ffi.load("libmoth.so")
local Slots = ffi.typeof("MothKernelSlot[?]")
local Reader = fuse.reader

-- Elements of a row that one call of a kernel takes, and of a block in which a number is repeated.
local CHUNK, BLOCK = 16384, 1024

--- Kernels compiled, groups and calls in them, since the start: for tests and reports.
M.counters = { kernels = 0, groups = 0, fused = 0 }

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

-- The C of a group, without its name, what formulas it needs by dtype, and how it is called: operands (values), numbers
-- ({ value, integer }), iteration.
local function kernel(step, wanted)
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
local function file(kernels, wanted)
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

local libraries = setmetatable({}, { __mode = "v" }) -- text -> library

local function compiled(source, cc)
  if not libraries[source] then
    if toolchain.logs("output_code") then toolchain.log("output_code", false, source) end
    local lib, message = native.library(source, cc)
    if not lib then return nil, message end
    libraries[source] = lib
    M.counters.kernels = M.counters.kernels + 1
  end
  return libraries[source]
end

-- ---- running ------------------------------------------------------------------------------------------

-- What runs a group on a table of values.
local function launch(k, number, lib)
  local it, n = k.it, #k.operands
  local slots = Slots(3 + 2 * n + #k.numbers + #it.sizes * (n + 1))
  local pieces, rows = math.max(1, math.ceil(it.n / CHUNK)), 1
  for _, size in ipairs(it.sizes) do rows = rows * size end
  slots[0].i, slots[1].i, slots[2].i = number, pieces, it.n
  for i = 1, n do slots[2 + n + i].i = it.inner[i] end
  local at = 3 + 2 * n
  for _, x in ipairs(k.numbers) do
    if x.integer then slots[at].i = x.value else slots[at].d = x.value end
    at = at + 1
  end
  for _, size in ipairs(it.sizes) do
    slots[at].i = size
    at = at + 1
  end
  for i = 1, n do
    for _, stride in ipairs(it.strides[i]) do
      slots[at].i = stride
      at = at + 1
    end
  end
  local made = {}
  for i = 1, k.nresults do
    local m = k.operands[i].facts
    made[i] = { m.shape, { dtype = m.dtype.name } }
  end
  local empty = it.n == 0 or rows == 0
  local call = ffi.cast("MothKernelRange", lib.moth_kernel)
  local grain = math.max(1, math.floor(32768 / math.max(1, math.min(it.n, CHUNK))))
  local operands, nresults, total = k.operands, k.nresults, rows * pieces
  local make, data_ptr = B.ops.empty, B.data_ptr
  local own = { lib, call } -- stay while this does
  return function(values)
    for i = 1, nresults do values[operands[i]] = make(made[i][1], made[i][2]) end
    if empty then return own end
    for i = 1, n do slots[2 + i].p = data_ptr(values[operands[i]]) end
    C.moth_parallel_for(total, grain, call, slots)
  end
end

-- What runs a call as it was recorded.
local function single(call)
  local fn, args, n = B.ops[call.target], call.args, call.args.n
  local function given(v, values)
    if type(v) ~= "table" then return v end
    if v.facts then return values[v] end
    local list = {}
    for i = 1, v.n or #v do list[i] = given(v[i], values) end
    return list
  end
  local results = call.results
  return function(values)
    local list = {}
    for i = 1, n do list[i] = given(args[i], values) end
    if #results == 1 then
      values[results[1]] = fn(unpack(list, 1, n))
      return
    end
    local got = { fn(unpack(list, 1, n)) }
    for i, r in ipairs(results) do values[r] = got[i] end
  end
end

-- The calls of a graph as fuse.steps takes them, its placeholders, held tensors and outputs; nil if it has a call that
-- writes, draws, records a gradient, or shares memory with another's result.
local function read(graph)
  local value, calls, inputs, held, outputs = {}, {}, {}, {}, {}
  local shared = {} -- values that are inputs or views of inputs
  local function values_of(node, call)
    local list = {}
    for i, meta in ipairs(node.metas) do
      list[i] = { facts = fuse.facts(meta), call = call }
      value[node] = value[node] or {}
      value[node][i] = list[i]
    end
    return list
  end
  local function convert(v)
    if type(v) ~= "table" then return v end
    if value[v] then return value[v][1] end
    local node = rawget(v, "node")
    if node and value[node] then return value[node][rawget(v, "result")] end
    if getmetatable(v) ~= nil then return v end
    local list = { n = v.n or #v }
    for i = 1, list.n do list[i] = convert(v[i]) end
    return list
  end
  for node in graph:nodes() do
    if node.op == "placeholder" or node.op == "get_attr" then
      local v = values_of(node)[1]
      shared[v] = true
      if node.op == "placeholder" then
        inputs[#inputs + 1] = v
      else
        held[#held + 1] = { v, node.tensor }
      end
    elseif node.op == "call" then
      local f = graph.handle and B.compile.graph_node(graph.handle, node.id)
      local op = require("moth.dispatch.ops").get(node.target)
      if not f.plain or not op or op.draws or op.writes or not B.ops[node.target] then return nil end
      for _, meta in ipairs(node.metas) do
        if meta.requires_grad then return nil end
      end
      local call = { target = node.target, plain = true, at = #calls + 1 }
      call.args = convert(node.args)
      call.args.n = node.args.n
      call.results = values_of(node, call)
      if op.memory ~= "new" then
        if op.memory ~= "view" then return nil end
        for i = 1, call.args.n do
          local v = call.args[i]
          if type(v) == "table" and v.facts and not shared[v] then return nil end
        end
        for _, v in ipairs(call.results) do shared[v] = true end
      end
      calls[#calls + 1] = call
    else
      for i = 1, node.args.n do
        local v = convert(node.args[i])
        if not v.call then return nil end
        v.kept = true
        outputs[i] = v
      end
    end
  end
  return calls, inputs, held, outputs
end

local said = false

--- The backend: a function of the graph's inputs, and true: values that are no outputs are deferred. nil and true: the
-- calls run one by one.
function M.backend(graph)
  local calls, inputs, held, outputs = read(graph)
  if not calls then return nil, true end
  local steps, any = fuse.steps(calls), false
  for _, step in ipairs(steps) do any = any or step.fused end
  if not any then return nil, true end
  local cc = toolchain.cc()
  if not cc then
    if not said then
      toolchain.log("fusion", true, "compile: there is no C compiler, so nothing is fused; MOTH_CC names one")
    end
    said = true
    return nil, true
  end
  local kernels, number, wanted, run = {}, {}, {}, {}
  for i, step in ipairs(steps) do
    if step.fused then
      local k = kernel(step, wanted)
      if not number[k.text] then
        kernels[#kernels + 1] = k.text
        number[k.text] = #kernels
      end
      run[i] = k
      M.counters.groups = M.counters.groups + 1
      M.counters.fused = M.counters.fused + #step.calls
    end
  end
  local lib, message = compiled(file(kernels, wanted), cc)
  if not lib then
    toolchain.log("fusion", true, "compile: the C compiler failed, the calls run one by one: %s", tostring(message))
    return nil, true
  end
  for i, step in ipairs(steps) do
    run[i] = step.fused and launch(run[i], number[run[i].text], lib) or single(step.calls[1])
  end
  local ninputs, nsteps, noutputs = #inputs, #run, #outputs
  return function(...)
    local values = {}
    for i = 1, ninputs do values[inputs[i]] = (select(i, ...)) end
    for i = 1, #held do values[held[i][1]] = held[i][2] end
    for i = 1, nsteps do run[i](values) end
    local list = {}
    for i = 1, noutputs do list[i] = values[outputs[i]] end
    return list
  end, true
end

return M
