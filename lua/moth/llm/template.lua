--- Messages of a chat as the text that a model was trained on. Templates of Hugging Face are programs (Jinja), which
-- are not run here: those that are known are functions, found by what marks their text; for others there is
-- template = function(messages) return text, { stop strings } end.
--
-- A message is { role = "system" | "user" | "assistant", content = text }.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

local function trim(s) return (s:gsub("^%s+", ""):gsub("%s+$", "")) end

M.known = {
  --- Qwen, Hermes, SmolLM …
  chatml = function(messages)
    local out = {}
    for i, m in ipairs(messages) do out[i] = ("<|im_start|>%s\n%s<|im_end|>\n"):format(m.role, m.content) end
    return table.concat(out) .. "<|im_start|>assistant\n", { "<|im_end|>" }
  end,
  --- Gemma: what the system says stands before the first message.
  gemma = function(messages)
    local out, before = { "<bos>" }, ""
    for _, m in ipairs(messages) do
      if m.role == "system" then
        before = m.content .. "\n\n"
      else
        local role = m.role == "assistant" and "model" or m.role
        out[#out + 1] = ("<start_of_turn>%s\n%s<end_of_turn>\n"):format(role, before .. trim(m.content))
        before = ""
      end
    end
    return table.concat(out) .. "<start_of_turn>model\n", { "<end_of_turn>" }
  end,
  ["phi-3"] = function(messages)
    local out = {}
    for i, m in ipairs(messages) do out[i] = ("<|%s|>\n%s<|end|>\n"):format(m.role, m.content) end
    return table.concat(out) .. "<|assistant|>\n", { "<|end|>" }
  end,
  --- Llama 3 Instruct, without its line of dates and tools.
  ["llama-3"] = function(messages)
    local out = { "<|begin_of_text|>" }
    for _, m in ipairs(messages) do
      out[#out + 1] = ("<|start_header_id|>%s<|end_header_id|>\n\n%s<|eot_id|>"):format(m.role, trim(m.content))
    end
    return table.concat(out) .. "<|start_header_id|>assistant<|end_header_id|>\n\n", { "<|eot_id|>" }
  end,
  --- A model that was never trained to chat: turns as a play's. It goes on until it would write the other's line.
  ["gpt-2"] = function(messages)
    local out = {}
    for i, m in ipairs(messages) do
      out[i] = m.role == "system" and m.content .. "\n\n"
        or ("%s: %s\n"):format(m.role == "user" and "User" or "Assistant", m.content)
    end
    return table.concat(out) .. "Assistant:", { "\nUser:" }
  end,
}

M.names = "chatml, gemma, gpt-2, llama-3 and phi-3"

local marks = { { "<|im_start|>", "chatml" }, { "<|start_header_id|>", "llama-3" }, { "<start_of_turn>", "gemma" },
  { "<|end|>", "phi-3" } }

-- Chatml with what a template says where there is no system message (Qwen 2.5, SmolLM 2).
local function with_default(make, template)
  local default = template:match "<|im_start|>system\\n([^'\"{}<]+)<|im_end|>"
  if not default then return make end
  return function(messages)
    if messages[1] and messages[1].role ~= "system" then
      messages = { { role = "system", content = default:gsub("\\n", "\n") .. "" }, unpack(messages) }
    end
    return make(messages)
  end
end

--- The template's function: of a name, a function (itself), or the text of tokenizer_config.json's chat_template (nil:
-- there is none, which is what GPT-2 has).
M.of = signature("llm.template.of(any template?, string where='llm.template.of')", function(what, where)
  if check.is_callable(what) then return what end
  if what == nil then return M.known["gpt-2"] end
  if type(what) ~= "string" then
    check.fail("[%s] template: expected a name or a function, got %s", where, type(what))
  end
  if M.known[what] then return M.known[what] end
  for _, mark in ipairs(marks) do
    if what:find(mark[1], 1, true) then
      return mark[2] == "chatml" and with_default(M.known.chatml, what) or M.known[mark[2]]
    end
  end
  check.fail("[%s] the chat template is not known (%s …); there are %s\nHINT: name the nearest, or give "
    .. "template = function(messages) return text, stop_strings end", where, (what:sub(1, 40):gsub("%s+", " ")),
    M.names)
end)

return M
