-- Every sample of every op record, compiled: results, gradients, versions, histories and effects are eager's, to the
-- bit, when the call is recorded and when it is followed.
local B = require "moth_lua"
local moth = require "moth"
local O = require "ops.support"
local S = require "compile.support"
local ops = B.ops

-- The call of a sample in a program: an op before and one behind, so that it has lazy arguments and results are used.
local function program(op, name)
  local call = ops[name]
  return function(...)
    local given = { n = select("#", ...), ... }
    local args = { n = given.n }
    for i = 1, given.n do
      local v = given[i]
      if B.is_tensor(v) and B.tensor_dtype(v).is_floating_point and not (i == 1 and name ~= op.name) and
        not (op.args[i] and op.args[i].mutated) then
        v = ops.mul(v, 1)
      end
      args[i] = v
    end
    local out = { call(unpack(args, 1, args.n)) }
    for i = 1, #out do
      if B.is_tensor(out[i]) and B.tensor_dtype(out[i]).is_floating_point then out[#out + 1] = ops.mul(out[i], 2) end
    end
    return unpack(out)
  end
end

-- Ops whose results are whatever the memory held.
local function is_undefined(op) return op.name:find("^empty") ~= nil end

for _, backend in ipairs { "eager", "aot_eager" } do
describe("compiled ops, backend " .. backend .. ":", function()
  for _, op in ipairs(O.selected()) do
    if not op.internal and not is_undefined(op) then
      it(O.title(op), function()
        for i, text in ipairs(op.samples or {}) do
          for _, dtype in ipairs { "float32", "float64" } do
            local names = { op.name, op.inplace and op.name .. "_" or nil }
            for _, name in ipairs(names) do
              for _, grad in ipairs { false, true } do
                local function make()
                  local base = O.evaluate(text, { seed = 50 + i })
                  local list = O.map(op, base, function(t, a)
                    local float = O.dtype_of(t) == "float64"
                    t = float and ops.to(t, { dtype = dtype, copy = true }) or ops.clone(t)
                    if grad and B.tensor_dtype(t).is_floating_point and not (a and a.mutated) then
                      t = ops.mul(B.set_requires_grad(t, true), 1)
                    end
                    return t
                  end)
                  return { n = list.n or #op.args, unpack(list, 1, list.n or #op.args) }
                end
                local f = program(op, name)
                local compiled = moth.compile(f, { backend = backend })
                local want = S.outcome(f, make)
                for round = 1, 3 do
                  local got = S.outcome(compiled, make)
                  if got ~= want then
                    error(("%s, sample %d %s, %s, grad %s, call %d:\n%s\n--- eager:\n%s"):format(name, i, text, dtype,
                      tostring(grad), round, got, want), 0)
                  end
                end
              end
            end
          end
        end
      end)
    end
  end
end)
end

-- Errors that depend on elements, which are raised where the call runs, as are all of collectives. All others are
-- raised where it is recorded.
local late = { "out of range", "between 1 and", "singular", "positive%-definite", "infinite or NaN", "selects",
  "length of", "is the blank", "probability must", "number or a 0%-dim", "must rise", "add up to" }

it("compiled ops raise their errors at their lines, in eager's words", function()
  local count = 0
  for _, op in ipairs(O.selected()) do
    local call = ops[op.name]
    for _, e in ipairs(call and op.errors or {}) do
      local made, given = pcall(O.evaluate, e[1], { seed = 1 })
      local n = made and (given.n or #given)
      local passed, message = pcall(call, unpack(made and given or {}, 1, n))
      local by_elements = op.name:find("^comm_") ~= nil -- what group there is is known where the call runs
      for _, pattern in ipairs(late) do by_elements = by_elements or tostring(message):find(pattern) ~= nil end
      if made and not passed and not by_elements then
        count = count + 1
        local compiled = moth.compile(function(...) return pcall(call, ...) end, { backend = "eager" })
        local ran, ok, got = pcall(compiled, unpack(given, 1, n))
        assert.is_true(ran and not ok, ("%s(%s): %s"):format(op.name, e[1], tostring(ok)))
        assert.equal(S.message(message), S.message(got))
      end
    end
  end
  assert.is_true(count > 500 or os.getenv("MOTH_OP") ~= nil)
end)
