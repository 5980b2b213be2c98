-- Examples of models that are cut over ranks, each on 2 processes; their output is checked.
local ranks = require "distributed.ranks"

local function example(name, size)
  local results = ranks.run { size = size or 2, join = false, limit = 60,
    code = ('arg = { "--quick" } dofile "examples/%s.lua"'):format(name) }
  for i, r in ipairs(results) do assert(r.rc == 0, ("%s: rank %d: %s"):format(name, i - 1, r.out)) end
  return results[1].out
end
local function has(text, ...)
  for _, part in ipairs { ... } do assert.matches(part, text) end
end

describe("example", function()
  it("fsdp_gpt: trains where the whole does not #M380 #M381", function()
    local text = example "fsdp_gpt"
    has(text, "fully_shard: loss", "within the same limit, [%d.]+ MB: out of memory")
    local sent = tonumber(text:match "([%d.]+) times the parameters sent")
    assert.is_true(sent > 1.3 and sent < 1.6, text)
  end)
  it("tp_mlp: attention by heads, the MLP by its hidden layer #M388", function()
    has(example "tp_mlp", "%[128, 64%] here", "forward: off by [%d.e-]+, 2 all_reduce",
      "sequence parallel: %[2, 8, 64%]")
  end)
  it("moe: experts over ranks", function() has(example "moe", "8 experts, 4 here", "step 60: %d+ %% right") end)
  it("3d: tensor parallel and shards on a mesh #M391", function()
    has(example("3d", 4), "DeviceMesh%(replica=1, dp=2, tp=2%)", "step 5", "are off by")
  end)
  it("local_sgd: averages of parameters each N steps, and how far they drift #M368", function()
    has(example "local_sgd", "gradients in each step: +loss", "parameters every 64 steps: .* drift at most")
  end)
  it("fedavg: clients with samples of their own #M369", function()
    has(example "fedavg", "6 clients, 480 samples", "round 5: the average %d+ %% right")
  end)
end)
