--- Ops of one's own, from Lua and from libraries of C; kernels for devices of one's own. The guide is
-- docs/custom_ops.md.
--
--     local relu2 = moth.library.define("mylib::relu2(Tensor self) -> Tensor", {
--       impl = function(x) return x:relu() ^ 2 end, dims = { self = "*" }, out = "*",
--       grad = { self = "grad * relu(self) * 2" },
--     })
--     relu2(x)  moth.ops.mylib.relu2(x)
--
-- An op of one's own is an op: it has a schema and reads its arguments by it, and dispatch modes, profilers, autocast,
-- fake tensors and subclasses see its calls. It belongs to the Lua state that has defined it.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local definitions = require "moth.library.definitions"
local each = require "moth.each"
local lazy = require "moth.lang.lazy"
local M = {}

-- "mylib::relu2", of the name, of an op object.
local function name_of(op, what)
  if type(op) == "table" and type(op.name) == "string" then op = op.name:match("^([^.]*)") end
  if type(op) ~= "string" or not op:find("^[%a_][%w_]*::[%a_][%w_]*$") then
    check.fail("[%s] expected the name of an op, such as 'mylib::relu2', got %s", what, tostring(op))
  end
  return op
end

--- Defines an op: define("mylib::scale(Tensor self, float by=2) -> Tensor", { impl =, … }) -> op.
--
-- impl: a function of the arguments that returns new tensors, for all devices; or { cpu = f, cuda = f, all = f }; of
-- kind composite (kind = "composite", or impl = { composite = f }) what it calls is differentiated and dispatched.
-- fake: the function for fake tensors; or shape: a function that returns { size …, dtype = } for each result; or
-- dims, let, out, check: patterns (docs/records.md). Results are checked against shape and patterns at each call.
-- grad: { argument = formula or "no" } in the language of the op table, positions from 0; a function (ctx, grad …),
-- with setup_context(ctx, inputs, output); or "none". Without it, backward through the op is an error. amp: what
-- autocast does ("keep", "low", "high", "widest"). inplace = true adds op_(x), method = true x:op(). kind: extern,
-- random (draws numbers), effect (writes to arguments marked !), composite; expr: an expression in the language of the
-- op table, in place of impl. nondeterministic: where runs may give other bits, why and what to use instead, a text or
-- texts by device: use_deterministic_algorithms(true) refuses the op there. doc, samples (for opcheck), reference (a
-- function that opcheck compares with).
function M.define(text, options)
  return require("moth.dispatch.ops").object(definitions.define(text, options or {}).name)
end

--- Sets the function of an op of this state for a device, "all" or "fake" (PyTorch's keys CPU, CUDA, Meta, Autograd,
-- CompositeImplicitAutograd are understood, too).
function M.impl(op, key, fn) definitions.implement(name_of(op, "library.impl"), key, fn) end

--- Sets the function of an op of this state that makes its results for fake tensors.
function M.register_fake(op, fn) definitions.implement(name_of(op, "library.register_fake"), "fake", fn) end

--- Sets the derivative of an op of this state: { backward = function(ctx, grad …), setup_context = function(ctx,
-- inputs, output) }. Without setup_context, ctx has the arguments and `result` by name.
function M.register_autograd(op, spec) definitions.derivative(name_of(op, "library.register_autograd"), spec) end

--- An op in one call, as PyTorch's: custom_op("mylib::sq", { schema = "(Tensor x) -> Tensor", fn = f, fake = f,
-- backward = f, setup_context = f, device_types = "cpu" }).
function M.custom_op(name, options)
  check.options("library.custom_op", options, "schema fn fake backward setup_context device_types doc amp samples")
  if type(options.schema) ~= "string" or type(options.fn) ~= "function" then
    check.fail("[library.custom_op] expected a schema, such as \"(Tensor x) -> Tensor\", and a function fn")
  end
  local impl, types = {}, options.device_types
  for _, device in ipairs(type(types) == "table" and types or { types }) do impl[device] = options.fn end
  return M.define(name_of(name, "library.custom_op") .. options.schema, {
    impl = types and impl or options.fn, fake = options.fake, grad = options.backward, amp = options.amp,
    setup_context = options.setup_context, doc = options.doc, samples = options.samples })
end

--- Undefines an op of this state: calls of it are errors, and its name is free.
function M.undefine(op) definitions.undefine(name_of(op, "library.undefine")) end

--- Opens a shared library whose MOTH_LIBRARY defines ops (moth.h); returns their names. It stays open, and its ops are
-- there for all Lua states of the process. path: a file, or a name to look for in package.cpath, as require does.
function M.load(path)
  if not path:find("/", 1, true) then
    local f = io.open(path, "rb")
    if f then f:close() end
    local found, tried = f and "./" .. path, nil
    if not found then found, tried = package.searchpath(path, package.cpath) end
    if not found then check.fail("[library.load] there is no library '%s':%s", path, tried) end
    path = found
  end
  return B.load_library(path)
