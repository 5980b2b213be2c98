-- Programs of the tile IR as C, for gcc and clang. The file exports
--   void moth_kernel(MothSlot *args, long begin, long end)     programs begin to end - 1 of the grid (a MothRange)
-- args: the kernel's arguments (pointers and numbers, 8 bytes each), then the grid, three integers, then a place for
-- "no memory": 1 is written there where blocks find no memory. Where accesses are checked, there follow, for each
-- argument, how many elements its buffer has, and four integers for the first access outside of one (M.fault of
-- tile_print.lua), the first of which is 0 before.
local print_ = require "moth.codegen.tile_print"
local tile = require "moth.codegen.tile"

local M = {}

-- Arrays lie on the stack up to here, else in memory of the call.
local STACK = 262144

function M.array(p, name, d, shape)
  local n = tile.numel(shape)
  local bytes = math.ceil(n * d.size / 64) * 64
  if d.form ~= 0 then bytes = bytes * 2 end
  p.bytes = (p.bytes or 0) + bytes
  if p.bytes > STACK then
    p.heap = (p.heap or 0)
    p:put("%s *restrict %s = (%s *)(heap + %d);", d.real, name, d.real, p.heap)
    p.heap = p.heap + bytes
    p.bytes = p.bytes - bytes
  else
    p:put("__attribute__((aligned(64))) %s %s[%d];", d.real, name, n)
  end
end

