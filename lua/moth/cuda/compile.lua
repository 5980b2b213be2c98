--- moth.cuda.compile: kernels in CUDA C that are compiled while the program runs, by NVRTC.
--
--     local k = moth.cuda.compile([[
--       extern "C" __global__ void axpy(float *y, const float *x, float a, int n) {
--         int i = blockIdx.x * blockDim.x + threadIdx.x;
--         if (i < n) y[i] += a * x[i];
--       }]], "axpy")
--     k:launch({ math.ceil(n / 256) }, { 256 }, 0, y, x, 0.5, n)
--
-- The kernel runs on the current stream of the current device. Arguments are converted to the parameters' types:
-- tensors (their first element's address; strides are the kernel's business), numbers, booleans, nil for a NULL
-- pointer; of any other type, a cdata of its size. Programs are cached: the same text is compiled once for each
-- architecture.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local program = require "moth.cuda.program"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local C = B.cuda

-- C's types by their words in order: what LuaJIT calls them, and the dtypes whose elements they are.
local types = {
  ["float"] = { "float", "float32" }, ["double"] = { "double", "float64" }, ["bool"] = { "bool", "bool" },
  ["char"] = { "int8_t", "int8" }, ["signed char"] = { "int8_t", "int8" }, ["int8_t"] = { "int8_t", "int8" },
  ["unsigned char"] = { "uint8_t", "uint8 bool" }, ["uint8_t"] = { "uint8_t", "uint8 bool" },
  ["short"] = { "int16_t", "int16" }, ["int16_t"] = { "int16_t", "int16" },
  ["unsigned short"] = { "uint16_t", "uint16 float16 bfloat16" },
  ["uint16_t"] = { "uint16_t", "uint16 float16 bfloat16" },
  ["int"] = { "int32_t", "int32" }, ["int32_t"] = { "int32_t", "int32" },
  ["unsigned"] = { "uint32_t", "uint32 int32" }, ["unsigned int"] = { "uint32_t", "uint32 int32" },
  ["uint32_t"] = { "uint32_t", "uint32 int32" },
  ["long"] = { "int64_t", "int64" }, ["long long"] = { "int64_t", "int64" }, ["int64_t"] = { "int64_t", "int64" },
  ["unsigned long"] = { "uint64_t", "uint64 int64" }, ["unsigned long long"] = { "uint64_t", "uint64 int64" },
  ["uint64_t"] = { "uint64_t", "uint64 int64" }, ["size_t"] = { "uint64_t", "uint64 int64" },
  ["__half"] = { nil, "float16" }, ["__nv_bfloat16"] = { nil, "bfloat16" },
}
local limits = { int8_t = { -128, 127 }, uint8_t = { 0, 255 }, int16_t = { -32768, 32767 }, uint16_t = { 0, 65535 },
  int32_t = { -2 ^ 31, 2 ^ 31 - 1 }, uint32_t = { 0, 2 ^ 32 - 1 }, int64_t = { -2 ^ 53, 2 ^ 53 },
  uint64_t = { 0, 2 ^ 53 } }
local boxes = {}
for _, t in each(types) do
  if t[1] then boxes[t[1]] = ffi.typeof(t[1] .. "[1]") end
end
local pointer = ffi.typeof "uint64_t[1]"

