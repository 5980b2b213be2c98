-- Each op of amp.lists(), with its record's samples, under autocast: the dtype of what it gives.
local moth = require "moth"
local S = require "ops.support"

local policies = {}
for policy, names in pairs(moth.amp.lists()) do
  for _, name in ipairs(names) do policies[name] = policy end
end

-- The sample's floats in one dtype, or in several by turns.
local function cast(op, args, dtypes)
  local k = 0
  return S.map(op, args, function(t)
    if S.class[S.dtype_of(t)] ~= "float" then return t end
    k = k + 1
    return S.cast(t, dtypes[(k - 1) % #dtypes + 1])
  end), k
end

describe("amp.lists()", function()
  local seen = 0
  for _, op in ipairs(S.selected()) do
    local policy = policies[op.name]
    if policy and op.samples then
      seen = seen + 1
      it(("%s is of the policy '%s' #M252"):format(op.name, policy), function()
        for i, text in ipairs(op.samples) do
          local base = S.evaluate(text, { seed = S.seed + i })
          for low, other in pairs { float16 = "float32", bfloat16 = "float32" } do
            local of = policy == "low" and { "float32" } or { low }
            local expected = policy == "low" and low or "float32"
            local args, floats = cast(op, base, of)
            if floats > 0 then
              if policy == "widest" then
                expected = low
                if floats > 1 then args, expected = cast(op, base, { low, other }), other end
              end
              local result = moth.amp.autocast({ dtype = low }, function() return (S.call(op.name, args)) end)
              local got = S.dtype_of(result)
              if S.class[got] == "float" then
                assert.equal(expected, got, ("%s(%s) with %s"):format(op.name, text, low))
              end
            end
          end
        end
      end)
    end
  end

  it("has ops of all three policies", function()
    if not os.getenv "MOTH_OP" then assert.is_true(seen > 80) end
  end)
end)
