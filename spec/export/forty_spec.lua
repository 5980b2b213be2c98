-- Forty functions that compute with sizes, each at sizes far from the example: right, or refused by name.
local moth = require "moth"
local F = moth.nn.functional

local right = {
  ["a minimum"] = function(x) return x:narrow(1, 1, math.min(x:size(1), 4096)) end,
  ["a maximum"] = function(x) return F.pad(x, { 0, math.max(0, 512 - x:size(1)) }) end,
  ["both"] = function(x) return x:narrow(1, 1, math.max(2, math.min(x:size(1) - 1, 2000))) end,
  ["a floor"] = function(x) return x + math.floor(x:size(1) / 5000) end,
  ["a ceiling"] = function(x)
    local n = x:size(1)
    return x:narrow(1, 1, math.floor(n / math.ceil(n / 16)))
  end,
  ["a rest"] = function(x) return x * (x:size(1) % 300) end,
  ["a negative rest"] = function(x) return F.pad(x, { 0, -#x % 64 }) end,
  ["a quotient"] = function(x) return x * ((#x - #x % 3) / 3) end,
  ["a root"] = function(x) return x / math.sqrt(x:size(1)) end,
  ["the floor of a root"] = function(x)
    local s = math.floor(math.sqrt(x:size(1)))
    return x:narrow(1, 1, s * s):view(s, s):sum(1)
  end,
  ["a logarithm"] = function(x) return x * math.log(x:size(1)) end,
  ["the next power of two"] = function(x)
    local n = x:size(1)
    return F.pad(x, { 0, 2 ^ math.ceil(math.log(n) / math.log(2)) - n })
  end,
  ["a distance"] = function(x) return x * math.abs(x:size(1) - 400) end,
  ["a product"] = function(x) return x * (x:size(1) * (x:size(1) - 1) / 2) end,
  ["the last half"] = function(x)
    local n, h = x:size(1), math.floor(x:size(1) / 2)
    return x:narrow(1, 1, h):sum() - x:narrow(1, h + 1, n - h):sum()
  end,
  ["the size of a part"] = function(x)
    local y = x:narrow(1, 1, math.min(x:size(1), 3000))
    return y / y:size(1)
  end,
  ["the size of two parts"] = function(x)
    local y = moth.cat { x, x }
    local z = y:narrow(1, 1, math.min(#y, 5000))
    return z:sum() / z:numel() + z:view(-1, 1):size(1)
  end,
  ["positions"] = function(x) return x + moth.arange(x:size(1)) end,
  ["a window of positions"] = function(x)
    return (moth.arange(x:size(1)) - #x):abs():le(math.min(x:size(1), 128)):float() + x
  end,
  ["an element from the end"] = function(x) return x[x:size(1)] end,
  ["a slice"] = function(x) return x[{ { 1, math.floor((x:size(1) + 1) / 2) } }] end,
  ["a stride"] = function(x) return x:view(-1, 1):expand(-1, 3):stride(1) * x end,
  ["copies"] = function(x) return x:unsqueeze(1):expand(math.min(x:size(1), 8), -1):sum(1) end,
  ["the largest"] = function(x) return (x:topk(math.min(5, x:size(1)))) end,
  ["windows"] = function(x) return x:unfold(1, 2, 2):sum(2) end,
  ["a pooling"] = function(x) return F.avg_pool1d(x:view(1, 1, -1), 2) end,
  ["an adaptive pooling"] = function(x) return F.adaptive_avg_pool1d(x:view(1, 1, -1), 3) end,
  ["a resize"] = function(x) return F.interpolate(x:view(1, 1, -1), { scale_factor = 0.5 }) end,
  ["two chunks"] = function(x)
    local a = x:chunk(2)
    return a[1]:sum() + a[2]:sum() * 2
  end,
  ["a number that is returned"] = function(x) return x, math.max(x:size(1) - 2000, 0) end,
  ["a branch on elements"] = function(x)
    local n = x:size(1)
    return moth.cond(x:sum():gt(0), function(v) return v * n end, function(v) return v - math.min(n, 777) end, { x })
  end,
}

-- The function, and the sizes that it refuses among those below.
local compared = {
  ["a branch on large sizes"] = { function(x) return x:size(1) > 4096 and x * 2 or x end, { 4097, 8192 } },
  ["a branch on one size"] = { function(x) return x:size(1) == 300 and x * 2 or x end, { 300 } },
  ["a branch on elements' number"] = { function(x) return x:numel() >= 4096 and x - 1 or x end, { 4096, 4097, 8192 } },
  ["a choice of names"] = { function(x)
    return ({ "relu", "neg" })[1 + (x:size(1) > 2000 and 1 or 0)] == "relu" and x:relu() or -x
  end, { 4095, 4096, 4097, 8192 } },
}

local refused = {
  ["a branch that alternates"] = { function(x) return x:size(1) % 2 == 0 and x:view(-1, 2):sum(2) or x end,
    "calls depend on a size.*compares: .* == 0 at .*forty_spec.lua:%d+, but not with n = 5" },
  ["steps of constants"] = { function(x) return x * (#x < 128 and 1 or #x < 1024 and 2 or 3) end,
    "argument 2 of mul .*compares: n < 128 at .*forty_spec.lua:%d+, but not with n = %d+" },
  ["a choice of constants"] = { function(x) return x:narrow(1, 1, #x > 1000 and 1000 or #x) end,
    "argument 4 of narrow .*compares: n <= 1000 at .*forty_spec.lua:%d+, but not with n = %d+" },
  ["a loop"] = { function(x)
    for i = 1, x:size(1) do x = x + i end
    return x
  end, "the calls depend on a size: with n = 4 .*forty_spec.lua" },
  ["a loop of halves"] = { function(x)
    local n, k = x:size(1), 0
    while n > 1 do n, k = math.floor(n / 2), k + 1 end
    return x * k
  end, "argument 2 of mul .*forty_spec.lua:%d+" },
  ["the key of a table"] = { function(x) return x * (({ [4] = 2, [300] = 3 })[x:size(1)] or 1) end,
    "argument 2 of mul .*forty_spec.lua:%d+" },
  ["bits"] = { function(x) return x * bit.band(x:size(1), 3) end, "band.*HINT: n may have any size" },
  ["parts of a size each"] = { function(x) return #x:split(64) * x end, "calls depend on a size" },
}

describe("functions of sizes", function()
  local sizes = { 2, 7, 300, 4095, 4096, 4097, 8192 }
  local function dims() return { dynamic_shapes = { { [1] = moth.Dim("n", { min = 2 }) } } } end
  local function check(name, f, outside)
    local ep = moth.export(f, { moth.arange(4):float() }, dims())
    local refuses = {}
    for _, n in ipairs(outside) do refuses[n] = true end
    for _, n in ipairs(sizes) do
      local x = moth.randn(n)
      local want, got = { f(x) }, { pcall(ep, x) }
      if refuses[n] then
        assert.is_false(got[1])
        assert.matches("was recorded where .* at .*forty_spec.lua:%d+; got n = " .. n, got[2])
      else
        assert(got[1], got[2])
        assert.is_true(moth.equal(want[1], got[2]), ("%s, n = %d"):format(name, n))
        assert.equal(want[2], got[3])
      end
    end
  end
  for name, f in pairs(right) do
    it("are right at any size: " .. name, function() check(name, f, {}) end)
  end
  for name, of in pairs(compared) do
    it("are right, or say where: " .. name, function() check(name, of[1], of[2]) end)
  end
  for name, of in pairs(refused) do
    it("are refused by name: " .. name, function()
      assert.error_matches(function() moth.export(of[1], { moth.arange(4):float() }, dims()) end, of[2])
    end)
  end
end)
