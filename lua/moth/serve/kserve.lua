--- KServe's protocol, version 2: requests and answers in JSON and in its binary form, checked by the model's signature.
local ffi = require "ffi"
local values = require "moth.serve.values"
local each = require "moth.each"

local M = {}

local MAX_DEPTH = 64
local MOST = 2 ^ 31 -- elements
-- What a body of JSON may have, so that it is read within 10 ms or so: a list takes thirty times its bytes.
local LISTS, TEXTS, VALUES = 2 ^ 15, 2 ^ 15, 2 ^ 17
local LIGHT = 2 ^ 16 -- bytes of a body that is not looked at

-- Why a text of JSON would take long to read, or nil. values: how many it may have.
local function heavy(text, most)
  local p, n, i, lists, texts, commas = ffi.cast("const uint8_t *", text), #text, 0, 0, 0, 0
  while i < n do
    local c = p[i]
    if c == 34 then -- a text, up to its end
      texts, i = texts + 1, i + 1
      while i < n and p[i] ~= 34 do i = i + (p[i] == 92 and 2 or 1) end
    elseif c == 44 then
      commas = commas + 1
    elseif c == 91 or c == 123 then
      lists = lists + 1
    end
    i = i + 1
  end
  return lists > LISTS and ("more than %d lists and objects"):format(LISTS)
    or texts > TEXTS and ("more than %d texts and names"):format(TEXTS)
    or commas > most and ("more than %d values"):format(most) or nil
end

local decoder, null -- null: of cjson
--- The reader of JSON that clients send; gives nil and why. values: of how many a request may well be.
function M.decode(text, most)
  if not decoder then
    decoder, null = require("cjson.safe").new(), require("cjson").null
    decoder.decode_max_depth(MAX_DEPTH)
    decoder.decode_invalid_numbers(false)
  end
  local why = #text > LIGHT and heavy(text, math.max(VALUES, most or 0))
  if why then return nil, why end
  return decoder.decode(text)
end

-- ---- web pages ---------------------------------------------------------------------------------------

-- What pages can send to another origin without asking is not among them.
local body_types = { ["application/json"] = true, ["application/octet-stream"] = true }

--- Whether a web page may not ask, or something that looks like one: a status and why. origin, host: headers; allowed:
-- origins beside the server's own; kind: the Content-Type of a POST, if it has one.
function M.page(origin, host, allowed, kind)
  if origin and not (allowed["*"] or allowed[origin:lower()]) then
    local own = (host or ""):lower()
    if origin:lower() ~= "http://" .. own and origin:lower() ~= "https://" .. own then
      return 403, "a web page of another origin asks: allow_origins, --allow-origin"
    end
  end
  if kind and not body_types[kind:lower():match "^%s*([^;%s]*)"] then
    return 415, ("expected the header Content-Type: application/json, got '%s'"):format(M.short(kind, 100))
  end
end

-- ---- checks ------------------------------------------------------------------------------------------

-- A refusal: status 400, with the field's path. Raised as a table, caught in read.
local function refuse(path, ...) error({ path = path, why = (...):format(select(2, ...)) }, 0) end

--- A text shortened for a message, at a character's end.
function M.short(s, n)
  if #s <= n then return s end
  return (s:sub(1, n):gsub("[\192-\255][\128-\191]*$", "")) .. "…"
end

-- A value as a message shows it.
local function shown(v)
  if v == nil then return "nothing" end
  local ok, text = pcall(require("cjson").encode, v) -- no infinite numbers, which JSON may have as 1e999
  return M.short(type(v) == "string" and v or ok and text or tostring(v), 200)
end

local function fields(t, path, known)
  if type(t) ~= "table" or #t > 0 then refuse(path == "" and "body" or path, "expected an object") end
  for key in each(t) do
    if not known[key] then
      refuse(path == "" and shown(key) or path .. "." .. shown(key), "there is no such field")
    end
  end
end

local function shape_text(shape)
  local list = {}
  for i, n in ipairs(shape) do list[i] = ("%d"):format(n) end
  return "[" .. table.concat(list, ",") .. "]"
end

-- The shape of an input; its number of elements.
local function check_shape(shape, wanted, path)
  if type(shape) ~= "table" then refuse(path, "expected a list of sizes, %s", shape_text(wanted)) end
  local count, fits = 1, #shape == #wanted
  for i, n in ipairs(shape) do
    if type(n) ~= "number" or n < 0 or n ~= math.floor(n) or n > MOST then
      refuse(("%s[%d]"):format(path, i - 1), "expected a size")
    end
    count = count * n
    fits = fits and (wanted[i] == -1 or wanted[i] == n)
  end
  for key in each(shape) do
    if type(key) ~= "number" then refuse(path, "expected a list of sizes") end
  end
  if not fits then refuse(path, "expected %s, got %s", shape_text(wanted), shape_text(shape)) end
  if count > MOST then refuse(path, "%s is too large", shape_text(shape)) end
  return count
end

