--- Which inputs and outputs of a program are positions: they count from 1 in Lua, from 0 in files.
--
-- Each value has a kind: "position"; "offset", a position less 1, such as p - 1 or (p - 1) % 3; "number"; "constant",
-- which the program makes of no input, and which goes with either; "open", of an input until its uses tell. The records
-- say where positions come from (index_base), where they go (IndexTensor), and which ops give elements of their
-- arguments (src/ops/positions.lua); adding a constant moves a position. What holds both has the kind "both".
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local programs = require "moth.export.program"

local M = {}

local HOLDS_INDEX = 2 -- MothArg.holds: src/dispatch/dispatch.h

local function set(words)
  local out = {}
  for word in words:gmatch "%S+" do out[word] = true end
  return out
end

local sizes_only = set "zeros_like ones_like full_like empty_like rand_like randn_like"
local likes = set "expand_as view_as reshape_as type_as" -- of their argument `other` they read no elements
local scales = set "mul floor_divide remainder div_trunc fmod"

--- What a record says of positions: takes = { [argument] = true }, carries = { [argument] = true }, results = { [i] =
-- "carried" or "position" }, compares.
function M.facts(record)
  local known = record.position_facts
  if known then return known end
  local f = { takes = {}, carries = {}, results = {} }
  local facts, based, taken = B.op_facts(record.name), false, nil
  for i, a in ipairs(record.args) do
    based = based or a.type == "INDEX_BASE"
    if facts and facts.args[i].holds == HOLDS_INDEX then
      f.takes[a.name] = true
      taken = taken or a.name ~= "sorter"
    end
  end
  local said = record.positions or facts and facts.memory == "view" and record.args[1].name .. " -> 1" or ""
  local args, results = said:match "^(.-)%s*%->%s*(.*)$"
  args = args or said
  if args:match "^as " then f.takes[args:sub(4)], args = true, "" end
  f.carries = set(args)
  for n in (results or ""):gmatch "%d+" do f.results[tonumber(n)] = "carried" end
  f.compares = results == nil and args ~= ""
  if based and not taken and not f.takes.self then
    local last = record.nresults or 1
    f.results[last] = f.results[last] or "position"
  end
  record.position_facts = f
  return f
end

-- ---- steps ---------------------------------------------------------------------------------------

