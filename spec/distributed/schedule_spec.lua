-- Pipeline schedules: proved for every small size; what is wrong with a list is said.
local moth = require "moth"
local dist = moth.distributed
local schedules = require "moth.distributed.pipeline.schedules"
local proof = require "moth.distributed.pipeline.check"

describe("a pipeline schedule", function()
  it("is free of deadlock, complete and in order, for all ranks and micro-batches #M390", function()
    for _, name in ipairs(schedules.names) do
      for ranks = 1, 6 do
        for _, m in ipairs { 1, 2, 3, ranks, 2 * ranks, 12 } do
          local each = name == "interleaved" and 1 + m % 3 or 2
          if name ~= "interleaved" or m % math.max(1, math.floor(m / ranks)) == 0 then
            local s = proof.with_transfers(schedules.generate(name, ranks, m, each))
            local r = proof.check(s, nil, 0.1)
            for rank = 0, ranks - 1 do assert.is_true(r.peak[rank] <= m * s.stages / ranks) end
          end
        end
      end
    end
  end)

  it("has the bubble and the memory that are known for it #M390", function()
    for _, size in ipairs { { 4, 8 }, { 2, 6 }, { 8, 32 } } do
      local p, m = size[1], size[2]
      local function of(name) return dist.schedule(name, p, m, { each = 2 }) end
      local gpipe, f1b1, inter, zb = of "gpipe", of "1f1b", of "interleaved", of "zb"
      assert.is_near((p - 1) / (m + p - 1), gpipe.bubble, 1e-12)
      assert.is_near((p - 1) / (m + p - 1), f1b1.bubble, 1e-12)
      assert.is_near((p - 1) / (2 * m), inter.overhead, 1e-12)
      assert.is_true(zb.overhead < 0.36 * f1b1.overhead)
      assert.is_true(of("zbv").overhead < zb.overhead)
      assert.is_near(p - 1, of("naive").overhead, 1e-12)
      for rank = 0, p - 1 do
        assert.equal(m, gpipe.peak[rank])
        assert.equal(math.min(m, p - rank), f1b1.peak[rank])
        assert.is_true(zb.peak[rank] <= p)
      end
    end
  end)

  it("carries each result to the rank that needs it, in the order of the sender", function()
    local s = dist.schedule("interleaved", 2, 4)
    local sent, got = {}, {}
    for _, a in ipairs(s:actions(0)) do if a.op == "SEND" then sent[#sent + 1] = a.what .. a.stage .. a.micro end end
    for _, a in ipairs(s:actions(1)) do if a.op == "RECV" then got[#got + 1] = a.what .. a.stage .. a.micro end end
    assert.equal(12, #sent) -- two stages forward, one backward, four micro-batches
    assert.same(sent, got)
    assert.is_nil(s:actions(0)[1].peer)
  end)

  it("is printed and drawn #M390", function()
    local s = dist.schedule("1f1b", 4, 8)
    local text = tostring(s)
    assert.is_truthy(text:find("bubble 27.3 %, at most 4,3,2,1 micro-batches held", 1, true), text)
    assert.is_truthy(text:find("\nrank 3   .   .   .  F1  B1   -  F2  B2", 1, true), text)
    local svg = s:picture():svg()
    local _, boxes = svg:gsub("<rect", "")
    assert.equal(1 + 4 + 64, boxes)
    assert.is_truthy(svg:find(">B8<", 1, true))
  end)

  it("is refused if it is wrong, with rank and action", function()
    local function broken(change)
      local s = schedules.generate("1f1b", 2, 2)
      change(s)
      local ok, message = pcall(proof.check, s)
      assert.is_false(ok)
      return message
    end
    assert.matches("deadlock: rank 0 cannot do B1 of stage 1 before B1 of stage 2 on rank 1; rank 1 cannot do",
      broken(function(s) s[0][2], s[0][3] = s[0][3], s[0][2]; s[1][1], s[1][3] = s[1][3], s[1][1]; s[1][2], s[1][4] =
        s[1][4], s[1][2] end))
    assert.matches("micro%-batch 2 does not go through stage 2", broken(function(s) s[1][4] = nil end))
    assert.matches("rank 1, action 1: B1 of stage 2 comes before its forward",
      broken(function(s) s[1][1], s[1][2] = s[1][2], s[1][1] end))
    assert.matches("rank 0, action 4: F1 of stage 1 is there twice", broken(function(s) s[0][4] = s[0][1] end))
    assert.matches("belongs to rank 1", broken(function(s) s[0][1] = s[1][1] end))
    local s = proof.with_transfers(schedules.generate("interleaved", 2, 4, 2))
    for i, a in ipairs(s[0]) do
      if a.op == "SEND" and a.stage == 3 then -- the first message of this stage goes before the one before
        table.insert(s[0], 3, table.remove(s[0], i))
        break
      end
    end
    assert.error_matches(function() proof.check(s) end, "message %d from rank 0 to rank 1: sent F1 of stage 3")
    assert.error_matches(function() dist.schedule("1f2b", 2, 2) end, "did you mean '1f1b'")
    assert.error_matches(function() dist.schedule("interleaved", 4, 9) end, "use a multiple of 4")
  end)
end)

describe("dist.simulate", function()
  local gpu = { link = 1e9, nic = 1e9, node = 8 }

  it("overlaps communication and finds what is exposed and the critical path", function()
    local ranks = { 0, 1 }
    local function program(slow)
      return { { "run", slow, "a" }, { "start", "all_reduce", 1e7, ranks, "reduce", "w" }, { "run", 0.004, "b" },
        { "wait", "w" }, { "run", 0.001, "c" } }
    end
    local r = dist.simulate({ [0] = program(0.002), program(0.005) }, { gpu = gpu })
    local names = {}
    for _, e in ipairs(r.critical) do names[#names + 1] = e.name .. e.rank end
    -- The ring sends 10 MB at 1 GB/s after the slower rank's first run: 0.005 + 0.01 + 0.001 and its latency.
    assert.is_near(0.016, r.span, 1e-4)
    assert.same({ "a1", "reduce", "c" }, { names[1], names[2]:sub(1, -2), names[3]:sub(1, -2) })
    assert.is_near(0.01, r.communication, 1e-4)
    assert.is_near((0.009 + 0.006) / 2, r.exposed, 1e-4)
    assert.is_truthy(tostring(r):find("critical path:\n  reduce ", 1, true), tostring(r))
    local svg = r:picture():svg()
    assert.is_truthy(svg:find(">reduce<", 1, true) and svg:find("#de2d26", 1, true))
  end)

  it("names ranks whose calls differ or that wait for each other", function()
    local function of(...) return pcall(dist.simulate, { [0] = (select(1, ...)), (select(2, ...)) }, { gpu = gpu }) end
    local all = { 0, 1 }
    local _, message = of({ { "call", "all_reduce", 4, all, "a" } }, { { "call", "all_reduce", 8, all, "b" } })
    assert.matches("call 1 of the group is all_reduce of 8 bytes %(b%), rank 0's all_reduce of 4", message)
    _, message = of({ { "call", "all_reduce", 4, all, "grads" } }, {})
    assert.matches("rank 0 is in grads %(all_reduce of 4 bytes, call 1 of the group%); rank 1 has ended", message)
    _, message = of({ { "send", 4, 1 }, { "recv", 4, 1 } }, { { "send", 4, 0 }, { "recv", 4, 0 } })
    assert.matches("wait for each other", message)
    _, message = of({ { "send", 4, 1, "x", "s" }, { "recv", 4, 1 } }, { { "recv", 4, 0 }, { "send", 4, 0 } })
    assert.equal("table", type(message), message)
    _, message = of({ { "call", "all_redcue", 4, all } }, {})
    assert.matches("there is no collective 'all_redcue'", message)
  end)

  it("times a planned step layer by layer, as the formulas do", function()
    for _, layout in ipairs { { dp = 128, micro = 2 }, { dp = 10240, recompute = "none" }, { dp = 8, shard = "none" },
      { dp = 2, tp = 4, pp = 8, batch = 32, recompute = "full" } } do
      local l = dist.estimate { model = "llama3-8b", gpu = "h100", layout = layout }
      local step = l:timeline()
      local formula = l.time.step - l.time.optimizer
      assert.is_true(math.abs(step.span / formula - 1) < 0.08, ("%g beside %g"):format(step.span, formula))
    end
  end)
end)
