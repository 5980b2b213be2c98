-- What the specs of compile share: a state of tensors as text, to the bit; a program run eagerly and compiled.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local S = {}

moth.compile.config.measure = false -- what specs compile stays compiled, however slow

local function bytes(t)
  if B.numel(t) == 0 then return "" end
  local s = B.bytes(B.ops.contiguous(B.ops.to(B.alias(t, false), { device = "cpu" })))
  return (s:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

--- A tensor as text: dtype, device, sizes, strides, requires_grad, version, leaf, elements; its gradient, too.
function S.text(t)
  if type(t) == "table" then
    local parts = {}
    for i = 1, t.n or #t do parts[i] = S.text(t[i]) end
    return "{" .. table.concat(parts, "; ") .. "}"
  end
  if not B.is_tensor(t) then return tostring(t) end
  local g = B.get_grad(t)
  return ("%s %s %s %s v%d %s %s %s%s"):format(tostring(B.tensor_dtype(t)), tostring(B.tensor_device(t)),
    table.concat(B.size(t), ","), table.concat(B.stride(t), ","), B.version(t), tostring(B.requires_grad(t)),
    tostring(B.is_leaf(t)), bytes(t), g and " grad " .. S.text(g):gsub(" v%d+ ", " ", 1) or "") -- but its version
end

--- The text of an error, without its place, and without the node at fault, which depends on the graph.
function S.message(e)
  e = tostring(e):gsub("^[^ ]*:%d+: ", ""):gsub(" %(fake%)", "")
  e = e:gsub("(modified by an inplace operation): .*", "%1"):gsub("^%[[%w_]+%] (one of the var)", "%1")
  return (e:gsub("^%[[%w_]+%] (Trying to backward)", "%1"):gsub("(a second time): [%w_]+", "%1"))
end

local function pack(...) return { n = select("#", ...), ... } end

local function tensors(value, out)
  if B.is_tensor(value) then
    out[#out + 1] = value
  elseif type(value) == "table" then
    for i = 1, value.n or #value do tensors(value[i], out) end
  end
  return out
end

--- Runs f(unpack(make())) and backward of all that it returns with a history; the state of results and arguments, text.
-- The error's message, without its place, where it fails.
function S.outcome(f, make, seed)
  local args = make()
  moth.manual_seed(seed or 3)
  local r = pack(pcall(f, unpack(args, 1, args.n or #args)))
  local state = {}
  if r[1] then
    for i = 2, r.n do state[#state + 1] = S.text(r[i]) end
    local roots, grads = {}, {}
    for i = 2, r.n do
      for _, t in ipairs(tensors(r[i], {})) do
        if B.requires_grad(t) and not B.is_leaf(t) then
          roots[#roots + 1] = t
          grads[#grads + 1] = B.ops.ones_like(t)
        end
      end
    end
    if #roots > 0 then
      local ok, e = pcall(B.backward, roots, grads, true)
      state[#state + 1] = ok and "backward" or S.message(e)
    end
  else
    state[1] = tostring(r[2]):gsub("^[^ ]*:%d+: ", "")
  end
  state[#state + 1] = "arguments " .. S.text(args)
  state[#state + 1] = "generator " .. table.concat({ B.generator_state(nil) }, " ")
  return table.concat(state, "\n"), r[1]
end

--- Whether two texts differ in the last bits of float32 numbers alone.
function S.is_close(a, b)
  local function parts(text)
    text = text:gsub("%-?%d+%.%d+", function(n) return ("%.3g"):format(tonumber(n)) end)
    local rest = text:gsub("%f[%w]%x+%f[^%w]", function(hex) return #hex % 8 == 0 and "#" .. #hex or nil end)
    local list = {}
    for hex in text:gmatch("%f[%w]%x+%f[^%w]") do
      if #hex % 8 == 0 then list[#list + 1] = hex end
    end
    return rest, table.concat(list)
  end
  local function number(hex)
    local raw = hex:gsub("%x%x", function(x) return string.char(tonumber(x, 16)) end)
    return ffi.cast("const float *", ffi.cast("const char *", raw))[0]
  end
  local rest_a, hex_a = parts(a)
  local rest_b, hex_b = parts(b)
  if rest_a ~= rest_b then return false end
  for i = 1, #hex_a, 8 do
    local x, y = hex_a:sub(i, i + 7), hex_b:sub(i, i + 7)
    if x ~= y then
      x, y = number(x), number(y)
      local near = math.abs(x - y) <= 1e-4 + 2e-3 * math.max(math.abs(x), math.abs(y))
      if not near and (x == x or y == y) then return false end
    end
  end
  return true
end

return S
