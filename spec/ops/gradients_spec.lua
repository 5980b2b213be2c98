-- Derivatives of every op record: gradcheck and gradgradcheck of its samples in float64, in-place variants too.
local S = require "ops.support"
local B = require "moth_lua"
local check = require "moth.autograd.gradcheck"
local ops = B.ops

local first, second = S.counter("gradcheck"), S.counter("gradgradcheck")
local ops_total, ops_first, ops_second, without = 0, 0, {}, {}

local call, differentiable = S.call, S.differentiable
local has_derivative, as_function = S.has_derivative, S.as_function

describe("gradients #M500", function()
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
