--- Tensor parallelism: a layer's weights and its computation cut over the ranks of a group.
--
--     tp.parallelize(block, mesh.tp, {
--       ["attn.c_attn"] = { "column", parts = 3 }, ["attn.c_proj"] = "row", -- as named_modules; * is any part
--       c_fc = "column", c_proj = "row" })
--     tp.parallelize(layer, mesh.tp, { self_attn = "heads", linear1 = "column", linear2 = "row" })
--
-- All ranks of the group call the module with the same input, and have the same result to the bit. Of styles there are
--
--   column     nn.Linear by output features: the result is this rank's features, or all with
--              output_layouts = "replicate". nn.Embedding by columns: the result has all
--   row        nn.Linear by input features: takes what column gives (with input_layouts = "replicate" all features);
--              the sum over the ranks. nn.Embedding by rows: the vocabulary
--   heads      nn.MultiheadAttention by heads
--   hidden     a module whose nn.Linear children, in order, are cut by column, row, column, …
--   sequence   a module that works on each position by itself (a norm) on a part of the sequence
--
-- A style is a word, a table { word, option = … }, or PyTorch's ColwiseParallel { … }. A layout is "replicate" (all
-- ranks have all) or a dimension: cut along it. `sequence = true` in the table of names: between the layers the
-- activations are cut along dimension 2 (or sequence = its number); norms that are not named are "sequence".
--
-- The parameters of rank 0 of the group are given to all first. State dicts then have parts: dist.full_tensor and
-- dist.get_model_state_dict put them together.
local B = require "moth_lua"
local around = require "moth.autograd.around"
local check = require "moth.utils.check"
local class = require "moth.class"
local collectives = require "moth.distributed.collectives"
local dnn = require "moth.distributed.nn"
local each = require "moth.each"
local embedding = require "moth.nn.embedding"
local functional = require "moth.nn.functional"
local mesh = require "moth.distributed.mesh"
local moth = require "moth"
local Linear = require "moth.nn.linear"
local MultiheadAttention = require "moth.nn.multihead_attention"
local Ordered = require "moth.nn.ordered"
local Parameter = require "moth.nn.parameter"
local placement = require "moth.distributed.placement"
local signature = require "moth.utils.signature"

local M = {}
local Embedding = embedding.Embedding

-- Activations ----------------------------------------------------------------------------------------

local function split(x, dim, group)
  local first, n = placement.rows(x:size(dim), group.size, group.rank)
  return dnn.copy_to(x, { group = group }):narrow(dim, first + 1, n)
end

