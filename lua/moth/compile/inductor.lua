--- The backend "inductor": groups of pointwise calls (moth.compile.fuse) become kernels of generated C
-- (moth.compile.kernel_text); all other calls run as recorded (moth.compile.runtime). For segments that record no
-- gradient, write to nothing and draw no random numbers; the rest, and all where there is no C compiler, runs call by
-- call.
local B = require "moth_lua"
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

-- The calls of a graph as fuse.steps takes them, its placeholders, held tensors and outputs; nil if it has a call that
-- writes, draws, records a gradient, or shares memory with another's result.
local function read(graph)
  local value, calls, inputs, held, outputs = {}, {}, {}, {}, {}
  local shared = {} -- values that are inputs or views of inputs
  local function values_of(node, call)
    local list = {}
    for i, meta in ipairs(node.metas) do
      list[i] = { facts = fuse.facts(meta), call = call }
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
      local v = values_of(node)[1]
      shared[v] = true
      if node.op == "placeholder" then
        inputs[#inputs + 1] = v
      else
        held[#held + 1] = { v, node.tensor }
      end
    elseif node.op == "call" then
      local f = graph.handle and B.compile.graph_node(graph.handle, node.id)
      local op = require("moth.dispatch.ops").get(node.target)
      if not f.plain or not op or op.draws or op.writes or not B.ops[node.target] then return nil end
      for _, meta in ipairs(node.metas) do
        if meta.requires_grad then return nil end
      end
      local call = { target = node.target, plain = true, at = #calls + 1 }
      call.args = convert(node.args)
      call.args.n = node.args.n
      call.results = values_of(node, call)
      if op.memory ~= "new" then
        if op.memory ~= "view" then return nil end
        for i = 1, call.args.n do
          local v = call.args[i]
          if type(v) == "table" and v.facts and not shared[v] then return nil end
        end
        for _, v in ipairs(call.results) do shared[v] = true end
      end
      calls[#calls + 1] = call
    else
      for i = 1, node.args.n do
        local v = convert(node.args[i])
        if not v.call then return nil end
        v.kept = true
        outputs[i] = v
      end
    end
  end
  return calls, inputs, held, outputs
end

local said = false

--- The backend: a function of the graph's inputs, and true: values that are no outputs are deferred. nil and true: the
-- calls run one by one.
function M.backend(graph)
  graph:pin_sizes()
  local calls, inputs, held, outputs = read(graph)
  if not calls then return nil, true end
  local steps, any = fuse.steps(calls), false
  for _, step in ipairs(steps) do any = any or step.fused end
  if not any then return nil, true end
  local cc = toolchain.cc()
  if not cc then
    if not said then
      toolchain.log("fusion", true, "compile: there is no C compiler, so nothing is fused; MOTH_CC names one")
    end
    said = true
    return nil, true
  end
  local kernels, number, wanted, run = {}, {}, {}, {}
  for i, step in ipairs(steps) do
    if step.fused then
      local k = kernel_text.kernel(step, wanted)
      if not number[k.text] then
        kernels[#kernels + 1] = k.text
        number[k.text] = #kernels
      end
      run[i] = k
      M.counters.groups = M.counters.groups + 1
      M.counters.fused = M.counters.fused + #step.calls
    end
  end
  local lib, message = compiled(kernel_text.file(kernels, wanted), cc)
  if not lib then
    toolchain.log("fusion", true, "compile: the C compiler failed, the calls run one by one: %s", tostring(message))
    return nil, true
  end
  for i, step in ipairs(steps) do
    run[i] = step.fused and runtime.launch(run[i], number[run[i].text], lib) or runtime.single(step.calls[1])
  end
  return runtime.program(run, inputs, held, outputs), true
end

return M
