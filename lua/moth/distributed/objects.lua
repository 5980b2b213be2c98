--- Collectives of Lua values: nil, booleans, numbers, strings, tensors, and tables of them. Functions do not travel.
local buffer = require "string.buffer"
local ffi = require "ffi"
local check = require "moth.utils.check"
local collectives = require "moth.distributed.collectives"
local each = require "moth.each"
local groups = require "moth.distributed.group"
local moth = require "moth"
local signature = require "moth.utils.signature"

local M = {}

local function bytes_of(t) return ffi.cast("char *", t:data_ptr()) end

local TENSOR = "\1moth.tensor" -- a key that stands for a tensor

-- A copy of v, in which tables with their bytes stand for tensors.
local function plain(v, what, depth)
  local kind = type(v)
  if depth > 100 then check.fail("[distributed.%s] the value is nested too deeply, or contains itself", what) end
  if moth.is_tensor(v) then
    local t = v:detach():to("cpu"):contiguous()
    local n = t:numel() * t:dtype().itemsize
    local shape = {}
    for i, size in ipairs(t.shape) do shape[i] = size end
    return { [TENSOR] = t:dtype().name, shape = shape, bytes = n > 0 and ffi.string(bytes_of(t), n) or "" }
  elseif kind == "table" then
    if not check.is_plain(v) then
      check.fail("[distributed.%s] an object of a class cannot be sent: send its fields, or its state_dict", what)
    end
    local copy = {}
    for key, value in each(v) do copy[key] = plain(value, what, depth + 1) end
    return copy
  elseif kind == "function" or kind == "thread" or kind == "userdata" or kind == "cdata" then
    check.fail("[distributed.%s] a %s cannot be sent", what, kind)
  end
  return v
end

local function revived(v)
  if type(v) ~= "table" then return v end
  if v[TENSOR] then
    local t = moth.empty(v.shape, { dtype = moth[v[TENSOR]] })
    if #v.bytes > 0 then ffi.copy(bytes_of(t), v.bytes, #v.bytes) end
    return t
  end
  local copy = {}
  for key, value in each(v) do copy[key] = revived(value) end
  return copy
end

