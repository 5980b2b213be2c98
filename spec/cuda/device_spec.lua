-- Devices, faults that only the device sees, errors after which it is lost.
local moth = require "moth"
local fails = require "fails"
local cuda = moth.cuda
local child = require "child"

local function there() return cuda.is_available() or pending(cuda.why()) end
local function two() return there() and (cuda.device_count() > 1 or pending("there is one device")) end

-- The output of a script in a process of its own.
local function run(environment, script)
  return (child(script, { env = environment, program = "luajit" }))
end

describe("CUDA devices", function()
  it("have names and figures", function()
    if not there() then return end
    local p = cuda.get_device_properties()
    assert.equal(p.name, cuda.get_device_name(0))
    assert.same({ p.major, p.minor }, { cuda.get_device_capability("cuda:0") })
    assert.is_true(p.total_memory > 0 and p.multi_processor_count > 0)
    assert.equal(32, p.warp_size)
    fails("there are %d+ CUDA devices", cuda.get_device_name, 63)
    fails("expected a CUDA device", cuda.get_device_name, "cpu")
    fails("argument 'device': expected an integer", cuda.get_device_name, 0.5)
  end)

  it("have a topology, as nvidia-smi prints it #M407", function()
    if not two() then return end
    local ffi = require "ffi"
    pcall(ffi.cdef, "int setenv(const char *, const char *, int);")
    local dir, path, visible = os.tmpname(), os.getenv "PATH", os.getenv "CUDA_VISIBLE_DEVICES"
    os.remove(dir)
    os.execute("mkdir " .. dir)
    local f = assert(io.open(dir .. "/nvidia-smi", "w"))
    f:write([[#!/bin/sh
      if [ "$2" = -m ]; then
        printf '\t\033[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\033[0m\nGPU0\t X \tNV18\tSYS\tPIX\t0-47\n'
        printf 'GPU1\tNV18\t X \tPHB\tSYS\t0-47\nGPU2\tSYS\tPHB\t X \tSYS\t48-95\nNIC0\tPIX\tSYS\tSYS\t X \n\nLegend:\n'
      else
        printf ' \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tNS\n GPU1\tOK\tX\tOK\n GPU2\tNS\tOK\tX\n\nLegend:\n'
      fi
    ]])
    f:close()
    os.execute("chmod +x " .. dir .. "/nvidia-smi")
    finally(function()
      ffi.C.setenv("PATH", path, 1)
      ffi.C.setenv("CUDA_VISIBLE_DEVICES", visible or "", 1)
      os.execute("rm -r " .. dir)
    end)
    ffi.C.setenv("PATH", dir .. ":" .. path, 1)
    local t = cuda.topology()
    assert.equal("NV18", t.links[0][1])
    assert.is_true(t.peers[1][0])
    assert.matches("cuda:0  .-\n  cuda:1  link NV18, reads its memory\n.*NV18: NVLink", tostring(t))
    ffi.C.setenv("CUDA_VISIBLE_DEVICES", "2,0", 1)
    t = cuda.topology()
    assert.equal("SYS", t.links[0][1])
    assert.is_false(t.peers[0][1])
    ffi.C.setenv("PATH", "/nowhere", 1)
    assert.is_nil(cuda.topology().links[0][1])
  end)

  it("'cuda' is the current one #M352", function()
    if not two() then return end
    assert.equal(0, cuda.current_device())
    local x, y = cuda.device(1, function()
      assert.equal(1, cuda.current_device())
      return moth.ones({ 2 }, { device = "cuda" }), moth.ones(2):cuda()
    end)
    assert.equal(0, cuda.current_device())
    assert.equal(1, x:get_device())
    assert.equal(1, y:get_device())
    assert.same({ 2, 2 }, (x + y):totable())
    pcall(cuda.device, 1, error, "x")
    assert.equal(0, cuda.current_device())
    cuda.set_device("cuda:1")
    assert.equal(1, moth.device("cuda").index)
    cuda.set_device(0)
    local s = cuda.Stream { device = 1 }
    cuda.stream(s, function() assert.equal(1, cuda.current_device()) end)
    assert.equal(0, cuda.current_device())
  end)

  it("work side by side", function()
    if not two() then return end
    local a, b = moth.full({ 100 }, 2, { device = "cuda:0" }), moth.full({ 100 }, 3, { device = "cuda:1" })
    for _ = 1, 10 do a, b = a + b:cuda(0), b + a:cuda(1) end
    local x, y = 2, 3
    for _ = 1, 10 do x, y = x + y, y + x end
    assert.equal(100 * x, a:sum():item())
    assert.equal(100 * y, b:sum():item())
    assert.equal("cuda:1", tostring(b:device()))
    assert.is_true(cuda.memory_allocated(1) > 0)
  end)

  it("give the CPU's random numbers", function()
    if not there() then return end
    cuda.manual_seed(11)
    local x = moth.rand({ 500 }, { device = "cuda" }):totable()
    moth.manual_seed(11)
    assert.same(moth.rand(500):totable(), x)
    local state = cuda.get_rng_state()
    local y = moth.randint(0, 1000, { 50 }, { device = "cuda" }):totable()
    cuda.set_rng_state(state)
    assert.same(y, moth.randint(0, 1000, { 50 }):totable())
  end)

  it("take marks for profilers, or say why not", function()
    if not there() then return end
    local seen = cuda.nvtx.range_push("a")
    cuda.nvtx.mark("b")
    cuda.nvtx.range_pop()
    assert.equal(3, cuda.nvtx.range("c", function() return 3 end))
    assert.equal(not seen, cuda.nvtx.why() ~= nil)
  end)

  it("name the libraries that they can open, and where they looked for the others", function()
    if not there() then return end
    local found, missing = cuda.libraries()
    for _, name in ipairs { "cuBLASLt", "cuDNN", "NVRTC", "NCCL", "CUPTI" } do
      assert.not_equal(found[name] == nil, missing[name] == nil, name)
      assert.is_true(not found[name] or found[name] >= 0 and found[name] % 1 == 0, name)
      if missing[name] then assert.matches("MOTH_CUDA_LIB", missing[name]) end
    end
  end)

  it("can be asked for speed instead of the same bits", function()
    assert.is_true(moth.are_deterministic_algorithms_enabled())
    moth.use_deterministic_algorithms(false)
    assert.is_false(moth.are_deterministic_algorithms_enabled())
    moth.use_deterministic_algorithms(true)
    fails("expected true or false", moth.use_deterministic_algorithms, 1)
  end)
end)

