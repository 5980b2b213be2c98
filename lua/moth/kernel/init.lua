--- moth.kernel: kernels written in Lua, for the CPU and CUDA. The language is described in docs/kernel.md.
--
--     local tl = moth.kernel.lang
--     local relu_squared = moth.kernel.jit(function(x_ptr, out_ptr, n, BLOCK)
--       local offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
--       local mask = offs < n
--       local x = tl.load(x_ptr + offs, { mask = mask, other = 0 })
--       tl.store(out_ptr + offs, tl.where(x > 0, x * x, 0), { mask = mask })
--     end, { constexpr = { "BLOCK" } })
--     relu_squared{ moth.kernel.cdiv(n, 1024) }(x, out, n, { BLOCK = 1024 })
local B = require "moth_lua"
local bytecode = require "moth.kernel.bytecode"
local check = require "moth.utils.check"
local each = require "moth.each"
local lang = require "moth.kernel.lang"
local reader = require "moth.kernel.reader"
local signature = require "moth.utils.signature"
local static = require "moth.kernel.static"
local tile = require "moth.codegen.tile"
local dtypes = require "moth.codegen.dtypes"

local M = { lang = lang.tl }

local Kernel = {}
Kernel.__index = Kernel

-- Runs a part of compiling, whose errors name the kernel's lines.
local function reading(f, ...)
  local results = { pcall(f, ...) }
  if results[1] then return unpack(results, 2) end
  if getmetatable(results[2]) == reader.Error then error(results[2].text, 0) end
  error(results[2], 0)
end

