-- Gradients do not depend on how inputs lie in memory: of every differentiable op's samples each float argument is made
-- a view of a base, expanded, overlapping or transposed. The gradients of the bases are those with copies of the views,
-- which share no memory. And programs of overlapping views, drawn at random, against differences.
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local ops = B.ops

-- The strides of a tensor in windows: each element one behind its neighbour, along all dimensions.
local function ones(n)
  local list = {}
  for i = 1, n do list[i] = 1 end
  return list
end

-- A base, and the function that makes the view of it; nil where the shape has none.
local layouts = {
  expanded = function(t)
    local shape = B.size(t)
    if #shape == 0 or shape[1] < 2 then return end
    return ops.clone(ops.narrow(t, 1, 1, 1)), function(base) return ops.expand(base, shape) end
  end,
  overlapping = function(t)
    local shape, n = B.size(t), 1
    if #shape < 2 or B.numel(t) < 2 then return end
    for _, s in ipairs(shape) do n = n + s - 1 end
    local base = ops.clone(ops.narrow(ops.reshape(t, { B.numel(t) }), 1, 1, n))
    return base, function(b) return ops.as_strided(b, shape, ones(#shape)) end
  end,
  transposed = function(t)
    if B.dim(t) < 2 then return end
    return ops.clone(ops.transpose(t, 1, -1)), function(base) return ops.transpose(base, 1, -1) end
  end,
}

-- The gradients of the bases, and whether the op could be differentiated there.
local function gradients(fn, bases, views, copied)
  local leaves, given = {}, {}
  for i, base in ipairs(bases) do
    leaves[i] = B.set_requires_grad(ops.clone(base), true)
    given[i] = views[i](leaves[i])
    if copied then given[i] = ops.clone(given[i]) end
  end
  local ok, err = pcall(function()
    local results, sum = { fn(unpack(given)) }, nil
    S.reseed(7)
    for _, r in ipairs(results) do
      if B.is_tensor(r) and B.requires_grad(r) then
        local weights = {}
        for k = 1, B.numel(r) do weights[k] = S.uniform() - 0.3 end
        local part = ops.sum(ops.mul(r, S.make(B.size(r), "float64", weights)))
        if B.tensor_dtype(part).is_complex then part = ops.real(part) end
        sum = sum and ops.add(sum, part) or part
      end
    end
    if not sum then error("nothing to differentiate", 0) end
    B.backward({ sum })
  end)
  local grads = {}
  for i, leaf in ipairs(leaves) do grads[i] = leaf.grad or false end
  return ok, err, grads
end

-- Their results are of the memory itself.
local of_memory = { as_strided = true, as_strided_scatter = true, as_strided_backward = true }

local function check(op, text, layout, seed)
  local fn, inputs = S.as_function(op, op.name, text, seed, function(a) return S.differentiable(op, a) or nil end)
  if #inputs == 0 then return end
  local bases, views, any = {}, {}, false
  for i, t in ipairs(inputs) do
    local base, view = layouts[layout](B.alias(t, false))
    any = any or base ~= nil
    bases[i], views[i] = base or ops.clone(B.alias(t, false)), view or function(b) return ops.mul(b, 1) end
  end
  if not any then return end
  local ok, _, want = gradients(fn, bases, views, true)
  if not ok then return end -- not defined there: a singular matrix, positions that need order
  local fine, err, grads = gradients(fn, bases, views, false)
  if not fine and err:find("view size is not compatible", 1, true) then return end
  if not fine then error(err, 0) end
  for i, w in ipairs(want) do
    local g = grads[i]
    if (w and true or false) ~= (g and true or false) then error(("input %d: a gradient is missing"):format(i), 0) end
    local why = w and S.compare(S.values(g), S.values(w), "float64", { 1e-6, 1e-8 })
    if why then error(("input %d: %s"):format(i, why), 0) end
  end
  return true
end

local count = S.counter("layouts")

describe("gradients of overlapping inputs", function()
  for _, op in ipairs(S.selected()) do
    if S.has_derivative(op) and not of_memory[op.name] and not op.draws then
      it(S.title(op), function()
        for i, text in ipairs(op.samples) do
          for layout in pairs(layouts) do
            count.case(("%s sample %d %s"):format(op.name, i, layout), check, op, text, layout, S.seed + i)
          end
        end
        count.check()
      end)
    end
  end
end)

-- Views of a tensor of at least one dimension; the windows make it overlap.
local function pick(n) return 1 + math.floor(S.uniform() * n) end
local steps = {
  function(x) return ops.unsqueeze(x, 1) end,
  function(x) local d = pick(B.dim(x)); return ops.transpose(x, d, pick(B.dim(x))) end,
  function(x)
    local shape = B.size(x)
    for i, s in ipairs(shape) do if s == 1 then shape[i] = pick(3) end end
    return ops.expand(x, shape)
  end,
  function(x)
    local d = pick(B.dim(x))
    local n = B.size(x, d)
    return B.dim(x) < 6 and ops.unfold(x, d, pick(n), pick(2)) or x
  end,
  function(x)
    local d = pick(B.dim(x))
    local from = pick(B.size(x, d))
    return ops.narrow(x, d, from, B.size(x, d) - from + 1)
  end,
  function(x) return ops.flip(x, { pick(B.dim(x)) }) end,
  function(x)
    if not B.is_contiguous(x) or B.numel(x) < 4 then return x end
    return ops.as_strided(x, { 2, 2, 2 }, { 1, 0, 1 })
  end,
  function(x) return ops.as_strided(x, B.size(x), B.stride(x)) end,
}

describe("programs of overlapping views", function()
  it("have the derivatives that differences show", function()
    for trial = 1, 60 do
      local choices = {}
      S.reseed(S.seed + trial)
      local shape = { pick(3), pick(4), pick(2) }
      local function program(x)
        local y = x
        S.reseed(S.seed + 1000 + trial)
        for _ = 1, 2 + pick(4) do
          local step = pick(#steps)
          choices[#choices + 1] = step
          if B.numel(y) < 300 then y = steps[step](y) end
        end
        local weights = {}
        for k = 1, B.numel(y) do weights[k] = math.floor(S.uniform() * 9) - 4 end
        return ops.sum(ops.mul(y, S.make(B.size(y), "float64", weights)))
      end
      local n, values = S.product(shape), {}
      for i = 1, n do values[i] = math.floor(S.uniform() * 5) end
      local x = B.set_requires_grad(S.make(shape, "float64", values), true)
      B.backward({ program(x) })
      local got, want = S.values(x.grad), {}
      for i = 1, n do -- linear: a whole step is exact
        local function at(d)
          values[i] = values[i] + d
          local v = B.item(program(S.make(shape, "float64", values)))
          values[i] = values[i] - d
          return v
        end
        want[i] = at(1) - at(0)
      end
      local why = S.compare(got, want, "float64", { 1e-9, 1e-9 })
      assert(not why, ("seed %d, steps %s: %s"):format(S.seed + trial, table.concat(choices, " "), tostring(why)))
    end
  end)

  it("patches: unfold of unfold, and of an expanded tensor", function()
    local x = moth.ones({ 1, 1, 4, 4 }, { dtype = moth.float64, device = S.device }):requires_grad_(true)
    x:unfold(3, 3, 1):unfold(4, 3, 1):sum():backward()
    assert.same({ { 1, 2, 2, 1 }, { 2, 4, 4, 2 }, { 2, 4, 4, 2 }, { 1, 2, 2, 1 } }, x.grad[{ 1, 1 }]:round():totable())
    local z = moth.ones({ 3, 1 }, { dtype = moth.float64, device = S.device }):requires_grad_()
    z:expand(3, 4):unfold(2, 2, 1):sum():backward()
    assert.is_true(moth.allclose(z.grad, moth.full({ 3, 1 }, 6, { dtype = moth.float64, device = S.device })))
  end)
end)