-- The parts of a list, "(a, b<c, d>)" or "<a, b>", between its brackets.
local function parts(list)
  local out, depth, from = {}, 0, 2
  list = list:sub(1, -2) .. ","
  for i = 2, #list do
    local c = list:sub(i, i)
    if c:find("[<(%[]") then depth = depth + 1 elseif c:find("[>)%]]") then depth = depth - 1 end
    if c == "," and depth == 0 then
      local one = list:sub(from, i - 1):gsub("^%s+", ""):gsub("%s+$", "")
      if one ~= "" then out[#out + 1] = one end
      from = i + 1
    end
  end
  return out
end

-- "const float *__restrict__ x" -> { type = "float", pointer = true, text = … }; with the template's types replaced.
local function parameter(text, known)
  local p = { pointer = text:find("[*%[]") ~= nil, text = text:gsub("^%s+", ""):gsub("%s+$", "") }
  local words = {}
  for word in text:gsub("%b[]", ""):gsub("=.*", ""):gmatch("[%w_:<>]+") do
    if not word:match("^const$") and not word:match("^__restrict") and word ~= "restrict" and word ~= "volatile"
      and word ~= "__grid_constant__" then
      words[#words + 1] = word
    end
  end
  if #words > 1 and not types[table.concat(words, " ")] then p.name = table.remove(words) end
  p.type = table.concat(words, " "):gsub("^std::", "")
  p.type = known[p.type] or p.type
  return p
end

-- The parameters that the source declares for a kernel, or nil where it is not found.
local function parameters(source, kernel)
  local name = kernel:match("([%a_][%w_]*)%s*%b<>%s*$") or kernel:match("([%a_][%w_]*)%s*$")
  local text = source:gsub("/%*.-%*/", " "):gsub("//[^\n]*", " "):gsub("__launch_bounds__%s*%b()", " ")
  if not name then return nil end
  local list = text:match("__global__[^;{}()]-%f[%w_]" .. name .. "%s*(%b())")
  if not list then return nil end
  local template = text:match("template%s*(%b<>)%s*__global__[^;{}()]-%f[%w_]" .. name .. "%s*%(")
  local given, known = kernel:match("%b<>%s*$"), {}
  if template and given then
    given = parts(given:gsub("%s+$", ""))
    for i, p in ipairs(parts(template)) do
      local type_ = p:match("^class%s+([%w_]+)") or p:match("^typename%s+([%w_]+)")
      if type_ then known[type_] = given[i] end
    end
  end
  local out = {}
  for _, one in ipairs(parts(list)) do
    if one ~= "void" then out[#out + 1] = parameter(one, known) end
  end
  return out
end

local function wrong(kernel, i, p, text, ...)
  check.fail("[cuda.compile] %s: argument %d (%s): %s", kernel.name, i, p.text, text:format(...))
end

local function tensor_bytes(kernel, i, p, x, device)
  local where = B.tensor_device(x)
  if not p.pointer then wrong(kernel, i, p, "expected a number, got a tensor; write x:item()") end
  if B.is_fake(x) then wrong(kernel, i, p, "a fake tensor has no memory") end
  if where.type ~= "cuda" or where.index ~= device then
    wrong(kernel, i, p, "the tensor is on %s, the kernel runs on cuda:%d", where, device)
  end
  local of = types[p.type]
  local dtype = tostring(B.tensor_dtype(x)):gsub("^moth%.", "")
  if of and not (" " .. of[2] .. " "):find(" " .. dtype .. " ", 1, true) then
    wrong(kernel, i, p, "expected a tensor of %s, got %s", of[2]:gsub(" ", " or "), dtype)
  end
  return ffi.string(pointer(B.data_ptr(x)), 8)
end

local function bytes(kernel, i, p, v, device)
  if B.is_tensor(v) then return tensor_bytes(kernel, i, p, v, device) end
  if type(v) == "cdata" and not p.pointer then
    local of = types[p.type]
    if of and of[1] and tonumber(v) then v = ffi.new(boxes[of[1]], v) end
    return ffi.string(ffi.cast("const char *", v), ffi.sizeof(v))
  end
  if p.pointer then
    if v ~= nil then wrong(kernel, i, p, "expected a tensor or nil, got %s", type(v)) end
    return ffi.string(pointer(0), 8)
  end
  local of = types[p.type]
  if not of or not of[1] then
    wrong(kernel, i, p, "moth does not know this type: give a cdata of its size, got %s", type(v))
  end
  if of[1] == "bool" and type(v) == "boolean" then return v and "\1" or "\0" end
  if type(v) ~= "number" then wrong(kernel, i, p, "expected a number, got %s", v == nil and "nothing" or type(v)) end
  local limit = limits[of[1]]
  if limit and (v ~= math.floor(v) or v < limit[1] or v > limit[2]) then
    wrong(kernel, i, p, "%.14g is no %s", v, p.type)
  end
  return ffi.string(boxes[of[1]](v), ffi.sizeof(of[1]))
end

local function three(kernel, what, v)
  local list = type(v) == "number" and { v } or v
  if type(list) ~= "table" or #list < 1 or #list > 3 then
    check.fail("[cuda.compile] %s: %s is a number or a list of up to three, got %s", kernel.name, what,
      type(v) == "table" and #v .. " of them" or type(v))
  end
  return list[1], list[2] or 1, list[3] or 1
end

local Kernel = {}
Kernel.__index = Kernel

--- Runs it: launch({ blocks }, { threads }, bytes of dynamic shared memory, arguments of the kernel …).
function Kernel:launch(grid, block, shared, ...)
  local device, packed, params = C.device(), {}, self.parameters
  local gx, gy, gz = three(self, "grid", grid)
  local bx, by, bz = three(self, "block", block)
  local n = params and #params or select("#", ...)
  if select("#", ...) > n then
    check.fail("[cuda.compile] %s takes %d arguments, got %d", self.name, n, select("#", ...))
  end
  for i = 1, n do
    local v = (select(i, ...))
    local p = params and params[i] or { text = "?", type = "?" }
    local why = gx * gy * gz > 0 and B.is_tensor(v) and B.check_memory(v)
    if why then wrong(self, i, p, "%s", why) end
    packed[i] = bytes(self, i, p, v, device)
  end
  C.launch(self.program, self.i, device, gx, gy, gz, bx, by, bz, shared or 0, unpack(packed, 1, n))
end

--- Blocks of so many threads (256 unless given) with so much shared memory that a multiprocessor holds at once, and the
-- share of its threads that this is.
function Kernel:occupancy(threads, shared)
  threads = threads or 256
  local device = C.device()
  local blocks = C.occupancy(self.program, self.i, device, threads, shared or 0)
  return blocks, blocks * threads / C.properties(device).max_threads_per_multi_processor
end

function Kernel:__tostring() return ("<moth.cuda kernel %s>"):format(self.name) end

--- compile(source, name, { headers = { ["name.h"] = text }, options = { "-DN=4" } }): the kernel `name` of a source in
-- CUDA C++: the name of a function, or an expression as "scale<float>". A list of names gives as many kernels.
return signature("cuda.compile(string source, string|list name, *, table headers?, list options?)",
  function(source, name, headers, options)
    local names = type(name) == "table" and name or { name }
    for i = 1, math.max(1, #names) do
      if type(names[i]) ~= "string" then
        check.fail("[cuda.compile] argument 'name': expected a name or a list of names, got %s at %d",
          type(names[i]), i)
      end
    end
    local header_names, texts, device = {}, {}, C.device()
    for key in each(headers or {}) do header_names[#header_names + 1] = key end
    table.sort(header_names)
    for i, key in ipairs(header_names) do texts[i] = headers[key] end
    local made = program.new(device, source, names, header_names, texts, options)
    local kernels = {}
    for i, kernel in ipairs(names) do
      kernels[i] = setmetatable({ name = kernel, program = made, i = i,
        parameters = parameters(source, kernel) }, Kernel)
    end
    return unpack(kernels)
  end)
