-- Programs of the tile IR as CUDA C++, for NVRTC. A program of the grid is a block of THREADS threads; they share the
-- elements of a loop, scalars are computed by each of them, arrays lie in shared memory. After a loop that touches an
-- array, and after stores that the program reads again, the threads wait for each other.
local c = require "moth.codegen.tile_c"
local print_ = require "moth.codegen.tile_print"
local tile = require "moth.codegen.tile"

local M = {}

--- What Printer:inside needs.
M.inside = [[
__device__ inline int moth_outside(long long *out, long long which, long long offset, long long site) {
  if (atomicCAS((unsigned long long *)out, 0ULL, (unsigned long long)which) == 0) {
    out[1] = offset;
    out[2] = site;
    out[3] = blockIdx.x;
  }
  return 0;
}
#define MOTH_IN(argument, offset, which, site) ((unsigned long long)(offset) < (unsigned long long)reach##argument \
  || moth_outside(moth_out, which, offset, site))
]]

local function sync(p) p:put("__syncthreads();") end

local function alloc(p, bytes)
  local at = p.shared_at or 0
  p.shared_at = at + math.ceil(bytes / 16) * 16
  p.shared = math.max(p.shared or 0, p.shared_at)
  return at
end

-- Bytes of a value while it is computed.
local function size_of(d) return d.form ~= 0 and 4 or d.size end

function M.array(p, name, d, shape)
  p:put("%s *const %s = (%s *)(moth_shared + %d);", d.real, name, d.real, alloc(p, tile.numel(shape) * size_of(d)))
end

