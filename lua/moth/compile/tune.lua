--- What mode "max-autotune" does for each generated kernel: it is timed with each set of block sizes (the `tiles` of
-- moth.compile.schedule), and against the calls of the library that it stands for, where it stands for whole ones. The
-- times are kept, in the folder of the kernels, so that the next process reads which was fastest and times nothing.
local B = require "moth_lua"
local counters = require "moth.compile.generated"
local graphs = require "moth.compile.graph"
local lower = require "moth.compile.lower"
local runtime = require "moth.compile.runtime"
local schedule = require "moth.compile.schedule"
local toolchain = require "moth.utils.toolchain"
local each = require "moth.each"
local C = B.compile

local M = {}

-- What is tried beside the tiles of the device, by its kind and by how a program goes over its axes.
local candidates = {
  cpu = {
    flat = { { chunk = 4096 }, { chunk = 65536 }, { block = 256 }, { block = 4096 } },
    tiles = { { rows = 32, columns = 32 }, { rows = 128, columns = 8 }, { rows = 16, columns = 64 } },
    rows = { { block = 256 }, { block = 512 }, { block = 4096 } },
    shared = { { share = 8192 }, { share = 131072 }, { block = 4096 } },
    columns = { { wide = 128 }, { wide = 1024 }, { share = 8192 }, { share = 131072 } },
  },
  cuda = {
    flat = { { block = 512, chunk = 512 }, { block = 2048, chunk = 2048 }, { chunk = 4096 }, { warps = 4 } },
    tiles = { { rows = 16, columns = 64 }, { rows = 64, columns = 16 }, { warps = 4 } },
    rows = { { block = 256 }, { block = 512 }, { block = 2048 }, { warps = 4 } },
    shared = { { share = 4096 }, { share = 65536 }, { block = 2048 } },
    columns = { { wide = 64 }, { wide = 128 }, { share = 4096 }, { share = 65536 } },
  },
}

local LIMIT = 16 * 2 ^ 20 -- bytes of tables that are kept
local SAMPLES, SAMPLE = 5, 50e3 -- the least of so many counts, each of runs that take so many nanoseconds together
local CALLS = "calls" -- the name of the library's
local BETTER = 0.95 -- of the kernel's time: what the calls must be within, as they take more memory

