--- The rules that read ONNX's operators: for each a function of its inputs' tensors that calls moth's ops. They stand
-- in the files import_*.lua, by family.
--
--     rule("Softmax", "axis=-1", function(c, x) return x:softmax(c:dim(c.axis, x)) end)
--     rule("Reshape", "allowzero=0", function(c, x, shape) … c:ints(shape) … end, { numbers = 2 })
--
-- The second argument names the attributes that are understood, with their defaults; another attribute in a file is an
-- error at load. c is the call: its attributes as fields, c.opset, c.device (of tensors that it makes), c.n and c.count
-- (how many inputs and results), and the methods below. Options:
--
--     numbers   the inputs (a digit each) that are read as Lua numbers, shape values
--     makes     the size of the result depends on the values of inputs
--     static    the result is known from the sizes of the inputs alone
--     draws     the result is random
--     index     from which result on they are positions
--     any       inputs of all types are taken as they are (else moth's types without arithmetic, uint16, uint32 and
--               uint64, are computed in int64); any = "moves": elements are only moved
--     control   it calls graphs
--     domain    of the operator, else ONNX's own
local B = require "moth_lua"
local check = require "moth.utils.check"

local M = {}

local rules = {} -- "domain:op" = rule

local function default_of(text)
  if text == nil then return nil end
  local quoted = text:match("^'(.*)'$")
  if quoted then return quoted end
  return tonumber(text)
end

--- Defines rules: of one name, or several in one string.
function M.rule(names, attributes, fn, o)
  if type(attributes) == "function" then attributes, fn, o = "", attributes, fn end
  o = o or {}
  local known, defaults = {}, {}
  for item in attributes:gmatch("%S+") do
    local name, text = item:match("^([%w_]+)=?(.*)$")
    known[name] = true
    if text ~= "" then defaults[name] = default_of(text) end
  end
  local numbers = {}
  for digit in tostring(o.numbers or ""):gmatch("%d") do numbers[tonumber(digit)] = true end
  for name in names:gmatch("%S+") do
    rules[(o.domain or "") .. ":" .. name] = { name = name, run = fn, known = known, defaults = defaults,
      numbers = numbers, makes = o.makes, draws = o.draws, any = o.any, static = o.static, index = o.index,
      control = o.control, moves = o.any == "moves" }
  end
end

local families = { "math", "shape", "index", "reduce", "nn", "window", "recurrent", "control", "quant", "attention",
  "image", "signal", "text", "ml", "trees", "loss", "microsoft" }
local open = false

--- The rule of an operator of one of the files that are loaded.
function M.loaded(domain, op) return rules[domain .. ":" .. op] end

--- The rule of an operator; nil: there is none.
function M.find(domain, op)
  if not open then
    open = true
    for _, name in ipairs(families) do require("moth.onnx.import_" .. name) end
  end
  if domain == "ai.onnx" then domain = "" end
  return M.loaded(domain, op)
end

-- ---- the call ------------------------------------------------------------------------------------

local Call = {}
M.Call = Call

--- Refuses: the model is right, but moth cannot do it; or it is wrong.
function Call:fail(why, ...)
  check.fail("[onnx] node %s (%s): " .. why, self.node.label, self.node.op, ...)
end

--- The dimension of an axis that counts from 0, or from the end: counted from 1.
function Call:dim(axis, x)
  local n = type(x) == "number" and x or x:dim()
  if axis % 1 ~= 0 then self:fail("an axis is a whole number, got %g", axis) end -- NaN, too
  if axis < -n or axis >= n then self:fail("axis %d of a tensor of %d dimensions", axis, n) end
  return axis < 0 and axis + n + 1 or axis + 1
end

--- fn(…) aside from a program that is recorded: of tensors that are known.
function M.aside(fn, ...)
  local was = B.compile.aside(true)
  local results = { pcall(fn, ...) }
  B.compile.aside(was)
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, table.maxn(results))
end

local function elements(t) return B.ops.reshape(t, { -1 }):totable() end

--- The elements of a tensor as a list of Lua numbers. While a program is recorded, only of tensors that the sizes of
-- the inputs tell.
function Call:list(t)
  if self.run.recording and not self.run.static[t] then
    self:fail("it needs the elements of a tensor that are known at the run only: InferenceSession runs the model "
      .. "without recording it")
  end
  if t:numel() == 0 then return {} end
  local list = M.aside(elements, t)
  if list[1] == true or list[1] == false then
    for i = 1, #list do list[i] = list[i] and 1 or 0 end
  end
  return list
end

--- The same, of an input that may be missing or an attribute.
function Call:ints(v)
  if v == nil or type(v) == "table" then return v end
  return self:list(v)
end

--- The one element of a tensor as a number; of nil the default.
function Call:number(t, default)
  if t == nil then return default end
  if type(t) == "number" then return t end
  if t:numel() ~= 1 then self:fail("a tensor of one element is expected, got size %s", tostring(t:size())) end
  return self:list(t)[1]
end

--- Whether the elements of a tensor may be asked for.
function Call:known(t) return t ~= nil and (not self.run.recording or self.run.static[t] ~= nil) end

--- The name of an element type.
function Call:element(code)
  return require("moth.onnx.reader").dtype_of(code) or self:fail("the element type %s is not known", tostring(code))
end

-- ---- helpers of several families -----------------------------------------------------------------

--- Positions of ONNX (from 0, or below 0 from the end) as moth's, from 1. n: the size they are in. keep: -1 stays the
-- last one, as gather_nd takes it.
function Call:positions(index, n, keep)
  if self.run.static[index] == "constant" then -- a tensor of the file: so is the result
    local at = M.aside(function()
      local wide = index:to(B.dtype "int64")
      return wide + 1 + (n > 0 and wide:lt(0):to(B.dtype "int64") * n or wide:lt(0):to(B.dtype "int64") * -1)
    end)
    self.run.static[at] = "constant"
    return self.run:operand(at, self.node.label)
  end
  if index:dtype().name ~= "int64" then index = index:to(B.dtype "int64") end
  if keep then return index + index:ge(0):to(B.dtype "int64") end
  return index + 1 + index:lt(0):to(B.dtype "int64") * n
end

--- A tensor of a list of numbers on a device.
function M.tensor(list, dtype, device)
  return B.ops.to(require("moth").tensor(list, { dtype = B.dtype(dtype) }), { device = device })
end

function M.is_float(x) return x:is_floating_point() end

return M
