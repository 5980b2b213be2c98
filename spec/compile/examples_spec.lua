-- The examples of compile, short: each compares compiled results with eager's and ends with an error where they differ.
-- Times are printed, never checked.
local build = os.getenv("MOTH_BUILD") or "build"

local function example(name, ...)
  local pipe = assert(io.popen(("MOTH_LUAJIT_WARNING=0 %s/moth examples/%s.lua %s 2>&1; echo $?"):format(build, name,
    table.concat({ ... }, " "))))
  local text, status = pipe:read("*a"):match("^(.-)(%d+)\n$")
  pipe:close()
  assert.equal("0", status, text)
  return text
end

local small = "--batch 1 --length 16 --width 32 --heads 2 --runs 2"

describe("example #noasan", function()
  it("bench_compile: a block, and the ceiling on this machine #M294 #M298", function()
    local text = example("bench_compile", small)
    assert.matches("inference on %w+, 1 x 16 x 32", text)
    assert.matches("Eager: [%d.]+ ms\nCompiled: [%d.]+ ms\n", text)
    assert.matches("products and attention are %d+ %% of eager's time, so [%d.]+ is the ceiling", text)
  end)
  it("bench_compile --train: with AdamW #M295", function()
    assert.matches("training step on .*equal results.*is the ceiling", example("bench_compile", "--train", small))
  end)
  it("bench_compile_cases: a chain, a product, breaks #M296 #M322 #M323", function()
    local text = example("bench_compile_cases", 2000, 32, 2)
    assert.matches("10 element%-wise ops +[%d.]+ times as fast, 1 graph", text)
    assert.matches("one product +[%d.]+ times as fast, 1 graph", text)
    assert.matches("with breaks +[%d.]+ times as fast, 4 graph", text)
  end)
  it("compile_block: forward and backward of a transformer block #M309", function()
    assert.matches("12 gradients are equal.*eager  |  compiled", example("compile_block", 2, 32))
  end)
  it("compile_linear_softmax: one product, one softmax #M307", function()
    local text = example("compile_linear_softmax")
    assert.matches("linear%(x1, attr_1, attr_2%).*softmax%(%%1, 2%)", text)
    assert.matches("rows add up to 1%.0000", text)
  end)
  it("lab_compile: run, capture, compile, dump, measure #M315", function()
    local text = example("lab_compile")
    assert.matches("1%. eager: 6 ops, .*: add mul relu sigmoid tanh\n", text)
    assert.matches("%%5 = mul%(%%3, %%4%)", text)
    assert.matches("it does: [^\n]+\n5%. times", text)
  end)
  it("compile_minigpt: each mode, and how long the first call takes #M316 #M324", function()
    local text = example("compile_minigpt", 2, 32, 2)
    assert.matches("\n?default +first call [%d.]+ s, of these compiling [%d.]+ s", text)
    assert.matches("reduce%-overhead .*max%-autotune ", text)
  end)
end)
