-- Complex derivatives of every op record that takes complex tensors: its samples with imaginary parts of their own,
-- gradcheck and gradgradcheck along 1 and i, forward mode against the gradient, vmap against a loop. On the CPU alone.
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.autograd.gradcheck"
local ops, func = B.ops, moth.func

local first, second = S.counter("complex gradcheck"), S.counter("complex gradgradcheck")
local forward, batched = S.counter("complex jvp"), S.counter("complex vmap")
local checked = 0
local LARGE = 40 -- elements of an input: more take too long

local function noise(t)
  local data = {}
  for i = 1, B.numel(t) do data[i] = S.uniform() - 0.5 end
  local part = S.make(B.size(t), "float64", data)
  return B.tensor_dtype(t).is_complex and ops.complex(part, ops.mul(ops.flip(part, 1), 0.7)) or part
end

-- Ops that read one triangle of Hermitian matrices.
local hermitian = {}
for name in ("linalg_cholesky_ex linalg_cholesky linalg_eigh linalg_eigvalsh"):gmatch "%S+" do
  hermitian[name] = true
end
-- Results up to a factor of modulus 1, of which the absolute values are checked.
local turned = { linalg_eigh = true, linalg_svd = true, linalg_eig = true }
-- Parts of these, whose results only they read.
local inner = { native_eigh = true, native_svd = true, native_eig = true }

