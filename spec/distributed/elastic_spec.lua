-- Runs that go on when a rank is killed.
require "distributed.without_preload"
local moth = require "moth"
local elastic = moth.distributed.elastic

local MOTH = (package.cpath:match "([^;]*)/%?%.so" or "build") .. "/moth"

local function run(flags, args)
  local command = "MOTH_LUAJIT_WARNING=0 timeout -s KILL 30 %s run %s \z
    spec/distributed/each_elastic.lua '%s' %s %s %s %s 2>&1; echo $?"
  local p = io.popen(command:format(MOTH, flags, args[1], args[2], args[3], args[4] or 9, args[5] or 20))
  local text, list = p:read "*a", {}
  p:close()
  local rc
  text, rc = text:match "^(.-)(%d+)\n$"
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
  table.sort(list)
  return list, text, tonumber(rc)
end

describe("elastic runs", function()
  local plain = run("--nproc-per-node 2", { "none", 8, 0 })
  local weights = plain[1]:match "weights.*"

  it("go on without a rank that was killed, at most one step back", function()
    local list, text = run("--nproc-per-node 2:3", { 1, 8, 0 })
    assert.equal(3, #list, text)
    assert.equal("2 ranks, lost 1, " .. weights, list[1])
    assert.equal(list[1], list[2])
    assert.matches("rank 1 %(pid %d+%) was killed by signal 9 %(SIGKILL%); the others go on", list[3])
  end)

  it("take in another one", function()
    local list, text = run("--nproc-per-node 2:3 --max-restarts 1", { 2, 8, 3 })
    assert.equal(4, #list, text)
    for i = 1, 3 do assert.equal("3 ranks, lost 1, " .. weights, list[i]) end
  end)

  it("go on without a rank that is stopped", function()
    local list, text = run("--nproc-per-node 2:3", { 1, 8, 0, "STOP", 0.7 })
    assert.equal(3, #list, text)
    assert.equal("2 ranks, lost 1, " .. weights, list[1])
    assert.matches("rank 1 %(pid %d+%) was killed by signal 9 %(SIGKILL%); the others go on", list[3])
  end)

  it("end well when they are over before another one has joined", function()
    local _, text, rc = run("--nproc-per-node 2:3 --max-restarts 2", { 2, 4, 0 })
    assert.equal(0, rc, text)
    assert.matches("ranks, lost 1, weights", text)
    assert.is_nil(text:find "traceback", text)
  end)

  it("end when too few are left", function()
    local _, text = run("--nproc-per-node 2:3", { "[12]", 8, 0 })
    assert.is_nil(text:find "weights", text)
    assert.matches("moth run: rank [12] %(pid %d+%) was killed by signal 9 %(SIGKILL%) after", text)
  end)
end)

describe("elastic.State", function()
  it("goes back to the last commit", function()
    local m, t = moth.nn.Linear(2, 2), moth.zeros(2)
    local opt = moth.optim.Adam(m:parameters())
    local s = elastic.State { m = m, opt = opt, t = t, step = 0, list = { 1, 2 } }
    m(moth.ones(1, 2)):sum():backward()
    opt:step()
    s.step = 5
    s:commit()
    local w, avg = m.weight:detach():clone(), opt.state[m.weight].exp_avg:clone()
    opt:step()
    t:add_(1)
    s.step, s.list = 6, {}
    s:restore()
    assert.is_true(moth.equal(w, m.weight) and moth.equal(avg, opt.state[m.weight].exp_avg))
    assert.same({ 5, { 1, 2 }, 0 }, { s.step, s.list, t:sum():item() })
    assert.error_matches(function() elastic.State { commit = 1 } end, "'commit' cannot be the name")
    assert.error_matches(function() moth.distributed.reform() end, "moth run %-%-nproc%-per%-node MIN:MAX")
  end)
end)
