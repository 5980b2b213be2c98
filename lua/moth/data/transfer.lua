--- Lua objects on their way into another Lua state: a dataset, a collate function and what hangs on them.
--
--     local graph = transfer.encode(value, "dataset")   -- plain tables, strings and tensors: a message can carry it
--     transfer.decode(graph)                            -- in the other state
--
-- What is a part of a module (a class, a function, the module itself) goes by its name and is looked up there by
-- require. Everything else is copied: tables with their metatables, objects, functions (their bytecode) with their
-- upvalues and with the globals that they read. What is shared here, a table in two places or an upvalue of two
-- functions, is shared there, too; tensors have the same elements in both. An object whose class has `worker_spec`
-- (a method that returns the name of a module, then plain arguments) is made anew by require(name)(arguments).
-- What can't be copied, such as an open file, is an error that says where it is.
local ffi = require "ffi"
local util = require "jit.util"
local B = require "moth_lua"
local class = require "moth.class"
local each = require "moth.each"

local M = {}

-- ---- names -------------------------------------------------------------------------------------------

local standard = {}
for name in ("_G string table math io os coroutine debug package bit ffi jit jit.util jit.opt jit.profile "
  .. "string.buffer table.new table.clear table.nkeys table.isarray thread.exdata"):gmatch("%S+") do
  standard[name] = true
end

local paths = {} -- of modules; false: require would not find it in a new state
local function path_of(name)
  if paths[name] == nil then
    paths[name] = package.searchpath(name, package.path) or package.searchpath(name, package.cpath) or false
  end
  return paths[name]
end

-- What goes by its name: object -> { module, field?, field? }. Fields that a script has put into a module do not: a
-- function must come from a module's file, and the functions of a table, too.
local function find_names()
  local names, sources = setmetatable({}, { __mode = "k" }), {}
  for name in each(package.loaded) do
    local path = not standard[name] and path_of(name)
    if path then sources["@" .. path] = true end
  end
  local function is_of_module(f)
    local info = debug.getinfo(f, "S")
    return info.what == "C" or sources[info.source]
  end
  local function add(value, module, first, second)
    local kind = type(value)
    if kind == "function" and not is_of_module(value) then return false end
    if kind ~= "function" and kind ~= "table" and kind ~= "userdata" then return false end
    if kind == "table" and first then
      for _, v in each(value) do
        if type(v) == "function" and not is_of_module(v) then return false end
      end
    end
    local old = names[value]
    if not old or #old > (second and 3 or first and 2 or 1) then names[value] = { module, first, second } end
    return kind == "table"
  end
  for name, module in each(package.loaded) do
    if standard[name] or path_of(name) then
      local is_table = add(module, name)
      for k, v in each(is_table and module or {}) do
        local plain = standard[name] and type(v) == "table"
        if type(k) == "string" and not plain and add(v, name, k) and not standard[name] then
          for k2, v2 in each(v) do
            if type(k2) == "string" then add(v2, name, k, k2) end
          end
        end
      end
    end
  end
  return names
end

local cache, cached_for
local function all_names()
  local n = 0
  for _ in each(package.loaded) do n = n + 1 end
  if cached_for ~= n then cache, cached_for = find_names(), n end
  return cache
end

-- ---- globals -----------------------------------------------------------------------------------------

local GGET = bit.band(util.funcbc(loadstring("return x"), 1), 0xff) -- the bytecode that reads a global

-- Calls add(name) for each global that f reads, and the functions within.
local function each_global(f, add)
  for pc = 1, util.funcinfo(f).bytecodes - 1 do
    local word = util.funcbc(f, pc)
    if bit.band(word, 0xff) == GGET then add(util.funck(f, -bit.rshift(word, 16) - 1)) end
  end
  for k = -1, -math.huge, -1 do
    local constant = util.funck(f, k)
    if constant == nil then return end
    if type(constant) == "proto" then each_global(constant, add) end
  end
end

-- ---- encoding ----------------------------------------------------------------------------------------
-- A graph is a list of nodes and a reference to the first. A reference is { number of a node }, {} for nil, or the
-- value itself where a message can carry it. Nodes are worked off one by one, so that long chains need no deep stack.

local Encoder = {}
Encoder.__index = Encoder

local function fail(self, at, what) error({ what = what, at = at, encoder = self }) end

-- Where node number `at` is: "dataset.transform.fn".
local function place(self, at)
  local parts = {}
  while at do
    local from = self.from[at]
    table.insert(parts, 1, from.key)
    at = from.parent
  end
  return table.concat(parts)
end

local function key_text(key)
  return type(key) == "string" and "." .. key or ("[%s]"):format(tostring(key))
end

function Encoder:ref(value, parent, key)
  local kind = type(value)
  if kind == "number" or kind == "string" or kind == "boolean" then return value end
  if value == nil then return {} end
  if kind == "userdata" and (B.is_tensor(value) or B.is_dtype(value) or B.is_device(value)) then
    if B.is_tensor(value) and B.requires_grad(value) then
      self.from[-1] = { parent = parent, key = key }
      fail(self, -1, "a tensor that requires a gradient; HINT: detach() it")
    end
    return value
  end
  local id = kind ~= "cdata" and self.ids[value]
  if not id then
    id = #self.objects + 1
    self.objects[id], self.from[id] = value, { parent = parent, key = key }
    if kind ~= "cdata" then self.ids[value] = id end
  end
  return { id }
