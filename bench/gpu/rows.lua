--- The rows of bench/gpu/measure.lua. Each row has: name; torch, the command for torch_server.py; bytes or flops of
-- one step (bytes: the least memory traffic) and kind, the limit to compare with ("copy", "float32", "tf32",
-- "bfloat16", or "host": the CPU's time to queue a step, without waiting; "tokens": a training step in bfloat16, of
-- which `bytes` is the number of tokens); and make(), which returns step() and, if there is a reference, error(): the
-- largest difference from float64 on the CPU, relative to the largest element.
local moth = require "moth"

-- tiny: sizes for the emulation, where only the script itself is tested.
return function(tiny)
  local rows = {}
  local size = { float32 = 4, bfloat16 = 2 }

  local function row(r)
    r.torch = table.concat(r.torch, " ")
    rows[#rows + 1] = r
  end
  local function random(shape, dtype) return moth.randn(shape, { device = "cuda" }):to(dtype) end
  local function double(t) return t:detach():cpu():double() end
  local function difference(got, want)
    got, want = double(got), double(want)
    local largest = want:abs():max():item()
    return (got - want):abs():max():item() / (largest > 0 and largest or 1)
  end
  local function short(n) return n >= 2 ^ 20 and ("%dM"):format(n / 2 ^ 20) or ("%d"):format(n) end

  -- memory --------------------------------------------------------------------------------------------

  local n = tiny and 4096 or 2 ^ 28
  row { name = "copy float32 " .. short(n), torch = { "copy", n }, bytes = 8 * n, kind = "copy", make = function()
    local a, b = random({ n }, "float32"), moth.empty({ n }, { device = "cuda" })
    return { step = function() b:copy_(a) end, error = function() return difference(b[{ { 1, 1000 } }],
      a[{ { 1, 1000 } }]) end }
  end }

  for _, dtype in ipairs({ "float32", "bfloat16" }) do
    for _, name in ipairs({ "add", "exp", "gelu" }) do
      local f, operands = moth[name], name == "add" and 2 or 1
      row { name = ("%s %s %s"):format(name, dtype, short(n)), torch = { name, dtype, n },
        bytes = (operands + 1) * size[dtype] * n, kind = "copy", make = function()
          local a, b = random({ n }, dtype), operands == 2 and random({ n }, dtype) or nil
          return {
            step = function() f(a, b):free() end,
            error = function()
              local x, y = a[{ { 1, 1000 } }], b and b[{ { 1, 1000 } }]
              return difference(f(x, y), f(double(x), y and double(y)))
            end,
          }
        end }
    end
  end

  local side = tiny and 64 or 16384
  for _, dtype in ipairs({ "float32", "bfloat16" }) do
    for k, what in ipairs({ "all", "columns", "rows" }) do
      local dim = k - 1
      row { name = ("sum %s %dx%d, %s"):format(dtype, side, side, what), torch = { "sum", dtype, side, dim },
        bytes = size[dtype] * side * side, kind = "copy", make = function()
          local a, d = moth.rand({ side, side }, { device = "cuda" }):to(dtype), dim > 0 and dim or nil
          return {
            step = function() moth.sum(a, d):free() end,
            error = function()
              if not d then return difference(moth.sum(a), moth.sum(moth.sum(a:float(), 2):double())) end
              local part = d == 1 and a[{ {}, { 1, 32 } }] or a[{ { 1, 32 } }]
              return difference(moth.sum(part, d), moth.sum(double(part), d))
            end,
          }
        end }
    end
  end

  for _, s in ipairs(tiny and { { 16, 100, "bfloat16" }, { 16, 64, "float32" } }
    or { { 8192, 50304, "bfloat16" }, { 65536, 1024, "float32" }, { 4096, 1024, "float32" } }) do
    local r, c, dtype = unpack(s)
    local shape = ("%s %dx%d"):format(dtype, r, c)
    row { name = "softmax " .. shape, torch = { "softmax", dtype, r, c }, bytes = 2 * size[dtype] * r * c,
      kind = "copy", make = function()
        local a = random({ r, c }, dtype)
        return {
          step = function() moth.softmax(a, 2):free() end,
          error = function()
            local part = a[{ { 1, 8 } }]
            return difference(moth.softmax(part, 2), moth.softmax(double(part), 2))
          end,
        }
      end }
    row { name = "cross-entropy " .. shape, torch = { "cross_entropy", dtype, r, c }, bytes = size[dtype] * r * c,
      kind = "copy", make = function()
        local a, target = random({ r, c }, dtype), moth.randint(1, c + 1, { r }):to("cuda")
        return {
          step = function() moth.cross_entropy(a, target):free() end,
          error = function()
            local part, t = a[{ { 1, 8 } }], target[{ { 1, 8 } }]
            return difference(moth.cross_entropy(part, t), moth.cross_entropy(double(part), t:cpu()))
          end,
        }
      end }
    row { name = "cross-entropy, both ways, " .. shape, torch = { "cross_entropy_both", dtype, r, c },
      bytes = 3 * size[dtype] * r * c, kind = "copy", make = function()
        local a, target = random({ r, c }, dtype):requires_grad_(true), moth.randint(1, c + 1, { r }):to("cuda")
        return { step = function()
          a.grad = nil
          moth.cross_entropy(a, target):backward()
        end }
      end }
  end

  -- products ------------------------------------------------------------------------------------------

  for _, s in ipairs(tiny and { 48 } or { 4096, 8192 }) do
    for _, kind in ipairs({ "float32", "tf32", "bfloat16" }) do
      row { name = ("mm %s %d^3"):format(kind, s), torch = { "mm", kind, s }, flops = 2 * s ^ 3, kind = kind,
        make = function()
          local dtype = kind == "tf32" and "float32" or kind
          local a, b = random({ s, s }, dtype), random({ s, s }, dtype)
          local matmul = moth.backends.cuda.matmul
          return {
            step = function()
              matmul.allow_tf32 = kind == "tf32"
              moth.mm(a, b):free()
              matmul.allow_tf32 = false
            end,
            error = function()
              matmul.allow_tf32 = kind == "tf32"
              local got = moth.mm(a, b)[{ { 1, 8 } }]
              matmul.allow_tf32 = false
              return difference(got, moth.mm(double(a[{ { 1, 8 } }]), double(b)))
            end,
          }
        end }
    end
  end
  do
    local m, k, o = 32768, 768, 3072
    if tiny then m, k, o = 32, 24, 48 end
    row { name = ("linear bfloat16 %dx%d to %d"):format(m, k, o), torch = { "linear", m, k, o },
      flops = 2 * m * k * o, kind = "bfloat16", make = function()
        local x, w, b = random({ m, k }, "bfloat16"), random({ o, k }, "bfloat16"), random({ o }, "bfloat16")
        return {
          step = function() moth.linear(x, w, b):free() end,
          error = function()
            local part = x[{ { 1, 8 } }]
            return difference(moth.linear(part, w, b), moth.linear(double(part), double(w), double(b)))
          end,
        }
      end }
  end

  -- convolution -------------------------------------------------------------------------------------

  for _, s in ipairs(tiny and { { 1, 4, 6, 8, 3, 1 } } or { { 64, 64, 56, 64, 3, 1 }, { 64, 256, 14, 256, 3, 1 },
    { 64, 512, 28, 1024, 1, 2 }, { 64, 3, 224, 64, 7, 2 } }) do
    local batch, c, side_, k, window, stride = unpack(s)
    local padding, out = (window - 1) / 2, math.ceil(side_ / stride)
    local flops = 2 * batch * k * out * out * c * window * window
    for _, dtype in ipairs { "bfloat16", "float32" } do
      for _, both in ipairs { false, true } do
        row { name = ("conv %s %dx%dx%d^2 to %d, %d^2/%d%s"):format(dtype, batch, c, side_, k, window, stride,
          both and ", both ways" or ""), torch = { "conv", dtype, batch, c, side_, k, window, stride, both and 1 or 0 },
          flops = (both and 3 or 1) * flops, kind = dtype, make = function()
            local x = random({ batch, c, side_, side_ }, dtype):requires_grad_(both)
            local w = random({ k, c, window, window }, dtype):requires_grad_(both)
            local grad = both and random({ batch, k, out, out }, dtype)
            return {
              step = function()
                if not both then return moth.conv2d(x, w, nil, stride, padding):free() end
                x.grad, w.grad = nil, nil
                moth.conv2d(x, w, nil, stride, padding):backward(grad)
              end,
              error = function()
                local part = x:detach()[{ { 1, 1 } }]
                return difference(moth.conv2d(part, w:detach(), nil, stride, padding),
                  moth.conv2d(double(part), double(w), nil, stride, padding))
              end,
            }
          end }
      end
    end
  end

  -- attention -----------------------------------------------------------------------------------------

  -- Batch x heads, positions, head size; causal: half of the products count. Beside PyTorch's own choice, and beside
  -- cuDNN's kernels alone.
  for _, s in ipairs(tiny and { { 1, 2, 40, 16, "bfloat16" }, { 1, 2, 40, 16, "float32" } }
    or { { 8, 12, 1024, 64, "bfloat16" }, { 2, 16, 4096, 64, "bfloat16" }, { 2, 16, 4096, 128, "bfloat16" },
      { 1, 16, 16384, 128, "bfloat16" }, { 8, 12, 1024, 64, "float32" } }) do
    local b, h, t, d, dtype = unpack(s)
    local flops = 2 * b * h * t * t * d
    for _, both in ipairs { false, true } do
      for _, beside in ipairs(dtype == "bfloat16" and { "any", "cudnn" } or { "any" }) do
        row { name = ("attention %s %dx%d, %d positions of %d%s%s"):format(dtype, b, h, t, d,
          both and ", both ways" or "", beside == "cudnn" and ", beside cuDNN" or ""),
          torch = { "attention", dtype, b, h, t, d, both and 1 or 0, beside },
          flops = (both and 3.5 or 1) * flops, kind = dtype, make = function()
            local q, k, v = random({ b, h, t, d }, dtype), random({ b, h, t, d }, dtype), random({ b, h, t, d }, dtype)
            for _, x in ipairs { q, k, v } do x:requires_grad_(both) end
            local grad, causal = both and random({ b, h, t, d }, dtype), { is_causal = true }
            return {
              step = function()
                local y = moth.scaled_dot_product_attention(q, k, v, causal)
                if not both then return y:free() end
                q.grad, k.grad, v.grad = nil, nil, nil
                y:backward(grad)
              end,
              error = function() -- the first positions attend only to each other
                local seen = math.min(t, 512)
                local function part(x) return x:detach()[{ 1, 1, { 1, seen } }] end
                return difference(part(moth.scaled_dot_product_attention(q:detach(), k:detach(), v:detach(), causal)),
                  moth.scaled_dot_product_attention(double(part(q)), double(part(k)), double(part(v)), causal))
              end,
            }
          end }
      end
    end
  end

  -- optimizer -----------------------------------------------------------------------------------------

  do -- the parameters of GPT-2, 124 million
    local layers, d = 12, 768
    if tiny then layers, d = 2, 16 end
    local shapes, numel = { { tiny and 100 or 50257, d }, { tiny and 8 or 1024, d }, { d }, { d } }, 0
    for _ = 1, layers do
      for _, s in ipairs({ { d }, { d }, { 3 * d, d }, { 3 * d }, { d, d }, { d }, { d }, { d }, { 4 * d, d },
        { 4 * d }, { d, 4 * d }, { d } }) do shapes[#shapes + 1] = s end
    end
    for _, s in ipairs(shapes) do numel = numel + s[1] * (s[2] or 1) end
    row { name = ("AdamW, %d tensors, %.1f M"):format(#shapes, numel / 1e6),
      torch = { "adamw", layers, d, shapes[1][1], shapes[2][1] }, bytes = 28 * numel, kind = "copy",
      make = function()
      local parameters = {}
      for i, s in ipairs(shapes) do
        parameters[i] = random(s, "float32"):requires_grad_(true)
        parameters[i].grad = random(s, "float32")
      end
      local optimizer = moth.optim.AdamW(parameters, { lr = 1e-4 })
      return { step = function() optimizer:step() end }
    end }
  end

  -- overhead ------------------------------------------------------------------------------------------

  for _, grad in ipairs({ false, true }) do
    row { name = "tiny add" .. (grad and " with grad" or "") .. ", queued", torch = { "tiny", grad and 1 or 0 },
      kind = "host", make = function()
        local a, b = random({ 2, 3 }, "float32"):requires_grad_(grad), random({ 2, 3 }, "float32")
        return { step = function()
          local c = a + b
          c:free()
        end }
      end }
  end

  local function training()
    local nn = moth.nn
    local model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(),
      nn.Dropout(0.2), nn.Linear(256, 10)):to("cuda")
    local optimizer, criterion = moth.optim.Adam(model:parameters(), { lr = 1e-3 }), nn.CrossEntropyLoss()
    local x, labels = random({ 64, 784 }, "float32"), moth.randint(1, 11, { 64 }):to("cuda")
    return function()
      optimizer:zero_grad()
      criterion(model(x), labels):backward()
      optimizer:step()
    end
  end
  row { name = "the lab's step, eager", torch = { "lab", 0 }, kind = "step", make = function()
    return { step = training() }
  end }
  row { name = "the lab's step, CUDA graph", torch = { "lab", 1 }, kind = "step", make = function()
    if not moth.cuda.graph then error("there is no moth.cuda.graph", 0) end
    local step = training()
    for _ = 1, 3 do step() end
    local graph = moth.cuda.graph(step)
    return { step = function() graph:replay() end }
  end }

  -- GPT-2 ---------------------------------------------------------------------------------------------

  do -- 124 million parameters, bfloat16 by autocast, AdamW
    local c = { vocab_size = 50304, n_layer = 12, n_head = 12, n_embd = 768, block_size = 1024, batch = 16 }
    if tiny then c = { vocab_size = 64, n_layer = 2, n_head = 2, n_embd = 32, block_size = 16, batch = 2 } end
    local tokens = c.batch * c.block_size
    local parameters = c.vocab_size * c.n_embd + 12 * c.n_layer * c.n_embd ^ 2
    local flops = tokens * (6 * parameters + 6 * c.n_layer * c.n_embd * c.block_size)
    for _, how in ipairs { "eager", "compiled" } do
      row { name = ("GPT-2 %.0fM step, %d tokens, beside PyTorch %s"):format(parameters / 1e6, tokens, how),
        torch = { "gpt", c.vocab_size, c.n_layer, c.n_head, c.n_embd, c.block_size, c.batch, how }, bytes = tokens,
        flops = flops, kind = "tokens", make = function()
          local model = moth.models.GPT({ vocab_size = c.vocab_size, n_layer = c.n_layer, n_head = c.n_head,
            n_embd = c.n_embd, block_size = c.block_size }):to("cuda")
          local optimizer = moth.optim.AdamW(model:parameters(), { lr = 6e-4, weight_decay = 0.1 })
          local function draw() return moth.randint(1, c.vocab_size + 1, { c.batch, c.block_size }):to("cuda") end
          local x, y = draw(), draw()
          return { step = function()
            optimizer:zero_grad()
            local _, loss = moth.autocast({ dtype = moth.bfloat16 }, function() return model(x, y) end)
            loss:backward()
            optimizer:step()
          end }
        end }
    end
  end

  return rows
end
