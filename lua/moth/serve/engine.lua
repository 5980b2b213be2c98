--- The process that holds one model of a server. It reads frames (frames.lua) from its standard input, a socket, and
-- answers on it; it ends with the front. A plain loop: no coroutines, no HTTP.
--
-- What computes is a Lua module that the server's description of the model names,
-- { engine = "moth.serve.program", options = { … plain data … } }. It has one function,
--
--     load(options) -> object              -- raises an error that says what is wrong with the model
--
-- and the object is one of two kinds:
--
-- (1) Batches: all requests of a batch are computed by one call (moth.serve.program).
--
--     object.signature = { platform = "moth_export", inputs = { { name, dtype, shape } }, outputs = { … },
--       batch = { min =, max = } or nil }  -- dtypes are moth's names; in a shape -1 is any size, the batch's is first
--     object:run(inputs, rows) -> outputs  -- lists of tensors, in the order of the signature; rows: of the batch
--     object:warm()                        -- may be nil: one call of its own before the first request
--
-- (2) Steps: requests join and leave while others go on (language models: moth.llm.engine).
--
--     object.signature = { platform = "moth_llm", steps = true, max_tokens = n, writes = false (an encoder),
--       vectors = { dimensions, max_tokens, max_bytes } (it answers /v1/embeddings), … }
--     object:add(id, request)              -- request: the fields of an OpenAI request, checked by openai.lua; what it
--                                          --   raises is the client's error 400: error("[llm] …", 0)
--     object:cancel(id)                    -- its client is gone; an unknown id is nothing
--     object:step(emit) -> busy            -- one step of all; false: nothing to do until the next add
--     object:state() -> { name = number }  -- for /metrics, may be nil: { blocks_used =, new_tokens_total =, … }
--
--   emit(id, piece) sends a part of an answer; the request is over with the piece that has done = true:
--     { index = 0 (which answer), text = "…" (whole UTF-8), tokens = its count,
--       logprobs = { { token = "…", logprob = x, top = { { token, logprob } … } } … }, where they were asked for,
--       finish_reason = "stop", "length" or "error", with an index's last piece,
--       done = true, prompt_tokens = n, completion_tokens = n  -- with the request's last piece
--       error = "…", status = 500 }        -- instead of all others: the request has failed
--   of kind = "embedding": { index = 0 (which text), vector = base64 of float32, done, prompt_tokens }
--
-- request of (2): kind = "completion", "chat" or "embedding" (prompts, dimensions); prompt (a string or a list of token
-- ids), prompts (a list of several: each has n answers, one prompt's behind the other's) or messages
-- { { role, content } }; max_tokens, temperature, top_p, seed, stop (a list), n, logprobs (a count or nil).
--
-- Payloads. BATCH: u32 size of a JSON header, header, bytes of the tensors. The header has rows = { of each request },
-- batched = whether their tensors are joined along the first dimension, inputs = { { dtype, shape } }. RESULT likewise:
-- outputs = { { dtype, shape, bytes } }, seconds, errors = { ["2"] = "…" } of requests that failed and have no rows.
local ffi = require "ffi"
local check = require "moth.utils.check"
local frames = require "moth.serve.frames"
local now = require("moth.utils.system").now

local M = {}

local function json()
  local ok, cjson = pcall(require, "cjson")
  if not ok then check.fail("[serve] needs lua-cjson (Debian: lua-cjson)") end
  return cjson
end

-- A message without the place that raised it: it may go to a client.
local function plain(message)
  return (tostring(message):gsub("^[^\n:]-%.lua:%d+: ", ""):gsub("^%(command line%):%d+: ", ""):match("^[^\n]*"))
end

-- ---- batches -----------------------------------------------------------------------------------------