end

function Encoder:func(f, id)
  local ok, code = pcall(string.dump, f)
  if not ok then fail(self, id, "a C function") end
  local boxes = {}
  for k = 1, math.huge do
    local name, value = debug.getupvalue(f, k)
    if not name then break end
    local address = tonumber(ffi.cast("intptr_t", debug.upvalueid(f, k)))
    if not self.box_of[address] then
      local at = #self.boxes + 1
      self.box_of[address], self.box_at[at], self.boxes[at] = at, address, false
      self.boxes[at] = self:ref(value, id, (": its upvalue '%s'"):format(name))
    end
    boxes[k] = self.box_of[address]
  end
  local env = debug.getfenv(f)
  each_global(f, function(name)
    if self.globals[name] == nil then
      local found, value = pcall(function() return env[name] end)
      local own = found and value ~= nil and self.names[value]
      if found and value ~= nil and not (own and own[1] == "_G" and own[2] == name or rawequal(value, _G)
        or own and not own[2] and standard[own[1]] and own[1] == name) then
        self.globals[name] = { value = value }
      end
    end
  end)
  return { kind = "function", code = code, boxes = boxes }
end

function Encoder:table(t, id)
  local mt = debug.getmetatable(t)
  local node = { kind = "table", list = {}, keys = {}, values = {} }
  local n = mt and 0 or #t
  for i = 1, n do node.list[i] = self:ref(rawget(t, i), id, ("[%d]"):format(i)) end
  for k, v in each(t) do
    if not (type(k) == "number" and k >= 1 and k <= n and k == math.floor(k)) then
      local at = #node.keys + 1
      node.keys[at] = self:ref(k, id, ": a key of it")
      node.values[at] = self:ref(v, id, key_text(k))
    end
  end
  if mt then
    node.meta = self:ref(mt, id, ": its metatable")
    if type(mt) == "table" then self.metas[mt] = true end
  end
  return node
end

local function spec_of(value)
  local mt = debug.getmetatable(value)
  local method = type(mt) == "table" and type(mt.__index) ~= "nil" and value.worker_spec
  return type(method) == "function" and method
end

function Encoder:node(value, id)
  local kind = type(value)
  local own = kind ~= "cdata" and self.names[value]
  if own then return { kind = "name", own[1], own[2], own[3] } end
  local known = kind ~= "cdata" and self.shared and self.shared[value]
  if known then return { kind = "shared", known } end
  if kind == "function" then return self:func(value, id) end
  if kind == "thread" then fail(self, id, "a coroutine") end
  if kind == "cdata" then
    if ffi.istype("int64_t", value) or ffi.istype("uint64_t", value) then
      return { kind = "integer", ffi.istype("int64_t", value) and "int64_t" or "uint64_t",
        ffi.string(ffi.new("uint64_t[1]", ffi.cast("uint64_t", value)), 8) }
    end
    fail(self, id, "cdata of the FFI; HINT: make it where it is used, or in worker_init_fn")
  end
  local spec = (kind == "table" or class.fields(value) ~= value) and spec_of(value)
  if spec then
    local args = { n = 0 }
    local function take(module, ...)
      if type(module) ~= "string" then fail(self, id, "an object whose worker_spec returns no name of a module") end
      args = { n = select("#", ...), ... }
      for k = 1, args.n do
        local of = type(args[k])
        if of == "function" or of == "thread" or of == "cdata" then
          fail(self, id, ("an object whose worker_spec has a %s among its arguments"):format(of))
        end
      end
      return { kind = "spec", module, args }
    end
    return take(spec(value))
  end
  if kind == "table" then return self:table(value, id) end
  local mt = debug.getmetatable(value)
  if mt == B.Generator then return { kind = "generator", B.generator_state(value) } end
  if type(mt) == "table" and mt.__sequence then
    self.metas[mt] = true
    return { kind = "object", self:ref(class.fields(value), id, ""), self:ref(mt, id, ": its class") }
  end
  if io.type(value) then
    fail(self, id, "an open file; HINT: open it in get() at the first call, or in worker_init_fn")
  end
  fail(self, id, "a userdata that only its own state knows")
end

-- Works off the objects that have no node yet.
function Encoder:drain()
  while #self.nodes < #self.objects do
    local id = #self.nodes + 1
    self.nodes[id] = self:node(self.objects[id], id) -- may add objects
  end
end

-- Forgets what came after so many objects and boxes.
function Encoder:cut(nobjects, nboxes)
  for id = #self.objects, nobjects + 1, -1 do
    local object = self.objects[id]
    if type(object) ~= "cdata" then self.ids[object] = nil end
    self.objects[id], self.nodes[id], self.from[id] = nil, nil, nil
  end
  for at = #self.boxes, nboxes + 1, -1 do
    self.box_of[self.box_at[at]], self.boxes[at] = nil, nil
  end