-- Input k's sizes with names: in their range, and equal wherever the name is.
local function check_dims(sig, k, shape, path, sizes)
  for _, d in ipairs(sig.dims or {}) do
    if d.input == k then
      local n, at = shape[d.at], ("%s[%d]"):format(path, d.at - 1)
      if n < d.min or d.max and n > d.max or n % (d.step or 1) ~= 0 then
        refuse(at, "expected %d to %s%s for %s, got %d", d.min, d.max and ("%d"):format(d.max) or "any",
          (d.step or 1) > 1 and (" in steps of %d"):format(d.step) or "", d.name, n)
      end
      if sizes[d.name] and sizes[d.name] ~= n then
        refuse(at, "%s is %d in another input, got %d", d.name, sizes[d.name], n)
      end
      sizes[d.name] = n
    end
  end
end

local INPUT = { name = true, shape = true, datatype = true, parameters = true, data = true }
local OUTPUT = { name = true, parameters = true }
local REQUEST = { id = true, parameters = true, inputs = true, outputs = true }

-- What would change the answer, or where it goes: not done here. Other parameters say nothing to a model.
local refused = { "classification", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size" }

-- The parameters of an input or an output: a table.
local function parameters_of(t, path)
  local own = t.parameters
  if own == nil or own == null then return {} end
  path = path .. ".parameters"
  if type(own) ~= "table" then refuse(path, "expected an object") end
  for _, name in ipairs(refused) do
    if own[name] ~= nil and own[name] ~= null then refuse(path .. "." .. name, "is not supported here") end
  end
  return own
end

-- The outputs that are asked for: a list of { k, binary }.
local function outputs_of(request, sig)
  local all = request.parameters and request.parameters.binary_data_output == true
  local list, by_name = {}, {}
  for k, output in ipairs(sig.outputs) do
    by_name[output.name] = k
    list[k] = { k = k, binary = all }
  end
  if request.outputs == nil then return list end
  if type(request.outputs) ~= "table" then refuse("outputs", "expected a list") end
  if next(request.outputs) == nil then return list end
  list = {}
  for i, output in ipairs(request.outputs) do
    local path = ("outputs[%d]"):format(i - 1)
    fields(output, path, OUTPUT)
    local k = by_name[output.name]
    if not k then refuse(path .. ".name", "there is no output '%s'", shown(output.name)) end
    local own = parameters_of(output, path)
    local binary = all
    if own.binary_data ~= nil then binary = own.binary_data == true end
    list[i] = { k = k, binary = binary }
  end
  return list
end

-- Long lists of numbers are read straight into a tensor's bytes: a text without them, and where they are. In their
-- place stands a text, by which an input's data is found again.
local LONG = 256 -- bytes of a text for which that is worth while

local function set_aside(text)
  if #text < LONG then return text, {} end
  local parts, found, from, to = {}, {}, 1, 1
  while true do
    local open = text:match('"data"[ \t\r\n]*:[ \t\r\n]*()%[', to)
    if not open then break end
    local stop, count = values.skip(text, open)
    if stop then
      local mark = ("\1data %d"):format(#parts)
      parts[#parts + 1] = ('%s"\\u0001data %d"'):format(text:sub(from, open - 1), #parts)
      found[mark] = { at = open, count = count }
      from = stop
    end
    to = stop or open
  end
  if #parts == 0 then return text, found end
  return table.concat(parts) .. text:sub(from), found
end

-- The bytes of an input's data.
local function elements(data, text, aside, dtype, count, path)
  local there = data ~= nil and aside[data]
  local function get()
    if there then return values.from_text(text, there.at, there.count, dtype, count) end
    return values.from_json(data, dtype, count)
  end
  local bytes, index, expected = get()
  if not bytes then refuse(index and ("%s[%d]"):format(path, index) or path, "%s", expected) end
  return bytes
end

local function read(sig, body, header_size)
  local text, rest = body, ""
  if header_size then
    local n = header_size:find("^%d+$") and tonumber(header_size)
    if not n or n > #body then
      refuse("Inference-Header-Content-Length", "expected a number up to the body's %d bytes", #body)
    end
    text, rest = body:sub(1, n), body:sub(n + 1)
  end
  local short, aside = set_aside(text)
  local request, why = M.decode(short)
  if type(request) ~= "table" then refuse("body", "is no JSON object%s", why and ": " .. why or "") end
  for key, value in each(request) do
    if value == null then request[key] = nil end
  end
  fields(request, "", REQUEST)
  if request.id ~= nil and type(request.id) ~= "string" then refuse("id", "expected a text") end
  if request.parameters ~= nil and type(request.parameters) ~= "table" then
    refuse("parameters", "expected an object")
  end
  if type(request.inputs) ~= "table" then refuse("inputs", "expected a list") end
  local by_name, inputs, parts, sizes, at = {}, {}, {}, {}, 0
  for k, input in ipairs(sig.inputs) do by_name[input.name] = k end
  for i, input in ipairs(request.inputs) do
    local path = ("inputs[%d]"):format(i - 1)
    fields(input, path, INPUT)
    local k = by_name[input.name]
    if not k then
      local names = {}
      for j, wanted in ipairs(sig.inputs) do names[j] = wanted.name end
      refuse(path .. ".name", "there is no input '%s'; there are: %s", shown(input.name), table.concat(names, " "))
    end
    if inputs[k] then refuse(path .. ".name", "'%s' is given twice", input.name) end
    local wanted = sig.inputs[k]
    local dtype = values.wire_name(wanted.dtype)
    if input.datatype ~= dtype then
      refuse(path .. ".datatype", "expected %s, got %s", dtype, shown(input.datatype))
    end
    local count = check_shape(input.shape, wanted.shape, path .. ".shape")
    check_dims(sig, k, input.shape, path .. ".shape", sizes)
    inputs[k] = { dtype = wanted.dtype, shape = input.shape, at = i - 1 }
    local size = parameters_of(input, path).binary_data_size
    if size ~= nil then
      local bytes = count * values.size(wanted.dtype)
      if input.data ~= nil then refuse(path .. ".data", "it is given in binary, too") end
      if size ~= bytes then
        refuse(path .. ".parameters.binary_data_size", "expected %d, got %s", bytes, shown(size))
      end
      if at + bytes > #rest then refuse(path, "the body ends before its data") end
      parts[k] = rest:sub(at + 1, at + bytes)
      if wanted.dtype == "bool" and parts[k]:find "[^%z\1]" then refuse(path, "expected bytes of 0 and 1 for BOOL") end
      at = at + bytes
    else
      parts[k] = elements(input.data, text, aside, wanted.dtype, count, path .. ".data")
    end
  end
  for k, input in ipairs(sig.inputs) do
    if not inputs[k] then refuse("inputs", "'%s' is missing", input.name) end
  end
  if at ~= #rest then refuse("body", "has %d bytes behind its last tensor", #rest - at) end
  local rows, key = 1, {}
  for k, input in ipairs(inputs) do
    local from = 1
    if sig.batch then rows, from = input.shape[1], 2 end
    key[k] = input.dtype .. table.concat(input.shape, "x", from)
  end
  if rows == 0 then key[#key + 1] = "empty" end -- computed without others
  return { inputs = inputs, parts = parts, rows = rows, key = table.concat(key, ";"),
    id = request.id, asked = outputs_of(request, sig) }
end

--- Reads a body. Gives an entry for Model:compute with id and asked, or nil and the message of a 400.
function M.read(sig, body, header_size)
  local ok, entry = pcall(read, sig, body, header_size)
  if ok then return entry end
  if type(entry) ~= "table" then error(entry, 0) end
  return nil, entry.path .. ": " .. entry.why
end

-- ---- answers -----------------------------------------------------------------------------------------

local function quote(text) return (require("cjson").encode(text)) end

--- The answer's body, and the size of its JSON where binary follows; nil and why it cannot be written.
function M.write(name, sig, entry, outputs)
  local list, parts = {}, {}
  for i, asked in ipairs(entry.asked) do
    local output, wanted = outputs[asked.k], sig.outputs[asked.k]
    local data
    if asked.binary then
      parts[#parts + 1] = output.bytes
      data = ('"parameters":{"binary_data_size":%d}'):format(#output.bytes)
    else
      local text = values.to_json(output.bytes, output.dtype)
      if not text then
        return nil, ("output '%s' has NaN or infinite elements, which JSON does not know: ask for it with binary_data")
          :format(wanted.name)
      end
      data = '"data":' .. text
    end
    list[i] = ('{"name":%s,"datatype":"%s","shape":%s,%s}'):format(quote(wanted.name), values.wire_name(output.dtype),
      shape_text(output.shape), data)
  end
  local text = ('{"model_name":%s,%s"outputs":[%s]}'):format(quote(name), entry.id
    and ('"id":%s,'):format(quote(entry.id)) or "", table.concat(list, ","))
  if #parts == 0 then return text end
  return text .. table.concat(parts), #text
end

--- The dtype of a signature's tensor that cannot be written on the wire; nil: there is none.
function M.unknown_dtype(sig)
  for _, list in ipairs { sig.inputs or {}, sig.outputs or {} } do
    for _, t in ipairs(list) do
      if not values.wire_name(t.dtype) then return t.dtype end
    end
  end
end

--- What GET /v2/models/N answers.
function M.metadata(name, sig)
  local function list(tensors)
    local out = {}
    for i, t in ipairs(tensors or {}) do
      out[i] = ('{"name":%s,"datatype":"%s","shape":%s}'):format(quote(t.name), values.wire_name(t.dtype),
        shape_text(t.shape))
    end
    return "[" .. table.concat(out, ",") .. "]"
  end
  return ('{"name":%s,"versions":["1"],"platform":%s,"inputs":%s,"outputs":%s}'):format(quote(name),
    quote(sig.platform), list(sig.inputs), list(sig.outputs))
end

return M