describe("faults that a device finds", function()
  local function bad_index()
    local x = moth.arange(1, 5, 1, { device = "cuda" })
    return x:index_select(1, moth.tensor({ 2, 7 }, { dtype = moth.int64, device = "cuda" }))
  end

  it("are raised by the next call that waits, once", function()
    if not there() or os.getenv("MOTH_CUDA_SYNC") == "1" then return pending("MOTH_CUDA_SYNC=1") end
    for _, wait in ipairs {
      function() cuda.synchronize() end,
      function() cuda.current_stream():synchronize() end,
      function(y) y:sum():item() end,
      function(y) y:cpu() end,
    } do
      local y = bad_index()
      fails("%[index_select%] index 7 is out of range: expected 1 to 4 %(dimension 1 has size 4%) "
        .. "%(found while an earlier call ran on the device; MOTH_CUDA_SYNC=1 raises it there%)", wait, y)
      cuda.synchronize()
    end
    local e = (function()
      bad_index()
      return cuda.current_stream():record_event()
    end)()
    fails("index 7", e.synchronize, e)
  end)

  it("are raised at the call under MOTH_CUDA_SYNC=1", function()
    if not there() then return end
    local text = run("MOTH_CUDA_SYNC=1", [[
      local moth = require "moth"
      local x = moth.arange(1, 5, 1, { device = "cuda" })
      print(pcall(x.index_select, x, 1, moth.tensor({ 2, 7 }, { dtype = moth.int64, device = "cuda" })))
      print(x:sum():item())]])
    assert.matches("index 7 is out of range: expected 1 to 4 %(dimension 1 has size 4%)", text)
    assert.is_nil(text:find("earlier call", 1, true), text)
    assert.matches("\n10\n$", text)
  end)

  it("belong to their device", function()
    if not two() or os.getenv("MOTH_CUDA_SYNC") == "1" then return end
    bad_index()
    cuda.synchronize(1)
    assert.equal(2, moth.ones({ 2 }, { device = "cuda:1" }):sum():item())
    fails("index 7", cuda.synchronize, 0)
  end)
end)

describe("without CUDA", function()
  it("moth works, and says why there is none", function()
    local text = run("MOTH_CUDA=off", [[
      local moth = require "moth"
      print(moth.cuda.is_available(), moth.cuda.device_count(), moth.cuda.why())
      print(pcall(moth.cuda.current_stream))
      print(pcall(moth.cuda.memory_allocated))
      print(pcall(moth.cuda.libraries))
      print(pcall(function() return moth.ones(2):cuda() end))
      local x = moth.ones(2):pin_memory()
      print(x:is_pinned(), moth.cuda.nvtx.mark("x"))
      for b in moth.data.DataLoader(moth.data.TensorDataset(moth.ones(2, 1)), { pin_memory = true }):iter() do
        print(b:sum():item())
      end]])
    assert.matches("^false%s+0%s+CUDA is turned off: MOTH_CUDA=off\n", text)
    local n = select(2, text:gsub("false%s+%S+:%d+: %[cuda%.[%w_]+%] CUDA cannot be used here: CUDA is turned off", ""))
    assert.equal(3, n, text)
    assert.matches("cannot be used: CUDA is turned off", text)
    assert.matches("false%s+false\n1\n1\n$", text)
  end)
end)

describe("a device that is lost", function()
  it("makes errors that say so, and the process ends in order", function()
    if not there() then return end
    if not cuda.get_device_name():find("emulated") then return pending("it would be lost to the other specs, too") end
    local text = run("MOTH_CUDA_EMU_DEVICES=2", [[
      local moth = require "moth"
      local ffi = require "ffi"
      local x = moth.ones({ 4 }, { device = "cuda" })
      local lib = ffi.load(package.cpath:match("[^;?]*%?"):sub(1, -2) .. "libmoth_cudaemu.so")
      ffi.cdef "void moth_cuda_lose(int device);"
      lib.moth_cuda_lose(0)
      print(pcall(moth.cuda.synchronize))
      print(pcall(function() return x + 1 end))
      print(moth.ones({ 3 }, { device = "cuda:1" }):sum():item())]])
    assert.matches("cuda:0.-The device is lost to this process", text)
    assert.matches("\n3\n$", text)
  end)
end)
