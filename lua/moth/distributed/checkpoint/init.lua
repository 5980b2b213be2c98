--- dist.checkpoint: one checkpoint of all ranks, which each write what they have, and which any number of ranks load.
--
--     local checkpoint = dist.checkpoint
--     checkpoint.save({ model = model, optim = opt, step = n }, "ckpt")          -- all ranks call it
--     local saved = checkpoint.save({ … }, "ckpt", { async = true })             -- copies, then writes in a thread
--     saved:wait()
--     local c = checkpoint.load({ model = model, optim = opt, step = 0 }, "ckpt") -- c.step; model, opt are changed
--
-- Tensors that are cut over ranks (fully_shard, dist.tp; see placement.lua) are saved by those that have them, and
-- loaded into the parts that are there now; what several ranks have is written by one of them, evenly. The folder
-- always has a whole checkpoint: the old one until all ranks have written the new one. Nothing in it is code.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local dcp = require "moth.distributed.checkpoint.dcp"
local dcp_save = require "moth.distributed.checkpoint.dcp_save"
local each = require "moth.each"
local entries = require "moth.distributed.checkpoint.entries"
local files = require "moth.distributed.checkpoint.files"
local groups = require "moth.distributed.group"
local moth = require "moth"
local objects = require "moth.distributed.objects"
local placement = require "moth.distributed.placement"
local signature = require "moth.utils.signature"
local tree = require "moth.distributed.tree"
local writer = require "moth.distributed.checkpoint.writer"

local M = {}

local saves = 0 -- of this process, the same on all ranks
local pending -- the asynchronous save that may still write

-- Saving --------------------------------------------------------------------------------------------

-- What this rank has, for the others: by name { dtype, shape, boxes }.
local function described(list)
  local out = {}
  for i, e in ipairs(list) do
    local boxes = {}
    for k, b in ipairs(e.boxes) do boxes[k] = { offset = b.offset, size = b.size } end
    out[i] = { name = e.name, dtype = e.tensor:dtype().name, shape = e.shape, boxes = boxes }
  end
  return out
end

local function shape_text(e) return ("%s [%s]"):format(e.dtype, table.concat(e.shape, ", ")) end

