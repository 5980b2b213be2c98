--- state_dict and load_state_dict of modules.
--
-- A state dict is an ordered map (nn/ordered.lua) from names such as "net.1.weight" to tensors that share
-- storage with the module's. Names are PyTorch's, in which the children of Sequential count from 0, so that
-- its checkpoints load. `load` takes any table with such names.
local B = require "moth_lua"
local moth = require "moth"
local Ordered = require "moth.nn.ordered"
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"

local M = {}

-- Hooks of a module's state dicts: register_state_dict_pre_hook and others of nn.Module.
local function run_hooks(module, kind, ...)
  local list = rawget(module, "_state_hooks")
  for _, h in ipairs(list and list[kind] or {}) do h.fn(module, ...) end
end

local Handle = class("StateDictHook")
function Handle:__init(module, kind, fn) self.module, self.kind, self.fn = module, kind, fn end
function Handle:remove()
  local list, kept = rawget(self.module, "_state_hooks"), {}
  for _, h in ipairs(list[self.kind]) do
    if h ~= self then kept[#kept + 1] = h end
  end
  list[self.kind] = kept
end

--- Adds fn to the hooks of a kind; returns a handle with remove().
function M.register(module, kind, fn)
  local hooks = rawget(module, "_state_hooks")
  if not hooks then
    hooks = {}
    rawset(module, "_state_hooks", hooks)
  end
  local handle, list = Handle(module, kind, fn), { unpack(hooks[kind] or {}) }
  list[#list + 1] = handle
  hooks[kind] = list
  return handle
end

local function collect(module, prefix, out, bare, above)
  above = above or {}
  if above[module] then
    check.fail("[state_dict] the module at '%s' holds itself. A field that only leads back takes a table with a \z
      metatable, which is not searched: setmetatable({ parent }, {})", prefix:sub(1, -2))
  end
  above[module] = true
  if not bare then run_hooks(module, "state_dict_pre", prefix) end
  local placement = package.loaded["moth.distributed.placement"] -- a parameter may be a part of one
  for name, p in Ordered.items(module:registry("_parameters")) do
    local t = B.detach(p, false)
    out[prefix .. name] = placement and placement.share(t, p) or t
  end
  for name, b in Ordered.items(module:registry("_buffers")) do
    if not module._transient[name] then out[prefix .. name] = B.detach(b, false) end
  end
  for name, child in Ordered.items(module:registry("_modules")) do
    collect(child, prefix .. name .. ".", out, bare, above)
  end
  above[module] = nil
  if not bare then run_hooks(module, "state_dict_post", out, prefix) end
  return out
end

--- All parameters and persistent buffers by name, depth first.
function M.save(module, prefix) return collect(module, prefix or "", Ordered.new()) end

--- A state dict from a list of names and a table of tensors; moth.load calls it.
function M.from(names, values)
  local out = Ordered.new()
  for _, name in ipairs(names) do out[name] = values[name] end
  return out
end

local function shape(t) return "[" .. table.concat(B.size(t), ", ") .. "]" end

local function quoted(keys)
  local out = {}
  for i, key in ipairs(keys) do out[i] = '"' .. tostring(key) .. '"' end
  return table.concat(out, ", ")
end

-- The differences of two state dicts: names missing or unexpected, other shapes, and entries that are not tensors.
local function compare(own, source)
  local missing, unexpected, mismatched, wrong = {}, {}, {}, {}
  for name, t in Ordered.items(own) do
    local from = rawget(source, name)
    if from == nil then
      missing[#missing + 1] = name
    elseif not B.is_tensor(from) then
      wrong[#wrong + 1] = ("%s: expected a tensor, got %s"):format(name, type(from))
    elseif shape(t) ~= shape(from) then
      mismatched[#mismatched + 1] = { name = name, checkpoint = from:size(), model = t:size() }
    end
  end
  for name in each(source) do
    if rawget(own, name) == nil then unexpected[#unexpected + 1] = name end
  end
  table.sort(unexpected, function(a, b) return tostring(a) < tostring(b) end)
  return missing, unexpected, mismatched, wrong
end

-- A hint for the error message if all names of the checkpoint share a prefix that the model's lack, or the other way
-- round (wrappers of models add such prefixes).
local function hint(own, source)
  local prefix
  for name in each(source) do
    local start = type(name) == "string" and name:match("^(.-%.)") or ""
    prefix = prefix or start
    if start ~= prefix or start == "" or rawget(own, name:sub(#start + 1)) == nil then
      prefix = nil
      break
    end
  end
  if not prefix then return nil end
  local pattern = prefix:gsub("%p", "%%%0")
  return ('HINT: all names begin with "%s": moth.remap(sd, { ["^%s"] = "" })'):format(prefix, pattern)
end

local function copy_all(own, source, skipped)
  for name, t in Ordered.items(own) do
    local from = rawget(source, name)
    if from ~= nil and not skipped[name] then
      if B.tensor_device(t).type == "meta" and B.tensor_device(from).type ~= "meta" then
        check.fail("load_state_dict: %s is on the device meta, which keeps no values; load with { assign = true }, or \z
          call to_empty { device = \"cpu\" } on the module first", name)
      end
      t:copy_(from)
    end
  end
end

-- The module's tensors take over the memory of the source's, of whichever dtype and device.
local function assign_all(own, source, skipped, module)
  local function visit(m, prefix)
    for _, kind in ipairs { "_parameters", "_buffers" } do
      for name, t in Ordered.items(m:registry(kind)) do
        local from = rawget(source, prefix .. name)
        if from ~= nil and not skipped[prefix .. name] and rawget(own, prefix .. name) then
          B.set_data(t, B.detach(from, false))
        end
      end
    end
    for name, child in Ordered.items(m:registry("_modules")) do visit(child, prefix .. name .. ".") end
  end
  visit(module, "")
end

--- Copies into the module's tensors, after all names and shapes have been compared.
-- @tparam table o strict (true: missing and unexpected names are errors), ignore_mismatched_sizes (false: other shapes
-- are errors; true: those entries are left as they are), assign (true: they take over the source's memory)
-- @return missing, unexpected: lists of names; mismatched: a list of { name =, checkpoint = size, model = size }
function M.load(module, source, o)
  local where = module.__name
  if type(source) ~= "table" then
    check.fail("load_state_dict: expected a state dict of %s, got %s", where, type(source))
  end
  for path, m in module:named_modules() do -- lazy modules take their sizes from the checkpoint
    local weight = rawget(m, "_lazy") and rawget(source, path == "" and "weight" or path .. ".weight")
    if weight and B.is_tensor(weight) then m:initialize_from(weight) end
  end
  local hooked = false
  for _, m in ipairs(module:modules()) do hooked = hooked or rawget(m, "_state_hooks") ~= nil end
  if hooked then
    local copy = {}
    for name in each(source) do copy[name] = rawget(source, name) end
    source = copy -- hooks may change it
    for path, m in module:named_modules() do
      run_hooks(m, "load_state_dict_pre", source, path == "" and "" or path .. ".")
    end
  end
  local own = collect(module, "", Ordered.new(), true)
  local missing, unexpected, mismatched, wrong = compare(own, source)
  local lines, skipped = {}, {}
  if o.strict ~= false and #missing > 0 then lines[1] = "missing keys: " .. quoted(missing) end
  if o.strict ~= false and #unexpected > 0 then lines[#lines + 1] = "unexpected keys: " .. quoted(unexpected) end
  for _, m in ipairs(mismatched) do
    skipped[m.name] = true
    if not o.ignore_mismatched_sizes then
      lines[#lines + 1] = ("size mismatch for %s: the checkpoint has shape %s, the model has %s"):format(m.name,
        tostring(m.checkpoint), tostring(m.model))
    end
  end
  for _, line in ipairs(wrong) do lines[#lines + 1] = line end
  if #lines > 0 then
    lines[#lines + 1] = #missing > 0 and hint(own, source) or nil
    check.fail("%s", ("load_state_dict: the state dict does not fit %s:\n  %s"):format(where,
      table.concat(lines, "\n  ")))
  end
  moth.no_grad(o.assign and assign_all or copy_all, own, source, skipped, module)
  if hooked then
    for _, m in ipairs(module:modules()) do run_hooks(m, "load_state_dict_post", missing, unexpected) end
  end
  return missing, unexpected, mismatched
end

return M
