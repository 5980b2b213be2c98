-- moth.llm.template and moth.llm.jinja: what transformers (its jinja2) makes of the same templates; bounds; errors.
-- spec/llm/fixtures.py makes fixtures/jinja.json.
local moth = require "moth"
local cjson = require "cjson"
local jinja = require "moth.llm.jinja"

local function render(source, variables)
  local f, why = jinja.compile(source)
  if not f then return nil, why end
  return f(variables or {})
end

describe("chat templates #M430", function()
  it("write what jinja2 writes", function()
    local f = assert(io.open("spec/llm/fixtures/jinja.json", "rb"))
    local all = cjson.decode(f:read "*a")
    f:close()
    for _, case in ipairs(all.cases) do
      local source, chat, want = case[1], case[2], case[3]
      local got, why = render(source, { messages = all.chats[chat] or {}, add_generation_prompt = true,
        bos_token = "<s>", eos_token = "</s>" })
      if want == cjson.null then
        assert(got == nil and type(why) == "string" and why:find "^line %d+: ", source)
      else
        assert(got == want, ("%s\nof %s: %s; %s"):format(source, chat, tostring(got), tostring(why)))
      end
    end
  end)

  it("end within bounds, whatever they are", function()
    for _, source in ipairs {
      "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{{ 'x' * 1000000000 }}", "{{ [1] * 1000000000 }}", "{{ '%1000000000d' % 1 }}", "{{ '%*s' % (10**9, 1) }}",
      "{{ '{:1000000000}'.format(1) }}", "{{ 'a' | center(10**9) }}", "{{ 'a'.zfill(10**9) }}",
      "{{ [1] | batch(10**9, 1) }}", "{{ [1] | slice(10**9) }}", "{{ '%.1000000000f' % 1 }}",
      "{% set a = 'a' * 100000 %}{{ a.replace('a', a) }}", "{% set a = 'a' * 100000 %}{{ a.replace('', a) }}",
      "{% set a = 'a' * 1000000 %}{% for i in range(100000) %}{% set b = a.upper() %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ 1" .. ("+1"):rep(100000) .. " }}", "{{ " .. ("("):rep(1000) .. "1" .. (")"):rep(1000) .. " }}",
      ("{% if 1 %}"):rep(1000), ("a"):rep(2 ^ 20 + 1),
      "{% set ns = namespace(l=[]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{{ ([1] | select(*range(100000))) }}",
    } do
      local text, why = render(source)
      assert.is_nil(text)
      assert.is_string(why)
    end
  end)

  -- A text of which nearly all of another is found at each place: string.find took 18 seconds of such a pair.
  it("search long texts in linear time", function()
    local long, part = ("a"):rep(2e6), ("a"):rep(1e6) .. "b"
    for e, want in pairs { ["h.find(n)"] = "-1", ["h.rfind(n)"] = "-1", ["n in h"] = "False", ["h.count(n)"] = "0",
      ["h.split(n) | length"] = "1", ["h.rsplit(n) | length"] = "1", ["h.replace(n, '') | length"] = "2000000",
      ["h.partition(n)[2]"] = "", ["h < n"] = "True" } do
      assert.equal(want, (render("{{ " .. e .. " }}", { h = long, n = part })), e)
    end
  end)

  it("read numbers of any exponent, as Python does", function()
    for e, want in pairs { ["1e299999999999999999999"] = "inf", ["10 - 1e2999999999"] = "-inf",
      ["1e-99999999999"] = "0.0", ["0e99999999999"] = "0.0", ["'1e99999999999' | float"] = "inf",
      ["'-1e99999999999' | float"] = "-inf",
      ["'1e9999999999x' | float(7)"] = "7", ["'1.2.3e99999999999' | float(7)"] = "7", ["1_0e2"] = "1000.0" } do
      assert.equal(want, (render("{{ " .. e .. " }}")), e)
    end
  end)

  it("refuse by name what is not there", function()
    for source, why in pairs { ["{{ [1] | random }}"] = "the filter 'random' is not supported",
      ["{{ 'a' | urlize }}"] = "the filter 'urlize'", ["{{ 'a' | wordwrap }}"] = "the filter 'wordwrap'",
      ["{{ 'a' | pprint }}"] = "the filter 'pprint'", ["{{ 1 is escaped }}"] = "the test 'escaped'",
      ["{{ lipsum() }}"] = "lipsum is not supported", ["{{ 10**15 * 10**15 }}"] = "over 53 bits" } do
      local text, message = render(source)
      assert.is_nil(text)
      assert.matches(why, message, 1, true)
    end
  end)

  it("reach nothing of Lua, and change nothing", function()
    local messages = { { role = "user", content = "x" } }
    assert.equal("|||", render("{{ os }}|{{ messages.__index }}|{{ ''.rep }}|{{ _G }}", { messages = messages }))
    for _, source in ipairs { "{{ messages.append(1) }}", "{{ messages[0].update({}) }}", "{% set messages.a = 1 %}",
      "{% include '/etc/passwd' %}", "{{ ''.rep(9) }}", "{{ dict.f }}{{ dict.f() }}" } do
      assert.is_nil((render(source, { messages = messages })))
    end
    assert.same({ { role = "user", content = "x" } }, messages)
  end)

  it("are of names, texts and functions; their errors say the line", function()
    local of = moth.llm.template.of
    local ask = { { role = "user", content = " x " } }
    local text, stops, special = of "chatml" (ask)
    assert.equal("<|im_start|>user\n x <|im_end|>\n<|im_start|>assistant\n", text)
    assert.same({ "<|im_end|>" }, stops)
    assert.is_false(special)
    local named = { special_tokens = { bos_token = "<b>", eos_token = "</b>" }, added = {} }
    assert.equal("<b>[INST] <<SYS>>\nS\n<</SYS>>\n\nx [/INST] y </b><b>[INST] z [/INST]", (of("llama-2",
      { tokenizer = named }) { { role = "system", content = "S" }, ask[1], { role = "assistant", content = "y" },
      { role = "user", content = "z" } }))
    for name in moth.llm.template.names:gmatch "[%w-]+" do
      if name ~= "and" then assert.matches("x", (of(name) (ask))) end
    end
    assert.equal("<b> x 7", (of("{{ bos_token }}{{ messages[0].content }}{{ more }}", { tokenizer = named })(ask,
      { more = 7 })))
    local given = of "{{ tools is none }}{{ documents is defined }}{{ tools | length if tools is not none }}"
    assert.equal("TrueTrue", (given(ask)))
    assert.equal("FalseTrue1", (given(ask, { tools = { { name = "f" } } })))
    local f = function() end
    assert.equal(f, of(f))
    for message, template in pairs {
      ["there is no chat template 'chat'; there are chatml, gemma"] = "chat",
      ["the chat template, line 2: there is no filter 'frob'"] = "\n{{ x | frob }}",
      ["the chat template, line 2: 'endif' is missing"] = "\n{% if x %}\n",
    } do
      assert.error_matches(function() of(template) end, message)
    end
    assert.error_matches(function() of "\n{{ raise_exception('Roles must alternate!') }}" (ask) end,
      "%[llm.template.of%] the chat template, line 2: the template says: Roles must alternate!")
    assert.error_matches(function() of "{{ messages[0].content + x.y }}" (ask) end, "line 1: 'x' is undefined")
  end)
end)
