--- Messages of Jupyter's protocol (5.3): parts of a ZeroMQ message, signed by HMAC-SHA256.
-- https://jupyter-client.readthedocs.io/en/stable/messaging.html
local bit = require "bit"
local cjson = require "cjson.safe"
local B = require "moth_lua"
local system = require "moth.utils.system"
local unicode = require "moth.data.unicode"

local M = {}

local DELIMITER, BLOCK = "<IDS|MSG>", 64

local function bytes_of(hex) return (hex:gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end)) end

local function xored(key, byte)
  return (key:gsub(".", function(c) return string.char(bit.bxor(c:byte(), byte)) end))
end

--- The signature of some texts: hexadecimal; "" without a key.
function M.sign(key, texts)
  if key == "" then return "" end
  if #key > BLOCK then key = bytes_of(B.sha256(key)) end
  key = key .. ("\0"):rep(BLOCK - #key)
  return B.sha256(xored(key, 0x5c) .. bytes_of(B.sha256(xored(key, 0x36) .. table.concat(texts))))
end

--- In what is sent, a list without elements; a table without fields is an object.
M.EMPTY = "\1[]"

local function encode(value) return (cjson.encode(value):gsub('"\\u0001%[%]"', "[]")) end

--- What no other message has: 32 hexadecimal digits.
M.id = system.random_digits

--- A message from its parts: { identities, header, parent, content, raw_header }, or nil and why.
function M.parse(key, parts)
  local at
  for i, part in ipairs(parts) do
    if part == DELIMITER then at = i break end
  end
  if not at or #parts < at + 5 then return nil, "no message of Jupyter's" end
  local texts = { unpack(parts, at + 2, at + 5) }
  if M.sign(key, texts) ~= parts[at + 1] then return nil, "a message with another signature" end
  local header, content = cjson.decode(texts[1]), cjson.decode(texts[4])
  if type(header) ~= "table" or type(header.msg_type) ~= "string" or type(content) ~= "table" then
    return nil, "a message without header or content"
  end
  return { identities = { unpack(parts, 1, at - 1) }, header = header, raw_header = texts[1], content = content,
    type = header.msg_type }
end

--- The parts of a message of a type with this content, which answers `parent` (a parsed message, or nil).
-- identities: to whom, or the topic.
function M.parts(key, session, identities, kind, content, parent)
  local header = { msg_id = M.id(), session = session, username = "moth", version = "5.3", msg_type = kind,
    date = os.date("!%Y-%m-%dT%H:%M:%SZ") }
  local texts = { encode(header), parent and parent.raw_header or "{}", "{}", encode(content) }
  local parts = {}
  for _, id in ipairs(identities) do parts[#parts + 1] = id end
  parts[#parts + 1], parts[#parts + 2] = DELIMITER, M.sign(key, texts)
  for _, text in ipairs(texts) do parts[#parts + 1] = text end
  return parts
end

--- Positions in a text count characters of Unicode in the protocol: the bytes before character n.
function M.bytes_before(text, n)
  local at = 1
  while n > 0 and at <= #text do
    at = text:find("[^\128-\191]", at + 1) or #text + 1
    n = n - 1
  end
  return at - 1
end

--- The number of characters of a text.
function M.characters(text) return (select(2, text:gsub("[^\128-\191]", ""))) end

--- Text without bytes that are no UTF-8, which no message can have.
function M.valid(text)
  if not text:find "[\128-\255]" then return text end
  local out, at = {}, 1
  while at <= #text do
    local n, whole, none = unicode.character(text, at)
    out[#out + 1] = whole and not none and text:sub(at, at + n - 1) or "\239\191\189"
    at = at + n
  end
  return table.concat(out)
end

return M
