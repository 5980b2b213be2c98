-- Speculative decoding: llm.Scheduler with a draft and with lookup, moth.generate, the engine.
local moth = require "moth"
local cjson = require "cjson"
local Proposer = require "moth.llm.propose"

local folder = "spec/llm/fixtures/llama"

local function llama(V, size)
  return moth.models.Llama { vocab_size = V, hidden_size = size, intermediate_size = 64, num_hidden_layers = 2,
    num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 96 }:eval()
end
local function lively(V, size, noise)
  moth.manual_seed(3)
  local net = llama(V, size)
  moth.no_grad(function()
    for _, p in ipairs(net:parameters()) do p:mul_(6) end
    for _, p in ipairs(noise and net:parameters() or {}) do p:add_(moth.randn(p:size()) * noise) end
  end)
  return net
end
local function run(s)
  local steps = 0
  while s:step() > 0 do
    steps = steps + 1
    assert(steps < 2000, "it does not end")
  end
  for _, cache in ipairs { s.cache, s.proposer and s.proposer.cache } do -- all blocks back, none counted twice
    assert.equal(0, cache:used())
    assert.equal(cache.total, #cache.free + cache.kept)
  end
end

describe("speculative decoding", function()
  it("looks up what followed the last tokens where they stood before", function()
    local function found(ids, most) return table.concat(Proposer.looked_up(ids, most), " ") end
    assert.equal("3 4 1", found({ 1, 2, 3, 4, 1, 2 }, 3))
    assert.equal("3 4 1 2 3", found({ 1, 2, 3, 4, 1, 2 }, 5)) -- and round again
    assert.equal("7 7 7", found({ 5, 7, 7, 7 }, 3))
    assert.equal("9", found({ 1, 2, 3, 8, 4, 2, 3, 9, 2, 3 }, 1)) -- the latest of the same length
    assert.equal("8", found({ 1, 2, 3, 8, 4, 2, 3, 9, 1, 2, 3 }, 1)) -- the longest first
    assert.equal("", found({ 1, 2, 3, 1 }, 3))
    assert.equal("", found({ 1 }, 3))
  end)

  it("gives the tokens that there are without it, drawn or not, in fewer steps", function()
    local net = lively(53, 48)
    local function go(o, how)
      local s, r = moth.llm.Scheduler(net, o), {}
      for i = 1, 4 do
        local ids = {}
        for k = 1, 3 + 5 * i do ids[k] = k % (4 + i) * i * 31 % 53 + 1 end
        r[i] = s:add { ids = ids, max_tokens = 30, temperature = how[1], top_p = how[2], seed = i,
          repetition_penalty = how[3], owner = i % 2 == 0 and "a" or nil }
      end
      run(s)
      local out, proposed, accepted = {}, 0, 0
      for i = 1, 4 do
        out[i], proposed, accepted = r[i].new, proposed + r[i].proposed, accepted + r[i].accepted
      end
      assert.same({ s.stats.proposed, s.stats.accepted }, { proposed, accepted })
      return out, s.stats
    end
    for _, how in ipairs { { 0, 1, 1 }, { 0, 1, 1.2 }, { 0.7, 1, 1 }, { 1, 0.9, 1 } } do
      local want, before = go({}, how)
      for name, o in pairs { lookup = { lookup = 6 }, near = { draft = lively(53, 48, 0.003) },
        own = { draft = net, draft_tokens = 7 }, other = { draft = lively(50, 32), lookup = 2 },
        tight = { draft = net, max_tokens = 7 * 16, step_tokens = 20 } } do
        local got, stats = go(o, how)
        assert.same(want, got, name)
        assert.is_true(stats.accepted <= stats.proposed)
        if name == "own" and how[3] == 1 then
          assert.equal(stats.proposed, stats.accepted)
          assert.is_true(stats.steps * 4 < before.steps)
        elseif name == "near" and how[3] == 1 then
          assert.is_true(stats.accepted > 0 and stats.accepted < stats.proposed)
        elseif name == "tight" then
          assert.is_true(stats.preemptions > 0)
        end
      end
    end
  end)

  it("keeps the model's distribution, whatever is proposed", function()
    local V, n, net = 4, 1500, lively(4, 16)
    moth.no_grad(function() net.lm_head.weight:mul_(0.2) end)
    local function probs(ids) -- of the token that follows
      return moth.no_grad(net.decode, net, moth.tensor({ ids }, { dtype = moth.int64 }), nil, nil, true)[1][1]
        :to(moth.float64):softmax(1):totable()
    end
    local ids, expected = { 1, 2, 3, 1, 2, 3, 1, 2 }, {}
    for a, pa in ipairs(probs(ids)) do
      local with_a = { unpack(ids) }
      with_a[#with_a + 1] = a
      for b, pb in ipairs(probs(with_a)) do
        with_a[#ids + 2] = b
        for c, pc in ipairs(probs(with_a)) do expected[a .. b .. c] = pa * pb * pc * n end
        with_a[#ids + 2] = nil
      end
    end
    for name, o in pairs { lookup = { lookup = 2 }, draft = { draft = lively(V, 16, 0.1), draft_tokens = 2 } } do
      o.max_seqs, o.max_tokens, o.step_tokens = 64, 64 * 16, 2048
      local s, counts, requests = moth.llm.Scheduler(net, o), {}, {}
      for i = 1, n do requests[i] = s:add { ids = ids, max_tokens = 3, seed = 7000 + i } end
      run(s)
      for _, r in ipairs(requests) do
        local key = table.concat(r.new)
        counts[key] = (counts[key] or 0) + 1
      end
      assert.is_true(s.stats.accepted > 50 and s.stats.accepted < 0.5 * s.stats.proposed, name)
      local chi, cells, few, few_expected = 0, 0, 0, 0
      for key, e in pairs(expected) do
        local c = counts[key] or 0
        if e < 5 then
          few, few_expected = few + c, few_expected + e
        else
          chi, cells = chi + (c - e) ^ 2 / e, cells + 1
        end
      end
      if few_expected > 0 then chi = chi + (few - few_expected) ^ 2 / few_expected end
      assert.is_true(cells > 8)
      assert.is_true(chi < cells + 3.1 * math.sqrt(2 * cells) + 5, ("%s: %g of %d cells"):format(name, chi, cells))
    end
  end)

  it("ends where it would end, and where it is told to", function()
    local net = lively(53, 48)
    local function add(s, o)
      o.ids, o.temperature = { 5, 9, 7 }, 0
      return s:add(o)
    end
    local plain = moth.llm.Scheduler(net)
    local want = add(plain, { max_tokens = 12 })
    run(plain)
    local last, counted = want.new[8], 0
    local s = moth.llm.Scheduler(net, { draft = net, draft_tokens = 5 })
    local ended = add(s, { max_tokens = 40, stop_ids = { last } })
    local told = add(s, { max_tokens = 40, on_token = function()
      counted = counted + 1
      return counted < 3
    end })
    local cancelled
    cancelled = add(s, { max_tokens = 40, on_token = function(_, r)
      if #r.new == 2 then s:cancel(cancelled) end
    end })
    local whole = add(s, { max_tokens = 96 })
    run(s)
    assert.equal("stop", ended.reason)
    for i, id in ipairs(ended.new) do assert.equal(want.new[i], id) end
    assert.is_true(#ended.new < 8)
    assert.same({ "stop", 3 }, { told.reason, #told.new })
    assert.same({ "cancel", 2 }, { cancelled.reason, #cancelled.new })
    assert.same({ "length", 97 - 3 }, { whole.reason, #whole.new })
    assert.error_matches(function() moth.llm.Scheduler(net, { draft = moth.nn.Linear(1, 1) }) end,
      "draft: expected a language model")
    -- A step of the draft that raises leaves the sequences as they were.
    local draft = lively(53, 48, 0.001)
    s = moth.llm.Scheduler(net, { draft = draft })
    local r = add(s, { max_tokens = 12 })
    s:step()
    s:step()
    draft.step = function() error "no" end
    assert.error_matches(function() s:step() end, "no")
    draft.step = nil
    run(s)
    assert.same(want.ids, r.ids)
  end)

  it("goes with moth.generate, chats and the engine", function()
    local model, tokenizer, info = moth.models.load(folder)
    local f = assert(io.open(folder .. "/want.json"))
    local want = cjson.decode(f:read "*a")
    f:close()
    local stats, pieces = {}, {}
    for piece in moth.generate(model, tokenizer, want.prompt, { max_tokens = 24, temperature = 0, draft = model,
      stats = stats }) do
      pieces[#pieces + 1] = piece
    end
    assert.equal(want.text, table.concat(pieces))
    assert.is_true(stats.accepted > 8 and stats.steps < 12)
    local said = {}
    for k, o in ipairs { {}, { lookup = 4 }, { draft = model } } do
      o.template, o.max_tokens, o.seed = info.chat_template, 12, 2
      local chat, all = moth.llm.Chat(model, tokenizer, o), {}
      for _, text in ipairs { "a a a a", "a a" } do
        for piece in chat:say(text) do all[#all + 1] = piece end
      end
      said[k] = table.concat(all)
      assert.equal(k == 3, chat.scheduler.stats.accepted > 8)
    end
    assert.same({ said[1], said[1] }, { said[2], said[3] })
    local engine = require("moth.llm.engine").load { path = folder, draft = folder, lookup = 3 }
    local text, last = {}, nil
    engine:add(1, { kind = "completion", prompt = want.prompt, max_tokens = 24, temperature = 0 })
    while engine:step(function(_, piece) text[#text + 1], last = piece.text, piece end) do end -- luacheck: ignore 542
    assert.equal(want.text, table.concat(text))
    assert.is_true(last.accepted > 8)
    local state = engine:state()
    assert.same({ state.accepted_tokens_total, state.proposed_tokens_total - state.accepted_tokens_total },
      { last.accepted, last.refused })
    local other = { path = folder, draft = "spec/llm/fixtures/gpt2" }
    assert.error_matches(function() require("moth.llm.engine").load(other) end,
      "token %d+ is '.*' there and '.*' in the model: a draft needs the same tokenizer")
  end)
end)
