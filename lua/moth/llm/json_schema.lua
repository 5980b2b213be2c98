--- Grammars of JSON: of any value, and of the values that a JSON Schema describes; for serve's response_format.
--
-- A text of the grammar is valid by the schema, but not each valid text is of the grammar: properties come in the order
-- of `required`, then by name, without others than those that are listed; numbers have at most 16 digits before and
-- after the point; blanks are one space, or a line break and an indent. What could not be kept is refused by its place
-- in the schema; what describes only (title, description, default, examples, format, …) changes nothing.
local each = require "moth.each"
local tree = require "moth.lang.tree"

local M = {}

local MANY, DEEP = 4096, 64 -- items or characters that are counted; schemas in one another

local function refuse(at, what, ...) error(("%s: %s"):format(at, what:format(...)), 0) end

-- Any character of a string as JSON writes it: UTF-8 (RFC 3629), or an escape.
local function character(g)
  local tail = g:bytes "\128-\191"
  local function plain(first, second, n)
    local list = { g:bytes(first), second and g:bytes(second) or nil }
    for _ = 1, n do list[#list + 1] = tail end
    return g:seq(list)
  end
  local hex = g:bytes "0-9a-fA-F"
  local low = g:seq { g:text "\\u", g:bytes "dD", g:bytes "c-fC-F", hex, hex }
  return g:alt { g:bytes '^%z\1-\31"\\\128-\255', plain("\194-\223", nil, 1), plain("\224", "\160-\191", 1),
    plain("\225-\236\238-\239", nil, 2), plain("\237", "\128-\159", 1), plain("\240", "\144-\191", 2),
    plain("\241-\243", nil, 3), plain("\244", "\128-\143", 2), g:seq { g:text "\\", g:bytes '"\\/bfnrt' },
    g:seq { g:text "\\u", g:bytes "0-9a-cA-CefEF", hex, hex, hex },
    g:seq { g:text "\\u", g:bytes "dD", g:bytes "0-7", hex, hex },
    g:seq { g:text "\\u", g:bytes "dD", g:bytes "89abAB", hex, hex, low } }
end

local function string_of(g, least, most)
  return g:seq { g:text '"', g:rep(character(g), least, most), g:text '"' }
end

local function whole_number(g)
  local digit = g:bytes "0-9"
  return g:seq { g:rep(g:text "-", 0, 1), g:alt { g:text "0", g:seq { g:bytes "1-9", g:rep(digit, 0, 15) } } }
end
local function number(g)
  local digit = g:bytes "0-9"
  local power = g:seq { g:bytes "eE", g:rep(g:bytes "+-", 0, 1), g:rep(digit, 1, 2) }
  return g:seq { whole_number(g), g:rep(g:seq { g:text ".", g:rep(digit, 1, 16) }, 0, 1), g:rep(power, 0, 1) }
end

local function blank(g)
  return g:alt { g:text "", g:text " ", g:seq { g:text "\n", g:rep(g:text " ", 0, 64) },
    g:seq { g:text "\n", g:rep(g:text "\t", 0, 16) } }
end

-- open item , item … close; items: a node for what is between, or nil.
local function enclosed(g, open, items, close)
  local list = items and { g:text(open), blank(g), items, blank(g), g:text(close) }
    or { g:text(open), blank(g), g:text(close) }
  return g:seq(list)
end

local function comma(g) return g:seq { blank(g), g:text ",", blank(g) } end

local function list_of(g, item, least, most)
  if most == 0 then return enclosed(g, "[", nil, "]") end
  local more = g:rep(g:seq { comma(g), item }, math.max(least - 1, 0), most and most - 1)
  local some = enclosed(g, "[", g:seq { item, more }, "]")
  return least > 0 and some or g:alt { enclosed(g, "[", nil, "]"), some }
end

local function member(g, key, value) return g:seq { key, blank(g), g:text ":", blank(g), value } end

-- An object of any keys, each with such a value.
local function map_of(g, value)
  local one = member(g, string_of(g, 0), value)
  return g:alt { enclosed(g, "{", nil, "}"), enclosed(g, "{", g:seq { one, g:rep(g:seq { comma(g), one }, 0) }, "}") }
end

local function any(g)
  return g:rule("any", function()
    local value = any(g)
    return g:alt { map_of(g, value), list_of(g, value, 0), string_of(g, 0), number(g), g:text "true", g:text "false",
      g:text "null" }
  end)
end

--- Any object, as response_format's json_object asks.
function M.object(g) return map_of(g, any(g)) end

-- ---- schemas -----------------------------------------------------------------------------------------

local ignored = {}
for word in ("title description default examples deprecated readOnly writeOnly $schema $id $comment $anchor $defs "
  .. "definitions format contentEncoding contentMediaType discriminator"):gmatch "%S+" do ignored[word] = true end

local compile

-- The JSON type of a value that may be written as it is; nil: of a list or an object, of which cjson does not tell all.
local function kind_of(v)
  local kind = type(v)
  if kind == "userdata" then return "null" end
  return kind == "number" and (v == math.floor(v) and "integer" or "number") or kind ~= "table" and kind or nil
end

-- The values of enum or const that are of the schema's type.
local function constants(c, schema, at)
  local list = schema.enum or { schema.const }
  if type(list) ~= "table" or #list == 0 then refuse(at .. ".enum", "expected a list of values") end
  local kinds = type(schema.type) == "table" and schema.type or { schema.type }
  local out, wanted = {}, {}
  for _, kind in ipairs(kinds) do wanted[kind] = true end
  wanted.integer = wanted.integer or wanted.number
  for i, v in ipairs(list) do
    local kind = kind_of(v)
    if not kind then refuse(("%s.enum[%d]"):format(at, i - 1), "expected a text, a number, true, false or null") end
    if #kinds == 0 or wanted[kind] then out[#out + 1] = c.g:text(c.encode(v)) end
  end
  if #out == 0 then refuse(at, "none of its values is of its type") end
  return c.g:alt(out)
end

local function count_of(schema, name, at)
  local n = schema[name]
  if n == nil then return nil end
  if type(n) ~= "number" or n < 0 or n ~= math.floor(n) then refuse(at .. "." .. name, "expected a whole number") end
  if n > MANY then refuse(at .. "." .. name, "at most %d can be counted", MANY) end
  return n
end

local function object_of(c, schema, at)
  local g, given, required = c.g, schema.properties or {}, {}
  if type(given) ~= "table" then refuse(at .. ".properties", "expected an object") end
  local order = {}
  for i, name in ipairs(schema.required or {}) do
    if type(name) ~= "string" then refuse(("%s.required[%d]"):format(at, i - 1), "expected a name") end
    if not required[name] then order[#order + 1] = name end
    required[name] = true
  end
  for _, name in ipairs(tree.keys(given)) do
    if not required[name] then order[#order + 1] = name end
  end
  local rest = schema.additionalProperties
  if #order == 0 then
    if rest == false then return enclosed(g, "{", nil, "}") end
    return map_of(g, type(rest) == "table" and compile(c, rest, at .. ".additionalProperties") or any(g))
  end
  local members = {}
  for i, name in ipairs(order) do
    local value = given[name]
    if value == nil and rest == false then refuse(at .. ".required", "'%s' is none of properties", name) end
    if value == nil and type(rest) == "table" then value = rest end
    local inside = value == nil and any(g) or compile(c, value, at .. ".properties." .. tostring(name))
    members[i] = member(g, g:text(c.encode(name)), inside)
  end
  -- What comes from member i on; some: one was there.
  local function from(i, some)
    if i > #order then return g:text "" end
    return g:rule(("%s %s %d %s"):format(c.name, at, i, tostring(some)), function()
      local this = g:seq { some and comma(g) or g:text "", members[i], from(i + 1, true) }
      return required[order[i]] and this or g:alt { this, from(i + 1, some) }
    end)
  end
  return enclosed(g, "{", from(1, false), "}")
end

local function array_of(c, schema, at)
  local g, least, most = c.g, count_of(schema, "minItems", at) or 0, count_of(schema, "maxItems", at)
  if most and most < least then refuse(at, "maxItems is less than minItems") end
  if schema.prefixItems then refuse(at .. ".prefixItems", "is not supported") end
  local items = schema.items
  if type(items) == "table" and #items > 0 then refuse(at .. ".items", "expected a schema, not a list of them") end
  if items == false then return enclosed(g, "[", nil, "]") end
  return list_of(g, items == nil and any(g) or compile(c, items, at .. ".items"), least, most)
end

local types = {
  object = object_of, array = array_of,
  string = function(c, schema, at)
    local least, most = count_of(schema, "minLength", at) or 0, count_of(schema, "maxLength", at)
    if most and most < least then refuse(at, "maxLength is less than minLength") end
    return string_of(c.g, least, most)
  end,
  number = function(c) return number(c.g) end,
  integer = function(c) return whole_number(c.g) end,
  boolean = function(c) return c.g:alt { c.g:text "true", c.g:text "false" } end,
  null = function(c) return c.g:text "null" end,
}
-- The words that each type knows, beside those of all.
local words = { object = { "properties", "required", "additionalProperties" },
  array = { "items", "minItems", "maxItems" }, string = { "minLength", "maxLength" } }

local function resolve(c, ref, at)
  if type(ref) ~= "string" or ref:sub(1, 1) ~= "#" then
    refuse(at .. ".$ref", "only places in the schema itself are known")
  end
  local where = c.root
  for part in ref:sub(2):gmatch "/([^/]*)" do
    part = part:gsub("~1", "/"):gsub("~0", "~")
    where = type(where) == "table" and where[part] or nil
  end
  if where == nil then refuse(at .. ".$ref", "there is no %s", ref) end
  return where
end

local function alternatives(c, list, at)
  if type(list) ~= "table" or #list == 0 then refuse(at, "expected a list of schemas") end
  local out = {}
  for i, one in ipairs(list) do out[i] = compile(c, one, ("%s[%d]"):format(at, i - 1)) end
  return c.g:alt(out)
end

-- Refuses words of a schema that are none of `known`.
local function only(schema, known, at)
  for key in each(schema) do
    if not known[key] and not ignored[key] then refuse(at .. "." .. tostring(key), "is not supported here") end
  end
end

local function typed(c, schema, at)
  local kinds = schema.type
  if kinds == nil then
    kinds = {}
    for kind, list in each(words) do
      for _, word in ipairs(list) do
        if schema[word] ~= nil then kinds[#kinds + 1] = kind break end
      end
    end
    if #kinds == 0 then
      only(schema, {}, at)
      return any(c.g)
    end
    if #kinds > 1 then refuse(at, "give its type") end
  end
  if type(kinds) ~= "table" then kinds = { kinds } end
  local known, out = { type = true }, {}
  for i, kind in ipairs(kinds) do
    if not types[kind] then refuse(at .. ".type", "there is no type %s", tostring(kind)) end
    for _, word in ipairs(words[kind] or {}) do known[word] = true end
    out[i] = kind
  end
  only(schema, known, at)
  for i, kind in ipairs(out) do out[i] = types[kind](c, schema, at) end
  if #out == 0 then refuse(at .. ".type", "expected a type") end
  return c.g:alt(out)
end

function compile(c, schema, at)
  if schema == true then return any(c.g) end
  if type(schema) ~= "table" then refuse(at, "expected a schema") end
  c.depth = c.depth + 1
  if c.depth > DEEP then refuse(at, "more than %d schemas in one another", DEEP) end
  local out
  if schema["$ref"] ~= nil then
    only(schema, { ["$ref"] = true }, at)
    local ref = schema["$ref"]
    local target = resolve(c, ref, at)
    out = c.g:rule(c.name .. ref, function()
      c.depth = 0
      return compile(c, target, ref)
    end)
    c.refs[#c.refs + 1] = out
  elseif schema.enum ~= nil or schema.const ~= nil then
    only(schema, { [schema.enum ~= nil and "enum" or "const"] = true, type = true }, at)
    out = constants(c, schema, at)
  elseif schema.anyOf ~= nil then
    only(schema, { anyOf = true }, at)
    out = alternatives(c, schema.anyOf, at .. ".anyOf")
  elseif schema.allOf ~= nil then
    only(schema, { allOf = true }, at)
    if #schema.allOf ~= 1 then refuse(at .. ".allOf", "only one schema can be there") end
    out = compile(c, schema.allOf[1], at .. ".allOf[0]")
  elseif schema.oneOf ~= nil then
    only(schema, { oneOf = true }, at)
    if not schema.discriminator then
      refuse(at .. ".oneOf", "is supported with a discriminator only: write anyOf, where a value may be of several")
    end
    out = alternatives(c, schema.oneOf, at .. ".oneOf")
  else
    out = typed(c, schema, at)
  end
  c.depth = c.depth - 1
  return out
end

local compiled = 0

--- The node of the texts that a schema (a table, as cjson decodes it) describes. Raises "schema.place: why" as a string
-- for what it cannot keep. encode: a JSON writer.
function M.schema(g, schema, encode, at)
  compiled = compiled + 1
  local c = { g = g, root = schema, encode = encode, depth = 0, refs = {}, name = ("schema %d "):format(compiled) }
  local out = compile(c, schema, at)
  local i = 1
  while c.refs[i] do -- what they say is refused now, not in an answer's middle
    local rule = c.refs[i]
    if not rule.is then rule.is = rule.make() end
    i = i + 1
  end
  return out
end

return M