local function name_of(tiles)
  local list = {}
  for name, size in each(tiles) do list[#list + 1] = ("%s=%d"):format(name, size) end
  table.sort(list)
  return #list > 0 and table.concat(list, " ") or "as usual"
end

-- The set of tiles of a name.
local function tiles_of(device, name)
  local tiles = {}
  for key, size in each(schedule.tiles[device:match("^%a+")]) do tiles[key] = size end
  for key, size in name:gmatch("(%w+)=(%d+)") do tiles[key] = tonumber(size) end
  return tiles
end

--- What times depend on beside the program, as text: where it runs.
function M.place(device)
  local parts = { B.version_string, device:match("^%a+") }
  if device == "cpu" then
    local cc = toolchain.cc()
    parts[#parts + 1] = cc and cc.version or ""
    parts[#parts + 1] = tostring(B.num_threads())
    parts[#parts + 1] = require("moth.kernel.native").machine()
  else
    local index = tonumber(device:match("%d+")) or 0
    local p = B.cuda.properties(index)
    parts[#parts + 1] = ("%s %d.%d"):format(p.name, p.major, p.minor)
    parts[#parts + 1] = require("moth.cuda.program").compiler()
  end
  return table.concat(parts, "\0")
end

-- ---- what is kept -----------------------------------------------------------------------------------

local chosen = {} -- key -> name: of this process

local function path_of(key)
  return toolchain.folder("kernels", "MOTHINDUCTOR_CACHE_DIR"), B.sha256(key):sub(1, 32) .. ".tuned"
end

--- The name that was found fastest for a key; nil: none yet. `what` is said in the log.
function M.known(key, what)
  if chosen[key] then return chosen[key] end
  local folder, name = path_of(key)
  local text = folder and toolchain.kept(folder .. "/" .. name)
  chosen[key] = text and text:match("\nbest: ([^\n]+)\n")
  if chosen[key] then toolchain.log("autotuning", false, "%s, as timed before: %s", what, chosen[key]) end
  return chosen[key]
end

--- Keeps times, a list of { name, nanoseconds }: logs the table, and returns the fastest one's name.
function M.keep(key, what, times)
  local lines, best = { what }, nil
  for _, t in ipairs(times) do
    lines[#lines + 1] = ("  %-28s %.3g us"):format(t[1], t[2] / 1e3)
    if not best or t[2] < best[2] then best = t end
  end
  counters.timed = counters.timed + 1
  toolchain.log("autotuning", false, "%s", table.concat(lines, "\n"))
  chosen[key] = best[1]
  local folder, name = path_of(key)
  if folder then
    local text = table.concat(lines, "\n") .. "\nbest: " .. best[1] .. "\n"
    toolchain.keep { folder = folder, name = name, limit = LIMIT, make = function(work)
      local file, message = io.open(work, "wb")
      if not file then return nil, message end
      file:write(text)
      file:close()
      return true
    end }
  end
  return best[1]
end

-- For tests: what was read and timed in this process.
function M.forget() chosen = {} end

-- ---- timing -----------------------------------------------------------------------------------------

local function synchronize(device)
  if device ~= "cpu" then require("moth.cuda").synchronize(device) end
end

--- Nanoseconds of run().
function M.time(run, device)
  run()
  synchronize(device)
  local function count(n)
    local begin = C.clock()
    for _ = 1, n do run() end
    synchronize(device)
    return (C.clock() - begin) / n
  end
  local best = count(1)
  local n = math.max(1, math.min(100, math.floor(SAMPLE / math.max(1, best))))
  for _ = 1, SAMPLES do best = math.min(best, count(n)) end
  return best
end

local function ones(n, dtype, device)
  local moth = require "moth"
  return moth.ones({ n }, { dtype = moth[dtype], device = device })
end

-- Memory of a value's geometry: 1 everywhere, so that no random numbers are drawn and no arithmetic is slow.
local function memory(facts)
  local reach = 1
  for k, size in ipairs(facts.shape) do
    reach = reach + (size - 1) * facts.stride[k]
  end
  return ones(reach, facts.dtype.name, facts.device)
end

-- A function that launches the compiled kernel of a step on memory of its own.
local function launcher(step)
  local described, held, addresses = runtime.launch(step), {}, {}
  for _, v in ipairs(described.values) do held[#held + 1] = memory(v.facts) end
  for _, bytes in ipairs(described.temporaries) do
    held[#held + 1] = ones(bytes / 8, "int64", step.device)
  end
  for i, t in ipairs(held) do addresses[i] = B.data_ptr(t) or 0 end
  local runs = {}
  for i, l in ipairs(described.launches) do runs[i] = runtime.runner(l, addresses, step.device) end
  return function()
    for _, run in ipairs(runs) do run() end
    return held
  end
end

-- The calls of the graph that a group computes, if it computes all of each.
local function units_of(step, parts)
  local units, here, pieces = {}, {}, 0
  for _, call in ipairs(step.calls) do
    local unit = call.unit
    if call.into or unit.call.barrier or not unit.call.fn and not B.ops[unit.call.target] then return nil end
    if not here[unit] then
      here[unit] = 0
      units[#units + 1] = unit
    end
    here[unit] = here[unit] + 1
    pieces = pieces + (call.view and 0 or 1)
  end
  for _, unit in ipairs(units) do
    if here[unit] ~= parts[unit] then return nil end
  end
  return pieces > 0 and units or nil
end

-- A function that makes the calls of units, on memory of its own.
local function caller(units)
  local tensors, calls = {}, {}
  local function tensor_of(v)
    if not tensors[v] then tensors[v] = B.ops.as_strided(memory(v.facts), v.facts.shape, v.facts.stride) end
    return tensors[v]
  end
  local function convert(v)
    if type(v) ~= "table" then return v end
    if graphs.is_number(v) then return v.value end
    if lower.is_value(v) then return tensor_of(v) end
    local list = {}
    for i = 1, v.n or #v do list[i] = convert(v[i]) end
    return list
  end
  for i, unit in ipairs(units) do
    local args = convert(unit.call.given)
    calls[i] = { B.ops[unit.call.target], args, unit.call.given.n or #unit.call.given }
  end
  return function()
    for _, c in ipairs(calls) do c[1](unpack(c[2], 1, c[3])) end
  end
end

-- ---- choosing ---------------------------------------------------------------------------------------

local function with_tiles(step, tiles) return setmetatable({ tiles = tiles }, { __index = step }) end

-- The candidates of a step, with their kernels: { name, step }.
local function tries_of(step, checked)
  local list = {}
  local usual = with_tiles(step, tiles_of(step.device, ""))
  local way = schedule.program(usual).way
  local names = { "as usual" }
  for _, tiles in ipairs(candidates[step.device:match("^%a+")][way] or {}) do names[#names + 1] = name_of(tiles) end
  for _, name in ipairs(names) do
    local one = with_tiles(step, tiles_of(step.device, name))
    one.kernel = schedule.kernel(one, checked)
    list[#list + 1] = { name, one }
  end
  return list
end

-- Times what is not known of steps.
local function measure(steps, wanted, compile, checked)
  local all, parts = {}, {}
  for _, step in ipairs(steps) do
    for _, call in ipairs(step.calls) do parts[call.unit] = (parts[call.unit] or 0) + 1 end
  end
  for _, step in ipairs(wanted) do
    step.tries = tries_of(step, checked)
    for _, try in ipairs(step.tries) do all[#all + 1] = try[2] end
  end
  if not compile(all) then return false end
  for _, step in ipairs(wanted) do
    local times, seen = {}, {}
    for _, try in ipairs(step.tries) do
      local k = try[2].kernel
      local same = seen[k.kernel] == k.grid -- the blocks of small axes are no larger than these
      seen[k.kernel] = k.grid
      local ok, took = not same, nil
      if ok then ok, took = pcall(function() return M.time(launcher(try[2]), step.device) end) end
      if ok then
        times[#times + 1] = { try[1], took }
      elseif tostring(took):find("interrupted", 1, true) then
        error(took, 0)
      end
    end
    step.tries = nil
    local units = #times > 0 and units_of(step, parts)
    local ok, took
    if units then ok, took = pcall(function() return M.time(caller(units), step.device) end) end
    if ok then times[#times + 1] = { CALLS, took / BETTER } end
    if #times > 0 then M.keep(step.key, step.kernel.text, times) end
  end
  return true
end

--- The steps of a graph (moth.compile.fuse) with kernels of the tiles that are fastest, and without those that the
-- library's calls beat. compile(steps) compiles kernels; again() gives the steps anew.
function M.steps(steps, compile, again, checked)
  local was = B.set_grad_enabled(false)
  local ok, result = pcall(function()
    while true do
      local wanted, queued, whole = {}, {}, false
      for _, step in ipairs(steps) do
        if step.fused then
          step.tiles = nil
          step.key = table.concat({ "kernel", M.place(step.device), (schedule.signature(step)) }, "\0")
          if not M.known(step.key, step.kernel.text) and not queued[step.key] then
            queued[step.key] = true
            wanted[#wanted + 1] = step
          end
        end
      end
      if #wanted > 0 and not measure(steps, wanted, compile, checked) then return steps end
      for _, step in ipairs(steps) do
        local name = step.fused and chosen[step.key]
        if name == CALLS then
          for _, call in ipairs(step.calls) do call.unit.whole = true end
          whole = true
        elseif name then
          step.tiles = tiles_of(step.device, name)
          step.kernel = schedule.kernel(step, checked)
        end
      end
      if not whole then return steps end
      steps = again()
      if not steps then return nil end
    end
  end)
  B.set_grad_enabled(was)
  if not ok then error(result, 0) end
  return result
end

return M