-- Who writes what: by name { dtype, shape, chunks = a list of { offset, size, rank } }, the same on all ranks.
local function planned(all)
  local out, load = {}, {}
  for r = 1, #all do load[r] = 0 end
  local owners, boxes = {}, {}
  for r, list in ipairs(all) do
    for _, e in ipairs(list) do
      local known = out[e.name]
      if not known then
        known = { dtype = e.dtype, shape = e.shape, chunks = {} }
        out[e.name] = known
      elseif shape_text(known) ~= shape_text(e) then
        check.fail("[distributed.checkpoint.save] '%s' is %s on one rank, %s on rank %d", e.name, shape_text(known),
          shape_text(e), r - 1)
      end
      for _, b in ipairs(e.boxes) do
        local key = files.key(e.name, b.offset) .. "/" .. table.concat(b.size, ",")
        if not owners[key] then
          owners[key] = {}
          local chunk = { offset = b.offset, size = b.size, key = key }
          boxes[#boxes + 1] = chunk
          known.chunks[#known.chunks + 1] = chunk
        end
        table.insert(owners[key], r)
      end
    end
  end
  for _, chunk in ipairs(boxes) do
    local best, n = nil, 1
    for _, r in ipairs(owners[chunk.key]) do if not best or load[r] < load[best] then best = r end end
    for _, s in ipairs(chunk.size) do n = n * s end
    load[best] = load[best] + n + 1
    chunk.rank, chunk.key = best - 1, nil
  end
  return out
end

-- Plain values: those of rank 0, and what only others have (states of parameters of other stages).
local function merged(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a end
  for k, v in each(b) do
    if a[k] == nil then a[k] = v else merged(a[k], v) end
  end
  return a
end

local function group_or_alone(group, what)
  if not group and not groups.is_initialized() then return { rank = 0, size = 1, ranks = { 0 } } end
  return groups.of(group, what)
end

local function gathered(g, value)
  if g.size == 1 then return { value } end
  return objects.all_gather_object(value, { group = g })
end

local Saved = class("Saved")
--- An asynchronous save: wait() returns when the checkpoint is there, on all ranks, and raises its error.
function Saved:__init(thread, report) self.thread, self.report = thread, report end
function Saved:wait()
  if self.report then
    local got, what, _, message
    repeat got, what, _, message = B.threads.pop(self.report, 1) until got ~= false and what == "ended"
    B.threads.join(self.thread, 10)
    self.report, self.message = nil, message
  end
  if self.message then check.fail("%s", self.message) end
end
function Saved:__tostring() return ("Saved(%s)"):format(self.report and "being written" or "written") end

local function unique_id()
  saves = saves + 1
  return ("%x%04x"):format(math.floor(require("moth.utils.system").time() * 1e3), saves % 65536)
end

-- A file's tensors in the order in which all of them can be mapped.
local function large_first(job)
  local order, keys, tensors = {}, {}, {}
  for i in ipairs(job.keys) do order[i] = i end
  table.sort(order, function(i, k)
    local a, b = job.tensors[i]:dtype().itemsize, job.tensors[k]:dtype().itemsize
    return a > b or a == b and i < k
  end)
  for at, i in ipairs(order) do keys[at], tensors[at] = job.keys[i], job.tensors[i] end
  job.keys, job.tensors = keys, tensors
end

--- Saves a table of modules, optimizers, other objects with state_dict, tensors (also in tables) and plain values, in a
-- folder. All ranks of the group call it, with the same fields. async: returns at once, when all is copied; a thread
-- writes. format = "dcp" writes what PyTorch's torch.distributed.checkpoint reads. Returns a Saved. Errors: a rank
-- cannot write; then the folder has what it had.
M.save = signature("distributed.checkpoint.save(table state, path dir, *, bool async=false, ProcessGroup group?, \z
  'moth'|'dcp' format='moth')",
function(state, dir, o)
  local g = group_or_alone(o.group, "checkpoint.save")
  if pending then
    local before = pending
    pending = nil
    before:wait()
  end
  local theirs = o.format == "dcp"
  dcp_save.check_folder(dir, o.format)
  local list, plain = entries.collect(state, "distributed.checkpoint.save")
  local all = gathered(g, { list = described(list), plain = plain, id = unique_id() })
  local id, lists, values = all[1].id, {}, all[1].plain
  for r, a in ipairs(all) do lists[r] = a.list end
  for r = 2, #all do merged(values, all[r].plain) end
  local job = { dir = dir, id = id, rank = g.rank, size = g.size, keys = {}, tensors = {} }
  local plan = planned(lists)
  for _, e in ipairs(list) do
    for _, b in ipairs(e.boxes) do
      for _, chunk in ipairs(plan[e.name].chunks) do
        local mine = chunk.rank == g.rank and files.key("", chunk.offset) == files.key("", b.offset)
          and files.key("", chunk.size) == files.key("", b.size)
        if mine then
          local part = entries.part(e.tensor, b.start, b.size)
          local t = entries.stored(part, theirs)
          if o.async and t:data_ptr() == part:data_ptr() then t = t:clone() end
          job.keys[#job.keys + 1] = files.key(e.name, b.offset)
          job.tensors[#job.tensors + 1] = t
        end
      end
    end
  end
  if theirs then
    if g.rank == 0 then files.make_folder(dir) end
    dcp_save.prepare(job, plan, values, function(v) return gathered(g, v) end)
  else
    large_first(job)
  end
  if g.rank == 0 and not theirs then
    files.make_folder(dir)
    job.index = { format = 1, id = id, world_size = g.size, entries = plan, values = files.values_name(id) }
    job.values = values
  end
  local from = g.size > 1 and groups.store()
  if o.async and (from or g.size == 1) then
    if from then
      gathered(g, 0) -- the folder is there
      job.host, job.port, job.token, job.timeout = from.host, from.port, from.token, g.timeout
      job.prefix = groups.run_prefix()
    end
    local report, packed = B.threads.channel(), { dir = job.dir, id = id, rank = job.rank, size = job.size,
      keys = job.keys, tensors = job.tensors, index = job.index, values = job.values, host = job.host, port = job.port,
      token = job.token, timeout = job.timeout, prefix = job.prefix, file = job.file, pieces = job.pieces,
      metadata = job.metadata }
    local thread, what, where = B.threads.start("moth.distributed.checkpoint.thread", 1, report, B.threads.channel(),
      packed)
    if not thread then check.fail("[distributed.checkpoint.save] %s at %s", tostring(what), tostring(where)) end
    pending = Saved(thread, report)
    return pending
  end
  gathered(g, 0)
  local ok, why = pcall(writer.write, job)
  for r, text in ipairs(gathered(g, ok and "" or tostring(why))) do
    if text ~= "" then check.fail("[distributed.checkpoint.save] rank %d: %s", r - 1, text) end
  end
  if g.rank == 0 then
    ok, why = pcall(writer.commit, job)
    why = ok and "" or tostring(why)
  end
  local problem = gathered(g, why or "")[1]
  if problem ~= "" then check.fail("[distributed.checkpoint.save] rank 0: %s", problem) end
  return Saved()
end, true)

-- Loading -------------------------------------------------------------------------------------------

local Reader = class("Reader")
function Reader:__init(dir)
  self.dir, self.index, self.open = dir, files.index(dir), {}
  self.theirs = self.index.format == "dcp"
  self.values = self.theirs and self.index.fields or moth.load(("%s/%s"):format(dir, self.index.values))
end

-- The tensor of a box.
function Reader:chunk(name, saved, chunk)
  if self.theirs then return dcp.chunk(self.dir, name, saved, chunk) end
  local file = ("%s/%s"):format(self.dir, files.part_name(self.index.id, chunk.rank))
  self.open[file] = self.open[file] or files.open(file)
  local dtype, shape = moth[saved.dtype], { unpack(chunk.size) }
  if not dtype.is_complex then return self.open[file](files.key(name, chunk.offset), dtype, shape) end
  shape[#shape + 1] = 2
  local real = moth.view_as_real(moth.empty { 1, dtype = dtype }):dtype()
  return moth.view_as_complex(self.open[file](files.key(name, chunk.offset), real, shape):clone())
end

-- Copies what the checkpoint has of an entry into its tensor.
function Reader:fill(e)
  local saved = self.index.entries[e.name]
  local t, shape = e.tensor, table.concat(e.shape, ", ")
  if table.concat(saved.shape, ", ") ~= shape then
    check.fail("[distributed.checkpoint.load] '%s' is [%s], in %s it is [%s]", e.name, shape, self.dir,
      table.concat(saved.shape, ", "))
  end
  local from, to = moth[saved.dtype], t:dtype()
  local is_float = to.is_floating_point or to.is_complex
  if from.is_complex and not to.is_complex or from.is_floating_point and not is_float then
    check.fail("[distributed.checkpoint.load] '%s' is of %s, in %s of %s, whose values it cannot take", e.name, to.name,
      self.dir, from.name)
  end
  for _, b in ipairs(e.boxes) do
    local missing = 1
    for _, n in ipairs(b.size) do missing = missing * n end
    for _, chunk in ipairs(saved.chunks) do
      local start, place, size, count = {}, {}, {}, 1
      for d = 1, #b.size do
        local first = math.max(b.offset[d], chunk.offset[d])
        size[d] = math.max(0, math.min(b.offset[d] + b.size[d], chunk.offset[d] + chunk.size[d]) - first)
        start[d], place[d], count = first - chunk.offset[d], first - b.offset[d] + b.start[d], count * size[d]
      end
      if count > 0 then
        local source = self:chunk(e.name, saved, chunk)
        moth.no_grad(function() entries.part(t, place, size):copy_(entries.part(source, start, size)) end)
        missing = missing - count
      end
    end
    if missing > 0 then
      check.fail("[distributed.checkpoint.load] %s lacks %d elements of '%s'", self.dir, missing, e.name)
    end
  end
end

-- The whole tensor of a name.
function Reader:whole(name)
  local saved = self.index.entries[name]
  local t = moth.empty(saved.shape, { dtype = moth[saved.dtype] })
  self:fill(entries.entry(name, t))
  return t
end

-- The tensor that was given for a name, filled; a new one where none was, or one of another shape that is not cut.
function Reader:into(name, given)
  local e = given and entries.entry(name, given)
  if not e or not placement.of(given)
    and table.concat(e.shape, ",") ~= table.concat(self.index.entries[name].shape, ",") then
    return self:whole(name)
  end
  self:fill(e)
  return given
end

-- The state of an optimizer: { state, groups, tensors (names by parameter and key) }.
function Reader:optimizer(field, opt, names)
  if self.theirs then return dcp.optimizer(self, field, opt, names) end
  local plain, tensors = self.values[field], {}
  local at = "^" .. (field .. ".state."):gsub("%p", "%%%0") .. "(.*)%.([^.]+)$"
  for full in each(self.index.entries) do
    local name, key = full:match(at)
    if name then
      tensors[name] = tensors[name] or {}
      tensors[name][key] = full
    end
  end
  return { state = plain.state, groups = plain.groups, tensors = tensors }
end

local function load_optimizer(reader, opt, field, names)
  local sd, plain, n = { state = {}, param_groups = {} }, reader:optimizer(field, opt, names), 0
  local ids = {}
  for g, group in ipairs(opt.param_groups) do
    local copy = { params = {} }
    for key, v in each(plain.groups[g] or {}) do copy[key] = v end
    for i, p in ipairs(group.params) do
      copy.params[i], n = n + 1, n + 1
      ids[n] = plain.id and plain.id(g, i, p)
    end
    sd.param_groups[g] = copy
  end
  if #plain.groups ~= #opt.param_groups then
    check.fail("[distributed.checkpoint.load] '%s' has %d groups of parameters, the checkpoint %d", field,
      #opt.param_groups, #plain.groups)
  end
  entries.each_parameter(opt, names, function(p, name, k)
    local state = {}
    name = ids[k] or name
    for key, v in each(plain.state[name] or {}) do state[key] = v end
    local like, own = entries.entry(name, p), {}
    for key in each(opt.own_shape or {}) do own[key] = true end
    for _, key in ipairs((opt.optim or opt).scalars or {}) do own[key] = true end -- of scalar parameters, too
    for key, full in each(plain.tensors[name] or {}) do
      local saved = reader.index.entries[full]
      if not own[key] and table.concat(saved.shape, ",") == table.concat(like.shape, ",") then
        local t = moth.empty(p.shape, { dtype = moth[saved.dtype], device = p:device() })
        reader:fill(entries.entry(full, t, p))
        state[key] = t
      else
        state[key] = reader:whole(full)
      end
    end
    sd.state[k] = state
  end)
  opt:load_state_dict(sd)
end

-- Fills the entries. field: for the error, the names of which are in the checkpoint alone.
local function need(reader, list, strict, field)
  local missing, wanted, unused = {}, {}, {}
  for _, e in ipairs(list) do wanted[e.name] = true end
  for _, e in ipairs(list) do if not reader.index.entries[e.name] then missing[#missing + 1] = e.name end end
  if strict and #missing > 0 then
    for name in each(reader.index.entries) do
      if not wanted[name] and (not field or name:sub(1, #field + 1) == field .. ".") then unused[#unused + 1] = name end
    end
    table.sort(unused)
    check.fail("[distributed.checkpoint.load] %s has no %s%s", reader.dir, tree.some(missing),
      #unused > 0 and "; it has, unused: " .. tree.some(unused) or "")
  end
  for _, e in ipairs(list) do if reader.index.entries[e.name] then reader:fill(e) end end
end

--- Loads into a table as it was given to save: modules, optimizers and objects with load_state_dict are changed,
-- tensors, also those in tables (state dicts), overwritten; returns a table with these and the saved plain values. Each
-- rank reads what it needs, and needs no other. The folder may be of PyTorch's torch.distributed.checkpoint. strict:
-- all parameters of modules must be in the checkpoint. Errors:
-- there is none; shapes differ.
M.load = signature("distributed.checkpoint.load(table state, path dir, *, bool strict=true)", function(state, dir, o)
  local reader = Reader(dir)
  local values = reader.values
  local names, out = entries.names(state), {}
  for field, v in each(state) do
    local plain = values[field]
    if entries.is_module(v) then
      local list = {}
      entries.each_of(v, function(name, t) list[#list + 1] = entries.entry(field .. "." .. name, t) end)
      need(reader, list, o.strict, field)
      out[field] = v
    elseif plain and moth.is_tensor(v) then
      need(reader, { entries.entry(field, v) }, true)
      out[field] = v
    elseif plain and entries.is_optimizer(v) then
      load_optimizer(reader, v, field, names)
      out[field] = v
    else
      local given, list, has_state = {}, {}, tree.has_state(v)
      local _, tensors = tree.split(has_state and v:state_dict() or v, "distributed.checkpoint.load")
      for i, e in ipairs(tensors) do
        local name = field .. (e.name == "" and "" or "." .. e.name)
        given[name], list[i] = e.tensor, entries.entry(name, e.tensor)
      end
      if plain == nil and (#list == 0 or has_state or moth.is_tensor(v)) then
        check.fail("[distributed.checkpoint.load] %s has no '%s'", dir, tostring(field))
      end
      local value = v
      if plain and reader.theirs then
        local found, used = dcp.nested(reader, field, has_state and v:state_dict() or v)
        local missing = {}
        value = found
        for _, e in ipairs(list) do if not used[e.name] then missing[#missing + 1] = e.name end end
        if o.strict and #missing > 0 then
          check.fail("[distributed.checkpoint.load] %s has no %s", dir, tree.some(missing))
        end
      elseif plain then
        value = tree.join(plain.skeleton, function(i) return reader:into(plain.names[i], given[plain.names[i]]) end)
      else
        need(reader, list, o.strict, field) -- the state dict of what was saved as a module
      end
      if has_state then
        v:load_state_dict(value)
        value = v
      end
      out[field] = value
    end
  end
  return out
end, true)

--- All that a folder has, as nested tables of whole tensors and values, in the host's memory. Of modules and optimizers
-- the state dicts, with the names that are in the checkpoint.
M.read = signature("distributed.checkpoint.read(path dir)", function(dir)
  local reader, out, used = Reader(dir), {}, {}
  if reader.theirs then
    for field in each(reader.index.fields) do out[field] = dcp.nested(reader, field) end
    return out
  end
  for field, plain in each(reader.values) do
    if plain.skeleton ~= nil or plain.names then
      for _, name in ipairs(plain.names) do used[name] = true end
      out[field] = tree.join(plain.skeleton, function(i) return reader:whole(plain.names[i]) end)
    else
      local of = reader:optimizer(field)
      for name, tensors in each(of.tensors) do
        of.state[name] = of.state[name] or {}
        for key, full in each(tensors) do of.state[name][key], used[full] = reader:whole(full), true end
      end
      out[field] = { state = of.state, param_groups = of.groups }
    end
  end
  for name in each(reader.index.entries) do
    if not used[name] then -- of a module
      local field, rest = name:match "^([^.]*)%.(.*)$"
      out[field] = out[field] or {}
      out[field][rest] = reader:whole(name)
    end
  end
  return out
end, true)

--- What a folder has, without loading: { world_size, tensors = { [name] = { dtype, shape } } }.
M.info = signature("distributed.checkpoint.info(path dir)", function(dir)
  local index = files.index(dir)
  local out = { world_size = index.world_size, tensors = {} }
  for name, e in each(index.entries) do out.tensors[name] = { dtype = e.dtype, shape = e.shape } end
  return out
end)

return M
