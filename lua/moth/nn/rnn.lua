--- nn.RNN, nn.LSTM, nn.GRU and their cells.
--
--     local lstm = nn.LSTM(28, 64, 2, { batch_first = true })
--     local out, state = lstm(x)             -- x (N, T, 28) -> out (N, T, 64); state { h, c }, each (2, N, 64)
--     out, state = lstm(more, state)
--
-- Parameters have PyTorch's names and gates its order (LSTM: input, forget, cell, output; GRU: reset, update, new), so
-- that its checkpoints load. The input projections of all time steps are one matrix product; the steps of an LSTM or a
-- GRU are one op (lstm_layer, gru_layer) on the CPU and CUDA. Sequences of different lengths come packed
-- (nn.utils.rnn).
local moth = require "moth"
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local init = require "moth.nn.init_"

local M = {}

-- One time step: projected input gx (N, gates H) and state -> new state, a list that begins with h. w_hr: an LSTM's
-- projection of h (proj_size), or nil.
local steps = {}

function steps.tanh(gx, state, w, b)
  return { (gx + moth.linear(state[1], w, b)):tanh() }
end
function steps.relu(gx, state, w, b)
  return { (gx + moth.linear(state[1], w, b)):relu() }
end
function steps.LSTM(gx, state, w, b, w_hr)
  local H = B.size(state[2], 2)
  local g = gx + moth.linear(state[1], w, b)
  local i, f = g:narrow(2, 1, H):sigmoid(), g:narrow(2, H + 1, H):sigmoid()
  local n, o = g:narrow(2, 2 * H + 1, H):tanh(), g:narrow(2, 3 * H + 1, H):sigmoid()
  local c = f * state[2] + i * n
  local h = o * c:tanh()
  return { w_hr and moth.linear(h, w_hr) or h, c }
end
function steps.GRU(gx, state, w, b)
  local h = state[1]
  local H = B.size(h, 2)
  local gh = moth.linear(h, w, b)
  local rz = (gx:narrow(2, 1, 2 * H) + gh:narrow(2, 1, 2 * H)):sigmoid()
  local r, z = rz:narrow(2, 1, H), rz:narrow(2, H + 1, H)
  local n = (gx:narrow(2, 2 * H + 1, H) + r * gh:narrow(2, 2 * H + 1, H)):tanh()
  return { n + z * (h - n) }
end

local gates = { RNN = 1, LSTM = 4, GRU = 3 }

-- Adds the parameters that end in `suffix`: two weights, two biases, and where `proj` is not 0 the projection of h.
local function add_parameters(self, kind, inputs, H, suffix, bias, like, proj)
  local n = gates[kind] * H
  proj = proj or 0
  self["weight_ih" .. suffix] = Parameter(moth.empty({ n, inputs }, like))
  self["weight_hh" .. suffix] = Parameter(moth.empty({ n, proj > 0 and proj or H }, like))
  if bias then
    self["bias_ih" .. suffix] = Parameter(moth.empty({ n }, like))
    self["bias_hh" .. suffix] = Parameter(moth.empty({ n }, like))
  end
  if proj > 0 then self["weight_hr" .. suffix] = Parameter(moth.empty({ proj, H }, like)) end
end

-- All uniform within ±1 / sqrt(hidden_size).
local function reset(self)
  local bound = 1 / math.sqrt(self.hidden_size)
  for _, p in ipairs(self:parameters()) do init.uniform_(p, -bound, bound) end
end

local function step_of(kind, nonlinearity) return steps[kind == "RNN" and nonlinearity or kind] end

-- The state argument as a list { h } or, for an LSTM, { h, c }.
local function state_list(where, kind, given)
  if given == nil then return nil end
  local list = B.is_tensor(given) and { given } or given
  local n = kind == "LSTM" and 2 or 1
  if type(list) ~= "table" or #list ~= n then
    check.fail("%s: the state is %s", where, n == 1 and "a tensor" or where:find("Cell", 1, true)
      and "a table { h, c }: h, c = cell(x, { h, c })" or "a table { h, c }")
  end
  return list
end

-- ---- all steps of one direction ----------------------------------------------------------------------

-- One after the other: gx (T, N, gates H) -> h of each step (T, N, H), the last state.
local function step_by_step(self, kind, gx, state, suffix, backward, b)
  local step, T = step_of(kind, self.nonlinearity), B.size(gx, 1)
  local w, w_hr, out = self["weight_hh" .. suffix], self["weight_hr" .. suffix], {}
  for k = 1, T do
    local t = backward and T + 1 - k or k
    state = step(gx:select(1, t), state, w, b, w_hr)
    out[t] = state[1]
  end
  return moth.stack(out, 1), state