function M.loop(p, loop, options)
  local depth = 0
  local function lines(level)
    for _, text in ipairs(options.before and options.before[level] or {}) do p:put(text) end
    for _, text in ipairs(loop.lines[level]) do p:put(text) end
  end
  p:open("{")
  lines(0)
  local limits = {}
  for dim, size in ipairs(loop.shape) do
    limits[dim] = tostring(size)
    for k, text in ipairs(options.bounds and options.bounds[dim] or {}) do
      local name = ("n%d_%d"):format(dim, k)
      p:put("const long long %s = %s;", name, text)
      limits[dim] = ("(%s < %s ? (int)(%s < 0 ? 0 : %s) : %s)"):format(name, limits[dim], name, name, limits[dim])
    end
    if options.bounds and options.bounds[dim] then
      p:put("const int n%d = %s;", dim, limits[dim])
      limits[dim] = "n" .. dim
    end
  end
  local innermost = 0
  for position, dim in ipairs(loop.order) do
    if loop.shape[dim] > 1 then innermost = position end
  end
  for position, dim in ipairs(loop.order) do
    local size = loop.shape[dim]
    if size > 1 then
      if position == innermost and options.simd and (options.simd == "" or position == #loop.order) then
        p:put("#pragma omp simd %s", options.simd)
      end
      p:open("for (int i%d = 0; i%d < %s; i%d++) {", dim, dim, limits[dim], dim)
    else
      p:open("{")
    end
    depth = position
    lines(position)
  end
  for position = depth, 0, -1 do
    p:close()
    for _, text in ipairs(options.after and options.after[position] or {}) do p:put(text) end
  end
end

M.bounded = true

--- What Printer:inside needs.
M.inside = [[
static __attribute__((noinline, cold)) int moth_outside(MothSlot *out, long long which, long long offset,
    long long site, long long program) {
  long long none = 0;
  if (__atomic_compare_exchange_n(&out[0].i, &none, which, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    out[1].i = offset;
    out[2].i = site;
    out[3].i = program;
  }
  return 0;
}
#define MOTH_IN(argument, offset, which, site) ((unsigned long long)(offset) < \
  (unsigned long long)moth_reach[argument].i || moth_outside(moth_out, which, offset, site, moth_program))
]]

function M.barrier() end
function M.turn(p) -- a loop that waits for what it reads might not end
  if p.checked then p:put("if (moth_out->i) return;") end
end
function M.scalar_load() return false end

function M.param(_, s) return ("a[%d].%s"):format(s.index, s.d.is_float and "d" or "i") end

-- Names of formulas that do not end in a product.
local sums = {}
local no_products = "add sub div maximum minimum relu neg abs where masked_fill clamp floor ceil round trunc sqrt"
for name in no_products:gmatch("%S+") do sums[name] = true end

--- A formula as eager's loops compute it: contracted within itself, but not with the next one. A product at its end is
-- kept out of the sum of the next by a multiplication with a 1 that the compiler does not know, in an FMA.
function M.exact(p, n, list)
  local d = n.compute
  local text
  if n.name == "neg" and d.is_float then -- gcc would negate inside the FMA before it, which turns -0 into 0
    text = ("(%s * -(%s)moth_one)"):format(list[1], d.real)
  else
    text = ("%s(%s)"):format(p:formula(n.name, d), table.concat(list, ", "))
  end
  if n.d.class == "bool" then
    return d.class == "bool" and ("(%s != 0)"):format(text) or ("(%s)%s"):format(n.d.real, text)
  end
  if not d.is_float then return ("(%s)%s"):format(d.real, text) end
  return (n.exact == "free" or sums[n.name]) and text or ("MOTH_EACH_%s(%s)"):format(d.real, text)
end

function M.shared_scalar(p, name, d)
  p:put("%s %s;", d.real, name)
  return name
end
function M.share_scalar() end

-- ---- reductions ---------------------------------------------------------------------------------

-- none: text of what no elements give; join: form of a new partial result from a (so far) and x.
local function joined(p, kind, d)
  if kind == "sum" then return "0", "a + x", "reduction(+ : acc)" end
  if kind == "prod" then return "1", "a * x", "reduction(* : acc)" end
  if kind == "any" then return "0", "a | x", "reduction(| : acc)" end
  if kind == "all" then return "1", "a & x", "reduction(& : acc)" end
  local join = p:formula(kind == "max" and "join_max" or "join_min", d)
  return p:formula(kind == "max" and "lowest" or "highest", d) .. "()", join .. "(a, x)"
end
M.joined = joined

local function join_text(form, acc, x)
  return (form:gsub("%f[%w][ax]%f[%W]", { a = acc, x = x }))
end
M.join_text = join_text

-- Positions without a dimension.
local function without(idx, dim)
  local out = {}
  for k, text in ipairs(idx) do
    if k ~= dim then out[#out + 1] = text end
  end
  return out
end
M.without = without

local function dim_last(n, dim)
  local order = {}
  for k = 1, n do
    if k ~= dim then order[#order + 1] = k end
  end
  order[#order + 1] = dim
  return order
end
M.dim_last = dim_last

local function arg_reduce(p, s, target)
  local x, shape = s[1], s[1].shape
  local order = dim_last(#shape, s.dim)
  local level = #shape - 1
  p:helper("beats", "#define MOTH_NAN(x) ((x) != (x))")
  local sign = s.kind == "argmax" and ">" or "<"
  p:each_element(shape, function(idx)
    local text = p:element(x, idx)
    p:effect(("if (%s == 0 || %s %s best || (MOTH_NAN(%s) && !MOTH_NAN(best))) { best = %s; at = %s; }"):format(
      idx[s.dim], text, sign, text, text, idx[s.dim]))
  end, { order = order, before = { [level] = { ("%s best = 0; long long at = 0;"):format(x.d.real) } },
    after = { [level + 1] = { target(without(p:positions(shape), s.dim), "at") } } })
end

--- The positions of a loop over a shape.
function print_.Printer:positions(shape) -- luacheck: ignore self
  local idx = {}
  for k, size in ipairs(shape) do idx[k] = size == 1 and "0" or "i" .. k end
  return idx
end

local nothing = { sum = 0, prod = 1, any = 0, all = 1 }

-- The bounds of a reduction of where(mask, x, what changes nothing): elements behind them need not be looked at.
local function reduce_bounds(p, s)
  local x = s[1]
  local other = x.op == "where" and x[3]
  while other and other.op == "broadcast" do other = other[1] end
  local none = nothing[s.kind] or s.kind == "max" and -math.huge or s.kind == "min" and math.huge
  local fits = other and other.op == "const" and other.value == none
  if other and other.exact then fits = other.name == (s.kind == "max" and "lowest" or s.kind == "min" and "highest") end
  if not fits then return nil end
  local bounds = p:bounds(x[1], x.shape)
  for dim = 1, #x.shape do
    if bounds and bounds[dim] and s.dim and s.dim ~= dim then return nil end
  end
  return bounds
end

--- The accumulator of a reduction in a loop: lines `before` and `after` it, a clause for the loop, and effects(text),
-- the lines for an element.
function M.accumulator(p, s, acc)
  local none, form, clause = joined(p, s.kind, s.d)
  local a = { before = { ("%s %s = %s;"):format(s.d.real, acc, none) }, after = {} }
  local nans = not clause and s.d.is_float and "nans_" .. acc
  if clause then
    a.clause = (clause:gsub("acc", acc))
  else
    -- As a comparison and, for floats, a flag: compilers make vectors of these.
    form = s.kind == "max" and "x > a ? x : a" or "x < a ? x : a"
    a.clause = ("reduction(%s : %s)"):format(s.kind, acc)
  end
  if nans then
    a.before[2] = ("int %s = 0;"):format(nans)
    a.clause = ("%s reduction(| : %s)"):format(a.clause, nans)
    a.after[1] = ("if (%s) %s = %s;"):format(nans, acc, print_.literal(p, 0 / 0, s.d))
  end
  function a.effects(text)
    local lines = { ("%s = %s;"):format(acc, join_text(form, acc, text)) }
    if nans then lines[2] = ("%s |= %s != %s;"):format(nans, text, text) end
    return lines
  end
  return a
end

function M.reduce(p, s)
  local x, shape = s[1], s[1].shape
  local scalar = #s.shape == 0
  local name = "v" .. s.id
  if scalar then p:put("%s %s;", s.d.real, name) else M.array(p, name, s.d, s.shape) end
  local function target(idx, text)
    return scalar and ("%s = %s;"):format(name, text) or ("%s[%s] = %s;"):format(name, print_.flat(s.shape, idx), text)
  end
  if s.kind:find("^arg") then return arg_reduce(p, s, target) end
  local none, form = joined(p, s.kind, s.d)
  if s.dim == nil or s.dim == #shape then
    -- An accumulator for each row; of all elements, one.
    local level = s.dim and #shape - 1 or 0
    local acc = M.accumulator(p, s, "acc")
    table.insert(acc.after, target(s.dim and without(p:positions(shape), s.dim) or {}, "acc"))
    p:each_element(shape, function(idx)
      for _, text in ipairs(acc.effects(p:element(x, idx))) do p:effect(text) end
    end, { simd = acc.clause, before = { [level] = acc.before }, after = { [level + 1] = acc.after },
      bounds = reduce_bounds(p, s) })
  else
    p:each_element(s.shape, function(idx)
      p:effect(("%s[%s] = %s;"):format(name, print_.flat(s.shape, idx), none))
    end, { simd = "" })
    p:each_element(shape, function(idx)
      local at = ("%s[%s]"):format(name, print_.flat(s.shape, without(idx, s.dim)))
      p:effect(("%s = %s;"):format(at, join_text(form, at, p:element(x, idx))))
    end, { simd = "", order = M.dim_first(#shape, s.dim), bounds = reduce_bounds(p, s) })
  end
end

--- The reduced dimension ahead of the last one: the innermost loop is over results.
function M.dim_first(n, dim)
  local order = {}
  for k = 1, n - 1 do
    if k ~= dim then order[#order + 1] = k end
  end
  order[#order + 1] = dim
  order[#order + 1] = n
  return order
end

function M.scan(p, s)
  local x, shape = s[1], s.shape
  local name, none, form = "v" .. s.id, joined(p, s.kind, s.d)
  M.array(p, name, s.d, shape)
  p:each_element(shape, function(idx)
    local size = shape[s.dim]
    if s.reverse and size > 1 then idx[s.dim] = ("(%d - i%d)"):format(size - 1, s.dim) end
    p:effect(("acc = %s;"):format(join_text(form, "acc", p:element(x, idx))))
    p:effect(("%s[%s] = acc;"):format(name, print_.flat(shape, idx)))
  end, { order = dim_last(#shape, s.dim), before = { [#shape - 1] = { ("%s acc = %s;"):format(s.d.real, none) } } })
end

-- ---- products -----------------------------------------------------------------------------------

local function largest(n, of)
  for _, size in ipairs(of) do
    if n % size == 0 then return size end
  end
  return 1
end

function M.dot(p, s)
  local a, b, acc = s[1], s[2], s[3]
  local m, n, k = a.shape[1], b.shape[2], a.shape[2]
  local d = s.d
  local out = s.inplace and "V" .. s.inplace.id or "v" .. s.id
  if not s.inplace then
    M.array(p, out, d, s.shape)
    p:each_element(s.shape, function(idx)
      p:effect(("%s[%s] = %s;"):format(out, print_.flat(s.shape, idx), acc and p:element(acc, idx) or "0"))
    end, { simd = "" })
  end
  local function factor(x)
    if #x.shape > 0 and x.op == "var" and not x.array then return "V" .. x.var.id end
    return "v" .. x.id
  end
  local lanes = largest(n, { 64 / d.size, 32 / d.size, 16 / d.size })
  local columns, rows = largest(n / lanes, { 4, 2 }), largest(m, { 4, 2 })
  local vector = ("moth_%s_%d"):format(d.suffix, lanes)
  -- A vector of one number would be one of MMX.
  local form = lanes == 1 and "typedef %s %s;"
    or "typedef %s %s __attribute__((vector_size(%d), aligned(%d), may_alias));"
  p:helper(vector, form:format(d.real, vector, lanes * d.size, d.size))
  p:open("for (int i = 0; i < %d; i += %d)", m, rows)
  p:open("for (int j = 0; j < %d; j += %d) {", n, columns * lanes)
  local function tiles(f)
    for r = 0, rows - 1 do
      for c = 0, columns - 1 do f(r, c) end
    end
  end
  tiles(function(r, c)
    p:put("%s c%d_%d = *(const %s *)(%s + (i + %d) * %d + j + %d);", vector, r, c, vector, out, r, n, c * lanes)
  end)
  p:open("for (int k = 0; k < %d; k++) {", k)
  for c = 0, columns - 1 do
    p:put("const %s b%d = *(const %s *)(%s + k * %d + j + %d);", vector, c, vector, factor(b), n, c * lanes)
  end
  for r = 0, rows - 1 do p:put("const %s a%d = %s[(i + %d) * %d + k];", d.real, r, factor(a), r, k) end
  tiles(function(r, c) p:put("c%d_%d += a%d * b%d;", r, c, r, c) end)
  p:close()
  tiles(function(r, c)
    p:put("*(%s *)(%s + (i + %d) * %d + j + %d) = c%d_%d;", vector, out, r, n, c * lanes, r, c)
  end)
  p:close()
  p.indent = p.indent - 1
end

-- ---- atomics ------------------------------------------------------------------------------------

local new_value = { add = "old + v", max = "old > v ? old : v", min = "old < v ? old : v", xchg = "v",
  ["and"] = "old & v", ["or"] = "old | v", xor = "old ^ v", cas = "old == c ? v : old" }
M.new_value = new_value

function M.atomic(p, kind, d)
  local name = ("moth_atomic_%s_%s"):format(kind, d.name)
  local bits = d.size == 8 and "unsigned long long" or "unsigned"
  return p:helper(name, ([[
static inline T NAME(T *p, ARGST v) {
  BITS seen = __atomic_load_n((BITS *)p, __ATOMIC_RELAXED), next;
  T old, new_;
  do {
    __builtin_memcpy(&old, &seen, sizeof old);
    new_ = VALUE;
    __builtin_memcpy(&next, &new_, sizeof next);
  } while (!__atomic_compare_exchange_n((BITS *)p, &seen, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}]]):gsub("%u+", { T = d.real, NAME = name, ARGST = (kind == "cas" and d.real .. " c, " or "") .. d.real, BITS = bits,
    VALUE = new_value[kind] }))
end

-- ---- the file -----------------------------------------------------------------------------------

--- What files begin with.
function M.head(texts)
  return ([[
#define MOTH_FN static inline __attribute__((always_inline, unused))
%s
typedef union { void *p; long long i; double d; } MothSlot;
void *malloc(unsigned long);
void free(void *);
static volatile const double moth_unknown_one = 1;
#if defined(__FMA__) || defined(__aarch64__)
#define MOTH_EACH_float(x) __builtin_fmaf(x, (float)moth_one, -0.0f)
#define MOTH_EACH_double(x) __builtin_fma(x, moth_one, -0.0)
#else
#define MOTH_EACH_float(x) (x)
#define MOTH_EACH_double(x) (x)
#endif
]]):format((texts["math_libm.h"]:gsub('#include "[^\n]*\n', "")))
end

--- The functions of a program: `name`_program, and `name`, which runs programs begin to end - 1 of the grid.
function M.functions(p, prog, body, name)
  local parts, n = {}, #prog.params
  local function put(text, ...) parts[#parts + 1] = select("#", ...) > 0 and text:format(...) or text end
  local axes = prog.flat and 1 or 3 -- flat: the grid has one dimension
  local more = axes == 3 and ", long long pid1, long long pid2" or ""
  local inline = p.checked and "" or " inline __attribute__((always_inline))"
  put("static%s void %s_program(%sMothSlot *a, long long pid0%s,", inline, name, p.checked and "" or "const ", more)
  put("    long long programs0, long long programs1, long long programs2, char *heap, const double moth_one) {")
  if p.checked then
    put("  const MothSlot *moth_reach = a + %d;\n  MothSlot *moth_out = a + %d;", n + 4, n * 2 + 4)
    put("  const long long moth_program = pid0%s;", axes == 3 and " + programs0 * (pid1 + programs1 * pid2)" or "")
  end
  put("  (void)a, (void)pid0, (void)programs0, (void)programs1, (void)programs2, (void)heap, (void)moth_one;")
  if axes == 3 then put("  (void)pid1, (void)pid2;") end
  local alone = {}
  for _, param in ipairs(prog.params) do
    if param.pointer then alone[prog.class[param.index]] = (alone[prog.class[param.index]] or 0) + 1 end
  end
  for i, param in ipairs(prog.params) do
    if param.pointer then
      put("  %s *%sp%d = a[%d].p;\n  (void)p%d;", print_.stored(param.d),
        alone[prog.class[param.index]] == 1 and "restrict " or "", i - 1, i - 1, i - 1)
    end
  end
  put(body)
  put("}\n")
  put("static void %s(MothSlot *a, long begin, long end) {", name)
  put("  char *heap = 0;")
  if p.heap then
    put("  heap = malloc(%d);\n  if (!heap) {\n    a[%d].i = 1;\n    return;\n  }", p.heap + 64, n + 3)
  end
  put("  const long long gx = a[%d].i, gy = a[%d].i, gz = a[%d].i;", n, n + 1, n + 2)
  put("  const double moth_one = moth_unknown_one;")
  put("  for (long long i = begin; i < end; i++)")
  put("    %s_program(a, %s, gx, gy, gz, heap%s, moth_one);", name,
    axes == 3 and "i % gx, i / gx % gy, i / gx / gy" or "i", p.heap and " + (-(unsigned long)heap & 63)" or "")
  if p.heap then put("  free(heap);") end
  put("}")
  return table.concat(parts, "\n")
end

function M.file(p, o, formulas, body)
  local prog = o.prog
  return table.concat({ ("/* %s: generated by moth.kernel from %s */"):format(prog.name, prog.place or "?"),
    M.head(o.texts), formulas, M.functions(p, prog, body, "kernel"), "",
    '__attribute__((visibility("default"))) void moth_kernel(MothSlot *a, long begin, long end) {',
    "  kernel(a, begin, end);", "}", "" }, "\n")
end

return M
