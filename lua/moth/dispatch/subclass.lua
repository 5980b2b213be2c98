--- Tensor subclasses: tensors that intercept every op on them, below autograd.
--
--     local Logging = moth.tensor_subclass("LoggingTensor", {
--       dispatch = function(cls, func, types, args, kwargs)
--         print("Calling: " .. func.name)                --> Calling: add.Tensor
--         return func(unpack(args, 1, args.n))
--       end,
--     })
--     local x = Logging(moth.randn(3, 3))
--     local y = x + x
--
-- dispatch gets the class, the op as an object of moth.ops.moth (an overload, with name and schema), the classes among
-- the arguments, the arguments as a list and kwargs.out; it returns the result. While it runs, its class intercepts
-- nothing: func(...) calls the backend. Results are plain tensors unless it wraps them: cls(func(...)). Composites
-- arrive as their parts. Other fields of the table are methods of the tensors: x:name().
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local M = {}

local Class = {}

-- The binding's func as the overload for the arguments. If func has more information about the call (index_base) than
-- Lua's arguments, the overload calls it.
local made = setmetatable({}, { __mode = "k" })
local function overload(func, args)
  local op = require("moth.dispatch.ops").object(func.name)
  local o = op.default
  if op.Tensor then o = B.is_tensor(args[op.Tensor.operand]) and op.Tensor or op.Scalar end
  local known = made[func] or {}
  made[func] = known
  if not known[o] then
    local own = { fn = func.fn, index_base = func.index_base }
    for key, value in each(o) do own[key] = own[key] or value end
    known[o] = setmetatable(own, getmetatable(o))
  end
  return known[o]
end

local function run(types, func, args, kwargs)
  local cls = types[1]
  if not cls then error("a tensor of a subclass of another Lua state", 0) end
  return cls.dispatch(cls, overload(func, args), types, args, kwargs)
end

--- A class of tensors; called with a tensor it returns one of the class that shares its storage.
-- @tparam string name @tparam table fields dispatch (see above), methods
function M.tensor_subclass(name, fields)
  if type(fields.dispatch) ~= "function" then
    check.fail("[tensor_subclass] expected (name, { dispatch = function(cls, func, types, args, kwargs) … end })")
  end
  local cls = { __name = name }
  for key, value in each(fields) do cls[key] = value end
  if not M.ready then
    B.on_subclass(run)
    M.ready = true
  end
  return setmetatable(cls, Class)
end

--- A tensor of class cls that shares the storage of a tensor.
function M.make_subclass(cls, elem)
  if getmetatable(cls) ~= Class then
    check.fail("[make_subclass] argument 'cls': expected a class of tensor_subclass, got %s", type(cls))
  end
  local t = B.make_subclass(elem, cls)
  if B.requires_grad(elem) and B.is_leaf(elem) then B.set_requires_grad(t, true) end
  return t
end

signature.all(M, { "tensor_subclass(string name, table fields)", "make_subclass(any cls, Tensor elem)" })
Class.__call = M.make_subclass
function Class.__tostring(cls) return "class " .. cls.__name end

--- The type of a value: "Tensor" or the name of its subclass, the name of an object's class, else Lua's type.
function M.type(x)
  if B.is_tensor(x) then
    local cls = B.class_of(x)
    return cls and cls.__name or "Tensor"
  end
  return require("moth.class").name(x)
end

return M
