--- ONNX's operators with graphs in them, its sequences and optionals.
--
-- A branch or loop whose condition is known while a program is recorded is taken or unrolled; else it becomes moth.cond
-- or moth.while_loop, with the values that its graphs use from around them as operands.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local each = require "moth.each"
local tree = require "moth.lang.tree"
local rule = import.rule
local CONTROL = { control = true, any = true }

local function truth(c, t) return c:list(t)[1] ~= 0 end

-- Results of a graph as operands of what follows.
local function operands(run, ...)
  local list = { ... }
  for i = 1, select("#", ...) do list[i] = run:operand(list[i], "result") end
  return unpack(list, 1, select("#", ...))
end

-- The values from around that graphs use and a run tells only then, by name: in a plain table, so that functions of
-- moth.cond and moth.while_loop reach them.
local function captured(c, ...)
  local around = {}
  for i = 1, select("#", ...) do
    for _, name in ipairs(tree.keys((select(i, ...)).free)) do
      local v = c.env[name]
      if B.is_tensor(v) and not c.run.static[v] then around[name] = v end
    end
  end
  return around
end

-- The graph's results with these values of the surrounding one: a program of its own.
local function within(c, around, graph, given, n)
  local env = setmetatable({}, { __index = c.env })
  for name, v in each(around) do env[name] = v end
  local made = c.run.made
  c.run.made = setmetatable({}, { __mode = "k" })
  local results = { pcall(function() return operands(c.run, c.run:graph(graph, given, env, n)) end) }
  c.run.made = made
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, table.maxn(results))
end

rule("If", "then_branch else_branch", function(c, condition)
  if c:known(condition) then
    return c.run:graph(truth(c, condition) and c.then_branch or c.else_branch, {}, c.env)
  end
  local around = captured(c, c.then_branch, c.else_branch)
  local function branch(name)
    return function() return within(c, around, c[name], {}) end
  end
  return moth.cond(condition, branch "then_branch", branch "else_branch")
end, CONTROL)

-- Whether the body of a loop never changes its condition: the condition is passed on, or a constant that is true.
local function lasts(body)
  local name = body.outputs[1]
  for i = #body.nodes, 1, -1 do
    local node = body.nodes[i]
    if node.outputs[1] == name then
      if node.op == "Identity" then name = node.inputs[1]
      elseif node.op == "Constant" then return true
      elseif node.op ~= "Cast" then return false
      else name = node.inputs[1]
      end
    end
  end
  return name == body.inputs[2] or body.constants[name] ~= nil
end

local function int64(n) return moth.tensor(n, { dtype = moth.int64 }) end

-- A loop while it is recorded, of which the number of steps is not known.
local function while_loop(c, most, condition, carried)
  local n, around = #carried, captured(c, c.body)
  if #c.body.outputs > n + 1 then c:fail("a loop of unknown length that collects results cannot be recorded") end
  local start = { B.ops.to(int64(0), { device = c.run.device }), condition or B.ops.to(moth.tensor(true),
    { device = c.run.device }), unpack(carried) }
  for i = 1, n + 2 do start[i] = c.run:operand(start[i], c.node.label) end
  local results = { moth.while_loop(function(i, going)
    if not most then return going:clone() end
    return going:logical_and(i:lt(c.run:operand(most, c.node.label):reshape({})))
  end, function(...)
    local given = { ... }
    local out = { within(c, around, c.body, given, n + 2) }
    return given[1] + 1, out[1]:reshape(given[2]:size()):clone(), unpack(out, 2, n + 1)
  end, start) }
  return unpack(results, 3, n + 2)
end

