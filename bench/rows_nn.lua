--- Rows of bench/rows.lua about parts of networks: norms, dropout, attention, AdamW over many tensors, a GPT's step.
-- Their floor is only the matrix products and one pass over operands and results.
local moth = require "moth"
local floor = require "bench.floor"
local steps = require "bench.steps"

local rows = {}
local function row(r) rows[#rows + 1] = r end

local MATRIX = 4096 * 1024

row { name = "layer_norm 4096x1024", torch = { "layer_norm", 0 }, make = function(threads)
  local x, w, b = moth.randn(4096, 1024), moth.rand(1024), moth.randn(1024)
  local function f() return moth.layer_norm(x, { 1024 }, w, b) end
  return {
    moth = function(n)
      for _ = 1, n do
        local y = f()
        y:free()
      end
    end,
    floor = floor.products({}, { { MATRIX, MATRIX } }, threads),
    check = function()
      local d = x - x:mean(2, true)
      return f():allclose(d / (d:square():mean(2, true) + 1e-5):sqrt() * w + b, 1e-4, 1e-4)
    end,
  }
end }

row { name = "layer_norm 4096x1024 back", torch = { "layer_norm_backward", 0 }, make = function(threads)
  local x, w, b = moth.randn(4096, 1024), moth.rand(1024), moth.randn(1024)
  for _, t in ipairs { x, w, b } do t:requires_grad_(true) end
  local y, g = moth.layer_norm(x, { 1024 }, w, b), moth.randn(4096, 1024)
  return {
    moth = function(n)
      for _ = 1, n do
        x.grad, w.grad, b.grad = nil, nil, nil
        y:backward(g, { retain_graph = true })
      end
    end,
    floor = floor.products({}, { { 2 * MATRIX, MATRIX } }, threads),
    check = function() return b.grad:allclose(g:sum(1), 1e-3, 1e-3) end,
  }
end }

row { name = "dropout 4096x1024", torch = { "dropout", 0 }, make = function(threads)
  local x = moth.randn(4096, 1024)
  return {
    moth = function(n)
      for _ = 1, n do
        local y = moth.nn.functional.dropout(x, { p = 0.2 })
        y:free()
      end
    end,
    floor = floor.products({}, { { MATRIX, MATRIX * 5 / 4 } }, threads), -- with the mask, a byte each
    check = function()
      local kept = moth.nn.functional.dropout(x, { p = 0.2 }):ne(0):float():mean():item()
      return math.abs(kept - 0.8) < 1e-2
    end,
  }
end }

row { name = "topk 32 of 4096x1024", torch = { "topk", 0 }, make = function(threads)
  local x = moth.randn(4096, 1024)
  return {
    moth = function(n)
      for _ = 1, n do
        local v, i = moth.topk(x, 32, 2)
        v:free()
        i:free()
      end
    end,
    floor = floor.products({}, { { MATRIX, 4096 * 32 * 3 } }, threads),
    check = function() return (moth.topk(x, 32, 2)):equal(moth.sort(x, 2, true):narrow(2, 1, 32)) end,
  }
end }

-- attention: batch, heads, length, width of a head; the first is char_gpt's. Causal: the floor has the products of the
-- tiles of 128x128 scores that are not fully masked: each = { scores, others } of a tile, moved = matrices { read,
-- written }.
local function tiles(s, each, moved, threads)
  local B, H, T, D = unpack(s)
  local side, n = math.min(T, 128), B * H * T * D
  local count = B * H * (T / side) * (T / side + 1) / 2
  return floor.products({ { side, side, D, each[1] * count }, { side, D, side, each[2] * count } },
    { { moved[1] * n, moved[2] * n } }, threads)
end

for at, s in ipairs(floor.has_blas and { { 16, 8, 128, 32 }, { 4, 8, 512, 64 }, { 2, 8, 1024, 64 }, { 1, 2, 4096, 64 } }
  or {}) do
  local name = ("attention T=%d"):format(s[3])
  local function operands(grad)
    local q, k, v = moth.randn(s), moth.randn(s), moth.randn(s)
    for _, t in ipairs { q, k, v } do t:requires_grad_(grad) end
    return q, k, v
  end
  local causal = { is_causal = true }
  local function plain(q, k, v)
    local mask = moth.ones(s[3], s[3]):triu(1):gt(0)
    local score = q:matmul(k:transpose(3, 4)) / math.sqrt(s[4])
    return score:masked_fill(mask, -math.huge):softmax(4):matmul(v)
  end
  row { name = name, torch = { "attention", at }, make = function(threads)
    local q, k, v = operands(false)
    return {
      moth = function(n)
        for _ = 1, n do
          local y = moth.scaled_dot_product_attention(q, k, v, causal)
          y:free()
        end
      end,
      floor = tiles(s, { 1, 1 }, { 3, 1 }, threads),
      check = function()
        return moth.scaled_dot_product_attention(q, k, v, causal):allclose(plain(q, k, v), 1e-3, 1e-4)
      end,
    }
  end }
  row { name = name .. " back", torch = { "attention_backward", at }, make = function(threads)
    local q, k, v = operands(true)
    local y, g = moth.scaled_dot_product_attention(q, k, v, causal), moth.randn(s)
    return {
      moth = function(n)
        for _ = 1, n do
          q.grad, k.grad, v.grad = nil, nil, nil
          y:backward(g, { retain_graph = true })
        end
      end,
      floor = tiles(s, { 2, 3 }, { 5, 3 }, threads),
      check = function()
        local dq = q.grad
        q.grad = nil
        plain(q, k, v):backward(g)
        return dq:allclose(q.grad, 1e-3, 1e-3)
      end,
    }
  end }
end

row { name = "AdamW 1000 tensors of 64x64", torch = { "adamw", 1000 }, make = function(threads)
  local params = {}
  for i = 1, 1000 do
    params[i] = moth.randn(64, 64):requires_grad_(true)
    params[i].grad = moth.randn(64, 64)
  end
  local optimizer, before = moth.optim.AdamW(params, { lr = 1e-3 }), params[1]:detach():clone()
  return {
    moth = function(n)
      for _ = 1, n do optimizer:step() end
    end,
    -- p, g, m, v are read, all but g written
    floor = floor.products({}, { { 4 * 4096 * 1000, 3 * 4096 * 1000, 1 } }, threads),
    check = function() return math.abs((params[1]:detach() - before):abs():mean():item() - 1e-3) < 1e-4 end,
  }
end }

if floor.has_blas then
  row { name = "char_gpt step", torch = { "gpt_step", 0 }, make = function(threads)
    local step, s = steps.gpt(), steps.gpt_size
    local N, C, V, T = s.batch * s.context, s.width, s.vocabulary, s.context
    local list = {}
    local function product(m, n, k, times) -- forward, and the derivative by either side
      list[#list + 1] = { m, n, k, times }
      list[#list + 1] = { m, k, n, times }
      list[#list + 1] = { n, k, m, times }
    end
    for _, o in ipairs { { 3 * C, C }, { C, C }, { 4 * C, C }, { C, 4 * C } } do product(N, o[1], o[2], s.layers) end
    product(N, V, C, 1)
    local heads = s.batch * s.heads * s.layers / 2 -- half is masked
    list[#list + 1] = { T, T, C / s.heads, 3 * heads }
    list[#list + 1] = { T, C / s.heads, T, 4 * heads }
    -- Of a block: two norms, q, k, v, attention, two times four widths, two sums; each is read and written once, and
    -- so is its gradient. AdamW reads four times the parameters and writes them three times.
    local activations = N * (16 * C * s.layers + 2 * C + 2 * V)
    local parameters = s.layers * (12 * C * C + 13 * C) + (V + T + 2) * C
    local first, last
    return {
      moth = function(n)
        for _ = 1, n do
          last = step()
          first = first or last
        end
      end,
      floor = floor.products(list, { { 2 * activations, 2 * activations }, { 4 * parameters, 3 * parameters, 1 } },
        threads),
      check = function() return math.abs(first - math.log(V)) < 0.3 and last == last end,
    }
  end }
end

return rows
