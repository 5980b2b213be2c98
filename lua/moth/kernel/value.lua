--- What registers of a kernel hold while it is read: { k = "const", v }, "node" { node }, "ptr" { root, d, off, name },
-- "table" { t }, "fn" { f, name }, "module" { t, name }, "dtype" { d }, "method" { name }, "range" { from, to, step },
-- "lost" { why }: one that control flow has made of two that have nothing in common; an error only when it is used.
local tile = require "moth.codegen.tile"

local M = {}

function M.const(v) return { k = "const", v = v } end
function M.of_node(node) return { k = "node", node = node } end

--- What a value is, for messages.
function M.describe(v)
  if v.k == "node" then return tile.describe(v.node) end
  if v.k == "ptr" then
    return #v.off.shape == 0 and "a pointer" or "a block " .. tile.shape_text(v.off.shape) .. " of pointers"
  end
  if v.k == "const" then return v.v == nil and "nil" or type(v.v) == "string" and "a string" or tostring(v.v) end
  if v.k == "fn" then return "a function" end
  if v.k == "dtype" then return "a dtype" end
  if v.k == "method" then return "a method" end
  if v.k == "lost" then return "one of several types" end
  if v.k == "module" then return v.name end
  return "a table"
end

--- Whether two are the same.
function M.same(a, b)
  if a == b then return true end
  if not a or not b or a.k ~= b.k then return false end
  if a.k == "const" then
    return a.v == b.v and (a.v ~= 0 or 1 / a.v == 1 / b.v)
  elseif a.k == "node" then
    return a.node == b.node
  elseif a.k == "ptr" then
    return a.root == b.root and a.off == b.off
  elseif a.k == "fn" then
    return a.f == b.f
  elseif a.k == "module" or a.k == "table" then
    return a.t == b.t
  elseif a.k == "dtype" then
    return a.d == b.d
  elseif a.k == "method" then
    return a.name == b.name
  end
  return false
end

return M
