-- The examples of kernels, short: each compares itself with moth's ops and ends with an error where they differ.
local build = os.getenv("MOTH_BUILD") or "build"

local function example(name, ...)
  local pipe = assert(io.popen(("MOTH_LUAJIT_WARNING=0 %s/moth examples/%s.lua %s 2>&1; echo $?"):format(build, name,
    table.concat({ ... }, " "))))
  local text, status = pipe:read("*a"):match("^(.-)(%d+)\n$")
  pipe:close()
  assert.equal("0", status, text)
  return text
end

describe("example #M160 #noasan", function()
  it("relu_squared #M148", function()
    assert.matches("1025 elements on %l+: equal", example("kernels/relu_squared", 5000))
  end)
  it("vector_add #M149", function() assert.matches("as x %+ y", example("kernels/vector_add")) end)
  it("softmax #M150", function() assert.matches("this kernel .* GB/s", example("kernels/softmax", 16)) end)
  it("matmul #M151", function() assert.matches("bfloat16 70x67x75 on %l+", example("kernels/matmul", 70)) end)
  it("fused_mlp #M152", function() assert.matches("as the four ops", example("kernels/fused_mlp", 50)) end)
  it("flash_attention #M153", function() assert.matches("causal: largest", example("kernels/flash_attention", 70)) end)
  it("cuda_c #M154", function()
    local text = example "kernels/cuda_c"
    assert.is_truthy(text:find("CUDA is not there", 1, true) or text:find("sums of 50 rows are right", 1, true), text)
  end)
  it("bench_attention #M156", function() assert.matches("256 .* memory +compute", example("bench_attention", 256)) end)
  it("bench_launch #M157", function() assert.matches("\n +1000 .* us +", example("bench_launch", 2000)) end)
end)
