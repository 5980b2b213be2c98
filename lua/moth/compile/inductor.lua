--- The backend "inductor": groups of pointwise calls (moth.compile.fuse) become kernels of generated C
-- (moth.compile.kernel_text), launched by the plan of the graph (moth.compile.runtime), which runs all other calls as
-- recorded. For segments that record no gradient, write to nothing and draw no random numbers; the rest runs call by
-- call. Where there is no C compiler, the backend is "blocks".
local B = require "moth_lua"
local blocks = require "moth.compile.blocks"
local fuse = require "moth.compile.fuse"
local graphs = require "moth.compile.graph"
local kernel_text = require "moth.compile.kernel_text"
local native = require "moth.kernel.native"
local runtime = require "moth.compile.runtime"
local toolchain = require "moth.utils.toolchain"

local M = {}

--- Kernels compiled, groups and calls in them, since the start: for tests and reports.
M.counters = { kernels = 0, groups = 0, fused = 0 }

local libraries = setmetatable({}, { __mode = "v" }) -- text -> library

local function compiled(source, cc)
  if not libraries[source] then
    if toolchain.logs("output_code") then toolchain.log("output_code", false, source) end
    local lib, message = native.library(source, cc)
    if not lib then return nil, message end
    libraries[source] = lib
    M.counters.kernels = M.counters.kernels + 1
  end
  return libraries[source]
end

-- The calls of a graph as fuse.steps takes them; nil if it has a call that writes, draws, or records a gradient.
local function read(graph)
  local value, calls = {}, {}
  local function values_of(node, call)
    local list = {}
    for i, meta in ipairs(node.metas) do
      list[i] = { facts = fuse.facts(meta), call = call, node = node.id, result = i }
      value[node] = value[node] or {}
      value[node][i] = list[i]
    end
    return list
  end
  local function convert(v)
    if type(v) ~= "table" then return v end
    if value[v] then return value[v][1] end
    if graphs.is_number(v) then return v:pin() end
    local node = rawget(v, "node")
    if node and value[node] then return value[node][rawget(v, "result")] end
    if getmetatable(v) ~= nil then return v end
    local list = { n = v.n or #v }
    for i = 1, list.n do list[i] = convert(v[i]) end
    return list
  end
  for node in graph:nodes() do
    if node.op == "placeholder" or node.op == "get_attr" then
      values_of(node)
    elseif node.op == "call" then
      local f = B.compile.graph_node(graph.handle, node.id)
      local op = require("moth.dispatch.ops").get(node.target)
      if not op or op.draws or op.writes then return nil end
      for _, meta in ipairs(node.metas) do
        if meta.requires_grad then return nil end
      end
      local call = { target = node.target, plain = f.plain, at = #calls + 1, node = node.id }
      call.args = convert(node.args)
      call.args.n = node.args.n
      call.results = values_of(node, call)
      calls[#calls + 1] = call
    else
      for i = 1, node.args.n do convert(node.args[i]).kept = true end
    end
  end
  return calls
end

local said = false

--- The backend: the plan of the graph, and true: values that are no outputs are deferred. nil and true: the calls run
-- one by one. What cannot be compiled runs in blocks.
function M.backend(graph)
  graph:pin_sizes()
  local calls = read(graph)
  if not calls then return nil, true end
  local steps, any = fuse.steps(calls), false
  for _, step in ipairs(steps) do any = any or step.fused end
  local cc = any and toolchain.cc()
  if any and not cc then
    if not said then
      toolchain.log("fusion", true, "compile: there is no C compiler: pointwise calls run in blocks; MOTH_CC names one")
    end
    said = true
  end
  if not cc then return blocks.backend(graph) end
  local kernels, number, wanted, run = {}, {}, {}, {}
  for i, step in ipairs(steps) do
    if step.fused then
      local k = kernel_text.kernel(step, wanted)
      if not number[k.text] then
        kernels[#kernels + 1] = k.text
        number[k.text] = #kernels
      end
      run[i] = k
      local names = {}
      for c, call in ipairs(step.calls) do names[c] = call.target end
      graph:add_kernel(names)
      M.counters.groups = M.counters.groups + 1
      M.counters.fused = M.counters.fused + #step.calls
    end
  end
  local lib, message = compiled(kernel_text.file(kernels, wanted), cc)
  if not lib then
    toolchain.log("fusion", true, "compile: the C compiler failed, pointwise calls run in blocks: %s", message)
    return blocks.backend(graph)
  end
  for i, step in ipairs(steps) do
    run[i] = step.fused and runtime.launch(step, run[i], number[run[i].text], lib) or step.calls[1].node
  end
  local plan = B.compile.plan_new(graph.handle, run)
  if not B.compile.plan_facts(plan).pure then return nil, true end
  return plan, true
end

return M