local function names_of(o, p, source)
  local names = {}
  for i = 1, p.nparams do names[i] = o.params and o.params[i] or p.params[i] or "#" .. i end
  if o.params and #o.params ~= p.nparams then
    check.fail("[kernel.jit] option 'params': %d names for the %d parameters of %s", #o.params, p.nparams, source)
  end
  return names
end

--- jit(f, { constexpr = { "BLOCK" } }): a kernel of a function. Its errors, as far as they can be seen without
-- arguments, are raised here with file and line. Options: constexpr, a list of the names (or positions) of parameters
-- that are constants; name, for messages; params, a list of names where the function was stripped of them.
local jit = "kernel.jit(any fn, *, list constexpr?, string name?, list params?)"
M.jit = signature(jit, function(f, constexpr, name, params)
  if type(f) ~= "function" then check.fail("[kernel.jit] expected a function of Lua, got %s", type(f)) end
  local p, why = bytecode.of(f)
  if not p then check.fail("[kernel.jit] the function cannot be read: %s", why) end
  local info = debug.getinfo(f, "S")
  local source = ("%s:%d"):format(info.short_src, info.linedefined)
  local self = setmetatable({ f = f, proto = p, source = source, name = name or source, variants = {}, is_const = {},
    nvariants = 0 }, Kernel)
  self.names = names_of({ params = params }, p, source)
  self.position = {}
  for i, one in ipairs(self.names) do self.position[one] = i end
  for _, one in ipairs(constexpr or {}) do
    local i = type(one) == "number" and one or self.position[one]
    if not i or i < 1 or i > p.nparams or i ~= math.floor(i) then
      check.fail("[kernel.jit] constexpr '%s' is no parameter of %s%s", tostring(one), source,
        not p.params[1] and not params and "; its names were stripped: give `params`, or positions" or "; there are: "
        .. table.concat(self.names, ", "))
    end
    self.is_const[i] = true
  end
  reading(static.check, self, lang)
  return self
end)

function Kernel:__tostring()
  return ("<moth.kernel %s(%s)>"):format(self.name, table.concat(self.names, ", "))
end

-- What a parameter is called in messages.
local function called(self, i)
  return ("argument %d%s"):format(i, self.names[i] and " (" .. self.names[i] .. ")" or "")
end

local function wrong(self, message, ...)
  check.fail("[kernel] %s: " .. message, self.name, ...)
end

-- Arguments of a launch by position: values by position, then by name in a table.
local function arguments(self, n, ...)
  local values = { ... }
  while n > self.proto.nparams and values[n] == nil do n = n - 1 end
  local last = values[n]
  if type(last) == "table" and not B.is_tensor(last) and getmetatable(last) == nil then
    values[n], n = nil, n - 1
    for key, v in each(last) do
      local i = self.position[key]
      if not i then
        wrong(self, "there is no parameter '%s'%s", tostring(key), check.suggest(tostring(key), self.names))
      elseif i <= n then
        wrong(self, "'%s' is given twice", key)
      end
      values[i] = v
    end
  end
  if n > #self.names and n > self.proto.nparams then
    wrong(self, "takes %d arguments (%s), got %d", self.proto.nparams, table.concat(self.names, ", "), n)
  end
  return values
end

-- Integers, floats, and 1: strides often are, and a kernel of neighbouring elements is worth a variant of its own.
local function kind_of_number(v)
  if v == 1 then return "1" end
  return v == math.floor(v) and math.abs(v) < 2 ^ 63 and "i" or "f"
end

-- The key of a variant, the device of its tensors and whether tensors share memory.
local function describe(self, values)
  local key, device, storages, shared = {}, nil, {}, nil
  for i = 1, self.proto.nparams do
    local v = values[i]
    local part
    if self.is_const[i] then
      if v == nil then
        wrong(self, "%s is a constexpr and has no value: give it by name, { %s = … }", called(self, i),
          self.names[i] or "?")
      elseif type(v) == "number" then
        part = ("c%.17g"):format(v)
      elseif type(v) == "string" then
        part = ("c%q"):format(v)
      elseif type(v) == "boolean" or B.is_dtype(v) then
        part = "c" .. type(v) .. tostring(v)
      else
        wrong(self, "%s is a constexpr: a number, boolean, string or dtype, got %s", called(self, i),
          B.is_tensor(v) and "a tensor" or type(v))
      end
    elseif B.is_tensor(v) then
      if B.is_fake(v) then wrong(self, "%s: a fake tensor has no memory", called(self, i)) end
      local d = B.tensor_device(v)
      local name = tostring(d)
      if device and device ~= name then
        wrong(self, "tensors on two devices, %s and %s (%s)", device, name, called(self, i))
      end
      device = name
      part = "p" .. B.tensor_dtype(v).name
      local storage = tostring(B.storage_ptr(v))
      if storages[storage] and B.numel(v) > 0 then
        shared = shared or {}
        shared[i] = storages[storage]
      else
        storages[storage] = i
      end
    elseif type(v) == "number" then
      part = kind_of_number(v)
    elseif type(v) == "boolean" then
      part = "b" .. tostring(v)
    elseif v == nil then
      part = "n"
    else
      wrong(self, "%s: expected a tensor, a number, true, false or nil, got %s", called(self, i), type(v))
    end
    key[i] = part
  end
  key = table.concat(key, ",")
  for i = 1, shared and self.proto.nparams or 0 do
    if shared[i] then key = key .. (";%d=%d"):format(i, shared[i]) end
  end
  return key, device, shared
end

-- The program of the arguments that a launch has.
local function program(self, values, shared)
  local prog = { name = self.name, place = self.source, params = {}, class = {}, types = {} }
  for i = 1, self.proto.nparams do
    local v = values[i]
    local param = { name = self.names[i], index = i - 1 }
    if not self.is_const[i] then
      if B.is_tensor(v) then
        param.pointer, param.d = true, lang.dtype(B.tensor_dtype(v))
        prog.class[i - 1] = shared and shared[i] or i
      elseif type(v) == "number" then
        local kind = kind_of_number(v)
        param.integer, param.float = kind == "i", kind == "f"
      end
    end
    prog.params[i] = param
  end
  prog.body, prog.captures = reading(reader.read, {
    f = self.f, proto = self.proto, name = self.name, lang = lang,
    values = function(c, i)
      local param, v = prog.params[i], values[i]
      if param.pointer then
        return { k = "ptr", root = i - 1, d = param.d, name = param.name, off = c.b:const(0) }
      elseif param.integer or param.float then
        return reader.of_node(c.b:pure { op = "param", index = i - 1, shape = {}, weak = true,
          d = param.float and dtypes.float64 or dtypes.int64 })
      end
      return lang.dtype(v) and { k = "dtype", d = lang.dtype(v) } or reader.const(v)
    end,
  })
  prog.biggest, prog.written = 1, {}
  local stored = {}
  local function look(list)
    for _, s in ipairs(list) do
      if s.shape then prog.biggest = math.max(prog.biggest, tile.numel(s.shape)) end
      if s.op == "store" or s.op == "atomic" then stored[s.root + 1] = true end
      if s.op == "atomic" and (s.kind == "cas" or s.kind == "xchg" or s.kind == "add" and s.d.is_float) then
        prog.any_order = ("atomic_%s of %s"):format(s.kind, s.d.name)
      end
      look(s.body or {})
      look(s.yes or {})
      look(s.no or {})
    end
  end
  look(prog.body)
  for i = 1, self.proto.nparams do
    if stored[i] then table.insert(prog.written, i) end
  end
  return prog
end

-- Whether a kernel with the constant a is one with b: -0 is not 0, NaN is NaN.
local function identical(a, b)
  if a == b then return a ~= 0 or 1 / a == 1 / b end
  return a ~= a and b ~= b
end

-- Whether outer variables are what they were.
local function still(captures)
  for _, c in ipairs(captures) do
    local v
    if c.f then
      local _
      _, v = debug.getupvalue(c.f, c.index)
    else
      v = c.env[c.name]
    end
    if not identical(v, c.value) then return false end
  end
  return true
end

local function interpreted() return (os.getenv("MOTH_KERNEL_INTERPRET") or "0") == "1" end
local checked = require("moth.kernel.native").checked

local warned -- that there is no compiler

-- The compiled variant for values, of a kind: "cpu", "cuda" or "interpret".
local function variant(self, kind, key, values, shared, options)
  key = kind .. (checked() and " checked " or " ") .. key
  local list = self.variants[key]
  for _, one in ipairs(list or {}) do
    if still(one.captures) then return one end
  end
  local prog = program(self, values, shared)
  local made
  if kind == "cpu" then
    made = require("moth.kernel.native").compile(prog)
    if not made then
      require("moth.utils.toolchain").log("kernel", not warned, "no C compiler (set MOTH_CC, or install gcc or \z
        clang): kernels are interpreted, which is slow")
      warned, kind = true, "interpret"
    end
  end
  if kind == "interpret" then
    made = require("moth.kernel.interpret").compile(prog)
  elseif kind == "cuda" then
    made = require("moth.kernel.cuda").compile(prog, options)
  end
  made.captures, made.prog, made.written = prog.captures, prog, prog.written
  made.any_order, made.kind = prog.any_order, kind
  self.variants[key] = list or {}
  table.insert(self.variants[key], 1, made)
  self.nvariants = self.nvariants + 1
  return made
end

-- The three sizes of a grid.
local function sizes(self, grid, values)
  if type(grid) == "function" then
    local meta = {}
    for i, name in each(self.names) do meta[name] = values[i] end
    grid = grid(meta)
  end
  if type(grid) == "number" then grid = { grid } end
  if type(grid) ~= "table" then wrong(self, "the grid is a list of up to three sizes, or a function that gives one") end
  local out = { 1, 1, 1 }
  for i = 1, math.max(#grid, 1) do
    local n = grid[i]
    if type(n) ~= "number" or n < 0 or n ~= math.floor(n) or n == math.huge or i > 3 then
      wrong(self, "the grid is a list of up to three integers, got %s", i > 3 and #grid .. " of them" or tostring(n))
    end
    out[i] = n
  end
  local programs = out[1] * out[2] * out[3]
  if programs > 2 ^ 53 then wrong(self, "a grid of %.0f programs; there may be 2^53", programs) end
  return out[1], out[2], out[3]
end

-- What a launch is given beside its arguments, from k{ grid, device = …, num_warps = … }.
local function launch_of(self, spec)
  if type(spec) == "number" or type(spec) == "function" then return { grid = spec } end
  if type(spec) ~= "table" then wrong(self, "a launch is kernel{ grid }(arguments), got %s", type(spec)) end
  local o, grid = {}, spec
  if type(spec[1]) == "function" or type(spec[1]) == "table" then grid = spec[1] end
  for key, v in each(spec) do
    if type(key) == "string" then
      if key ~= "device" and key ~= "num_warps" then
        wrong(self, "a launch has no option '%s'%s", key, check.suggest(key, { "device", "num_warps" }))
      end
      o[key] = v
    end
  end
  local warps = o.num_warps
  if warps ~= nil and not (type(warps) == "number" and warps == math.floor(warps) and warps >= 1 and warps <= 32) then
    wrong(self, "num_warps is 1 to 32, got %s", tostring(warps))
  end
  o.grid = grid
  return o
end

local is_tensor, dtype_of, device_of, storage_of, is_fake = B.is_tensor, B.tensor_dtype, B.tensor_device, B.storage_ptr,
  B.is_fake

local deterministic, range = require "moth.utils.deterministic", require "moth.profiler.range"
local is_profiled = B.profile.running

local recording, break_graph = B.compile.recording, B.compile.break_graph

-- What fits looks at, of a launch whose tensors share no memory.
local function remember(self, values, made)
  local last = { made = made, dtypes = {}, kinds = {}, consts = {} }
  for i = 1, self.proto.nparams do
    local v = values[i]
    if self.is_const[i] then
      last.consts[i] = v
    elseif is_tensor(v) then
      last.kinds[i], last.dtypes[i], last.device = "tensor", dtype_of(v), device_of(v)
    elseif type(v) == "number" then
      last.kinds[i] = kind_of_number(v)
    else
      last.consts[i] = v
    end
  end
  return last
end

-- Whether the variant of the last launch is that of these values, too.
local function fits(self, last, values)
  local kinds = last.kinds
  for i = 1, self.proto.nparams do
    local v, kind = values[i], kinds[i]
    if kind == "tensor" then
      if not is_tensor(v) or dtype_of(v) ~= last.dtypes[i] or device_of(v) ~= last.device or is_fake(v) then
        return false
      end
      local storage = storage_of(v)
      for k = 1, i - 1 do
        if kinds[k] == "tensor" and storage_of(values[k]) == storage then return false end
      end
    elseif kind then
      if type(v) ~= "number" or kind_of_number(v) ~= kind then return false end
    elseif not identical(v, last.consts[i]) then
      return false
    end
  end
  return still(last.made.captures)
end

-- Runs a variant. What it writes to is newer then, so that backward does not take it for what was saved before.
local function run(self, made, values, gx, gy, gz)
  if gx * gy * gz > 0 then
    for i, p in ipairs(made.prog.params) do
      local why = p.pointer and B.check_memory(values[i])
      if why then wrong(self, "%s: %s", called(self, i), why) end
    end
    if made.any_order and (made.kind == "cuda" or made.kind == "cpu" and gx * gy * gz > 1) then
      deterministic.refuse("kernel " .. self.name, made.any_order .. " by programs that run in any order; let each "
        .. "program write its own sum, and add these")
    end
    if is_profiled() then
      range(range.kinds.compiled, "kernel " .. self.name, made.run, values, gx, gy, gz)
    else
      made.run(values, gx, gy, gz)
    end
    for _, i in ipairs(made.written) do B.bump_version(values[i]) end
  end
  return made
end

--- Launches: grid (or { grid, device =, num_warps = }), then the arguments.
function Kernel:launch(spec, ...)
  local o = launch_of(self, spec)
  if recording() then break_graph("the launch of kernel " .. self.name) end
  local values = arguments(self, select("#", ...), ...)
  local last = self.last
  if last and o.device == nil and o.num_warps == last.num_warps and interpreted() == last.interpreted
    and checked() == last.checked and fits(self, last, values) then
    local gx, gy, gz = sizes(self, o.grid, values)
    return run(self, last.made, values, gx, gy, gz)
  end
  local key, device, shared = describe(self, values)
  local wanted = o.device and tostring(o.device)
  device = device or wanted or "cpu"
  if wanted and wanted ~= device and wanted ~= device:match("^%a+") then
    wrong(self, "the launch is for %s, its tensors are on %s", wanted, device)
  end
  local kind = device:match("^%a+")
  if kind ~= "cpu" and kind ~= "cuda" then wrong(self, "kernels run on cpu and cuda, the tensors are on %s", device) end
  if kind == "cpu" and interpreted() then kind = "interpret" end
  if kind == "cuda" then key = key .. ";w" .. tostring(o.num_warps) end
  local made = variant(self, kind, key, values, shared, o)
  self.last = nil
  if not shared then
    self.last = remember(self, values, made)
    self.last.num_warps, self.last.interpreted, self.last.checked = o.num_warps, interpreted(), checked()
  end
  local gx, gy, gz = sizes(self, o.grid, values)
  return run(self, made, values, gx, gy, gz)
end

-- The program of arguments, as a launch would make it.
local function text(self, back_end, ...)
  local values = arguments(self, select("#", ...), ...)
  local _, device, shared = describe(self, values)
  local prog = program(self, values, shared)
  back_end = back_end or ((device or "cpu"):find("^cuda") and "cuda" or "native")
  return (require("moth.kernel." .. back_end).source(prog))
end

--- The source that a launch with these arguments runs (C or CUDA C++), without running it.
function Kernel:source_of(...) return text(self, nil, ...) end
--- The CUDA C++ for arguments of any device.
function Kernel:cuda_source(...) return text(self, "cuda", ...) end

function Kernel:__call(spec)
  return function(...) self:launch(spec, ...) end
end

function Kernel:__index(key)
  local method = Kernel[key]
  if method ~= nil or key == "last" then return method end
  if type(key) == "string" then
    wrong(self, "a kernel has no '%s'%s", key, check.suggest(key, { "launch", "source_of", "cuda_source" }))
  end
  return function(...) self:launch(key, ...) end
end

--- The least integer of at least x / y.
M.cdiv = signature("kernel.cdiv(int x, int y)", function(x, y)
  if y == 0 then check.fail("[kernel.cdiv] argument 'y': 0") end
  return math.ceil(x / y)
end)
--- The least power of two of at least n.
M.next_power_of_2 = signature("kernel.next_power_of_2(count n)", function(n)
  local p = 1
  while p < n do p = p * 2 end
  return p
end)
lang.names[M.cdiv] = "cdiv"

M.autotune = require "moth.kernel.autotune"

lang.modules[M], lang.modules[require "moth"] = "moth.kernel", "moth"

return M
