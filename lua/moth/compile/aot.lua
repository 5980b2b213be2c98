--- Forward and backward graphs of a segment, for backends that take plain graphs.
--
--     local aot = require "moth.compile.aot"
--     local backend = aot.backend(function(graph, inputs, info) return graph:interpreter() end)
--     local fast = moth.compile(model, { backend = backend })
--
--     local joint, forward, backward = moth.compile.aot(model, { x })   -- the graphs of a function, to look at
--
-- An inner backend gets PLAIN graphs and returns what runs one: function(values...) -> a list of the outputs (or the
-- outputs). It is called for the forward graph when a segment is compiled, for a backward graph when that is first
-- run: one for each set of outputs whose gradients are given, and for other strides of these. All that has to do with
-- gradients, views, writes and versions is done around it. A plain graph promises:
--
-- * Calls are those below autograd: no composites (but as_strided_scatter), casts of autocast are `to_copy` calls. No
--   gradient is recorded while it runs; it may not record one.
-- * Results of calls are new and row-major; those of view ops (record.memory == "view") show their first argument.
-- * No call writes, but: `copy_(x, value)` at the end, where x is an input that the program writes to, once for each;
--   and calls of ops whose record has `writes` (native_batch_norm, sgd_step, adam_step, random fills, ops of one's
--   own), which write to inputs or to a `clone` that nothing else reads before. Such a call keeps its place among the
--   readers of what it writes to (views of it included); its results and what it has written to are used behind it.
-- * Calls that draw random numbers keep their order, and are all there; so do collectives (comm_*), as all ranks call
--   them in the same order. All other calls may change places.
-- * What is computed from constants alone (masks, tables of positions) is there: get_attr nodes, not to be written to.
-- * Inputs have dtypes, sizes and strides as noted in their `meta` each time; they may not be written to (but as
--   above), nor become outputs in the forward graph.
-- * Numbers of the program (moth.compile.graph) are numbers of the graph, where they are arguments below autograd as
--   they are: the function gets a list of them behind the values, if the graph has numbers. Sizes are constants.
-- * Outputs of a forward graph (info.kind == "forward") are results of calls, never views: row-major tensors in memory
--   of their own, which the program keeps: not memory that the next call writes to. The first info.nroots are what the
--   program sees; the others are saved for backward. Two outputs never share memory.
-- * Outputs of a backward graph (info.kind == "backward") may be inputs, views, or one value twice. Inputs are the
--   saved values, then the gradients.
--
-- info = { kind, nroots, inference (no backward follows), index (of the compiled segment), dynamic (of its graph) }.
local B = require "moth_lua"
local check = require "moth.utils.check"
local graphs = require "moth.compile.graph"
local toolchain = require "moth.utils.toolchain"
local trace = require "moth.lang.trace"
local C = B.compile

local M = {}

--- What was compiled, on this state: segments (with or without gradients), backward graphs, fallbacks (segments that
-- run as recorded).
M.counters = { segments = 0, backwards = 0, fallbacks = 0 }

--- The backends that M.backend has made: they return a function of the inputs and how it is to be used.
M.made = setmetatable({}, { __mode = "k" })

local function log(topic, title, handle)
  if toolchain.logs(topic) or toolchain.logs("aot") then
    toolchain.log(toolchain.logs(topic) and topic or "aot", false, "%s", title .. "\n" .. C.graph_text(handle))
  end
end

-- The segment of a graph, compiled by `inner`; or nil and the reason.
local function compile(graph, inputs, inner, o)
  local index = M.counters.segments + 1
  return C.aot_new(graph.handle, inputs, function(kind, handle, values, joint, nroots, inference)
    local g = graphs.new(handle)
    if joint then log("aot_joint_graph", ("joint graph of segment %d"):format(index), joint) end
    log("aot_graphs", ("%s graph of segment %d"):format(kind, index), handle)
    if kind == "backward" then M.counters.backwards = M.counters.backwards + 1 end
    local ok, fn = xpcall(inner, trace.keep, g, values, { kind = kind, index = index, nroots = nroots,
      inference = inference, dynamic = graph.dynamic })
    if not ok then
      if not require("moth.compile").config.suppress_errors then trace.rethrow(fn) end
      io.stderr:write(("[moth] warning: compile: a backend failed, the calls of a %s graph run one by one: %s\n")
        :format(kind, tostring(fn)))
      return g:interpreter()
    end
    if not check.is_callable(fn) then
      check.fail("[compile.aot] the inner backend must return a function of the graph's inputs, got %s",
        type(fn))
    end
    return fn
  end, o.separate, o.recompute)
