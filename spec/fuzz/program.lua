--- Programs of the fuzzers: lines of Lua over a pool of tensors, p[1] to p[16]. Each line stands by itself (its random
-- data come of a seed that it names), so that a program can be cut down line by line to what fails.
--
-- After every line its oracles are asked: an error is a text with a place or an op, never one of Lua's own ("attempt to
-- index …"); what is not in-place leaves its arguments as they were; a result lies within its storage and all its
-- elements can be read; no line takes longer than 5 seconds of processor time.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local S = require "ops.support"
local Chance = require "fuzz.chance"
local ops = B.ops

ffi.cdef "unsigned int alarm(unsigned int seconds);"

local P = {}
P.POOL = 16
local MOST = 4096       -- elements: what a result may have to go into the pool
local SECONDS = 5       -- of processor time, for a line; and one for each GB of memory it takes anew
local DEADLINE = 120    -- of the clock: then the process ends by SIGALRM

local is_tensor = B.is_tensor
local function dtype_of(t) return B.tensor_dtype(t).name end
P.floats = { "float64", "float32", "float16", "bfloat16" }
P.dtypes = { "float64", "float32", "float32", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64",
  "bool", "uint16", "uint32", "uint64" }

-- ---- data ------------------------------------------------------------------------------------------

local extremes = {
  int8 = { -128, 127 }, uint8 = { 0, 255 }, int16 = { -32768, 32767 }, int32 = { -2 ^ 31, 2 ^ 31 - 1 },
  uint16 = { 0, 65535 }, uint32 = { 0, 2 ^ 32 - 1 }, uint64 = { 0, 2 ^ 53, 18446744073709551615ULL },
  int64 = { -2 ^ 53, 2 ^ 53, -9223372036854775808LL, 9223372036854775807LL }, bool = { 0, 1 },
}
local odd_floats = { 0, -0.0, 1, -1, 1e-320, 1e38, -1e38, 1e308, 65504, 2 ^ 31, 2 ^ 63, -2 ^ 63, 1 / 0, -1 / 0, 0 / 0 }

local function element(c, dtype, kind)
  if S.class[dtype] == "float" then
    if kind == "odd" and c:one_in(3) then return c:pick(odd_floats) end
    if kind == "positive" then return c:int(0, 1000) / 500 end
    return (c:int(0, 4000) - 2000) / 700
  end
  if kind == "odd" and c:one_in(3) then return c:pick(extremes[dtype]) end
  if dtype == "bool" then return c:int(0, 1) end
  if kind == "positive" or dtype:sub(1, 1) == "u" then return c:int(0, 4) end
  return c:int(-3, 6)
end

local function fill(c, dtype, shape, device)
  local data, n, kind = {}, S.product(shape), c:pick({ "usual", "usual", "usual", "positive", "odd" })
  if n > 2 ^ 16 then error("[fuzz] too many elements", 0) end
  for i = 1, n do data[i] = element(c, dtype, kind) end
  return S.make(shape, dtype, data, device)
end

