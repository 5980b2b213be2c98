--- nn.Module: the base of everything with parameters.
--
--     local Net = nn.class("Net")
--     function Net:__init(h) self.fc1 = nn.Linear(784, h) end
--     function Net:forward(x) return self.fc1(x) end
--     local net = Net(256)
--     print(net, net:num_parameters())
--
-- Assigning a module, a parameter or nil to a field updates the registries `_modules`, `_parameters` and
-- `_buffers`, ordered maps that hold these values in place of the field; reading the field finds them
-- there. Other values are plain fields. Lua calls __newindex only where no plain field of that name is; a
-- module assigned over one (`self.head = false`, later `self.head = nn.Linear(4, 2)`) is moved to its
-- registry by the next method that walks the module. Plain tables of modules and parameters stay fields; walks find
-- what is in them (nn/held.lua).
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Ordered = require "moth.nn.ordered"
local Buffer = require "moth.nn.buffer"
local Parameter = require "moth.nn.parameter"
local hooks = require "moth.nn.hooks"
local hints = require "moth.lang.hints"
local state_dict = require "moth.nn.state_dict"
local each = require "moth.each"

local Module = class("Module")
getmetatable(Module).__index = class.Object -- methods are looked up first: __index below says what is missing
Module.__module = true -- subclasses have it too: tells modules from other tables

--- Is `x` a module?
function Module.is(x)
  local mt = type(x) == "table" and getmetatable(x)
  return type(mt) == "table" and rawget(mt, "__module") == true
end

-- The state exists before __init runs, so that an __init need not call the base class's.
function Module.__new()
  return { training = true, _parameters = Ordered.new(), _buffers = Ordered.new(), _modules = Ordered.new(),
    _transient = {}, _hooks = false }
end

--- The __init of classes without one: arguments are an error, not ignored.
function Module.__init(self, ...)
  if select("#", ...) > 0 then
    check.fail("[nn.%s] takes no arguments; write function %s:__init(…)", self.__name, self.__name)
  end
end

function Module:forward()
  check.fail("%s has no forward; write function %s:forward(x) ... end", self.__name, self.__name)
end

local Held -- nn/held.lua
local recorder -- of moth.profiler, while it records modules

local function call(self, ...)
  if not self._hooks then return select(1, self:forward(...)) end
  return select(1, hooks.call(self, ...))
end

--- Calling a module runs its hooks and forward; m:forward(x) runs no hooks.
function Module.__call(self, ...)
  -- No tail calls: this frame says where in a network an error happened (moth.trace).
  if recorder then return select(1, recorder.call(call, self, ...)) end
  if not self._hooks then return select(1, self:forward(...)) end
  return select(1, hooks.call(self, ...))
end

-- From now on calls of modules run by r.call(call, module, ...), or, with false, by themselves.
function Module.__record(r) recorder = r or nil end

-- ---- fields ----------------------------------------------------------------------------------------

local registries = { "_parameters", "_modules", "_buffers" }
local what = { _parameters = "a parameter", _modules = "a module", _buffers = "a buffer" }

-- `m`, not `self`: the frame is no call of the module (moth.lang.trace).
function Module.__index(m, key)
  local value = getmetatable(m)[key]
  if value ~= nil then return value end
  value = rawget(rawget(m, "_parameters"), key)
  if value ~= nil then return value end
  value = rawget(rawget(m, "_modules"), key)
  -- The table of a Held is a field itself; without the field there is nothing any more.
  if value ~= nil then return rawget(value, "_of") == nil and value or nil end
  value = rawget(rawget(m, "_buffers"), key)
  if value ~= nil then return value end
  return (class.missing(key))
end

