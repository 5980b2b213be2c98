--- nngraph's networks (nn.gModule) as modules: a list of steps, each of which takes values of those before it.
--
-- A node's data has mapindex, in which the integer keys lead to the data of its inputs, and module, or selectindex (one
-- of several values); a node with neither passes its input on. forwardnodes has them in the order of their running; the
-- first is the input, the last the output.
local check = require "moth.utils.check"
local moth = require "moth"
local nn = moth.nn

local Graph = nn.class("Torch7Graph")
--- steps: { inputs = positions of steps, module = position in the list, select = position }.
function Graph:__init(steps, list)
  self.steps, self.parts = steps, nn.ModuleList(list)
end
--- The output for x, which is a table where the graph has several inputs.
function Graph:forward(x)
  local values, steps = { x }, self.steps
  for i = 2, #steps do
    local s = steps[i]
    local input = values[s.inputs[1]]
    if #s.inputs > 1 then
      input = {}
      for k, at in ipairs(s.inputs) do input[k] = values[at] end
    end
    if s.select then
      input = input[s.select]
    elseif s.module then
      input = self.parts[s.module](input)
    end
    values[i] = input
  end
  return values[#steps]
end

--- The module of an object nn.gModule; sub makes the modules of a list.
return function(o, sub)
  local function damaged(what) check.fail("[torch7.load] nn.gModule: %s: the file is damaged", what) end
  if type(o.forwardnodes) ~= "table" or #o.forwardnodes < 2 then damaged "it has no forwardnodes" end
  local position, steps, modules = {}, {}, {}
  for i, node in ipairs(o.forwardnodes) do
    local data = type(node) == "table" and node.data
    if type(data) ~= "table" then damaged(("node %d has no data"):format(i)) end
    local step = { inputs = {} }
    local map = type(data.mapindex) == "table" and data.mapindex or {}
    for k, from in ipairs(map) do
      step.inputs[k] = position[from] or damaged(("an input of node %d does not run before it"):format(i))
    end
    if i > 1 and #step.inputs == 0 then damaged(("node %d has no input"):format(i)) end
    if data.selectindex ~= nil then
      step.select = data.selectindex
    elseif data.module ~= nil then
      modules[#modules + 1] = data.module
      step.module = #modules
    end
    position[data], steps[i] = i, step
  end
  return Graph(steps, sub(modules))
end
