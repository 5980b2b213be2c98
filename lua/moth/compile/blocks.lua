--- The backend "blocks": a graph runs from C, without a compiler. Pointwise calls go through the loops of the ops in
-- blocks that stay in the cache, other calls go straight to their kernels, intermediate values share one arena. Results
-- are eager's, to the bit. For segments that record no gradient, write to nothing and draw no random numbers; the rest
-- runs call by call.
local C = require("moth_lua").compile

local M = {}

--- The plan of a graph; true: values that are no outputs are deferred. nil and true: the calls run one by one.
function M.backend(graph)
  if select(3, C.graph_facts(graph.handle)) then return nil, true end
  local plan = C.plan_new(graph.handle)
  local facts = C.plan_facts(plan)
  if not facts.pure then return nil, true end
  return plan, true
end

return M
