-- The C API, the generator and the layers of folders: one kernel for Lua and C, all from one record, includes that go
-- downward only.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local build = os.getenv("MOTH_BUILD") or "build"
local luajit = os.getenv("LUAJIT") or "luajit"

-- Without a sanitizer that is preloaded: it would find what mktemp and gcc leave to their end.
local function shell(command, ...)
  local pipe = assert(io.popen(("unset LD_PRELOAD; { %s; } 2>&1; echo status=$?"):format(command:format(...))))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  return text, tonumber(status)
end
local function must(command, ...)
  local text, status = shell(command, ...)
  assert.equal(0, status, text)
  return text
end

describe("an op called from C #noasan", function()
  it("gives the bits that Lua gets #M001", function()
    local dir = must("mktemp -d"):match("%S+")
    finally(function() shell("rm -rf %s", dir) end)
    must("gcc -std=c99 -Wall -Wextra -Werror -O1 -Isrc -I%s/gen -o %s/check spec/dispatch/c_api_check.c -L%s -lmoth \z
      -Wl,-rpath,%s", build, dir, build, build:sub(1, 1) == "/" and build or "$PWD/" .. build)
    moth.manual_seed(5)
    local x, y = moth.rand(37, 53), moth.randn(37, 53)
    local f = assert(io.open(dir .. "/in", "wb"))
    f:write(B.bytes(x), B.bytes(y))
    f:close()
    must("%s/check %s/in %s/out", dir, dir, dir)
    f = assert(io.open(dir .. "/out", "rb"))
    local from_c = f:read("*a")
    f:close()
    local from_lua = {}
    for i, t in ipairs { x + y, moth.exp(x), x:tanh(), x ^ 1.5, x:sum(), x:softmax(2), x:matmul(y:t()),
      x:argmax(2) - 1 } do -- C counts from 0
      from_lua[i] = B.bytes(t:contiguous())
    end
    from_lua = table.concat(from_lua)
    assert.equal(#from_lua, #from_c)
    assert.is_true(from_lua == from_c)
  end)
end)

describe("the generator", function()
  -- src/ops copied, with a record added to one file; everything else as it is.
  local function generated(record)
    local dir = must("mktemp -d"):match("%S+")
    must("mkdir -p %s/src && cp -r src/ops %s/src && for d in src/*/; do d=$(basename $d); [ $d = ops ] || \z
      ln -s $PWD/src/$d %s/src/$d; done; ln -s $PWD/kernels %s/kernels; ln -s $PWD/lua %s/lua; \z
      ln -s $PWD/src/moth*.h %s/src", dir, dir, dir, dir, dir, dir)
    local path = dir .. "/src/ops/activation.lua"
    local f = assert(io.open(path))
    local text = f:read("*a"):gsub("%s*}%s*$", "\n" .. record .. "\n}\n")
    f:close()
    f = assert(io.open(path, "w"))
    f:write(text)
    f:close()
    local output, status = shell("%s %s/src/ops/gen.lua %s/gen", luajit, dir, dir)
    local function read(name)
      local g = io.open(dir .. "/gen/" .. name)
      local all = g and g:read("*a") or ""
      if g then g:close() end
      return all
    end
    local files = { header = read "moth_ops.h", ops = read "ops_activation.c", backward = read "backward.c",
      table = read "moth/ops_table.lua", unpack = read "unpack/activation.h" }
    shell("rm -rf %s", dir)
    return output, status, files
  end

  it("makes entry, kernel table, derivative, unpacking and description of one record #M069", function()
    local output, status, files = generated [[{ "twice_relu(Tensor self) -> Tensor", kind = "pointwise",
      scalar = "relu", promote = "same", grad = { self = "threshold_backward(grad, result, 0)" },
      samples = { "randn(2)" }, none = "relu again", doc = "x" },]]
    assert.equal(0, status, output)
    assert.matches("MothStatus moth_twice_relu(MothTensor *self, MothTensor **out)", files.header, 1, true)
    assert.matches("MOTH_API MothOp moth_op_twice_relu", files.ops, 1, true)
    assert.matches("twice_relu", files.backward, 1, true)
    assert.matches("MOTH_UNPACK_TWICE_RELU", files.unpack, 1, true)
    assert.matches("twice_relu(Tensor self) -> Tensor", files.table, 1, true)
  end)
end)

describe("the floors", function()
  -- From the lowest layer; folders of one layer include nothing of each other. kernels/math*.h is of the lowest layer,
  -- too: it includes nothing. src/emu counts as CUDA's headers.
  local floors = {
    { "math" }, { "core" }, { "device", "io", "emu" }, { "dispatch" },
    { "autograd", "comm", "kernels/common", "codegen" }, { "kernels/cpu", "cuda" },
    { "kernels/cuda" }, { "composite" }, { "graph", "profile", "edge" }, { "lua" }, { "lua/launcher" },
  }
  local height = {}
  for i, names in ipairs(floors) do
    for _, name in ipairs(names) do height[name] = i end
  end
  local function folder_of(path)
    if path:match("^kernels/math[%w_]*%.h$") then return "math" end
    path = path:gsub("^src/", "")
    local found
    for name in pairs(height) do
      if path:sub(1, #name + 1) == name .. "/" and #name > #(found or "") then found = name end
    end
    return found
  end
  -- The includes of `text`, lines "path:#include "other"", that go upward or sideways.
  local function wrong(text)
    local out, seen = {}, 0
    for path, other in text:gmatch('([^\n:]+): *# *include "([^"\n]+)"') do
      local from, to = folder_of(path), folder_of(other)
      if from then seen = seen + 1 end
      if path:match("^src/%w+/") and not from then out[#out + 1] = path .. " is in no floor" end
      if from and to and from ~= to and height[to] >= height[from] then
        out[#out + 1] = ("%s includes %s"):format(path, other)
      end
    end
    return out, seen
  end

  it("below include nothing of those above #M070", function()
    local bad, seen = wrong(must("grep -rn '^ *# *include \"' src kernels --include=*.[ch] --include=*.cu "
      .. "--include=*.cuh --include=*.cc | sed 's/:[0-9]*:/:/'"))
    assert.same({}, bad)
    assert.is_true(seen > 500)
    assert.same({ "src/core/x.c includes device/device.h", "src/autograd/x.c includes comm/comm.h",
      "src/cuda/x.cu includes kernels/cpu/util.h", "src/new/x.c is in no floor" },
      (wrong('src/core/x.c:#include "device/device.h"\nsrc/autograd/x.c: # include "comm/comm.h"\n'
        .. 'src/cuda/x.cu:#include "kernels/cpu/util.h"\nsrc/new/x.c:#include "core/log.h"\n'
        .. 'src/core/dtype.c:#include "kernels/math.h"\n')))
  end)

  it("of the core know no Lua #M070", function()
    for _, path in ipairs { "src/core", "src/device", "src/dispatch", "src/autograd", "src/composite", "kernels" } do
      assert.equal("", (shell("grep -rln 'lua.h\\|lauxlib' %s", path)))
    end
    assert.equal("", (shell("nm -D %s/libmoth.so | grep ' U lua'", build)))
  end)
end)

describe("the binding #quick", function()
  it("makes Lua errors of C's, at the user's line, with a traceback, and leaves nothing behind #M076", function()
    local function wrong() return moth.ones(2, 3):mm(moth.ones(2, 3)) end
    local ok, text = xpcall(wrong, debug.traceback)
    assert.is_false(ok)
    assert.matches("^spec/dispatch/c_api_spec.lua:%d+: %[mm%] self and mat2 shapes cannot be multiplied", text)
    assert.matches("in function 'xpcall'", text)
    for _ = 1, 50 do pcall(wrong) end
    collectgarbage()
    collectgarbage()
    local before = moth.memory.stats().live
    for _ = 1, 2000 do pcall(wrong) end
    collectgarbage()
    collectgarbage()
    moth.zeros(1)
    assert.is_true(moth.memory.stats().live <= before + 4096)
    -- From a coroutine, and through a callback of Lua's under C.
    local co = coroutine.create(wrong)
    ok, text = coroutine.resume(co)
    assert.is_false(ok)
    assert.matches("self and mat2", text)
    local x = moth.ones(2, { requires_grad = true })
    x:register_hook(function() error("from the hook", 0) end)
    ok, text = pcall(function() (x * 2):sum():backward() end)
    assert.is_false(ok)
    assert.matches("from the hook", tostring(text))
    assert.equal("number", type(tonumber(ffi.cast("uintptr_t", moth.ones(1):data_ptr()))))
  end)

  it("has ops as objects, with overloads #M067", function()
    local add, x = moth.ops.moth.add, moth.ones(3)
    assert.equal("add", add.name)
    assert.matches("^add%(Operand self", add.schema)
    assert.same({ "pointwise" }, add.tags)
    assert.equal("add.Tensor", add.Tensor.name)
    assert.same({ 2, 2, 2 }, add.Tensor(x, x):totable())
    assert.same({ 4, 4, 4 }, add.Scalar(x, 3):totable())
    assert.same({ 3, 3, 3 }, add(x, 2):totable())
    assert.same({ 3, 3, 3 }, moth.ops.moth.add_(x:clone(), 2):totable())
    assert.same({ "pointwise", "inplace" }, moth.ops.moth.add_.tags)
    assert.error_matches(function() add.Tensor(x, 2) end, "add.Tensor: other must be a tensor, got number")
    assert.error_matches(function() add.Scalar(x, x) end, "add.Scalar: other must be a number, got a tensor")
    assert.equal("softmax.default", moth.ops.moth.softmax.default.name)
    assert.same({ 1, 1, 1 }, moth.ops.moth.relu.default(x):totable())
    assert.error_matches(function() return moth.ops.moth.no_such_op end, "no 'no_such_op'")
    assert.is_nil(rawget(moth.ops.moth, "no_such_op"))
    assert.equal("moth::add.Scalar", tostring(add.Scalar))
    for _, name in ipairs(moth.ops.list()) do
      if B.ops[name] then assert.equal(name, moth.ops.moth[name].name) end
    end
  end)

  it("bench.matmul reports what it measured #M052", function()
    local r = moth.bench.matmul(64, { repeats = 3 })
    assert.equal(64, r.n)
    assert.is_true(r.seconds > 0)
    assert.is_near(2 * 64 ^ 3, r.gflops * 1e9 * r.seconds, 1)
    -- The work grows eightfold; the time only about so, on a machine that does other things, too.
    assert.is_true(moth.bench.matmul(512).seconds > moth.bench.matmul(64).seconds)
    assert.error_matches(function() moth.bench.matmul(0) end, "at least 1")
  end)
end)
