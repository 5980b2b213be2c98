-- Conversions between dtypes. Floats become integers towards zero; what is out of range the nearest limit, NaN 0: by
-- every kernel, on every level of the CPU and on CUDA, although C leaves such casts undefined. Numbers given to ops are
-- errors where the dtype cannot hold them.
local ffi = require "ffi"
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local ops = B.ops

local nan, inf = 0 / 0, math.huge
local limits = {
  int8 = { "-128", "127" }, uint8 = { "0", "255" }, int16 = { "-32768", "32767" }, uint16 = { "0", "65535" },
  int32 = { "-2147483648", "2147483647" }, uint32 = { "0", "4294967295" },
  int64 = { "-9223372036854775808LL", "9223372036854775807LL" }, uint64 = { "0", "18446744073709551615ULL" },
}
local names = { "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64" }

-- The conversion of a float, as text.
local function expected(x, name)
  if x ~= x then return "0" end
  local info = moth.iinfo(moth[name])
  x = (x < 0 and math.ceil(x) or math.floor(x)) + 0
  if x <= info.min then return limits[name][1] end
  if x >= info.max then return limits[name][2] end
  if math.abs(x) <= 2 ^ 53 then return ("%.0f"):format(x + 0) end
  return tostring(ffi.cast(name == "uint64" and "uint64_t" or "int64_t", x))
end

local special = { 0, -0.0, 0.5, -0.5, 1.9, -1.9, 126.99, 127, 127.5, 128, -128, -128.9, -129, 254.5, 255, 256, 300,
  -1, -300, 32767, 32768, -32768, -32769, 65535, 65536, 2147483520, 2147483647, 2147483648, -2147483648, -2147483904,
  4294967040, 4294967296, 1e10, -1e10, 9007199254740992, 9.3e18, -9.3e18, 9223371487098961920, 1.9e19, 1e30, -1e30,
  inf, -inf, nan }

local function texts(t)
  local out = {}
  for i = 1, t:numel() do
    local v = t[i]:item()
    out[i] = type(v) == "number" and ("%.0f"):format(v) or tostring(v)
  end
  return out
end

