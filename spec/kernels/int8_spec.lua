-- Products of int8: sums are exact, to the bit of a plain loop, by the kernels of every instruction set; the inner loop
-- of AVX-512 VNNI keeps its accumulators in registers.
local moth = require "moth"
local bit = require "bit"

local levels = require "levels"

local function at_each_level(fn)
  local was = moth.cpu_level()
  for _, level in ipairs(levels) do
    moth.cpu_level(level)
    local ok, err = pcall(fn, level)
    moth.cpu_level(was)
    if not ok then error(err, 0) end
  end
end

-- Products of lists by a plain loop, of all extremes, too: 255 * -128 * 2 does not fit in int16.
local function plain(x, w, m, n, k)
  local out = {}
  for i = 0, m - 1 do
    for j = 0, n - 1 do
      local sum = 0
      for t = 1, k do sum = sum + x[i * k + t] * w[j * k + t] end
      out[#out + 1] = sum
    end
  end
  return out
end

local function bytes(n, low, high, seed)
  local list, state = {}, seed
  for i = 1, n do
    state = (state * 1103515245 + 12345) % 2 ^ 31
    local r = math.floor(state / 2 ^ 8)
    list[i] = r % 5 == 0 and (bit.band(r, 1024) == 0 and low or high) or low + r % (high - low + 1)
  end
  return list
end

local function tensor(list, shape, dtype) return moth.tensor(list, { dtype = dtype }):view(shape) end
local one = function(n) return moth.ones(n, { dtype = moth.float64 }) end

describe("int8 products #M441", function()
  for _, s in ipairs { { 1, 1, 1 }, { 1, 70, 5 }, { 2, 16, 64 }, { 3, 17, 9 }, { 5, 64, 33 }, { 6, 65, 4 },
    { 13, 130, 70 }, { 7, 3, 1030 } } do
    local m, n, k = unpack(s)
    it(("of %d rows, %d columns, %d terms are those of a plain loop"):format(m, n, k), function()
      local x, w = bytes(m * k, 0, 255, m + k), bytes(n * k, -128, 127, n)
      local want = plain(x, w, m, n, k)
      local tx, tw = tensor(x, { m, k }, "uint8"), tensor(w, { n, k }, "int8")
      local packed = moth.pack_int8(tw)
      at_each_level(function(level)
        for _, p in ipairs { false, packed } do
          local y = moth.linear_int8(tx, tw, one(n), { packed = p or nil })
          assert.same(want, y:view(-1):tolist(), level)
        end
      end)
    end)
  end

  it("of the largest sums fit", function()
    local k = 65536
    local x, w = moth.full({ 1, k }, 255, { dtype = moth.uint8 }), moth.full({ 2, k }, -128, { dtype = moth.int8 })
    at_each_level(function() assert.equal(-255 * 128 * k, moth.linear_int8(x, w, one(2))[1][2]:item()) end)
    assert.error_matches(function()
      moth.linear_int8(moth.zeros(1, k + 1), moth.zeros(2, k + 1, { dtype = moth.int8 }), one(2))
    end, "65536")
  end)

  -- n c h w, k, kernel, stride, padding, dilation, groups
  for _, s in ipairs { { 2, 3, 7, 6, 5, 3, 1, 1, 1, 1 }, { 1, 4, 9, 8, 6, 3, 2, 1, 2, 2 },
    { 1, 16, 5, 20, 70, 1, 1, 0, 1, 1 },
    { 2, 18, 6, 5, 18, 3, 1, 2, 1, 18 }, { 2, 3, 6, 37, 3, 3, 1, 1, 1, 3 }, { 1, 3, 9, 75, 3, 5, 2, 2, 2, 3 },
    { 1, 2, 9, 40, 2, 3, 3, 1, 1, 2 }, { 1, 33, 4, 50, 3, 2, 1, 0, 3, 1 } } do
    local n, c, h, w, k, size, stride, pad, dilation, groups = unpack(s)
    it(("conv2d_int8 of %dx%d on %dx%dx%d is conv2d of integers"):format(size, size, c, h, w), function()
      local x = tensor(bytes(n * c * h * w, 0, 255, c), { n, c, h, w }, "uint8")
      local weight = tensor(bytes(k * c / groups * size * size, -128, 127, k), { k, c / groups, size, size }, "int8")
      local want = moth.conv2d(x:double() - 7, weight:double(), nil, stride, pad, dilation, groups)
      local packed = moth.pack_int8(weight, groups, dilation > 1 and size > 1)
      at_each_level(function(level)
        local y = moth.conv2d_int8(x, weight, one(k), nil, 1, 7, stride, pad, dilation, groups, false, packed)
        assert.is_true(moth.equal(want, y), level)
        local again = moth.conv2d_int8(x, weight, one(k), nil, 1, 7, stride, pad, dilation, groups)
        assert.is_true(moth.equal(want, again), level)
        -- floats are rounded to the same bytes
        local float = moth.conv2d_int8((x:float() - 7) * 0.5, weight, one(k), nil, 0.5, 7, stride, pad, dilation,
          groups)
        assert.is_true(moth.equal((want * 0.5):float(), float), level)
      end)
    end)
  end

  it("of packed weights that are not of this weight are an error", function()
    local w = moth.zeros(5, 9, { dtype = moth.int8 })
    assert.error_matches(function()
      moth.linear_int8(moth.zeros(1, 9), w, moth.ones(5), { packed = moth.pack_int8(w:t()) })
    end, "packed has %d+ bytes")
  end)

  it("round to even, and cut", function()
    at_each_level(function(level)
      local x = moth.tensor { { 0.5, 1.5, 2.5, -0.5, 300, -300, 0 / 0 } }
      local w = moth.eye(7):to(moth.int8)
      assert.same({ { 0, 2, 2, 0, 255 - 9, -9, -9 } },
        moth.linear_int8(x, w, moth.ones(7), { input_scale = 1, input_zero_point = 9 }):tolist(), level)
    end)
  end)

  it("of rows quantised at run time: one row does not change another, zeros and nan stay", function()
    local w = moth.randint(-127, 128, { 9, 40 }):to(moth.int8)
    local x = moth.randn(5, 40)
    x[2] = 0
    at_each_level(function(level)
      local y = moth.linear_int8_dynamic(x, w, moth.ones(9))
      for i = 1, 5 do assert.is_true(moth.equal(y[i], moth.linear_int8_dynamic(x[i], w, moth.ones(9))), level) end
      assert.is_true(moth.equal(y[2], moth.zeros(9)))
      local bad = x:clone()
      bad[{ 3, 7 }] = 0 / 0
      local z = moth.linear_int8_dynamic(bad, w, moth.ones(9))
      assert.is_true(z[3]:isnan():all():item(), level)
      assert.is_true(moth.equal(z[4], y[4]))
    end)
  end)

  it("int4: the instruction sets agree", function()
    local w = moth.randint(0, 256, { 13, 151 }):to(moth.uint8)
    local x = moth.randn(7, 301)
    for _, group in ipairs { 32, 64, 128, 256, 384 } do
      local scale = moth.randn(13, math.ceil(301 / group))
      local want
      at_each_level(function(level)
        local y = moth.linear_int4(x, w, scale, nil, group)
        want = want or y
        assert.is_true(moth.allclose(want, y, 1e-4, 1e-3), level .. " " .. group)
      end)
    end
  end)

  it("int4: whole numbers give what float64's own loop does", function()
    local w = moth.randint(0, 256, { 13, 151 }):to(moth.uint8)
    for rows = 1, 6 do
      local x = moth.randint(-127, 128, { rows, 301 }):float()
      for k = 1, 301, 32 do x[{ {}, k }] = 127 end -- one step of each group is 1
      for _, group in ipairs { 32, 64, 128, 256, 384 } do
        local scale, bias = moth.randn(13, math.ceil(301 / group)), moth.randn(13)
        local want = moth.linear_int4(x:double(), w, scale:double(), bias:double(), group)
        at_each_level(function(level)
          local y = moth.linear_int4(x, w, scale, bias, group)
          assert.is_true(moth.allclose(want, y:double(), 1e-5, 0.05), level .. " " .. group)
        end)
      end
    end
  end)

  it("the loop of AVX-512 VNNI has no move to the stack #slow", function()
    local path = package.searchpath("moth_lua", package.cpath):gsub("moth_lua%.so$", "libmoth.so")
    local p = io.popen("objdump -d --no-show-raw-insn '" .. path
      .. "' 2>/dev/null | grep -B 60 -A 60 'vpdpbusd.*zmm24,%zmm28,%zmm20'")
    local text = p and p:read("*a") or ""
    if p then p:close() end
    if text == "" then return pending("no objdump, or another processor") end
    local loop = {}
    for line in text:gmatch("[^\n]+") do
      if line:find("vpdpbusd", 1, true) then loop[#loop + 1] = line end
      assert.is_nil(line:find("zmm.*%(%%rsp%)"), line)
    end
    assert.is_true(#loop >= 24)
  end)
end)

