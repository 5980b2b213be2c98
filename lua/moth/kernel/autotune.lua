--- moth.kernel.autotune: a kernel that tries listed constexprs once for each key, and keeps the fastest.
--
--     local tuned = moth.kernel.autotune(k, { configs = { { BLOCK = 256 }, { BLOCK = 1024 } }, key = { "n" } })
--     tuned{ function(meta) return { moth.kernel.cdiv(n, meta.BLOCK) } end }(x, out, n)
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local now = require("moth.utils.system").now
local toolchain = require "moth.utils.toolchain"

local Tuned = {}

local function text_of(config)
  local names, parts = {}, {}
  for name in each(config) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do parts[i] = name .. "=" .. tostring(config[name]) end
  return table.concat(parts, " ")
end

-- The options of a launch and the constexprs of a configuration.
local function split(spec, config)
  local launch, values = {}, {}
  if type(spec) == "table" then
    for key, v in each(spec) do launch[key] = v end
  else
    launch[1] = spec
  end
  for name, v in each(config) do
    if name == "num_warps" then launch.num_warps = v else values[name] = v end
  end
  return launch, values
end

-- The arguments of a launch with a configuration's constexprs.
local function call(self, spec, config, n, ...)
  local launch, values = split(spec, config)
  local args = { ... }
  local last = args[n]
  if type(last) == "table" and not B.is_tensor(last) and getmetatable(last) == nil then
    n = n - 1
    for name, v in each(last) do
      if values[name] == nil then values[name] = v end
    end
  end
  args[n + 1] = values
  self.kernel:launch(launch, unpack(args, 1, n + 1))
end

-- What a configuration is chosen for: the values named in `key`, dtypes and the device of tensors.
local function key_of(self, n, ...)
  local args, parts = { ... }, {}
  local named = type(args[n]) == "table" and not B.is_tensor(args[n]) and args[n] or {}
  for i, name in ipairs(self.kernel.names) do
    local v = args[i]
    if v == named then v = nil end
    if v == nil then v = named[name] end
    if B.is_tensor(v) then
      parts[#parts + 1] = B.tensor_dtype(v).name .. " " .. tostring(B.tensor_device(v))
    elseif self.is_key[name] then
      parts[#parts + 1] = tostring(v)
    end
  end
  return table.concat(parts, ",")
end

local function synchronize(n, ...)
  for i = 1, n do
    local x = (select(i, ...))
    if B.is_tensor(x) and B.tensor_device(x).type == "cuda" then
      require("moth.cuda").synchronize()
      return
    end
  end
end

-- Seconds of a configuration: the least of `reps`, after one that compiles. nil and why where it cannot run.
local function measure(self, spec, config, n, ...)
  local ok, message = pcall(call, self, spec, config, n, ...)
  if not ok then return nil, tostring(message) end
  local best = math.huge
  for _ = 1, self.reps do
    synchronize(n, ...)
    local start = now()
    call(self, spec, config, n, ...)
    synchronize(n, ...)
    best = math.min(best, now() - start)
  end
  return best
end

-- Times all configurations. Tensors named in `restore` get their elements back after each.
local function tune(self, key, spec, n, ...)
  local args, saved = { ... }, {}
  for i, name in ipairs(self.kernel.names) do
    if self.is_restored[name] and B.is_tensor(args[i]) then saved[i] = args[i]:detach():clone() end
  end
  local best, seconds, first, lines = nil, math.huge, nil, {}
  for _, config in ipairs(self.configs) do
    local took, why = measure(self, spec, config, n, ...)
    for i, copy in each(saved) do args[i]:detach():copy_(copy) end
    lines[#lines + 1] = ("%10s us  %s"):format(took and ("%.1f"):format(took * 1e6) or "-",
      text_of(config) .. (why and "  " .. why:match("[^\n]*") or ""))
    first = first or why
    if took and took < seconds then best, seconds = config, took end
  end
  if not best then
    check.fail("[kernel.autotune] %s: no configuration runs; the first says: %s", self.kernel.name, first)
  end
  toolchain.log("autotuning", false, "%s for %s:\n%s\nbest: %s", self.kernel.name, key, table.concat(lines, "\n"),
    text_of(best))
  return best
end

function Tuned:launch(spec, ...)
  local n = select("#", ...)
  local key = key_of(self, n, ...)
  local config = self.best[key]
  if not config then
    config = tune(self, key, spec, n, ...)
    self.best[key] = config
  end
  call(self, spec, config, n, ...)
end

function Tuned:__call(spec) return function(...) self:launch(spec, ...) end end
function Tuned:__index(key)
  if type(key) == "string" then return Tuned[key] end
  return function(...) self:launch(key, ...) end
end
function Tuned:__tostring()
  return ("<autotuned %s, %d configurations>"):format(tostring(self.kernel), #self.configs)
end

local function set(self, list, what)
  local out = {}
  for _, name in ipairs(list or {}) do
    if not self.kernel.position[name] then
      check.fail("[kernel.autotune] option '%s': '%s' is no parameter of %s%s", what, tostring(name), self.kernel.name,
        check.suggest(tostring(name), self.kernel.names))
    end
    out[name] = true
  end
  return out
end

--- autotune(kernel, { configs = { { BLOCK = 256 }, … }, key = { "n" } }): launched like the kernel, without the
-- constexprs that configurations give (num_warps is one of them, too). For each value of the parameters in
-- `key` (and dtypes), the first launch runs all configurations, `reps` (5) times, and later ones the fastest. Names in
-- `restore` are tensors that a launch changes: they get their elements back after each trial. MOTH_LOGS=autotuning
-- prints the table.
return signature("kernel.autotune(any kernel, *, list configs, list key?, list restore?, count reps=5)",
  function(kernel, configs, key, restore, reps)
    if type(kernel) ~= "table" or not rawget(kernel, "proto") then
      check.fail("[kernel.autotune] expected a kernel of moth.kernel.jit, got %s", type(kernel))
    elseif #configs == 0 then
      check.fail("[kernel.autotune] option 'configs': an empty list")
    end
    local self = { kernel = kernel, configs = configs, reps = reps, best = {} }
    for i, config in ipairs(configs) do
      if type(config) ~= "table" then
        check.fail("[kernel.autotune] configs[%d]: expected a table, got %s", i, type(config))
      end
      for name in each(config) do
        if name ~= "num_warps" and not kernel.position[name] then
          check.fail("[kernel.autotune] configs[%d]: '%s' is no parameter of %s%s", i, tostring(name), kernel.name,
            check.suggest(tostring(name), kernel.names))
        end
      end
    end
    self.is_key, self.is_restored = set(self, key, "key"), set(self, restore, "restore")
    return setmetatable(self, Tuned)
  end)
