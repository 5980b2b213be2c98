-- What the specs of compile share: a state of tensors as text, to the bit; a program run eagerly and compiled.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local S = {}

moth.compile.config.measure = false -- what specs compile stays compiled, however slow
require("moth.compile.inductor").strict = true

local function bytes(t)
  if B.numel(t) == 0 then return "" end
  local s = B.bytes(B.ops.contiguous(B.ops.to(B.alias(t, false), { device = "cpu" })))
  return (s:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

-- Of the dtypes whose elements S.is_close reads as numbers: how many bytes an element has, the number, and how far two
-- of them may be apart, by themselves and for each of their size.
local function reader(ctype) return function(raw) return ffi.cast(ctype, ffi.cast("const char *", raw))[0] end end
local function read_bfloat16(raw) return reader("const float *")("\0\0" .. raw) end
local function read_float16(raw)
  local bits = reader("const uint16_t *")(raw)
  local sign, e, m = bits >= 0x8000 and -1 or 1, math.floor(bits / 1024) % 32, bits % 1024
  if e == 31 then return m > 0 and 0 / 0 or sign / 0 end
  return sign * (e > 0 and (1 + m / 1024) * 2 ^ (e - 15) or m * 2 ^ -24)
end
local floats = {
  float32 = { size = 4, read = reader("const float *"), near = 1e-4, part = 2e-3 },
  float64 = { size = 8, read = reader("const double *"), near = 1e-8, part = 1e-8 },
  bfloat16 = { size = 2, read = read_bfloat16, near = 0.1, part = 0.1 },
  float16 = { size = 2, read = read_float16, near = 0.02, part = 0.02 },
}

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

floats.complex64, floats.complex128 = floats.float32, floats.float64 -- parts beside each other

-- A text without the elements of floats, and these: { dtype, raw } each.
local function parts(text)
  local list = {}
  text = text:gsub("%-?%d+%.%d+[e%d+-]*", function(n)
    return tonumber(n) and ("%.2g"):format(tonumber(n)) -- "1.5-2" is none
  end)
  text = text:gsub("(moth%.(%w+) %S+ [%d,]* [%d,-]* [v%d]* ?%w+ %w+ )(%x+)", function(front, dtype, hex)
    local d = floats[dtype]
    if not d then return nil end
    list[#list + 1] = { d, (hex:gsub("%x%x", function(x) return string.char(tonumber(x, 16)) end)) }
    return front .. #hex
  end)
  return text, list
end

--- Whether two texts differ in the last bits of floats alone. Where a tensor has bfloat16 elements, as under autocast,
-- all are compared as these are. bits: only NaNs may have other bits (a sum of two has the bits of either).
function S.is_close(a, b, bits)
  local rest_a, list_a = parts(a)
  local rest_b, list_b = parts(b)
  if rest_a ~= rest_b or #list_a ~= #list_b then return false end
  local rough = a:find("moth.bfloat16", 1, true) ~= nil
  for k, one in ipairs(list_a) do
    local d, x, y = one[1], one[2], list_b[k][2]
    local bound = rough and floats.bfloat16 or d
    for i = 1, x ~= y and #x or 0, d.size do
      local u, v = d.read(x:sub(i, i + d.size - 1)), d.read(y:sub(i, i + d.size - 1))
      if u ~= v then
        local near = not bits and math.abs(u - v) <= bound.near + bound.part * math.max(math.abs(u), math.abs(v))
        if not near and (u == u or v == v) then return false end
      end
    end
  end
  return true
end

return S
