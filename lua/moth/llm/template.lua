--- Messages of a chat as the text that a model was trained on: chat templates, which are texts of Jinja
-- (jinja/init.lua) as Hugging Face's folders and GGUF files have them; known ones by name; or functions.
--
--     local talk = moth.llm.template.of(info.chat_template, { tokenizer = tokenizer })
--     local text, stops = talk { { role = "user", content = "Hello" } }
--
-- A message is { role = "system" | "user" | "assistant", content = text }; a template may look at other fields, too.
local check = require "moth.utils.check"
local each = require "moth.each"
local jinja = require "moth.llm.jinja"
local signature = require "moth.utils.signature"

local M = {}

--- Templates by name.
M.known = {
  --- Qwen, Hermes, SmolLM …
  chatml = [[
{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}]],
  --- Gemma: what the system says stands before the first message.
  gemma = [[
{{ bos_token | default('<bos>') }}{% set ns = namespace(before='') %}
{% for m in messages %}
{% if m.role == 'system' %}{% set ns.before = m.content ~ '\n\n' %}{% else %}
{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' ~ ns.before ~ m.content | trim
  ~ '<end_of_turn>\n' }}{% set ns.before = '' %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}]],
  ["phi-3"] = [[
{% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '<|end|>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}]],
  --- The first Llama to chat, and Mistral's first.
  ["llama-2"] = [[
{% set ns = namespace(before='') %}
{% for m in messages %}
{% if m.role == 'system' %}{% set ns.before = '<<SYS>>\n' ~ m.content ~ '\n<</SYS>>\n\n' %}
{% elif m.role == 'user' %}{{ bos_token ~ '[INST] ' ~ ns.before ~ m.content | trim ~ ' [/INST]' }}
{%- set ns.before = '' %}
{% else %}{{ ' ' ~ m.content | trim ~ ' ' ~ eos_token }}{% endif %}
{% endfor %}]],
  --- Llama 3 Instruct, without its line of dates and tools.
  ["llama-3"] = [[
{{ bos_token | default('<|begin_of_text|>') }}{% for m in messages %}
{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content | trim ~ '<|eot_id|>' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}]],
  --- Zephyr, TinyLlama.
  zephyr = [[
{% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ eos_token ~ '\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}]],
  --- A model that was never trained to chat: turns as a play's. It goes on until it would write the other's line.
  ["gpt-2"] = [[
{% for m in messages %}
{% if m.role == 'system' %}{{ m.content ~ '\n\n' }}{% else %}
{{ ('User' if m.role == 'user' else 'Assistant') ~ ': ' ~ m.content ~ '\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}Assistant:{% endif %}]],
}

M.names = "chatml, gemma, gpt-2, llama-2, llama-3, phi-3 and zephyr"

-- What a template writes behind an answer: a token that ends it, or none.
local function end_of_answer(render, variables, tokenizer)
  local answer = "forty-two"
  variables.messages = { { role = "user", content = "question" }, { role = "assistant", content = answer } }
  variables.add_generation_prompt = false
  local text = render(variables)
  local rest = text and text:match("^.*" .. answer:gsub("%-", "%%-") .. "%s*(.*)$")
  if not rest then return nil end
  for _, t in ipairs(tokenizer and tokenizer.added or {}) do -- the longest first
    if rest:sub(1, #t.content) == t.content then return t.content end
  end
  return rest:match "^<[^<>%s]+>"
end

--- talk(messages, variables?) -> text, stops, special: of a template's text, the name of a known one, or a function
-- (itself); nil: "gpt-2".
--
-- tokenizer: of models.load, has the texts of bos_token and eos_token, and the tokens that may end an answer.
-- variables: further ones that the template knows, such as { enable_thinking = false }. stops: texts at which an
-- answer ends; special: whether the tokenizer's own tokens belong around the text. A template that is none, or that
-- refuses the messages, is an error with the template's line.
M.of = signature("llm.template.of(any template?, *, any tokenizer?, string where='llm.template.of')",
function(what, tokenizer, where)
  if check.is_callable(what) then return what end
  if what == nil then what = "gpt-2" end
  if type(what) ~= "string" then
    check.fail("[%s] template: expected a name, a text of Jinja or a function, got %s", where, type(what))
  end
  if not M.known[what] and not what:find "[{\n]" then
    check.fail("[%s] there is no chat template '%s'; there are %s\nHINT: give the template's own text, or template = "
      .. "function(messages) return text, stop_strings end", where, what:sub(1, 40), M.names)
  end
  local render, why = jinja.compile(M.known[what] or what)
  if not render then check.fail("[%s] the chat template, %s", where, why) end
  local function variables_of(more)
    local out = { tools = jinja.none, documents = jinja.none } -- as in transformers: defined, and none
    for name, token in each(tokenizer and tokenizer.special_tokens or {}) do out[name] = token end
    for name, v in each(more or {}) do out[name] = v end
    return out
  end
  local stops = { what == "gpt-2" and "\nUser:" or end_of_answer(render, variables_of(), tokenizer) }
  return function(messages, more)
    local variables = variables_of(more)
    variables.messages, variables.add_generation_prompt = messages, true
    local text
    text, why = render(variables)
    if not text then check.fail("[%s] the chat template, %s", where, why) end
    return text, { unpack(stops) }, what == "gpt-2"
  end
end)

return M
