--- moth.compile.minify: the smallest part of a graph with which a backend fails, and a script that shows it.
--
-- What fails: the backend raises an error, or what it gives differs from the calls one by one (src/graph/check.c). The
-- first calls are bisected for where it begins to fail; then calls in front of that become inputs, as many as can.
local B = require "moth_lua"
local check = require "moth.utils.check"
local found = require "moth.compile.check"
local program = require "moth.compile.program"
local each = require "moth.each"
local C = B.compile

local M = {}

local Repro = {}
Repro.__index = Repro
function Repro:__tostring() return self.script end

-- The error of a compiled call of the program, or nil. `kind` "differs" leaves out the backend's own errors, "raises"
-- what a check finds.
local function failure(p, tensors, o)
  local message = found.attempt(program.compile(p), C.copies(tensors), o)
  if not message then return nil end
  local differs = message:find("[compile] check: ", 1, true) ~= nil
  if o.kind and o.kind ~= (differs and "differs" or "raises") then return nil end
  return message, differs and "differs" or "raises"
end

local function tensors_of(p, values)
  local list = {}
  for i, v in ipairs(p.inputs) do list[i] = values[v] end
  return list
end

-- How many of the first calls it takes to fail; nil: even all of them do not.
local function first_failing(p, tensors, o)
  if not failure(p, tensors, o) then return nil end
  local good, bad = 0, #p.calls
  while bad - good > 1 do
    local middle = math.floor((good + bad) / 2)
    if failure(program.prefix(p, middle), tensors, o) then bad = middle else good = middle end
  end
  return bad
end

--- Which call of a graph is the first whose results differ: its op, place and number, or nil.
function M.first_difference(graph, tensors, backend)
  local p, list = program.of(graph, tensors)
  local at = first_failing(p, list, { backend = backend, kind = "differs" })
  return at and p.calls[at], #p.calls
end

