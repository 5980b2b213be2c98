-- llm.grammar, llm.json_schema and llm.constraint: texts that an answer may be.
local moth = require "moth"
local cjson = require "cjson"
local grammar = require "moth.llm.grammar"
local json_schema = require "moth.llm.json_schema"
local Constraint = require "moth.llm.constraint"

local function state_of(schema)
  local g = grammar.new()
  return g, g:start(json_schema.schema(g, cjson.decode(schema), cjson.encode, "schema"))
end
local function takes(schema, text)
  local g, start = state_of(schema)
  local s = g:walk(start, text)
  return s ~= nil and s.ends
end

-- A text of the grammar, drawn byte by byte, that ends soon.
local function drawn(g, state)
  local out = {}
  while true do
    local follow = {}
    for b in pairs(g:follow(state)) do follow[#follow + 1] = b end
    table.sort(follow)
    if state.ends and (#follow == 0 or math.random() < 0.3) then return table.concat(out) end
    assert(#follow > 0, "nothing can follow, and it may not end")
    local byte = follow[math.random(#follow)]
    if #out > 40 then
      for _, c in ipairs { 34, 125, 93, 44, 58 } do
        if g:advance(state, c) and math.random() < 0.8 then
          byte = c
          break
        end
      end
    end
    state, out[#out + 1] = assert(g:advance(state, byte)), string.char(byte)
    if #out > 5000 then return nil end
  end
end

describe("texts that an answer may be #quick", function()
  it("bytes, sequences, alternatives, repetitions, rules", function()
    local g = grammar.new()
    local digit = g:bytes "0-9"
    local list
    list = g:rule("list", function()
      return g:seq { g:text "(", g:rep(g:alt { digit, list }, 0, 3), g:text ")" }
    end)
    local start = g:start(list)
    for text, right in pairs { ["()"] = true, ["(1(23)4)"] = true, ["(1234)"] = false, ["(1"] = false, [")"] = false,
      ["((((()))))"] = true, ["()x"] = false } do
      local s = g:walk(start, text)
      assert.equal(right, s ~= nil and s.ends, text)
    end
    assert.same({ [40] = true }, g:follow(start))
    local counted = g:start(g:seq { g:rep(digit, 2, 3), g:rep(g:rep(digit, 0), 0), g:text "" })
    assert.is_false(g:walk(counted, "1").ends)
    assert.is_true(g:walk(counted, "12345").ends)
    local left
    left = g:rule("left", function() return g:alt { g:seq { left, digit }, g:text "x" } end)
    assert.error_matches(function() g:start(left) end, "a rule begins with itself")
  end)

  it("schemas", function()
    local person = [[{"type":"object","additionalProperties":false,"required":["name","age"],"$defs":{"tag":{"enum":
      ["a",3,null,true]}},"properties":{"age":{"type":"integer"},"name":{"type":"string","maxLength":3,"format":"x"},
      "tags":{"type":"array","items":{"$ref":"#/$defs/tag"},"minItems":1,"maxItems":2},
      "next":{"anyOf":[{"$ref":"#"},{"type":["null","boolean"]}]}}}]]
    for text, right in pairs { ['{"name":"abc","age":3}'] = true, ['{ "name" : "é\\n😀" ,\n  "age": -0}'] = true,
      ['{"name":"abcd","age":3}'] = false, ['{"age":3,"name":"a"}'] = false, ['{"name":"a","age":3.5}'] = false,
      ['{"name":"a","age":03}'] = false, ['{"name":"a","age":1,"tags":["a",3]}'] = true,
      ['{"name":"a","age":1,"tags":[]}'] = false, ['{"name":"a","age":1,"tags":[null,true,3]}'] = false,
      ['{"name":"a","age":1,"next":{"name":"","age":1,"next":null}}'] = true, ['{"name":"a","age":1,"x":2}'] = false,
      ['{"name":"\255","age":1}'] = false, ['{"name":"\\ud83d\\ude00","age":1}'] = true,
      ['{"name":"\\ud83d","age":1}'] = false } do
      assert.equal(right, takes(person, text), text)
    end
    assert.is_true(takes('{"type":"object","properties":{"a":{},"b":{}}}', '{"b":[1,{"c":-1.5e-3}]}'))
    assert.is_true(takes('{"type":"object","additionalProperties":{"type":"null"}}', '{"x":null,"y":null}'))
    assert.is_false(takes('{"type":"object","additionalProperties":{"type":"null"}}', '{"x":1}'))
    assert.is_true(takes('{"enum":["a",1.5],"type":"number"}', "1.5"))
    assert.is_false(takes('{"enum":["a",1.5],"type":"number"}', '"a"'))
    assert.is_true(takes("true", "[]"))
  end)

  it("refuse by their place what they cannot keep", function()
    for schema, why in pairs { ['{"type":"string","pattern":"a"}'] = "schema.pattern: is not supported here",
      ['{"type":"object","properties":{"x":{"type":"integer","minimum":1}}}'] = "schema.properties.x.minimum: is not",
      ['{"type":"array","items":{"oneOf":[{"type":"null"}]}}'] = "schema.items.oneOf: is supported with a",
      ['{"$ref":"#/$defs/x"}'] = "schema.$ref: there is no #/$defs/x",
      ['{"type":"text"}'] = "schema.type: there is no", ['{"const":[1]}'] = "schema.enum[0]: expected a text",
      ['{"$ref":"http://x"}'] = "only places in the schema itself",
      ['{"type":"string","maxLength":1e9}'] = "at most 4096 can be counted",
      ['{"$defs":{"a":{"items":{"not":{}}}},"anyOf":[{"$ref":"#/$defs/a"}]}'] = "#/$defs/a.items.not: is not supported",
      ['{"type":"object","required":["a"],"additionalProperties":false}'] = "'a' is none of properties" } do
      local ok, message = pcall(state_of, schema)
      assert.is_false(ok, schema)
      assert.is_truthy(tostring(message):find(why, 1, true), tostring(message))
    end
    local deep = ('{"items":'):rep(70) .. "{}" .. ("}"):rep(70)
    assert.matches("more than 64 schemas", select(2, pcall(state_of, deep)))
  end)

  it("texts that are drawn from a grammar are JSON", function()
    local seed = os.getenv "MOTH_SEED" or os.time()
    math.randomseed(tonumber(seed))
    local g, start = state_of [[{"type":"object","properties":{"a":{"type":"array","items":{"type":"number"}},
      "b":{"type":"string"},"c":{"anyOf":[{"$ref":"#"},{"type":"boolean"}]},"d":{}},"required":["b"]}]]
    local free = grammar.new()
    local object = free:start(json_schema.object(free))
    local n = 0
    for i = 1, 200 do
      local text = i % 2 == 0 and drawn(g, start) or i % 2 == 1 and drawn(free, object)
      if text then
        local ok, v = pcall(cjson.decode, text)
        assert.is_true(ok, ("seed %s: %s"):format(seed, text))
        assert.equal("table", type(v))
        n = n + 1
      end
    end
    assert.is_true(n > 100)
  end)

  it("a constraint leaves the tokens that can come", function()
    local tokens = { "{", "}", '{"', "a", '":', "1", "2}", " ", "<end>", "ab", "" }
    local tokenizer = { special = { [9] = true } }
    function tokenizer.size() return #tokens end
    function tokenizer.token(_, id) return tokens[id] end
    function tokenizer.bytes(_, id) return tokens[id] end
    local g, start = state_of '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
    local c = Constraint(tokenizer, g, start, 13)
    local function left(ends)
      local list, logits = {}, c:mask(moth.zeros(13), ends or { [9] = true }):totable()
      for i, v in ipairs(logits) do if v == 0 then list[#list + 1] = i end end
      return list
    end
    assert.same({ 1, 3 }, left())
    assert.is_true(c:accept(3))
    assert.same({ 4 }, left())
    assert.is_true(c:accept(4))
    assert.same({ 5 }, left())
    assert.is_true(c:accept(5))
    assert.same({ 6, 7, 8 }, left())
    assert.is_true(c:accept(6))
    assert.same({ 2, 6, 7, 8 }, left())
    assert.is_false(c:accept(7)) -- nothing can follow
    assert.same({ 9 }, left())
  end)
end)
