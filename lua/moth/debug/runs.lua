--- Runs compared op by op, by digests of what each op gives.
local ffi = require "ffi"
local bit = require "bit"
local B = require "moth_lua"
local moth = require "moth"

local again = require("moth.debug.nan").again

local M = {}

-- A number of 32 bits from all bits of a tensor: they are mixed in as in MurmurHash3 (A. Appleby).
local function bits_of(t)
  local c = t:detach():cpu():contiguous()
  local n = B.numel(c) * B.itemsize(c)
  local data = ffi.cast("uint8_t *", c:data_ptr())
  local hash = n
  local words = ffi.cast("int32_t *", data)
  local whole = math.floor(n / 4)
  for i = 0, whole - 1 do
    hash = bit.tobit(bit.rol(bit.bxor(hash, words[i]), 13) * 5 + 0x6b64e654)
  end
  for i = whole * 4, n - 1 do hash = bit.tobit(bit.rol(bit.bxor(hash, data[i]), 13) + 0x6b64e654) end
  return hash
end

local function entry_of(name, t, place)
  local e = { op = name, place = place, bits = bits_of(t), shape = t:size(), dtype = B.tensor_dtype(t).name }
  local dtype = B.tensor_dtype(t)
  if dtype.is_floating_point then e.sum = t:detach():double():sum():item() end
  return e
end