end

--- The segment of a graph, whose graphs inner gets, as of M.backend; nil and why there is none.
function M.try(graph, inputs, inner, o)
  if type(graph) ~= "table" or not graph.handle or type(inputs) ~= "table" or not check.is_callable(inner) then
    check.fail("[compile.aot.try] expected a graph of moth.compile, the list of its inputs and a function(graph, "
      .. "inputs, info), got %s, %s, %s", type(graph), type(inputs), type(inner))
  end
  return compile(graph, inputs, inner, o or {})
end

--- A backend for any segment, of one for plain graphs: inner(graph, inputs, info) -> function(values...) -> list.
-- Options: separate = true: a backward graph returns a gradient for each use of an input, which the engine sums: the
-- same bits as without a graph also where there are gradients from elsewhere. recompute = true: of what the derivatives
-- save, the fewest bytes are, from which pointwise calls and views compute the rest again in backward; else all of it.
function M.backend(inner, o, name)
  if not check.is_callable(inner) then
    check.fail("[compile.aot.backend] expected a function(graph, inputs, info), got %s", type(inner))
  end
  o = type(o) == "boolean" and { separate = o } or check.options("compile.aot.backend", o, "separate recompute")
  local function backend(graph, inputs)
    graphs.check(name or "compile.aot.backend", graph)
    local fn, why = compile(graph, inputs, inner, o)
    if fn then
      M.counters.segments = M.counters.segments + 1
      return fn, true -- values that are no outputs are deferred
    end
    M.counters.fallbacks = M.counters.fallbacks + 1
    if why:find("leaf Variable") then why = "an input is written to that requires a gradient" end
    if toolchain.logs("aot") then toolchain.log("aot", false, "a segment runs as recorded: %s", why) end
    return nil, true -- the calls run one by one
  end
  M.made[backend] = true
  return backend
end

-- What inner gives while a function is only looked at: its graphs are read, and the calls run as they are.
local function look(list, o)
  local backend
  backend = function(graph, inputs)
    local fn, why = compile(graph, inputs, M.interpret, o)
    if not fn then check.fail("[compile.aot] %s", why) end
    local joint, forward, backward = C.aot_parts(fn)
    list[#list + 1] = { graphs.new(joint), graphs.new(forward), backward and graphs.new(backward) }
    return fn, true
  end
  M.made[backend] = true
  return backend
end

-- The joint graph of f(unpack(inputs)), its forward graph and, if a result requires a gradient, its backward graph (for
-- gradients of all of them). f runs once. Options as of M.backend. An error where the graph breaks.
local function graphs_of(f, inputs, o)
  if not check.is_callable(f) then check.fail("[compile.aot] expected a function or a module, got %s", type(f)) end
  if type(inputs) ~= "table" then check.fail("[compile.aot] expected a list of inputs, got %s", type(inputs)) end
  local list = {}
  o = check.options("compile.aot", o, "separate recompute")
  local moth_compile = require "moth.compile"
  local compiled = moth_compile(function(...) return f(...) end, { backend = look(list, o), fullgraph = true })
  local _ = { compiled(unpack(inputs, 1, inputs.n or #inputs)) }
  if #list ~= 1 then check.fail("[compile.aot] the function calls no op that could be recorded") end
  return unpack(list[1], 1, 3)
end

--- The inner backend that runs the calls one by one.
function M.interpret(graph) return graphs.check("compile.aot.interpret", graph):interpreter() end

--- The backend "aot_eager".
M.eager = M.backend(M.interpret, { separate = true }, "compile.aot.eager")

return setmetatable(M, { __call = function(_, ...) return graphs_of(...) end, __module_name = "moth.compile.aot" })
