-- Models with the weights of torchvision and transformers, made there at random: outputs, three training steps, and
-- what generate gives. Usage: python3 spec/parity/models.py DIR; luajit spec/parity/models.lua DIR
local moth = require "moth"
local compare = require "spec.parity.compare"
local generate = require "moth.models.generate"
local dir = arg[1]
moth.set_default_dtype(moth.float64)
local cases, check = compare.cases(dir .. "/cases.json"), compare.check

local function same(what, got, want, limit) compare.same(what, got, compare.tensor(want), limit) end
local function losses(what, got, want)
  for i, x in ipairs(want) do
    check(("%s, loss %d"):format(what, i), math.abs(got[i] - x) <= 1e-6 * math.abs(x), "%.7g, should be %.7g",
      got[i], x)
  end
end
-- Angles of rotary positions are float32 in both.
local LIMIT = 1e-6
local function wave(...)
  local shape, size, data = { ... }, 1, {}
  for _, s in ipairs(shape) do size = size * s end
  for k = 0, size - 1 do data[k + 1] = math.sin(1.7 * k) end
  return moth.tensor(data):view(shape)
end
local function ints(rows, more) return moth.tensor(rows, { dtype = moth.int64 }) + (more or 0) end

local images = {
  vit = function()
    return moth.models.ViT { image_size = 32, patch_size = 8, num_layers = 2, num_heads = 4, hidden_dim = 32,
      mlp_dim = 64, num_classes = 10 }
  end,
}
for _, name in ipairs { "resnet18", "resnet34", "resnet50", "mobilenet_v2", "vgg11", "vgg13_bn", "vit",
  "resnext50_32x4d", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "swin_t", "swin_v2_t", "densenet121",
  "regnet_y_400mf" } do
  local case = cases[name]
  local net = images[name] and images[name]() or moth.models[name] { num_classes = 10 }
  net:load_state_dict(moth.load(("%s/%s.pth"):format(dir, name)))
  net:eval()
  local x = wave(2, 3, case.size, case.size)
  same(name, moth.no_grad(function() return net(x) end), case.out, LIMIT)
  local opt, got = moth.optim.SGD(net:parameters(), { lr = 0.001, momentum = 0.9 }), {}
  for i = 1, #case.losses do
    opt:zero_grad()
    local loss = moth.nn.functional.cross_entropy(net(x), ints { 2, 4 })
    loss:backward()
    opt:step()
    got[i] = loss:item()
  end
  losses(name, got, case.losses)
end

for name, class in pairs { gpt2 = "GPT", llama = "Llama", llama_tied = "Llama", qwen2 = "Llama", mistral = "Llama" } do
  local case = cases[name]
  local net = moth.models[class].from_pretrained(dir .. "/" .. name)
  local ids, mask = ints(case.ids, 1), ints(case.mask)
  local logits = moth.no_grad(function() return net(ids) end)
  same(name, logits, case.out, LIMIT)
  local function rows(t) return (t - 1):totable() end
  -- Up to a token that is as probable as the other one, in float32, which theirs are chosen in.
  local function equal(what, got, want, o)
    for r, row in ipairs(want) do
      for c, id in ipairs(row) do
        if got[r][c] ~= id then
          local function next_of(k)
            local first = ints({ { unpack(row, 1, c - 1) } }, 1)
            local seen = o.attention_mask and moth.cat({ mask:narrow(1, r, 1), moth.ones({ 1, c - 1 - mask:size(2) },
              { dtype = moth.int64 }) }, 2)
            seen = seen and seen:ne(0)
            local l = moth.no_grad(function() return net:decode(first, nil, seen):select(2, -1) end)
            l = generate.penalised(l, first, o.repetition_penalty or 1, seen)
            return l[1][k + 1]:item()
          end
          local mine, theirs = next_of(got[r][c]), next_of(id)
          if mine - theirs > 1e-5 * math.abs(mine) then
            return check(what, false, "row %d differs at token %d: %g and %g", r, c, mine, theirs)
          end
          break
        end
      end
    end
    check(what, true)
  end
  for _, cached in ipairs { true, false } do
    local with = cached and " with a cache" or " without a cache"
    local plain = { do_sample = false, use_cache = cached }
    equal(name .. " generate" .. with, rows(net:generate(ids, 8, plain)), case.greedy, plain)
    local padded = { do_sample = false, use_cache = cached, attention_mask = mask, repetition_penalty = 1.3 }
    equal(name .. " generate of padded rows" .. with, rows(net:generate(ids, 8, padded)), case.padded, padded)
  end
  same(name .. " probabilities", generate.filtered(logits:select(2, -1), { temperature = 0.7, top_k = 20,
    top_p = 0.6 }):softmax(2), case.probs, LIMIT)
  net:train()
  local opt, got = moth.optim.AdamW(net:parameters(), { lr = 1e-3 }), {}
  for i = 1, 3 do
    opt:zero_grad()
    local _, loss = net(ids:narrow(2, 1, 8), ids:narrow(2, 2, 8))
    loss:backward()
    opt:step()
    got[i] = loss:item()
  end
  losses(name, got, case.losses)
end

local case = cases.bert
local net = moth.models.BERT.from_pretrained(dir .. "/bert")
local hidden, pooled = net(ints(case.ids, 1), { attention_mask = ints(case.mask),
  token_type_ids = ints(case.types, 1) })
same("bert", hidden, case.hidden, LIMIT)
same("bert pooled", pooled, case.pooled, LIMIT)

compare.finish("models", "torchvision and transformers")