end

local function message_of(e) return type(e) == "table" and e.what end

-- A global that cannot be copied is an error only where the worker reads it.
function Encoder:add_globals(out, missing)
  local again = true
  while again do
    again = false
    local names = {}
    for name, g in each(self.globals) do if not g.done then names[#names + 1] = name end end
    table.sort(names)
    for _, name in ipairs(names) do
      local nobjects, nboxes = #self.objects, #self.boxes
      local ok, e = pcall(function()
        out[name] = self:ref(self.globals[name].value, nil, name)
        self:drain()
      end)
      if not ok then
        if not message_of(e) then error(e, 0) end
        out[name], missing[name] = nil, ("%s is %s"):format(place(self, e.at), e.what)
        self:cut(nobjects, nboxes)
      end
      self.globals[name].done, again = true, true
    end
  end
end

--- A graph of `value`; nil, what, where if a part of it can't be copied. `shared` (object -> number) are objects that
-- the other state has sent, by decode: they go back as what they were there.
-- Second result: the functions, classes and metatables that were copied (number -> object), for decode of what comes
-- back.
function M.encode(value, name, shared)
  local self = setmetatable({ objects = {}, ids = {}, nodes = {}, from = {}, boxes = {}, box_of = {}, box_at = {},
    globals = {}, metas = {}, names = all_names(), shared = shared }, Encoder)
  local graph = { nodes = self.nodes, boxes = self.boxes, globals = {}, missing = {} }
  local ok, e = pcall(function()
    graph.root = self:ref(value, nil, name)
    self:drain()
    self:add_globals(graph.globals, graph.missing)
  end)
  if not ok then
    if not message_of(e) then error(e, 0) end
    return nil, e.what, place(self, e.at)
  end
  local sent = {}
  for id, object in ipairs(self.objects) do
    local kind = self.nodes[id].kind
    if kind == "function" or kind == "table" and (self.metas[object] or rawget(object, "__index")) then
      sent[id], self.nodes[id].sent = object, true
    end
  end
  return graph, sent
end

-- ---- decoding ----------------------------------------------------------------------------------------

local make = {}
make["table"] = function() return {} end
make["function"] = function(node) return assert(loadstring(node.code)) end
function make.object() return newproxy() end
function make.generator(node)
  local g = B.generator(0)
  B.generator_set_state(g, unpack(node))
  return g
end
function make.integer(node)
  local value = ffi.new("uint64_t[1]")
  ffi.copy(value, node[2], 8)
  return ffi.cast(node[1], value[0])
end
function make.name(node)
  local value, text = require(node[1]), node[1]
  for k = 2, 3 do
    if node[k] == nil then break end
    value, text = value[node[k]], text .. "." .. node[k]
    if value == nil then
      error(("%s is not there in a worker: the script has put it into the module"):format(text), 0)
    end
  end
  return value
end
function make.spec(node)
  local args = node[2]
  return require(node[1])(unpack(args, 1, args.n))
end
function make.shared(node, known) return known[node[1]] end

local fill = {}
fill["table"] = function(node, t, get)
  for i = 1, #node.list do rawset(t, i, get(node.list[i])) end
  for i, k in ipairs(node.keys) do
    local key, value = get(k), get(node.values[i])
    if key ~= nil then rawset(t, key, value) end
  end
  if node.meta then debug.setmetatable(t, get(node.meta)) end
end
function fill.object(node, object, get)
  debug.setfenv(object, get(node[1]))
  debug.setmetatable(object, get(node[2]))
end

--- The value of a graph. `known` (number -> object): what this state had sent (second result of encode).
-- Second result: object -> number, for encode of what goes back.
function M.decode(graph, known)
  local objects, owners, sent = {}, {}, {}
  local function get(ref)
    if type(ref) ~= "table" then return ref end
    return objects[ref[1] or 0]
  end
  for id, node in ipairs(graph.nodes) do
    objects[id] = make[node.kind](node, known)
    if node.sent then sent[objects[id]] = id end
  end
  for id, node in ipairs(graph.nodes) do
    local finish = fill[node.kind]
    if finish then finish(node, objects[id], get) end
    for k, box in ipairs(node.boxes or {}) do
      local owner = owners[box]
      if owner then
        debug.upvaluejoin(objects[id], k, owner.f, owner.k)
      else
        owners[box] = { f = objects[id], k = k }
        debug.setupvalue(objects[id], k, get(graph.boxes[box]))
      end
    end
  end
  for name, ref in each(graph.globals) do
    if rawget(_G, name) == nil then rawset(_G, name, get(ref)) end
  end
  if next(graph.missing) ~= nil then
    local missing = graph.missing
    setmetatable(_G, { __index = function(_, name)
      if missing[name] then
        error(("global '%s' is not known in a worker: %s"):format(name, missing[name]), 2)
      end
    end })
  end
  return get(graph.root), sent
end

return M
