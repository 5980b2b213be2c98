--- moth.lora: fine-tuning with few parameters (Hu et al. 2021): layers stay as they are, and products of two small
-- matrices beside them are trained (docs/lora.md).
--
--     moth.lora.wrap(model, { r = 8, alpha = 16, target_modules = { "q_proj", "v_proj" } })
--     local opt = optim.AdamW(model:parameters(), { lr = 1e-4 })      -- only what is trained has gradients
--     moth.lora.save(model, "adapter")     -- a folder that PEFT reads; moth.lora.load(model, "adapter") reads PEFT's
--     moth.lora.merge(model)               -- the plain model again, with what was learned in its weights
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local json = require "moth.io.json"
local layers = require "moth.lora.layers"
local moth = require "moth"
local nn = moth.nn
local pretrained = require "moth.models.pretrained"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"

local M = {}

local PREFIX = "base_model.model." -- of names in PEFT's files

local function listed(model)
  local list = {}
  for name, m in model:named_modules() do list[#list + 1] = { name, m } end
  return list
end

-- All names of each module of a model: { module = list }, where several places may have one.
local function names_of(model)
  local out = {}
  local function walk(m, path)
    out[m] = out[m] or {}
    table.insert(out[m], path)
    for name, child in each(m:registry "_modules") do walk(child, path == "" and name or path .. "." .. name) end
  end
  walk(model, "")
  for _, list in each(out) do table.sort(list) end
  return out
end

-- Puts a module in all places of another; names: names_of the model.
local function replace(model, names, old, new)
  for _, name in ipairs(names[old]) do model:set_submodule(name, new) end
end

-- The class of layer for a module; nil: there is none.
local function kind_of(m)
  if layers.is(m) then return nil end
  if class.is_a(m, nn.Embedding) then return layers.Embedding end
  if class.is_a(m, nn.Linear) or class.name(m) == "BlockLinear" then return layers.Linear end
end

-- Whether a name is one of the targets, or ends in one; a text is a Lua pattern for the whole name.
local function fits(name, targets)
  if type(targets) == "string" then return name:find("^" .. targets .. "$") ~= nil end
  for _, t in ipairs(targets) do
    if name == t or name:sub(-#t - 1) == "." .. t then return true end
  end
  return false
end

local function parent_of(model, name)
  local path = name:match "^(.*)%.[^.]+$"
  return path and model:get_submodule(path) or model
end

-- The kind of layer that goes around the module of a name.
local function checked(where, model, name, m)
  local kind = kind_of(m)
  if name == "" then
    check.fail("[lora.%s] the model is itself a layer: put it into a container, nn.Sequential(layer)", where)
  elseif not kind then
    check.fail("[lora.%s] '%s' is a %s; LoRA takes nn.Linear, quantized linear layers and nn.Embedding", where, name,
      class.name(m))
  end
  if class.name(parent_of(model, name)) == "MultiheadAttention" then
    check.fail("[lora.%s] '%s': nn.MultiheadAttention reads the weights of its parts, so that a layer around one \z
      would do nothing", where, name)
  end
  return kind
end

local function freeze(model, bias)
  for name, p in model:named_parameters() do
    local own = name:find "lora_[AB]%.weight$" or name:find "lora_embedding_[AB]$"
    local is_bias = bias == "all" and name:find "bias$" or bias == "lora_only" and name:find "base_layer%.bias$"
    p:requires_grad_((own or is_bias) and true or false)
  end
end

--- Puts LoRA around layers of a model, in place, and freezes all else. target_modules: names, or ends of names
-- ({ "q_proj", "v_proj" }), a Lua pattern for whole names, or "all-linear" (but for lm_head). alpha: the product is
-- scaled by alpha / r, or with rslora by alpha / sqrt(r). bias: which biases are trained; modules_to_save: modules that
-- are trained whole and saved with the adapter, as a new head. rank_pattern, alpha_pattern: other values by end of
-- name. Returns the model.
M.wrap = signature("lora.wrap(Module model, *, count r=8, number alpha=8, number dropout=0, \z
  string|string[] target_modules='all-linear', string[] modules_to_save?, 'none'|'all'|'lora_only' bias='none', \z
  bool rslora=false, table rank_pattern?, table alpha_pattern?)",
function(model, r, alpha, dropout, targets, to_save, bias, rslora, ranks, alphas)
  if model.lora then check.fail("[lora.wrap] the model has LoRA layers already; merge or unload them first") end
  local found, names = {}, names_of(model)
  local function any(m, wanted)
    for _, name in ipairs(names[m]) do
      if name ~= "" and fits(name, wanted) then return true end
    end
    return false
  end
  for _, e in ipairs(listed(model)) do
    local name, m = e[1], e[2]
    local is_linear = kind_of(m) == layers.Linear and not any(m, { "lm_head" })
    if targets == "all-linear" and is_linear or targets ~= "all-linear" and any(m, targets) then
      found[#found + 1] = { name, m }
    end
  end
  local function value(pattern, name, default)
    for key, v in each(pattern or {}) do if fits(name, { key }) then return v end end
    return default
  end
  for _, wanted in ipairs(to_save or {}) do
    local is_there = false
    for _, e in ipairs(listed(model)) do is_there = is_there or any(e[2], { wanted }) end
    if not is_there then check.fail("[lora.wrap] modules_to_save: the model has no module '%s'", wanted) end
  end
  local kinds = {}
  for _, e in ipairs(found) do -- before anything is changed
    if not (to_save and any(e[2], to_save)) then kinds[e[2]] = checked("wrap", model, e[1], e[2]) end
  end
  for _, e in ipairs(found) do
    local name, m = e[1], e[2]
    if kinds[m] then
      replace(model, names, m, kinds[m](m, { r = value(ranks, name, r), alpha = value(alphas, name, alpha),
        dropout = dropout, rslora = rslora }))
    end
  end
  if next(kinds) == nil then
    check.fail("[lora.wrap] no layer of the model fits target_modules (%s)", type(targets) == "table"
      and table.concat(targets, ", ") or targets)
  end
  freeze(model, bias)
  for _, e in ipairs(to_save and listed(model) or {}) do
    if names[e[2]] and any(e[2], to_save) then e[2]:requires_grad_(true) end
  end
  model.lora = { r = r, alpha = alpha, dropout = dropout, bias = bias, rslora = rslora, targets = targets,
    modules_to_save = to_save, rank_pattern = ranks, alpha_pattern = alphas }
  return model
end)

local function wrapped(where, model)
  local list = {}
  for _, e in ipairs(listed(model)) do if layers.is(e[2]) then list[#list + 1] = e end end
  if #list == 0 then check.fail("[lora.%s] the model has no LoRA layers", where) end
  return list
end

--- Adds what was learned to the weights and puts the plain layers back: the model runs as before, without extra work.
-- Returns the model.
M.merge = signature("lora.merge(Module model)", function(model)
  local names = names_of(model)
  local users = {} -- of each weight: one that others use too, such as an embedding's, stays as it is for them
  for _, e in ipairs(listed(model)) do
    local w = moth.is_tensor(e[2].weight) and e[2].weight:data_ptr()
    if w then users[tostring(w)] = (users[tostring(w)] or 0) + 1 end
  end
  local list = wrapped("merge", model)
  for _, e in ipairs(list) do -- before anything is changed
    local base = e[2].base_layer
    if not moth.is_tensor(base.weight) or not base.weight:is_floating_point() then
      check.fail("[lora.merge] %s is quantized: nothing can be added to its weight\nHINT: load the model with \z
        { dtype = moth.float32 }, then the adapter", class.name(base))
    end
  end
  for _, e in ipairs(list) do
    replace(model, names, e[2], e[2]:merged(users[tostring(e[2].base_layer.weight:data_ptr())] > 1))
  end
  model.lora = nil
  return model
end)

--- Puts the plain layers back without what was learned. Returns the model.
M.unload = signature("lora.unload(Module model)", function(model)
  local names = names_of(model)
  for _, e in ipairs(wrapped("unload", model)) do replace(model, names, e[2], e[2].base_layer) end
  model.lora = nil
  return model
end)

-- Name in PEFT's files -> tensor of the model.
local function tensors_of(where, model)
  local out, o, other = {}, model.lora or {}, {} -- other: further names of a layer, which is saved once
  local names = names_of(model)
  for _, e in ipairs(wrapped(where, model)) do
    for _, name in ipairs(names[e[2]]) do
      if name ~= e[1] then other[name] = true end
    end
  end
  for name, t in model:state_dict():items() do
    local own = name:find "%.lora_[AB]%.weight$" or name:find "%.lora_embedding_[AB]$"
      or name:find "^lora_[AB]%.weight$" or name:find "^lora_embedding_[AB]$"
    local bias = o.bias == "all" and name:find "bias$" or o.bias == "lora_only" and name:find "base_layer%.bias$"
    local saved = false
    for _, t_name in ipairs(o.modules_to_save or {}) do
      local at = ("." .. name):find("." .. t_name .. ".", 1, true)
      saved = saved or at ~= nil
    end
    local layer = name:match "^(.*)%.lora_.*$" or name:match "^(.*)%.base_layer%."
    if (own or saved or bias) and not other[layer or ""] then out[PREFIX .. name] = t end
  end
  return out
end

--- What was trained, and no more: the tensors of LoRA layers, trained biases and modules_to_save, under PEFT's names.
M.state_dict = signature("lora.state_dict(Module model)", function(model) return tensors_of("state_dict", model) end)

--- Takes the tensors of such a table into a model with the same LoRA layers.
M.load_state_dict = signature("lora.load_state_dict(Module model, table state_dict)", function(model, sd)
  local own = tensors_of("load_state_dict", model)
  local wrong = {}
  for name, t in each(own) do
    if not B.is_tensor(sd[name]) then
      wrong[#wrong + 1] = "missing " .. name
    elseif table.concat(sd[name].shape, ",") ~= table.concat(t.shape, ",") then
      wrong[#wrong + 1] = ("%s is [%s], the model's is [%s]"):format(name, table.concat(sd[name].shape, ", "),
        table.concat(t.shape, ", "))
    end
  end
  for name in each(sd) do if own[name] == nil then wrong[#wrong + 1] = "unexpected " .. tostring(name) end end
  table.sort(wrong)
  if #wrong > 0 then
    check.fail("[lora.load_state_dict] %d tensors do not fit: %s", #wrong, table.concat(wrong, "; ", 1, math.min(#wrong,
      8)))
  end
  moth.no_grad(function() for name, t in each(own) do t:copy_(sd[name]) end end)
  return model
end)

--- Writes adapter_config.json and adapter_model.safetensors into a folder, as PEFT does; base: base_model_name_or_path.
M.save = signature("lora.save(Module model, path folder, *, string base?, string task_type?)",
function(model, folder, base, task)
  local tensors, o, names = tensors_of("save", model), model.lora or {}, {}
  for _, e in ipairs(wrapped("save", model)) do names[#names + 1] = e[1] end
  if os.execute("mkdir -p " .. system.quoted(folder) .. " 2>/dev/null") ~= 0 then
    check.fail("[lora.save] cannot make the folder %s", folder)
  end
  local function object(t) return t and next(t) ~= nil and t or nil end
  local config = json.encode { peft_type = "LORA", r = o.r, lora_alpha = o.alpha, lora_dropout = o.dropout,
    bias = o.bias, target_modules = names, modules_to_save = o.modules_to_save or json.null,
    use_rslora = o.rslora or false, use_dora = false, fan_in_fan_out = false, inference_mode = true,
    task_type = task or json.null,
    base_model_name_or_path = base or json.null, rank_pattern = object(o.rank_pattern),
    alpha_pattern = object(o.alpha_pattern) }
  moth.save_safetensors(tensors, folder .. "/adapter_model.safetensors", { format = "pt" })
  B.write_pieces(folder .. "/adapter_config.json", { config .. "\n" }, "lora.save")
end)

local unsupported = { use_dora = "DoRA", use_qalora = "QALoRA", use_bdlora = "BD-LoRA",
  trainable_token_indices = "single trained tokens", target_parameters = "target_parameters",
  layer_replication = "repeated layers", lora_bias = "biases of LoRA", alora_invocation_tokens = "aLoRA" }

-- The module of a name in the file; PEFT's model may have "model." in front of what is a model here, or not.
local function named(modules, name)
  if modules[name] then return name end
  local short = name:gsub("^model%.", "")
  return modules[short] and short or modules["model." .. name] and "model." .. name or nil
end

--- Puts the adapter of a folder (adapter_config.json, and adapter_model.safetensors or .bin), PEFT's or one of
-- lora.save, around the layers of a model, in place. trainable: it is trained on; otherwise all is frozen. Returns the
-- model.
M.load = signature("lora.load(Module model, path folder, *, bool trainable=false)", function(model, folder, trainable)
  if model.lora then check.fail("[lora.load] the model has LoRA layers already; merge or unload them first") end
  local config = pretrained.json(folder .. "/adapter_config.json", "lora.load")
  if config.peft_type ~= "LORA" then
    check.fail("[lora.load] %s: the adapter is of the type %s, expected LORA", folder, tostring(config.peft_type))
  end
  for key, what in each(unsupported) do
    local v = config[key]
    if v and not (type(v) == "table" and next(v) == nil) then
      check.fail("[lora.load] %s: %s is set: moth has no %s; in Python, merge_and_unload() and save the model", folder,
        key, what)
    end
  end
  local path = folder .. "/adapter_model.safetensors"
  local tensors = moth.load(system.exists(path) and path or folder .. "/adapter_model.bin")
  local modules = {}
  local names, first = names_of(model), {}
  for _, e in ipairs(listed(model)) do
    for _, name in ipairs(names[e[2]]) do modules[name], first[name] = e[2], e[1] end
  end
  local o = { r = config.r, alpha = config.lora_alpha, dropout = config.lora_dropout or 0, bias = config.bias or "none",
    rslora = config.use_rslora == true, modules_to_save = config.modules_to_save,
    rank_pattern = config.rank_pattern, alpha_pattern = config.alpha_pattern }
  local function alpha_of(name)
    for key, v in each(o.alpha_pattern or {}) do
      if fits(name, { key }) or name:find(key:gsub("[%^%$]", ""), 1, true) then return v end
    end
    return o.alpha
  end
  local renamed, targets, lost = {}, {}, {}
  for name, t in each(tensors) do
    local inner = name:gsub("^base_model%.model%.", "")
    local module, rest = inner:match "^(.-)%.?(lora_[AB]%.?%w*%.weight)$"
    if not module then module, rest = inner:match "^(.-)%.?(lora_embedding_[AB].*)$" end
    if module then
      rest = rest:gsub("^(lora_[AB])%..*weight$", "%1.weight"):gsub("^(lora_embedding_[AB]).*$", "%1")
      local own = named(modules, module)
      if not own then
        lost[#lost + 1] = module
      else
        own = first[own]
        local key = PREFIX .. own .. "." .. rest
        if renamed[key] and not moth.equal(renamed[key], t) then
          check.fail("[lora.load] %s: '%s' and '%s' are one layer of the model, and the adapter has two for it", folder,
            own, module)
        end
        renamed[key] = t
        if rest:find "_A" then targets[own] = t:size(1) end
      end
    else
      local place, last = inner:match "^(.*)%.([^.]+)$"
      place = place and place:gsub("%.modules_to_save%.default", "")
      local layer = place and place:gsub("%.base_layer$", "")
      local own = place and named(modules, layer)
      if own then renamed[PREFIX .. own .. place:sub(#layer + 1) .. "." .. last] = t else lost[#lost + 1] = inner end
    end
  end
  table.sort(lost)
  if #lost > 0 then
    local more = #lost > 1 and (", and %d more of the adapter's"):format(#lost - 1) or ""
    check.fail("[lora.load] %s: the model has no module '%s'%s", folder, lost[1], more)
  end
  for name, r in each(targets) do
    local m = modules[name]
    replace(model, names, m, checked("load", model, name, m)(m, { r = r, alpha = alpha_of(name), dropout = o.dropout,
      rslora = o.rslora }))
  end
  model.lora = o
  M.load_state_dict(model, renamed)
  freeze(model, o.bias)
  for name, p in model:named_parameters() do
    if not trainable then
      p:requires_grad_(false)
    else
      for _, saved in ipairs(o.modules_to_save or {}) do
        if ("." .. name):find("." .. saved .. ".", 1, true) then p:requires_grad_(true) end
      end
    end
  end
  return model
end)

return M
