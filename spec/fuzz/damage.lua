--- Damages bytes: as such, as JSON (values for others, deep nesting, huge numbers) and as protocol buffers (field
-- numbers, wire types, lengths, varints). The latter two keep the form whole, so that what lies behind a parser is
-- reached. Choices come of a Chance.
local M = {}

-- ---- bytes ----------------------------------------------------------------------------------------------

local long = { "\255\255\255\255\255\255\255\255\127", "\255\255\255\255\7", "\128\128\128\128\128",
  "\0\0\0\0\0\0\0\128", "\255\255\255\255", "99999999999999999999" }

local changes = {
  function(c, s) return s:sub(1, c:int(0, #s)) end,
  function(c, s) return s .. s:sub(c:int(0, #s)) end,
  function(c, s)
    local at = c:int(0, #s)
    return s:sub(1, at) .. string.char(c:pick({ 0, 1, 127, 128, 255, c:int(0, 255) })) .. s:sub(at + 2)
  end,
  function(c, s) -- one more or less: lengths, sizes, types
    local at = c:int(1, math.max(#s, 1))
    return s:sub(1, at - 1) .. string.char(((s:byte(at) or 0) + c:pick({ 1, -1, 8, -8 })) % 256) .. s:sub(at + 1)
  end,
  function(c, s)
    local at = c:int(0, #s)
    return s:sub(1, at) .. c:pick(long) .. s:sub(at + 2)
  end,
  function(c, s)
    local at, from = c:int(0, #s), c:int(0, #s)
    return s:sub(1, at) .. s:sub(from, from + c:int(0, 200)) .. s:sub(at + 1)
  end,
  function(c, s)
    local at = c:int(0, #s)
    return s:sub(1, at) .. s:sub(at + c:int(0, 8))
  end,
}

--- The bytes with one piece changed.
function M.bytes(c, s) return c:pick(changes)(c, s) end

-- ---- JSON -----------------------------------------------------------------------------------------------

-- The places { from, to, "key", "member" or nil } of all values of a JSON text, of its keys, and of whole members.
local function places_of(text)
  local list, at, value = {}, 1, nil
  local function space() at = text:find("%S", at) or #text + 1 end
  local function note(from, kind) list[#list + 1] = { from, at - 1, kind } end
  local function word(kind)
    local from = at
    at = at + 1
    while text:sub(at, at) ~= '"' do at = at + (text:sub(at, at) == "\\" and 2 or 1) end
    at = at + 1
    note(from, kind)
  end
  local function items(close, item)
    at = at + 1
    space()
    while text:sub(at, at) ~= close do
      item()
      space()
      if text:sub(at, at) == "," then at = at + 1 end
      space()
    end
    at = at + 1
  end
  local function member()
    local from = at
    word("key")
    space()
    at = at + 1 -- the colon
    value()
    note(from, "member")
  end
  function value()
    space()
    local from, first = at, text:sub(at, at)
    if first == '"' then return word() end
    if first == "{" then items("}", member)
    elseif first == "[" then items("]", value)
    else at = text:find("[^%w.+-]", at) or #text + 1
    end
    return note(from)
  end
  value()
  return list
end

--- A JSON text that json() can damage.
function M.json_seed(text) return { text = text, places = places_of(text) } end

local values = { "0", "1", "-1", "2", "0.5", "-0", "1e5", "255", "256", "65536", "2147483648", "4294967296",
  "9007199254740993", "99999999999999999999", "-9223372036854775808", "1e308", "1e999", "-1e999", "5e-324", "NaN",
  "Infinity", "0x10", "1.", "null", "true", "false", "[]", "{}", '""', '"x"', '"a\\u0000b"', '"\\ud800"', '"\\uffff"',
  '"\255"', '"\240\159\152\128"', "[null]", "[[]]", "[{}]", '{"":0}', "[1,[2],{}]", '"' .. ("x"):rep(5000) .. '"',
  ("["):rep(30) .. ("]"):rep(30), ("["):rep(99) .. ("]"):rep(99), ("["):rep(3000), ('{"a":'):rep(70) .. "1"
  .. ("}"):rep(70) }

local function piece(seed, place) return seed.text:sub(place[1], place[2]) end

local spare = { key = '"x"', member = '"x":1' }
-- like: a text that begins as the other should, a string, a list, an object.
local function other(c, seeds, kind, like)
  for _ = 1, 12 do
    local seed = c:pick(seeds)
    local place = c:pick(seed.places)
    if place[3] == kind and (not like or seed.text:byte(place[1]) == like:byte()) then return piece(seed, place) end
  end
  return spare[kind] or "1"
end

local small = { "0", "1", "2", "3", "-1", "4", "7", "64", "1000000", "2147483647", "1099511627776", "0.5" }

--- A seed's text with one to three of its values or members doubled, left out, or for others, of any of the seeds.
function M.json(c, seed, seeds)
  local text, last = seed.text, #seed.text + 1
  local chosen = {}
  for i = 1, c:int(1, 3) do chosen[i] = c:pick(seed.places) end
  table.sort(chosen, function(a, b) return a[1] > b[1] end)
  for _, place in ipairs(chosen) do
    if place[2] < last then
      local old, n = piece(seed, place), c:int(10)
      local new
      if place[3] == "key" then new = other(c, seeds, "key")
      elseif place[3] then
        new = n <= 3 and "" or n <= 6 and old .. "," .. other(c, seeds, "member") or other(c, seeds, "member")
      elseif n <= 2 then new = c:pick(values)
      elseif n <= 5 then new = old:find("^[-%d]") and c:pick(small) or other(c, seeds, nil, old)
      elseif n == 6 and old:find("^%[.*%S.*%]$") then new = "[" .. old:sub(2, -2) .. "," .. old:sub(2, -2) .. "]"
      elseif n == 7 then new = "[" .. old .. "]"
      elseif n == 8 then new = old .. "," .. old
      else new = other(c, seeds)
      end
      local from, to = place[1] - 1, place[2] + 1
      if new == "" and text:sub(to, to) == "," then to = to + 1
      elseif new == "" and text:sub(from, from) == "," then from = from - 1
      end
      text, last = text:sub(1, from) .. new .. text:sub(to), place[1]
    end
  end
  return text
end

-- ---- protocol buffers -----------------------------------------------------------------------------------

local function varint(n)
  local out = ""
  while n >= 128 do
    out, n = out .. string.char(n % 128 + 128), math.floor(n / 128)
  end
  return out .. string.char(n)
end

-- The fields of a message: { field, wire, raw } or { field, 2, fields of a message }; nil: it is none.
local function fields_of(s, depth, nodes)
  local list, at, own = {}, 1, {}
  local function number()
    local n, factor = 0, 1
    while true do
      local b = s:byte(at)
      if not b or factor > 2 ^ 63 then return nil end
      at, n, factor = at + 1, n + b % 128 * factor, factor * 128
      if b < 128 then return n end
    end
  end
  while at <= #s do
    local key = number()
    if not key or key < 8 or key >= 8 * 64 then return nil end
    local node = { field = math.floor(key / 8), wire = key % 8 }
    local from = at
    if node.wire == 0 then
      if not number() then return nil end
    elseif node.wire == 1 or node.wire == 5 then
      at = at + (node.wire == 1 and 8 or 4)
    elseif node.wire == 2 then
      local n = number()
      if not n then return nil end
      from, at = at, at + n
    else
      return nil
    end
    if at > #s + 1 then return nil end
    node.raw = s:sub(from, at - 1)
    own[#own + 1], list[#list + 1] = node, node
    if node.wire == 2 and depth < 20 and #node.raw > 1 then node.inner = fields_of(node.raw, depth + 1, own) end
  end
  for _, node in ipairs(own) do nodes[#nodes + 1] = node end
  return list
end

--- A message that protobuf() can damage.
function M.protobuf_seed(bytes)
  local nodes = {}
  return { text = bytes, fields = assert(fields_of(bytes, 0, nodes), "no protocol buffer"), nodes = nodes }
end

local write

local function write_field(node, changed, plain)
  local change = not plain and changed[node]
  if change then return change(node) end
  if node.wire ~= 2 then return varint(node.field * 8 + node.wire) .. node.raw end
  local raw = node.inner and write(node.inner, changed) or node.raw
  return varint(node.field * 8 + 2) .. varint(#raw) .. raw
end

function write(fields, changed)
  local parts = {}
  for i, node in ipairs(fields) do parts[i] = write_field(node, changed) end
  return table.concat(parts)
end

local numbers = { "\0", "\1", "\2", "\3", "\7", "\11", "\16", "\127", "\128\1", "\255\255\3", "\255\255\255\255\7",
  "\128\128\128\128\8", "\128\128\128\128\128\128\4", ("\255"):rep(7) .. "\127", ("\255"):rep(9) .. "\1",
  ("\128"):rep(9) .. "\1", "\254" .. ("\255"):rep(8) .. "\1" }
local broken = { ("\255"):rep(10) .. "\1", ("\255"):rep(3), "\255\255\255\255\7", ("\255"):rep(9) .. "\1" }

local function key(field, wire) return varint(field * 8 + wire) end
local function with_length(field, raw) return key(field, 2) .. varint(#raw) .. raw end

-- How a field is written instead; `from` is another one.
local ways = {
  function(c, node, from) -- another value
    if node.wire == 0 then return key(node.field, 0) .. c:pick(numbers) end
    return node.wire == 2 and with_length(node.field, from.raw) or key(node.field, node.wire) .. node.raw:reverse()
  end,
  function() return "" end,
  function(_, _, _, plain) return plain() .. plain() end,
  function(c, node) -- another field
    return node.wire == 2 and with_length(c:int(1, 30), node.raw) or key(c:int(1, 30), node.wire) .. node.raw
  end,
  function(_, _, from) return write_field(from, {}, true) end,
  function(c, node)
    if node.wire ~= 2 then return key(node.field, node.wire) .. (node.raw:gsub("^.", "\1")) end
    return with_length(node.field, M.bytes(c, node.raw))
  end,
  function(c, node, _, plain) -- itself within itself
    if node.wire ~= 2 then return plain() .. key(node.field, 0) .. c:pick(numbers) end
    local raw = plain()
    for _ = 1, c:pick({ 2, 10, 70 }) do raw = with_length(node.field, raw) end
    return raw
  end,
  function(c, _, from, plain) return plain() .. with_length(c:int(1, 30), from.raw) end,
  function(c, node) -- another wire type, a wrong length, a number without an end
    if c:one_in(2) then return key(node.field, c:int(0, 7)) .. node.raw end
    return key(node.field, node.wire) .. (node.wire == 2 and c:pick(numbers) or c:pick(broken)) .. node.raw
  end,
}

local function field_change(c, seeds, changed)
  return function(node)
    local n = c:int(24)
    return ways[n <= 8 and 1 or n <= 23 and 2 + n % 7 or 9](c, node, c:pick(c:pick(seeds).nodes), function()
      return write_field(node, changed, true)
    end)
  end
end

--- A seed's bytes with one to three of its fields changed, at any depth, by those of any of the seeds.
function M.protobuf(c, seed, seeds)
  local changed = {}
  for _ = 1, c:int(1, 3) do changed[c:pick(seed.nodes)] = field_change(c, seeds, changed) end
  return write(seed.fields, changed)
end

return M
