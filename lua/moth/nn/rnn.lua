--- nn.RNN, nn.LSTM, nn.GRU and their cells.
--
--     local lstm = nn.LSTM(28, 64, 2, { batch_first = true })
--     local out, state = lstm(x)             -- x (N, T, 28) -> out (N, T, 64); state { h, c }, each (2, N, 64)
--     out, state = lstm(more, state)
--
-- Parameters have PyTorch's names and gates its order (LSTM: input, forget, cell, output; GRU: reset, update, new), so
-- that its checkpoints load. The input projections of all time steps are one matrix product.
local moth = require "moth"
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local init = require "moth.nn.init_"

local M = {}

-- One time step: projected input gx (N, gates H) and state -> new state, a list that begins with h.
local steps = {}

function steps.tanh(gx, state, w, b)
  return { (gx + moth.linear(state[1], w, b)):tanh() }
end
function steps.relu(gx, state, w, b)
  return { (gx + moth.linear(state[1], w, b)):relu() }
end
function steps.LSTM(gx, state, w, b)
  local H = B.size(state[1], 2)
  local g = gx + moth.linear(state[1], w, b)
  local i, f = g:narrow(2, 1, H):sigmoid(), g:narrow(2, H + 1, H):sigmoid()
  local n, o = g:narrow(2, 2 * H + 1, H):tanh(), g:narrow(2, 3 * H + 1, H):sigmoid()
  local c = f * state[2] + i * n
  return { o * c:tanh(), c }
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

-- Adds the four (without biases two) parameters that end in `suffix`.
local function add_parameters(self, kind, inputs, H, suffix, bias, like)
  local n = gates[kind] * H
  self["weight_ih" .. suffix] = Parameter(moth.empty({ n, inputs }, like))
  self["weight_hh" .. suffix] = Parameter(moth.empty({ n, H }, like))
  if bias then
    self["bias_ih" .. suffix] = Parameter(moth.empty({ n }, like))
    self["bias_hh" .. suffix] = Parameter(moth.empty({ n }, like))
  end
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
    check.fail("%s: the state is %s", where, n == 2 and "a table { h, c }" or "a tensor")
  end
  return list
end

-- ---- layers ----------------------------------------------------------------------------------------

