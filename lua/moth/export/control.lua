--- moth.cond and moth.while_loop: branches and loops on elements of tensors that an exported program keeps.
--
--     local y = moth.cond(x:sum():gt(0), function(x) return x + 1 end, function(x) return x - 1 end, { x })
--     i, s = moth.while_loop(function(i, s) return i:lt(10) end, function(i, s) return i + 1, s * 2 end, { i, s })
--
-- Called as they are, they are Lua's `if` and `while`. While a program is recorded, each function becomes a program of
-- its own, and the call is one of an op that is defined for that time.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local records = require "moth.export.record"
local programs = require "moth.export.program"
local library = require "moth.library"
local tree = require "moth.lang.tree"

local M = {}

local function checked(where, list, ...)
  if B.is_tensor(list) or type(list) ~= "table" then
    check.fail("[%s] expected a list of tensors as operands, { x }, got %s", where, class.name(list))
  end
  for i = 1, #list do
    if not B.is_tensor(list[i]) then
      check.fail("[%s] operand %d: expected a tensor, got %s", where, i, type(list[i]))
    end
  end
  for i = 1, select("#", ...) do
    if not check.is_callable((select(i, ...))) then
      check.fail("[%s] expected functions, got %s", where, type((select(i, ...))))
    end
  end
end

local function is_true(where, t)
  if type(t) == "boolean" then return t end
  if not B.is_tensor(t) or t:numel() ~= 1 then
    check.fail("[%s] the condition is a tensor of one element or a boolean, got %s", where,
      B.is_tensor(t) and "one of size " .. tostring(t:size()) or type(t))
  end
  local v = t:item()
  return v ~= 0 and v ~= false
end

-- ---- recording -----------------------------------------------------------------------------------

local count = 0

-- What the results of a program are like.
local function metas_of(program, state)
  local metas, out = {}, {}
  for _, input in ipairs(program.inputs) do metas[input.name] = input end
  for _, node in ipairs(program.nodes) do
    for i, name in ipairs(node.out) do metas[name] = node.metas[i] end
  end
  for i, name in ipairs(program.outputs) do
    local t = not metas[name] and state[name].tensor
    out[i] = t and { dtype = t:dtype().name, shape = t:size() } or metas[name]
  end
  return out
end

local function same_results(where, x, y, what)
  local same = #x == #y
  for i = 1, same and #x or 0 do
    same = same and x[i].dtype == y[i].dtype and table.concat(x[i].shape, ",") == table.concat(y[i].shape, ",")
  end
  if not same then check.fail("[%s] %s: results of the same number, dtypes and sizes are expected", where, what) end
end