local function encoded(v, what)
  local bytes = buffer.encode({ plain(v, what, 0) })
  local t = moth.empty({ #bytes }, { dtype = moth.uint8 })
  ffi.copy(bytes_of(t), bytes, #bytes)
  return t
end
local function decoded(t, n)
  if n == 0 then return nil end
  return revived(buffer.decode(ffi.string(bytes_of(t), n))[1])
end

-- The numbers of elements of all ranks' tensors.
local function sizes_of(g, t)
  local sizes = moth.empty({ g.size }, { dtype = moth.int64 })
  collectives.all_gather_into_tensor(sizes, moth.tensor({ t:numel() }, { dtype = moth.int64 }), { group = g })
  return sizes:totable()
end

-- Each rank gives parts for all ranks; the results are the parts for this one, with their sizes.
local function exchange(g, parts)
  local mine, n = {}, 0
  for i = 1, g.size do mine[i] = parts[i]:numel() end
  local theirs = moth.empty({ g.size }, { dtype = moth.int64 })
  collectives.all_to_all_single(theirs, moth.tensor(mine, { dtype = moth.int64 }), { group = g })
  theirs = theirs:totable()
  for _, k in ipairs(theirs) do n = n + k end
  local all = moth.empty({ n }, { dtype = moth.uint8 })
  collectives.all_to_all_single(all, moth.cat(parts), theirs, mine, { group = g })
  local values, at = {}, 1
  for i, k in ipairs(theirs) do
    values[i] = k > 0 and decoded(all:narrow(1, at, k), k) or nil
    at = at + k
  end
  return values
end

local function nothing() return moth.empty({ 0 }, { dtype = moth.uint8 }) end
local function parts_for(g, fn)
  local parts = {}
  for i = 1, g.size do parts[i] = fn(i - 1) or nothing() end
  return parts
end

--- The values of all ranks, a list by rank + 1.
M.all_gather_object = signature("distributed.all_gather_object(any object?, *, ProcessGroup group?)", function(v, o)
  local g = groups.of(o.group, "all_gather_object")
  local t = encoded(v, "all_gather_object")
  local sizes, most = sizes_of(g, t), 0
  for _, n in ipairs(sizes) do most = math.max(most, n) end
  local padded = moth.zeros({ most }, { dtype = moth.uint8 })
  padded:narrow(1, 1, t:numel()):copy_(t)
  local all = moth.empty({ g.size, most }, { dtype = moth.uint8 })
  collectives.all_gather_into_tensor(all, padded, { group = g })
  local list = {}
  for i, n in ipairs(sizes) do list[i] = decoded(all:select(1, i), n) end
  return list
end, true)

--- The values of all ranks at rank dst, a list by rank + 1; nil elsewhere.
M.gather_object = signature("distributed.gather_object(any object?, size dst=0, *, ProcessGroup group?)",
function(v, dst, o)
  local g = groups.of(o.group, "gather_object")
  local root, t = groups.rank_in(g, dst, "gather_object", "dst"), encoded(v, "gather_object")
  local list = exchange(g, parts_for(g, function(r) return r == root and t end))
  return g.rank == root and list or nil
end, true)

--- Puts the values of rank src's list into the lists of the others.
M.broadcast_object_list = signature("distributed.broadcast_object_list(table object_list, size src=0, *, \z
  ProcessGroup group?)", function(list, src, o)
  local g = groups.of(o.group, "broadcast_object_list")
  local root = groups.rank_in(g, src, "broadcast_object_list", "src")
  local t = g.rank == root and encoded(list, "broadcast_object_list") or nothing()
  local n = sizes_of(g, t)[root + 1]
  if g.rank ~= root then t = moth.empty({ n }, { dtype = moth.uint8 }) end
  collectives.broadcast(t, src, { group = g })
  if g.rank ~= root then
    local values = decoded(t, n)
    for i = math.max(#list, #values), 1, -1 do list[i] = values[i] end
  end
end, true)

--- The i-th value of rank src's list goes to rank i - 1, which finds it as the first of its output list.
M.scatter_object_list = signature("distributed.scatter_object_list(table output_list, table input_list?, size src=0, \z
  *, ProcessGroup group?)", function(output, input, src, o)
  local g = groups.of(o.group, "scatter_object_list")
  local root = groups.rank_in(g, src, "scatter_object_list", "src")
  if g.rank == root and not input then
    check.fail("[distributed.scatter_object_list] input_list: rank %d, src, needs a list of %d values", src, g.size)
  end
  output[1] = exchange(g, parts_for(g, function(r)
    return g.rank == root and encoded(input[r + 1], "scatter_object_list")
  end))[root + 1]
end, true)

--- Sends the values of a list to rank dst, which receives them into a list.
M.send_object_list = signature("distributed.send_object_list(table object_list, size dst, *, ProcessGroup group?)",
function(list, dst, o)
  local messages = require "moth.distributed.messages"
  local t = encoded(list, "send_object_list")
  messages.send(moth.tensor({ t:numel() }, { dtype = moth.int64 }), dst, { group = o.group })
  messages.send(t, dst, { group = o.group })
end, true)

--- Receives into a list from rank src (nil: any); returns the rank that sent.
M.recv_object_list = signature("distributed.recv_object_list(table object_list, size src?, *, ProcessGroup group?)",
function(list, src, o)
  local messages = require "moth.distributed.messages"
  local n = moth.empty({ 1 }, { dtype = moth.int64 })
  local from = messages.recv(n, src, { group = o.group })
  local t = moth.empty({ n:item() }, { dtype = moth.uint8 })
  messages.recv(t, from, { group = o.group })
  local values = decoded(t, t:numel())
  for i = math.max(#list, #values), 1, -1 do list[i] = values[i] end
  return from
end, true)

return M
