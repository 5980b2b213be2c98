-- What nvcc makes of the kernels: that they compile, and of the hot ones, that they move 16 bytes at a
-- time and spill nothing. For one architecture and type in every run, for the others with the slow specs.
local sass = require "cuda.sass"

local build = os.getenv("MOTH_BUILD") or "build"
local out = build .. "/cubins"

local function capture(command)
  local pipe = io.popen(command)
  local text = pipe:read("*a")
  pipe:close()
  return (text:gsub("%s+$", ""))
end

-- A run under a sanitizer preloads its library: not into the compiler.
local clean = "env -u LD_PRELOAD "
local nvcc = capture(clean .. "sh -c 'command -v nvcc || ls /usr/local/cuda/bin/nvcc' 2>/dev/null")

-- ops of src/ops/pointwise.lua whose flat kernels are looked at
local pointwise = { "add", "mul", "exp", "gelu" }

-- Hot kernels of the typed files (attention: of the attention files): the name of the kernel's function, what else
-- the mangled name of its instances has, how many 128-bit loads and stores each instance has at least (with `any`: one
-- of the instances).
local structured = {
  { kernel = "soft_short", has = "SoftmaxOf", loads = 1, stores = 1, any = true },
  { kernel = "soft_shared", has = "SoftmaxOf", loads = 1, stores = 1, any = true },
  { kernel = "back_short", loads = 2, stores = 1, any = true },
  { kernel = "back_shared", loads = 2, stores = 1, any = true },
  -- cross_entropy: rows of logits are read by a reduction, and its gradient is written by softmax's kernels
  { kernel = "soft_shared", has = "LossGrad", loads = 1, stores = 1, any = true },
  { kernel = "reduce_short", has = "StatsOp", loads = 1, stores = 0, any = true },
  -- layer_norm
  { kernel = "norm_short", loads = 1, stores = 1, any = true },
  { kernel = "norm_back_short", loads = 2, stores = 1, any = true },
}
-- A thread writes as many columns as its products leave it: 16 bytes in float32 only.
local attention = { { kernel = "attention_kernel", loads = 2, stores = 0, any = true } }

-- No kernel of the typed files touches local memory, but for these, each with its reason.
local may_spill = {
  -- histogram = "an array indexed by data",
}

local all_types = { "float32", "bfloat16" }

