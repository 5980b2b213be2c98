--- The graph of a tensor as text: an indented tree, and Graphviz. moth.autograd.graph.tree and .dot.
local B = require "moth_lua"
local check = require "moth.utils.check"
local M = {}

-- The node of a tensor (of a leaf: what adds to its gradient), or a node.
local function root(of)
  if not B.is_tensor(of) then
    local ok = pcall(function() return of:next_functions() end)
    if not ok then check.fail("expected a tensor with a history, or x.grad_fn, got %s", type(of)) end
    return of
  end
  if not B.requires_grad(of) then check.fail("the tensor requires no gradient: it has no graph") end
  if of.grad_fn then return of.grad_fn end
  local view = require("moth.autograd").enable_grad(B.ops.view, of, B.size(of))
  return view.grad_fn:next_functions()[1][1]
end

-- names: { [name] = tensor }, of leaves and results: node id -> text.
local function labels(names)
  local out = {}
  for _, name in ipairs(require("moth.lang.tree").keys(names or {})) do
    local t = names[name]
    if not B.is_tensor(t) then check.fail("names: '%s' must be a tensor, got %s", tostring(name), type(t)) end
    if B.requires_grad(t) then
      local id = root(t):id()
      out[id] = (out[id] and out[id] .. ", " or "") .. tostring(name)
    end
  end
  return out
end

--- The lines of a tree: each node once with what it leads to; where it comes again, as `^ number`.
function M.tree(of, names)
  local label, lines, number, count = labels(names), {}, {}, 0
  local stack = { { root(of), 0, 1 } } -- no recursion: graphs are deep
  local used, seen = {}, {}
  do -- which nodes come more than once
    local todo = { stack[1][1] }
    while #todo > 0 do
      local node = table.remove(todo)
      used[node:id()] = (used[node:id()] or 0) + 1
      if not seen[node:id()] then
        seen[node:id()] = true
        for _, edge in ipairs(node:next_functions()) do if edge[1] then todo[#todo + 1] = edge[1] end end
      end
    end
  end
  while #stack > 0 do
    local top = table.remove(stack)
    local node, depth = top[1], top[2]
    local id = node:id()
    local indent = ("  "):rep(math.min(depth, 60)) -- graphs may be deeper than a page is wide
    local text = indent .. node:name() .. (label[id] and " (" .. label[id] .. ")" or "")
    if number[id] then
      lines[#lines + 1] = text .. " ^" .. number[id]
    else
      if used[id] > 1 then
        count = count + 1
        number[id] = count
        text = text .. " #" .. count
      end
      lines[#lines + 1] = text
      local edges = node:next_functions()
      for i = #edges, 1, -1 do if edges[i][1] then stack[#stack + 1] = { edges[i][1], depth + 1 } end end
    end
  end
  return table.concat(lines, "\n")
end

local function quoted(text) return '"' .. text:gsub('["\\]', "\\%0") .. '"' end

--- The graph in Graphviz' language, for `dot -Tsvg`: leaves are boxes, arrows point to what a gradient goes to.
function M.dot(of, names)
  local label = labels(names)
  local lines = { "digraph {", "  node [shape=ellipse, fontname=monospace];" }
  local number, count, todo = {}, 0, { root(of) }
  local function place(node)
    local id = node:id()
    if not number[id] then
      count = count + 1
      number[id] = count
      local text = node:name() .. (label[id] and "\\n" .. label[id]:gsub('["\\]', "\\%0") or "")
      local leaf = node:name() == "AccumulateGrad"
      lines[#lines + 1] = ("  n%d [label=\"%s\"%s];"):format(count, text, leaf and ", shape=box" or "")
      return number[id], true
    end
    return number[id], false
  end
  place(todo[1])
  while #todo > 0 do
    local node = table.remove(todo)
    local from = number[node:id()]
    for i, edge in ipairs(node:next_functions()) do
      if edge[1] then
        local to, fresh = place(edge[1])
        lines[#lines + 1] = ("  n%d -> n%d [label=%s];"):format(from, to, quoted(tostring(i)))
        if fresh then todo[#todo + 1] = edge[1] end
      end
    end
  end
  lines[#lines + 1] = "}"
  return table.concat(lines, "\n") .. "\n"
end

return M
