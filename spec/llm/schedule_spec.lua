-- Continuous batching: moth.llm.Scheduler and its cache, without a server.
local moth = require "moth"

local function gpt()
  return moth.models.GPT { vocab_size = 53, n_layer = 2, n_head = 4, n_embd = 32, block_size = 96 }:eval()
end
local function llama()
  return moth.models.Llama { vocab_size = 53, hidden_size = 48, intermediate_size = 64, num_hidden_layers = 2,
    num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 96 }:eval()
end
local function mamba() -- a state in place of keys and values
  return moth.models.Mamba { vocab_size = 53, hidden_size = 16, state_size = 4, num_hidden_layers = 2, max_length = 96 }
    :eval()
end
-- Weights that are large enough for texts that do not repeat one token.
local function lively(make)
  moth.manual_seed(3)
  local net = make()
  moth.no_grad(function()
    for _, p in ipairs(net:parameters()) do p:mul_(6) end
  end)
  return net
end

local function prompt(i, n)
  local ids = {}
  for k = 1, n do ids[k] = (k * i * 31) % 53 + 1 end
  return ids
end
local function alone(net, ids, n)
  return net:generate(moth.tensor({ ids }, { dtype = moth.int64 }), n, { do_sample = false })[1]:totable()
end
local function run(s)
  local steps = 0
  while s:step() > 0 do
    steps = steps + 1
    assert(steps < 2000, "it does not end")
  end
