-- The examples of several processes, in a short form, each by `moth run` from another folder.
local here = io.popen "pwd":read "*l"
local build = package.cpath:match "([^;]*)/%?%.so" or "build"
if build:sub(1, 1) ~= "/" then build = here .. "/" .. build end

-- Runs an example on n ranks; returns its output and its exit code.
local function run(n, name, args)
  local command = "cd / && MOTH_LUAJIT_WARNING=0 timeout -s KILL 60 env -u LUA_PATH -u LUA_CPATH "
    .. "%s/moth run --nproc-per-node %s %s/examples/%s.lua %s 2>&1; echo $?"
  local p = io.popen(command:format(build, n, here, name, args or ""))
  local text = p:read "*a"
  p:close()
  return text:match "^(.-)(%d+)\n$"
end

local function example(n, name, args, ...)
  local text, code = run(n, name, args)
  assert.equal("0", code, text)
  for _, pattern in ipairs { ... } do assert.matches(pattern, text) end
  return text
end

describe("example", function()
  it("dist_hello #M356", function() example(2, "dist_hello", "", "rank 1 of 2", "rank 0 of 2", "1 is 3") end)
  it("manual_allreduce #M371", function() example(2, "manual_allreduce", "", "differ by at most", "at most %d") end)
  it("ddp_minimal #M408 #M365", function() example(2, "ddp_minimal", "", "epoch 10, loss 0") end)
  it("ddp_resnet #M370", function()
    example(2, "ddp_resnet", "--steps 5 --batch 8", "2 processes: [%d.]+ ms a step, %d+ images a second",
      "one process: [%d.]+ ms a step for as many images; speedup [%d.]+\n")
  end)
  it("fsdp_gpt: trains where the whole does not #M380 #M381", function()
    local text = example(2, "fsdp_gpt", "--quick", "fully_shard: loss", "same limit, [%d.]+ MB: out of memory")
    local sent = tonumber(text:match "([%d.]+) times the parameters sent")
    assert.is_true(sent > 1.3 and sent < 1.6, text)
  end)
  it("tp_mlp: attention by heads, the MLP by its hidden layer #M388", function()
    example(2, "tp_mlp", "", "%[128, 64%] here", "forward: off by [%d.e-]+, 2 all_reduce",
      "sequence parallel: %[2, 8, 64%]")
  end)
  it("lab_patterns: DDP, FSDP, TP, PP by what they hold and send; which one; limits #M502", function()
    example(2, "lab_patterns", "", "DDP +cuts the batch +a rank holds 100 %%, sends +2%d%d%d KB: %d all_reduce",
      "FSDP +cuts parameters +a rank holds +50 %%, sends +3%d%d%d KB: %d all_gather, %d reduce_scatter",
      "TP +cuts matrices +a rank holds +50 %%, sends +%d%d KB: 1 all_reduce\n", "PP +cuts layers .-%d send, %d recv\n",
      "24 GB: DDP", "80 GB: FSDP %(", "80 GB: FSDP %+ TP", "bubble +27.27 %%", "1 break of a compiled graph")
  end)
  it("moe: experts over ranks", function()
    example(2, "moe", "--quick", "8 experts, 4 here", "step 60: %d+ %% right")
  end)
  it("fsdp_tp: tensor parallel and shards on a mesh #M391", function()
    example(8, "fsdp_tp", "", "DeviceMesh%(replica=2, dp=2, tp=2%)", "step 5", "are off by")
  end)
  it("ddp_gpt", function() example(2, "ddp_gpt", "--steps 10", "step 10: loss %d") end)
  it("pipeline #M389", function()
    local tmp = os.tmpname()
    local svg = tmp .. ".svg"
    example(2, "pipeline", "--schedule 1f1b --svg " .. svg, "rank 1 has 10 of 18", "bubble 11.1 %%",
      "after 60 steps 0.0")
    local f = io.open(svg)
    assert.matches("<svg", f:read "*a")
    f:close()
    os.remove(svg)
    os.remove(tmp)
  end)
  it("parallel_3d #M391", function() example(8, "parallel_3d", "", "rank 7: dp 1, pp 1, tp 1") end)
  it("local_sgd #M368", function() example(2, "local_sgd", "", "each  1 steps.-each  4 steps.-each 16 steps") end)
  it("fedavg #M369", function() example(2, "fedavg", "", "round 20: accuracy 0.[89]") end)
  it("elastic", function()
    example("2:3 --max-restarts 1", "elastic", "", "step 50: 2 ranks, 1 step is done again",
      "the end: %d ranks, step 200")
  end)
  it("hang #M399 #M397", function()
    example(2, "hang", "--fixed", "rank 1 has ended well")
    local text, code = run(2, "hang")
    assert.equal("1", code)
    assert.matches("timed out after 1 s in #3 all_reduce.-hang.lua:%d+: rank 1 .- has not called it", text)
  end)
end)