-- the whole of nvcc's files, for the slow specs
local function sources()
  local list = {}
  for path in capture(("ls src/cuda/*.cu kernels/cuda/*.cu %s/gen/cuda/*.cu"):format(build)):gmatch("%S+") do
    list[#list + 1] = path
  end
  return list
end

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

--- The generated files of pointwise ops, each with those ops and dtypes only that are looked at. Returns their paths.
local function probes(types)
  local wanted, paths = {}, {}
  for _, dtype in ipairs(types) do
    for _, op in ipairs(pointwise) do wanted[op .. "_" .. dtype .. "_cuda"] = true end
  end
  for path in capture(("ls %s/gen/cuda/pointwise_*.cu"):format(build)):gmatch("%S+") do
    local found = false
    local text = read(path):gsub("\n/%* [%w_]+%b() %->[^\n]*%*/\nstruct ([%w_]+)_f {.-\nMothStatus ([%w_]+).-\n}\n",
      function(name, loop)
        assert(name == loop)
        if not wanted[name] then return "\n" end
        wanted[name], found = nil, true
      end)
    if found then
      paths[#paths + 1] = ("%s/%s"):format(out, path:match("[^/]+$"))
      local file = assert(io.open(paths[#paths], "w"))
      file:write(text)
      file:close()
    end
  end
  assert.is_nil(next(wanted))
  return paths
end

local flags = ("-std=c++20 -O3 --expt-relaxed-constexpr -diag-suppress 177,20012 -Isrc -I%s/gen -I. -D_GNU_SOURCE")
  :format(build)

local function cubin_path(source, arch)
  return ("%s/%s.%s.cubin"):format(out, source:gsub("[/.]", "_"), arch)
end

--- Compiles sources for an architecture, two at a time. Returns what nvcc said.
local function compile(list, arch)
  os.execute("mkdir -p " .. out)
  local commands = {}
  for _, source in ipairs(list) do
    commands[#commands + 1] = ("%s %s -Xptxas -v -cubin -gencode arch=compute_%s,code=sm_%s -o %s %s")
      :format(nvcc, flags, arch, arch, cubin_path(source, arch), source)
  end
  local file = assert(io.open(out .. "/commands", "w"))
  file:write(table.concat(commands, "\n"), "\n")
  file:close()
  return capture(("{ %sxargs -P2 -I{} sh -c '{} || echo nvcc failed: {}' < %s/commands; } 2>&1"):format(clean, out))
end

local function text_of(counts)
  local said = {}
  for name, of in pairs(counts) do
    if type(of) == "table" then said[#said + 1] = ("%s %d (.128 %d)"):format(name, of.all, of[128] or 0) end
  end
  table.sort(said)
  return table.concat(said, ", ")
end

local function is_hot(kernels, loads, stores, any, ...)
  local found = sass.find(kernels, ...)
  assert.is_true(#found > 0, "there is no kernel " .. table.concat({ ... }, " "))
  local wide = 0
  for _, k in ipairs(found) do
    local said = k.name .. ": " .. text_of(k.counts)
    assert.is_nil(k.counts.LDL, said)
    assert.is_nil(k.counts.STL, said)
    local load, store = k.counts.LDG and k.counts.LDG[128] or 0, k.counts.STG and k.counts.STG[128] or 0
    if load >= loads and store >= stores then wide = wide + 1 end
    assert.is_true(any or wide > 0, "too few 128-bit accesses in " .. said)
    if not any then wide = 0 end
  end
  assert.is_true(not any or wide > 0, "no instance with 128-bit accesses of " .. table.concat({ ... }, " "))
end

local function specs(arch, types)
  it("reads known kernels right", function()
    local said = compile({ "spec/cuda/sass_probe.cu" }, arch)
    assert.is_nil(said:find("nvcc failed", 1, true), said)
    local k = sass.read(cubin_path("spec/cuda/sass_probe.cu", arch))
    assert.same({ all = 1, [128] = 1 }, k.probe_128.LDG)
    assert.same({ all = 1, [128] = 1 }, k.probe_128.STG)
    assert.same({ all = 1, [64] = 1 }, k.probe_64.LDG)
    assert.same({ all = 1, [32] = 1 }, k.probe_32.STG)
    assert.same({ all = 1, [8] = 1 }, k.probe_8.LDG)
    assert.same({ all = 1, [16] = 1 }, k.probe_8.STG)
    assert.same({ all = 1, [128] = 1 }, k.probe_shared.LDS)
    assert.same({ all = 1, [128] = 1 }, k.probe_shared.STS)
    assert.is_nil(k.probe_shared.LDL)
    -- as many bytes as ptxas says
    local spilled, reloaded = said:match("probe_spill.-(%d+) bytes spill stores, (%d+) bytes spill loads")
    local function bytes(of)
      local sum = 0
      for width, n in pairs(of) do
        if width ~= "all" then sum = sum + width / 8 * n end
      end
      return sum
    end
    assert.equal(tonumber(spilled), bytes(k.probe_spill.STL))
    assert.equal(tonumber(reloaded), bytes(k.probe_spill.LDL))
  end)

  it("pointwise kernels load and store 16 bytes at a time, and spill nothing", function()
    os.execute("mkdir -p " .. out)
    local list, kernels = probes(types), {}
    local said = compile(list, arch)
    assert.is_nil(said:find("nvcc failed", 1, true), said)
    for _, path in ipairs(list) do
      for name, counts in pairs(sass.read(cubin_path(path, arch))) do kernels[name] = counts end
    end
    for _, dtype in ipairs(types) do
      for _, op in ipairs(pointwise) do
        local f = op .. "_" .. dtype .. "_cuda_f"
        is_hot(kernels, 2, 2, false, "14pointwise_flat", #f .. f)
        for _, k in ipairs(sass.find(kernels, "17pointwise_strided", #f .. f)) do
          assert.is_nil(k.counts.STL, k.name .. ": " .. text_of(k.counts))
        end
      end
    end
  end)

  it("structured kernels spill nothing, the hot ones move 16 bytes at a time", function()
    local list = {}
    for _, dtype in ipairs(types) do
      list[#list + 1] = ("%s/gen/cuda/%s_typed.cu"):format(build, dtype)
      list[#list + 1] = ("%s/gen/cuda/%s_attention.cu"):format(build, dtype)
    end
    local said = compile(list, arch)
    assert.is_nil(said:find("nvcc failed", 1, true), said)
    for _, source in ipairs(list) do
      local kernels = sass.read(cubin_path(source, arch))
      for name, counts in pairs(kernels) do
        local excused = false
        for kernel in pairs(may_spill) do excused = excused or name:find(#kernel .. kernel, 1, true) end
        local touches = name .. " touches local memory: " .. text_of(counts)
        assert.is_true(excused or not (counts.LDL or counts.STL), touches)
      end
      for _, hot in ipairs(source:find("_attention", 1, true) and attention or structured) do
        is_hot(kernels, hot.loads, hot.stores, hot.any, #hot.kernel .. hot.kernel, hot.has or "")
      end
    end
  end)
end

if nvcc == "" then
  describe("compiled kernels", function()
    pending("there is no nvcc on this machine", function() end)
  end)
  return
end

describe("compiled kernels for sm_90a", function() specs("90a", { "float32" }) end)
for _, arch in ipairs { "80", "90a", "100" } do
  describe("compiled kernels for sm_" .. arch .. " #slow", function() specs(arch, all_types) end)
end
for _, arch in ipairs { "80", "90a", "100" } do
  it("all of moth's .cu files compile for sm_" .. arch .. " #slow", function()
    local said = compile(sources(), arch)
    assert.is_nil(said:find("nvcc failed", 1, true), said)
  end)
end