-- The tensor in another layout; what does not fit its shape is left as it is.
local layouts = {
  transposed = function(t)
    if B.dim(t) < 2 then return t end
    return ops.transpose(ops.clone(ops.transpose(t, 1, -1)), 1, -1)
  end,
  strided = function(t, c)
    local d = B.dim(t)
    if d == 0 or B.numel(t) == 0 then return t end
    local shape, at = B.size(t), c:int(d)
    shape[at] = shape[at] * 2
    local whole = ops.zeros(shape, { dtype = B.tensor_dtype(t), device = B.tensor_device(t) })
    return ops.copy_(ops.slice(whole, at, c:int(0, 1), shape[at], 2), t)
  end,
  offset = function(t)
    local n = B.numel(t)
    local flat = ops.zeros({ n + 5 }, { dtype = B.tensor_dtype(t), device = B.tensor_device(t) })
    return ops.copy_(ops.view(ops.narrow(flat, 1, 4, n), B.size(t)), t)
  end,
  expanded = function(t, c)
    local d = B.dim(t)
    if d == 0 or B.numel(t) == 0 then return t end
    return ops.expand(ops.narrow(t, c:int(d), 1, 1), B.size(t))
  end,
  overlapping = function(t, c)
    local stride, reach, shape = {}, 0, B.size(t)
    for i = 1, #shape do
      stride[i] = c:int(0, 2)
      reach = reach + (shape[i] - 1) * stride[i]
    end
    if not B.is_contiguous(t) or reach >= B.numel(t) then return t end
    return ops.as_strided(t, shape, stride)
  end,
  wide = function(t, c) -- strides of thousands
    local shape, n = B.size(t), B.dim(t) > 0 and B.numel(t) or 0
    if n == 0 or n > 64 then return t end
    shape[#shape + 1] = 1024 * c:int(3)
    local whole = ops.zeros(shape, { dtype = B.tensor_dtype(t), device = B.tensor_device(t) })
    return ops.copy_(ops.select(whole, -1, c:int(shape[#shape])), t)
  end,
}
P.layouts = { "contiguous", "contiguous", "transposed", "strided", "offset", "expanded", "overlapping", "wide" }

--- A program: its environment and how a line of it is run. device: where most tensors lie; plain: none requires grad,
-- so that when it ends nothing may be left. (A history can hold itself: x:add_(x:cos()), as in PyTorch.)
function P.new(device, plain)
  local env = setmetatable({ p = {}, moth = moth, ops = ops, B = B, nn = moth.nn, F = moth.nn.functional,
    optim = moth.optim, func = moth.func, autograd = moth.autograd, inf = math.huge, nan = 0 / 0,
    LONG = ("x"):rep(5000) }, { __index = _G })
  local c, dtype, shaped = Chance.new(1), "float32", "contiguous"
  local self = { env = env, device = device, plain = plain }

  --- Where a line begins: the seed of its data, their dtype and layout.
  function env.seed(n, d, layout)
    c, dtype, shaped = Chance.new(n), d or "float32", layout or "contiguous"
    moth.manual_seed(n)
  end
  local function place() return device ~= "cpu" and c:one_in(16) and "cpu" or device end
  local function laid(t)
    local kind = layouts[shaped]
    return kind and kind(t, c) or t
  end
  -- Laid out; one that requires grad is a leaf, or made of one.
  local function with_grad(t, requires_grad)
    if plain or not requires_grad or S.class[dtype_of(t)] ~= "float" then return laid(t) end
    if c:one_in(3) then
      t = laid(t):detach()
      B.set_requires_grad(t, true)
      return t
    end
    B.set_requires_grad(t, true)
    t = laid(t)
    return B.is_leaf(t) and ops.mul(t, 1) or t
  end
  -- What is asked for, brought to what the fuzzer's own tensors may be.
  local function number(v, low, high)
    if type(v) ~= "number" then error("[fuzz] no number", 0) end
    return v == v and math.max(low, math.min(high, math.floor(v))) or 3
  end
  local function sizes(...)
    local out = {}
    for i, s in ipairs(type((...)) == "table" and (...) or { ... }) do
      local n = number(s, -2 ^ 31, 2 ^ 31)
      out[i] = math.abs(n) < 300 and math.abs(n) or 3
    end
    return out
  end
  --- A tensor: of this dtype, these sizes, in the layout and of the data that the seed says.
  function env.T(d, shape, requires_grad, layout)
    shaped = layout or shaped
    return with_grad(fill(c, d or dtype, sizes(shape), place()), requires_grad)
  end
  --- Positions from 1 to n, now and then one beyond.
  function env.I(n, size, d)
    local data, shape = {}, sizes(size)
    n = number(n, 0, 1000)
    for i = 1, math.min(S.product(shape), 2 ^ 16) do
      data[i] = c:one_in(60) and c:pick({ 0, -1, n + 1, -n, -n - 1, 100 }) or c:int(1, math.max(n, 1))
    end
    return laid(S.make(shape, S.class[d] == "int" and d or "int64", data, place()))
  end
  function env.randn(...)
    return with_grad(fill(c, c:one_in(24) and c:pick(P.dtypes) or dtype, sizes(...), place()), c:one_in(2))
  end
  env.rand = env.randn
  function env.randint(low, high, size)
    size, low, high = sizes(size), number(low, -2 ^ 53, 2 ^ 53), number(high, -2 ^ 53, 2 ^ 53)
    local data, n = {}, S.product(size)
    if n > 2 ^ 16 then error("[fuzz] too many elements", 0) end
    for i = 1, n do data[i] = math.floor(low + c:int(0, 1000) / 1001 * (high - low)) end
    return laid(S.make(size, c:one_in(30) and c:pick(P.dtypes) or "int64", data, place()))
  end
  function env.tensor(v, o)
    local t = moth.tensor(v, o or { dtype = type(v) == "boolean" and "bool" or dtype })
    return device == "cpu" and t or ops.to(t, { device = place() })
  end
  for _, d in ipairs(S.dtypes) do env[d] = moth[d] end
  function env.gen() return B.generator(c:int(100)) end
  function env.freed()
    local t = ops.zeros({ 2 })
    t:free()
    return t
  end

  -- What is read of a result: its bounds within the storage, all its elements.
  local function look(t)
    if B.is_fake(t) then return end
    local size, stride, n = B.size(t), B.stride(t), B.numel(t)
    local least, most = B.storage_offset(t), B.storage_offset(t)
    for i = 1, #size do
      local reach = (size[i] - 1) * stride[i]
      if reach < 0 then least = least + reach else most = most + reach end
    end
    if n > 0 and (least < 0 or (most + 1) * B.itemsize(t) > B.storage_nbytes(t)) then
      self.finding = "the result reaches beyond its storage"
    elseif n <= MOST and n > 0 then
      local bytes = B.bytes(ops.to(ops.clone(B.alias(t, false)), { device = "cpu" }))
      if dtype_of(t) == "bool" and self.bools and bytes:find("[^%z\1]") then
        self.finding = "a bool result holds other bytes than 0 and 1"
      end
    end
  end
  self.look = look
  --- Keeps what a call gave: tensors go into the pool from place k on.
  function env.K(k, ...)
    for i = 1, select("#", ...) do
      local t = select(i, ...)
      if is_tensor(t) then
        look(t)
        if B.numel(t) <= MOST and B.storage_nbytes(t) < 2 ^ 22 then env.p[(k + i - 2) % P.POOL + 1] = t end
      end
    end
    return ...
  end

  -- ---- calls that must agree with another one ----
  local function pack(...) return { n = select("#", ...), ... } end
  local function attempt(fn, ...)
    local r = pack(pcall(fn, ...))
    return r[1], { n = r.n - 1, unpack(r, 2, r.n) }, r[2]
  end
  local function bytes(t) return B.bytes(ops.to(ops.clone(B.alias(t, false)), { device = "cpu" })) end
  local function layout_of(t)
    return ("%s [%s] %s"):format(dtype_of(t), table.concat(B.size(t), ","), tostring(B.tensor_device(t)))
  end

  --- The op, and what its shape rule says under fake_mode.
  function env.real_and_fake(name, ...)
    local ok, real, err = attempt(ops[name], ...)
    local fake_ok, fake = attempt(moth.fake_mode, ops[name], ...)
    if not ok then error(err, 0) end
    for i = 1, fake_ok and real.n or 0 do
      if layout_of(real[i]) ~= layout_of(fake[i]) then
        self.finding = ("%s gives %s, under fake_mode %s"):format(name, layout_of(real[i]), layout_of(fake[i]))
      end
    end
    return unpack(real, 1, real.n)
  end

  --- The op in place, and beside its operand.
  function env.in_place(name, x, ...)
    local ok, beside = attempt(moth.no_grad, ops[name], x, ...)
    local out = ops[name .. "_"](x, ...)
    if ok and is_tensor(out) and B.numel(out) <= MOST and not B.is_fake(out) then
      local want = ops.to(B.alias(beside[1], false), { dtype = B.tensor_dtype(out) })
      if layout_of(want) ~= layout_of(out) or bytes(want) ~= bytes(out) then
        self.finding = ("%s_ gives something else than %s"):format(name, name)
      end
    end
    return out
  end

  --- The op, and the same on row-major copies of its operands: the same bits. Under ASan only the same shape: built by
  -- -O1, products and sums are joined to one rounding in one loop and not in the other.
  local exact = not os.getenv("ASAN_OPTIONS")
  function env.row_major(name, ...)
    local copies = pack(...)
    for i = 1, copies.n do
      if is_tensor(copies[i]) and pcall(B.size, copies[i]) then copies[i] = ops.clone(B.alias(copies[i], false)) end
    end
    local out = ops[name](...)
    local ok, want = attempt(ops[name], unpack(copies, 1, copies.n))
    if not ok or layout_of(want[1]) ~= layout_of(out) then
      self.finding = name .. " fails on row-major operands, or has another shape"
    elseif exact and B.numel(out) <= MOST and bytes(want[1]) ~= bytes(out) then
      self.finding = name .. " gives other bits for row-major operands"
    end
    return out
  end

  -- Derivatives, once and twice: of what has one, by x or by the next of the pool that has a gradient.
  function env.G(t, keep)
    if B.requires_grad(t) then ops.sum(t):backward({ retain_graph = keep }) end
  end
  function env.GG(t, k)
    local x
    for i = 0, P.POOL - 1 do
      x = x or env.p[(k + i - 1) % P.POOL + 1]
      if not (is_tensor(x) and pcall(B.requires_grad, x) and B.requires_grad(x)) then x = nil end
    end
    if not x or not B.requires_grad(t) then return end
    local g = moth.autograd.grad(ops.sum(ops.mul(t, t)), x, { create_graph = true, allow_unused = true })
    if not g then return end
    look(g)
    if B.requires_grad(g) then ops.sum(ops.mul(g, g)):backward() end
  end
  return setmetatable(self, { __index = P })
end

-- ---- texts of tensors ------------------------------------------------------------------------------

--- The text of a fresh tensor of these sizes.
function P.fresh(c, shape, dtype, layout)
  return ("T('%s',{%s},%s%s)"):format(dtype or c:pick(P.dtypes), table.concat(shape, ","),
    c:one_in(2) and "true" or "false", layout and (",'%s'"):format(layout) or "")
end

--- That of one of any sizes and layout, a float's more often.
function P.some_tensor(c)
  local shape = {}
  for i = 1, c:int(0, 4) do shape[i] = c:one_in(12) and 0 or c:int(1, 4) end
  if c:one_in(10) then shape = { c:pick({ 7, 17, 33, 65, 130, 257 }), c:int(1, 9) } end
  return P.fresh(c, shape, not c:one_in(3) and c:pick(P.floats) or nil, c:pick(P.layouts))
end

--- The line that a program begins with: it fills the pool.
function P.first_line(c)
  local parts = { ("seed(%d)"):format(c:int(99999)) }
  for k = 1, P.POOL do parts[k + 1] = ("p[%d]=%s"):format(k, P.some_tensor(c)) end
  return table.concat(parts, " ")
end

-- ---- running ---------------------------------------------------------------------------------------

local raw = { "attempt to ", "bad argument", "'for' ", "stack overflow", "table overflow", "invalid value %(",
  "C stack", "cannot convert ", "string expected", "number expected", "not enough memory", "invalid option",
  "too many results", "wrong number of arguments", "table index is ", "memory allocation", "bad conversion",
  "invalid order function" }

--- An error as text, also one whose tostring fails.
function P.text_of(err) return type(err) == "string" and err or "a " .. type(err) end

--- What is wrong with an error that was raised, or nil. `strict`: its place is the user's line. `own`: the program
-- raises errors of its own, of any kind.
function P.complaint(err, strict, own)
  if own and (type(err) ~= "string" or err:find("^%a+$")) then return end
  if type(err) ~= "string" then return "the error is no text but a " .. type(err) end
  if err:find("^spec/") or err:find("^fuzz:1: [fuz1: ]*attempt to ") or err:find("^attempt to call a") then
    return -- the line's own, the latter by a tail call
  end
  local called = err:match("^fuzz:1: bad argument #%d+ to '(%l+)'")
  if called and (_G[called] or coroutine[called]) then return end
  for _, pattern in ipairs(raw) do
    if err:find(pattern) then return "one of Lua's own errors" end
  end
  if not own and not (err:find("^[^\n:]+:%d+: ") or err:find("^%[[%w_.]+%] ")) then return "neither place nor op" end
  if strict and err:find("^[^\n:]*lua/moth/") then return "the place is a line of moth's own" end
end

local function digest(t)
  return B.numel(t) <= 64 and B.bytes(ops.to(ops.clone(B.alias(t, false)), { device = "cpu" })) or ""
end

-- The tensors of the pool that a line names, with their versions and, now and then, their bytes.
local function state_of(self, line, deep)
  local list = {}
  for k in line:gmatch("%f[%w]p%[(%d+)%]") do
    local t = self.env.p[tonumber(k)]
    if is_tensor(t) and not B.is_fake(t) then
      list[#list + 1] = { t, B.version(t), deep and digest(t) or nil, k }
    end
  end
  return list
end

local function changed(list)
  for _, e in ipairs(list) do
    if B.version(e[1]) ~= e[2] then return ("p[%s] has another version"):format(e[4]) end
    if e[3] and digest(e[1]) ~= e[3] then return ("p[%s] has other bytes"):format(e[4]) end
  end
end

--- Runs a line. pure: it changes none of its arguments. Gives what is wrong, or nil; and whether it raised, and what.
function P:run(line, pure, strict)
  local chunk, message = loadstring(line, "=fuzz")
  if not chunk then return "the fuzzer's own: " .. message end
  setfenv(chunk, self.env)
  self.finding = nil
  local ok_before, before = pcall(state_of, self, line, pure and #line % 4 == 0)
  if not ok_before then before = {} end
  ffi.C.alarm(DEADLINE)
  moth.memory.reset_peak()
  local live = moth.memory.stats().live
  local from = os.clock()
  local ok, err = pcall(chunk)
  local took = os.clock() - from - (moth.memory.stats().peak - live) / 1e9
  local wrong = self.finding
  if not ok and not wrong then wrong = P.complaint(err, strict, self.raises) end
  if wrong and type(err) == "string" then wrong = wrong .. ": " .. err:sub(1, 600) end
  if not wrong and took > SECONDS then wrong = ("takes %.1f s"):format(took) end
  if not wrong and pure and ok_before then
    local fine, what = pcall(changed, before)
    if fine and what then wrong = "an argument was changed: " .. what end
  end
  ffi.C.alarm(0)
  return wrong, not ok, err
end

--- Lets all tensors go.
function P:drop()
  local p = self.env.p
  for k = 1, P.POOL do p[k] = nil end
  self.env.m, self.env.o, self.env.s = nil, nil, nil
end

return P
