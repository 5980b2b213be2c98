--- nn.utils.rnn: sequences of different lengths, packed without padding for nn.RNN, nn.LSTM and nn.GRU.
--
--     local rnn = nn.utils.rnn
--     local packed = rnn.pack_padded_sequence(x, { 5, 3, 2 })       -- x (T, N, …)
--     local out, state = lstm(packed)
--     local y, lengths = rnn.pad_packed_sequence(out)
--
-- A packed sequence has `data` (rows of step 1 for all sequences, those of step 2 for all that have one, …),
-- `batch_sizes` (how many sequences have a step), and `sorted_indices` and `unsorted_indices`, the orders by length and
-- back, or nil.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

local PackedSequence = class("PackedSequence")
M.PackedSequence = PackedSequence

--- A packed sequence from its parts.
PackedSequence.__init = signature.init("nn.utils.rnn.PackedSequence(Tensor data, Tensor batch_sizes, \z
  Tensor sorted_indices?, Tensor unsorted_indices?)", function(self, o)
  self.data, self.batch_sizes, self.sorted_indices = o.data, o.batch_sizes, o.sorted_indices
  self.unsorted_indices = o.unsorted_indices or M.invert_permutation(o.sorted_indices)
end)

--- Moves or converts the data, as tensor:to(…) does.
function PackedSequence:to(...)
  local data = self.data:to(...)
  local device = data:device()
  return PackedSequence(data, self.batch_sizes, self.sorted_indices and self.sorted_indices:to(device),
    self.unsorted_indices and self.unsorted_indices:to(device))
end
function PackedSequence:cpu() return self:to("cpu") end
function PackedSequence:cuda() return self:to("cuda") end

function PackedSequence:__tostring()
  return ("PackedSequence(data=%s, batch_sizes={%s})"):format(B.format(self.data),
    table.concat(self.batch_sizes:totable(), ", "))
end

local function define(name, parameters, fn)
  M[name] = signature(("nn.utils.rnn.%s(%s)"):format(name, parameters), fn)
end

local function packed_of(where, x)
  if type(x) ~= "table" or getmetatable(x) ~= PackedSequence then
    check.fail("[nn.utils.rnn.%s] expected a packed sequence, got %s", where, class.name(x))
  end
  return x
end

--- The order that undoes an order of positions; nil of nil.
define("invert_permutation", "Tensor permutation?", function(order)
  if not order then return nil end
  local n = B.numel(order)
  local places = moth.arange(1, n + 1, { dtype = moth.int64, device = order:device() })
  return moth.empty({ n }, { dtype = moth.int64, device = order:device() }):scatter(1, order, places)
end)

local function lengths_of(where, given, n)
  local list = given
  if B.is_tensor(given) then
    if B.dim(given) ~= 1 then
      check.fail("[nn.utils.rnn.%s] lengths: expected a vector, got %s", where, B.format(given))
    end
    list = given:totable()
  end
  if #list ~= n then check.fail("[nn.utils.rnn.%s] %d lengths for %d sequences", where, #list, n) end
  for i, v in ipairs(list) do check.integer("nn.utils.rnn." .. where, "length " .. i, v, 1) end
  return list
end