-- Runs fn(...), and notes each tensor that an op gives; with keep, the tensors themselves, too. Also the ops that draw
-- random numbers, with their counts.
local function record(fn, keep, ...)
  local list, random = {}, {}
  local get = require("moth.dispatch.ops").get
  local function handler(func, args, kwargs)
    local place = (B.profile.frames(1):gsub("\n", ""))
    local results = { again(func, args, kwargs) }
    local record_of = get((func.name:gsub("_$", ""))) or get(func.name)
    if record_of and record_of.draws then random[func.name] = (random[func.name] or 0) + 1 end
    for _, r in ipairs(results) do
      local known = not (record_of and record_of.memory == "view") and not func.name:find("empty") -- any bits
      if B.is_tensor(r) and known and not B.is_fake(r) then
        local e = entry_of(func.name, r, place)
        if keep then e.value = r:detach():clone() end
        list[#list + 1] = e
      end
    end
    return unpack(results)
  end
  moth.dispatch_mode(handler, fn, ...)
  return list, random
end

local Digest = {}
Digest.__index = Digest

function Digest:__tostring()
  local lines = {}
  for k, e in ipairs(self) do
    lines[k] = ("%4d %-24s %08x %-10s [%s]%s"):format(k, e.op, e.bits % 2 ^ 32, e.dtype,
      table.concat(e.shape, ", "), e.sum and (" sum %.9g"):format(e.sum) or "")
  end
  return table.concat(lines, "\n")
end

--- A line for each op that f(...) runs, with a number made of all bits of its result: { op, bits, shape, dtype, sum
-- (float64), place }. Two versions, machines or settings whose lines are the same compute the same.
function M.digest(f, ...) return setmetatable((record(f, false, ...)), Digest) end

local function seed_all(seed)
  moth.manual_seed(seed)
  math.randomseed(seed)
end

local Comparison = {}
Comparison.__index = Comparison

function Comparison:__tostring()
  if self.equal then return ("equal: %d results of ops"):format(self.count) end
  local first = self.first
  if first.missing then
    return ("result %d: %s has ended, the other goes on with %s at %s"):format(first.index, first.missing, first.op,
      first.place)
  end
  if first.other then
    return ("result %d: %s at %s, but %s at %s in the other run"):format(first.index, first.op, first.place,
      first.other, first.other_place)
  end
  return ("result %d: %s differs%s; called at %s"):format(first.index, first.op,
    first.max and (" by up to %g"):format(first.max) or "", first.place)
end

local function compare(a, b, rtol, atol)
  local c = setmetatable({ equal = true, count = math.max(#a, #b) }, Comparison)
  for k = 1, c.count do
    local x, y = a[k], b[k]
    local first
    if not (x and y) then
      local rest = x or y
      first = { missing = x and "the second run" or "the first run", op = rest.op, place = rest.place }
    elseif x.op ~= y.op or x.dtype ~= y.dtype or table.concat(x.shape, ",") ~= table.concat(y.shape, ",") then
      first = { op = ("%s %s [%s]"):format(x.op, x.dtype, table.concat(x.shape, ", ")), place = x.place,
        other = ("%s %s [%s]"):format(y.op, y.dtype, table.concat(y.shape, ", ")), other_place = y.place }
    elseif x.bits ~= y.bits then
      local max
      if x.value and y.value and x.value:numel() > 0 then
        local u, v = x.value:double(), y.value:double()
        local near = moth.allclose(u, v, { rtol = rtol, atol = atol, equal_nan = true })
        if not near then max = (u - v):abs():max():item() end
      end
      if max or not x.value then first = { op = x.op, place = x.place, max = max } end
    end
    if first then
      first.index, c.first, c.equal = k, first, false
      return c
    end
  end
  return c
end

--- Runs f() and g() with the same seeds, and compares what their ops give, one after the other (to the bit, or within
-- rtol and atol): { equal, count, first = { index, op, place, max (of the differences), … } }, which prints the first
-- op that differs.
function M.compare_runs(f, g, rtol, atol, seed)
  seed_all(seed)
  local a = record(f, true)
  seed_all(seed)
  local b = record(g, true)
  return compare(a, b, rtol, atol)
end

local Audit = {}
Audit.__index = Audit

function Audit:__tostring()
  local lines = { self.equal and ("two runs are equal: %d results of ops"):format(self.comparison.count)
    or "two runs differ: " .. tostring(self.comparison) }
  for _, flag in ipairs(self.flags) do lines[#lines + 1] = ("%-28s %s"):format(flag[1], flag[2]) end
  for _, r in ipairs(self.random) do
    lines[#lines + 1] = ("%-28s %s, %d times"):format("draws random numbers", r[1], r[2])
  end
  return table.concat(lines, "\n")
end

--- Runs train() twice with the same seeds, and says whether all its ops gave the same bits, and what has to do with
-- that: { equal, comparison, flags = { { name, value }, … }, random = { { op, count }, … } }, which prints.
function M.determinism_audit(train, seed)
  seed_all(seed)
  local a, random = record(train, false)
  seed_all(seed)
  local b = record(train, false)
  local audit = setmetatable({ comparison = compare(a, b, 0, 0), random = {} }, Audit)
  audit.equal = audit.comparison.equal
  local function env(name) return os.getenv(name) or "(not set)" end
  audit.flags = {
    { "deterministic algorithms", tostring(moth.are_deterministic_algorithms_enabled()) },
    { "what has none", require("moth.utils.deterministic").mode() or "runs" },
    { "threads", tostring(moth.get_num_threads()) .. " (the bits of results do not depend on it)" },
    { "instruction set", moth.cpu_level() },
    { "default dtype", tostring(moth.get_default_dtype()) },
    { "seed", tostring(seed) },
    { "MOTH_DETERMINISTIC", env "MOTH_DETERMINISTIC" },
    { "CUBLAS_WORKSPACE_CONFIG", env "CUBLAS_WORKSPACE_CONFIG" },
    { "moth, LuaJIT", moth.version .. ", " .. jit.version },
  }
  for name, count in require("moth.each")(random) do audit.random[#audit.random + 1] = { name, count } end
  table.sort(audit.random, function(x, y) return x[1] < y[1] end)
  return audit
end

return require("moth.utils.signature").all(M, {
  "digest(callable f, ...)",
  "compare_runs(callable f, callable g, *, number rtol=0, number atol=0, int seed=0)",
  "determinism_audit(callable train, *, int seed=0)" })
