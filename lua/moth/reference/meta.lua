--- Definition files for lua-language-server (LuaLS): what an editor completes and checks of moth. `make install` writes
-- them to PREFIX/share/moth/meta; docs/editors.md says how an editor finds them.
--
-- They are written from what is there when moth runs: the modules and classes as they are walked, the records of the
-- ops, the signatures of functions, and the comments above them. Each module and each class with its options is a
-- class of LuaLS: moth.nn, moth.nn.Linear, moth.nn.Linear.options.
local each = require "moth.each"
local entry = require "moth.reference.entry"
local signature = require "moth.utils.signature"
local M = {}

local keywords = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return then true
  until while]]):gmatch "%S+" do keywords[word] = true end

-- Types of signatures and of op records in the names of LuaLS.
local types = { Tensor = "moth.Tensor", int = "integer", size = "integer", count = "integer", layers = "integer",
  Dim = "integer", Index = "integer", Port = "integer", number = "number", bool = "boolean", string = "string",
  path = "string", dtype = "moth.dtype|string", device = "moth.device|string", list = "any[]", table = "table",
  any = "any", callable = "function|moth.nn.Module", ["function"] = "function", Module = "moth.nn.Module",
  complex = "any", ["false"] = "false", Class = "table",
  TENSOR = "moth.Tensor", OPERAND = "moth.Tensor|number", TENSORS = "moth.Tensor[]", INT = "integer", DIM = "integer",
  INDEX = "integer", FLOAT = "number", SCALAR = "number", BOOL = "boolean", STRING = "string",
  DTYPE = "moth.dtype|string", DEVICE = "moth.device|string", GENERATOR = "moth.Generator",
  INTS = "integer|integer[]", DIMS = "integer|integer[]" }

local function sorted(t)
  local list = {}
  for name in each(t) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- What methods of tensors return that are written in Lua: type -> names. Those of ops are in their records.
M.returns = {
  ["moth.Tensor"] = [[argwhere bfloat16 bincount bool byte cdist cdouble cfloat char clamp_max clamp_min clip cpu cross
    cuda data_unchecked deg2rad diff divide double fill fliplr flipud float float_power half index_put index_put_ int
    isin isneginf isposinf kron ldexp long matrix_exp matrix_power moveaxis nan_to_num new_empty new_full new_ones
    new_tensor new_zeros nextafter pin_memory pinverse positive rad2deg ravel repeat repeat_ resolve_conj resolve_neg
    rsub share_memory_ short sum_to_size take_along_dim tile to_dense true_divide]],
  boolean = [[allclose equal is_complex is_conj is_contiguous is_cuda is_fake is_floating_point is_leaf is_meta is_neg
    is_pinned is_sparse is_sparse_csr requires_grad shares_storage]],
  integer = "dim element_size get_device itemsize ndim nelement numel storage_offset",
  string = "layout type",
  ["moth.Tensor[]"] = "chunk dsplit hsplit split split_with_sizes tensor_split unbind unsafe_chunk unsafe_split vsplit",
  ["moth.dtype"] = "dtype",
  ["moth.device"] = "device",
  number = "item",
  table = "tolist totable",
}
local returned_by = {}
for kind, names in each(M.returns) do for name in names:gmatch "%S+" do returned_by[name] = kind end end

-- ---- what there is ------------------------------------------------------------------------------------

-- Names that may be written behind a dot.
local function is_name(key) return type(key) == "string" and key:find "^%a[%w_]*$" ~= nil end

local function is_class(value)
  local mt = type(value) == "table" and getmetatable(value)
  return type(mt) == "table" and mt.__call ~= nil and rawget(value, "__name") ~= nil
end

local function module_name(value)
  local mt = type(value) == "table" and getmetatable(value)
  return type(mt) == "table" and rawget(mt, "__module_name") or nil
end

