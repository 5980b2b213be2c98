--- ONNX's recurrent layers.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule

local activations = {
  sigmoid = function(x) return x:sigmoid() end, tanh = function(x) return x:tanh() end,
  relu = function(x) return x:relu() end, softsign = function(x) return x / (x:abs() + 1) end,
  softplus = function(x) return moth.nn.functional.softplus(x) end,
  affine = function(x, a, b) return x * (a or 1) + (b or 0) end,
  leakyrelu = function(x, a) return moth.nn.functional.leaky_relu(x, a or 0.01) end,
  thresholdedrelu = function(x, a) return moth.where(x:gt(a or 1), x, moth.zeros_like(x)) end,
  scaledtanh = function(x, a, b) return (x * (b or 1)):tanh() * (a or 1) end,
  hardsigmoid = function(x, a, b) return (x * (a or 0.2) + (b or 0.5)):clamp(0, 1) end,
  elu = function(x, a) return moth.nn.functional.elu(x, a or 1) end,
}

-- The functions of direction d, of which there are `count`, and whether they are those of the layer by default.
local function functions(c, d, defaults)
  local list, plain = {}, c.clip == nil or c.clip == 0
  local count = #defaults
  for i = 1, count do
    local at = (d - 1) * count + i
    local name = (c.activations and c.activations[at] or defaults[i]):lower()
    local fn = activations[name] or c:fail("the activation '%s'", name)
    local a, b = c.activation_alpha and c.activation_alpha[at], c.activation_beta and c.activation_beta[at]
    plain = plain and name == defaults[i]:lower()
    list[i] = function(x)
      if c.clip and c.clip > 0 then x = x:clamp(-c.clip, c.clip) end
      return fn(x, a, b)
    end
  end
  return list, plain
end

-- Runs the cell over the steps of x (T, N, I): step(x, states) gives new states; the first is the result.
local function steps(x, states, reverse, lengths, step)
  local n, out = x:size(1), {}
  for i = 1, n do
    local t = reverse and n + 1 - i or i
    local new = { step(x:select(1, t), unpack(states)) }
    if lengths then -- beyond the end of a sequence its state stays, and the result is 0
      local going = lengths:gt(t - 1):reshape { -1, 1 }
      for k, v in ipairs(new) do new[k] = moth.where(going, v, states[k]) end
      out[t] = moth.where(going, new[1], moth.zeros_like(new[1]))
    else
      out[t] = new[1]
    end
    states = new
  end
  return moth.stack(out, 1), states
end

-- Rows of gates in another order; n: their number.
local function ordered(w, order)
  local size, parts = w:size(1) / #order, {}
  for i, g in ipairs(order) do parts[i] = w:narrow(1, g * size + 1, size) end
  return moth.cat(parts, 1)
end

-- Runs the directions of a layer; direction(d, x, reverse) gives Y (T, N, H) and a list of last states.
local function layer(c, x, count, direction)
  if c.layout == 1 then x = x:transpose(1, 2) end
  local ys, lasts = {}, {}
  for d = 1, c.direction == "bidirectional" and 2 or 1 do
    local y, states = direction(d, x, c.direction == "reverse" or d == 2)
    ys[d] = y
    for k = 1, count do
      lasts[k] = lasts[k] or {}
      lasts[k][d] = states[k]
    end
  end
  local y = moth.stack(ys, 2) -- (T, D, N, H)
  local results = { c.layout == 1 and y:permute { 3, 1, 2, 4 } or y }
  for k = 1, count do
    local last = moth.stack(lasts[k], 1)
    results[k + 1] = c.layout == 1 and last:transpose(1, 2) or last
  end
  return unpack(results)
end

local function initial(c, given, d, x, hidden)
  if not given then return moth.zeros({ x:size(2), hidden }, { dtype = x:dtype(), device = x:device() }) end
  if c.layout == 1 then given = given:transpose(1, 2) end
  return given:select(1, d):contiguous()
end

local ATTRIBUTES = "activation_alpha activation_beta activations clip direction='forward' hidden_size layout=0 \z
  input_forget=0 linear_before_reset=0 output_sequence"

-- The last state of Y: its first step where it runs backward.
local function last_of(y, reverse) return y:select(1, reverse and 1 or y:size(1)) end

rule("RNN", ATTRIBUTES, function(c, input, w, r, b, lengths, h0)
  local hidden = r:size(3)
  return layer(c, input, 1, function(d, x, reverse)
    local f = functions(c, d, { "Tanh" })
    local bias = b and b:select(1, d):narrow(1, 1, hidden) + b:select(1, d):narrow(1, hidden + 1, hidden)
    local gates, rt = B.ops.linear(x, w:select(1, d), bias), r:select(1, d):t()
    return steps(gates, { initial(c, h0, d, x, hidden) }, reverse, lengths, function(g, h)
      return f[1](g + h:matmul(rt))
    end)
  end)
end)

