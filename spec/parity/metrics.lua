-- Computes spec/parity/metrics.py's cases with moth.metrics and compares with torchmetrics' values.
local moth = require "moth"
local json = require "cjson"
local metrics = moth.metrics
local f = assert(io.open(arg[1]))
local cases = json.decode(f:read("*a")).cases
f:close()

local function tensor(v, ids)
  if type(v) ~= "table" or not v.shape then return v end
  local data = {}
  for i, x in ipairs(v.data) do data[i] = x == "nan" and 0 / 0 or x end
  local t = moth.tensor(data, { dtype = moth.float64 }):reshape(v.shape):to(moth[v.dtype])
  if ids and not t:is_floating_point() then t = moth.where(t:ge(0), t + 1, t) end
  return t
end

local function differs(got, want)
  local wanted = tensor(want)
  if table.concat(got.shape, ",") ~= table.concat(want.shape, ",") then return true end
  return not moth.allclose(got:double(), wanted:double(), { rtol = 2e-5, atol = 1e-6, equal_nan = true })
end

local bad, seen = 0, 0
for _, c in ipairs(cases) do
  local options, batches = {}, {}
  for key, v in pairs(c.options) do options[key] = v end
  if c.zero_based and (options.ignore_index or -1) >= 0 then options.ignore_index = options.ignore_index + 1 end
  for i, batch in ipairs(c.batches) do
    batches[i] = {}
    for k, v in ipairs(batch) do batches[i][k] = tensor(v, c.zero_based) end
  end
  local function try(what, want, fn)
    if not want then return end
    seen = seen + 1
    local ok, got = pcall(fn)
    if not ok or differs(got, want) then
      bad = bad + 1
      print(c.cls, what, json.encode(c.options), tostring(got), json.encode(want))
    end
  end
  try("function", c.one, function()
    local fn, arguments = metrics.functional[c.fn], batches[1]
    if next(options) then return fn(arguments[1], arguments[2], options) end
    return fn(arguments[1], arguments[2])
  end)
  try("class", c.all, function()
    local metric = metrics[c.cls](options)
    for _, batch in ipairs(batches) do metric:update(unpack(batch)) end
    return metric:compute()
  end)
end
print(("%d values of metrics, %d differ from torchmetrics"):format(seen, bad))
assert(bad == 0)
