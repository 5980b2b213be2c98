--- A transformer as numbers: its parameters, the operations of a token, the bytes it keeps for backward.
--
-- Layers have attention (heads, and kv_heads of keys and values) and a feed-forward block: gated = true means three
-- matrices (SwiGLU), else two.
local check = require "moth.utils.check"
local each = require "moth.each"

local M = {}

M.models = {
  ["gpt2"] = { layers = 12, hidden = 768, heads = 12, ffn = 3072, vocab = 50257, seq = 1024, tied = true },
  ["gpt3-175b"] = { layers = 96, hidden = 12288, heads = 96, ffn = 49152, vocab = 50257, seq = 2048, tied = true },
  ["gpt-1t"] = { layers = 128, hidden = 25600, heads = 160, ffn = 102400, vocab = 51200, seq = 2048, tied = true },
  ["llama2-7b"] = { layers = 32, hidden = 4096, heads = 32, ffn = 11008, vocab = 32000, seq = 4096, gated = true },
  ["llama3-8b"] = { layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 128256, seq = 8192,
    gated = true },
  ["llama3-70b"] = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 128256, seq = 8192,
    gated = true },
  ["llama3-405b"] = { layers = 126, hidden = 16384, heads = 128, kv_heads = 8, ffn = 53248, vocab = 128256,
    seq = 8192, gated = true },
}

-- A usual shape for a number of parameters: hidden is 128 times the layers, as in most published models.
local function usual(params)
  local layers = math.max(1, math.floor((params / (12 * 128 ^ 2)) ^ (1 / 3) + 0.5))
  local hidden = math.max(64, math.floor(math.sqrt(params / (12 * layers)) / 64 + 0.5) * 64)
  local vocab = math.min(32000, math.max(256, math.floor(params / hidden / 8)))
  return { layers = layers, hidden = hidden, heads = math.max(1, math.floor(hidden / 128)), ffn = 4 * hidden,
    vocab = vocab, seq = 2048, tied = true, params = params }
end

-- The shape of a module: its longest list of like blocks are the layers, its largest embedding gives hidden and vocab.
local function of_module(module)
  local params, layers, hidden, vocab = module:num_parameters(), 1, nil, nil
  for _, m in module:named_modules() do
    local children, first = 0, nil
    for _, child in m:named_children() do
      local n = child:num_parameters()
      first = first or n
      if n == first and n > 0 then children = children + 1 end
    end
    layers = math.max(layers, children)
    local w = m.weight
    if m.__name == "Embedding" and w and (not vocab or w:size(1) > vocab) then vocab, hidden = w:size(1), w:size(2) end
  end
  local shape = usual(params)
  if hidden then
    shape.hidden, shape.vocab, shape.heads = hidden, vocab, math.max(1, math.floor(hidden / 64))
    shape.ffn = 4 * hidden
  end
  shape.layers = layers
  return shape
end

local fields = "layers hidden heads kv_heads ffn vocab seq gated tied params causal"

--- A description completed with params (their number), block (parameters of a layer), embedding (of one table).
-- model: a name of M.models, a table of fields, a number of parameters, or a module.
function M.read(where, model)
  local s = {}
  if type(model) == "string" then
    if not M.models[model] then
      local names = {}
      for name in each(M.models) do names[#names + 1] = name end
      table.sort(names)
      check.fail("%s: there is no model '%s'%s; there are: %s; or give { layers = , hidden = , vocab = , … }, a \z
        module, a number of parameters", where, model, check.suggest(model, names), table.concat(names, " "))
    end
    for k, v in each(M.models[model]) do s[k] = v end
    s.name = model
  elseif type(model) == "number" then
    s = usual(check.number(where, "model", model, 1))
  elseif type(model) == "table" and model.__module then
    s = of_module(model)
    s.name = model.__name
  elseif type(model) == "table" and check.is_plain(model) then
    check.options(where .. ": model", model, fields)
    if model.params and not model.layers then s = usual(check.number(where, "params", model.params, 1)) end
    for k, v in each(model) do s[k] = v end
  else
    check.fail("%s: model must be a name, a table, a module or a number of parameters, got %s", where, type(model))
  end
  for _, name in ipairs { "layers", "hidden" } do check.integer(where, "model." .. name, s[name], 1) end
  s.heads = s.heads or math.max(1, math.floor(s.hidden / 128))
  s.kv_heads = s.kv_heads or s.heads
  s.ffn = s.ffn or 4 * s.hidden
  s.vocab, s.seq = s.vocab or 32000, s.seq or 2048
  for _, name in ipairs { "heads", "kv_heads", "ffn", "vocab", "seq" } do
    check.integer(where, "model." .. name, s[name], 1)
  end
  s.kv = s.hidden * s.kv_heads / s.heads
  s.block = 2 * s.hidden * s.hidden + 2 * s.hidden * s.kv + (s.gated and 3 or 2) * s.hidden * s.ffn
  s.embedding = s.vocab * s.hidden
  local counted = s.layers * s.block + s.embedding * (s.tied and 1 or 2)
  if s.params then s.block = math.max(0, s.block + (s.params - counted) / s.layers) else s.params = counted end
  if s.causal == nil then s.causal = true end
  return s
end

-- What forward is run again in backward, as a share of one forward pass of the products: nothing; what is cheap and
-- every second product; all.
M.recompute = { none = 0, selective = 0.5, full = 1 }

--- Operations of one token in forward: products of the layers, the product of the head, attention itself.
function M.flops(s, seq)
  return 2 * s.layers * s.block, 2 * s.embedding, 4 * s.layers * seq * s.hidden * (s.causal and 0.5 or 1)
end

--- Bytes that a layer keeps of one token for backward, in 16 bits.
-- none: input, both norms, queries, keys, values (also turned by their positions), the attention's result, the sum, and
-- the feed-forward block's insides. selective: input, the attention's result and every second product. full: input.
function M.saved(s, recompute)
  local h, kv, ffn = s.hidden, s.kv, s.ffn
  if recompute == "full" then return 2 * h end
  if recompute == "selective" then return 2 * (3 * h + kv + ffn) end
  return 2 * (7 * h + 3 * kv + (s.gated and 4 or 2) * ffn)
end

return M
