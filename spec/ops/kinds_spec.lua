-- The properties of kinds (src/ops/kinds.lua) are true of the kernels, on the samples of every record: the memory of
-- results, arguments that are written to, equal results of equal calls, random numbers.
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local is_tensor = B.is_tensor

local function pack(...) return { n = select("#", ...), ... } end

-- All tensors among the arguments, with the record of their argument.
local function tensors_of(op, args)
  local list = {}
  S.map(op, args, function(t, a)
    list[#list + 1] = { t, a }
    return t
  end)
  return list
end

local function call(op, args)
  if op.factory and S.device ~= "cpu" then
    args = { n = args.n + 1, unpack(args, 1, args.n) }
    args[args.n] = { device = S.device }
  end
  return pack(B.ops[op.name](unpack(args, 1, args.n)))
end

local function check(op, text, seed)
  local args = S.evaluate(text, { seed = seed })
  local given, before = tensors_of(op, args), {}
  for i, g in ipairs(given) do before[i] = B.version(g[1]) end
  moth.manual_seed(5)
  local state = table.concat(moth.get_rng_state(), " ")
  local results = call(op, args)
  local drew = state ~= table.concat(moth.get_rng_state(), " ")
  if drew and not op.draws then error("it takes random numbers", 0) end

  local written = {}
  for _, name in ipairs(op.writes or {}) do written[name] = true end
  for i, g in ipairs(given) do
    local a = g[2]
    if B.version(g[1]) ~= before[i] and not (a and written[a.name]) then
      error("it writes to " .. (a and a.name or "an option"), 0)
    end
  end
  if op.memory == "none" and results.n > 0 then error("it has results", 0) end
  for k = 1, results.n do
    local r = results[k]
    if is_tensor(r) and B.numel(r) > 0 then
      for i, g in ipairs(given) do
        local shares = B.numel(g[1]) > 0 and B.shares_storage(r, g[1])
        if op.memory == "new" and shares then error("a result lies in the memory of an argument", 0) end
        if (op.memory == "view" or op.memory == "self") and i == 1 and not shares then
          error("its result has other memory than " .. op.args[1].name, 0)
        end
      end
    end
  end
  if op.memory == "new" or op.memory == "view" then
    local again = call(op, S.evaluate(text, { seed = seed })) -- with the generator's state after the first call
    for k = 1, results.n do
      if op.repeats and S.bytes(results[k]) ~= S.bytes(again[k]) then error("twice the same gives other results", 0) end
    end
  end
end

describe("what kinds decide", function()
  for _, op in ipairs(S.selected()) do
    it("is true of " .. S.title(op), function()
      for i, text in ipairs(op.samples) do
        local ok, err = pcall(check, op, text, S.seed + i)
        assert(ok, ("sample %d, %s: %s"):format(i, text, tostring(err)))
      end
    end)
  end

  it("is shown by describe", function()
    local function says(name, text) assert.matches(text, moth.ops.describe(name)) end
    says("transpose", "results%s+a view of self")
    says("copy_", "results%s+self, written to")
    says("copy_", "writes self")
    says("sgd_step", "results%s+none")
    says("randn", "takes random numbers")
    says("mul", "equal calls are one")
    says("softmax", "decompose%s+local x = when%(given%(dtype%).-\n    local e = exp")
    assert.is_nil(moth.ops.describe("sgd_step"):find("equal calls", 1, true))
    says("var", "finish%s+s2 / %(s0 %- correction%)")
    says("conv2d", "over%s+c < weight.shape%[1%], ky < ")
    says("adam_step", "over%s+exp_avg = exp_avgs, ")
    says("sort", "calls%s+dropped if unused; equal calls are one")
  end)

  it("covers every record, with the kinds of the table", function()
    local names, counted = {}, {}
    for name in ([[pointwise view reduce scan gather scatter matmul window random factory fused effect extern
      composite]]):gmatch("%a+") do names[name] = true end
    for _, op in ipairs(S.records) do
      assert(names[op.kind], op.name .. ": " .. op.kind)
      counted[op.kind] = true
      -- No other record is compared with nothing: what its fields say is a reference, too (records_spec).
      -- Collectives are compared in spec/distributed/ops_spec.lua, between ranks.
      local says = op.draws or op.join or op.decompose or op.loop or op.contract or op.collective
      assert.equal(op.none ~= nil and op.kind ~= "composite" and not says, op.name == "empty", op.name)
    end
    for name in pairs(names) do assert(counted[name], "no record is of kind " .. name) end
  end)
end)
