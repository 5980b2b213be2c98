--- The backend "blocks": a graph runs from C, without a compiler. Pointwise calls go through the loops of the ops in
-- blocks that stay in the cache, other calls go straight to their kernels, intermediate values share one arena. Results
-- are eager's, to the bit. Segments that record a gradient, write to tensors or draw random numbers become plain graphs
-- of forward and backward first (moth.compile.aot).
local aot = require "moth.compile.aot"
local C = require("moth_lua").compile

local M = {}

local joint = aot.backend(function(graph) return C.plan_new(graph.handle) end, true)

--- The plan of a graph, or what runs its forward and backward graphs; true: values that are no outputs are deferred.
function M.backend(graph, inputs)
  if not select(3, C.graph_facts(graph.handle)) then
    local plan = C.plan_new(graph.handle)
    if C.plan_facts(plan).pure then
      return C.graph_fold(graph.handle) > 0 and C.plan_new(graph.handle) or plan, true
    end
  end
  return joint(graph, inputs)
end

return M
