-- The folders of the C source as floors: what a file includes, and what an object calls, stands in its own folder or on
-- a lower floor. So there is no circle, and each folder can be read with nothing but those below it in mind.
local floors = {
  ["src"] = 0, ["kernels"] = 0,                          -- moth.h; the formulas, which include nothing
  ["src/core"] = 1, ["src/emu"] = 1,                     -- what knows no op; CUDA's toolkit, emulated
  ["src/device"] = 2, ["src/io"] = 2,
  ["src/dispatch"] = 3,
  ["src/autograd"] = 4, ["src/cuda"] = 4, ["kernels/common"] = 4,
  ["src/comm"] = 5, ["src/composite"] = 5, ["kernels/cpu"] = 5,
  ["src/graph"] = 6, ["src/profile"] = 6, ["kernels/cuda"] = 6,
  ["src/edge"] = 7,
  ["src/lua"] = 8,
}

local function lines(command)
  local pipe = assert(io.popen(command))
  local list = {}
  for line in pipe:lines() do list[#list + 1] = line end
  pipe:close()
  return list
end

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

-- src/core/tensor.c is in src/core, kernels/cpu/typed/norm.h in kernels/cpu, kernels/math.h in kernels.
local function folder(path) return path:match("^([^/]+/[^/]+)/") or path:match("^[^/]+") end

describe("a folder of the C source", function()
  it("includes nothing of a higher floor", function()
    local files = lines [[find src kernels -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc']]
    local wrong, seen = {}, 0
    for _, path in ipairs(files) do
      local own = folder(path)
      local floor = assert(floors[own], own .. " has no floor here: give it one")
      for _, line in ipairs(path:find("/toolkit/", 1, true) and {} or lines("grep -h '^ *# *include \"' " .. path)) do
        local name = line:match('"([^"]+)"')
        local target = exists("src/" .. name) and "src/" .. name or exists(name) and name
        local other = target and folder(target)
        if other and other ~= own then
          seen = seen + 1
          if floors[other] >= floor then wrong[#wrong + 1] = path .. " includes " .. target end
        end
      end
    end
    assert.is_true(seen > 100, "includes were not found")
    assert.equal("", table.concat(wrong, "\n"))
  end)

  -- By the symbols of the objects: moth.h declares functions of all floors, so that includes alone do not say it. Ops
  -- are called by name on any floor: generated objects are left out.
  it("calls nothing of a higher floor", function()
    local objects = (os.getenv("MOTH_BUILD") or "build") .. "/obj"
    if not exists(objects .. "/src/core/tensor.o") then return pending("there are no objects") end
    local defined, wanted = {}, {}
    local symbols = lines(("cd %s && find src kernels -name '*.o' -exec nm -A {} +"):format(objects))
    for _, line in ipairs(symbols) do
      local path, kind, symbol = line:match("^([^:]+):%x*%s+(%a) (%S+)$")
      local own = path and folder(path)
      if kind == "U" then
        wanted[#wanted + 1] = { own, symbol, path }
      elseif kind and kind == kind:upper() then
        defined[symbol] = own
      end
    end
    local wrong, seen = {}, 0
    for _, w in ipairs(wanted) do
      local other = defined[w[2]]
      if other and other ~= w[1] then
        seen = seen + 1
        if floors[other] >= floors[w[1]] then
          wrong[#wrong + 1] = ("%s calls %s of %s"):format(w[3], w[2], other)
        end
      end
    end
    assert.is_true(seen > 100, "symbols were not found")
    assert.equal("", table.concat(wrong, "\n"))
  end)
end)

describe("a typed kernel", function()
  local function read(path)
    local f = assert(io.open(path))
    local text = f:read("*a")
    f:close()
    return text
  end
  local gen = (os.getenv("MOTH_BUILD") or "build") .. "/gen/"

  it("takes its arguments as one structure, which is the same on every device", function()
    local cpu, count = {}, 0
    for name, parameters in read(gen .. "typed_kernels.h"):gmatch("%(%*([%w_]+)%)(%b());") do
      count = count + 1
      cpu[name] = parameters:match("^%(const struct (Moth%w+) %*%w+%)$")
      assert.is_true(cpu[name] ~= nil or parameters == "(void)", name .. parameters)
    end
    assert.is_true(count > 30)
    local shared = 0
    for name, parameters in read(gen .. "cuda/typed_kernels.h"):gmatch("%(%*([%w_]+)%)(%b());") do
      local struct = parameters:match("^%(const MothCudaRun %*run, const (Moth%w+) %*%w+[^*]*%)$")
        or parameters:match("^%(const MothCudaRun %*run, const (Moth%w+) %*%w+, bool %*done%)$")
      assert.truthy(struct, name .. parameters)
      if cpu[name] then
        shared = shared + 1
        assert.equal(cpu[name], struct, name)
      end
    end
    assert.is_true(shared > 8)
  end)
end)
