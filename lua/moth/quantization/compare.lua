--- What quantisation costs, layer by layer: accuracy of results hides mistakes that these numbers show.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local layers = require "moth.quantization.layers"

local M = {}

-- Of two lists of tensors, in all.
local function sqnr_of(wants, gots)
  local signal, noise = 0, 0
  for i, want in ipairs(wants) do
    want = want:detach():to(moth.float64)
    local off = want - gots[i]:detach():to(moth.float64)
    signal, noise = signal + (want * want):sum():item(), noise + (off * off):sum():item()
  end
  if noise == 0 then return math.huge end
  return 10 * math.log10(signal / noise)
end

local function sqnr(want, got) return sqnr_of({ want }, { got }) end

--- Signal to quantisation noise in dB: 10 log10(sum of want^2 / sum of (want - got)^2). inf: they are equal.
M.sqnr = signature("quantization.sqnr(Tensor want, Tensor got)", function(want, got)
  if tostring(want:size()) ~= tostring(got:size()) then
    check.fail("[quantization.sqnr] shapes %s and %s differ", tostring(want:size()), tostring(got:size()))
  end
  return sqnr(want, got)
end)

local Table = class("Comparison")

local function db(x) return x and (x == math.huge and "  inf" or ("%5.1f"):format(x)) or "    -" end
function Table:__tostring()
  local lines, width = {}, 5
  for _, row in ipairs(self) do width = math.max(width, #row.layer) end
  local form = "%-" .. width .. "s  %10s  %10s  %12s  %8s"
  lines[1] = form:format("layer", "weight dB", "output dB", "bytes", "of float")
  for _, row in ipairs(self) do
    lines[#lines + 1] = form:format(row.layer, db(row.weight), db(row.output), ("%d"):format(row.bytes),
      ("%.2f"):format(row.bytes / row.float_bytes))
  end
  lines[#lines + 1] = form:format("model", "", db(self.output), ("%d"):format(self.bytes),
    ("%.2f"):format(self.bytes / self.float_bytes))
  return table.concat(lines, "\n")
end

local function bytes_of(m)
  local n = 0
  for _, t in require("moth.nn.ordered").items(m:state_dict()) do n = n + t:numel() * t:element_size() end
  return n
end

local function first(...) return (...) end

-- The tensors of floats in what a model gives: they may be several, and stand in tables.
local function floats_in(...)
  local out = {}
  for _, leaf in ipairs((moth.tree.flatten({ ... }))) do
    if moth.is_tensor(leaf) and leaf:is_floating_point() then out[#out + 1] = leaf end
  end
  return out
end

-- The results of modules (path -> true) in a run, and the model's.
local function outputs(model, paths, batch)
  local out, handles = {}, {}
  for path, m in model:named_modules() do
    if paths[path] then
      handles[#handles + 1] = m:register_forward_hook(function(_, _, y) out[path] = out[path] or first(y) end)
    end
  end
  local ok, y = pcall(moth.no_grad, function() return floats_in(model(unpack(batch, 1, table.maxn(batch)))) end)
  for _, h in ipairs(handles) do h:remove() end
  if not ok then error(y, 0) end
  return out, y
end

--- How a quantised model differs from the one it was made of, on a batch (a tensor, or a list of arguments): for each
-- layer the SQNR of its weight and of its output, and its bytes; the worst output first. The result prints as a table.
-- @return { { layer =, weight =, output =, bytes =, float_bytes = }, …, output =, bytes =, float_bytes = }
local signed = "quantization.compare(Module model, Module quantized, Tensor|list batch)"
M.compare = signature(signed, function(model, q, batch)
  local where = "quantization.compare"
  if moth.is_tensor(batch) then batch = { batch } end
  local own, theirs, found = {}, {}, {}
  for path, m in q:named_modules() do
    if layers.is(m) then
      found[#found + 1] = { path, m }
      own[path], theirs[m.spec.last or path] = true, true
    end
  end
  if #found == 0 then check.fail("[%s] the second model has no quantised layer", where) end
  local mode = model.training
  model:eval()
  local want, y = outputs(model, theirs, batch)
  local got, yq = outputs(q, own, batch)
  model:train(mode)
  for i = 1, math.max(#y, #yq) do
    local a, b = y[i] and tostring(y[i]:size()), yq[i] and tostring(yq[i]:size())
    if a ~= b then
      check.fail("[%s] result %d: the first model gives %s, the second %s: is it what the second was made of?", where,
        i, a or "none", b or "none")
    end
  end
  local rows = Table()
  for _, pair in ipairs(found) do
    local path, m = pair[1], pair[2]
    local ok, layer = pcall(model.get_submodule, model, path)
    if not ok then
      check.fail("[%s] the first model has no layer '%s': is it what the second was made of?", where, path)
    end
    local row = { layer = path, bytes = bytes_of(m), float_bytes = bytes_of(layer) }
    local w = m:dequantized()
    if m.spec.last == path then row.weight = sqnr(layer.weight, w) end -- else it has a norm folded in
    local a, b = want[m.spec.last or path], got[path]
    if a and b then row.output = sqnr(a, b) end
    rows[#rows + 1] = row
  end
  table.sort(rows, function(a, b)
    if a.output ~= b.output then return (a.output or math.huge) < (b.output or math.huge) end
    return a.layer < b.layer
  end)
  rows.output, rows.bytes, rows.float_bytes = sqnr_of(y, yq), bytes_of(q), bytes_of(model)
  return rows
end)

return M