-- The calls of a program and of those in it: { node, record, args = { { name, values = { names } or nil, number } },
-- out = names }; names have their scope in front. A step without a record hands values on.
local function steps_of(program, record_of, scope, list)
  local count = 0
  local function name(v) return v.kind == "value" and scope .. v.name or nil end
  local function hand_on(from, to, node)
    list[#list + 1] = { node = node, args = { { values = { from } } }, out = { to } }
  end
  for _, node in ipairs(program.nodes) do
    local out = {}
    for i, result in ipairs(node.out) do out[i] = scope .. result end
    if programs.controls[node.op] then
      local operands = node.args[node.args.n]
      for k = 1, node.args.n do
        local v = node.args[k]
        if type(v) == "table" and v.kind == "program" then
          count = count + 1
          local inner = ("%s%d:"):format(scope, count)
          for i, input in ipairs(v.program.inputs) do
            local from = name(operands[i])
            if from then hand_on(from, inner .. input.name, node) end
          end
          steps_of(v.program, record_of, inner, list)
          local test = node.op == "while_loop" and k == 1
          for i, result in ipairs(not test and v.program.outputs or {}) do hand_on(inner .. result, out[i], node) end
        end
      end
    else
      local record, args = record_of(node.op), {}
      for i, a in ipairs(record and record.visible or {}) do
        local v, values = node.args[i], nil
        if type(v) == "table" and (v.kind == "value" or v.kind == "state") then values = { name(v) } end
        if type(v) == "table" and v.kind == "list" then
          values = {}
          for k = 1, v.n do
            if type(v[k]) == "table" then values[#values + 1] = name(v[k]) end
          end
        end
        args[i] = { name = a.name, values = values, number = not values and v or nil }
      end
      list[#list + 1] = { node = node, record = record, args = args, out = out }
    end
  end
  return list
end

-- ---- kinds ---------------------------------------------------------------------------------------

local function place(use) return use.node and ("%s at %s"):format(use.node.op, use.node.at) or "an input" end

-- The kind of what holds elements of both.
local function joined(a, b)
  if not a or a.kind == "constant" or a.kind == "both" then return a and a.kind == "both" and a or b end
  if b and b.kind == "both" then return b end
  if not b or b.kind == "constant" or b.kind == a.kind then return a end
  if a.kind == "open" then return b end
  if b.kind == "open" then return a end
  if a.kind == "position" then return { kind = "both", position = a, number = b } end
  if b.kind == "position" then return { kind = "both", position = b, number = a } end
  return a.kind == "number" and a or b
end

-- The first argument and, as a step or a number, what is added to it: nil: no call of add or sub.
local function sum_of(step)
  local op = step.node.op:gsub("_$", "")
  if op ~= "add" and op ~= "sub" then return nil end
  local alpha = step.args[3] and step.args[3].number or 1
  local a, b = step.args[1], step.args[2]
  if a.number ~= nil and op == "add" then a, b = b, a end
  local sign = op == "sub" and -1 or 1
  local c = type(b.number) == "number" and type(alpha) == "number" and sign * alpha * b.number or nil
  return a.values and a.values[1], b.values and b.values[1], c, sign, alpha ~= 1
end

local Flow = {}
Flow.__index = Flow

function Flow:kind(name) return name and self.kinds[name] or { kind = "constant" } end

local function sum_kind(self, step, a, b, c, sign, scaled)
  local x, y = self:kind(a), b and self:kind(b)
  if not b then
    if x.kind == "position" and c == -1 then return { kind = "offset", node = step.node } end
    if x.kind == "offset" and c == 1 then return { kind = "position", node = step.node } end
    return x
  end
  if x.kind == "both" or y.kind == "both" then return { kind = "number", node = step.node } end
  if scaled and y.kind ~= "constant" then return { kind = "number", node = step.node } end
  if sign > 0 and (y.kind == "position" or y.kind == "offset" or x.kind == "constant") then x, y = y, x end
  local number = y.kind == "position" or y.kind == "offset" and x.kind == "position"
    or x.kind == "open" and y.kind == "open"
    or y.kind == "number" and not step.node.metas[1].dtype:find "int" -- data, which positions are added to
  return number and { kind = "number", node = step.node } or x
end

-- Whether the elements of a step's arguments go on into its result.
local function carries(step)
  local meta = step.record and step.node.metas[1]
  return not meta or meta.dtype ~= "bool"
end

local function carried(step, facts)
  local list = {}
  for _, a in ipairs(step.args) do
    if not facts or facts.carries[a.name] then
      for _, v in ipairs(a.values or {}) do list[#list + 1] = v end
    end
  end
  return list
end

function Flow:forward(step)
  local facts = step.record and M.facts(step.record)
  local from, any
  for _, a in ipairs(step.args) do
    for _, v in ipairs(a.values or {}) do
      if self:kind(v).kind ~= "constant" then any = true end
    end
  end
  if carries(step) then
    for _, v in ipairs(carried(step, facts)) do from = joined(from, self:kind(v)) end
  end
  local a, b, c, sign, scaled = nil, nil, nil, nil, nil
  if step.record then a, b, c, sign, scaled = sum_of(step) end
  for i, name in ipairs(step.out) do
    local said = facts and facts.results[i] or not facts and "carried"
    local kind = { kind = "constant" }
    if said == "position" and step.node.metas[i].dtype:find "int" then kind = { kind = "position", node = step.node }
    elseif said == "carried" and from then kind = from
    elseif a then kind = sum_kind(self, step, a, b, c, sign, scaled)
    elseif scales[step.node.op] and self:kind(step.args[1].values and step.args[1].values[1]).kind == "offset" then
      kind = { kind = "offset", node = step.node }
    elseif any and not (step.record and sizes_only[step.node.op]) then kind = { kind = "number", node = step.node }
    end
    self.kinds[name] = step.record and kind or joined(self.kinds[name], kind)
  end
  local first = step.args[1] and step.args[1].values and step.args[1].values[1]
  if not step.record or not first then return end
  if facts.results[1] == "carried" and #step.out == 1 then self.from[step.out[1]] = first end
  if step.node.op:find "_$" then -- what is written to, and of what it is a view
    self.kinds[first] = self.kinds[step.out[1]] or self.kinds[first]
    local of = self.from[first]
    while of do
      self.kinds[of], of = joined(self.kinds[of], self.kinds[first]), self.from[of]
    end
  end
end

-- Notes that a value is used as something: "position", "offset" or "number".
function Flow:use(name, as, use)
  if not name then return end
  local uses = self.uses[name] or {}
  self.uses[name] = uses
  uses[as] = uses[as] or use
end

function Flow:backward(step)
  local facts = step.record and M.facts(step.record)
  local handed, first = {}, step.args[1] and step.args[1].values and step.args[1].values[1]
  if step.record and first and step.node.op:find "_$" then -- who reads what it writes to
    local name = first
    while name do
      for as, use in each(self.uses[name] or {}) do self:use(step.out[1], as, use) end
      name = self.from[name]
    end
  end
  if carries(step) then
    for i, name in ipairs(step.out) do
      local said, uses = not facts or facts.results[i] == "carried", self.uses[name] or {}
      if said then
        local position = uses.position or self:kind(name).kind == "position" and self:kind(name)
        for _, v in ipairs(carried(step, facts)) do
          handed[v] = true
          if position then self:use(v, "position", position) end
          if uses.number then self:use(v, "number", uses.number) end
          if uses.offset then self:use(v, "offset", uses.offset) end
        end
      end
    end
  end
  if not step.record then return end
  local here = { node = step.node }
  if facts.compares then
    local kind
    for _, v in ipairs(carried(step, facts)) do kind = joined(kind, self:kind(v)) end
    for _, v in ipairs(carried(step, facts)) do
      handed[v] = true
      if kind.kind == "position" then self:use(v, "position", kind)
      elseif kind.kind ~= "open" then self:use(v, "number", kind.number or kind)
      end
    end
  end
  local a, b, c, sign = sum_of(step)
  local uses = self.uses[step.out[1]] or {}
  if a then
    handed[a] = true
    if b then handed[b] = true end
    local x, y = self:kind(a), b and self:kind(b)
    if b and sign < 0 and (x.kind == "position" or y.kind == "position") then -- a difference of positions
      self:use(a, "position", x.kind == "position" and x or y)
      self:use(b, "position", x.kind == "position" and x or y)
    elseif not (b and x.kind == "open" and y.kind == "open") then
      if b and x.kind ~= "open" then a = b end
      local wanted = uses.position or self:kind(step.out[1]).kind == "position" and x.kind ~= "position"
        and not (y and y.kind == "position") and self:kind(step.out[1])
      if wanted then self:use(a, c == 1 and "offset" or "position", wanted) end
      if uses.offset then self:use(a, c == -1 and "position" or "offset", uses.offset) end
      if uses.number and c ~= -1 then self:use(a, "number", uses.number) end
    elseif uses.position or uses.number then
      self:use(a, "number", here)
      self:use(b, "number", here)
    end
  elseif scales[step.node.op] and uses.offset then
    if first then handed[first] = true end
    self:use(first, "offset", uses.offset)
  end
  for _, arg in ipairs(step.args) do
    for _, v in ipairs(arg.values or {}) do
      if facts.takes[arg.name] then self:use(v, "position", here)
      elseif not handed[v] and not facts.carries[arg.name] and not sizes_only[step.node.op]
        and not (likes[step.node.op] and arg.name == "other") then
        self:use(v, "number", here)
      elseif facts.carries[arg.name] and not facts.compares and not carries(step) then
        self:use(v, "number", here)
      end
    end
  end
end

--- The inputs and outputs of a program that are positions: { [name of input] = true }, { [i] = true of outputs }.
-- record_of(op): its record, with a list `visible` of the arguments that a call has.
function M.of(program, record_of)
  local steps = steps_of(program, record_of, "", {})
  local decided, flow = {}, nil
  for _ = 1, #program.inputs + 1 do
    flow = setmetatable({ kinds = {}, uses = {}, from = {} }, Flow)
    for _, input in ipairs(program.inputs) do
      flow.kinds[input.name] = decided[input.name] or { kind = input.dtype:find "int" and "open" or "number" }
    end
    for _, step in ipairs(steps) do flow:forward(step) end
    for i = #steps, 1, -1 do flow:backward(steps[i]) end
    local more = false
    for _, input in ipairs(program.inputs) do
      local uses = flow.uses[input.name]
      if uses and uses.position and not decided[input.name] and input.dtype:find "int" then
        decided[input.name], more = { kind = "position", node = uses.position.node }, true
      end
    end
    if not more then break end
  end
  for _, input in ipairs(program.inputs) do
    local uses = flow.uses[input.name]
    if uses and decided[input.name] and uses.number then
      check.fail("[onnx.export] the input %s is used as positions (%s) and as numbers (%s), and the file counts "
        .. "positions from 0: make it two inputs, or say index_base = 1 (positions count from 1 in the file, too)",
        input.name, place(uses.position), place(uses.number))
    end
  end
  local outputs = {}
  for i, name in ipairs(program.outputs) do
    local kind = flow.kinds[name] or { kind = "constant" }
    if kind.kind == "both" then
      check.fail("[onnx.export] output %d holds positions (%s) and numbers (%s), and the file counts positions from 0: "
        .. "make it two outputs, or say index_base = 1 (positions count from 1 in the file, too)", i,
        place(kind.position), place(kind.number))
    end
    outputs[i] = kind.kind == "position"
  end
  return decided, outputs
end

return M
