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