-- What a loop without steps collects: none of what a step gives, which one step tells.
local function no_steps(c, body, at, carried)
  local ok, one = pcall(function()
    return moth.no_grad(function()
      return (select(at, c.run:graph(body, { int64(0), moth.tensor(true), unpack(carried) }, c.env, #carried + 2)))
    end)
  end)
  if not ok then c:fail("it makes no step, and the size of what a step gives is not known: %s", tostring(one)) end
  local shape = one:size()
  table.insert(shape, 1, 0)
  return moth.zeros(shape, { dtype = one:dtype(), device = one:device() })
end

local MOST = 100000 -- steps of a loop that is unrolled into a program

rule("Loop", "body", function(c, most, condition, ...)
  local body, n = c.body, c.n > 2 and c.n - 2 or 0
  local carried = { ... }
  local run = c.run
  if run.recording and not ((most == nil or c:known(most)) and (condition == nil or c:known(condition))
      and (lasts(body) and most ~= nil)) then
    return while_loop(c, most, condition, carried)
  end
  local limit = most and c:number(most) or math.huge
  local going, step = condition == nil or truth(c, condition), 0
  local scans = {}
  for i = 1, #body.outputs - 1 - n do scans[i] = {} end
  while going and step < limit do
    local counter, flag = int64(step), moth.tensor(true)
    run.static[counter], run.static[flag] = "constant", "constant"
    local out = { run:graph(body, { counter, flag, unpack(carried, 1, n) }, c.env, n + 2) }
    going = truth(c, out[1])
    for i = 1, n do carried[i] = out[1 + i] end
    for i, list in ipairs(scans) do list[#list + 1] = run:operand(out[1 + n + i], c.node.label) end
    step = step + 1
    if run.recording and step > MOST then c:fail("more than %d steps", MOST) end
  end
  local results = { unpack(carried, 1, n) }
  for i, list in ipairs(scans) do
    results[n + i] = #list > 0 and moth.stack(list, 1) or no_steps(c, body, i + n + 1, carried)
  end
  return unpack(results, 1, n + #scans)
end, CONTROL)

rule("Scan", "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions \z
  directions",
  function(c, ...)
    local args, body, run = { ... }, c.body, c.run
    local offset = 0
    if c.opset < 9 then -- with a batch, and the lengths of its sequences
      offset = 1
      if args[1] then c:fail("sequences of different lengths") end
    end
    local m = c.num_scan_inputs
    local n = c.n - offset - m
    if m < 1 or n < 0 or n > #body.outputs then
      c:fail("num_scan_inputs is %d, of %d inputs, and the body has %d results", m, c.n - offset, #body.outputs)
    end
    local function option(name, i) return c[name] and c[name][i] or 0 end
    local function scan(states, inputs, batch)
      local steps
      for i, x in ipairs(inputs) do
        inputs[i] = { x = run:operand(x, c.node.label), dim = c:dim(option("scan_input_axes", i), x),
          back = option("scan_input_directions", i) == 1 or batch and option("directions", i) == 1 }
        steps = x:size(inputs[i].dim)
      end
      local scans = {}
      for i = 1, #body.outputs - n do scans[i] = {} end
      for step = 1, steps do
        local given = { unpack(states, 1, n) }
        for i, input in ipairs(inputs) do
          given[n + i] = input.x:select(input.dim, input.back and steps + 1 - step or step)
        end
        local out = { run:graph(body, given, c.env, n + m) }
        for i = 1, n do states[i] = out[i] end
        for i, list in ipairs(scans) do
          local v = run:operand(out[n + i], c.node.label)
          if option("scan_output_directions", i) == 1 then table.insert(list, 1, v) else list[step] = v end
        end
      end
      local results = { unpack(states, 1, n) }
      for i, list in ipairs(scans) do
        if #list == 0 then c:fail("no steps") end
        local axis = option("scan_output_axes", i)
        results[n + i] = moth.stack(list, axis < 0 and axis or axis + 1)
      end
      return results
    end
    if offset == 0 then return unpack(scan({ unpack(args, 1, n) }, { unpack(args, n + 1, n + m) })) end
    local rows, count = {}, args[1 + offset]:size(1)
    for b = 1, count do
      local states, inputs = {}, {}
      for i = 1, n do states[i] = args[offset + i]:select(1, b) end
      for i = 1, m do inputs[i] = args[offset + n + i]:select(1, b) end
      rows[b] = scan(states, inputs, true)
    end
    local results = {}
    for i = 1, #body.outputs do
      local list = {}
      for b = 1, count do list[b] = rows[b][i] end
      results[i] = moth.stack(list, 1)
    end
    return unpack(results)
  end, CONTROL)

-- ---- sequences -----------------------------------------------------------------------------------

local function copy(s)
  local out = { kind = "sequence" }
  for i, v in ipairs(s) do out[i] = v end
  return out
end
local function sequence(name, attributes, fn, numbers)
  rule(name, attributes, fn, { any = true, numbers = numbers })
end

local function place(c, s, position, last)
  if position == nil then return last end
  local at = c:number(position)
  if at < 0 then at = at + #s end
  if at < 0 or at >= math.max(last, 1) then c:fail("there is no position %d in a sequence of %d", at, #s) end
  return at + 1
end

rule("SequenceEmpty", "dtype=1", function() return { kind = "sequence" } end, CONTROL)
sequence("SequenceConstruct", "", function(_, ...) return { kind = "sequence", ... } end)
sequence("SequenceInsert", "", function(c, s, v, position)
  local out = copy(s)
  table.insert(out, place(c, s, position, #s + 1), v)
  return out
end, 3)
sequence("SequenceErase", "", function(c, s, position)
  local out = copy(s)
  table.remove(out, place(c, s, position, #s))
  return out
end, 2)
sequence("SequenceAt", "", function(c, s, position) return s[place(c, s, position, #s)] end, 2)
rule("SequenceLength", "", function(c, s)
  local n = int64(#s)
  c.run.static[n] = "constant"
  return n
end, CONTROL)
sequence("ConcatFromSequence", "axis new_axis=0", function(c, s)
  local first = s[1] or c:fail("an empty sequence")
  local list = {}
  for i, v in ipairs(s) do list[i] = v end
  if c.new_axis == 1 then return moth.stack(list, c:dim(c.axis, first:dim() + 1)) end
  return moth.cat(list, c:dim(c.axis, first))
end)
sequence("SplitToSequence", "axis=0 keepdims=1", function(c, x, split)
  local dim, sizes = c:dim(c.axis, x), {}
  local n = x:size(dim)
  if split == nil or split:dim() == 0 then
    local step = split and c:number(split) or 1
    if step < 1 then c:fail("parts of %d", step) end
    for at = 0, n - 1, step do sizes[#sizes + 1] = math.min(step, n - at) end
  else
    sizes = c:list(split)
  end
  local out, at = { kind = "sequence" }, 1
  for i, size in ipairs(sizes) do
    local part = x:narrow(dim, at, size)
    out[i] = not split and c.keepdims == 0 and part:squeeze(dim) or part
    at = at + size
  end
  return out
end, 2)

rule("SequenceMap", "body", function(c, s, ...)
  local more, out = { ... }, {}
  for k = 1, #c.body.outputs do out[k] = { kind = "sequence" } end
  for i, v in ipairs(s) do
    local given = { v }
    for k = 1, c.n - 1 do
      local other = more[k]
      given[k + 1] = type(other) == "table" and other.kind == "sequence" and other[i] or other
    end
    local results = { c.run:graph(c.body, given, c.env, c.n) }
    for k, list in ipairs(out) do list[i] = results[k] end
  end
  return unpack(out)
end, CONTROL)

-- ---- optionals -----------------------------------------------------------------------------------

rule("Optional", "type", function(_, x) return { kind = "optional", value = x } end, CONTROL)
rule("OptionalHasElement", function(c, x)
  local has = x ~= nil
  if type(x) == "table" and x.kind == "optional" then has = x.value ~= nil end
  local t = moth.tensor(has)
  c.run.static[t] = "constant"
  return t
end, CONTROL)
rule("OptionalGetElement", function(c, x)
  if type(x) == "table" and x.kind == "optional" then x = x.value end
  if x == nil then c:fail("the optional has no value") end
  return x
end, CONTROL)