--- Writes a header and parts into one payload.
function M.pack(header, parts)
  local text = json().encode(header)
  local size = ffi.new("uint32_t[1]", #text)
  local out = { ffi.string(size, 4), text }
  for i, part in ipairs(parts) do out[i + 2] = part end
  return out
end

--- The header of a payload, and a pointer to what is behind it with its size.
function M.unpack(at, size)
  local n = size >= 4 and tonumber(ffi.cast("uint32_t *", at)[0]) or size
  if n + 4 > size then check.fail("[serve] a frame is damaged") end
  return json().decode(ffi.string(at + 4, n)), at + 4 + n, size - 4 - n
end

-- Tensors of a batch's bytes.
local function tensors_of(header, at, size)
  local B = require "moth_lua"
  local list, from = {}, at
  for i, input in ipairs(header.inputs) do
    local t = B.ops.empty(input.shape, { dtype = input.dtype })
    local bytes = t:numel() * t:element_size()
    if from + bytes > at + size then check.fail("[serve] a batch has too few bytes") end
    ffi.copy(ffi.cast("void *", t:data_ptr()), from, bytes)
    list[i], from = t, from + bytes
  end
  return list
end

local function bytes_of(t)
  local plain_one = t:detach():to("cpu"):contiguous()
  return ffi.string(ffi.cast("void *", plain_one:data_ptr()), plain_one:numel() * plain_one:element_size())
end

-- Runs each request of a batch by itself, after the batch has failed.
local function run_apart(object, inputs, header)
  local errors, good, at = {}, {}, 0
  for i, rows in ipairs(header.rows) do
    local own = {}
    for k, t in ipairs(inputs) do own[k] = t:narrow(1, at + 1, rows):contiguous() end
    at = at + rows
    local ok, outputs = pcall(object.run, object, own, rows)
    if ok then
      good[#good + 1] = outputs
    else
      io.stderr:write(tostring(outputs), "\n")
      errors[tostring(i)] = plain(outputs)
    end
  end
  if #good == 0 then return {}, errors end
  local B, joined = require "moth_lua", {}
  for k = 1, #good[1] do
    local parts = {}
    for i, outputs in ipairs(good) do parts[i] = outputs[k] end
    joined[k] = #parts == 1 and parts[1] or B.ops.cat(parts, 1)
  end
  return joined, errors
end

-- What RESULT holds for a batch.
local function answer(object, header, at, size)
  local started = now()
  local inputs = tensors_of(header, at, size)
  local ok, outputs = pcall(object.run, object, inputs, header.batched and inputs[1]:size(1) or 1)
  local errors = {}
  if not ok then
    if #header.rows > 1 then
      outputs, errors = run_apart(object, inputs, header)
    else
      io.stderr:write(tostring(outputs), "\n")
      outputs, errors = {}, { ["1"] = plain(outputs) }
    end
  end
  local out, parts = {}, {}
  for i, t in ipairs(outputs) do
    parts[i] = bytes_of(t)
    out[i] = { dtype = t:dtype().name, shape = t:size(), bytes = #parts[i] }
  end
  return M.pack({ outputs = out, errors = errors, seconds = now() - started }, parts)
end

local function serve_batches(object, channel)
  while true do
    local kind, id, at, size = channel:receive()
    if not kind then return end
    if kind == frames.BATCH and not channel:send(frames.RESULT, id, answer(object, M.unpack(at, size))) then return end
  end
end

-- ---- steps -------------------------------------------------------------------------------------------

local TURN = 0.05 -- seconds for which requests are taken in while others wait for their next token
local GARBAGE = 16384 -- KB
local LARGE = 2 ^ 14 -- bytes of a request that waits until all smaller ones are taken: one of them in a turn

local function serve_steps(object, channel)
  local cjson = json()
  local told, busy, gone = 0, false, false
  local function emit(id, piece)
    told = now()
    if not channel:send(frames.PIECE, id, cjson.encode(piece)) then gone = true end
  end
  local later = {}
  local function add(id, text)
    local ok, message = pcall(object.add, object, id, cjson.decode(text))
    if ok then
      busy = true
    else
      emit(id, { error = plain(message), status = 400, done = true })
    end
  end
  local function take(kind, id, at, size)
    if kind == frames.CANCEL then
      for i, one in ipairs(later) do
        if one[1] == id then return table.remove(later, i) end
      end
      object:cancel(id)
    elseif kind == frames.REQUEST and size > LARGE then
      later[#later + 1] = { id, ffi.string(at, size) }
    elseif kind == frames.REQUEST then
      add(id, ffi.string(at, size))
    end
  end
  local kept = collectgarbage "count"
  while not gone do
    local since
    repeat -- what waits, but not for long: others have their turn; without work, until something comes
      local kind, id, at, size = channel:receive(not busy and #later == 0 and 3600 or 0)
      if not kind and id == "closed" then return end
      since = since or now()
      if kind then take(kind, id, at, size) end
      if collectgarbage "count" > 1.5 * kept + GARBAGE then -- refused requests leave much behind
        collectgarbage()
        kept = collectgarbage "count"
      end
    until (busy or #later > 0) and (not kind or now() - since > TURN)
    if later[1] then add(unpack(table.remove(later, 1))) end
    busy = object:step(emit)
    if now() - told > 0.5 or not busy then
      told = now()
      channel:send(frames.ALIVE, 0, cjson.encode(object.state and object:state() or {}))
    end
  end
end

-- ---- the process -------------------------------------------------------------------------------------

pcall(ffi.cdef, [[
int moth_prctl(int what, unsigned long a, unsigned long b, unsigned long c, unsigned long d) __asm__("prctl");
int moth_getppid(void) __asm__("getppid"); int moth_unshare(int flags) __asm__("unshare");
int moth_dup(int fd) __asm__("dup"); int moth_dup2(int fd, int to) __asm__("dup2");
int moth_open(const char *path, int flags, ...) __asm__("open");]])
local DIES_WITH_PARENT, KILL = 1, 9
local NEWUSER, NEWNET = 0x10000000, 0x40000000

-- The process dies with the front, and has no network where the system lets it give that up.
local function confine(description)
  ffi.C.moth_prctl(DIES_WITH_PARENT, KILL, 0, 0, 0)
  if ffi.C.moth_getppid() ~= description.parent then os.exit(1) end
  if description.network then return end
  if ffi.C.moth_unshare(NEWNET) ~= 0 and not description.cuda then ffi.C.moth_unshare(NEWUSER + NEWNET) end
end

--- The engine's whole life: fd is its socket, description what the front sent as text of JSON.
function M.run(fd, description)
  local channel = frames.channel(fd, frames.block)
  local cjson = json()
  description = cjson.decode(description)
  confine(description)
  local moth = require "moth"
  if description.threads then moth.set_num_threads(description.threads) end
  local ok, object = xpcall(function()
    local loaded = require(description.engine).load(description.options)
    if loaded.warm then loaded:warm() end
    return loaded
  end, function(message)
    local text = plain(message)
    if not text:find "^%[[%w_.]+%] " then io.stderr:write(debug.traceback(tostring(message), 2), "\n") end -- no refusal
    return text
  end)
  if not ok then
    channel:send(frames.FAILED, 0, object)
    return false
  end
  channel:send(frames.READY, 0, cjson.encode(object.signature))
  moth.no_grad(function() (object.signature.steps and serve_steps or serve_batches)(object, channel) end)
  return true
end

--- `moth -e 'require("moth.serve.engine").main()'`: the socket is descriptor 0, whose place /dev/null takes.
function M.main()
  local fd, null = ffi.C.moth_dup(0), ffi.C.moth_open("/dev/null", 0)
  ffi.C.moth_dup2(null, 0)
  io.stdout:setvbuf "line"
  if not M.run(fd, os.getenv "MOTH_SERVE_ENGINE") then os.exit(1) end
end

return M
