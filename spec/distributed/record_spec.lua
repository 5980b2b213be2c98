-- Programs of a script's own control flow, for the simulator.
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

describe("dist.record", function()
  local gpu = { peak = 1e12, gemm = 0.5, hbm = 1e12, link = 1e9, nic = 1e9, node = 8 }
  before_each(function() dist.init_process_group("fake", { rank = 0, world_size = 10240 }) end)
  after_each(function() dist.destroy_process_group() end)

  local function of(program, what, name)
    local list = {}
    for i, a in ipairs(program) do
      if a[1] == what and (not name or a[3] == name or a[5] == name) then list[#list + 1] = { i, a } end
    end
    return list
  end

  it("times the products of a step, and the buckets that overlap with it", function()
    local net = moth.fake_mode(function()
      local layers = {}
      for i = 1, 6 do layers[i] = nn.Linear(4096, 4096, { bias = false }) end
      return nn.parallel.DistributedDataParallel(nn.Sequential(layers), { bucket_cap_mb = 64 })
    end)
    local program, result = dist.record(function()
      local loss = net(moth.randn(1024, 4096)):sum()
      loss:backward()
      return loss:dim()
    end, { gpu = gpu })
    assert.equal(0, result)
    local products, sum = of(program, "run", "linear"), 0
    assert.equal(6, #products)
    assert.is_near(2 * 1024 * 4096 ^ 2 / 0.5e12, products[1][2][2], 1e-9)
    local starts = of(program, "start")
    for _, s in ipairs(starts) do
      sum = sum + s[2][3]
      assert.same({ size = 10240, near = 8 }, s[2][4])
    end
    assert.equal(6 * 4096 ^ 2 * 4, sum)
    assert.equal(#net:buckets(), #starts)
    local mm = of(program, "run", "mm")
    assert.is_true(starts[1][1] < mm[#mm][1], "the first bucket is sent before the last product")
    assert.equal(#starts, #of(program, "wait"))
    local r = dist.simulate({ [0] = program }, { gpu = gpu })
    assert.is_true(r.span < r.compute + r.communication and r.span >= r.compute)
    program = dist.record(function()
      net:no_sync(function() net(moth.randn(2, 4096)):sum():backward() end)
    end, { gpu = gpu })
    assert.equal(0, #of(program, "start"))
  end)

  it("has the collectives of the script, and of backward", function()
    local program = dist.record(function()
      local w = moth.randn(64, 64):requires_grad_(true)
      local y = dist.nn.all_reduce(moth.randn(8, 64):mm(w))
      y:sum():backward()
      local work = dist.all_reduce(w.grad, { async = true })
      work:wait()
      dist.barrier()
      local out = moth.empty { 10240 * 4 }
      dist.all_gather_into_tensor(out, moth.empty { 4 })
    end, { gpu = gpu })
    local calls = {}
    for _, c in ipairs(of(program, "call")) do calls[#calls + 1] = c[2][2] .. " " .. c[2][3] end
    assert.same({ "all_reduce 2048", "all_reduce 2048", "barrier 4", "all_gather 163840" }, calls)
    assert.equal(64 * 64 * 4, of(program, "start")[1][2][3])
    assert.equal(0, #of(program, "run", "detach"))
  end)

  it("has the collectives of weights that are cut, among the ranks of the group", function()
    dist.destroy_process_group()
    dist.init_process_group("fake", { rank = 0, world_size = 64 })
    local mesh = dist.device_mesh({ 8, 8 }, { "dp", "tp" })
    local net = moth.fake_mode(function()
      local m = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64))
      dist.tp.parallelize(m, mesh.tp, { ["0"] = "column", ["1"] = "row" })
      return nn.parallel.DistributedDataParallel(m, { process_group = mesh:group "dp" })
    end)
    local program = dist.record(function()
      net(moth.randn(16, 64):requires_grad_(true)):sum():backward()
    end, { gpu = gpu })
    local calls, start = of(program, "call"), of(program, "start")[1][2]
    assert.equal(2, #calls) -- one in each pass
    for _, c in ipairs(calls) do assert.same({ 16 * 64 * 4, { size = 8, near = 8 } }, { c[2][3], c[2][4] }) end
    assert.same({ size = 8, near = 1 }, start[4])
    assert.equal((2 * 64 * 256 + 256 + 8 * 64) / 8 * 4, start[3])
  end)

  it("counts attention in both passes", function()
    local program = dist.record(function()
      local q = moth.randn(2, 4, 256, 64):requires_grad_(true)
      nn.functional.scaled_dot_product_attention(q, q, q):sum():backward()
    end, { gpu = { peak = 1e9, attention = 0.5, hbm = 1e15 } })
    local forward = 4 * 2 * 4 * 256 * 256 * 64 / 0.5e9
    local seconds = {}
    for _, a in ipairs(program) do if a[3]:find "attention" then seconds[#seconds + 1] = a[2] end end
    assert.is_near(forward, seconds[1], 1e-6)
    assert.is_near(2.5 * forward, seconds[#seconds], 1e-6)
  end)

  it("has the calls of fully_shard, which are those of a real step", function()
    local code = [[
      local dist, nn = moth.distributed, moth.nn
      local function make(o)
        local list = {}
        for i = 1, 4 do list[i] = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6, { bias = i < 3 })) end
        list[4][1].weight:requires_grad_(false)
        local m = nn.Sequential(nn.Linear(6, 6), unpack(list))
        for i = 2, 5 do dist.fully_shard(m[i], o) end
        return dist.fully_shard(m, o)
      end
      local function step(m) m(moth.randn(2, 6)):sum():backward() end
      local options = { { reshard_after_forward = true }, {}, { reshard_after_forward = false },
        { mp = { param_dtype = moth.bfloat16, reduce_dtype = moth.float32 } }, { reshard_after_forward = 2 } }
      %s]]
    local results = require "distributed.ranks".run { size = 4, code = code:format [[
        for _, o in ipairs(options) do
          local m = make(o)
          step(m)
          m:zero_grad()
          for _, p in ipairs(m:parameters()) do p:detach():mul_(1) end
          local before = #dist.flight_record()
          step(m)
          local record, text = dist.flight_record(), {}
          for i = before + 1, #record do text[#text + 1] = record[i].op .. " " .. record[i].bytes end
          print(table.concat(text, ", "))
        end]] }
    dist.destroy_process_group()
    dist.init_process_group("fake", { rank = 1, world_size = 4 })
    local made = assert(loadstring("local moth = ...\n" .. code:format "return make, step, options"))
    local make, step, options = made(moth)
    local lines = {}
    for _, o in ipairs(options) do
      local m = moth.fake_mode(function() return make(o) end)
      moth.fake_mode(step, m)
      m:zero_grad()
      local program, text = dist.record(function() step(m) end, { gpu = gpu }), {}
      local started, waited = 0, 0
      for _, a in ipairs(program) do
        if a[1] == "wait" then waited = waited + 1 end
        if a[1] == "start" then
          started = started + 1
          -- by the bytes of one rank, as the flight recorder has them, of the whole group's calls alone
          if a[4].size == 4 then text[#text + 1] = ("%s %d"):format(a[2], a[3] / 4) end
        end
      end
      assert.equal(started, waited)
      lines[#lines + 1] = table.concat(text, ", ") .. "\n"
      local first = of(program, "run", "linear")[1][1]
      if _ == 1 then assert.is_true(of(program, "start")[2][1] < first, "the next unit is gathered ahead") end
      local r = dist.simulate({ [0] = program }, { gpu = gpu })
      assert.is_true(r.span > 0 and r.span <= r.compute + r.communication)
    end
    assert.equal(results[2].out, table.concat(lines))
  end)

  it("says what it cannot do", function()
    assert.error_matches(function()
      dist.record(function() dist.send(moth.empty { 2 }, 1) end)
    end, "send: messages between two ranks cannot be recorded")
    assert.error_matches(function() dist.record(function() error("mine", 0) end) end, "mine")
    dist.destroy_process_group()
    assert.error_matches(function() dist.record(function() end) end, "init_process_group")
    dist.init_process_group("local", { rank = 0, world_size = 1, init_method = "local://record" })
    assert.error_matches(function() dist.record(function() end) end, "must be of the backend fake")
    assert.error_matches(function()
      moth.fake_mode(function()
        local m = nn.Linear(2, 2)
        dist.fully_shard(m)
        m(moth.randn(1, 2))
      end)
    end, "are fake: they have no memory")
  end)
end)
