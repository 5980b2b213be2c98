--- OpenAI's paths for language models: /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/models, and
-- /v1/responses with responses.lua. The engine's pieces (engine.lua) become one answer, or events of a stream.
local B = require "moth_lua"
local base64 = require "moth.utils.base64"
local front = require "moth.serve.front"
local each = require "moth.each"
local kserve = require "moth.serve.kserve"
local ordered = require "moth.utils.ordered_json"
local responses = require "moth.serve.responses"
local tools = require "moth.llm.tools"
local values = require "moth.serve.values"

local M = {}

local function json() return require "cjson" end

-- cjson writes an empty table as {}: this text, which no client can guess, stands for [].
local EMPTY = ("empty %x %x"):format(os.time(), math.random(2 ^ 31))
local function encode(t) return (json().encode(t):gsub('"' .. EMPTY .. '"', "[]")) end

-- ---- requests ----------------------------------------------------------------------------------------

local function refuse(param, ...) error({ param = param, why = (...):format(select(2, ...)) }, 0) end

local function number(low, high, whole)
  return function(v, name)
    if type(v) ~= "number" or not (v >= low and v <= high) or whole and v ~= math.floor(v) then
      refuse(name, "expected a %s", (whole and "whole number from %.0f to %.0f" or "number from %g to %g"):format(low,
        high))
    end
    return v
  end
end

local function boolean(v, name)
  if type(v) ~= "boolean" then refuse(name, "expected true or false") end
  return v
end

-- B.is_text, which is for names in files, refuses zero bytes; in a text of JSON they are characters as others are.
local function is_utf8(s) return B.is_text((s:gsub("%z", " "))) end

local function text(v, name)
  if type(v) ~= "string" or not is_utf8(v) then refuse(name, "expected a text of UTF-8") end
  return v
end

