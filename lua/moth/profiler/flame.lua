--- Flame graphs: calls by their names and those of what encloses them, as wide as their time. (B. Gregg, "The Flame
-- Graph", 2016.)
local recording = require "moth.profiler.recording"
local time = require("moth.profiler.averages").time
local check = require "moth.utils.check"

local M = {}

--- The tree: nodes { name, part, total, own (ns), count, children (list, by time) }.
function M.tree(r)
  local breakdown = require "moth.profiler.breakdown"
  local root = { name = "all", total = 0, own = 0, count = 1, children = {}, by_name = {} }
  for _, t in ipairs(r.tracks) do
    local at = {}
    for i = 0, t.n - 1 do
      local e = recording.event(t, i)
      local up = at[t.parent[i]] or root
      local name = r:name_of(e)
      local node = up.by_name[name]
      if not node then
        local part = up.part ~= nil and up.part ~= "forward" and up.part or breakdown.part(r, e)
        node = { name = name, part = part, total = 0, own = 0, count = 0, children = {}, by_name = {} }
        up.by_name[name] = node
        up.children[#up.children + 1] = node
      end
      at[i] = node
      node.total, node.own = node.total + t.stop[i] - t.start[i], node.own + t.own[i]
      node.count = node.count + 1
      if up == root then root.total = root.total + t.stop[i] - t.start[i] end
    end
  end
  local function sort(node)
    table.sort(node.children, function(a, b) return a.total > b.total end)
    for _, child in ipairs(node.children) do sort(child) end
  end
  sort(root)
  return root
end

local hues = { forward = 210, backward = 28, optimizer = 275, loader = 140, communication = 330 }

local function escaped(text)
  return (text:gsub("[%c]", " "):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local WIDTH, ROW = 1200, 18

--- Writes the flame graph as SVG, without scripts; titles are shown by browsers when one points at a call.
function M.write(r, path)
  if type(path) ~= "string" then check.fail("[profiler.flame_graph] expected a path, got %s", type(path)) end
  local root, out, depth_of = M.tree(r), {}, 0
  local scale = WIDTH / math.max(root.total, 1)
  local function draw(node, x, depth)
    local width = node.total * scale
    if width < 0.3 then return end
    depth_of = math.max(depth_of, depth)
    local hue = hues[node.part] or 0
    local shade = 62 + (#node.name * 7 + node.name:byte(-1)) % 18
    out[#out + 1] = ('<g><title>%s: %s in %d calls, own %s, %.1f %%</title><rect x="%.2f" y="%d" width="%.2f" '
      .. 'height="%d" fill="hsl(%d,60%%,%d%%)" stroke="white" stroke-width="0.5"/>'):format(escaped(node.name),
      time(node.total / 1e3), node.count, time(node.own / 1e3), 100 * node.total / math.max(root.total, 1), x,
      depth * ROW, width, ROW - 1, hue, shade)
    local letters = math.floor(width / 6.7)
    if letters >= 3 then
      local text = #node.name > letters and node.name:sub(1, letters - 1) .. "…" or node.name
      out[#out + 1] = ('<text x="%.2f" y="%d">%s</text>'):format(x + 3, depth * ROW + 12, escaped(text))
    end
    out[#out + 1] = "</g>\n"
    for _, child in ipairs(node.children) do
      draw(child, x, depth + 1)
      x = x + child.total * scale
    end
  end
  draw(root, 0, 0)
  local f, why = io.open(path, "w")
  if not f then check.fail("[profiler.flame_graph] %s", why) end
  f:write(('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="monospace" font-size="11">\n')
    :format(WIDTH, (depth_of + 1) * ROW))
  f:write(table.concat(out))
  f:write("</svg>\n")
  if not f:close() then check.fail("[profiler.flame_graph] '%s' could not be written", path) end
  return path
end

return M