-- All ranks' parts along dim, for a result that all ranks use in the same way: the gradient of the own part is its
-- part of theirs. `total`: rows of all parts, cut as placement.rows says.
local function gather(x, dim, group, total)
  if dim < 0 then dim = x:dim() + 1 + dim end
  local first = placement.rows(total, group.size, group.rank)
  local others = moth.no_grad(function()
    local own = x:detach()
    local _, most = placement.rows(total, group.size, 0)
    if own:size(dim) ~= most then
      local shape = { unpack(own.shape) }
      shape[dim] = most
      local padded = own:new_zeros(shape)
      if own:size(dim) > 0 then padded:narrow(dim, 1, own:size(dim)):copy_(own) end
      own = padded
    end
    return dnn.all_gather(own, { dim = dim, group = group }):narrow(dim, 1, total)
  end)
  local parts = {}
  if first > 0 then parts[1] = others:narrow(dim, 1, first) end
  parts[#parts + 1] = x
  local after = first + x:size(dim)
  if after < total then parts[#parts + 1] = others:narrow(dim, after + 1, total - after) end
  return #parts == 1 and x or moth.cat(parts, dim)
end

--- This rank's part of a tensor that all ranks of the group have, along a dimension.
M.split = signature("distributed.tp.split(Tensor input, Dim dim, DeviceMesh|ProcessGroup group?)", function(x, dim, g)
  return split(x, dim, mesh.group_of(g, "tp.split"))
end)
--- The whole of a tensor that was split so; `total`: its size in that dimension (default: ranks times the part's).
M.gather = signature("distributed.tp.gather(Tensor input, Dim dim, DeviceMesh|ProcessGroup group?, size total?)",
function(x, dim, g, total)
  local group = mesh.group_of(g, "tp.gather")
  return gather(x, dim, group, total or x:size(dim) * group.size)
end)

-- x, laid out so, as all ranks need it whole.
local function whole(x, layout, group)
  if layout == "replicate" then return dnn.copy_to(x, { group = group }) end
  return dnn.all_gather(x, { dim = layout, group = group })
end
-- The sum over the ranks, laid out so.
local function summed(x, layout, group)
  if layout == "replicate" then return dnn.reduce_from(x, { group = group }) end
  return dnn.reduce_scatter(x, { dim = layout, group = group })
end
-- A parameter that all ranks have, used by each for its own part of the positions.
local function shared(p, layout, group)
  if p == nil or layout == "replicate" then return p end
  return dnn.copy_to(p, { group = group })
end

-- Parameters -----------------------------------------------------------------------------------------

local part_of = setmetatable({}, { __mode = "k" }) -- a parameter that was cut -> { part =, cut =, name = whose it was }

local function cut(module, name, group, dim, o)
  local p = module._parameters[name]
  if p == nil then return end
  local own = ("%s.%s"):format(module.__name, name)
  local where = ("[distributed.tp] %s %s"):format(own, B.format(p))
  if placement.of(p) then check.fail("%s is cut already", where) end
  local c, known = placement.cut(group, dim, p:size(dim), o, where), part_of[p]
  if known then -- tied to one that was cut before: it stays so
    local d = known.cut
    if d.group ~= group or d.dim ~= c.dim or d.parts ~= c.parts or d.unit ~= c.unit then
      check.fail("%s is shared with %s, which is cut along dimension %d: give both styles that cut it the same way",
        where, known.name, d.dim)
    end
    module:put_registered("_parameters", name, known.part)
    return known.part
  end
  local part = Parameter(placement.part(p, c), { requires_grad = p:requires_grad() })
  part_of[p] = { part = part, cut = c, name = own }
  module:put_registered("_parameters", name, placement.set(part, p.shape, { c }))
  return part
end

-- No module has a parameter whole that another one has in parts.
local function check_tied(module)
  for path, m in module:named_modules() do
    for name, p in Ordered.items(m:registry("_parameters")) do
      local known = part_of[p]
      if known then
        check.fail("[distributed.tp.parallelize] parameter '%s' is shared with %s, which is cut along dimension %d: \z
          give '%s' a style that cuts it the same way", path == "" and name or path .. "." .. name, known.name,
          known.cut.dim, path)
      end
    end
  end
end

local function layout_of(o, key, default)
  local v = o[key]
  if v == nil then return default end
  if v ~= "replicate" and not (type(v) == "number" and v == math.floor(v) and v ~= 0) then
    check.fail("[distributed.tp] %s: expected 'replicate' or a dimension (1 is the first, -1 the last), got %s", key,
      tostring(v))
  end
  return v
end

local function wants(module, cls, style)
  if not class.is_a(module, cls) then
    check.fail("[distributed.tp] style '%s' takes nn.%s, got nn.%s", style, cls.__name, module.__name)
  end
end

-- Styles ---------------------------------------------------------------------------------------------

local styles = {}

function styles.column(module, group, o)
  local is_embedding = class.is_a(module, Embedding)
  local from = layout_of(o, "input_layouts", o.sequence or "replicate")
  local to = layout_of(o, "output_layouts", is_embedding and "replicate" or -1)
  if is_embedding then
    cut(module, "weight", group, 2, o)
    module.forward = function(self, index)
      local y = Embedding.forward(self, index)
      return to == -1 and y or gather(y, -1, group, self.embedding_dim)
    end
    return
  end
  wants(module, Linear, "column")
  cut(module, "weight", group, 1, o)
  cut(module, "bias", group, 1, o)
  if to ~= -1 and o.parts and o.parts > 1 then
    check.fail("[distributed.tp] style 'column' with parts = %d gives this rank's features: its output_layouts is -1",
      o.parts)
  end
  module.forward = function(self, x)
    local y = moth.linear(whole(x, from, group), self.weight, self.bias)
    return to == -1 and y or gather(y, -1, group, self.out_features)
  end
end

-- An embedding by rows of the vocabulary: rows of other ranks are zeros here.
local function vocabulary(module, group, o)
  local to = layout_of(o, "output_layouts", o.sequence or "replicate")
  if module.max_norm or module.sparse or module.scale_grad_by_freq then
    check.fail("[distributed.tp] style 'row' of nn.Embedding is without max_norm, sparse and scale_grad_by_freq")
  end
  local n = module.num_embeddings
  local first, rows = placement.rows(n, group.size, group.rank)
  cut(module, "weight", group, 1, o)
  local pad = module.padding_idx
  pad = pad and pad > first and pad <= first + rows and pad - first or nil
  module.forward = function(self, index)
    local low, high = moth.no_grad(function() return index:min():item(), index:max():item() end)
    if index:numel() > 0 and (low < 1 or high > n) then
      check.fail("[distributed.tp] nn.Embedding: index %d is none of the %d rows", low < 1 and low or high, n)
    end
    local at = index - first
    local other = at:lt(1):logical_or(at:gt(rows))
    local y
    if rows == 0 then
      local shape = { unpack(index.shape) }
      shape[#shape + 1] = self.embedding_dim
      y = self.weight:sum() + self.weight:new_zeros(shape)
    else
      y = functional.embedding(at:masked_fill(other, 1), self.weight, pad):masked_fill(other:unsqueeze(-1), 0)
    end
    return summed(y, to, group)
  end
end

function styles.row(module, group, o)
  if class.is_a(module, Embedding) then return vocabulary(module, group, o) end
  wants(module, Linear, "row")
  local from, to = layout_of(o, "input_layouts", -1), layout_of(o, "output_layouts", o.sequence or "replicate")
  cut(module, "weight", group, 2, o)
  module.forward = function(self, x)
    if from ~= -1 then x = split(from == "replicate" and x or whole(x, from, group), -1, group) end
    local y = summed(moth.linear(x, self.weight), to, group)
    local bias = self.bias
    return bias and y + shared(bias, to, group) or y
  end
end

function styles.heads(module, group, o)
  wants(module, MultiheadAttention, "heads")
  local from = o.sequence or "replicate"
  local heads, E = module.num_heads, module.embed_dim
  local dim = E / heads
  local _, mine = placement.rows(heads, group.size, group.rank)
  local _, last = placement.rows(heads, group.size, group.size - 1)
  if last == 0 then -- an error on all ranks
    check.fail("[distributed.tp] nn.MultiheadAttention with %d heads has none for rank %d of %d", heads,
      group.size - 1, group.size)
  end
  cut(module, "in_proj_weight", group, 1, { parts = 3, unit = dim })
  cut(module, "in_proj_bias", group, 1, { parts = 3, unit = dim })
  for _, name in ipairs { "q_proj_weight", "k_proj_weight", "v_proj_weight" } do
    cut(module, name, group, 1, { unit = dim })
  end
  cut(module, "bias_k", group, 3, { unit = dim })
  cut(module, "bias_v", group, 3, { unit = dim })
  local out = module.out_proj
  styles.row(out, group, { unit = dim, sequence = o.sequence })
  module.num_heads, module.embed_dim = mine, mine * dim
  local forward = MultiheadAttention.forward
  module.forward = function(self, query, key, value, ...)
    if select("#", ...) == 0 and type(key) == "table" or type(value) == "table" then
      check.fail("[distributed.tp] nn.MultiheadAttention by heads takes its arguments by position")
    end
    local q = whole(query, from, group)
    local k = (key == nil or key == query) and q or whole(key, from, group)
    local v = (value == nil or value == key) and k or value == query and q or whole(value, from, group)
    local y, weights = forward(self, q, k, v, ...)
    if weights and weights:dim() > 0 then
      check.fail("[distributed.tp] nn.MultiheadAttention by heads has no weights of all heads: need_weights = false")
    end
    return y
  end
end

function styles.hidden(module, group, o)
  local n = 0
  for _, child in Ordered.items(module:registry("_modules")) do
    if class.is_a(child, Linear) then
      n = n + 1
      styles[n % 2 == 1 and "column" or "row"](child, group, { sequence = o.sequence })
    end
  end
  if n == 0 or n % 2 == 1 then
    check.fail("[distributed.tp] style 'hidden' takes a module with pairs of nn.Linear children, nn.%s has %d",
      module.__name, n)
  end
end

-- A module whose parameters all ranks have, on their part of the positions: gradients are summed over the ranks.
function styles.sequence(module, group)
  local forward = module.forward
  local function enter(m)
    local own = {}
    for name, p in Ordered.items(m._parameters) do
      own[#own + 1] = { m, name, p }
      m:put_registered("_parameters", name, dnn.copy_to(p, { group = group }))
    end
    return own
  end
  local function leave(own)
    for _, c in ipairs(own) do c[1]:put_registered("_parameters", c[2], c[3]) end
  end
  module.forward = function(self, ...)
    local own, outer = enter(self), around.push(enter, leave, self)
    local function done(ok, ...)
      around.pop(outer)
      leave(own)
      if not ok then error((...), 0) end
      return ...
    end
    return done(pcall(forward, self, ...))
  end
end

function styles.replicate() end

local options = { column = "input_layouts output_layouts parts unit", row = "input_layouts output_layouts parts unit",
  heads = "", hidden = "", sequence = "", replicate = "" }

local function style_of(v, name)
  local style, o = v, {}
  if type(v) == "table" and getmetatable(v) == nil then
    style = v[1]
    for key, value in each(v) do if key ~= 1 then o[key] = value end end
  end
  if type(style) ~= "string" or not options[style] then
    check.fail("[distributed.tp.parallelize] %s: expected a style (column, row, heads, hidden, sequence, replicate), \z
      or { style, … }, got %s", name, type(style) == "string" and "'" .. style .. "'" or class.name(style))
  end
  check.options(("[distributed.tp.parallelize] %s: '%s'"):format(name, style), o, options[style])
  return style, o
end

-- Plans ----------------------------------------------------------------------------------------------

-- "h.*.c_fc" as a pattern of Lua's; a star is one part of a path.
local function pattern_of(name)
  return "^" .. name:gsub("[%-%.%+%[%]%(%)%$%^%%%?]", "%%%0"):gsub("%*", "[^.]*") .. "$"
end

local function is_norm(module)
  local n = module.__name
  return n:find "^LayerNorm" or n:find "^RMSNorm"
end

local function has_parameters(module)
  return Ordered.len(module:registry("_parameters")) > 0
end

--- Cuts modules of `module` over a group, by a table from names of submodules ("" is the module itself) to styles.
-- Returns the module. All ranks of the group call it.
-- Errors: a name that matches no module; a style that does not take the module; dimensions that cannot be cut.
M.parallelize = signature("distributed.tp.parallelize(Module module, DeviceMesh|ProcessGroup mesh, \z
  table plan)", function(module, where, plan)
  local group = mesh.group_of(where, "tp.parallelize")
  local sequence = plan.sequence
  if sequence == true then sequence = 2 end
  if sequence ~= nil and (type(sequence) ~= "number" or sequence < 1) and sequence ~= false then
    check.fail("[distributed.tp.parallelize] sequence: expected true, or the dimension of the positions, got %s",
      tostring(sequence))
  end
  local names, todo, taken = {}, {}, {}
  for name in each(plan) do
    if type(name) ~= "string" then
      check.fail("[distributed.tp.parallelize] plan: expected names of modules, got a key %s", tostring(name))
    end
    if name ~= "sequence" then names[#names + 1] = name end
  end
  table.sort(names)
  local paths = {}
  for path in module:named_modules() do paths[#paths + 1] = path end
  for _, name in ipairs(names) do
    local style, o = style_of(plan[name], name)
    local pattern, found = pattern_of(name), false
    for path, m in module:named_modules() do
      if path:find(pattern) then
        found = true
        if taken[m] then
          check.fail("[distributed.tp.parallelize] module '%s' has two styles, of '%s' and '%s'", path, taken[m], name)
        end
        taken[m] = name
        local own = {}
        for key, value in each(o) do own[key] = value end
        own.sequence = sequence or nil
        todo[#todo + 1] = { m, style, own, path }
      end
    end
    if not found then
      check.fail("[distributed.tp.parallelize] no module is called '%s' in %s%s", name, module.__name,
        check.suggest(name, paths))
    end
  end
  if sequence then
    for path, m in module:named_modules() do
      if not taken[m] and is_norm(m) and has_parameters(m) then todo[#todo + 1] = { m, "sequence", {}, path } end
    end
  end
  local works = {}
  local function give(t)
    if not placement.of(t) then
      works[#works + 1] = collectives.broadcast(t:detach(), group.ranks[1], { group = group, async = true })
    end
  end
  for _, p in module:named_parameters() do give(p) end
  for _, b in module:named_buffers() do give(b) end
  for _, w in ipairs(works) do w:wait() end
  for _, item in ipairs(todo) do styles[item[2]](item[1], group, item[3], item[4]) end
  check_tied(module)
  return module
end)

--- PyTorch's name and order: parallelize_module(module, device_mesh, parallelize_plan).
M.parallelize_module = signature.alias("distributed.tp.parallelize_module", M.parallelize)

local function maker(text, style)
  local name = text:match("^[%w_]+")
  --- A style for parallelize, by PyTorch's names. Layouts: "replicate", or the dimension that is cut.
  M[name] = signature("distributed.tp." .. text, function(o)
    o = o or {}
    o[1] = style
    return o
  end, true)
end
--- Styles for tables of names, by PyTorch's names. Layouts: "replicate", or the dimension that is cut.
maker("ColwiseParallel(*, any input_layouts?, any output_layouts?, count parts=1, count unit=1)", "column")
maker("RowwiseParallel(*, any input_layouts?, any output_layouts?, count parts=1, count unit=1)", "row")
maker("SequenceParallel()", "sequence")

-- Layers ---------------------------------------------------------------------------------------------

local COMMON = "bool bias=true, *, DeviceMesh|ProcessGroup mesh?, device device?, dtype dtype?"

local function make_linear(self, o, style, options_of)
  Linear.__init(self, o.in_features, o.out_features, { bias = o.bias, device = o.device, dtype = o.dtype })
  local group = mesh.group_of(o.mesh, "tp." .. self.__name)
  M.parallelize(self, group, { [""] = { style, input_layouts = options_of.input,
    output_layouts = options_of.output } })
end

--- nn.Linear by output features. gather_output: the result has all of them.
local ColumnParallelLinear = class("ColumnParallelLinear", Linear)
M.ColumnParallelLinear = ColumnParallelLinear
ColumnParallelLinear.__init = signature.init("distributed.tp.ColumnParallelLinear(size in_features, \z
  size out_features, " .. COMMON .. ", bool gather_output=true)", function(self, o)
  make_linear(self, o, "column", { output = o.gather_output and "replicate" or nil })
end)

--- nn.Linear by input features; the result is the sum over the ranks. input_is_parallel: the input has this rank's
-- features only, as ColumnParallelLinear without gather_output gives them.
local RowParallelLinear = class("RowParallelLinear", Linear)
M.RowParallelLinear = RowParallelLinear
RowParallelLinear.__init = signature.init("distributed.tp.RowParallelLinear(size in_features, size out_features, "
  .. COMMON .. ", bool input_is_parallel=false)", function(self, o)
  make_linear(self, o, "row", { input = not o.input_is_parallel and "replicate" or nil })
end)

--- nn.Embedding by rows.
local VocabParallelEmbedding = class("VocabParallelEmbedding", Embedding)
M.VocabParallelEmbedding = VocabParallelEmbedding
VocabParallelEmbedding.__init = signature.init("distributed.tp.VocabParallelEmbedding(size num_embeddings, \z
  size embedding_dim, Index padding_idx?, *, DeviceMesh|ProcessGroup mesh?, device device?, dtype dtype?)",
function(self, o)
  Embedding.__init(self, o.num_embeddings, o.embedding_dim, o.padding_idx, { device = o.device, dtype = o.dtype })
  M.parallelize(self, mesh.group_of(o.mesh, "tp.VocabParallelEmbedding"), { [""] = "row" })
end)

-- The loss -------------------------------------------------------------------------------------------

--- Cross-entropy of logits (N, C here), cut along the classes, and targets (N), of all classes: the logits are never
-- together. num_classes: of all ranks (default: ranks times C here).
M.cross_entropy = signature("distributed.tp.cross_entropy(Tensor input, Tensor target, *, \z
  DeviceMesh|ProcessGroup mesh?, size num_classes?, int ignore_index=-100, 'mean'|'sum'|'none' reduction='mean', \z
  number label_smoothing=0)", function(x, target, o)
  local where = "[distributed.tp.cross_entropy]"
  local group = mesh.group_of(o.mesh, "tp.cross_entropy")
  if x:dim() ~= 2 or target:dim() ~= 1 or x:size(1) ~= target:size(1) then
    check.fail("%s expected input (N, classes of this rank) and target (N), got %s and %s", where, B.format(x),
      B.format(target))
  end
  local classes = o.num_classes or x:size(2) * group.size
  local first, n = placement.rows(classes, group.size, group.rank)
  if n ~= x:size(2) then
    check.fail("%s rank %d of %d has %d of %d classes, got input %s", where, group.rank, group.size, n, classes,
      B.format(x))
  end
  local options_of = { group = group }
  local most = moth.no_grad(function()
    local m = n > 0 and x:detach():amax(2) or x:new_full({ x:size(1) }, -math.huge)
    return dnn.all_reduce(m, { op = "max", group = group })
  end)
  local kept = target:ne(o.ignore_index)
  local bad = kept:logical_and(target:lt(1):logical_or(target:gt(classes)))
  if bad:any():item() then check.fail("%s a target is none of the %d classes", where, classes) end
  local total = dnn.reduce_from((x - most:unsqueeze(2)):exp():sum(2), options_of):log() + most
  local at = target - first
  local here = kept:logical_and(at:ge(1)):logical_and(at:le(n))
  local own = n > 0 and x:gather(2, at:masked_fill(here:logical_not(), 1):unsqueeze(2)):squeeze(2) or x:sum(2)
  local picked = dnn.reduce_from(own:masked_fill(here:logical_not(), 0), options_of)
  local loss = total - picked
  if o.label_smoothing > 0 then
    local mean = dnn.reduce_from(x:sum(2), options_of) / classes
    loss = loss * (1 - o.label_smoothing) + (total - mean) * o.label_smoothing
  end
  loss = loss:masked_fill(kept:logical_not(), 0)
  if o.reduction == "none" then return loss end
  if o.reduction == "sum" then return loss:sum() end
  return loss:sum() / kept:sum()
end, true)

--- Calls fn(…), in which F.cross_entropy and nn.CrossEntropyLoss take logits cut along the classes.
M.loss_parallel = signature("distributed.tp.loss_parallel(DeviceMesh|ProcessGroup mesh, callable fn, ...)",
function(where, fn, ...)
  local group = mesh.group_of(where, "tp.loss_parallel")
  local was = rawget(functional, "cross_entropy")
  local both = signature("F.cross_entropy(Tensor input, Tensor target, Tensor weight?, int ignore_index=-100, \z
    'mean'|'sum'|'none' reduction='mean', number label_smoothing=0)",
    function(x, target, weight, ignore, reduction, smoothing)
      if weight then check.fail("[F.cross_entropy] weights are not there in loss_parallel") end
      return M.cross_entropy(x, target, { mesh = group, ignore_index = ignore, reduction = reduction,
        label_smoothing = smoothing })
    end)
  local Loss = require("moth.nn.loss").CrossEntropyLoss
  local forward = Loss.forward
  function Loss:forward(x, target)
    return both(x, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)
  end
  rawset(functional, "cross_entropy", both)
  local function done(ok, ...)
    Loss.forward = forward
    rawset(functional, "cross_entropy", was)
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(fn, ...))
end)

return M
