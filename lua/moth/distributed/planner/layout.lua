--- A layout of a training job over ranks: read, checked, judged, printed.
local check = require "moth.utils.check"
local cost = require "moth.distributed.planner.cost"

local M = {}

local Layout = {}
Layout.__index = Layout

local function short(lay)
  local parts = {}
  for _, d in ipairs { "dp", "cp", "tp", "pp" } do
    if lay[d] > 1 then parts[#parts + 1] = d:upper() .. lay[d] end
  end
  if #parts == 0 then parts[1] = "one device" end
  local shards = lay.dp * lay.cp / lay.replicas
  if shards > 1 and lay.shard ~= "none" then
    parts[#parts + 1] = (lay.shard == "full" and "FSDP" or "ZeRO-2") .. (lay.replicas > 1 and "/" .. shards or "")
  end
  if lay.interleave > 1 then parts[#parts + 1] = lay.interleave .. " stages a rank" end
  return table.concat(parts, " ")
end
M.short = short

function Layout:__tostring()
  local t, m = self.time, self.memory
  local out = { ("%s, micro-batch %d, recompute %s: %.0f tokens/s a device, %.1f %% of peak, step %.3f s"):format(
    short(self), self.micro, self.recompute, t.tokens, 100 * t.mfu, t.step) }
  for _, name in ipairs { "products", "attention", "elementwise", "tp", "cp", "data", "pipeline", "optimizer" } do
    if t[name] > 0 then out[#out + 1] = ("  %-12s %9.3f s %5.1f %%"):format(name, t[name], 100 * t[name] / t.step) end
  end
  out[#out + 1] = ("  memory %.1f GiB: states %.1f, working parameters %.1f, activations %.1f, a layer %.1f, \z
    logits %.1f"):format(m.total / 2 ^ 30, m.states / 2 ^ 30, m.working / 2 ^ 30, m.activations / 2 ^ 30,
      m.layer / 2 ^ 30, m.logits / 2 ^ 30)
  out[#out + 1] = ("  limits: data parallelism sends %.2f GB a rank, latency of tensor parallelism %.2f ms, \z
    bubble %.1f %%"):format(t.bytes_sent / 1e9, t.tp_latency * 1e3, 100 * t.bubble)
  return table.concat(out, "\n")
end

local fields = "dp tp pp cp shard replicas micro batch recompute interleave fp8 compiled async_tp ring seq"

--- The step as a simulation (moth.distributed.simulate): a program for each stage of the pipeline, its layers one by
-- one, with their communication. Its critical path says what a step waits for; :picture() draws it.
function Layout:timeline()
  return require "moth.distributed.planner.simulate" (require("moth.distributed.planner.programs").of(self),
    { gpu = self.gpu })
end

--- A layout with all its fields, from those given. Errors: unknown fields, numbers that do not divide.
function M.read(where, s, given)
  check.options(where .. ": layout", given, fields)
  local lay = { dp = 1, tp = 1, pp = 1, cp = 1, replicas = 1, micro = 1, interleave = 1, shard = "full",
    recompute = "selective", ring = "balanced", compiled = true, fp8 = false, async_tp = false, seq = s.seq }
  for _, name in ipairs { "dp", "tp", "pp", "cp", "replicas", "micro", "batch", "interleave", "seq" } do
    if given[name] ~= nil then lay[name] = check.integer(where, "layout." .. name, given[name], 1) end
  end
  for _, name in ipairs { "fp8", "compiled", "async_tp" } do
    if given[name] ~= nil then lay[name] = given[name] and true or false end
  end
  local function word(name, allowed)
    local v = given[name]
    if v == nil then return end
    if not (" " .. allowed .. " "):find(" " .. tostring(v) .. " ", 1, true) then
      check.fail("%s: layout.%s must be one of %s, got %s", where, name, allowed, tostring(v))
    end
    lay[name] = v
  end
  word("shard", "none grads full")
  word("recompute", "none selective full")
  word("ring", "balanced plain")
  lay.batch = lay.batch or lay.dp * lay.micro
  if lay.batch % (lay.dp * lay.micro) ~= 0 then
    check.fail("%s: a batch of %d sequences is not a multiple of dp %d times micro %d", where, lay.batch, lay.dp,
      lay.micro)
  end
  if (lay.dp * lay.cp) % lay.replicas ~= 0 then
    check.fail("%s: replicas %d do not divide dp * cp = %d", where, lay.replicas, lay.dp * lay.cp)
  end
  return lay
end

--- The layout with its time and memory.
function M.judge(s, gpu, lay)
  local out = { time = cost.step(s, gpu, lay), memory = cost.memory(s, lay), shape = s, gpu = gpu }
  for k in fields:gmatch("%S+") do out[k] = lay[k] end
  out.world = lay.dp * lay.tp * lay.pp * lay.cp
  out.fits = out.memory.total <= gpu.memory
  return setmetatable(out, Layout)
end

return M
