-- Tensors in JSON: src/io/json_numbers.c and values.lua against Lua's own reading and writing of numbers.
local ffi = require "ffi"
local each = require "moth.each"
local values = require "moth.serve.values"

local function read(text, dtype)
  local stop, n = values.skip(text, 1)
  if not stop then return nil, "skip" end
  assert.equal(#text + 1, stop)
  return values.from_text(text, 1, n, dtype or "float64", n)
end

local function doubles(bytes) return ffi.cast("const double *", bytes), #bytes / 8 end

describe("numbers of JSON #M428", function()
  it("are read to the nearest double", function()
    math.randomseed(tonumber(os.getenv "MOTH_SEED" or 3))
    local list = { "0", "-0", "1", "-1.5", "1e22", "1e23", "9007199254740993", "9007199254740992.5", "1E+2", "1e-0",
      "123456789012345678901234567890", "0.1000000000000000055511151231257827021181583404541015625", "5e-324", "1e-400",
      "2.2250738585072011e-308", "1.7976931348623157e308", "0.000000000000000000000000000000000001",
      "100000000000000000000000000000000000000000000000000", "8.5e-27", "18446744073709551615", "18446744073709551616" }
    for _ = 1, 5000 do
      local how = math.random(4)
      local v = (math.random() - 0.5) * 10 ^ math.random(-30, 30)
      list[#list + 1] = how == 1 and ("%.17g"):format(v) or how == 2 and ("%.9g"):format(v)
        or how == 3 and ("%d.%d"):format(math.random(0, 1e15), math.random(0, 1e15))
        or ("%de%d"):format(math.random(-1e9, 1e9), math.random(-40, 40))
    end
    local p, n = doubles(read("[" .. table.concat(list, ",") .. "]"))
    assert.equal(#list, n)
    for i = 1, n do
      if p[i - 1] ~= tonumber(list[i]) then error(list[i] .. " was read as " .. ("%.17g"):format(p[i - 1])) end
    end
    assert.equal(-math.huge, 1 / p[1])
  end)

  it("lists of lists and blanks; what is no list of numbers", function()
    local p, n = doubles(read "[ [1 , 2],\n[], [[3]] ]")
    assert.equal(3, n)
    assert.equal(3, p[2])
    assert.equal("", read "[]")
    for _, text in ipairs { "[1,]", "[,1]", "[1 2]", "[1,,2]", "[01]", "[1.]", "[.5]", "[+1]", "[1e]", "[-]", "[1e+]",
      "[--1]", "[[1]2]", "[1[2]]", "[1-2]", "[1.2.3]", ("["):rep(65) .. ("]"):rep(65) } do
      assert.is_nil((read(text)), text)
    end
    for _, text in ipairs { "[", "[1", "[[1]", '["1"]', "[null]", "[true]", "[NaN]", "[1}", "[0x10]" } do
      assert.is_nil(values.skip(text, 1), text)
    end
    local _, index, why = read("[1,2,1e400]", "float64")
    assert.equal(2, index)
    assert.equal("expected a number", why)
    _, index, why = read("[1,300,2]", "uint8")
    assert.equal(1, index)
    assert.equal("expected a whole number of UINT8 from 0 to 255", why)
    for _, dtype in ipairs { "int64", "uint64" } do -- 2^53 + 1 is read as 2^53
      assert.equal(9007199254740991, tonumber(ffi.cast("const int64_t *", (read("[9007199254740991]", dtype)))[0]))
      assert.matches("from .* to 9007199254740991$", (select(3, read("[9007199254740993]", dtype))))
    end
    _, index, why = values.from_text("[1,2]", 1, 2, "float32", 3)
    assert.is_nil(index)
    assert.equal("expected 3 elements, got 2", why)
  end)

  it("are written so that reading gives the same elements, of every dtype", function()
    for dtype, kind in each { float32 = "float", float64 = "double", int32 = "int32_t", int64 = "int64_t",
      uint8 = "uint8_t", float16 = "uint16_t", bfloat16 = "uint16_t" } do
      local n = 9000
      local array = ffi.new(kind .. "[?]", n)
      for i = 0, n - 1 do
        local v = (math.random() - 0.5) * 10 ^ math.random(-20, 20)
        if dtype == "float32" or dtype == "float64" then
          array[i] = i % 3 == 0 and math.floor(v) or v
        elseif dtype:find "float16" then
          array[i] = math.random(0, 0x7b00)
        else
          array[i] = dtype == "uint8" and i % 256 or math.random(-2 ^ 31, 2 ^ 31 - 1)
        end
      end
      local bytes = ffi.string(array, n * ffi.sizeof(array) / n)
      local text = values.to_json(bytes, dtype)
      assert.is_true(read(text, dtype) == bytes, dtype)
      local list = {}
      for word in text:gmatch "[^%[%],]+" do list[#list + 1] = tonumber(word) end
      assert.is_true(values.from_json(list, dtype, n) == bytes, dtype)
      if dtype == "float32" then -- as printf does, but for ties
        local i, same = 0, 0
        for word in text:gmatch "[^%[%],]+" do
          if word == ("%.9g"):format(array[i]) then same = same + 1 end
          i = i + 1
        end
        assert.is_true(same >= 0.99 * n, same)
      end
    end
    assert.is_nil(values.to_json(ffi.string(ffi.new("float[2]", 1, 0 / 0), 8), "float32"))
    assert.equal("[true,false]", values.to_json("\1\0", "bool"))
    assert.equal("[0,-0,1.00000002e+20,9.99999975e-06,9.99999975e-05,123456792]",
      values.to_json(ffi.string(ffi.new("float[6]", 0, -0.0, 1e20, 1e-5, 1e-4, 123456789), 24), "float32"))
  end)
end)
