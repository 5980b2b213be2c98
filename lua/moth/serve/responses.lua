--- OpenAI's path /v1/responses: a request becomes one of /v1/chat/completions (openai.lua), its answer a response,
-- whole or as events. Nothing is stored: a conversation comes as a whole with each request.
local each = require "moth.each"
local ordered = require "moth.utils.ordered_json"
local tools = require "moth.llm.tools"

local M = {}

local function null() return require("cjson").null end
local function is_absent(v) return v == nil or v == null() end

-- ---- requests ----------------------------------------------------------------------------------------

-- Content of an input item as a chat has it.
local function content_of(content)
  if type(content) ~= "table" then return content end
  local out = {}
  for i, part in ipairs(content) do
    local is_text = type(part) == "table"
      and (part.type == "input_text" or part.type == "output_text" or part.type == "text")
    out[i] = is_text and { type = "text", text = part.text } or part
  end
  return out
end

-- Messages of a chat for `input`, a text or a list of items.
local function messages_of(input, instructions, refuse)
  local out = {}
  if not is_absent(instructions) then out[1] = { role = "system", content = instructions } end
  if type(input) == "string" then
    out[#out + 1] = { role = "user", content = input }
    return out
  end
  if type(input) ~= "table" or #input == 0 then refuse("input", "expected a text or a list of items") end
  for i, item in ipairs(input) do
    local at, kind = ("input[%d]"):format(i - 1), type(item) == "table" and item.type
    if type(item) ~= "table" then refuse(at, "expected an object") end
    if is_absent(kind) or kind == "message" then
      out[#out + 1] = { role = item.role, content = content_of(item.content) }
    elseif kind == "function_call" then
      local call = { id = item.call_id, type = "function",
        ["function"] = { name = item.name, arguments = item.arguments } }
      local before = out[#out]
      if before and before.tool_calls then
        table.insert(before.tool_calls, call)
      else
        out[#out + 1] = { role = "assistant", tool_calls = { call } }
      end
    elseif kind == "function_call_output" then
      out[#out + 1] = { role = "tool", content = content_of(item.output), tool_call_id = item.call_id }
    elseif kind ~= "reasoning" then -- what a model thought before is not shown to it
      refuse(at .. ".type", "items of type %s are not supported here", tostring(kind))
    end
  end
  return out
end

-- The text of the tools as a chat has them, in which names keep their order.
local function tools_text(body)
  local list = {}
  for _, part in ipairs(ordered.parts(body)) do
    for _, tool in ipairs(part.name == "tools" and part.text:find "^%[" and ordered.parts(part.text) or {}) do
      local members = {}
      for _, m in ipairs(tool.text:find "^{" and ordered.parts(tool.text) or {}) do
        if m.name ~= "type" then
          members[#members + 1] = require("cjson").encode(m.name) .. ": " .. m.text
        end
      end
      list[#list + 1] = ('{"type": "function", "function": {%s}}'):format(table.concat(members, ", "))
    end
  end
  return "[" .. table.concat(list, ", ") .. "]"
end

--- What fields are called in a response's request, for errors.
M.names = { messages = "input", max_tokens = "max_output_tokens", response_format = "text.format",
  reasoning_effort = "reasoning.effort" }

-- What says nothing, or nothing that is done here.
local dropped = { store = true, metadata = true, user = true, service_tier = true, safety_identifier = true,
  prompt_cache_key = true, prompt_cache_retention = true, prompt_cache_options = true, parallel_tool_calls = true,
  truncation = function(v) return v == "disabled" end, background = function(v) return v == false end }
local same = { model = true, temperature = true, top_p = true, stream = true, stream_options = true, tools = true }

--- A chat's request for a decoded one of responses, and the text of its tools. refuse(param, why, …) raises.
function M.translate(given, body, refuse)
  local out = {}
  for name, v in each(given) do
    local drop = dropped[name]
    if v == null() or drop == true or name == "input" or name == "instructions" then -- luacheck: ignore 542
    elseif same[name] then
      out[name] = v
    elseif drop then
      if not drop(v) then refuse(name, "is not supported here") end
    elseif name == "max_output_tokens" then
      out.max_tokens = v
    elseif name == "include" then
      for _, what in ipairs(type(v) == "table" and v or { v }) do
        if what == "message.output_text.logprobs" then
          out.logprobs = true
        elseif what ~= "reasoning.encrypted_content" then
          refuse(name, "%s is not supported here", type(what) == "string" and what or "this")
        end
      end
    elseif name == "top_logprobs" then
      out.logprobs, out.top_logprobs = true, v
    elseif name == "previous_response_id" or name == "conversation" then
      refuse(name, "no responses are stored here: send the whole conversation as input")
    elseif name == "reasoning" and type(v) == "table" then
      for key, value in each(v) do
        if key ~= "effort" and value ~= null() then refuse("reasoning." .. key, "is not supported here") end
      end
      out.reasoning_effort = v.effort
    elseif name == "text" and type(v) == "table" then
      for key, value in each(v) do
        if key ~= "format" and key ~= "verbosity" then refuse("text." .. key, "is not supported here") end
        if key == "verbosity" then out.verbosity = value end
      end
      local f = v.format
      if type(f) == "table" and f.type == "json_schema" then
        f = { type = "json_schema", json_schema = { name = f.name, schema = f.schema, strict = f.strict,
          description = f.description } }
      end
      out.response_format = f
    elseif name == "tool_choice" then
      out.tool_choice = type(v) == "table" and v.type == "function"
        and { type = "function", ["function"] = { name = v.name } } or v
    else
      refuse(name, "is not supported here")
    end
  end
  if not is_absent(given.input) then out.messages = messages_of(given.input, given.instructions, refuse) end
  if type(out.tools) == "table" then
    local list = {}
    for i, tool in ipairs(out.tools) do
      local at = ("tools[%d]"):format(i - 1)
      if type(tool) ~= "table" or tool.type ~= "function" then
        refuse(at, "expected type function; tools of the server's own are not supported here")
      end
      list[i] = { type = "function", ["function"] = { name = tool.name, parameters = tool.parameters } }
    end
    out.tools = list
  end
  return out, out.tools and tools_text(body)
end

-- ---- answers -----------------------------------------------------------------------------------------

local count = 0
local function new_id(kind)
  count = count + 1
  return ("%s_%x%06x"):format(kind, os.time(), count % 2 ^ 24)
end

-- The response as it is so far.
local function response_of(request, P, id, status, output, piece)
  local usage
  if piece then
    local given, made = piece.prompt_tokens or 0, piece.completion_tokens or 0
    usage = { input_tokens = given, output_tokens = made, total_tokens = given + made,
      input_tokens_details = { cached_tokens = 0 }, output_tokens_details = { reasoning_tokens = 0 } }
  end
  return { id = id, object = "response", created_at = os.time(), status = status, model = request.model,
    output = #output > 0 and output or P.EMPTY, error = null(), usage = usage or null(),
    incomplete_details = status == "incomplete" and { reason = "max_output_tokens" } or null(),
    parallel_tool_calls = true, tools = P.EMPTY, tool_choice = "auto", temperature = request.temperature or 1,
    top_p = request.top_p or 1, truncation = "disabled", instructions = null(), previous_response_id = null(),
    max_output_tokens = request.max_tokens or null(), text = { format = { type = "text" } } }
end

-- Log probabilities of tokens as a chat has them, in a list that may be empty.
local function listed(P, tokens) return #tokens > 0 and P.chat_logprobs(tokens).content or P.EMPTY end

local function message(P, id, text, status, tokens)
  local part = { type = "output_text", text = text or "", annotations = P.EMPTY, logprobs = listed(P, tokens or {}) }
  return { type = "message", id = id, role = "assistant", status = status, content = text and { part } or P.EMPTY },
    part
end
local function call_item(call, status)
  return { type = "function_call", id = new_id "fc", call_id = call.id, name = call["function"].name,
    arguments = call["function"].arguments, status = status }
end

local function status_of(finish) return finish == "length" and "incomplete" or "completed" end

--- Answers with a whole response; P: what openai.lua lends.
function M.whole(call, model, request, entry, P)
  local texts, tokens, waited = {}, {}, {}
  while true do
    local piece, status, why = P.next_piece(call, entry, waited)
    if not piece then
      model:cancel(entry)
      return P.fail(call, status, why)
    end
    if piece.error then return P.fail(call, piece.status or 500, piece.error) end
    P.note_first(call, model, entry, waited)
    texts[#texts + 1] = piece.text
    for _, token in ipairs(request.logprobs and piece.logprobs or {}) do tokens[#tokens + 1] = token end
    if piece.done then
      P.note_tokens(call, model, piece)
      local calls, said = P.calls_in(request, table.concat(texts))
      local output, ends = {}, status_of(piece.finish_reason)
      if said ~= "" or not calls then output[1] = message(P, new_id "msg", said, ends, tokens) end
      for _, one in ipairs(calls or {}) do output[#output + 1] = call_item(one, "completed") end
      return call:answer(200, P.encode(response_of(request, P, new_id "resp", ends, output, piece)))
    end
  end
end

--- Answers with events.
function M.stream(call, model, request, entry, P)
  local id, waited, number, begun = new_id "resp", {}, -1, false
  local function event(kind, t)
    if not begun then
      begun = true
      if not call.request:begin(200, P.STREAM) then return false end
    end
    number = number + 1
    t.type, t.sequence_number = kind, number
    return call.request:write(("event: %s\ndata: %s\n\n"):format(kind, P.encode(t)))
  end
  local output, texts, held, own = {}, {}, "", nil
  local tokens, fresh = {}, {} -- their log probabilities; those that no event has had yet
  local function say(text) -- the next of the message, which begins with it
    if text == "" then return true end
    if not own then
      own = new_id "msg"
      local item, part = message(P, own, nil, "in_progress"), select(2, message(P, own, ""))
      event("response.output_item.added", { output_index = 0, item = item })
      event("response.content_part.added", { item_id = own, output_index = 0, content_index = 0, part = part })
    end
    texts[#texts + 1] = text
    local list = listed(P, fresh)
    fresh = {}
    return event("response.output_text.delta", { item_id = own, output_index = 0, content_index = 0, delta = text,
      logprobs = list })
  end
  local function ended(ends) -- the message
    local text = table.concat(texts)
    local item, part = message(P, own, text, ends, tokens)
    event("response.output_text.done", { item_id = own, output_index = 0, content_index = 0, text = text,
      logprobs = part.logprobs })
    event("response.content_part.done", { item_id = own, output_index = 0, content_index = 0, part = part })
    event("response.output_item.done", { output_index = 0, item = item })
    output[1] = item
  end
  local function called(one)
    local index, item = #output, call_item(one, "completed")
    local arguments = item.arguments
    item.arguments, item.status = "", "in_progress"
    event("response.output_item.added", { output_index = index, item = item })
    event("response.function_call_arguments.delta", { item_id = item.id, output_index = index, delta = arguments })
    event("response.function_call_arguments.done", { item_id = item.id, output_index = index, name = item.name,
      arguments = arguments })
    item.arguments, item.status = arguments, "completed"
    event("response.output_item.done", { output_index = index, item = item })
    output[#output + 1] = item
  end
  while true do
    local piece, status, why = P.next_piece(call, entry, waited)
    if not piece then
      model:cancel(entry)
      if begun then return call:ended(status) end
      return P.fail(call, status, why)
    end
    if piece.error then
      if not begun then return P.fail(call, piece.status or 500, piece.error) end
      event("error", { message = piece.error, code = "server_error", param = null() })
      call.request:finish()
      return call:ended(piece.status or 500)
    end
    P.note_first(call, model, entry, waited)
    local ok = true
    if not begun then
      event("response.created", { response = response_of(request, P, id, "in_progress", {}) })
      ok = event("response.in_progress", { response = response_of(request, P, id, "in_progress", {}) })
    end
    local said, calls = piece.text or "", nil
    for _, token in ipairs(request.logprobs and piece.logprobs or {}) do
      tokens[#tokens + 1], fresh[#fresh + 1] = token, token
    end
    if request.tools then
      local all = held .. said
      local sure = tools.sure(all)
      said, held = all:sub(1, sure), all:sub(sure + 1)
      if piece.done then
        local rest
        calls, rest = P.calls_in(request, held)
        said = said .. rest
      end
    end
    ok = say(said) and ok
    if ok and piece.done then
      P.note_tokens(call, model, piece)
      local ends = status_of(piece.finish_reason)
      if own then ended(ends) end
      for _, one in ipairs(calls or {}) do called(one) end
      event("response." .. ends, { response = response_of(request, P, id, ends, output, piece) })
      call.request:finish()
      return call:ended(200)
    end
    if not ok then
      model:cancel(entry)
      return call:ended(499)
    end
  end
end

return M
