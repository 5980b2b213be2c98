-- Derivatives of every op record: gradcheck and gradgradcheck of its samples in float64, in-place variants too.
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.autograd.gradcheck"
local ops = B.ops

local first, second = S.counter("gradcheck"), S.counter("gradgradcheck")
local ops_total, ops_first, ops_second, without = 0, 0, {}, {}

local function call(name, args) return ops[name](unpack(args, 1, args.n)) end

-- Ops that read one triangle of symmetric matrices: their derivative is that along symmetric matrices.
local symmetric = {}
for name in ("linalg_cholesky_ex linalg_cholesky native_eigh linalg_eigh linalg_eigvalsh"):gmatch "%S+" do
  symmetric[name] = true
end

--- Of which arguments does an op have a derivative? All floats of a composite; false: unimplemented.
local function differentiable(op, name)
  if op.grad == "composite" then return true end
  if type(op.grad) ~= "table" then return nil end
  local formula = op.grad[name]
  if formula == "unimplemented" then return false end
  return formula ~= nil or nil
end

local function has_derivative(op)
  if op.grad == "none" then return false end
  if op.name:find("^%w+_like$") or op.name == "empty" then return false end
  return true
end

--- A sample as a function of its float tensors: fn, inputs. `want` says which arguments take part.
local function as_function(op, name, text, seed, want)
  local base = S.evaluate(text, { seed = seed, smooth = true })
  local inputs = {}
  local args = S.map(op, base, function(t, a)
    if S.dtype_of(t) ~= "float64" or not a or want(a.name) == nil then return t end
    inputs[#inputs + 1] = B.set_requires_grad(ops.clone(t), true)
    return { input = #inputs }
  end)
  local mutates = op.returns_self or name ~= op.name
  local function fn(...)
    local given = { ... }
    local full = { n = args.n }
    for i = 1, args.n do
      local v = args[i]
      if type(v) == "table" and v.input then
        v = given[v.input]
        if symmetric[op.name] then v = ops.mul(ops.add(v, ops.transpose(v, -2, -1)), 0.5) end
        if i == 1 and mutates then v = ops.clone(v) end
      elseif type(v) == "table" and type(v[1]) == "table" and v[1].input then
        local list = {}
        for k, x in ipairs(v) do list[k] = given[x.input] end
        v = list
      elseif i == 1 and mutates and B.is_tensor(v) then
        v = ops.clone(v)
      end
      full[i] = v
    end
    moth.manual_seed(11)
    if op.stats == 1 then return (call(name, full)) end
    return call(name, full)
  end
  return fn, inputs
end

describe("gradients", function()
  for _, op in ipairs(S.selected()) do
    if has_derivative(op) then
      it(S.title(op), function()
        ops_total = ops_total + 1
        local checked, checked_twice = false, op.samples[1] ~= nil
        local names = { op.name }
        if op.inplace then names[2] = op.name .. "_" end
        for i, text in ipairs(op.samples) do
          for _, name in ipairs(names) do
            local seed = S.seed + i
            local fn, inputs = as_function(op, name, text, seed, function(a) return differentiable(op, a) or nil end)
            local fits = name == op.name or pcall(fn, unpack(inputs))
            if #inputs > 0 and fits then
              local where = ("%s sample %d"):format(name, i)
              checked = first.case(where, check.gradcheck, fn, inputs) or checked
              second.case(where, function()
                local ok, err = pcall(check.gradgradcheck, fn, inputs)
                if ok then return end
                local missing = tostring(err):match("derivative of ([%w_]+).- is not implemented")
                if not missing then error(err, 0) end
                checked_twice = false
                without[missing] = true
              end)
            end
            -- an argument without a derivative must be marked
            if type(op.grad) == "table" and name == op.name then
              for argument, formula in pairs(op.grad) do
                if formula == "unimplemented" then
                  checked_twice = false
                  first.case(("%s sample %d by %s"):format(name, i, argument), function()
                    local f, list = as_function(op, name, text, seed, function(a) return a == argument or nil end)
                    if #list == 0 then return end -- the sample leaves it out, or has it as bool
                    local ok, err = pcall(function() B.backward({ ops.sum((f(unpack(list)))) }) end)
                    if ok then error("backward went through", 0) end
                    if not err:find("derivative of .* is not implemented") then error(err, 0) end
                  end)
                  checked = true
                end
              end
            end
          end
        end
        if checked then ops_first = ops_first + 1 end
        if checked and checked_twice then ops_second[#ops_second + 1] = op.name end
        local ok, err = pcall(first.check)
        second.check()
        if not ok then error(err, 0) end
      end)
    else
      it(S.title(op) .. " gives no gradient", function()
        for i, text in ipairs(op.samples) do
          first.case(("%s sample %d"):format(op.name, i), function()
            local base = S.evaluate(text, { seed = S.seed + i })
            local args = S.map(op, base, function(t, a)
              return S.dtype_of(t) == "float64" and not (a and a.mutated) and B.set_requires_grad(t, true) or t
            end)
            local r = call(op.name, args)
            if r ~= nil and B.requires_grad(r) then error("the result requires grad", 0) end
          end)
        end
        first.check()
      end)
    end
  end

  it("ran", function()
    local missing = {}
    for m in pairs(without) do missing[#missing + 1] = m end
    table.sort(missing)
    local text = "  gradcheck of %d/%d ops in %d cases, gradgradcheck of %d/%d in %d; without second derivative: %s\n"
    io.write(text:format(ops_first, ops_total, first.total, #ops_second, ops_total, second.total,
      table.concat(missing, ", ")))
    assert.is_true(first.total > 0)
    if not os.getenv("MOTH_OP") and S.fraction == 1 then
      assert.is_true(#ops_second >= 0.8 * ops_total, "gradgradcheck of 80 % of the ops")
    end
  end)
end)
