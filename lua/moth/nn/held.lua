--- Modules and parameters in a plain table of a field: `self.layers = {}`, then `self.layers[i] = nn.Linear(4, 4)`.
--
-- Where a module is walked, it registers such a table as a child of this class, under the field's name. Its entries
-- have the names that nn.ModuleList and nn.ParameterList give them: "layers.0" is layers[1]; a key that is a text is a
-- name itself, those in alphabetical order behind the positions. The table stays what forward reads; what is added to
-- it or taken from it later is found by the next walk. Tables within the table are held in the same way. Left alone
-- are what other fields of the module lead to (`self.both = { self.left, self.right }`), tables with a metatable, and
-- values that are neither module, parameter, buffer nor table.
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"
local Ordered = require "moth.nn.ordered"
local Buffer = require "moth.nn.buffer"
local ParameterDict -- loaded at first use, as it needs nn.Module

-- A search in a table of data (a vocabulary, say) ends after so many values of other kinds.
local PATIENCE = 1000

return function(Module, registry_of)
  local Held = class("table", Module)

  -- Tensors that stand in the place of parameters or buffers for a while (functional_call).
  local stand_ins = setmetatable({}, { __mode = "k" })

  local function kind_of(value) return registry_of(value) or stand_ins[value] end

  local function is_plain(t) return type(t) == "table" and getmetatable(t) == nil end

  local function search(t, seen)
    if seen[t] then return false end
    seen[t] = true
    for _, value in each(t) do
      local kind = type(value)
      if (kind == "table" or kind == "userdata") and kind_of(value) then return true end
      if seen.left <= 0 then return false end
      seen.left = seen.left - 1
      if kind == "table" and getmetatable(value) == nil and search(value, seen) then return true end
    end
    return false
  end

  --- Is t a plain table with a module, a parameter or a buffer in it, or in a table in it?
  function Held.holds(t) return is_plain(t) and search(t, { left = PATIENCE }) end

  --- Is m such a child?
  function Held.is(m) return rawget(m, "_of") ~= nil end

  local function note(m, set)
    if set[m] then return end
    set[m] = true
    for _, registry in ipairs { "_parameters", "_buffers" } do
      for _, t in each(m:registry(registry)) do set[t] = true end
    end
    for _, child in each(m:registry("_modules")) do
      if not Held.is(child) then note(child, set) end
    end
  end

  --- The set of modules, parameters and buffers that m's fields lead to without a table.
  function Held.known(m)
    local set = setmetatable({}, { __mode = "k" })
    for _, registry in ipairs { "_parameters", "_buffers" } do
      for _, t in each(rawget(m, registry)) do set[t] = true end
    end
    for _, child in each(rawget(m, "_modules")) do
      if not Held.is(child) then note(child, set) end
    end
    return set
  end

  --- The child for a table; path: its name in messages; above: the tables around it.
  function Held.of(t, path, above)
    local self = Held()
    above = above or {}
    rawset(self, "_of", t)
    rawset(self, "_path", path)
    rawset(self, "_above", setmetatable({ t, unpack(above) }, {}))
    rawset(self, "_keys", {})
    return self
  end

  local function name_of(self, key)
    if type(key) == "number" and key >= 1 and key == math.floor(key) then return ("%d"):format(key - 1) end
    if type(key) == "string" and key ~= "" and not key:find(".", 1, true) then return key end
    check.fail("%s: '%s' cannot name a module or parameter; a key is a position, from 1, or a name without dots. \z
      (A table with a metatable is not searched: setmetatable(t, {}))", self._path, tostring(key))
  end

  local function before(a, b)
    if type(a[1]) ~= type(b[1]) then return type(a[1]) == "number" end
    return a[1] < b[1]
  end

  local function is_above(self, t)
    for _, other in ipairs(self._above) do
      if rawequal(other, t) then return true end
    end
    return false
  end

  -- What the table holds now: { { key, value, registry }, … }
  local function entries(self)
    local out = {}
    for key, value in each(self._of) do
      local registry = (type(value) == "table" or type(value) == "userdata") and kind_of(value)
      if not registry and Held.holds(value) and not is_above(self, value) then registry = "_modules" end
      if registry and not self._known[value] then
        name_of(self, key)
        out[#out + 1] = { key, value, registry }
      end
    end
    table.sort(out, before)
    return out
  end

  -- The maps follow the table.
  local function follow(self)
    local maps = { _parameters = Ordered.new(), _modules = Ordered.new(), _buffers = Ordered.new() }
    local keys, same, counts = {}, true, { _parameters = 0, _modules = 0, _buffers = 0 }
    for _, entry in ipairs(entries(self)) do
      local key, value, registry = entry[1], entry[2], entry[3]
      local name = name_of(self, key)
      if keys[name] ~= nil then
        check.fail("%s: the keys %d and '%s' both mean '%s', as names count from 0", self._path, keys[name], key, name)
      end
      keys[name] = key
      local old = rawget(rawget(self, registry), name)
      if registry == "_modules" and not Module.is(value) then
        value = old and rawget(old, "_of") == value and old
          or Held.of(value, ("%s[%s]"):format(self._path, tostring(key)), self._above)
        if not Held.follow(value, self._known) then value, keys[name] = nil, nil end
      end
      same = same and old == value
      if value ~= nil then
        maps[registry][name] = value
        counts[registry] = counts[registry] + 1
      end
      if Buffer.is(value) then self._transient[name] = not Buffer.is_persistent(value) or nil end
    end
    for registry, n in each(counts) do same = same and Ordered.len(rawget(self, registry)) == n end
    rawset(self, "_keys", keys)
    if not same then
      for registry, map in each(maps) do rawset(self, registry, map) end
    end
    return next(keys) ~= nil
  end

  --- Reads the table again, but for what is known; returns whether there is anything in it.
  function Held.follow(self, known)
    rawset(self, "_known", known)
    return follow(self)
  end

  function Held:registry(name)
    follow(self)
    return rawget(self, name)
  end

  function Held:put_registered(registry, name, value)
    local old = rawget(rawget(self, registry), name)
    if old then stand_ins[old] = nil end
    if not registry_of(value) then stand_ins[value] = registry end
    rawset(rawget(self, registry), name, value)
    if not (registry == "_modules" and old and Held.is(old)) then rawset(self._of, self._keys[name], value) end
  end

  function Held.__index(self, key)
    if type(key) == "number" then return rawget(self, "_of")[key] end
    return Module.__index(self, key)
  end

  -- What is assigned to a name goes to the table.
  function Held.__newindex(self, key, value)
    if type(key) == "string" then
      local known = rawget(self, "_keys")[key]
      key = known ~= nil and known or key:find("^%d+$") and tonumber(key) + 1 or key
    end
    rawset(rawget(self, "_of"), key, value)
    follow(self)
  end

  function Held:extra_repr()
    ParameterDict = ParameterDict or require "moth.nn.parameter_dict"
    local lines = {}
    for name, p in Ordered.items(self:registry("_parameters")) do
      lines[#lines + 1] = ("(%s): %s"):format(name, ParameterDict.line(p))
    end
    return table.concat(lines, "\n")
  end

  return Held
end
