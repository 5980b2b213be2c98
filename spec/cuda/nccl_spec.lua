-- The backend "nccl" in a world of one rank: tensors stay on their device, streams are in order. On the emulation of
-- CUDA nccl_double.cc stands for NCCL.
local moth = require "moth"
local dist = require "moth.distributed"
local ffi = require "ffi"
local build = os.getenv("MOTH_BUILD") or "build"
local emulated = os.getenv "MOTH_CUDA" == "emu"
pcall(ffi.cdef, "int unsetenv(const char *name); int setenv(const char *name, const char *value, int overwrite);")

local function set(name, value)
  if value then ffi.C.setenv(name, value, 1) else ffi.C.unsetenv(name) end
end

local library
-- Joins; false, and why not.
local function join()
  if not moth.cuda.is_available() then return false, moth.cuda.why() end
  if emulated and not library then
    library = os.tmpname()
    local preload = os.getenv "LD_PRELOAD"
    set "LD_PRELOAD"
    local here = io.popen("realpath " .. build):read "*l"
    local status = os.execute(("g++ -shared -fPIC -o %s spec/cuda/nccl_double.cc %s/libmoth_emu.so -Wl,-rpath,%s")
      :format(library, here, here))
    set("LD_PRELOAD", preload)
    assert(status == 0 or status == true, "g++")
    set("MOTH_NCCL_LIBRARY", library)
  end
  if not dist.is_nccl_available() then return false, "no NCCL" end
  dist.init_process_group("nccl", { rank = 0, world_size = 1, init_method = "tcp://127.0.0.1:0" })
  return true
end

describe("NCCL #M354", function()
  teardown(function() if library then os.remove(library) end end)
  after_each(function() if dist.is_initialized() then dist.destroy_process_group() end end)

  it("carries all collectives of CUDA tensors, and copies of others", function()
    local ok, why = join()
    if not ok then return pending(why) end
    assert.equal("nccl", dist.get_backend())
    for _, device in ipairs { "cuda", "cpu" } do
      local x = moth.arange(6):to(moth.float32):to(device)
      local function same(y) assert.is_true(moth.equal(x:cpu(), y:cpu())) end
      for _, op in ipairs { "sum", "avg", "max" } do
        local t = x:clone()
        dist.all_reduce(t, { op = op })
        same(t)
      end
      local t = moth.zeros_like(x)
      dist.all_gather_into_tensor(t, x)
      same(t)
      dist.reduce_scatter_tensor(t:zero_(), x)
      same(t)
      dist.all_to_all_single(t:zero_(), x)
      same(t)
      local list = { moth.zeros_like(x) }
      dist.gather(x, list, 0)
      same(list[1])
      dist.scatter(t:zero_(), { x }, 0)
      same(t)
      dist.broadcast(t, 0)
      dist.reduce(t, 0)
      same(t)
      same(dist.nn.all_reduce(x))
      same(dist.nn.shift(x))
      local view = x:view(2, 3):t()
      dist.all_reduce(view)
      same(view:t():reshape(-1))
    end
    dist.barrier()
    assert.same({ { 1, "a" } }, dist.all_gather_object { 1, "a" })
    assert.error_matches(function() dist.all_reduce(moth.ones(2, { dtype = moth.int16, device = "cuda" })) end,
      "NCCL has no sum of int16")
    assert.error_matches(function() dist.all_reduce(moth.ones(2, { dtype = moth.int32, device = "cuda" }),
      { op = "bor" }) end, "NCCL has no bor of int32")
  end)

  it("waits for what the caller's stream has to do before", function()
    local ok, why = join()
    if not ok then return pending(why) end
    local stream = moth.cuda.Stream()
    local works, ts = {}, {}
    moth.cuda.stream(stream, function()
      for i = 1, 10 do
        ts[i] = moth.full({ 200000 }, i, { device = "cuda" }):mul_(2)
        works[i] = dist.all_reduce(ts[i], { async = true })
      end
    end)
    for i = 1, 10 do
      works[i]:wait()
      assert.equal(2 * i, ts[i][200000]:item())
    end
  end)

  it("reduces the gradients of DistributedDataParallel where they are", function()
    local ok, why = join()
    if not ok then return pending(why) end
    local nn = moth.nn
    for _, o in ipairs { {}, { gradient_as_bucket_view = true }, { find_unused_parameters = true } } do
      moth.manual_seed(1)
      local m = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)):to "cuda"
      local one = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)):to "cuda"
      one:load_state_dict(m:state_dict())
      local net = nn.parallel.DistributedDataParallel(m, o)
      local x = moth.randn(4, 5, { device = "cuda" })
      for _ = 1, 2 do
        net(x):sum():backward()
        one(x):sum():backward()
      end
      assert.is_true(moth.allclose(m[1].weight.grad, one[1].weight.grad))
    end
  end)

  it("leaves what lies on the host to own sockets: fully_shard", function()
    local ok, why = join()
    if not ok then return pending(why) end
    local m = moth.nn.Linear(4, 2):to "cuda"
    dist.fully_shard(m)
    m(moth.ones(3, 4, { device = "cuda" })):sum():backward()
    assert.equal("cuda", m.weight.grad:device().type)
    assert.equal(3, m.bias.grad[2]:item())
  end)

  it("is aborted after an error", function()
    if not emulated then return pending "the double of NCCL is for the emulation" end
    local ok, why = join()
    if not ok then return pending(why) end
    set("NCCL_DOUBLE", "fail")
    finally(function() set "NCCL_DOUBLE" end)
    assert.error_matches(function() dist.all_reduce(moth.ones(3, { device = "cuda" })) end,
      "NCCL on rank 0: invalid argument")
    set "NCCL_DOUBLE"
    assert.error_matches(function() dist.all_reduce(moth.ones(3, { device = "cuda" })) end, "is broken")
  end)
end)
