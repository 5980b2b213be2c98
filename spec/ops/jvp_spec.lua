-- Forward mode of every op record: jvp of its samples against the gradient (<v, J t> = <v J, t>), in-place variants
-- too; jvp of the gradient against the gradient of the gradient; and vmap of jvp.
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local ops, func = B.ops, moth.func

local first, second, batched = S.counter("jvp"), S.counter("jvp of grad"), S.counter("vmap of jvp")

local function pack(...) return { n = select("#", ...), ... } end

local function random_like(t) -- of the specs' own numbers
  local data = {}
  for i = 1, B.numel(t) do data[i] = S.uniform() * 2 - 1 end
  return S.make(B.size(t), S.dtype_of(t), data)
end

local function dot(a, b) return ops.sum(ops.mul(ops.to(a, moth.float64), ops.to(b, moth.float64))) end

-- fn's float results, which require a gradient, as a list.
local function floats(fn)
  return function(...)
    local results, out = pack(fn(...)), {}
    for i = 1, results.n do
      local r = results[i]
      if B.is_tensor(r) and S.class[S.dtype_of(r)] == "float" then out[#out + 1] = r end
    end
    return out
  end
end

local function close(a, b, what)
  a, b = a:item(), b:item()
  if a ~= a and b ~= b or a == b then return end
  local off = math.abs(a - b)
  if off ~= off or off > 1e-7 + 1e-6 * math.max(math.abs(a), math.abs(b)) then
    error(("%s: %.12g, expected %.12g"):format(what, a, b), 0)
  end
end

local function check_first(fn, xs)
  local ts, f = {}, floats(fn)
  for i, x in ipairs(xs) do ts[i] = random_like(x) end
  local plain = {}
  for i, x in ipairs(xs) do plain[i] = B.alias(x, false) end
  local ys, tangents = func.jvp(f, plain, ts)
  local total, seeds = moth.zeros({ dtype = moth.float64, device = S.device }), {}
  local again = f(unpack(xs))
  local roots, weights = {}, {}
  for i, y in ipairs(ys) do
    if tostring(y:size()) ~= tostring(tangents[i]:size()) or S.dtype_of(y) ~= S.dtype_of(tangents[i]) then
      error(("result %d is %s %s, its tangent %s %s"):format(i, S.dtype_of(y), tostring(y:size()),
        S.dtype_of(tangents[i]), tostring(tangents[i]:size())), 0)
    end
    seeds[i] = random_like(y)
    total = total + dot(seeds[i], tangents[i])
    if B.requires_grad(again[i]) then roots[#roots + 1], weights[#weights + 1] = again[i], seeds[i] end
  end
  local expected = moth.zeros({ dtype = moth.float64, device = S.device })
  if #roots > 0 then
    local grads = pack(moth.autograd.grad(roots, xs, weights, false, false, true))
    for i = 1, #xs do if grads[i] then expected = expected + dot(grads[i], ts[i]) end end
  end
  close(total, expected, "<v, J t>")
  return ts, seeds
end

-- forward over reverse: the derivative of the gradient in the direction ts.
local function check_second(fn, xs, ts, seeds)
  local f = floats(fn)
  local function loss(...)
    local sum
    for i, y in ipairs(f(...)) do sum = sum and sum + dot(seeds[i], y) or dot(seeds[i], y) end
    return sum
  end
  local nums = {}
  for i = 1, #xs do nums[i] = i end
  local plain = {}
  for i, x in ipairs(xs) do plain[i] = B.alias(x, false) end
  local _, forward = func.jvp(func.grad(loss, nums), plain, ts)
  local function product(...)
    local sum
    for i, g in ipairs(func.grad(loss, nums)(...)) do sum = sum and sum + dot(g, ts[i]) or dot(g, ts[i]) end
    return sum
  end
  local reverse = func.grad(product, nums)(unpack(plain))
  for i = 1, #xs do
    local u = random_like(xs[i])
    close(dot(forward[i], u), dot(reverse[i], u), "jvp of grad by input " .. i)
  end
end

local function check_batched(fn, xs)
  local f, plain, many, dims = floats(fn), {}, {}, {}
  for i, x in ipairs(xs) do
    plain[i] = B.alias(x, false)
    many[i], dims[i] = ops.stack({ random_like(x), random_like(x) }), 1
  end
  local got = func.vmap(function(...)
    local _, t = func.jvp(f, plain, { ... })
    return t
  end, dims)(unpack(many))
  for k = 1, 2 do
    local ts = {}
    for i = 1, #xs do ts[i] = ops.select(many[i], 1, k) end
    local _, want = func.jvp(f, plain, ts)
    for i = 1, #want do
      if not moth.allclose(ops.select(got[i], 1, k), want[i], { rtol = 1e-7, atol = 1e-9, equal_nan = true }) then
        error(("element %d of result %d differs"):format(k, i), 0)
      end
    end
  end
end

describe("jvp", function()
  for _, op in ipairs(S.selected()) do
    if S.has_derivative(op) then
      it(S.title(op), function()
        for i, text in ipairs(op.samples) do
          for _, name in ipairs({ op.name, op.inplace and op.name .. "_" or nil }) do
            local seed = S.seed + i
            local function wanted(a) return S.differentiable(op, a) or nil end
            local fn, inputs = S.as_function(op, name, text, seed, wanted)
            local fits = name == op.name or pcall(fn, unpack(inputs))
            if #inputs > 0 and fits then
              local where, ts, seeds = ("%s sample %d"):format(name, i), nil, nil
              first.case(where, function()
                local ok, err = pcall(function() ts, seeds = check_first(fn, inputs) end)
                if not ok and not tostring(err):find("derivative") then error(err, 0) end
              end)
              if ts and name == op.name then
                second.case(where, function()
                  local ok, err = pcall(check_second, fn, inputs, ts, seeds)
                  if not ok and not tostring(err):find("derivative") then error(err, 0) end
                end)
                if not op.draws then batched.case(where, check_batched, fn, inputs) end
              end
            end
          end
        end
        local ok, err = pcall(first.check)
        local ok2, err2 = pcall(second.check)
        batched.check()
        if not ok then error(err, 0) end
        if not ok2 then error(err2, 0) end
      end)
    end
  end
end)