-- A sample as a function of its float tensors, which become complex.
local function complex_sample(op, text, seed)
  local args = S.evaluate(text, { seed = seed, smooth = true })
  local inputs, small = {}, true
  args = S.map(op, args, function(t, a)
    local is_complex = B.tensor_dtype(t).is_complex
    if S.dtype_of(t) ~= "float64" and not is_complex or not a then return t end
    small = small and B.numel(t) <= LARGE
    local z = is_complex and ops.clone(t) or ops.complex(t, noise(t))
    if S.differentiable(op, a.name) == nil then return z end
    inputs[#inputs + 1] = B.set_requires_grad(z, true)
    return { input = #inputs }
  end)
  local function fn(...)
    local given, full = { ... }, { n = args.n }
    for i = 1, args.n do
      local v = args[i]
      if type(v) == "table" and v.input then
        v = given[v.input]
        if hermitian[op.name] then v = ops.mul(ops.add(v, ops.adjoint(v)), 0.5) end
      elseif type(v) == "table" and type(v[1]) == "table" and v[1].input then
        local list = {}
        for k, x in ipairs(v) do list[k] = given[x.input] end
        v = list
      end
      full[i] = v
      local a = op.args[i]
      if a and B.is_tensor(v) and (a.mutated or i == 1 and op.returns_self) then full[i] = ops.clone(v) end
    end
    if op.stats == 1 then return (S.call(op.name, full)) end
    if not turned[op.name] then return S.call(op.name, full) end
    local results = { S.call(op.name, full) }
    for i, r in ipairs(results) do results[i] = B.tensor_dtype(r).is_complex and ops.abs(r) or r end
    return unpack(results)
  end
  return fn, inputs, small
end

local function pack(...) return { n = select("#", ...), ... } end

-- The inexact results that have a derivative.
local function results_of(fn, inputs)
  local found = {}
  local all = pack(fn(unpack(inputs)))
  for i = 1, all.n do
    local r = all[i]
    if B.is_tensor(r) and (B.tensor_dtype(r).is_complex or B.tensor_dtype(r).is_floating_point) then
      found[#found + 1] = r
    end
  end
  return found
end

-- The real inner product of complex tensors, as vectors of their parts.
local function dot(a, b)
  if not B.tensor_dtype(a).is_complex then return ops.sum(ops.mul(a, ops.real(b))) end
  return ops.sum(ops.real(ops.mul(ops.conj(a), b)))
end

local function check_forward(fn, inputs)
  local f = function(...) return results_of(fn, { ... }) end
  local plain, ts = {}, {}
  for i, x in ipairs(inputs) do plain[i], ts[i] = B.alias(x, false), noise(x) end
  local ys, tangents = func.jvp(f, plain, ts)
  local again, roots, seeds = f(unpack(inputs)), {}, {}
  local got, want = 0, 0
  for i, y in ipairs(ys) do
    local seed = noise(y)
    if B.requires_grad(again[i]) then
      got = got + dot(seed, tangents[i]):item()
      roots[#roots + 1], seeds[#seeds + 1] = again[i], seed
    end
  end
  if #roots == 0 then return end
  local grads = pack(moth.autograd.grad(roots, inputs, seeds, false, false, true))
  for i = 1, #inputs do if grads[i] then want = want + dot(grads[i], ts[i]):item() end end
  if math.abs(got - want) > 1e-8 + 1e-6 * math.abs(want) then
    error(("Re <v, J t> is %.12g, Re <J' v, t> %.12g"):format(got, want), 0)
  end
end

local function check_batched(fn, inputs)
  local rows, stacked = {}, {}
  for i, x in ipairs(inputs) do
    local own = B.alias(x, false)
    rows[i] = { own, ops.add(own, noise(own)), ops.mul(own, 0.9) }
    stacked[i] = ops.stack(rows[i])
  end
  local got = pack(func.vmap(function(...) return unpack(results_of(fn, { ... })) end)(unpack(stacked)))
  for k = 1, 3 do
    local row = {}
    for i = 1, #inputs do row[i] = rows[i][k] end
    for r, want in ipairs(results_of(fn, row)) do
      local one = ops.select(got[r], 1, k)
      if not moth.allclose(one, want, { rtol = 1e-9, atol = 1e-9, equal_nan = true }) then
        error(("element %d of result %d differs from the loop's"):format(k, r), 0)
      end
    end
  end
end

-- Refusals: what has no order, floats alone.
local function refused(err)
  err = tostring(err)
  return err:find("not implemented for complex", 1, true) or err:find("expected a float", 1, true)
    or err:find("float dtype", 1, true) or err:find("complex128", 1, true) or err:find("must be real", 1, true)
end

describe("complex derivatives", function()
  for _, op in ipairs(require "moth.ops_table") do
    local asked = S.device == "cpu" and os.getenv("MOTH_OP") or S.device ~= "cpu" and ""
    local wanted = not asked or ("," .. asked .. ","):find("," .. op.name .. ",", 1, true)
    if wanted and S.has_derivative(op) and not op.draws and not inner[op.name] then
      it(S.title(op), function()
        for i, text in ipairs(op.samples) do
          local fn, inputs, small = complex_sample(op, text, S.seed + i)
          local runs, found = pcall(function() return #inputs > 0 and results_of(fn, inputs) end)
          if not runs and not refused(found) then error(("%s sample %d: %s"):format(op.name, i, found), 0) end
          local any = false
          for _, r in ipairs(runs and found or {}) do any = any or B.requires_grad(r) and B.numel(r) <= LARGE end
          if any and small then
            checked = checked + 1
            local where = ("%s sample %d"):format(op.name, i)
            local function unless_missing(counter, f, ...)
              local list = { ... }
              counter.case(where, function()
                local ok, err = pcall(f, unpack(list))
                err = tostring(err)
                if not ok and not err:find("derivative of [%w_]+.- is not implemented")
                  and not err:find("the derivative needs Q", 1, true) then
                  error(err, 0)
                end
              end)
            end
            unless_missing(first, check.gradcheck, fn, inputs)
            if i == 1 then unless_missing(second, check.gradgradcheck, fn, inputs) end
            unless_missing(forward, check_forward, fn, inputs)
            batched.case(where, check_batched, fn, inputs)
          end
        end
        local wrong
        for _, counter in ipairs { first, second, forward, batched } do
          local ok, err = pcall(counter.check)
          wrong = wrong or not ok and err
        end
        if wrong then error(wrong, 0) end
      end)
    end
  end

  it("ran", function()
    io.write(("  complex: gradcheck, jvp and vmap of %d samples\n"):format(checked))
    assert.is_true(os.getenv("MOTH_OP") ~= nil or S.device ~= "cpu" or checked > 150)
  end)
end)
