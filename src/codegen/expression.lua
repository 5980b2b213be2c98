-- Reads an expression of formulas, as the `map` of a record, into nodes of the loop IR: names, numbers, + - * / and the
-- formulas of kernels/math*.h.
local ir = require "moth.codegen.ir"

local M = {}

local node = {}
local function of(x)
  if type(x) == "number" then return ir.const(("%.17g"):format(x)) end
  if type(x) == "string" then return ir.const(x) end
  return x
end
local function apply(name, ...)
  local list = {}
  for i = 1, select("#", ...) do list[i] = of((select(i, ...))) end
  return setmetatable(ir.apply(name, unpack(list)), node)
end
function node.__add(a, b) return apply("add", a, b, 1) end
function node.__sub(a, b) return apply("sub", a, b, 1) end
function node.__mul(a, b) return apply("mul", a, b) end
function node.__div(a, b) return apply("div", a, b) end
function node.__unm(a) return apply("neg", a) end

--- text: an expression; names: what it may name, as nodes; has(name): whether there is such a formula. The error of a
-- name that is neither is a string.
function M.read(text, names, has)
  local chunk = assert(loadstring("return " .. text))
  local own = {}
  for name, value in pairs(names) do own[name] = setmetatable(value, node) end
  setfenv(chunk, setmetatable({}, { __index = function(_, name)
    if own[name] then return own[name] end
    if not has("m_" .. name) then error(("'%s' is no formula of kernels/math*.h"):format(name), 0) end
    return function(...) return apply(name, ...) end
  end }))
  return of(chunk())
end

return M