-- Makes results of calls into inputs: many at a time, then fewer, as long as it fails.
local function reduce(p, outputs, values, o)
  local given, best = {}, nil
  local function try(more)
    local tried = {}
    for call in each(given) do tried[call] = true end
    for _, call in ipairs(more) do tried[call] = true end
    local q = program.slice(p, outputs, tried)
    if #q.calls == 0 or #q.outputs == 0 or not failure(q, tensors_of(q, values), o) then return false end
    given, best = tried, q
    return true
  end
  if not try {} then return nil end
  local size = #best.calls
  while size >= 1 do
    local i = 1
    while best and i <= #best.calls do
      local chunk = {}
      for k = i, math.min(i + size - 1, #best.calls) do chunk[#chunk + 1] = best.calls[k] end
      if #chunk == #best.calls or not try(chunk) then i = i + size end
    end
    size = math.floor(math.min(size, #best.calls) / 2)
  end
  return best
end

-- ---- the script --------------------------------------------------------------------------------------

local function list_text(list) return "{ " .. table.concat(list, ", ") .. " }" end

local FEW = 64 -- elements that are written into the script

local function is_float(t) return B.tensor_dtype(t).is_floating_point end

-- An expression for a tensor like t: its own elements where they are few, else random ones.
local function input_text(t)
  local dtype, device = B.tensor_dtype(t), tostring(B.tensor_device(t))
  local size, stride = B.size(t), B.stride(t)
  local place = device == "cpu" and "" or (", device = %q"):format(device)
  local o = ("{ dtype = %s%s }"):format(tostring(dtype), place)
  local text
  if B.numel(t) <= FEW then
    local parts = {}
    local function write(v)
      if type(v) ~= "table" then
        v = tonumber(v) or v
        return type(v) == "number" and (v ~= v and "0 / 0" or v == math.huge and "1 / 0" or v == -math.huge and "-1 / 0"
          or ("%.9g"):format(v)) or tostring(v)
      end
      local list = {}
      for i = 1, #v do list[i] = write(v[i]) end
      return list_text(list)
    end
    local flat = B.ops.reshape(B.alias(t, false), { -1 })
    for i, v in ipairs(B.totable(B.ops.to(flat, { device = "cpu" }))) do parts[i] = write(v) end
    text = ("moth.tensor(%s, %s):reshape(%s)"):format(list_text(parts), o, list_text(size))
    if #parts == 0 then text = ("moth.empty(%s, %s)"):format(list_text(size), o) end
  elseif is_float(t) then
    text = ("moth.randn(%s, %s)"):format(list_text(size), o)
  elseif dtype.name == "bool" then
    text = ("moth.rand(%s):gt(0.5)%s"):format(list_text(size), place ~= "" and (":to(%q)"):format(device) or "")
  else
    local low, high = B.ops.amin(t):item(), B.ops.amax(t):item()
    text = ("moth.randint(%s, %s, %s, %s)"):format(tostring(low), tostring(high), list_text(size), o)
  end
  if not B.is_contiguous(t) then
    text = ("like(%s, %s)"):format(text, list_text(stride))
  end
  if B.requires_grad(t) then text = text .. ":requires_grad_(true)" end
  return text
end

local like = [[
local function like(t, stride) -- t's elements with these strides
  local n = 1
  for i = 1, #stride do n = n + (t:size(i) - 1) * stride[i] end
  local out = moth.zeros(n, { dtype = t.dtype, device = t.device }):as_strided(t:size(), stride)
  return moth.no_grad(function() return out:copy_(t) end)
end
]]

local function backend_text(backend) return type(backend) == "string" and ("%q"):format(backend) or "backend" end

local function script(p, tensors, o, message, kept)
  local lines = { "-- moth.compile.minify: " .. message:gsub("%s*\n%s*", "; "), 'local moth = require "moth"',
    'local ops = require("moth_lua").ops', "" }
  local inputs, names, uses_like = {}, {}, false
  for i, t in ipairs(tensors) do
    local text = input_text(t)
    uses_like = uses_like or text:find("^like%(")
    inputs[i] = ("local %s = %s"):format(p.inputs[i].name, text)
    names[i] = p.inputs[i].name
  end
  if uses_like then lines[#lines + 1] = like end
  if type(o.backend) ~= "string" then
    lines[#lines + 1] = 'local backend = error("put the backend here: a function(graph, inputs)")'
  end
  lines[#lines + 1] = program.source(p)
  lines[#lines + 1] = ""
  lines[#lines + 1] = "moth.manual_seed(0)"
  if kept then
    lines[#lines + 1] = ("local inputs = moth.load(%q)"):format(kept)
    for i, t in ipairs(tensors) do
      if B.requires_grad(t) then lines[#lines + 1] = ("inputs[%d]:requires_grad_(true)"):format(i) end
    end
    names = { "unpack(inputs)" }
  elseif #inputs <= 100 then
    for _, text in ipairs(inputs) do lines[#lines + 1] = text end
  else
    lines[#lines + 1] = "local inputs = {}"
    for i, text in ipairs(inputs) do
      lines[#lines + 1] = text:gsub("^local [%w_]+", ("inputs[%d]"):format(i))
    end
    names = { "unpack(inputs)" }
  end
  lines[#lines + 1] = ("moth.compile.config.check = %s"):format(tostring(o.check ~= false))
  lines[#lines + 1] = ("moth.compile(f, { backend = %s })(%s)"):format(backend_text(o.backend),
    table.concat(names, ", "))
  lines[#lines + 1] = 'print "it does not fail"'
  return table.concat(lines, "\n") .. "\n"
end

-- Inputs of which the script does not have the elements, as it makes them; the tensors themselves where that does not
-- fail.
local function as_in_script(p, tensors, o)
  local moth, list, same = require "moth", {}, true
  local state = { B.generator_state(nil) }
  moth.manual_seed(0)
  local ok = pcall(function()
    for i, t in ipairs(tensors) do
      local text = "local moth = ...\n" .. like .. "return " .. input_text(t)
      same = same and B.numel(t) <= FEW
      list[i] = loadstring(text)(moth)
    end
  end)
  B.generator_set_state(nil, unpack(state))
  if not ok then return tensors, false end
  if same or failure(p, list, o) then return list, true end
  return tensors, false
end

--- Reduces a graph with which a backend fails. graph: of moth.compile.capture, or a function, which is compiled and
-- called first; inputs: a list. Options: backend (default "inductor"), check (default true: results are compared, too;
-- false: only errors count), save = path of a script. Returns { script, call_count, ops, inputs, message }, which
-- prints as a script that fails in the same way. An error if nothing fails.
function M.minify(graph, inputs, o)
  o = check.options("compile.minify", o, "backend check save")
  if type(inputs) ~= "table" then
    check.fail("[compile.minify] expected a list of inputs, got %s", type(inputs))
  end
  o = { backend = o.backend or "inductor", check = o.check, save = o.save }
  local moth = require "moth"
  if type(graph) ~= "table" or getmetatable(graph) ~= require("moth.compile.graph").Graph then
    if not check.is_callable(graph) then
      check.fail("[compile.minify] expected a graph or a function, got %s", type(graph))
    end
    local message, failed = found.attempt(graph, inputs, o)
    if message and not failed then check.fail("[compile.minify] the function itself fails: %s", message) end
    if not message then
      check.fail("[compile.minify] nothing fails: the backend raises no error%s",
        o.check ~= false and ", and its results are those of the calls one by one" or "")
    end
    graph, inputs = failed.graph, failed.inputs
  end
  local p, tensors = program.of(graph, inputs)
  if #tensors ~= #p.inputs then
    check.fail("[compile.minify] the graph has %d inputs, got %d", #p.inputs - #tensors + #inputs, #inputs)
  end
  local message, kind = failure(p, tensors, o)
  if not message then
    check.fail("[compile.minify] nothing fails: the backend raises no error%s",
      o.check ~= false and ", and its results are those of the calls one by one" or "")
  end
  o.kind = kind
  local at = first_failing(p, tensors, o) or #p.calls
  local values = program.values(p, tensors)
  local cut = program.prefix(p, at)
  local best = reduce(cut, p.calls[at] and p.calls[at].results or {}, values, o) or reduce(cut, cut.outputs, values, o)
    or reduce(p, p.outputs, values, o) or p
  local list, complete = as_in_script(best, tensors_of(best, values), o)
  message = failure(best, list, o) or message
  local ops = {}
  for i, call in ipairs(best.calls) do ops[i] = call.target end
  local kept = not complete and o.save and o.save .. ".inputs"
  if kept then moth.save(kept, list) end
  local text = script(best, list, o, message, kept)
  if not complete and not kept then
    text = "-- It fails with the inputs it was found with, not with those made below; `save` keeps them.\n" .. text
  end
  local result = setmetatable({ script = text, call_count = #best.calls, ops = ops, inputs = list, message = message },
    Repro)
  if o.save then
    local file, why = io.open(o.save, "w")
    if not file then check.fail("[compile.minify] cannot write %s", why) end
    file:write(text)
    file:close()
  end
  return result
end

return M
