-- Checkpoints of several ranks, loaded by another number of them.
local moth = require "moth"
local ranks = require "distributed.ranks"
local each_checkpoint = require "distributed.each_checkpoint"
local checkpoint = moth.distributed.checkpoint

local function files(dir) return require("moth.utils.system").list(dir) end

describe("dist.checkpoint #M383", function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
  end)
  after_each(function() os.execute("rm -rf " .. dir) end)

  local function on(size, what, more)
    local code = 'require("distributed.each_checkpoint").%s(rank, size, %q, %s) print "fine"'
    ranks.agree({ size = size, code = code:format(what, dir, more or "nil") }, "fine\n")
  end

  it("is saved by 3 ranks and loaded by 2 and 1", function()
    on(3, "save")
    on(2, "load")
    each_checkpoint.load(0, 1, dir)
    assert.equal(5, #files(dir))
  end)

  it("is saved by 1 rank and loaded by 2; the second save replaces the first", function()
    each_checkpoint.save(0, 1, dir)
    local before = files(dir)
    each_checkpoint.save(0, 1, dir, true)
    assert.equal(3, #files(dir))
    assert.not_same(before, files(dir))
    on(2, "load")
  end)

  -- What a function of each_checkpoint returns, the same on all ranks.
  local function losses(size, what, kind)
    local code = 'print(require("distributed.each_checkpoint").%s(rank, size, %q, %q))'
    local out = ranks.run { size = size, code = code:format(kind or "sharded", dir, what) }
    for _, r in ipairs(out) do assert.equal(out[1].out, r.out) end
    return out[1].out:match "^%S+ %S+"
  end

  it("has the layers of a pipeline of 2 ranks", function()
    assert.equal(losses(2, "save", "stages"), each_checkpoint.stages(0, 1, dir, "load"))
  end)

  it("has the parts of fully_shard: saved by 3 ranks, loaded by 2 and 1", function()
    local expected = losses(3, "save")
    assert.matches("^[%d.]+ [%d.]+$", expected)
    assert.equal(expected, losses(2, "load"))
    assert.equal(expected, each_checkpoint.sharded(0, 1, dir, "load"))
  end)

  it("is written by threads of 2 ranks", function()
    on(2, "save", "true")
    each_checkpoint.load(0, 1, dir)
  end)

  it("stays what it was when a rank cannot write", function()
    each_checkpoint.save(0, 1, dir)
    local before = files(dir)
    for i, r in ipairs(ranks.run { size = 2, code = ([[
      local each = require "distributed.each_checkpoint"
      if rank == 1 then
        require("moth.distributed.checkpoint.writer").write = function() error("the disk is full", 0) end
      end
      each.save(rank, size, %q, %s)]]):format(dir, "false") }) do
      assert.equal(1, r.rc, i)
      assert.matches("%[distributed.checkpoint.save%] rank 1: the disk is full", r.out)
    end
    local index = {}
    for _, name in ipairs(files(dir)) do index[name] = true end
    for _, name in ipairs(before) do assert.is_true(index[name]) end
    each_checkpoint.load(0, 1, dir)
  end)

  -- Folders of spec/distributed/fixtures/dcp.py. All weights are their positions / 10 less a step of Adam, 0.25.
  describe("of PyTorch", function()
    local fixtures = "spec/distributed/fixtures/"
    local nn = moth.nn
    local function net()
      local m = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1, { bias = false }))
      return m, moth.optim.Adam(m:parameters(), { lr = 1 })
    end
    local function after(n, ...) return (moth.arange(n):float() / 10 - 0.25):view(...) end

    local function check(m, opt)
      assert.is_true(moth.allclose(m[1].weight:detach(), after(10, 5, 2)))
      assert.is_true(moth.allclose(m[1].bias:detach(), after(5, 5)))
      assert.is_true(moth.allclose(m[3].weight:detach(), after(5, 1, 5)))
      assert.equal(0.25, opt.param_groups[1].lr)
      for _, p in m:named_parameters() do
        assert.equal(1, opt.state[p].step)
        assert.is_true(moth.allclose(opt.state[p].exp_avg, moth.full(p.shape, 0.2)))
        assert.is_true(moth.allclose(opt.state[p].exp_avg_sq, moth.full(p.shape, 0.004)))
      end
    end

    it("is loaded into modules, optimizers with numbers or names, and values", function()
      for name, step in require "moth.each" { plain = 3, sharded = 7 } do
        local m, opt = net()
        local c = checkpoint.load({ model = m, optim = opt, step = 0 }, fixtures .. name)
        check(m, opt)
        assert.equal(step, c.step)
      end
      assert.equal(2, checkpoint.info(fixtures .. "sharded").world_size)
    end)

    it("is loaded into an optimizer without its module, and into a state dict", function()
      local m, opt = net()
      local sd = m:state_dict()
      local c = checkpoint.load({ model = sd }, fixtures .. "sharded")
      assert.same(sd:keys(), c.model:keys())
      checkpoint.load({ optim = opt }, fixtures .. "sharded")
      check(m, opt)
    end)

    it("fills tensors in tables and makes those that are not given", function()
      local z = moth.view_as_complex(moth.zeros(1, 2))
      local given = { pair = { moth.zeros(3):long(), { z = z } }, list = {}, name = "" }
      local c = checkpoint.load(given, fixtures .. "plain")
      assert.same({ 1, 2.5, true }, c.list)
      assert.equal("x", c.name)
      assert.same({ 0, 1, 2 }, c.pair[1]:tolist())
      assert.same({ { 1, 2 } }, moth.view_as_real(z):tolist())
      assert.is_true(c.pair[2].z == z or moth.equal(c.pair[2].z, z))
    end)

    it("is loaded into parts by 3 ranks", function()
      local code = ([[
        local moth = require "moth"
        local nn, dist = moth.nn, moth.distributed
        local m = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1, { bias = false }))
        dist.fully_shard(m)
        local opt = moth.optim.Adam(m:parameters(), { lr = 1 })
        for _, name in ipairs { "plain", "sharded" } do
          dist.checkpoint.load({ model = m, optim = opt, step = 0 }, %q .. name)
          local placement = require "moth.distributed.placement"
          local n = 0
          for _, p in ipairs(opt.param_groups[1].params) do
            local w, s = placement.full_tensor(p), placement.full_tensor(opt.state[p].exp_avg, p)
            n = n + w:numel()
            local expected = moth.arange(w:numel()):float() / 10 - 0.25
            assert(moth.allclose(w:detach():flatten(), expected), name)
            assert(moth.allclose(s, moth.full(s.shape, 0.2)), name)
          end
          assert(n == 20)
        end
        print "fine"]]):format(fixtures)
      ranks.agree({ size = 3, code = code }, "fine\n")
    end)

    it("is read without a state, as moth's own is", function()
      local c = checkpoint.read(fixtures .. "sharded")
      assert.is_true(moth.allclose(c.model["0.weight"], after(10, 5, 2)))
      assert.is_true(moth.allclose(c.optim.state["0.bias"].exp_avg, moth.full({ 5 }, 0.2)))
      assert.equal(0.25, c.optim.param_groups[1].lr)
      local numbered = checkpoint.read(fixtures .. "plain")
      local m, opt = net()
      opt:load_state_dict(numbered.optim)
      m:load_state_dict(numbered.model)
      check(m, opt)

      checkpoint.save({ model = m, optim = opt, step = 3, list = { moth.ones(2), "x" } }, dir)
      local own = checkpoint.read(dir)
      assert.is_true(moth.equal(own.model["0.weight"], m[1].weight:detach()))
      assert.is_true(moth.equal(own.optim.state["0.bias"].exp_avg, opt.state[m[1].bias].exp_avg))
      assert.equal(3, own.step)
      assert.same({ 1, 1 }, own.list[1]:tolist())
      assert.equal("x", own.list[2])
    end)

    it("says what does not fit", function()
      local function fails(state, why, name)
        assert.error_matches(function() checkpoint.load(state, fixtures .. (name or "plain")) end, why)
      end
      fails({ model = nn.Sequential(nn.Linear(3, 5)) }, "'model.0.weight' is %[5, 3%], in .- it is %[5, 2%]")
      fails({ model = nn.Sequential(nn.Linear(2, 5), nn.Linear(2, 2)) },
        "has no model.1.weight, model.1.bias; it has, unused: model.2.weight")
      fails({ model = { ["0.bias"] = moth.zeros(5):long() } }, "'model.0.bias' is of int64, in .- of float32")
      fails({ nothing = 1 }, "has no 'nothing'")
      fails({ model = { ["9.bias"] = moth.zeros(5) } }, "has no model.9.bias")
      local list = {}
      for i, shape in ipairs { { 5, 2 }, { 5 }, { 1, 5 }, { 2 } } do list[i] = nn.Parameter(moth.ones(shape)) end
      fails({ optim = moth.optim.Adam(list) }, "nothing of the parameter 'without a name' %(number 4 of group 1")
      fails({ own = 1 }, "'own' of .- cannot be read.-__main__.Own", "foreign")
      assert.same({ 1, 1 }, checkpoint.load({ w = moth.zeros(2) }, fixtures .. "foreign").w:tolist())
    end)

    it("says where a folder is damaged", function()
      local function read(name)
        local f = assert(io.open(fixtures .. "plain/" .. name, "rb"))
        local s = f:read "*a"
        f:close()
        return s
      end
      local function write(name, s)
        os.execute("mkdir -p " .. dir)
        local f = assert(io.open(dir .. "/" .. name, "wb"))
        f:write(s)
        f:close()
      end
      local meta, data = read ".metadata", read "__0_0.distcp"
      local function fails(why)
        assert.error_matches(function() checkpoint.read(dir) end, why)
      end
      write(".metadata", meta)
      fails "cannot be read"
      write("__0_0.distcp", data:sub(1, 3000))
      fails "lie beyond its end"
      write("__0_0.distcp", (data:gsub("FB", "FC")))
      assert.is_true(pcall(checkpoint.read, dir)) -- filling
      write("__0_0.distcp", ("x"):rep(#data))
      fails "cannot be read"
      write(".metadata", meta:sub(1, 200))
      fails "a frame longer than the data"
      write("__0_0.distcp", data)
      write(".metadata", (meta:gsub("_StorageInfo", "_StorageInfa")))
      fails "asks for torch.distributed.checkpoint.filesystem._StorageInfa"
      write(".metadata", (meta:gsub("__0_0%.distcp", "../00.distcp")))
      fails "damaged.-lies"
      write(".metadata", meta)
      write("index.json", "{}")
      fails "has two checkpoints"
    end)
  end)

  describe("in PyTorch's format", function()
    it("has the parts of fully_shard: saved by 3 ranks, loaded by 2 and 1", function()
      local expected = losses(3, "dcp")
      assert.equal(expected, losses(2, "load"))
      assert.equal(expected, each_checkpoint.sharded(0, 1, dir, "load"))
    end)

    it("is written by threads of 2 ranks; the second save replaces the first", function()
      on(2, "save", "true, 'dcp'")
      each_checkpoint.load(0, 1, dir)
      each_checkpoint.save(0, 1, dir, false, "dcp")
      assert.equal(1, #files(dir)) -- beside the hidden index
      on(3, "load")
    end)

    it("stays what it was when a rank cannot write, also in a thread", function()
      each_checkpoint.save(0, 1, dir, false, "dcp")
      for i, r in ipairs(ranks.run { size = 2, code = ([[
        local each = require "distributed.each_checkpoint"
        if rank == 1 then
          require("moth.distributed.checkpoint.writer").write = function() error("the disk is full", 0) end
        end
        each.save(rank, size, %q, false, "dcp")]]):format(dir) }) do
        assert.equal(1, r.rc, i)
        assert.matches("%[distributed.checkpoint.save%] rank 1: the disk is full", r.out)
      end
      each_checkpoint.load(0, 1, dir)
    end)

    it("has the layers of a pipeline of 2 ranks", function()
      assert.equal(losses(2, "dcp", "stages"), each_checkpoint.stages(0, 1, dir, "load"))
      assert.equal(4 * 2, #checkpoint.read(dir).opt.param_groups[1].params)
    end)

    it("stays what it was when a rank is killed before it writes", function()
      each_checkpoint.save(0, 1, dir, false, "dcp")
      local out = ranks.run { size = 2, code = ([[
        local ffi = require "ffi"
        local each = require "distributed.each_checkpoint"
        ffi.cdef "int getpid(void); int kill(int pid, int signal);"
        if rank == 1 then
          require("moth.distributed.checkpoint.writer").write = function() ffi.C.kill(ffi.C.getpid(), 9) end
        end
        each.save(rank, size, %q, false, "dcp")]]):format(dir) }
      assert.not_equal(0, out[1].rc)
      assert.matches("rank 1", out[1].out)
      each_checkpoint.load(0, 1, dir)
    end)

    it("has the paths, counts and options that PyTorch expects", function()
      local m = moth.nn.Linear(2, 3)
      local opt = moth.optim.Adam(m:parameters(), { lr = 0.5 })
      m(moth.ones(1, 2)):sum():backward()
      opt:step()
      checkpoint.save({ m = m, opt = opt, rows = { moth.ones(2), { x = 1 } } }, dir, { format = "dcp" })
      local tensors = checkpoint.info(dir).tensors
      assert.same({}, tensors["opt.state.weight.step"].shape)
      assert.same({ 2 }, tensors["rows.0"].shape)
      local c = checkpoint.read(dir)
      assert.same({ "bias", "weight" }, c.opt.param_groups[1].params)
      assert.is_false(c.opt.param_groups[1].differentiable)
      assert.equal(1, c.rows[2].x)
      checkpoint.save({ opt = opt }, dir, { format = "dcp" })
      assert.same({ 0, 1 }, checkpoint.read(dir).opt.param_groups[1].params)
      assert.error_matches(function() checkpoint.save({ opt = opt }, dir) end, "a checkpoint of the other format")
    end)
  end)

  it("says what does not fit", function()
    assert.error_matches(function() checkpoint.load({}, dir) end, "there is no index.json")
    checkpoint.save({ m = moth.nn.Linear(2, 3), n = 1 }, dir)
    assert.error_matches(function() checkpoint.load({ m = moth.nn.Linear(2, 4) }, dir) end,
      "'m.%w+' is %[4.-it is %[3")
    assert.error_matches(function() checkpoint.load({ other = 2 }, dir) end, "has no 'other'")
    assert.error_matches(function() checkpoint.load({ m = moth.nn.Linear(2, 3), x = moth.zeros(2) }, dir) end, "'x'")
    assert.error_matches(function()
      checkpoint.load({ m = moth.nn.Sequential(moth.nn.Linear(2, 3)) }, dir)
    end, "has no m.0.weight, m.0.bias")
    assert.error_matches(function() checkpoint.save({ f = print }, dir) end, "function")
    os.remove(dir .. "/" .. files(dir)[2])
    assert.error_matches(function() checkpoint.load({ m = moth.nn.Linear(2, 3) }, dir) end, "is missing")
  end)
end)
