-- ONNX files for specs.
local messages = require "moth.onnx.messages"

local M = {}

--- A graph of nodes { op, inputs, outputs, attributes }, values { name, dtype, shape } and constants { name, tensor }.
function M.graph(nodes, inputs, outputs, constants)
  local list, ins, outs = {}, {}, {}
  for i, n in ipairs(nodes) do list[i] = messages.node(n[1], n[2], n[3], n[4] or {}, n[1] .. "_" .. i, "") end
  for i, v in ipairs(inputs) do ins[i] = messages.value(v[1], v[2], v[3]) end
  for i, v in ipairs(outputs) do outs[i] = messages.value(v[1], v[2], v[3]) end
  return messages.graph("g", list, ins, outs, constants or {})
end

--- Writes a model of such a graph.
function M.write(path, opset, ...) messages.write(messages.model(M.graph(...), opset), path) end

function M.fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert(not ok, "no error")
  assert(tostring(message):find(pattern), message)
end

return M