rule("GRU", ATTRIBUTES, function(c, input, w, r, b, lengths, h0)
  local hidden = r:size(3)
  return layer(c, input, 1, function(d, x, reverse)
    local f, plain = functions(c, d, { "Sigmoid", "Tanh" })
    local wd, rd = w:select(1, d), r:select(1, d)
    local wb = b and b:select(1, d):narrow(1, 1, 3 * hidden)
    local rb = b and b:select(1, d):narrow(1, 3 * hidden + 1, 3 * hidden)
    local h = initial(c, h0, d, x, hidden)
    if plain and c.linear_before_reset == 1 and not lengths then -- gates z, r, h of ONNX's are r, z, n of moth's
      local order = { 1, 0, 2 }
      local y = B.ops.gru_direction(x, ordered(wd, order), wb and ordered(wb, order), ordered(rd, order),
        rb and ordered(rb, order), h, reverse)
      return y, { last_of(y, reverse) }
    end
    local gates = B.ops.linear(x, wd, wb)
    local function part(t, k) return t:narrow(-1, k * hidden + 1, hidden) end
    local rz, rr, rh = rd:narrow(1, 1, hidden):t(), rd:narrow(1, hidden + 1, hidden):t(),
      rd:narrow(1, 2 * hidden + 1, hidden):t()
    local function plus(v, k) return rb and v + part(rb, k) or v end
    return steps(gates, { h }, reverse, lengths, function(g, state)
      local z = f[1](part(g, 0) + plus(state:matmul(rz), 0))
      local reset = f[1](part(g, 1) + plus(state:matmul(rr), 1))
      local new
      if c.linear_before_reset == 1 then
        new = f[2](part(g, 2) + reset * plus(state:matmul(rh), 2))
      else
        new = f[2](part(g, 2) + plus((reset * state):matmul(rh), 2))
      end
      return (1 - z) * new + z * state
    end)
  end)
end)

-- round: what is done to the factors of the products with weights, if anything.
local function lstm(c, input, w, r, b, lengths, h0, c0, peep, round)
  local hidden = r:size(3)
  return layer(c, input, 2, function(d, x, reverse)
    local f, plain = functions(c, d, { "Sigmoid", "Tanh", "Tanh" })
    local wd, rd = w:select(1, d), r:select(1, d)
    local bias = b and b:select(1, d):narrow(1, 1, 4 * hidden) + b:select(1, d):narrow(1, 4 * hidden + 1, 4 * hidden)
    local h, cell = initial(c, h0, d, x, hidden), initial(c, c0, d, x, hidden)
    -- i, o, f, c of ONNX's are i, f, g, o of moth's
    if plain and not lengths and not peep and c.input_forget == 0 and not round then
      local order = { 0, 2, 3, 1 }
      local y, cells = B.ops.lstm_direction(x, ordered(wd, order), bias and ordered(bias, order), ordered(rd, order),
        h, cell, reverse)
      return y, { last_of(y, reverse), cells:dim() == 3 and last_of(cells, reverse) or cells }
    end
    round = round or function(v) return v end
    local gates, rt = B.ops.linear(round(x), wd, bias), rd:t()
    local function part(t, k) return t:narrow(-1, k * hidden + 1, hidden) end
    local p = peep and peep:select(1, d)
    return steps(gates, { h, cell }, reverse, lengths, function(g, state, old)
      g = g + round(state):matmul(rt)
      local i, o, forget = part(g, 0), part(g, 1), part(g, 2)
      if p then i, forget = i + part(p, 0) * old, forget + part(p, 2) * old end
      i = f[1](i)
      forget = c.input_forget == 1 and 1 - i or f[1](forget)
      local new = forget * old + i * f[2](part(g, 3))
      if p then o = o + part(p, 1) * new end
      return f[1](o) * f[3](new), new
    end)
  end)
end

rule("LSTM", ATTRIBUTES, lstm)

-- A tensor rounded to 256 steps of its own range, as onnxruntime's dynamic quantisation rounds it.
local function rounded(x)
  local low, high = x:amin():clamp { max = 0 }, x:amax():clamp { min = 0 }
  local width = high - low
  local scale = moth.where(width:eq(0), moth.ones_like(width), width) / 255
  local zero = (-low / scale):clamp(0, 255):round()
  return (((x / scale):round() + zero):clamp(0, 255) - zero) * scale
end

-- Weights (directions, in, gates) in 8 bits become floats (directions, gates, in).
local function weights(w, scale, zero)
  local n = w:size(1)
  w = w:to(moth.float32)
  if zero then w = w - zero:to(moth.float32):reshape { n, 1, -1 } end
  return (w * scale:reshape { n, 1, -1 }):transpose(2, 3)
end

rule("DynamicQuantizeLSTM", ATTRIBUTES, function(c, x, w, r, b, lengths, h0, c0, peep, ws, wz, rs, rz)
  return lstm(c, x, weights(w, ws, wz), weights(r, rs, rz), b, lengths, h0, c0, peep, rounded)
end, { domain = "com.microsoft", any = true })