describe("conversion #quick", function()
  it("between float16 and float32 has the same bits for vectors, single elements and all levels", function()
    local words = 2 ^ 16 + 5 -- no whole vectors
    local every = ops.empty({ words }, { dtype = "float16" })
    local u = ffi.cast("uint16_t *", B.pointer(every))
    for i = 0, words - 1 do u[i] = i % 2 ^ 16 end
    local wide = ops.empty({ 3 * words }, { dtype = "float32" })
    local v = ffi.cast("uint32_t *", B.pointer(wide))
    for i = 0, 3 * words - 1 do v[i] = i * 21911 % 2 ^ 32 end -- every exponent; most are no halves, some ties
    for i = 0, 2047 do v[i] = (i % 2 == 0 and 0x38000000 or 0x3f800000) + i * 0x1000 end
    local best = B.cpu_level()
    for _, from in ipairs { every, wide } do
      local to = { dtype = from == every and "float32" or "float16", device = S.device }
      local want
      for _, level in ipairs(S.device == "cpu" and { "generic", "avx2", best } or { best }) do
        if pcall(B.cpu_level, level) then
          local x = ops.to(from, { device = S.device })
          local apart = ops.slice(ops.stack({ x, x }, 2):reshape(-1), 1, 0, 2 * B.numel(x), 2)
          for _, t in ipairs { x, apart } do
            local bytes = S.bytes(ops.to(ops.to(t, to), { device = "cpu" }))
            want = want or bytes
            assert.is_true(want == bytes, level)
          end
          B.cpu_level(best)
        end
      end
    end
  end)
  for _, from in ipairs({ "float64", "float32", "float16", "bfloat16" }) do
    it("of " .. from .. " to integers cuts, saturates, and makes 0 of NaN, wherever it runs", function()
      local values = {}
      for _ = 1, 3 do for _, x in ipairs(special) do values[#values + 1] = x end end -- whole vectors, too
      local x = ops.to(moth.tensor(values, { dtype = moth.float64 }), { dtype = from })
      local given = ops.to(x, { dtype = "float64" }):tolist() -- as rounded to `from`
      x = ops.to(x, { device = S.device })
      local strided = ops.slice(ops.stack({ x, x }, 2):reshape(-1), 1, 0, 2 * #values, 2)
      local best = B.cpu_level()
      for _, to in ipairs(names) do
        local want = {}
        for i, v in ipairs(given) do want[i] = expected(v, to) end
        for _, level in ipairs(S.device == "cpu" and { "generic", "avx2", best } or { best }) do
          if pcall(B.cpu_level, level) then
            local a, b = ops.to(x, { dtype = to }), ops.to(strided, { dtype = to })
            B.cpu_level(best)
            assert.same(want, texts(ops.to(a, { device = "cpu" })), level .. " " .. to)
            assert.same(want, texts(ops.to(b, { device = "cpu" })), level .. " strided " .. to)
          end
        end
      end
      local bools = ops.to(ops.to(x, { dtype = "bool" }), { device = "cpu" }):tolist()
      for i, v in ipairs(given) do assert.equal(v ~= 0, bools[i]) end
    end)
  end

  it("of integers wraps, and rounds once to floats", function()
    local x = moth.tensor({ -1, 300, 70000, 2 ^ 40 + 5 }, { dtype = moth.int64 })
    assert.same({ 255, 44, 112, 5 }, x:to(moth.uint8):tolist())
    assert.same({ -1, 44, 112, 5 }, x:to(moth.int8):tolist())
    assert.same({ 65535, 300, 4464, 5 }, x:to(moth.uint16):tolist())
    assert.equal("18446744073709551615ULL", tostring(x:to(moth.uint64)[1]:item()))
    assert.equal(-1, x:to(moth.uint64):to(moth.int64)[1]:item())
    local big = x:to(moth.uint64)[{ { 1, 1 } }]
    assert.equal(2 ^ 64, big:to(moth.float32):item())
    assert.equal(2 ^ 64, big:to(moth.bfloat16):item())
    assert.equal(inf, big:to(moth.float16):item())
    assert.is_true(big:to(moth.bool):item())
  end)
end)

describe("numbers out of range #quick", function()
  local function tensor(dtype) return ops.to(moth.ones(2, 3, { dtype = dtype }), { device = S.device }) end
  local on = { device = S.device }
  -- text of the number, dtype, its range
  local cases = { { 300, "uint8", "0 to 255" }, { -1, "uint8", "0 to 255" }, { 128, "int8", "%-128 to 127" },
    { -129, "int8", "%-128 to 127" }, { 40000, "int16", "%-32768 to 32767" },
    { 2 ^ 40, "int32", "%-2147483648 to 2147483647" }, { 70000, "float16", "%-65504 to 65504" },
    { 1e40, "float32", "%-3.4028235e%+38" }, { -1e39, "bfloat16", "%-3.38" } }

  for _, case in ipairs(cases) do
    local value, dtype, range = unpack(case)
    local x = tensor(dtype)
    local mask = ops.eq(x, 1)
    local number = (math.abs(value) < 1e20 and "%.0f" or "%.14g"):format(value):gsub("[%-%+]", "%%%0")
    local message = ("is %s, which is out of the range of %s: %s"):format(number, dtype, range)
    it(("as %s in %s are errors of everything that takes a number"):format(tostring(value), dtype), function()
      local float = moth[dtype].is_floating_point
      local calls = {
        full = function() moth.full(3, value, { dtype = dtype, device = on.device }) end,
        full_like = function() moth.full_like(x, value) end,
        tensor = not float and function() moth.tensor({ 1, value }, { dtype = moth[dtype] }) end or nil,
        fill_ = function() x:fill_(value) end,
        masked_fill = function() x:masked_fill(mask, value) end,
        where = function() moth.where(mask, x, value) end,
        index = function() x[1] = value end,
        pad = function() moth.pad(x, { 1, 1 }, "constant", value) end,
        scatter = function()
          x:scatter(1, ops.to(moth.ones(1, 1, { dtype = moth.int64 }), on), value)
        end,
        linspace = function() moth.linspace(0, value, 3, { dtype = dtype }) end,
      }
      if math.abs(value) < 1e20 then calls.arange = float and calls.full or function()
        moth.arange(0, value + (value > 0 and 1 or -1), value > 0 and 1 or -1, { dtype = dtype }) end
        if dtype == "int32" then calls.arange = nil end
      end
      for _, op in ipairs(S.records) do -- and of all pointwise ops, in the place of a tensor
        if op.kind == "pointwise" and #op.args == 2 and op.args[2].type == "OPERAND"
          and op.name ~= "pow" and (op.dtypes or "float"):find(S.class[dtype], 1, true)
          and (float or op.promote ~= "float") then
          calls[op.name] = function() ops[op.name](x, value) end
        end
      end
      for name, fn in pairs(calls) do
        local ok, err = pcall(fn)
        assert.is_false(ok, name .. " took it")
        assert.is_truthy(err:find(message), name .. ": " .. err .. " is not " .. message)
      end
    end)
  end

  it("go where they fit, are infinite, or cut", function()
    assert.equal(255, moth.full(2, 255, { dtype = moth.uint8 })[1]:item())
    assert.equal(inf, moth.full(2, inf, { dtype = moth.float16 })[1]:item())
    assert.is_true(moth.full(2, 300, { dtype = moth.bool })[1]:item())
    local x = moth.tensor({ 1, 200 }, { dtype = moth.uint8 })
    assert.same({ 1, 200 }, x:clamp(-5, 300):tolist())
    assert.same({ 100, 200 }, x:clamp(100, 1e4):tolist())
    assert.error_matches(function() moth.full(2, nan, { dtype = moth.int32 }) end, "out of the range of int32")
    assert.error_matches(function() moth.full(2, inf, { dtype = moth.int64 }) end, "out of the range of int64")
    assert.error_matches(function() moth.add(x, x, 300) end, "'alpha' is 300, which is out of the range of uint8")
  end)

  it("integers have no negative integer powers", function()
    assert.error_matches(function() return moth.arange(3) ^ -1 end,
      "%[pow%] integers to negative integer powers are not allowed: 'exponent' is %-1")
    assert.error_matches(function() return moth.ones(2, { dtype = moth.bool }) ^ -2 end, "negative integer powers")
    assert.same({ inf, 1, 0.5 }, (moth.arange(3):float() ^ -1):tolist())
    assert.same({ 0, 1, 4 }, (moth.arange(3) ^ 2):tolist())
    assert.same({ 0, 1, 0 }, moth.arange(3):pow(moth.tensor(-1, { dtype = moth.int64 })):tolist())
  end)
end)