local function layers(kind)
  local where = "nn." .. kind
  local cls = class(kind, Module)

  local parameters = "%s(count input_size, count hidden_size, layers num_layers=1, %sbool bias=true, \z
    bool batch_first=false, number dropout=0, bool bidirectional=false, %sdevice device?, dtype dtype?)"
  local rnn = kind == "RNN"
  parameters = parameters:format(where, rnn and "'tanh'|'relu' nonlinearity='tanh', " or "", rnn and "" or "*, ")

  --- dropout: between layers
  cls.__init = signature.init(parameters, function(self, o)
    local input_size, hidden_size = o.input_size, o.hidden_size
    self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, o.num_layers
    self.bias, self.batch_first, self.bidirectional = o.bias, o.batch_first, o.bidirectional
    if o.num_layers == 0 then check.fail("[%s] num_layers must be at least 1", where) end
    if not (o.dropout >= 0 and o.dropout <= 1) then
      check.fail("[%s] dropout must be between 0 and 1, got %g", where, o.dropout)
    end
    self.dropout, self.nonlinearity = o.dropout, o.nonlinearity
    local directions = self.bidirectional and { "", "_reverse" } or { "" }
    for layer = 0, self.num_layers - 1 do
      for _, direction in ipairs(directions) do
        add_parameters(self, kind, layer == 0 and input_size or hidden_size * #directions, hidden_size,
          ("_l%d%s"):format(layer, direction), self.bias, { dtype = o.dtype, device = o.device })
      end
    end
    self:reset()
  end)

  cls.reset = reset

  -- One direction of one layer over x (T, N, in): (T, N, H) and the last state.
  local function run(self, x, state, suffix, backward)
    local step, T = step_of(kind, self.nonlinearity), B.size(x, 1)
    local w, b = self["weight_hh" .. suffix], self["bias_hh" .. suffix]
    local gx = moth.linear(x, self["weight_ih" .. suffix], self["bias_ih" .. suffix])
    local out = {}
    for k = 1, T do
      local t = backward and T + 1 - k or k
      state = step(gx:select(1, t), state, w, b)
      out[t] = state[1]
    end
    return moth.stack(out, 1), state
  end

  --- x (T, N, input_size), batch_first: (N, T, input_size), without batch (T, input_size)
  -- @param[opt] state h, of an LSTM { h, c }, each (num_layers directions, N, hidden_size); zeros if not given
  -- @return the last layer's h at every step, both directions side by side; the state after the last step
  function cls:forward(x, state)
    local batched = B.dim(check.tensor(where, "input", x)) == 3
    if not batched and B.dim(x) ~= 2 then check.fail("%s: expected 2 or 3 dimensions, got %d", where, B.dim(x)) end
    if B.size(x, -1) ~= self.input_size then
      check.fail("%s: the last dimension must be input_size (%d), got %s", where, self.input_size, B.format(x))
    end
    if not batched then x = x:unsqueeze(2) elseif self.batch_first then x = x:transpose(1, 2) end
    if B.size(x, 1) == 0 then check.fail("%s: the sequence is empty", where) end
    local directions = self.bidirectional and 2 or 1
    local given, n = state_list(where, kind, state), kind == "LSTM" and 2 or 1
    local shape = { self.num_layers * directions, B.size(x, 2), self.hidden_size }
    local first = {}
    for i = 1, n do
      local t = given and given[i] or moth.zeros(shape, { dtype = x:dtype(), device = x:device() })
      if given and not batched then t = t:unsqueeze(2) end
      if B.dim(t) ~= 3 or B.size(t, 1) ~= shape[1] or B.size(t, 2) ~= shape[2] or B.size(t, 3) ~= shape[3] then
        check.fail("%s: expected a state of shape [%s], got %s", where, table.concat(shape, ", "), B.format(t))
      end
      first[i] = t
    end
    local last = { {}, {} }
    for layer = 0, self.num_layers - 1 do
      local both = {}
      for d = 1, directions do
        local at, begin = layer * directions + d, {}
        for i = 1, n do begin[i] = first[i]:select(1, at) end
        local out, after = run(self, x, begin, ("_l%d%s"):format(layer, d == 2 and "_reverse" or ""), d == 2)
        both[d] = out
        for i = 1, n do last[i][at] = after[i] end
      end
      x = directions == 2 and moth.cat(both, 3) or both[1]
      if self.training and self.dropout > 0 and layer < self.num_layers - 1 then x = moth.dropout(x, self.dropout) end
    end
    for i = 1, n do
      last[i] = moth.stack(last[i], 1)
      if not batched then last[i] = last[i]:squeeze(2) end
    end
    if not batched then x = x:squeeze(2) elseif self.batch_first then x = x:transpose(1, 2) end
    if n == 2 then return x, { last[1], last[2] } end
    return x, last[1]
  end

  function cls:extra_repr()
    local text = ("%d, %d"):format(self.input_size, self.hidden_size)
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
  local cls = class(kind .. "Cell", Module)

  local text = ("%s(count input_size, count hidden_size, bool bias=true, %sdevice device?, dtype dtype?)"):format(where,
    kind == "RNN" and "'tanh'|'relu' nonlinearity='tanh', " or "")
  cls.__init = signature.init(text, function(self, o)
    self.input_size, self.hidden_size, self.nonlinearity = o.input_size, o.hidden_size, o.nonlinearity
    add_parameters(self, kind, o.input_size, o.hidden_size, "", o.bias, { dtype = o.dtype, device = o.device })
    self:reset()
  end)

  cls.reset = reset

  --- x (N, input_size) or (input_size); state h, of an LSTM { h, c } -> the new state
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
    local after = step_of(kind, self.nonlinearity)(gx, from, self.weight_hh, self.bias_hh)
    for i = 1, n do if not batched then after[i] = after[i]:squeeze(1) end end
    if n == 2 then return after end
    return after[1]
  end

  function cls:extra_repr() return ("%d, %d"):format(self.input_size, self.hidden_size) end

  M[kind .. "Cell"] = cls
end

for _, kind in ipairs({ "RNN", "LSTM", "GRU" }) do
  layers(kind)
  cells(kind)
end

return M
