-- moth.json: what it reads, writes and refuses.

local ffi = require "ffi"
local moth = require "moth"
local json = moth.json

local function bytes(...) return string.char(...) end

describe("json.decode #quick", function()
  it("gives tables, numbers, texts", function()
    local t = json.decode [[ { "a" : [ 1 , -2.5e3, true, false, null ], "b": {}, "": [[], "x"] } ]]
    assert.same({ 1, -2500, true, false }, { unpack(t.a, 1, 4) })
    assert.is_true(t.a[5] == json.null and #t.a == 5)
    assert.equal(json.null, require("cjson").null)
    assert.is_true(json.is_array(t[""][1]))
    assert.is_false(json.is_array(t.b))
    assert.equal("x", t[""][2])
    assert.equal(2, json.decode('{"a":1,"a":2}').a) -- the last one, as in Python
    assert.equal(json.null, json.decode "null")
    assert.equal("none", json.decode("[null]", { null = "none" })[1])
    assert.equal('é"\\/\b\f\n\r\t' .. "\0" .. "😀", json.decode [["é\"\\\/\b\f\n\r\t\u0000\ud83d\ude00"]])
  end)

  it("keeps numbers exactly", function()
    local t = json.decode [[ [9007199254740992, 9007199254740993, -9223372036854775808, 18446744073709551615,
      -9007199254740992] ]]
    assert.equal(2 ^ 53, t[1])
    assert.is_true(ffi.istype("int64_t", t[2]) and t[2] == 9007199254740993LL)
    assert.is_true(ffi.istype("int64_t", t[3]) and t[3] == -9223372036854775807LL - 1)
    assert.is_true(ffi.istype("uint64_t", t[4]) and t[4] == 18446744073709551615ULL)
    assert.equal(-2 ^ 53, t[5])
    assert.equal("[9007199254740992,9007199254740993,-9223372036854775808,18446744073709551615,-9007199254740992]",
      json.encode(t))
    assert.equal(2 ^ 64, json.decode("18446744073709551616", { integers = "number" }))
    assert.error_matches(function() json.decode "[1, 18446744073709551616]" end,
      "column 5: a number beyond the range .*\nHINT: integers = 'number'")
    assert.error_matches(function() json.decode "1e400" end, "beyond the range of doubles")
    assert.is_true(1 / json.decode "-0" < 0)
    for _, text in ipairs { "0.1", "1e-7", "123456789012345.67", "5e-324", "1.7976931348623157e308",
      "2.2250738585072014e-308" } do
      assert.equal(tonumber(text), json.decode(text))
    end
  end)

  it("errors have line and column", function()
    for text, message in pairs {
      ['{"a": 1,\n "é": [1, 2,]}'] = "line 2, column 13: a comma before the closing bracket",
      ["[1\n,\n2"] = "line 3, column 2: expected ',' or '%]'", [""] = "line 1, column 1: expected a value",
      ["[01]"] = "column 3: a number with a leading zero", ["[1] 2"] = "column 5: something follows the value",
      ['{"a" 1}'] = "column 6: expected ':'", ["{a: 1}"] = "column 2: expected a string",
      ["['a']"] = "expected a value", ["[NaN]"] = "expected a value", ["[0x10]"] = "expected ','", ["[+1]"] = "a value",
      ["[.5]"] = "expected a value", ["[1.]"] = "expected a digit", ["[1e]"] = "expected a digit",
      ["[1,,2]"] = "expected a value", ['["\1"]'] = "a control character", ['["a]'] = "without an end",
      ['["\\x"]'] = "an unknown escape", ['["\\ud800"]'] = "a surrogate", ["tru"] = "expected a value",
      [bytes(34, 255, 34)] = "not UTF%-8", [bytes(239, 187, 191) .. "[]"] = "byte order mark",
      [("["):rep(1001)] = "nested too deep",
    } do
      assert.error_matches(function() json.decode(text) end, message)
    end
    assert.error_matches(function() json.decode("[[[1]]]", { max_depth = 2 }) end, "column 3: nested too deep")
    assert.same({ { { 1 } } }, json.decode("[[[1]]]", { max_depth = 3 }))
    local deep = ("["):rep(1000) .. ("]"):rep(1000)
    assert.equal(deep, json.encode(json.decode(deep)))
    assert.error_matches(function() json.decode("1", { max_depth = 1001 }) end, "max_depth is at most 1000")
  end)

  it("reads any bytes to an end", function()
    local good = '{"a":[1,2.5e3,null],"b":{"c":"x\\u00e9\\n"},"d":true}'
    assert.equal(1, json.decode(good).a[1])
    for at = 1, #good do
      pcall(json.decode, good:sub(1, at))
      for _, c in ipairs { 0, 34, 44, 91, 93, 92, 123, 125, 255 } do
        pcall(json.decode, good:sub(1, at - 1) .. string.char(c) .. good:sub(at + 1))
      end
    end
  end)
end)

describe("json.encode #quick", function()
  it("writes what decode reads, names in order", function()
    local t = { b = { 1, 2.5, json.null, true }, a = { x = {} }, empty = json.array {}, ["é\n"] = "\"\\\1\127" }
    local text = [[{"a":{"x":{}},"b":[1,2.5,null,true],"empty":[],"é\n":"\"\\\u0001\u007f"}]]
    assert.equal(text, json.encode(t))
    assert.equal(text, json.encode(json.decode(text)))
    assert.equal('{\n  "a": [\n    1\n  ],\n  "b": {}\n}', json.encode({ a = { 1 }, b = {} }, { indent = 2 }))
    assert.same({ "null", "{}", "[]", '"x"', "-0.0" },
      { json.encode(), json.encode {}, json.encode(json.array {}), json.encode "x", json.encode(-0.0) })
    assert.equal("[2,3]", json.encode(moth.ones(2, 3):size()))
    local own = {}
    assert.equal("[]{}", json.encode(json.array(own)) .. json.encode(own)) -- it is a copy
    assert.equal("[[1,2],[3,4]]", json.encode(moth.tensor { { 1, 2 }, { 3, 4 } }:tolist()))
  end)

  it("numbers as short as they stay the same", function()
    for text, v in pairs { ["0.1"] = 0.1, ["0.3333333333333333"] = 1 / 3, ["1e+300"] = 1e300,
      ["1000000000000000"] = 1e15,
      ["0.30000000000000004"] = 0.1 + 0.2, ["1.152921504606847e+18"] = 2 ^ 60 } do
      assert.equal(text, json.encode(v))
      assert.equal(v, json.decode(text))
    end
    moth.manual_seed(1)
    for _ = 1, 500 do
      local v = (math.random() - 0.5) * 10 ^ math.random(-300, 300)
      assert.equal(v, json.decode(json.encode(v)))
    end
    assert.equal("[0.3333,2]", json.encode({ 1 / 3, 2 }, { digits = 4 }))
    assert.equal("[NaN,-Infinity]", json.encode({ 0 / 0, -1 / 0 }, { allow_nan = true }))
  end)

  it("names the place of what JSON cannot say", function()
    local loop = {}
    loop.a = loop
    for message, v in pairs {
      [".x%[2%].y: JSON has no nan"] = { x = { 1, { y = 0 / 0 } } },
      ["%[1%]: a tensor\nHINT: x:tolist%(%)"] = { moth.ones(2) },
      [".f: a value of type function"] = { f = print }, ["%.a%.a.*nested deeper than 1000"] = loop,
      ["both elements and names %('k'%)"] = { 1, k = 2 }, ["HINT: .*json.null in"] = { 1, nil, 3 },
      ["the key 7 is neither"] = { [7] = 1 }, ["a key of type boolean"] = { [true] = 1 },
      ["not UTF%-8"] = bytes(255, 254), ["a value of type Linear"] = { moth.nn.Linear(1, 1) },
    } do
      assert.error_matches(function() json.encode(v) end, message)
    end
    assert.error_matches(function() json.encode({ { { 1 } } }, { max_depth = 2 }) end, "nested deeper than 2")
    assert.error_matches(function() json.encode(1, { digits = 18 }) end, "from 1 to 17")
  end)
end)

describe("lines of JSON #quick", function()
  it("are read by it", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local f = assert(io.open(path, "w"))
    f:write('{"id": 12345678901234567, "n": null, "big": 1000000000000000019884624838656}\n{"id": 1,}\n')
    f:close()
    local lines = moth.data.JSONL(path)
    local first = lines:get(1)
    assert.is_true(first.id == 12345678901234567LL and first.n == nil and first.big == 1e30)
    assert.error_matches(function() lines:get(2) end, "line 2, column 10: a comma before the closing bracket")
  end)
end)