--- x (T, N, …), batch_first: (N, T, …), as a packed sequence; lengths: a list or a vector of N numbers. enforce_sorted:
-- lengths must not rise; else the sequences are sorted, and results come in their order.
define("pack_padded_sequence", "Tensor input, list|Tensor lengths, bool batch_first=false, bool enforce_sorted=true",
  function(x, given, batch_first, enforce_sorted)
    local where = "pack_padded_sequence"
    if B.dim(x) < 2 then check.fail("[nn.utils.rnn.%s] expected (T, N, …), got %s", where, B.format(x)) end
    if batch_first then x = x:transpose(1, 2) end
    local T, N = B.size(x, 1), B.size(x, 2)
    local lengths, order = lengths_of(where, given, N), {}
    if N == 0 then check.fail("[nn.utils.rnn.%s] there are no sequences", where) end
    for i = 1, N do order[i] = i end
    local sorted
    if enforce_sorted then
      for i = 2, N do
        if lengths[i] > lengths[i - 1] then
          check.fail("[nn.utils.rnn.%s] lengths must not rise; give enforce_sorted = false to have them sorted", where)
        end
      end
    else
      table.sort(order, function(a, b)
        if lengths[a] ~= lengths[b] then return lengths[a] > lengths[b] end
        return a < b
      end)
      sorted = moth.tensor(order, { dtype = moth.int64 }):to(x:device())
      x = x:index_select(2, sorted)
    end
    local longest = lengths[order[1]]
    if longest > T then check.fail("[nn.utils.rnn.%s] a length of %d in a sequence of %d steps", where, longest, T) end
    local sizes, rows, n = {}, {}, N
    local step, from = 1, 1
    while step <= longest do -- steps with as many sequences at once
      while lengths[order[n]] < step do n = n - 1 end
      local last = lengths[order[n]]
      for t = step, last do sizes[t] = n end
      local part = x:narrow(1, from, last - step + 1):narrow(2, 1, n)
      local shape = B.size(part)
      rows[#rows + 1] = part:reshape(shape[1] * shape[2], unpack(shape, 3))
      step, from = last + 1, last + 1
    end
    local data = #rows == 1 and rows[1] or moth.cat(rows, 1)
    return PackedSequence(data, moth.tensor(sizes, { dtype = moth.int64 }), sorted)
  end)

--- The padded tensor (T, N, …) of a packed sequence, and the lengths. total_length: T, if more than the longest.
define("pad_packed_sequence", "any sequence, bool batch_first=false, number padding_value=0, count total_length?",
  function(packed, batch_first, value, total)
    packed_of("pad_packed_sequence", packed)
    local data, sizes = packed.data, packed.batch_sizes:totable()
    local T, N = #sizes, sizes[1]
    if total and total < T then
      check.fail("[nn.utils.rnn.pad_packed_sequence] total_length must be at least %d, got %d", T, total)
    end
    local shape, parts, row = B.size(data), {}, 1
    local like = { dtype = data:dtype(), device = data:device() }
    local lengths = {}
    for i = 1, N do lengths[i] = 0 end
    local t = 1
    while t <= T do
      local n, from = sizes[t], t
      while t <= T and sizes[t] == n do t = t + 1 end
      local steps = t - from
      local part = data:narrow(1, row, steps * n):reshape(steps, n, unpack(shape, 2))
      if n < N then part = moth.cat({ part, moth.full({ steps, N - n, unpack(shape, 2) }, value, like) }, 2) end
      parts[#parts + 1] = part
      row = row + steps * n
      for i = 1, n do lengths[i] = t - 1 end
    end
    if total and total > T then
      parts[#parts + 1] = moth.full({ total - T, N, unpack(shape, 2) }, value, like)
    end
    local out = #parts == 1 and parts[1] or moth.cat(parts, 1)
    local counts = moth.tensor(lengths, { dtype = moth.int64 })
    if packed.unsorted_indices then
      out = out:index_select(2, packed.unsorted_indices)
      counts = counts:index_select(1, packed.unsorted_indices:cpu())
    end
    if batch_first then out = out:transpose(1, 2) end
    return out, counts
  end)

--- Sequences (L_i, …) as one tensor (T, N, …), batch_first: (N, T, …), filled up at the end, or with padding_side =
-- "left" at the beginning.
define("pad_sequence", "Tensor[] sequences, bool batch_first=false, number padding_value=0, \z
  'right'|'left' padding_side='right'", function(list, batch_first, value, side)
  if #list == 0 then check.fail("[nn.utils.rnn.pad_sequence] expected a list of tensors, got an empty one") end
  local longest = 0
  for _, t in ipairs(list) do
    if B.dim(t) == 0 then check.fail("[nn.utils.rnn.pad_sequence] a sequence has no dimension: %s", B.format(t)) end
    longest = math.max(longest, B.size(t, 1))
  end
  local padded = {}
  for i, t in ipairs(list) do
    local around = {}
    for d = 1, 2 * B.dim(t) do around[d] = 0 end
    around[side == "right" and #around or #around - 1] = longest - B.size(t, 1)
    padded[i] = moth.pad(t, around, "constant", value)
  end
  return (moth.stack(padded, batch_first and 1 or 2))
end)

--- The sequences of a padded tensor, as a list; the inverse of pad_sequence.
define("unpad_sequence", "Tensor padded_sequences, list|Tensor lengths, bool batch_first=false",
  function(x, given, batch_first)
    if batch_first then x = x:transpose(1, 2) end
    local lengths, out = lengths_of("unpad_sequence", given, B.size(x, 2)), {}
    for i, n in ipairs(lengths) do out[i] = x:select(2, i):narrow(1, 1, n) end
    return out
  end)

--- A list of sequences (L_i, …) as a packed sequence.
define("pack_sequence", "Tensor[] sequences, bool enforce_sorted=true", function(list, enforce_sorted)
  local lengths = {}
  for i, t in ipairs(list) do lengths[i] = B.size(t, 1) end
  return M.pack_padded_sequence(M.pad_sequence(list), lengths, false, enforce_sorted)
end)

--- The sequences of a packed sequence, as a list.
define("unpack_sequence", "any packed_sequences", function(packed)
  local x, lengths = M.pad_packed_sequence(packed_of("unpack_sequence", packed))
  return M.unpad_sequence(x, lengths)
end)

return M