-- A text of at most so many bytes.
local function small_text(most)
  return function(v, name)
    if type(v) == "string" and #v > most then
      refuse(name, "expected a text of at most %d bytes, got %d", most, #v)
    end
    return text(v, name)
  end
end
local NAME, STOP = 1024, 4096 -- bytes

local function stop(v, name)
  local list = type(v) == "table" and v or { v }
  if #list == 0 and next(list) ~= nil then refuse(name, "expected a text or a list of texts") end
  if #list > 16 then refuse(name, "expected at most 16 texts") end
  local stop_text = small_text(STOP)
  for i, s in ipairs(list) do
    if stop_text(s, ("%s[%d]"):format(name, i - 1)) == "" then refuse(name, "expected texts that are not empty") end
  end
  return list
end

local function ids(v, name)
  if type(v) ~= "table" or #v == 0 then refuse(name, "expected a text or a list of token ids") end
  for i, id in ipairs(v) do
    if type(id) ~= "number" or id < 0 or id >= 2 ^ 31 or id ~= math.floor(id) then
      refuse(("%s[%d]"):format(name, i - 1), "expected a token id")
    end
  end
  return v
end

local MOST = 128 -- answers to one request

-- A list of prompts, each a text or ids.
local function prompts(v, name)
  if type(v) == "string" then return { text(v, name) } end
  if type(v) ~= "table" or type(v[1]) ~= "string" and type(v[1]) ~= "table" then return { ids(v, name) } end
  local out = {}
  for i, one in ipairs(v) do
    out[i] = (type(one) == "string" and text or ids)(one, ("%s[%d]"):format(name, i - 1))
  end
  return out
end

local INPUTS = 2048 -- of /v1/embeddings

local function inputs(v, name)
  local list = prompts(v, name)
  if #list > INPUTS then refuse(name, "expected at most %d texts, got %d", INPUTS, #list) end
  for i, one in ipairs(list) do
    if one == "" then refuse(#list == 1 and name or ("%s[%d]"):format(name, i - 1), "is empty") end
  end
  return list
end

local function encoding(v, name)
  if v ~= "float" and v ~= "base64" then refuse(name, "expected float or base64") end
  return v
end

local role = small_text(NAME)
local MESSAGES = 2048 -- of a chat, and parts of one message

-- Calls that an assistant's message has made.
local function tool_calls(v, name)
  if type(v) ~= "table" or #v == 0 or #v > MESSAGES then refuse(name, "expected a list of calls") end
  local out = {}
  for i, call in ipairs(v) do
    local at = ("%s[%d]"):format(name, i - 1)
    local f = type(call) == "table" and call["function"]
    if type(f) ~= "table" or call.type ~= nil and call.type ~= "function" then
      refuse(at, "expected an object with id, type function and function")
    end
    local arguments = text(f.arguments, at .. ".function.arguments")
    local given = kserve.decode(arguments)
    if type(given) ~= "table" or not arguments:find "^%s*{" then
      refuse(at .. ".function.arguments", "expected the text of a JSON object")
    end
    out[i] = { id = call.id ~= nil and role(call.id, at .. ".id") or nil, type = "function",
      ["function"] = { name = role(f.name, at .. ".function.name"), arguments = arguments } }
  end
  return out
end

local function messages(v, name)
  if type(v) ~= "table" or #v == 0 then refuse(name, "expected a list of messages") end
  if #v > MESSAGES then refuse(name, "expected at most %d messages, got %d", MESSAGES, #v) end
  local out = {}
  for i, m in ipairs(v) do
    local at = ("%s[%d]"):format(name, i - 1)
    if type(m) ~= "table" then refuse(at, "expected an object with role and content") end
    for key in each(m) do
      local known = key == "role" or key == "content" or key == "name"
        or key == "tool_calls" and m.role == "assistant" or key == "tool_call_id" and m.role == "tool"
      if not known and m[key] ~= json().null then refuse(at .. "." .. tostring(key), "there is no such field") end
    end
    local content, calls = m.content, nil
    if m.tool_calls ~= nil and m.tool_calls ~= json().null then
      calls = tool_calls(m.tool_calls, at .. ".tool_calls")
    end
    if calls and (content == nil or content == json().null) then content = "" end
    if type(content) == "table" then -- parts, of which only text is known
      local parts = {}
      if #content > MESSAGES then
        refuse(at .. ".content", "expected at most %d parts, got %d", MESSAGES, #content)
      end
      for k, part in ipairs(content) do
        if type(part) ~= "table" or part.type ~= "text" then
          refuse(("%s.content[%d]"):format(at, k - 1), "expected a part of type text")
        end
        parts[k] = text(part.text, ("%s.content[%d].text"):format(at, k - 1))
      end
      content = table.concat(parts)
    end
    out[i] = { role = role(m.role, at .. ".role"), content = text(content, at .. ".content"), tool_calls = calls,
      tool_call_id = m.tool_call_id and role(m.tool_call_id, at .. ".tool_call_id"),
      name = m.role == "tool" and m.name ~= json().null and m.name and role(m.name, at .. ".name") or nil }
  end
  return out
end

local KWARGS = 2 ^ 16 -- bytes of JSON

local function object(v, name)
  if type(v) ~= "table" or #v > 0 then refuse(name, "expected an object") end
  local ok, encoded = pcall(json().encode, v)
  if not ok then refuse(name, "expected an object that JSON can hold: %s", encoded) end
  local bytes = #encoded
  if bytes > KWARGS then refuse(name, "expected an object of at most %d bytes, got %d", KWARGS, bytes) end
  return v
end

local TOOLS = 128

-- Checks a list of tools; gives it, or nil: there are none.
local function tools_of(v, name)
  if type(v) ~= "table" then refuse(name, "expected a list of tools") end
  if #v > TOOLS then refuse(name, "expected at most %d tools, got %d", TOOLS, #v) end
  for i, tool in ipairs(v) do
    local at = ("%s[%d]"):format(name, i - 1)
    local f = type(tool) == "table" and tool["function"]
    if type(f) ~= "table" or tool.type ~= "function" then refuse(at, "expected type function, and function") end
    if type(f.name) ~= "string" or not f.name:find "^[%w_%-]+$" or #f.name > 64 then
      refuse(at .. ".function.name", "expected at most 64 letters, digits, _ and -")
    end
    if f.parameters ~= nil and f.parameters ~= json().null then object(f.parameters, at .. ".function.parameters") end
  end
  return #v > 0 and v or nil
end

-- "none", "auto", "required", or { name = of the tool }.
local function tool_choice(v, name)
  if v == "none" or v == "auto" or v == "required" then return v end
  local f = type(v) == "table" and v.type == "function" and v["function"]
  if type(f) ~= "table" then
    refuse(name, "expected none, auto, required or an object with type function and function.name")
  end
  return { name = role(f.name, name .. ".function.name") }
end

-- What does not change the answer here, with the values that are accepted; TRUE: any.
local TRUE = {}
local neutral = {
  store = false, prediction = TRUE, verbosity = "medium", parallel_tool_calls = TRUE,
  user = TRUE, metadata = TRUE, service_tier = TRUE, safety_identifier = TRUE, prompt_cache_key = TRUE,
  tools = { {} }, functions = { {} }, tool_choice = { "none", "auto" }, suffix = "",
  response_format = { { type = "text" } }, modalities = { { "text" } },
}

-- Whether the value of a field says no more than its absence; else the value that would, as a text.
local function is_neutral(name, value)
  local accepted = neutral[name]
  if accepted == nil then return false, "" end
  if accepted == TRUE then return true end
  if type(accepted) ~= "table" then accepted = { accepted } end
  for _, one in ipairs(accepted) do
    if values.same(one, value) then return true end
  end
  local first = accepted[1]
  return false, ", only " .. (type(first) == "table" and next(first) == nil and "an empty one" or json().encode(first))
end

-- The text of the JSON Schema that an answer is to keep ("object": any object), or nil: it may be any text.
local function response_format(v, name)
  if type(v) ~= "table" then refuse(name, "expected an object") end
  local kind = v.type
  for key in each(v) do
    if key ~= "type" and not (key == "json_schema" and kind == "json_schema") then
      refuse(name .. "." .. tostring(key), "there is no such field")
    end
  end
  if kind == "text" then return nil end
  if kind == "json_object" then return "object" end
  if kind ~= "json_schema" then refuse(name .. ".type", "expected text, json_object or json_schema") end
  local given = v.json_schema
  if type(given) ~= "table" then refuse(name .. ".json_schema", "expected an object") end
  for key in each(given) do
    if key ~= "schema" and key ~= "name" and key ~= "description" and key ~= "strict" then
      refuse(("%s.json_schema.%s"):format(name, tostring(key)), "there is no such field")
    end
  end
  return json().encode(object(given.schema, name .. ".json_schema.schema"))
end

local BIASES = 1024

-- What is added to logits, by ids from 0.
local function logit_bias(v, name)
  local out, n, change = {}, 0, number(-100, 100)
  for id, by in each(object(v, name)) do
    local at = ("%s.%s"):format(name, tostring(id))
    if not (type(id) == "string" and id:find "^%d%d?%d?%d?%d?%d?%d?%d?%d?$") then refuse(at, "expected a token id") end
    n, out[tostring(tonumber(id))] = n + 1, change(by, at)
    if n > BIASES then refuse(name, "expected at most %d tokens", BIASES) end
  end
  return n > 0 and out or nil
end

-- Of vLLM's and llama.cpp's servers beside OpenAI's: top_k (0 or -1: all), min_p, repetition_penalty, ignore_eos,
-- stop_token_ids.
local common = {
  top_k = number(-1, 2 ^ 31, true), min_p = number(0, 1), repetition_penalty = number(0.01, 100), ignore_eos = boolean,
  stop_token_ids = ids, response_format = response_format,
  frequency_penalty = number(-2, 2), presence_penalty = number(-2, 2), logit_bias = logit_bias,
  max_tokens = number(1, 2 ^ 20, true), temperature = number(0, 2), top_p = number(0, 1),
  seed = number(-1e14 + 1, 1e14 - 1, true), stop = stop, n = number(1, 16, true), stream = boolean,
  model = small_text(NAME),
  stream_options = function(v, name)
    if type(v) ~= "table" then refuse(name, "expected an object") end
    for key, value in each(v) do
      if key ~= "include_usage" and key ~= "include_obfuscation" then
        refuse(name .. "." .. tostring(key), "there is no such field")
      end
      boolean(value, name .. "." .. key)
    end
    return v
  end,
}
local readers = {
  embedding = { input = inputs, encoding_format = encoding, dimensions = number(1, 2 ^ 20, true),
    model = common.model },
  completion = { prompt = prompts, logprobs = number(0, 20, true), echo = boolean, best_of = number(1, 16, true),
    max_tokens = number(0, 2 ^ 20, true) },
  chat = { reasoning_effort = small_text(NAME), tools = tools_of, tool_choice = tool_choice, messages = messages,
    chat_template_kwargs = object, logprobs = boolean, top_logprobs = number(0, 20, true),
    max_completion_tokens = common.max_tokens },
}

-- Makes of the tools of a request their text, in which names keep their order, and the set of their names.
local function take_tools(out, body, as_chat)
  local choice, given = out.tool_choice, out.tools
  out.tool_choice, out.tools = nil, nil
  if not given then
    if choice == "required" or type(choice) == "table" then refuse("tool_choice", "there are no tools") end
    return
  end
  if choice == "none" then return end
  local names = {}
  for _, tool in ipairs(given) do names[tool["function"].name] = true end
  if type(choice) == "table" and not names[choice.name] then
    refuse("tool_choice", "there is no tool '%s'", choice.name)
  end
  if (choice == "required" or type(choice) == "table") and out.response_format then
    refuse("tool_choice", "goes without response_format")
  end
  out.tools = as_chat
  for _, part in ipairs(as_chat and {} or ordered.parts(body)) do
    if part.name == "tools" then out.tools = part.text end
  end
  out.tool_names, out.tool_choice = names, choice ~= "auto" and choice or nil
end

local function read(kind, body, most)
  local given, why = kserve.decode(body, most)
  if type(given) ~= "table" then refuse("body", "is no JSON object%s", why and ": " .. why or "") end
  local out, null, called, as_chat = {}, json().null, {}, nil
  local is_response = kind == "response"
  if is_response then
    kind, called = "chat", responses.names
    given, as_chat = responses.translate(given, body, refuse)
  end
  for name, value in each(given) do
    local reader = readers[kind][name] or kind ~= "embedding" and common[name]
    if value == null then -- luacheck: ignore 542
    elseif reader then
      out[name] = reader(value, called[name] or name)
    else
      local ok, usual = is_neutral(name, value)
      if not ok then refuse(tostring(name), "is not supported here%s", usual) end
    end
  end
  local needed = kind == "chat" and "messages" or kind == "embedding" and "input" or "prompt"
  if not out[needed] then refuse(called[needed] or needed, "is missing") end
  if not out.model then refuse("model", "is missing") end
  if kind == "embedding" then
    out.prompts, out.input, out.kind = out.input, nil, kind
    return out
  end
  out.max_tokens = out.max_tokens or out.max_completion_tokens
  if kind == "chat" and out.logprobs ~= nil then out.logprobs = out.logprobs and (out.top_logprobs or 0) or nil end
  out.top_logprobs, out.max_completion_tokens = nil, nil
  take_tools(out, body, as_chat)
  out.kind, out.n, out.is_response = kind, out.n or 1, is_response or nil
  if out.top_k and out.top_k < 1 then out.top_k = nil end
  if out.best_of and out.best_of ~= out.n then refuse("best_of", "is not supported here, only n") end
  out.best_of = nil
  if out.max_tokens == 0 and not out.echo then refuse("max_tokens", "expected at least 1; 0 goes with echo") end
  local several = kind == "completion" and #out.prompt or 1
  if several > 1 then out.prompts = out.prompt end
  out.prompt = several == 1 and out.prompt and out.prompt[1] or nil
  out.choices = out.n * several
  if out.choices > MOST then refuse(needed, "at most %d answers to one request, not %d", MOST, out.choices) end
  return out
end

-- ---- answers -----------------------------------------------------------------------------------------

local KINDS = { "invalid_request_error", [401] = "authentication_error", [404] = "invalid_request_error",
  [429] = "rate_limit_error" }

-- OpenAI's codes, which clients tell errors apart by.
local CODES = { [401] = "invalid_api_key", [429] = "rate_limit_exceeded" }
local function code_of(status, message, param)
  if CODES[status] then return CODES[status] end
  if status == 404 and param == "model" then return "model_not_found" end
  if status ~= 400 then return nil end
  if message:find("this model's maximum context length is", 1, true) then return "context_length_exceeded" end
  return message:find ": is not supported here" and "unsupported_parameter" or nil
end

--- The body of an error.
function M.error(status, message, param)
  local kind = KINDS[status] or status >= 500 and "server_error" or KINDS[1]
  local code = code_of(status, message, param)
  message, param = kserve.short(message, 2000), param and kserve.short(param, 200)
  return json().encode { error = { message = message, type = kind, param = param or json().null,
    code = code or json().null } }
end

-- A token as a text; bytes that are none are written out, so that different ones stay different.
local function whole(s)
  if is_utf8(s) then return s end
  return "bytes:" .. s:gsub(".", function(c) return ("\\x%02x"):format(c:byte()) end)
end

local function chat_logprobs(list)
  local function entry(token, logprob)
    return { token = whole(token), logprob = logprob, bytes = #token > 0 and { token:byte(1, -1) } or EMPTY }
  end
  local out = {}
  for i, t in ipairs(list) do
    local top = {}
    for k, other in ipairs(t.top or {}) do top[k] = entry(other[1], other[2]) end
    out[i] = entry(t.token, t.logprob)
    out[i].top_logprobs = #top > 0 and top or EMPTY
  end
  return { content = out }
end

-- at: characters of the answer before these tokens. Gives those behind them, too.
local function completion_logprobs(list, at)
  local out = { tokens = {}, token_logprobs = {}, top_logprobs = {}, text_offset = {} }
  for i, t in ipairs(list) do
    out.tokens[i], out.token_logprobs[i], out.text_offset[i] = whole(t.token), t.logprob or json().null, at
    at = at + select(2, t.token:gsub("[^\128-\191]", ""))
    local top = {}
    for _, other in ipairs(t.top or {}) do top[whole(other[1])] = other[2] end
    out.top_logprobs[i] = next(top) and top or json().null
  end
  return out, at
end

-- One choice, of a whole answer or an event. offsets: characters of each choice that were sent before.
local function choice(request, index, piece_text, logprobs, finish, offsets, first, calls)
  local c = { index = index, finish_reason = finish or json().null, logprobs = json().null }
  local chat = request.kind == "chat"
  if logprobs and #logprobs > 0 then
    if chat then
      c.logprobs = chat_logprobs(logprobs)
    else
      local before = offsets and offsets[index] or 0
      local listed, at = completion_logprobs(logprobs, before)
      c.logprobs = listed
      if offsets then offsets[index] = at end
    end
  end
  if not chat then
    c.text = piece_text
  elseif offsets then -- an event
    c.delta = { content = piece_text, role = first and "assistant" or nil, tool_calls = calls }
  else
    c.message = { role = "assistant", content = calls and piece_text == "" and json().null or piece_text,
      tool_calls = calls }
  end
  if calls and finish == "stop" then c.finish_reason = "tool_calls" end
  return c
end

local called = 0
-- The calls of an answer as OpenAI has them, and the text beside; nil, and the text. streamed: with their places.
local function calls_in(request, answer, streamed)
  local calls, said = nil, answer
  if request.tools then calls, said = tools.parse(answer, request.tool_names) end
  for i, call in ipairs(calls or {}) do
    called = called + 1
    calls[i] = { id = ("call_%x%06x"):format(os.time(), called % 2 ^ 24), type = "function", ["function"] = call,
      index = streamed and i - 1 or nil }
  end
  return calls, said
end

local function usage_of(piece)
  local p, c = piece.prompt_tokens or 0, piece.completion_tokens or 0
  local details
  if piece.accepted then -- of a draft or of lookup
    details = { accepted_prediction_tokens = piece.accepted, rejected_prediction_tokens = piece.refused }
  end
  return { prompt_tokens = p, completion_tokens = c, total_tokens = p + c, completion_tokens_details = details }
end

local count = 0
local function envelope(request, streamed)
  count = count + 1
  local chat = request.kind == "chat"
  return {
    id = ("%s-%x%04x"):format(chat and "chatcmpl" or "cmpl", os.time(), count % 65536), created = os.time(),
    object = chat and (streamed and "chat.completion.chunk" or "chat.completion") or "text_completion",
    model = request.model,
  }
end

-- The next piece, or nil, a status and why: the client has left, or nothing came in time.
local function next_piece(call, entry, waited)
  while true do
    local piece = entry:next(0.1)
    if piece then return piece end
    if call.request:is_gone() then return nil, 499, "the client has left" end
    if not waited.any and front.now() - entry.arrived > call.limits.wait_ms / 1000 then
      return nil, 503, ("no token within %d ms"):format(call.limits.wait_ms)
    end
  end
end

local function fail(call, status, why)
  return call:fail(status, M.error(status, why), false, status == 503 and 1 or nil)
end

local function note_first(call, model, entry, waited)
  if waited.any then return end
  waited.any = true
  call.metrics:first_token(model.name, front.now() - entry.arrived)
end

local function note_tokens(call, model, piece)
  call.metrics:tokens(model.name, "in", piece.prompt_tokens or 0)
  call.metrics:tokens(model.name, "out", piece.completion_tokens or 0)
end

local function answer_whole(call, model, request, entry)
  local texts, logprobs, finish, waited = {}, {}, {}, {}
  for i = 0, request.choices - 1 do texts[i], logprobs[i] = {}, {} end
  while true do
    local piece, status, why = next_piece(call, entry, waited)
    if not piece then
      model:cancel(entry)
      return fail(call, status, why)
    end
    if piece.error then return fail(call, piece.status or 500, piece.error) end
    note_first(call, model, entry, waited)
    local index = piece.index or 0
    if piece.text then table.insert(texts[index], piece.text) end
    for _, t in ipairs(piece.logprobs or {}) do table.insert(logprobs[index], t) end
    finish[index] = piece.finish_reason or finish[index]
    if piece.done then
      note_tokens(call, model, piece)
      local out = envelope(request, false)
      out.usage, out.choices = usage_of(piece), {}
      for i = 0, request.choices - 1 do
        local calls, said = calls_in(request, table.concat(texts[i]))
        out.choices[i + 1] = choice(request, i, said, request.logprobs and logprobs[i], finish[i], nil, nil, calls)
      end
      return call:answer(200, encode(out))
    end
  end
end

local STREAM = { "content-type", "text/event-stream", "cache-control", "no-store" }

local function answer_stream(call, model, request, entry)
  local out, waited, begun, first, offsets = envelope(request, true), {}, false, {}, {}
  local held = {} -- what may be a call, by choice
  local function event(t)
    if not begun then
      begun = true
      if not call.request:begin(200, STREAM) then return false end
    end
    return call.request:write("data: " .. encode(t) .. "\n\n")
  end
  local asked_usage = request.stream_options and request.stream_options.include_usage
  while true do
    local piece, status, why = next_piece(call, entry, waited)
    if not piece then
      model:cancel(entry)
      if begun then return call:ended(status) end
      return fail(call, status, why)
    end
    if piece.error then
      if not begun then return fail(call, piece.status or 500, piece.error) end
      call.request:write("data: " .. M.error(piece.status or 500, piece.error) .. "\n\n")
      call.request:finish()
      return call:ended(piece.status or 500)
    end
    note_first(call, model, entry, waited)
    local index, ok, said, calls = piece.index or 0, true, piece.text, nil
    if request.tools then
      local all = (held[index] or "") .. (said or "")
      local sure = tools.sure(all)
      said, held[index] = all:sub(1, sure), all:sub(sure + 1)
      if piece.finish_reason then
        local rest
        calls, rest = calls_in(request, held[index], true)
        said = said .. rest
      elseif said == "" and not piece.logprobs then
        said = nil
      end
    end
    if said or piece.finish_reason then
      out.choices = { choice(request, index, said or "", request.logprobs and piece.logprobs,
        piece.finish_reason, offsets, not first[index], calls) }
      out.usage = asked_usage and json().null or nil
      first[index] = true
      ok = event(out)
    end
    if ok and piece.done then
      note_tokens(call, model, piece)
      if asked_usage then
        out.choices, out.usage = EMPTY, usage_of(piece)
        ok = event(out)
      end
      if not begun then call.request:begin(200, STREAM) end
      if ok and call.request:write "data: [DONE]\n\n" then call.request:finish() end
      return call:ended(200)
    end
    if not ok then
      model:cancel(entry)
      return call:ended(499)
    end
  end
end

-- Vectors, each a piece of the engine's.
local function answer_vectors(call, model, request, entry)
  local list, waited = {}, {}
  while true do
    local piece, status, why = next_piece(call, entry, waited)
    if not piece then
      model:cancel(entry)
      return fail(call, status, why)
    end
    if piece.error then return fail(call, piece.status or 500, piece.error) end
    waited.any = true
    local vector = '"' .. piece.vector .. '"'
    if request.encoding_format ~= "base64" then
      vector = values.to_json(base64.decode(piece.vector), "float32")
      if not vector then return fail(call, 500, "the model gives a NaN or an infinity") end
    end
    list[piece.index + 1] = ('{"object":"embedding","index":%d,"embedding":%s}'):format(piece.index, vector)
    if piece.done then
      note_tokens(call, model, piece)
      local n = piece.prompt_tokens
      return call:answer(200, ('{"object":"list","data":[%s],"model":%s,"usage":%s}'):format(table.concat(list, ","),
        json().encode(request.model), json().encode { prompt_tokens = n, total_tokens = n }))
    end
  end
end

-- Refuses texts that cannot have few enough tokens for the model: by bytes, before anything is made of them.
local function check_size(model, request)
  local signature, vectors = model.signature, request.kind == "embedding"
  if vectors then signature = signature and signature.vectors end
  local most, tokens = signature and signature.max_bytes, signature and signature.max_tokens
  local function check(name, bytes)
    if bytes > most then
      refuse(name, "%d bytes: this model's maximum context length is %d tokens, and no text of more than %d bytes has \z
        so few", bytes, tokens, most)
    end
  end
  local function check_prompt(name, prompt)
    if type(prompt) == "string" then return most and check(name, #prompt) end
    if tokens and #prompt > tokens then
      refuse(name, "%d tokens: this model's maximum context length is %d", #prompt, tokens)
    end
  end
  if request.messages then
    local bytes = 0
    for _, m in ipairs(request.messages) do
      bytes = bytes + #m.role + #m.content
      for _, call in ipairs(m.tool_calls or {}) do bytes = bytes + #call["function"].arguments end
    end
    bytes = bytes + #(request.tools or "")
    return most and check("messages", bytes)
  end
  if request.prompt then check_prompt("prompt", request.prompt) end
  local name = vectors and "input[%d]" or "prompt[%d]"
  for i, prompt in ipairs(request.prompts or {}) do check_prompt(name:format(i - 1), prompt) end
end

-- The bytes of a body that are read into memory: several of the longest prompts there are, each letter escaped; and the
-- values that it may have: as many prompts of ids. For vectors there may be thousands of texts.
local function most_of(call, kind)
  local bytes, tokens = 0, 0
  for _, name in ipairs(call.names) do
    local signature = call.models[name].signature
    if signature and signature.steps then
      bytes = math.max(bytes, signature.max_bytes or math.huge)
      tokens = math.max(tokens, signature.max_tokens or 0)
    end
  end
  return math.max(kind == "embedding" and 2 ^ 22 or 2 ^ 20, 16 * bytes), 16 * tokens
end

local WRONG = { vectors = "gives no vectors", writes = "gives vectors, and writes nothing: POST /v1/embeddings" }

--- Answers POST /v1/completions (kind "completion"), /v1/chat/completions ("chat"), /v1/responses ("response") and
-- /v1/embeddings ("embedding").
function M.complete(call, kind)
  local keep, most_values = most_of(call, kind)
  local body, status, why, goes_on = call:body(keep, ("the body has %%d bytes: for the longest prompts that the models "
    .. "take, %d are enough"):format(math.min(keep, 2 ^ 53)))
  if not body then
    return call:fail(status, M.error(status, why), not goes_on, status == 429 and 1 or nil)
  end
  local function refused(r) return call:fail(400, M.error(400, r.param .. ": " .. r.why, r.param)) end
  local ok, request = pcall(read, kind, body, most_values)
  body = nil -- luacheck: ignore 311
  if not ok then
    if type(request) ~= "table" then error(request, 0) end
    return refused(request)
  end
  local model = call.models[request.model]
  call.model = model and model.name
  if not model or model.signature and not model.signature.steps then
    return call:fail(404, M.error(404, ("there is no language model '%s'"):format(request.model), "model"))
  end
  local what = kind == "embedding" and "vectors" or "writes"
  local can = model.signature and model.signature[what]
  if model.signature and (can == false or can == nil and what == "vectors") then
    return call:fail(400, M.error(400, ("model: '%s' %s"):format(request.model, WRONG[what]), "model"))
  end
  local most = model.signature and model.signature.max_tokens
  if most and request.max_tokens and request.max_tokens > most then
    return call:fail(400, M.error(400, ("max_tokens: the model takes at most %d"):format(most), "max_tokens"))
  end
  local fits, large = pcall(check_size, model, request)
  if not fits then return refused(large) end
  call.request:leave_turn()
  local entry, code, message, retry = model:begin(request)
  if not entry then return call:fail(code, M.error(code, message), false, retry) end
  if kind == "response" then
    return responses[request.stream and "stream" or "whole"](call, model, request, entry, { encode = encode,
      EMPTY = EMPTY, STREAM = STREAM, next_piece = next_piece, fail = fail, note_first = note_first,
      note_tokens = note_tokens, calls_in = calls_in, chat_logprobs = chat_logprobs })
  end
  local answer = kind == "embedding" and answer_vectors or request.stream and answer_stream or answer_whole
  return answer(call, model, request, entry)
end

local function described(call, name)
  local signature = call.models[name] and call.models[name].signature
  return signature and signature.steps and { id = name, object = "model", created = call.started, owned_by = "moth" }
end

--- Answers GET /v1/models.
function M.list(call)
  local data = {}
  for _, name in ipairs(call.names) do data[#data + 1] = described(call, name) or nil end
  return call:answer(200, encode { object = "list", data = #data > 0 and data or EMPTY })
end

--- Answers GET /v1/models/name.
function M.retrieve(call, name)
  local model = described(call, name)
  if model then return call:answer(200, encode(model)) end
  return call:fail(404, M.error(404, ("there is no language model '%s'"):format(name), "model"))
end

return M