-- Whether a program reads what it writes.
local function reads_stores(p)
  if p.reads == nil then
    local stored, loads = {}, {}
    local function look(list)
      for _, s in ipairs(list) do
        if s.op == "store" or s.op == "atomic" then stored[p.prog.class[s.root]] = true end
        if s.op == "load" then loads[#loads + 1] = p.prog.class[s.root] end
        if s.body then look(s.body) end
        if s.yes then look(s.yes) look(s.no) end
      end
    end
    look(p.prog.body)
    p.reads = false
    for _, class in ipairs(loads) do p.reads = p.reads or stored[class] or false end
    local stores = {} -- two stores to the same memory take effect in order, too
    local function count(list)
      for _, s in ipairs(list) do
        if s.op == "store" then
          local class = p.prog.class[s.root]
          p.reads = p.reads or stores[class] or false
          stores[class] = true
        end
        if s.body then count(s.body) end
        if s.yes then count(s.yes) count(s.no) end
      end
    end
    count(p.prog.body)
  end
  return p.reads
end

-- The statements of a loop's body: positions from `e`, then all lines.
local function lines_of(p, loop)
  for level = 0, #loop.shape do
    for _, text in ipairs(loop.lines[level]) do p:put(text) end
  end
end

-- Declares positions i1, i2, … of a flat number.
local function positions(p, loop, flat, dims)
  local stride = 1
  for k = #dims, 1, -1 do
    local dim = dims[k]
    local size = loop.shape[dim]
    if size > 1 then
      local text = stride == 1 and flat or ("%s / %d"):format(flat, stride)
      p:put(k > 1 and "const int i%d = %s %% %d;" or "const int i%d = %s;", dim, text, size)
      stride = stride * size
    end
  end
end

local function touches_arrays(loop)
  for level = 0, #loop.shape do
    for _, text in ipairs(loop.lines[level]) do
      if text:find("%f[%w_][vV]%d+%[") then return true end
    end
  end
  return false
end

local function stores(loop)
  for level = 0, #loop.shape do
    for _, text in ipairs(loop.lines[level]) do
      if text:find("%f[%w_]p%d+%[[^%]]*%] = ") or text:find("moth_atomic_", 1, true) then return true end
    end
  end
  return false
end

function M.loop(p, loop, options)
  if options.custom then return options.custom(p, loop) end
  local n = tile.numel(loop.shape)
  if options.once then
    p:open("if (threadIdx.x == 0) {")
    lines_of(p, loop)
    p:close()
  else
    p:open("for (int e = threadIdx.x; e < %d; e += THREADS) {", n)
    positions(p, loop, "e", loop.order)
    lines_of(p, loop)
    p:close()
  end
  if touches_arrays(loop) or stores(loop) and reads_stores(p) then sync(p) end
end

--- Formulas of records: contracted as NVRTC likes.
function M.exact(p, n, list)
  local text = ("%s(%s)"):format(p:formula(n.name, n.compute), table.concat(list, ", "))
  if n.d.class == "bool" then return ("(%s)(%s != 0)"):format(n.d.real, text) end
  return ("(%s)%s"):format(n.d.real, text)
end

function M.barrier(p) sync(p) end
function M.turn(p) if p.shared then sync(p) end end
--- Of memory that the program writes, one thread reads for all: others may write it, too, and the threads of a program
-- have to go one way.
function M.scalar_load(p, s, text)
  if not reads_stores(p) then return false end
  local at = M.shared_scalar(p, "v" .. s.id, s.d)
  p:put("if (threadIdx.x == 0) %s = %s;", at, text)
  M.share_scalar(p, "v" .. s.id, s.d)
  return true
end
function M.param(_, s) return "a" .. s.index end

function M.shared_scalar(p, name, d)
  local at = alloc(p, size_of(d))
  p:put("%s *const %s_at = (%s *)(moth_shared + %d);", d.real, name, d.real, at)
  return "*" .. name .. "_at"
end
function M.share_scalar(p, name, d)
  sync(p)
  p:put("const %s %s = *%s_at;", d.real, name, name)
  sync(p)
end

-- ---- reductions ---------------------------------------------------------------------------------

local function other_dims(n, dim)
  local out = {}
  for k = 1, n do
    if k ~= dim then out[#out + 1] = k end
  end
  return out
end

local function target(s, name, idx, text)
  return ("%s[%s] = %s;"):format(name, print_.flat(s.shape, c.without(idx, s.dim)), text)
end

-- A row for each thread, element after element.
local function by_rows(p, s, name, first, last, body)
  local shape = s[1].shape
  p:each_element(shape, body, { custom = function(_, loop)
    local others = other_dims(#shape, s.dim)
    p:open("for (int row = threadIdx.x; row < %d; row += THREADS) {", tile.numel(shape) / shape[s.dim])
    positions(p, loop, "row", others)
    for _, text in ipairs(first) do p:put(text) end
    if shape[s.dim] > 1 then
      p:open("for (int i%d = 0; i%d < %d; i%d++) {", s.dim, s.dim, shape[s.dim], s.dim)
    else
      p:open("{")
    end
    lines_of(p, loop)
    p:close()
    if last then p:put(target(s, name, p:positions(shape), last)) end
    p:close()
    sync(p)
  end })
end

function M.reduce(p, s)
  local x, shape = s[1], s[1].shape
  local name, d = "v" .. s.id, s.d
  local scalar = #s.shape == 0
  local array = scalar and name .. "_all" or name
  M.array(p, array, d, scalar and { 1 } or s.shape)
  local mark = p.shared_at
  if s.kind:find("^arg") then
    p:helper("beats", "#define MOTH_NAN(x) ((x) != (x))")
    local sign = s.kind == "argmax" and ">" or "<"
    by_rows(p, s, array, { ("%s best = 0; long long at = 0;"):format(x.d.real) }, "at", function(idx)
      local text = p:element(x, idx)
      p:effect(("if (%s == 0 || %s %s best || (MOTH_NAN(%s) && !MOTH_NAN(best))) { best = %s; at = %s; }"):format(
        idx[s.dim], text, sign, text, text, idx[s.dim]))
    end)
  else
    local none, form = c.joined(p, s.kind, d)
    local rows = s.dim and tile.numel(shape) / shape[s.dim] or 1
    local inner = tile.numel(shape) / rows
    local group = 1 -- threads for a row
    while group * 2 * rows <= p.threads and group < inner do group = group * 2 end
    M.array(p, "part" .. s.id, d, { p.threads })
    local part = "part" .. s.id
    local mine = part .. "[threadIdx.x]"
    local dims = s.dim and { s.dim } or other_dims(#shape, nil)
    p:each_element(shape, function(idx)
      p:effect(("acc = %s;"):format(c.join_text(form, "acc", p:element(x, idx))))
    end, { custom = function(_, loop)
      p:open("for (int from = 0; from < %d; from += %d) {", rows, p.threads / group)
      p:put("const int row = from + (int)threadIdx.x / %d, lane = threadIdx.x %% %d;", group, group)
      p:put("%s acc = %s;", d.real, none)
      p:open("if (row < %d) {", rows)
      if s.dim then positions(p, loop, "row", other_dims(#shape, s.dim)) end
      p:open("for (int r = lane; r < %d; r += %d) {", inner, group)
      positions(p, loop, "r", dims)
      lines_of(p, loop)
      p:close()
      p:close()
      p:put("%s = acc;", mine)
      sync(p)
      p:open("for (int half = %d; half > 0; half /= 2) {", group / 2)
      p:put("if (lane < half) %s = %s;", mine, c.join_text(form, mine, part .. "[threadIdx.x + half]"))
      sync(p)
      p:close()
      p:open("if (lane == 0 && row < %d) {", rows)
      if s.dim then positions(p, loop, "row", other_dims(#shape, s.dim)) end
      p:put(target(s, array, p:positions(shape), mine))
      p:close()
      sync(p)
      p:close()
    end })
  end
  p.shared_at = mark
  if scalar then
    p:put("const %s %s = %s[0];", d.real, name, array)
    sync(p)
  end
end

-- Few long rows: each element is joined with the one 1, 2, 4, … before it, by all threads.
local function long_scan(p, s, name, form)
  local shape, size, n = s.shape, s.shape[s.dim], tile.numel(s.shape)
  local stride = 1
  for k = s.dim + 1, #shape do stride = stride * shape[k] end
  p:each_element(shape, function(idx)
    p:effect(("%s[%s] = %s;"):format(name, print_.flat(shape, idx), p:element(s[1], idx)))
  end)
  local mark = p.shared_at
  local next_ = "next" .. s.id
  M.array(p, next_, s.d, shape)
  p:open("for (int step = 1; step < %d; step *= 2) {", size)
  p:open("for (int e = threadIdx.x; e < %d; e += THREADS) {", n)
  p:put("const int i = e / %d %% %d;", stride, size)
  local inside, before = "i >= step", ("%s[e - step * %d]"):format(name, stride)
  if s.reverse then inside, before = ("i + step < %d"):format(size), ("%s[e + step * %d]"):format(name, stride) end
  p:put("%s[e] = %s ? %s : %s[e];", next_, inside, c.join_text(form, before, name .. "[e]"), name)
  p:close()
  sync(p)
  p:put("for (int e = threadIdx.x; e < %d; e += THREADS) %s[e] = %s[e];", n, name, next_)
  sync(p)
  p:close()
  p.shared_at = mark
end

function M.scan(p, s)
  local x, shape = s[1], s.shape
  local name, none, form = "v" .. s.id, c.joined(p, s.kind, s.d)
  M.array(p, name, s.d, shape)
  if shape[s.dim] >= 32 and tile.numel(shape) / shape[s.dim] * 4 <= p.threads then
    return long_scan(p, s, name, form)
  end
  by_rows(p, s, name, { ("%s acc = %s;"):format(s.d.real, none) }, nil, function(idx)
    if s.reverse and shape[s.dim] > 1 then idx[s.dim] = ("(%d - i%d)"):format(shape[s.dim] - 1, s.dim) end
    p:effect(("acc = %s;"):format(c.join_text(form, "acc", p:element(x, idx))))
    p:effect(("%s[%s] = acc;"):format(name, print_.flat(shape, idx)))
  end)
end

-- ---- products -----------------------------------------------------------------------------------

function M.dot(p, s)
  local a, b, acc = s[1], s[2], s[3]
  local m, n, k = a.shape[1], b.shape[2], a.shape[2]
  local out = s.inplace and "V" .. s.inplace.id or "v" .. s.id
  if not s.inplace then
    M.array(p, out, s.d, s.shape)
    p:each_element(s.shape, function(idx)
      p:effect(("%s[%s] = %s;"):format(out, print_.flat(s.shape, idx), acc and p:element(acc, idx) or "0"))
    end)
  end
  local function factor(x) return x.op == "var" and not x.array and "V" .. x.var.id or "v" .. x.id end
  local rows, columns = m % 4 == 0 and 4 or 1, n % 4 == 0 and 4 or 1
  p:open("for (int e = threadIdx.x; e < %d; e += THREADS) {", (m / rows) * (n / columns))
  -- Neighbouring threads have neighbouring columns.
  p:put("const int i = e / %d * %d, j = e %% %d;", n / columns, rows, n / columns)
  local function tiles(f)
    for r = 0, rows - 1 do
      for col = 0, columns - 1 do f(r, col) end
    end
  end
  tiles(function(r, col)
    p:put("%s c%d_%d = %s[(i + %d) * %d + j + %d];", s.d.real, r, col, out, r, n, col * n / columns)
  end)
  p:open("for (int k = 0; k < %d; k++) {", k)
  for r = 0, rows - 1 do p:put("const %s x%d = %s[(i + %d) * %d + k];", s.d.real, r, factor(a), r, k) end
  for col = 0, columns - 1 do
    p:put("const %s y%d = %s[k * %d + j + %d];", s.d.real, col, factor(b), n, col * n / columns)
  end
  tiles(function(r, col) p:put("c%d_%d += x%d * y%d;", r, col, r, col) end)
  p:close()
  tiles(function(r, col) p:put("%s[(i + %d) * %d + j + %d] = c%d_%d;", out, r, n, col * n / columns, r, col) end)
  p:close()
  sync(p)
end

-- ---- atomics ------------------------------------------------------------------------------------

function M.atomic(p, kind, d)
  local name = ("moth_atomic_%s_%s"):format(kind, d.name)
  local bits = d.size == 8 and "unsigned long long" or "unsigned"
  return p:helper(name, ([[
__device__ inline T NAME(T *p, ARGST v) {
  union { T t; BITS b; } seen, next, now;
  now.b = *(volatile BITS *)p;
  do {
    seen.b = now.b;
    const T old = seen.t;
    next.t = VALUE;
    now.b = atomicCAS((BITS *)p, seen.b, next.b);
  } while (now.b != seen.b);
  return now.t;
}]]):gsub("%u+", { T = d.real, NAME = name, ARGST = (kind == "cas" and d.real .. " c, " or "") .. d.real, BITS = bits,
    VALUE = c.new_value[kind] }))
end

-- ---- the file -----------------------------------------------------------------------------------

--- What files begin with.
function M.head(texts)
  return "#define MOTH_FN static __device__ __forceinline__\n" .. texts["math_libm.h"]:gsub('#include "[^\n]*\n', "")
end

--- The kernel of a program.
function M.functions(p, prog, body, name)
  local parts, list, alone = {}, {}, {}
  local function put(text, ...) parts[#parts + 1] = select("#", ...) > 0 and text:format(...) or text end
  for _, param in ipairs(prog.params) do
    if param.pointer then alone[prog.class[param.index]] = (alone[prog.class[param.index]] or 0) + 1 end
  end
  for i, param in ipairs(prog.params) do
    if param.pointer then
      list[#list + 1] = ("%s *%sp%d"):format(print_.stored(param.d),
        alone[prog.class[param.index]] == 1 and "__restrict__ " or "", i - 1)
    elseif param.float or param.integer then
      list[#list + 1] = ("%s a%d"):format(param.float and "double" or "long long", i - 1)
    end
  end
  for axis = 0, 2 do list[#list + 1] = "long long programs" .. axis end
  for i, param in ipairs(p.checked and prog.params or {}) do
    if param.pointer or prog.flat then list[#list + 1] = "long long reach" .. i - 1 end
  end
  if p.checked then list[#list + 1] = "long long *moth_out" end
  put("extern \"C\" __global__ void __launch_bounds__(%d) %s(%s) {", p.threads, name, table.concat(list, ", "))
  put("  enum { THREADS = %d };", p.threads)
  if p.shared then put("  extern __shared__ __align__(16) char moth_shared[];") end
  if prog.flat then -- the grid has one dimension
    put("  const long long pid0 = blockIdx.x;\n  (void)pid0, (void)programs0, (void)programs1, (void)programs2;")
  else
    put("  const long long pid0 = blockIdx.x % programs0, pid1 = blockIdx.x / programs0 % programs1;")
    put("  const long long pid2 = blockIdx.x / programs0 / programs1;")
    put("  (void)pid0, (void)pid1, (void)pid2, (void)programs2;")
  end
  put(body)
  put("}")
  return table.concat(parts, "\n")
end

--- Also sets o.shared, the bytes of shared memory.
function M.file(p, o, formulas, body)
  o.shared = p.shared or 0
  return table.concat({ ("/* %s: generated by moth.kernel from %s */"):format(o.prog.name, o.prog.place or "?"),
    M.head(o.texts), formulas, M.functions(p, o.prog, body, "moth_kernel"), "" }, "\n")
end

return M
