-- Conversions to 16 bits round once: against exact arithmetic in doubles, at and next to the ties.
local moth = require "moth"

--- x rounded to `digits` binary digits, ties to even, with the smallest exponent and the overflow of the format.
local function rounded(x, digits, emin, emax)
  if x ~= x or x == 0 or x == math.huge or x == -math.huge then return x end
  local _, e = math.frexp(x) -- |x| in [2^(e-1), 2^e)
  local unit = 2 ^ (math.max(e - 1, emin) - (digits - 1))
  local q = x / unit -- exact: unit is a power of two
  local low = math.floor(q)
  local rest = q - low
  if rest > 0.5 or (rest == 0.5 and low % 2 == 1) then low = low + 1 end
  local y = low * unit
  if math.abs(y) >= 2 ^ (emax + 1) then y = y > 0 and math.huge or -math.huge end
  return y
end

local formats = { float16 = { 11, -14, 15 }, bfloat16 = { 8, -126, 127 } }

--- Numbers around the ties between neighbours of a format, near the ends of its range, and everywhere.
local function traps(digits, emin, emax)
  local list = { 0, -0.0, math.huge, -math.huge, 1e300, -1e300, 5e-324, 1e-310, 65519.9999999, 65520, 65504 }
  local random = 1
  local function draw(n)
    random = (random * 16807) % 2147483647
    return random % n
  end
  for _ = 1, 3000 do
    local e = emin - digits + draw(emax - emin + digits + 2)
    local tie = (2 ^ (digits - 1) + draw(2 ^ (digits - 1)) + 0.5) * 2 ^ (e - digits + 1)
    local sign = draw(2) == 0 and 1 or -1
    for _, off in ipairs { 0, 2 ^ -52, -2 ^ -52, 2 ^ -40, -2 ^ -40, 2 ^ -26, -2 ^ -26, 2 ^ -25, -2 ^ -25 } do
      list[#list + 1] = sign * tie * (1 + off)
    end
    list[#list + 1] = sign * (1 + draw(2 ^ 30) / 2 ^ 30) * 2 ^ e
  end
  return list
end

describe("rounding to 16 bits #quick", function()
  for name, format in pairs(formats) do
    local digits, emin, emax = unpack(format)
    it("of float64 is done once: " .. name, function()
      local list = traps(digits, emin, emax)
      local got = moth.tensor(list, { dtype = "float64" }):to(name):to("float64"):totable()
      local stored = moth.tensor(list, { dtype = name }):to("float64"):totable()
      for i, x in ipairs(list) do
        local want = rounded(x, digits, emin, emax)
        if got[i] ~= want or stored[i] ~= want then
          error(("%.17g became %.17g and %.17g, expected %.17g"):format(x, got[i], stored[i], want))
        end
      end
      for i = 1, 200 do
        local want = rounded(list[i], digits, emin, emax)
        local function full() return moth.full({ 1 }, list[i], { dtype = name }):to("float64"):item() end
        if math.abs(want) == math.huge and math.abs(list[i]) ~= math.huge then
          assert.error_matches(full, "out of the range of " .. name)
        else
          assert.equal(want, full())
        end
        assert.equal(want, moth.tensor({ list[i] }, { dtype = "float64" }):to(name):item())
      end
      assert.is_true(moth.tensor({ 0 / 0 }, { dtype = "float64" }):to(name):isnan():item())
    end)

    it("of integers is, too: " .. name, function()
      local list = {}
      for e = digits, 52 do
        for _, off in ipairs { -1, 0, 1 } do
          for k = 0, 3 do
            local tie = (2 ^ (digits - 1) + k + 0.5) * 2 ^ (e - digits + 1)
            list[#list + 1] = tie + off
            list[#list + 1] = -tie - off
          end
        end
      end
      local wide = moth.tensor(list, { dtype = "int64" })
      local got = wide:to(name):to("float64"):totable()
      for i, x in ipairs(list) do assert.equal(rounded(x, digits, emin, emax), got[i]) end
      -- beyond 2^53: a tie at 2^62 and one more than a tie
      local top = moth.tensor({ 2 ^ 30 }, { dtype = "int64" })
      local huge = top * top * 2 + top * top * 2 -- 2^62
      local tie = huge + huge:floor_divide(moth.tensor({ 2 ^ digits }, { dtype = "int64" }))
      if emax > 62 then
        assert.equal(2 ^ 62, tie:to(name):item())
        assert.equal(2 ^ 62 * (1 + 2 ^ (1 - digits)), (tie + 1):to(name):item())
      end
      local small = moth.tensor({ 2 ^ 24 + 2 ^ 16 + 1 }, { dtype = "int32" })
      assert.equal(rounded(2 ^ 24 + 2 ^ 16 + 1, digits, emin, emax), small:to(name):item())
    end)
  end
end)
