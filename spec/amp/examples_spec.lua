-- The examples of mixed precision and memory in a short form, each started by `moth` from another directory.
local function output(command)
  local pipe = assert(io.popen(command .. " 2>&1; echo $?"))
  local text = pipe:read("*a")
  pipe:close()
  return text:match("^(.-)(%d+)\n$")
end

local here = output("pwd"):match("[^\n]+")
local build = os.getenv("MOTH_BUILD") or "build"
if build:sub(1, 1) ~= "/" then build = here .. "/" .. build end

local function example(name, options)
  local text, status = output(("cd / && env -u LUA_PATH -u LUA_CPATH %s/moth %s/examples/%s.lua %s"):format(build, here,
    name, options or ""))
  assert.equal("0", status, text)
  return text
end
local function numbers(text, pattern)
  local list = { text:match(pattern) }
  assert.is_truthy(list[1], pattern .. " is not in\n" .. text)
  for i, v in ipairs(list) do list[i] = tonumber(v) end
  return unpack(list)
end

describe("example", function()
  it("amp_fp16: scale, unscale_, clip, step, update train #M260", function()
    local text = example("amp_fp16", "--steps 100")
    local first, last, right = numbers(text, "loss ([%d.]+) %-> ([%d.]+), ([%d.]+) %% right")
    assert.is_true(last < 0.2 * first and right > 90, text)
  end)

  it("amp_study: the same accuracy in three precisions #M265", function()
    local text = example("amp_study", "--quick")
    local full = numbers(text, "float32 .- ([%d.]+) %%")
    assert.is_true(math.abs(numbers(text, "\nfloat16.- ([%d.]+) %%") - full) < 6, text)
    assert.is_true(math.abs(numbers(text, "\nbfloat16.- ([%d.]+) %%") - full) < 6, text)
  end)

  it("bf16_vs_fp16: range, precision, scaler #M268", function()
    local text = example("bf16_vs_fp16")
    assert.is_truthy(text:find("bfloat16 70144   float16 inf", 1, true), text)
    assert.is_truthy(text:find("float16, GradScaler   1e-08", 1, true), text)
  end)

  it("bench_amp, bench_compile_amp: print their tables #slow #M264 #M267", function()
    assert.is_truthy(example("bench_amp", "--quick"):find("saved by forward (MB)", 1, true))
    assert.is_truthy(example("bench_compile_amp", "--quick"):find("compiled, bfloat16", 1, true))
  end)

  it("checkpoint24: the same gradients, a lower peak #slow #M328", function()
    local text = example("checkpoint24")
    local plain = numbers(text, "plain: +([%d.]+) MB")
    local less = numbers(text, "checkpointed: +([%d.]+) MB")
    assert.is_true(less < 0.7 * plain, text)
    assert.is_truthy(text:find("the gradients are the same: true", 1, true), text)
  end)

  it("bench_checkpoint: a twelfth of the activations, the square root of them #slow #M329 #M330 #M331", function()
    local text = example("bench_checkpoint", "--quick")
    assert.is_true(numbers(text, "saved: 1/([%d.]+)") > 5, text)
    assert.is_true(numbers(text, "N = 256 .- plain 256 +checkpointed +([%d.]+)") < 40, text)
  end)

  it("bench_autograd_memory: four ways in the order of their memory #M332", function()
    local text = example("bench_autograd_memory", "--quick")
    local forward = numbers(text, "forward only %(no gradients%) +([%d.]+)")
    local both = numbers(text, "forward %+ backward +([%d.]+)")
    local less = numbers(text, "with checkpoints +([%d.]+)")
    local parts = numbers(text, "accumulation %(8 parts%) +([%d.]+)")
    assert.is_true(forward < parts and parts < less and less < both, text)
    local wanted = "memory forward only < accumulation < with checkpoints < forward + backward: holds\n"
    assert.is_truthy(text:find(wanted, 1, true), text)
    -- Of the time the example says itself whether it holds: specs compare no times.
    assert.is_truthy(text:find("time   forward only < forward + backward < accumulation < with checkpoints: ", 1, true))
  end)

  it("checkpoint_manual: by hand, with the same gradients #slow #M335", function()
    local text = example("checkpoint_manual", "--quick")
    local plain, manual = numbers(text, "plain +([%d.]+) MB.-by hand +([%d.]+) MB")
    assert.is_true(manual < 0.6 * plain, text)
    assert.is_truthy(text:find("the gradients are the same: true", 1, true), text)
  end)

  it("memory_tools: breakdown, modules, snapshots, a picture, a leak #M337 #M338 #M347", function()
    local path = os.tmpname() .. ".svg"
    finally(function() os.remove(path) end)
    local text = example("memory_tools", path)
    for _, part in ipairs { "optimizer state", "BatchNorm2d", "from one snapshot to the other", "held by losses",
      "cross_entropy", "112.00 GB" } do
      assert.is_truthy(text:find(part, 1, true), part .. " is not in\n" .. text)
    end
    assert.is_true(math.abs(numbers(text, "\ntotal[^\n]- ([+-][%d.]+) %%")) <= 5, text)
    assert.is_truthy(assert(io.open(path)):read("*a"):find("<svg", 1, true))
  end)
end)