--- Ops for one call, whose results are like those of a program, MOST to an op; `make` turns the node of the first into
-- a call, which takes the results of the others.
local MOST = 4
function M.stand_in(name, like, make)
  count = count + 1
  local parts = {}
  for first = 1, math.max(#like, 1), MOST do
    local op = ("moth_export::%s_%d_%d"):format(name, count, first)
    local metas, results = { unpack(like, first, math.min(first + MOST - 1, #like)) }, {}
    for i = 1, #metas do results[i] = "Tensor" end
    local function fake(operands)
      local out, device = {}, operands[1] and operands[1]:device()
      for i, meta in ipairs(metas) do
        out[i] = B.fake(B.ops.empty(meta.shape, { dtype = meta.dtype, device = device }))
      end
      return unpack(out)
    end
    local fn = library.define(("%s(Tensor[] operands) -> %s"):format(op, #metas == 1 and results[1]
      or "(" .. table.concat(results, ", ") .. ")"), { impl = fake, fake = fake })
    parts[#parts + 1] = { op = op, fn = fn, make = make }
  end
  local made
  parts[1].make = function(call)
    made = make(call)
    return made
  end
  for i = 2, #parts do
    parts[i].make = function(call)
      for k, result in ipairs(call.out) do
        table.insert(made.out, result)
        table.insert(made.metas, call.metas[k])
      end
      return false
    end
  end
  return parts
end

local function call_of(recorder, made, operands)
  local out = {}
  for _, part in ipairs(made) do
    recorder.controls[part.op] = part.make
    for _, t in ipairs { part.fn(operands) } do out[#out + 1] = t end
  end
  return out
end

-- The numbers of the operands that programs write to.
local function written_by(...)
  local seen, out = {}, {}
  for _, program in ipairs { ... } do
    for k in each(program.mutated or {}) do
      if not seen[k] then out[#out + 1] = k end
      seen[k] = true
    end
  end
  table.sort(out)
  return out
end

local function rest(list, from)
  local out = { kind = "list", n = list.n - from + 1 }
  for i = from, list.n do out[i - from + 1] = list[i] end
  return out
end

local OWN = debug.getinfo(1, "S").source:match "^(.*)export/control%.lua$"
local DEPTH = 4 -- of functions and tables in them
local closed = setmetatable({}, { __mode = "k" }) -- functions that run programs: nothing is around them

-- Tensors of the record that functions reach from around them, in variables and plain tables, become operands behind
-- the others; where they stand are operands while a function runs. last: the function that gives them back, as results.
-- Returns the functions, and all operands.
local function lifted(functions, operands, last)
  local places, list, at, seen = {}, {}, {}, {}
  for i, t in ipairs(operands) do list[i], at[t] = t, i end
  local function visit(v, depth, get, put)
    local kind = type(v)
    if B.is_tensor(v) then
      if not B.is_lazy(v) then return end
      if not at[v] then list[#list + 1], at[v] = v, #list + 1 end
      places[#places + 1] = { get = get, put = put, old = v, at = at[v] }
    elseif kind == "table" and check.is_plain(v) and not seen[v] and depth < DEPTH then
      seen[v] = true
      for _, k in ipairs(tree.keys(v)) do
        if type(k) == "string" or type(k) == "number" then -- others have no order
          visit(v[k], depth + 1, function() return v[k] end, function(t) v[k] = t end)
        end
      end
    elseif kind == "function" and not seen[v] and depth < DEPTH then
      seen[v] = true
      local info = debug.getinfo(v, "Su")
      local walks = info.what ~= "C" and (depth == 0 or info.source:sub(1, #OWN) ~= OWN)
      for i = 1, walks and info.nups or 0 do
        local function now() return (select(2, debug.getupvalue(v, i))) end
        visit(now(), depth + 1, now, function(t) debug.setupvalue(v, i, t) end)
      end
    end
  end
  for _, fn in ipairs(functions) do
    if not closed[fn] then visit(fn, 0) end
  end
  if #places == 0 then return functions, operands end
  local wrapped = {}
  for k, fn in ipairs(functions) do
    wrapped[k] = function(...)
      local given = { ... }
      for _, p in ipairs(places) do p.put(given[p.at]) end
      local results = { pcall(fn, unpack(given, 1, #operands)) }
      local kept = true
      for _, p in ipairs(places) do kept = kept and rawequal(p.get(), given[p.at]) end
      for _, p in ipairs(places) do p.put(p.old) end
      if results[1] and not kept then
        check.fail("[export] a function of cond or while_loop sets a variable from around it to another tensor: "
          .. "give the tensor as a result")
      end
      if not results[1] then error(results[2], 0) end
      if k == last and #results == #operands + 1 then
        for i = #operands + 1, #list do results[i + 1] = given[i] end
      end
      return unpack(results, 2, table.maxn(results))
    end
  end
  return wrapped, list
end

local function part(program) return { kind = "program", program = program } end

--- cond(pred, true_fn, false_fn, operands): true_fn(unpack(operands)) where pred, a tensor of one element, is true (not
-- 0), else false_fn's. Both give as many tensors, of the same dtypes and sizes.
function M.cond(pred, true_fn, false_fn, operands, ...)
  operands = operands or {}
  if select("#", ...) > 0 then check.fail("[cond] takes a condition, two functions and a list of operands") end
  checked("cond", operands, true_fn, false_fn)
  local recorder = records.active()
  if not recorder or type(pred) == "boolean" or not B.is_tensor(pred) then
    if is_true("cond", pred) then return true_fn(unpack(operands)) end
    return false_fn(unpack(operands))
  end
  if pred:numel() ~= 1 then is_true("cond", pred) end
  local functions, all = lifted({ true_fn, false_fn }, operands)
  local list = { pred }
  for i, t in ipairs(all) do list[i + 1] = t end
  local made = recorder:programs(functions, all, function(parts)
    local a, b = parts[1], parts[2]
    same_results("cond", metas_of(a, recorder.state), metas_of(b, recorder.state),
      "true_fn and false_fn give different ones")
    local written = written_by(a, b)
    for _, k in ipairs(written) do
      for _, one in ipairs(parts) do
        table.insert(one.outputs, one.mutated and one.mutated[k] or one.inputs[k].name)
      end
    end
    return { written = written, ops = M.stand_in("cond", metas_of(a, recorder.state), function(call)
      local given = call.args[1]
      return { op = "cond", out = call.out, metas = call.metas, at = call.at, autocast = call.autocast,
        written = written, args = { n = 4, given[1], part(a), part(b), rest(given, 2) } }
    end) }
  end)
  local results, n = call_of(recorder, made.ops, list), #made.written
  n = #results - n
  for i, k in ipairs(made.written) do all[k]:copy_(results[n + i]) end
  return unpack(results, 1, n)
end

--- while_loop(test, body, operands): while test(unpack(operands)) is true, operands become body's results, which are as
-- many, of the same dtypes and sizes. Returns them.
function M.while_loop(test, body, operands, ...)
  if select("#", ...) > 0 then check.fail("[while_loop] takes two functions and a list of operands") end
  checked("while_loop", operands, test, body)
  local recorder = records.active()
  if not recorder then
    local list, n = operands, #operands
    while is_true("while_loop", (test(unpack(list, 1, n)))) do
      list = { body(unpack(list, 1, n)) }
      if #list ~= n then check.fail("[while_loop] the body gives %d values for %d operands", #list, n) end
    end
    return unpack(list, 1, n)
  end
  local functions, all = lifted({ test, body }, operands, 2)
  local made = recorder:programs(functions, all, function(parts)
    local a, b = parts[1], parts[2]
    if #a.outputs ~= 1 then check.fail("[while_loop] the test gives one tensor, got %d", #a.outputs) end
    same_results("while_loop", b.inputs, metas_of(b, recorder.state), "the body's results are not like its operands")
    if a.mutated then
      check.fail("[while_loop] the test writes to operand %d: take a clone of it", (next(a.mutated)))
    end
    local written = written_by(b)
    for _, k in ipairs(written) do
      if b.outputs[k] ~= b.mutated[k] then
        check.fail("[while_loop] the body writes to operand %d, and gives another value for it: take a clone of it, or "
          .. "return it", k)
      end
    end
    return { written = written, ops = M.stand_in("while_loop", b.inputs, function(call)
      return { op = "while_loop", out = call.out, metas = call.metas, at = call.at, autocast = call.autocast,
        written = written, args = { n = 3, part(a), part(b), call.args[1] } }
    end) }
  end)
  local results = call_of(recorder, made.ops, all)
  for _, k in ipairs(made.written) do all[k]:copy_(results[k]) end
  return unpack(results, 1, #operands)
end

local function of_programs(fn)
  return function(args)
    for i = 1, args.n do
      if type(args[i]) == "function" then closed[args[i]] = true end
    end
    return fn(unpack(args, 1, args.n))
  end
end
programs.controls.cond, programs.controls.while_loop = of_programs(M.cond), of_programs(M.while_loop)

return M