--- For completion: names of parameters, submodules and buffers.
function Module.__names(self)
  local list = {}
  for _, r in ipairs(registries) do
    for name in each(rawget(self, r)) do list[#list + 1] = name end
  end
  return list
end

local function registry_of(value)
  if Parameter.is(value) then return "_parameters" end
  if Module.is(value) then return "_modules" end
  if Buffer.is(value) then return "_buffers" end
end

local function holder(self, key)
  for _, r in ipairs(registries) do
    local value = rawget(self[r], key)
    if value ~= nil and not (r == "_modules" and Held.is(value)) then return r end
  end
end

local function register(self, registry, key, value)
  if type(key) ~= "string" or key == "" or key:find(".", 1, true) then
    check.fail("%s: '%s' cannot name %s; a name is a string without dots", self.__name, tostring(key), what[registry])
  end
  if getmetatable(self)[key] ~= nil then
    check.fail("%s: '%s' is a method of the class and cannot name %s", self.__name, key, what[registry])
  end
  local old = holder(self, key)
  if old and old ~= registry then self[old][key] = nil end
  if Buffer.is(value) then self._transient[key] = not Buffer.is_persistent(value) or nil end
  self[registry][key] = value
end

function Module.__newindex(self, key, value)
  if key == "requires_grad" then
    check.fail("%s: 'requires_grad' cannot be assigned, the parameters would not know of it; write \z
      m:requires_grad_(true or false)", self.__name)
  end
  local registry = registry_of(value)
  if registry then return register(self, registry, key, value) end
  local old = holder(self, key)
  if value == nil then
    if old then self[old][key] = nil end
  elseif old == "_buffers" and B.is_tensor(value) then
    self._buffers[key] = value
  elseif old then
    check.fail("%s.%s is %s; assign %s or nil, not %s", self.__name, key, what[old],
      old == "_parameters" and "an nn.Parameter" or "another", class.name(value))
  else
    if type(value) == "table" and type(key) == "string" then Ordered.reserve(self._modules, key) end
    rawset(self, key, value)
  end
end

local holding = {}

-- Registers the plain tables that hold modules or parameters, and forgets those that do not any more.
local function hold(self, tables)
  local modules = rawget(self, "_modules")
  for key, m in each(modules) do
    if Held.is(m) and rawget(m, "_of") ~= (tables and tables[key]) then rawset(modules, key, nil) end
  end
  if not tables or holding[self] then return end
  holding[self] = true -- a table may lead back to the module
  local ok, known = pcall(Held.known, self)
  holding[self] = nil
  if not ok then error(known, 0) end
  local names = {}
  for key in each(tables) do names[#names + 1] = key end
  table.sort(names)
  for _, key in ipairs(names) do
    local m = rawget(modules, key) or Held.of(tables[key], self.__name .. "." .. key)
    if not Held.follow(m, known) then
      rawset(modules, key, nil)
    else
      if key:find(".", 1, true) or getmetatable(self)[key] ~= nil then
        check.fail("%s: '%s' cannot name a table of modules or parameters; a name is a text without dots that is no \z
          method of the class", self.__name, key)
      end
      Ordered.put(modules, key, m)
    end
  end
end

--- A registry, after moving modules and parameters among the plain fields into theirs.
function Module:registry(name)
  local strays, tables
  for key, value in each(self) do
    local kind = type(key) == "string" and type(value) -- integer keys belong to lists
    if kind == "table" or kind == "userdata" then
      if registry_of(value) then
        strays = strays or {}
        strays[#strays + 1] = key
      elseif kind == "table" and Held.holds(value) then
        tables = tables or {}
        tables[key] = value
      end
    end
  end
  hold(self, tables)
  if strays then
    table.sort(strays)
    for _, key in ipairs(strays) do
      local value = rawget(self, key)
      rawset(self, key, nil)
      register(self, registry_of(value), key, value)
    end
  end
  return self[name]
end

--- Puts another value in the place of a registered one; what mirrors it (the positions of a list) follows.
function Module:put_registered(registry, name, value) rawset(self[registry], name, value) end

local function all(...) return ... end
local buffer = signature("register_buffer(string name, Tensor tensor?, bool persistent=true)", all)

--- State that is saved and moved but not trained. persistent = false: not saved. The tensor may be nil.
function Module:register_buffer(...)
  local name, t, persistent = buffer(...)
  if t ~= nil then
    rawset(self, name, nil)
    register(self, "_buffers", name, t)
  end
  self._transient[name] = not persistent or nil
end

--- The same as self[name] = p.
function Module:register_parameter(name, p)
  if p ~= nil and not Parameter.is(p) then
    check.fail("register_parameter: '%s' must be an nn.Parameter, got %s", tostring(name), class.name(p))
  end
  self[name] = p
end

--- The same as self[name] = module.
function Module:add_module(name, module)
  if module ~= nil and not Module.is(module) then
    check.fail("add_module: '%s' must be a module, got %s", tostring(name), class.name(module))
  end
  self[name] = module
end

-- ---- walking ---------------------------------------------------------------------------------------

-- { { path, module }, … }: depth first, each module once.
local function walk(self, path, seen, out)
  if self == nil then hints.need_self(self, "net:parameters()") end
  if seen[self] then return out end
  seen[self] = true
  out[#out + 1] = { path, self }
  for name, child in Ordered.items(self:registry("_modules")) do
    walk(child, path == "" and name or path .. "." .. name, seen, out)
  end
  return out
end

-- { { path, tensor }, … } of a registry, each tensor once.
local function tensors(self, registry, prefix, recurse)
  local modules = recurse and walk(self, prefix, {}, {}) or { { prefix, self } }
  local seen, out = {}, {}
  for _, m in ipairs(modules) do
    for name, t in Ordered.items(m[2]:registry(registry)) do
      if not seen[t] then
        seen[t] = true
        out[#out + 1] = { m[1] == "" and name or m[1] .. "." .. name, t }
      end
    end
  end
  return out
end

local function children(self)
  local seen, out = {}, {}
  for name, child in Ordered.items(self:registry("_modules")) do
    if not seen[child] then
      seen[child] = true
      out[#out + 1] = { name, child }
    end
  end
  return out
end

local function seconds(list)
  for i = 1, #list do list[i] = list[i][2] end
  return list
end

local function iterate(list)
  local i = 0
  return function()
    i = i + 1
    local pair = list[i]
    if pair then return pair[1], pair[2] end
  end
end

local recursive = signature("parameters(bool recurse=true)", all)
local named = signature("named_parameters(string prefix='', bool recurse=true)", all)

--- Lists of tensors or modules, and `for name, x in m:named_…() do`, in order of assignment, a module's own before its
-- children's. (Lua assigns `self.a, self.b = x, y` from the right: write a line for each.)
function Module:parameters(...) return seconds(tensors(self, "_parameters", "", recursive(...))) end
function Module:named_parameters(...) return iterate(tensors(self, "_parameters", named(...))) end
function Module:buffers(...) return seconds(tensors(self, "_buffers", "", recursive(...))) end
function Module:named_buffers(...) return iterate(tensors(self, "_buffers", named(...))) end
function Module:modules() return seconds(walk(self, "", {}, {})) end
function Module:named_modules() return iterate(walk(self, "", {}, {})) end
function Module:children() return seconds(children(self)) end
function Module:named_children() return iterate(children(self)) end

--- The number of elements of all parameters; o.trainable = true: only of parameters that require grad.
function Module:num_parameters(o)
  o = check.options("num_parameters", o, "trainable")
  local n = 0
  for _, p in ipairs(self:parameters()) do
    if not o.trainable or B.requires_grad(p) then n = n + B.numel(p) end
  end
  return n
end

--- The module at a path such as "net.1"; "" is the module itself.
function Module:get_submodule(path)
  if type(path) ~= "string" then check.fail("[get_submodule] expected a path, got %s", tostring(path)) end
  local m = self
  for name in path:gmatch("[^.]+") do
    m = rawget(m:registry("_modules"), name)
    if not m then check.fail("%s has no submodule '%s'", self.__name, path) end
  end
  return m
end

--- fn(module) for all submodules and, last, the module itself.
function Module:apply(fn)
  if type(fn) ~= "function" then check.fail("[apply] expected a function, got %s", class.name(fn)) end
  for _, child in ipairs(self:children()) do child:apply(fn) end
  fn(self)
  return self
end

-- ---- modes, gradients, conversion ------------------------------------------------------------------

--- Sets training mode of this and all submodules; dropout and running statistics depend on it.
function Module:train(mode)
  if mode == nil then mode = true end
  if type(mode) ~= "boolean" then check.fail("[train] mode: expected true or false, got %s", class.name(mode)) end
  for _, m in ipairs(self:modules()) do m.training = mode end
  return self
end

--- As train(false).
function Module:eval() return self:train(false) end

--- Sets whether the parameters require gradients (default: true); returns the module.
function Module:requires_grad_(flag)
  if flag ~= nil and type(flag) ~= "boolean" then
    check.fail("[requires_grad_] expected true or false, got %s", class.name(flag))
  end
  for _, p in ipairs(self:parameters()) do B.set_requires_grad(p, flag ~= false) end
  return self
end

local set_to_none = signature("zero_grad(bool set_to_none=true)", all)

--- Removes the gradients; set_to_none = false: fills them with zeros, in place.
function Module:zero_grad(...) Parameter.zero_grads(self:parameters(), set_to_none(...)) end

--- fn(tensor) -> tensor over all parameters (keeping their handles) and buffers; recurse = false: of m itself.
function Module:convert(fn, recurse)
  local done = {}
  moth.no_grad(function()
    for _, m in ipairs(recurse == false and { self } or self:modules()) do
      for name, p in Ordered.items(m:registry("_parameters")) do
        done[p] = done[p] or Parameter.convert(p, fn) -- a shared parameter stays one
        m:put_registered("_parameters", name, done[p])
      end
      for name, b in Ordered.items(m:registry("_buffers")) do
        m:put_registered("_buffers", name, Buffer.like(fn(b), b))
      end
    end
  end)
  return self
end

--- Moves and converts in place: m:to("cuda"), m:to(moth.float64), m:to{dtype = …, device = …}, m:to(tensor).
-- A dtype concerns floating-point parameters and buffers only.
function Module:to(...)
  local dtype, device
  for i = 1, select("#", ...) do
    local a = select(i, ...)
    if B.is_dtype(a) then dtype = a
    elseif B.is_device(a) or type(a) == "string" then device = B.device(a)
    elseif B.is_tensor(a) then dtype, device = B.tensor_dtype(a), B.tensor_device(a)
    else
      local o = check.options("Module:to", a, "dtype device non_blocking")
      dtype, device = o.dtype or dtype, o.device and B.device(o.device) or device
    end
  end
  dtype = dtype and B.dtype(dtype)
  if dtype and not dtype.is_floating_point then
    check.fail("Module:to: parameters take a floating-point dtype, not %s", tostring(dtype))
  end
  return self:convert(function(t)
    local float = B.tensor_dtype(t).is_floating_point
    return B.ops.to(t, { dtype = float and dtype or nil, device = device })
  end)
end

--- Floating-point parameters and buffers in this dtype, in place; returns the module.
function Module:float() return self:to(B.dtype("float32")) end
function Module:double() return self:to(B.dtype("float64")) end
function Module:half() return self:to(B.dtype("float16")) end
function Module:bfloat16() return self:to(B.dtype("bfloat16")) end
--- Moves parameters and buffers to this device, in place; returns the module. cuda(index): the device "cuda:index".
function Module:cpu() return self:to("cpu") end
function Module:cuda(index) return self:to(index and "cuda:" .. index or "cuda") end

-- ---- state, hooks, printing ------------------------------------------------------------------------

local with_prefix = signature("state_dict(*, string prefix='')", all)

--- An ordered map name -> tensor, sharing storage; prefix stands before all names.
function Module:state_dict(...) return state_dict.save(self, with_prefix(...)) end

local how_to_load = signature("load_state_dict(bool strict=true, *, bool ignore_mismatched_sizes=false, \z
  bool assign=false)", all)

--- load_state_dict(sd, strict): copies a state dict into this module. Returns the lists of missing and unexpected
-- names, which are errors unless strict is false, and of mismatched shapes { name, checkpoint, model }, which are
-- errors unless ignore_mismatched_sizes is true. assign: instead of a copy, this module's tensors share the memory of
-- sd's and have their dtype and device; so a model made in moth.fake_mode gets its weights.
function Module:load_state_dict(sd, ...)
  local strict, ignore, assign = how_to_load(...)
  return state_dict.load(self, sd, { strict = strict, ignore_mismatched_sizes = ignore, assign = assign })
end

--- A deep copy with parameters and buffers of its own (Python's copy.deepcopy(model)).
function Module:clone() return require "moth.nn.clone"(self) end

--- Hooks; each registration returns a handle with remove(). `input` and gradients are lists; a result that is not nil
-- replaces the value that the hook was given.
-- forward_pre: fn(module, input); forward: fn(module, input, output);
-- full_backward_pre: fn(module, grad_output); full_backward: fn(module, grad_input, grad_output).
-- With { prepend = true } before those that are there.
for name, kind in each { forward_pre = "forward_pre", forward = "forward", full_backward_pre = "backward_pre",
  full_backward = "backward" } do
  local method = ("register_%s_hook"):format(name)
  Module[method] = signature.method(method .. "(function hook, *, bool prepend=false)", function(self, fn, prepend)
    return hooks.register(self, kind, fn, prepend)
  end)
end

--- Hooks of state dicts, for this module's part of them; each registration returns a handle with remove().
-- state_dict_pre: fn(module, prefix) before its entries are collected; state_dict_post: fn(module, state_dict, prefix)
-- after; load_state_dict_pre: fn(module, state_dict, prefix), which may change the entries (of a copy);
-- load_state_dict_post: fn(module, missing, unexpected), lists of names.
for _, kind in ipairs { "state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post" } do
  local method = ("register_%s_hook"):format(kind)
  Module[method] = signature.method(method .. "(function hook)", function(self, fn)
    return state_dict.register(self, kind, fn)
  end)
end

--- The text between the parentheses of the printed module; subclasses override it.
function Module.extra_repr() return "" end

local function text_of(self)
  local extra, lines = self:extra_repr(), {}
  for name, child in Ordered.items(self:registry("_modules")) do
    lines[#lines + 1] = ("(%s): %s"):format(name, (tostring(child):gsub("\n", "\n  ")))
  end
  if #lines == 0 and not extra:find("\n", 1, true) then return self.__name .. "(" .. extra .. ")" end
  if extra ~= "" then table.insert(lines, 1, (extra:gsub("\n", "\n  "))) end
  return self.__name .. "(\n  " .. table.concat(lines, "\n  ") .. "\n)"
end

local printing = {}

--- PyTorch's repr of modules: booleans are True and False, children have the names that a state dict gives them.
-- Dimensions and positions are what the user wrote: they count from 1.
function Module.__tostring(self)
  if printing[self] then return self.__name .. "(...)" end -- a module that holds itself
  printing[self] = true
  local ok, text = pcall(text_of, self)
  printing[self] = nil
  if not ok then error(text, 0) end
  return text
end

require "moth.nn.module_more"(Module)
Held = require "moth.nn.held"(Module, registry_of)

return Module