end
local function is_empty(s) -- all blocks back, none counted twice
  assert.equal(0, s.cache:used())
  assert.equal(s.cache.total, #s.cache.free + s.cache.kept)
end

describe("continuous batching #M430", function()
  for name, make in pairs { gpt = gpt, llama = llama, mamba = mamba } do
    it("gives the text of a sequence alone: in a batch, with few blocks, in pieces: " .. name, function()
      local net, want = lively(make), {}
      for i = 1, 8 do want[i] = alone(net, prompt(i, 2 + 6 * i), 12) end
      for _, o in ipairs { { max_seqs = 8 }, { max_seqs = 8, max_tokens = 6 * 16, step_tokens = 20 },
        { max_seqs = 3, step_tokens = 7, share_prefix = "none" } } do
        local s, r = moth.llm.Scheduler(net, o), {}
        for i = 1, 8 do r[i] = s:add { ids = prompt(i, 2 + 6 * i), max_tokens = 12, temperature = 0 } end
        run(s)
        for i = 1, 8 do
          assert.same(want[i], r[i].ids)
          assert.equal("length", r[i].reason)
        end
        if o.max_tokens then assert.is_true(s.stats.preemptions > 0) end
        is_empty(s)
      end
    end)
  end

  it("sequences join and leave while others go on", function()
    local net = lively(gpt)
    local s = moth.llm.Scheduler(net, { max_seqs = 4, step_tokens = 16 })
    local first = s:add { ids = prompt(1, 5), max_tokens = 40, temperature = 0 }
    for _ = 1, 6 do s:step() end
    local before = #first.new
    local long = s:add { ids = prompt(2, 60), max_tokens = 3, temperature = 0 }
    local late = s:add { ids = prompt(3, 4), max_tokens = 2, temperature = 0 }
    s:step()
    assert.equal(before + 1, #first.new) -- the long prompt comes in pieces
    assert.equal(15, long.n)
    while not late.reason do s:step() end
    assert.is_nil(first.reason)
    local gone = s:add { ids = prompt(4, 9), max_tokens = 40 }
    s:step()
    s:cancel(gone)
    s:step()
    assert.equal("cancel", gone.reason)
    run(s)
    assert.same(alone(net, prompt(1, 5), 40), first.ids)
    assert.same(alone(net, prompt(2, 60), 3), long.ids)
    assert.same(alone(net, prompt(3, 4), 2), late.ids)
    is_empty(s)
  end)

  it("equal beginnings share blocks, of one owner alone", function()
    local net, ids = lively(llama), prompt(5, 40)
    local want = alone(net, ids, 8)
    local s = moth.llm.Scheduler(net, { max_tokens = 16 * 16 })
    local a = s:add { ids = ids, max_tokens = 8, temperature = 0, owner = "a" }
    run(s)
    assert.equal(0, s.stats.shared_tokens)
    local b = s:add { ids = ids, max_tokens = 8, temperature = 0, owner = "a" }
    local c = s:add { ids = ids, max_tokens = 8, temperature = 0, owner = "c" }
    run(s)
    assert.equal(32, s.stats.shared_tokens)
    for _, r in ipairs { a, b, c } do assert.same(want, r.ids) end
    -- Two at once that fill the same blocks; then so many others that kept blocks are given away.
    local twins = { s:add { ids = ids, max_tokens = 8, temperature = 0, owner = "d" },
      s:add { ids = ids, max_tokens = 8, temperature = 0, owner = "d" } }
    run(s)
    for _, r in ipairs(twins) do assert.same(want, r.ids) end
    for i = 6, 14 do s:add { ids = prompt(i, 40), max_tokens = 8, temperature = 0 } end
    run(s)
    local again = s:add { ids = ids, max_tokens = 8, temperature = 0, owner = "a" }
    run(s)
    assert.same(want, again.ids)
    is_empty(s)
  end)

  it("a sequence's draws are its own", function()
    local net, texts = lively(gpt), {}
    local o = { ids = prompt(1, 6), max_tokens = 12, temperature = 0.9, top_p = 0.9, seed = 7 }
    for k = 1, 2 do
      local s = moth.llm.Scheduler(net)
      if k == 2 then
        for i = 2, 5 do s:add { ids = prompt(i, 9), seed = i, max_tokens = 20 } end
        s:step()
      end
      local r = s:add(o)
      run(s)
      texts[k] = r.new
    end
    assert.same(texts[1], texts[2])
    local s = moth.llm.Scheduler(net)
    local greedy, counted = s:add { ids = prompt(1, 6), max_tokens = 5, top_k = 1 }, 0
    local stopped = s:add { ids = prompt(1, 6), max_tokens = 20, temperature = 0, repetition_penalty = 1.3,
      on_token = function()
        counted = counted + 1
        return counted < 3
      end }
    run(s)
    assert.same(alone(net, prompt(1, 6), 5), greedy.ids)
    assert.equal("stop", stopped.reason)
    assert.equal(3, #stopped.new)
  end)

  it("what cannot be is refused, and a NaN ends one sequence alone", function()
    local net = lively(gpt)
    local s = moth.llm.Scheduler(net, { max_tokens = 64 })
    assert.error_matches(function() s:add { ids = {} } end, "ids is empty")
    assert.error_matches(function() s:add { ids = { 54 } } end, "ids%[1%] is 54; this model's ids are from 1 to 53")
    assert.error_matches(function() s:add { ids = prompt(1, 60), max_tokens = 30 } end, "can never fit")
    assert.error_matches(function() s:add { ids = prompt(1, 97) } end, "97 tokens; the model can look at 96")
    assert.error_matches(function() s:add { ids = { 1 }, top_p = 0 } end, "top_p")
    assert.error_matches(function() moth.llm.Scheduler(moth.nn.Linear(1, 1)) end, "expected a language model")
    local state = mamba()
    assert.error_matches(function() moth.llm.Scheduler(state, { lookup = 3 }) end,
      "the model, Mamba, keeps a state, which cannot be cut back")
    assert.error_matches(function() moth.llm.Scheduler(net, { draft = state }) end, "the draft, Mamba, keeps a state")
    local s2 = moth.llm.Scheduler(state, { max_tokens = 256, share_prefix = "all" }) -- nothing is shared
    for _ = 1, 2 do
      local r = s2:add { ids = prompt(3, 40), max_tokens = 4, temperature = 0 }
      run(s2)
      assert.same(alone(state, prompt(3, 40), 4), r.ids)
    end
    local long = moth.models.GPT { vocab_size = 53, n_layer = 0, n_head = 1, n_embd = 4, block_size = 9000 }
    local taken = moth.llm.Scheduler(long, { max_tokens = 9008 }):add { ids = prompt(1, 9000), max_tokens = 1 }
    assert.equal(9000, #taken.ids) -- more than Lua unpacks
    moth.no_grad(function() net.wte.weight[9]:fill_(0 / 0) end) -- all logits of who sees it, and the logit of 9
    local ok = s:add { ids = { 1, 2 }, max_tokens = 2 }
    run(s)
    assert.equal("error", ok.reason)
    is_empty(s)
  end)
end)
