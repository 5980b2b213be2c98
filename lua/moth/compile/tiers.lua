--- The backend where none is given: a segment runs by a plan first (moth.compile.blocks), which takes a millisecond to
-- make and gives the bits of the calls themselves; once it has run often enough, kernels are generated for it
-- (moth.compile.inductor), unless there is no compiler. So a program that calls something a few times does not wait
-- for a compiler.
--
-- After how many runs depends on the graph alone, neither on time nor on what the cache has: the same program has the
-- same bits each time.
local blocks = require "moth.compile.blocks"
local ops = require "moth.dispatch.ops"
local C = require("moth_lua").compile

local M = {}

-- Seconds that it takes to compile: once, and for each op; that fusion may save, for each byte. Runs: at least; at most
-- where a run may save BIG seconds; at most.
local START, PER_CALL, PER_BYTE = 0.1, 0.03, 1 / 8e9
local FEW, SOME, MANY, BIG = 2, 12, 1000, 1e-4

-- Kinds of the ops that kernels may be generated for.
local kinds = { pointwise = true, reduce = true, fused = true, composite = true, effect = true }

--- After how many runs kernels are generated for a graph; nil: it has no call to generate them for.
function M.runs(graph)
  local bytes, different, count = 0, {}, 0
  for node in graph:nodes() do
    local op = node.op == "call" and (ops.get(node.target) or ops.get((node.target:gsub("_$", ""))))
    if op and kinds[op.kind] then
      for _, meta in ipairs(node.metas) do
        local n = 8
        for _, size in ipairs(meta.shape) do n = n * size end
        bytes = bytes + n
      end
      count = count + (different[op] and 0 or 1)
      different[op] = true
    end
  end
  if bytes == 0 then return nil end
  local gain = bytes * PER_BYTE
  local runs = math.ceil((START + PER_CALL * count) / gain)
  return math.max(FEW, math.min(runs, gain >= BIG and SOME or MANY))
end

--- The backend. settled: the segment has run so often.
function M.backend(graph, inputs, settled)
  if settled then return require("moth.compile.inductor").backend(graph, inputs) end
  local runs = M.runs(graph)
  local code, own = blocks.backend(graph, inputs)
  return code, own, runs
end

--- Whether a segment of the trace runs code that will be replaced.
M.in_trial = C.in_trial

return M