end

--- Runs an op on samples, its own or given lists of arguments, and checks all that applies: results against the schema
-- and the fake function, in-place and out variants, arguments that must not change, derivatives against finite
-- differences, the reference. Raises the first error; returns how many checks passed, by name.
function M.opcheck(op, samples, options)
  return require("moth.library.opcheck")(name_of(op, "library.opcheck"), samples, options)
end

-- ---- libraries -------------------------------------------------------------------------------------

local Library = {}
Library.__index = Library
local open = {} -- namespace -> its library of kind DEF

local kinds = { DEF = true, IMPL = true, FRAGMENT = true }

local function full(lib, name, what)
  if lib.destroyed then check.fail("[%s] the library '%s' was destroyed", what, lib.namespace) end
  return name:find("::", 1, true) and name or lib.namespace .. "::" .. name
end

--- Defines an op of the namespace: lib:define("relu2(Tensor self) -> Tensor"[, options as of moth.library.define]).
function Library:define(text, options)
  if type(text) ~= "string" then check.fail("[library.define] expected a schema, got %s", type(text)) end
  text = full(self, text:match("^%s*(.*)$"), "library.define")
  if self.kind == "IMPL" then check.fail("[library.define] a library of kind IMPL gives functions to ops of others") end
  if not text:find("^" .. self.namespace .. "::") then
    check.fail("[library.define] '%s' is not of the namespace '%s'", text:match("^[^(]*"), self.namespace)
  end
  local op = M.define(text, options)
  self.names[#self.names + 1] = name_of(op, "library.define")
  return op
end

--- lib:impl("relu2", "CPU", fn)
function Library:impl(name, key, fn) M.impl(full(self, name, "library.impl"), key or "all", fn) end
function Library:register_fake(name, fn) M.register_fake(full(self, name, "library.register_fake"), fn) end
function Library:register_autograd(name, spec)
  M.register_autograd(full(self, name, "library.register_autograd"), spec)
end

--- Undefines all ops of the library.
function Library:destroy()
  if self.destroyed then return end
  self.destroyed = true
  if open[self.namespace] == self then open[self.namespace] = nil end
  for _, name in ipairs(self.names) do
    if definitions.record(name) then definitions.undefine(name) end
  end
end

function Library:__tostring() return ("<library %s %s>"):format(self.namespace, self.kind) end

local function new_library(_, namespace, kind)
  kind = kind or "FRAGMENT"
  if type(namespace) ~= "string" or not namespace:find("^[%a_][%w_]*$") then
    check.fail("[library] expected a namespace such as 'my_ops', got %s", tostring(namespace))
  elseif not kinds[kind] then
    check.fail("[library] expected \"DEF\", \"IMPL\" or \"FRAGMENT\", got %s", tostring(kind))
  elseif rawget(require("moth.dispatch.ops"), namespace) ~= nil then
    check.fail("[library] the namespace '%s' is moth's own", namespace)
  elseif kind == "DEF" and open[namespace] then
    check.fail("[library] the namespace '%s' is defined already; open it as \"FRAGMENT\"", namespace)
  end
  local lib = setmetatable({ namespace = namespace, kind = kind, names = {} }, Library)
  if kind == "DEF" then open[namespace] = lib end
  return lib
end

-- ---- devices ---------------------------------------------------------------------------------------

--- The names of the devices that this state has registered.
M.backends = {}

--- Adds a type of device, in host memory, and gives it kernels: register_backend("mydev", { add = function(args,
-- results) … end }). Its name has up to 31 letters, digits and _. A kernel gets the op's arguments and the results that
-- the shape rule has made, and fills them in. Tensors go there by x:to("mydev"), back by x:cpu(). Ops whose records
-- say kernel = "all devices" (copies) need no kernel. There may be several such devices; an op defined by define names
-- its functions for them.
function M.register_backend(name, kernels)
  B.register_backend(name)
  local known = false
  for _, other in ipairs(M.backends) do known = known or other == name end
  if not known then M.backends[#M.backends + 1] = name end
  for op, fn in each(kernels or {}) do B.register_kernel(op, fn, name) end
end

--- A kernel in Lua for one op, for a device of register_backend (the last one, if none is named).
function M.register_kernel(op, fn, device)
  device = device or M.backends[#M.backends]
    or check.fail("[register_kernel] no device was registered by register_backend")
  B.register_kernel(op, fn, device)
end

signature.all(M, { "register_backend(string name, table kernels?)",
  "register_kernel(string op, function fn, string device?)", "library.define(string schema, table options?)",
  "library.impl(any op, string key, function fn)", "library.register_fake(any op, function fn)",
  "library.register_autograd(any op, table spec)",
  "library.custom_op(string name, table options)", "library.load(path path)", "library.undefine(any op)" })
getmetatable(lazy.strict(M, "moth.library")).__call = new_library
return M