-- All modules, a list of { name, table, members = { name = value } }, and the names of classes by their tables.
local function walk()
  local moth = require "moth"
  local modules, classes, seen = {}, {}, {}
  local function visit(module, name)
    if seen[module] then return end
    local m = { name = name, value = module, members = {} }
    seen[module] = m
    modules[#modules + 1] = m
    local mt = getmetatable(module)
    local keys = {}
    for key in each(module) do keys[#keys + 1] = key end
    for _, key in ipairs(mt and mt.__names and mt.__names(module) or {}) do keys[#keys + 1] = key end
    for _, key in ipairs(keys) do
      if is_name(key) then
        local ok, value = pcall(function() return module[key] end)
        if ok and value ~= nil then m.members[key] = value end
      end
    end
    for _, key in ipairs(sorted(m.members)) do
      local value = m.members[key]
      if module_name(value) then
        visit(value, module_name(value))
      elseif is_class(value) and not classes[value] then
        classes[value] = name .. "." .. key
      end
    end
  end
  visit(moth, "moth")
  return modules, classes
end

-- ---- types --------------------------------------------------------------------------------------------

local by_last_name -- Optimizer -> moth.optim.Optimizer

local function type_of(text)
  local out, seen = {}, {}
  for part in (text or "any"):gsub("%.%.%.$", ""):gmatch "[^|]+" do
    local one, brackets = part:match "^(.-)(%[%]*)$"
    if not one or brackets ~= "[]" then one, brackets = part, "" end
    local word = one:match "^'(.*)'$"
    local known = word and ('"%s"'):format(word) or types[one] or by_last_name[one] or "table"
    for each_type in known:gmatch "[^|]+" do
      local name = each_type .. brackets
      if not seen[name] then
        seen[name] = true
        out[#out + 1] = name
      end
    end
  end
  return table.concat(out, "|")
end

local function safe(name) return keywords[name] and name .. "_" or name end

-- The parameters of a signature, { name, type, optional, named, variadic }; nil of a function without one.
local function parameters_of(fn)
  local text = signature.of(fn)
  if not text then return nil end
  local ok, _, list = pcall(signature.parameters, text)
  if not ok then return nil end
  local out = {}
  for i, p in ipairs(list) do
    local t = p.type or "any"
    out[i] = { name = p.name, type = type_of(t), optional = p.optional or p.default ~= nil, named = p.named_only,
      variadic = t:find "%.%.%.$" ~= nil }
  end
  local rest = text:find "%.%.%.%s*%)" ~= nil
  return out, rest
end

-- The same of an op's record; and what it returns.
local function parameters_of_op(op)
  local out = {}
  for _, a in ipairs(op.args) do
    if a.type ~= "INDEX_BASE" then
      out[#out + 1] = { name = a.name, type = types[a.type] or "any", optional = a.optional or a.default ~= nil,
        several = (a.type == "INTS" or a.type == "DIMS") and not a.count }
    end
  end
  local returned = entry.of(op.name).head:match "%->%s*(.*)$" or "any"
  local results = {}
  for result in returned:gsub("^%((.*)%)$", "%1"):gmatch "[^,]+" do
    local plain = result:match "^%s*(%w+)"
    results[#results + 1] = result:find "%[" and (types[plain] or "any") .. "[]" or types[plain] or "any"
  end
  return out, table.concat(results, ", ")
end

-- ---- writing ------------------------------------------------------------------------------------------

local function add_doc(out, doc)
  for line in ((doc or "") .. "\n"):gmatch "(.-)\n" do
    if line ~= "" then out[#out + 1] = "---" .. (line:find "^%s*@" and " \\" or " ") .. line end
  end
end

local function doc_of(path, value)
  local ok, doc = pcall(entry.doc, path, value)
  return ok and doc or nil
end

-- A class of the options of `name`, if it takes any by name; its own name, or nil.
local function add_options(out, name, params)
  local any
  for _, p in ipairs(params) do any = any or not p.variadic end
  if not any then return nil end
  out[#out + 1] = ("---@class (exact) %s.options"):format(name)
  for _, p in ipairs(params) do
    if not p.variadic then
      out[#out + 1] = keywords[p.name] and ("---@field [%q] nil|%s"):format(p.name, p.type)
        or ("---@field %s? %s"):format(p.name, p.type)
    end
  end
  out[#out + 1] = ""
  return name .. ".options"
end

-- The comments of a function's parameters, and their names. options: the type of the table that may stand last.
local function add_parameters(out, params, options)
  local names = {}
  for _, p in ipairs(params) do
    if p.variadic then
      out[#out + 1] = "---@param ... " .. p.type
      names[#names + 1] = "..."
      return names
    elseif not p.named then
      out[#out + 1] = ("---@param %s%s %s%s"):format(safe(p.name), p.optional and "?" or "", p.type,
        p.optional and options and "|" .. options or "")
      names[#names + 1] = safe(p.name)
    end
  end
  if options then
    out[#out + 1] = "---@param options? " .. options
    names[#names + 1] = "options"
  end
  return names
end

-- fun(a: integer, b?: number, options?: …): T
local function fun(params, options, returned)
  local list = {}
  for _, p in ipairs(params or {}) do
    if p.variadic then
      list[#list + 1] = "...: " .. p.type
    elseif not p.named then
      list[#list + 1] = ("%s%s: %s%s"):format(safe(p.name), p.optional and "?" or "", p.type,
        p.optional and options and "|" .. options or "")
    end
  end
  if not params then list[1] = "...: any" end
  if options and not (params[#params] and params[#params].variadic) then
    list[#list + 1] = "options?: " .. options
  end
  return ("fun(%s)%s"):format(table.concat(list, ", "), returned and ": " .. returned or "")
end

-- A function or method as `where`.name or `where`:name.
local function add_function(out, where, name, path, value, is_method)
  local params, rest, returned
  local op
  if not signature.of(value) then -- an op, or another name of one
    local ok, found = pcall(entry.of, path, value)
    op = entry.op(path:match "[%w_]+$") or ok and found and found.op
  end
  if op and op.args and (is_method or path:find "^moth%.[%w_]+$" or path:find "^moth%.nn%.functional%.") then
    params, returned = parameters_of_op(op)
  else
    params, rest = parameters_of(value)
  end
  returned = returned or is_method and returned_by[name] or nil
  local takes = {}
  for i, p in ipairs(params or {}) do
    if not (is_method and i == 1 and (op or p.name == "self" or p.name == "input")) then takes[#takes + 1] = p end
  end
  local options = params and add_options(out, path, takes)
  local function with_self(p) return is_method and { { name = "self", type = "moth.Tensor" }, p } or { p } end
  add_doc(out, doc_of(path, value))
  local names
  if params then
    names = add_parameters(out, takes, options)
    if rest then
      if names[#names] ~= "..." then names[#names + 1] = "..." end
      out[#out + 1] = "---@param ... any"
    end
    if op and takes[1] and takes[1].several then -- x:view(2, 3)
      local sizes = { name = "...", type = "integer", variadic = true }
      out[#out + 1] = "---@overload " .. fun(with_self(sizes), nil, returned)
    end
    if options then -- all by name in one table
      out[#out + 1] = "---@overload " .. fun(with_self { name = "options", type = options }, nil, returned or "any")
    end
  else
    names = { "..." }
    out[#out + 1] = "---@param ... any"
  end
  for result in (returned or "any ..."):gmatch "[^,]+" do
    out[#out + 1] = "---@return " .. result:match "^%s*(.-)%s*$"
  end
  local list = table.concat(names, ", ")
  if keywords[name] then
    if is_method then list = list == "" and "self" or "self, " .. list end
    out[#out + 1] = ("%s[%q] = function(%s) end"):format(where, name, list)
  else
    out[#out + 1] = ("function %s%s%s(%s) end"):format(where, is_method and ":" or ".", name, list)
  end
  out[#out + 1] = ""
end

-- A class: its instances, and what makes them.
local function add_class(out, cls, path, names)
  local super = rawget(cls, "super")
  local base = super and names[super] or "moth.Object"
  local init = rawget(cls, "__init") or cls.__init
  local params = type(init) == "function" and parameters_of(init) or nil
  local options = params and add_options(out, path, params)
  out[#out + 1] = "do"
  add_doc(out, doc_of(path, cls))
  out[#out + 1] = ("---@class %s: %s"):format(path, base)
  out[#out + 1] = "local C = {}" -- in a block: a chunk has 200 locals at most
  for _, key in ipairs(sorted(cls)) do
    local value = rawget(cls, key)
    if is_name(key) and key ~= "super" and type(value) == "function" then
      local inner = parameters_of(value)
      add_doc(out, doc_of(path .. "." .. key, value))
      local list = inner and add_parameters(out, inner) or { "..." }
      if not inner then out[#out + 1] = "---@param ... any" end
      out[#out + 1] = "---@return any ..."
      out[#out + 1] = keywords[key] and ("C[%q] = function(self, ...) end"):format(key)
        or ("function C:%s(%s) end"):format(key, table.concat(list, ", "))
    end
  end
  out[#out + 1] = "end"
  out[#out + 1] = ""
  out[#out + 1] = ("---@class %s.Class: moth.Class"):format(path)
  out[#out + 1] = "---@overload " .. fun(params, options, path)
  if options then out[#out + 1] = "---@overload " .. fun({ { name = "options", type = options } }, nil, path) end
  out[#out + 1] = ""
end

local OPERATORS = [[
---@operator add(moth.Tensor|number): moth.Tensor
---@operator sub(moth.Tensor|number): moth.Tensor
---@operator mul(moth.Tensor|number): moth.Tensor
---@operator div(moth.Tensor|number): moth.Tensor
---@operator mod(moth.Tensor|number): moth.Tensor
---@operator pow(moth.Tensor|number): moth.Tensor
---@operator unm: moth.Tensor
---@field [integer] moth.Tensor
---@field grad moth.Tensor?]]

local BASE = [[
---@meta moth.globals

--- In scripts that the program moth runs.
---@type moth
moth = {}

---@class moth.Object
---@field [string] any
---@overload fun(...): any
local Object = {}
--- Whether it is an object of a class or of one of its subclasses.
---@param cls table
---@return boolean
function Object:is_a(cls) end

---@class moth.Class
---@field [string] any
local Class = {}
--- A class with this one as its base.
---@param name string
---@return table
function Class:subclass(name) end

---@class moth.dtype
---@field name string

---@class moth.device
---@field type string
]]

-- Lua's type of a value that is no function, class or module.
local function type_of_value(value)
  local mt = debug.getmetatable(value)
  local name = type(mt) == "table" and rawget(mt, "__name")
  if name == "moth.dtype" or name == "moth.device" then return name end
  local kind = type(value)
  return (kind == "userdata" or kind == "cdata") and "any" or kind
end

--- Files by name, { ["moth/nn.lua"] = text }.
function M.files()
  local modules, classes = walk()
  by_last_name = { Generator = "moth.Generator" }
  local defined = {}
  for cls, path in each(classes) do
    local last = path:match "[%w_]+$"
    if not by_last_name[last] or path < by_last_name[last] then by_last_name[last] = path end
    defined[path] = cls
  end
  -- Bases that no module has.
  local hidden, again = {}
  repeat
    again = false
    for _, path in ipairs(sorted(defined)) do
      local super = rawget(defined[path], "super")
      if type(super) == "table" and not classes[super] and rawget(super, "__name") ~= "Object" then
        local name = "moth.base." .. rawget(super, "__name"):match "[%w_]+$"
        while defined[name] do name = name .. "_" end
        classes[super], defined[name], hidden[name] = name, super, true
        again = true
      end
    end
  until not again
  classes[require("moth").Tensor] = "moth.Tensor"
  by_last_name.Tensor = "moth.Tensor"

  local files = {}
  for _, m in ipairs(modules) do
    local out = { "---@meta " .. m.name, "" }
    local fields = {}
    for _, key in ipairs(sorted(m.members)) do
      local value = m.members[key]
      local path = m.name .. "." .. key
      if path == "moth.Tensor" then -- written in its own file
        fields[#fields + 1] = { key, "moth.Class" }
      elseif module_name(value) then
        fields[#fields + 1] = { key, module_name(value) }
      elseif is_class(value) then
        if classes[value] == path then add_class(out, value, path, classes) end
        fields[#fields + 1] = { key, classes[value] .. ".Class" }
      elseif type(value) ~= "function" then
        local mt = getmetatable(value)
        fields[#fields + 1] = { key, type(value) == "table" and type(mt) == "table" and mt.__call and "fun(...): any"
          or type_of_value(value) }
      end
    end
    add_doc(out, doc_of(m.name, m.value))
    out[#out + 1] = "---@class " .. m.name
    for _, field in ipairs(fields) do
      out[#out + 1] = keywords[field[1]] and ("---@field [%q] %s"):format(field[1], field[2])
        or ("---@field %s %s"):format(field[1], field[2])
    end
    if m.name ~= "moth" and getmetatable(m.value).__call then out[#out + 1] = "---@overload fun(...): any" end
    out[#out + 1] = "local M = {}"
    out[#out + 1] = ""
    for _, key in ipairs(sorted(m.members)) do
      local value = m.members[key]
      if type(value) == "function" then add_function(out, "M", key, m.name .. "." .. key, value, false) end
    end
    out[#out + 1] = "return M"
    files[m.name:gsub("%.", "/") .. ".lua"] = table.concat(out, "\n") .. "\n"
  end

  local base = { BASE }
  for _, name in ipairs(sorted(hidden)) do add_class(base, defined[name], name, classes) end
  if not defined["moth.Generator"] then base[#base + 1] = "---@class moth.Generator: moth.Object\n" end
  files["moth/globals.lua"] = table.concat(base, "\n")

  local tensor = { "---@meta moth.Tensor", "", "---@class moth.Tensor: moth.Object", OPERATORS, "local T = {}", "" }
  local methods = require("moth.tensor").methods
  for _, name in ipairs(sorted(methods)) do
    if is_name(name) then add_function(tensor, "T", name, "moth.Tensor." .. name, methods[name], true) end
  end
  files["moth/Tensor.lua"] = table.concat(tensor, "\n") .. "\n"
  return files
end

return M
