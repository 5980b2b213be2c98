--- What follows each layer of a model, by its exported graph: batch norms and ReLUs that become part of the layer,
-- wherever the model's code calls them.
local moth = require "moth"
local clone = require "moth.nn.clone"
local each = require "moth.each"
local specs = require "moth.quantization.spec"

local M = {}

local norms = { linear = "BatchNorm1d", conv1d = "BatchNorm1d", conv2d = "BatchNorm2d" }

-- How often each value of a program is read, and by which node last.
local function readers(program)
  local count, by = {}, {}
  local function note(v, node)
    if type(v) ~= "table" then return end
    if v.kind == "value" then
      count[v.name], by[v.name] = (count[v.name] or 0) + 1, node
    elseif v.kind == "list" then
      for i = 1, v.n do note(v[i], node) end
    end
  end
  for _, node in ipairs(program.nodes) do
    for i = 1, node.args.n do note(node.args[i], node) end
    for _, v in ipairs(node.into or {}) do note(v, node) end
  end
  for _, name in ipairs(program.outputs) do count[name] = (count[name] or 0) + 1 end
  return function(name) return count[name] == 1 and by[name] or nil end
end

-- The path of the module whose tensor `field` an argument is.
local function owner(arg, field)
  if type(arg) ~= "table" or arg.kind ~= "state" then return nil end
  if arg.name == field then return "" end
  return arg.name:match("^(.*)%." .. field .. "$")
end

-- The modules whose results ReLUs that are called once get, in a run: { [ReLU's path] = path }.
local function rectified(model, args)
  local made, of, calls, handles = {}, {}, {}, {}
  for path, m in model:named_modules() do
    if getmetatable(m) == moth.nn.ReLU then
      handles[#handles + 1] = m:register_forward_pre_hook(function(_, input)
        calls[path], of[path] = (calls[path] or 0) + 1, made[input[1]]
      end)
    else
      handles[#handles + 1] = m:register_forward_hook(function(_, _, y)
        if moth.is_tensor(y) and not made[y] then made[y] = path end
      end)
    end
  end
  local ok, message = pcall(moth.no_grad, model, unpack(args, 1, table.maxn(args)))
  for _, h in ipairs(handles) do h:remove() end
  if not ok then error(message, 0) end
  local out = {}
  for path, n in each(calls) do
    if n == 1 and of[path] then out[of[path]] = path end
  end
  return out
end

-- How many calls have tensors of the module at each path; those inside cond and while_loop count twice.
local function calls_of(program, calls, by)
  local function note(v)
    if type(v) ~= "table" then return end
    if v.kind == "program" then calls_of(v.program, calls, 2) end
    local path = owner(v, "weight") or owner(v, "running_mean")
    if path then calls[path] = (calls[path] or 0) + by end
  end
  for _, node in ipairs(program.nodes) do
    for i = 1, node.args.n do note(node.args[i]) end
  end
  return calls
end

local function argument(node, op, field)
  if not node or node.op ~= op then return nil end
  for i = 1, node.args.n do
    local path = owner(node.args[i], field)
    if path then return path end
  end
end

-- { [path of a layer] = { norm = path, relu = path } } of a program.
local function chains(program, model, relu_of)
  local reader, calls, found = readers(program), calls_of(program, {}, 1), {}
  for _, node in ipairs(program.nodes) do
    local path = norms[node.op] and argument(node, node.op, "weight")
    local spec = path and calls[path] == 1 and specs.of(model:get_submodule(path))
    if spec and norms[spec.kind] then
      local item, after = { last = path }, reader(node.out[1])
      local at = argument(after, "batch_norm", "running_mean")
      local norm = at and model:get_submodule(at)
      -- the norm's weight and its running mean are two arguments of one call
      if norm and getmetatable(norm) == moth.nn[norms[spec.kind]] and calls[at] == (norm.weight and 2 or 1) then
        item.norm, item.last, after = at, at, reader(after.out[1])
      end
      if after and after.op == "relu" then item.relu = relu_of[item.last] end
      found[path] = item
    end
  end
  return found
end

--- { [layer] = { norm =, relu = } } of the modules of a model; nil and a message where it does not export.
-- example_inputs: a tensor, or a list of arguments.
function M.behind(model, example_inputs)
  local args = moth.is_tensor(example_inputs) and { example_inputs } or example_inputs
  local copy = clone(model):eval()
  local relus = rectified(copy, args)
  local ok, program = pcall(require("moth.export.record").record, copy, args)
  if not ok then return nil, program end
  local out = {}
  for path, item in each(chains(program, copy, relus)) do
    out[model:get_submodule(path)] = { norm = item.norm and model:get_submodule(item.norm),
      relu = item.relu and model:get_submodule(item.relu) }
  end
  return out
end

return M
