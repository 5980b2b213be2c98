--- Nested tables with tensors (or other values) as leaves: batches, states, outputs of models. `moth.tree`.
--
--     local on_gpu = moth.tree.map(function(t) return t:cuda() end, { x, { mask = m, labels = y } })
--     local list, spec = moth.tree.flatten(outputs)
--     local same = moth.tree.unflatten(list, spec)
--
-- A table without a metatable is a branch; all other values are leaves. Fields have a fixed order: 1, 2, … first, then
-- the others by type and name.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local M = {}

local function is_branch(x) return type(x) == "table" and check.is_plain(x) end

local function keys(t)
  local list = {}
  for key in each(t) do list[#list + 1] = key end
  table.sort(list, function(a, b)
    local ka, kb = type(a), type(b)
    if ka ~= kb then return ka < kb end -- "number" < "string"
    if ka == "number" or ka == "string" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return list
end

--- The keys of a table in the order of its fields.
function M.keys(t) return keys(t) end

local function visit(node, list, above)
  if not is_branch(node) then
    list[#list + 1] = node
    return false
  end
  if above[node] then check.fail("tree: a table contains itself") end
  above[node] = true
  local spec = { keys = keys(node) }
  for i, key in ipairs(spec.keys) do spec[i] = visit(node[key], list, above) end
  above[node] = nil
  return spec
end

--- The leaves of a tree as a list, and its structure, for unflatten.
function M.flatten(tree)
  local list = {}
  return list, visit(tree, list, {})
end

local function build(spec, list, at)
  if not spec then
    if list[at] == nil then check.fail("tree.unflatten: the list ends at %d; the tree has more ends", at - 1) end
    return list[at], at + 1
  end
  local node = {}
  for i, key in ipairs(spec.keys) do node[key], at = build(spec[i], list, at) end
  return node, at
end

--- A tree of the structure `spec` with a list's values as leaves.
function M.unflatten(list, spec)
  local function is_spec(s)
    if s == false then return true end
    if type(s) ~= "table" or type(s.keys) ~= "table" then return false end
    for i = 1, #s.keys do if not is_spec(s[i]) then return false end end
    return true
  end
  if not is_spec(spec) then check.fail("[tree.unflatten] argument 'spec': expected what tree.flatten gave") end
  local tree, n = build(spec, list, 1)
  if list[n] ~= nil then check.fail("tree.unflatten: the list has more values than the tree's %d ends", n - 1) end
  return tree
end

local function apply(f, above, a, ...)
  if not is_branch(a) then return f(a, ...) end
  if above[a] then check.fail("tree.map: a table contains itself") end
  above[a] = true
  local out, others = {}, { ... }
  for _, key in ipairs(keys(a)) do
    local parts = {}
    for i = 1, #others do
      if not is_branch(others[i]) or others[i][key] == nil then
        check.fail("tree.map: tree %d has no field '%s', which the first has", i + 1, tostring(key))
      end
      parts[i] = others[i][key]
    end
    out[key] = apply(f, above, a[key], unpack(parts))
  end
  above[a] = nil
  return out
end

--- A tree of the same structure with f of each leaf (and of the corresponding leaves of further trees).
function M.map(f, tree, ...)
  return apply(f, {}, tree, ...)
end

return signature.all(M, { "tree.keys(table t)", "tree.flatten(any tree)", "tree.unflatten(table list, any spec)",
  "tree.map(callable f, any tree, ...)" })