end

-- Devices that have the op of all steps.
local fused = { cpu = true, cuda = true }
local function is_fused(self, x, suffix)
  return fused[B.tensor_device(x).type] and not self["weight_hr" .. suffix]
end

-- The same as one op, where there is one.
local function all_steps(self, kind, gx, state, suffix, backward, b)
  local w, last = self["weight_hh" .. suffix], backward and 1 or -1
  if kind == "LSTM" and is_fused(self, gx, suffix) then
    local out, cells = moth.lstm_layer(gx, w, state[1], state[2], backward)
    return out, { out:select(1, last), cells:select(1, last) }
  elseif kind == "GRU" and is_fused(self, gx, suffix) then
    local out = moth.gru_layer(gx, w, b, state[1], backward)
    return out, { out:select(1, last) }
  end
  return step_by_step(self, kind, gx, state, suffix, backward, b)
end

local function first_rows(list, n)
  local out = {}
  for i, t in ipairs(list) do out[i] = B.size(t, 1) == n and t or t:narrow(1, 1, n) end
  return out
end

-- Packed rows (R, gates H): steps with as many sequences are one part. Sequences that have ended keep their state;
-- backward they begin with their own first state.
local function packed_steps(self, kind, gx, state, suffix, backward, b, batch_sizes)
  local parts, row = {}, 1
  for _, n in ipairs(batch_sizes) do
    local part = parts[#parts]
    if part and part.n == n then
      part.steps = part.steps + 1
    else
      parts[#parts + 1] = { n = n, steps = 1, row = row }
    end
    row = row + n
  end
  local outs, ended, now = {}, {}, nil
  for k = 1, #parts do
    local at = backward and #parts + 1 - k or k
    local part = parts[at]
    local G = B.size(gx, 2)
    if not backward then
      now = first_rows(now or state, part.n)
    elseif now then
      for i, t in ipairs(now) do
        local have = B.size(t, 1)
        now[i] = moth.cat({ t, state[i]:narrow(1, have + 1, part.n - have) }, 1)
      end
    else
      now = first_rows(state, part.n)
    end
    local out
    local xs = gx:narrow(1, part.row, part.n * part.steps):reshape(part.steps, part.n, G)
    out, now = all_steps(self, kind, xs, now, suffix, backward, b)
    outs[at] = out:reshape(part.steps * part.n, B.size(out, 3))
    local still = not backward and (parts[at + 1] and parts[at + 1].n or 0) or part.n
    if still < part.n then table.insert(ended, 1, { now, still, part.n - still }) end
  end
  if not backward then
    for i = 1, #state do
      local list = {}
      for k, e in ipairs(ended) do list[k] = e[1][i]:narrow(1, e[2] + 1, e[3]) end
      now[i] = moth.cat(list, 1)
    end
  end
  return moth.cat(outs, 1), now
end

-- ---- layers ----------------------------------------------------------------------------------------

--- The base of nn.RNN, nn.LSTM and nn.GRU, and that of the cells: for is_a.
local RNNBase, RNNCellBase = class("RNNBase", Module), class("RNNCellBase", Module)
for _, cls in ipairs { RNNBase, RNNCellBase } do
  M[cls.__name] = cls
  function cls.__init()
    check.fail("[nn.%s] is a base only: make an nn.RNN, nn.LSTM or nn.GRU%s", cls.__name,
      cls == RNNCellBase and "Cell" or "")
  end
end

local function layers(kind)
  local where = "nn." .. kind
  local cls = class(kind, RNNBase)

  local parameters = "%s(count input_size, count hidden_size, layers num_layers=1, %sbool bias=true, \z
    bool batch_first=false, number dropout=0, bool bidirectional=false, %sdevice device?, dtype dtype?)"
  local rnn, lstm = kind == "RNN", kind == "LSTM"
  parameters = parameters:format(where, rnn and "'tanh'|'relu' nonlinearity='tanh', " or "",
    rnn and "" or lstm and "size proj_size=0, " or "*, ")

  --- dropout: between layers; proj_size: of an LSTM, h is projected to this size at each step
  cls.__init = signature.init(parameters, function(self, o)
    local input_size, hidden_size = o.input_size, o.hidden_size
    self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, o.num_layers
    self.bias, self.batch_first, self.bidirectional = o.bias, o.batch_first, o.bidirectional
    self.proj_size = o.proj_size or 0
    if o.num_layers == 0 then check.fail("[%s] num_layers must be at least 1", where) end
    if not (o.dropout >= 0 and o.dropout <= 1) then
      check.fail("[%s] dropout must be between 0 and 1, got %g", where, o.dropout)
    end
    if self.proj_size >= hidden_size then
      check.fail("[%s] proj_size must be smaller than hidden_size (%d), got %d", where, hidden_size, self.proj_size)
    end
    self.dropout, self.nonlinearity = o.dropout, o.nonlinearity
    local directions = self.bidirectional and { "", "_reverse" } or { "" }
    local out_size = self.proj_size > 0 and self.proj_size or hidden_size
    for layer = 0, self.num_layers - 1 do
      for _, direction in ipairs(directions) do
        add_parameters(self, kind, layer == 0 and input_size or out_size * #directions, hidden_size,
          ("_l%d%s"):format(layer, direction), self.bias, { dtype = o.dtype, device = o.device }, self.proj_size)
      end
    end
    self:reset()
  end)

  cls.reset = reset

  --- Does nothing: the weights are read where they are. For programs that call PyTorch's.
  function cls.flatten_parameters() end

  -- One direction of one layer: x (T, N, in), or packed rows (R, in), to h of each step and the last state.
  local function run(self, x, state, suffix, backward, batch_sizes)
    local b_ih, b_hh = self["bias_ih" .. suffix], self["bias_hh" .. suffix]
    if lstm and b_ih and is_fused(self, x, suffix) then
      b_ih, b_hh = b_ih + b_hh, nil
    end
    if not (batch_sizes or rnn or self["weight_hr" .. suffix]) then -- one op: no handles keep what is inside
      local w_ih, w_hh, last = self["weight_ih" .. suffix], self["weight_hh" .. suffix], backward and 1 or -1
      if not lstm then
        local out = moth.gru_direction(x, w_ih, b_ih, w_hh, b_hh, state[1], backward)
        return out, { out:select(1, last) }
      end
      local out, cells = moth.lstm_direction(x, w_ih, b_ih, w_hh, state[1], state[2], backward)
      return out, { out:select(1, last), cells:select(1, last) }
    end
    local gx = moth.linear(x, self["weight_ih" .. suffix], b_ih)
    if batch_sizes then return packed_steps(self, kind, gx, state, suffix, backward, b_hh, batch_sizes) end
    return all_steps(self, kind, gx, state, suffix, backward, b_hh)
  end

  -- The first states of all layers, a list of n tensors (layers directions, N, size).
  local function first_states(self, x, state, N, batched)
    local given, n = state_list(where, kind, state), lstm and 2 or 1
    local first = {}
    for i = 1, n do
      local size = i == 1 and self.proj_size > 0 and self.proj_size or self.hidden_size
      local shape = { self.num_layers * (self.bidirectional and 2 or 1), N, size }
      local t = given and given[i] or moth.zeros(shape, { dtype = x:dtype(), device = x:device() })
      check.tensor(where, "state", t)
      if given and not batched then t = t:unsqueeze(2) end
      if B.dim(t) ~= 3 or B.size(t, 1) ~= shape[1] or B.size(t, 2) ~= shape[2] or B.size(t, 3) ~= shape[3] then
        check.fail("%s: expected a state of shape [%s], got %s", where, table.concat(shape, ", "), B.format(t))
      end
      first[i] = t
    end
    return first
  end

  -- All layers: x (T, N, in) or packed rows -> the last layer's h, the last states (a list of n tensors).
  local function through(self, x, first, batch_sizes)
    local directions, n = self.bidirectional and 2 or 1, #first
    local last = n == 2 and { {}, {} } or { {} }
    for layer = 0, self.num_layers - 1 do
      local both = {}
      for d = 1, directions do
        local at, begin = layer * directions + d, {}
        for i = 1, n do begin[i] = first[i]:select(1, at) end
        local suffix = ("_l%d%s"):format(layer, d == 2 and "_reverse" or "")
        local out, after = run(self, x, begin, suffix, d == 2, batch_sizes)
        both[d] = out
        for i = 1, n do last[i][at] = after[i] end
      end
      x = directions == 2 and moth.cat(both, -1) or both[1]
      if self.training and self.dropout > 0 and layer < self.num_layers - 1 then x = moth.dropout(x, self.dropout) end
    end
    for i = 1, n do last[i] = moth.stack(last[i], 1) end
    return x, last
  end

  local function packed_forward(self, packed, state)
    local PackedSequence = getmetatable(packed)
    local data, batch_sizes = packed.data, packed.batch_sizes:totable()
    if B.size(data, -1) ~= self.input_size then
      check.fail("%s: the last dimension must be input_size (%d), got %s", where, self.input_size, B.format(data))
    end
    local first = first_states(self, data, state, batch_sizes[1], true)
    if state ~= nil and packed.sorted_indices then
      for i, t in ipairs(first) do first[i] = t:index_select(2, packed.sorted_indices) end
    end
    local out, last = through(self, data, first, batch_sizes)
    if packed.unsorted_indices then
      for i, t in ipairs(last) do last[i] = t:index_select(2, packed.unsorted_indices) end
    end
    out = PackedSequence(out, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    if lstm then return out, last end
    return out, last[1]
  end

  --- x (T, N, input_size), batch_first: (N, T, input_size), without batch (T, input_size); or packed sequences
  -- @param[opt] state h, of an LSTM { h, c }, each (num_layers directions, N, hidden_size); zeros if not given
  -- @return the last layer's h at every step, both directions side by side (packed, if x was); the state after each
  -- sequence's last step
  function cls:forward(x, state)
    if type(x) == "table" and getmetatable(x) and rawget(getmetatable(x), "__name") == "PackedSequence" then
      return packed_forward(self, x, state)
    end
    local batched = B.dim(check.tensor(where, "input", x)) == 3
    if not batched and B.dim(x) ~= 2 then check.fail("%s: expected 2 or 3 dimensions, got %d", where, B.dim(x)) end
    if B.size(x, -1) ~= self.input_size then
      check.fail("%s: the last dimension must be input_size (%d), got %s", where, self.input_size, B.format(x))
    end
    if not batched then x = x:unsqueeze(2) elseif self.batch_first then x = x:transpose(1, 2) end
    if B.size(x, 1) == 0 then check.fail("%s: the sequence is empty", where) end
    local out, last = through(self, x, first_states(self, x, state, B.size(x, 2), batched))
    if not batched then
      out = out:squeeze(2)
      for i, t in ipairs(last) do last[i] = t:squeeze(2) end
    elseif self.batch_first then
      out = out:transpose(1, 2)
    end
    if lstm then return out, last end
    return out, last[1]
  end

  function cls:extra_repr()
    local text = ("%d, %d"):format(self.input_size, self.hidden_size)
    if self.proj_size > 0 then text = text .. (", proj_size=%d"):format(self.proj_size) end
    if self.num_layers > 1 then text = text .. (", num_layers=%d"):format(self.num_layers) end
    if not self.bias then text = text .. ", bias=False" end
    if self.batch_first then text = text .. ", batch_first=True" end
    if self.dropout > 0 then text = text .. (", dropout=%.14g"):format(self.dropout) end
    if self.bidirectional then text = text .. ", bidirectional=True" end
    return text
  end

  M[kind] = cls
end

-- ---- cells -----------------------------------------------------------------------------------------

local function cells(kind)
  local where = "nn." .. kind .. "Cell"
  local cls = class(kind .. "Cell", RNNCellBase)

  local text = ("%s(count input_size, count hidden_size, bool bias=true, %sdevice device?, dtype dtype?)"):format(where,
    kind == "RNN" and "'tanh'|'relu' nonlinearity='tanh', " or "")
  cls.__init = signature.init(text, function(self, o)
    self.input_size, self.hidden_size, self.nonlinearity = o.input_size, o.hidden_size, o.nonlinearity
    add_parameters(self, kind, o.input_size, o.hidden_size, "", o.bias, { dtype = o.dtype, device = o.device })
    self:reset()
  end)

  cls.reset = reset

  --- x (N, input_size) or (input_size); state h, of an LSTM { h, c }
  -- @return the new h; of an LSTM also c
  function cls:forward(x, state)
    local batched = B.dim(check.tensor(where, "input", x)) == 2
    if not batched then x = x:unsqueeze(1) end
    local list, n = state_list(where, kind, state) or {}, kind == "LSTM" and 2 or 1
    local from = {}
    for i = 1, n do
      from[i] = list[i] or moth.zeros({ B.size(x, 1), self.hidden_size }, { dtype = x:dtype(), device = x:device() })
      if list[i] and not batched then from[i] = from[i]:unsqueeze(1) end
    end
    local gx = moth.linear(x, self.weight_ih, self.bias_ih)
    if B.autocast_state()[B.tensor_device(gx).type] then -- the state in the gates' dtype, as the layers' ops have it
      for i = 1, n do from[i] = from[i]:to(B.tensor_dtype(gx)) end
    end
    local after = step_of(kind, self.nonlinearity)(gx, from, self.weight_hh, self.bias_hh)
    for i = 1, n do if not batched then after[i] = after[i]:squeeze(1) end end
    return after[1], after[2]
  end

  function cls:extra_repr() return ("%d, %d"):format(self.input_size, self.hidden_size) end

  M[kind .. "Cell"] = cls
end

for _, kind in ipairs({ "RNN", "LSTM", "GRU" }) do
  layers(kind)
  cells(kind)
end

return M
