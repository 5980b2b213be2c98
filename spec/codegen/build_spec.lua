-- What a new op makes the build compile again: the generator runs on a copy of the table, as it is and with a record
-- more, and the files that differ are those that make would compile.
local luajit = os.getenv("LUAJIT") or "luajit"

local function shell(command, ...)
  local pipe = assert(io.popen(("{ unset LD_PRELOAD; %s; } 2>&1; echo $?"):format(command:format(...))))
  local output, status = pipe:read("*a"):match("^(.-)(%d+)\n$")
  pipe:close()
  return output, tonumber(status)
end

local function must(...)
  local output, status = shell(...)
  assert.equal(0, status, output)
  return output
end

local function edit(path, from, to)
  local f = assert(io.open(path))
  local text = f:read("*a")
  f:close()
  local at, last = text:find(from, 1, true)
  assert(at, from)
  f = assert(io.open(path, "w"))
  f:write(text:sub(1, at - 1), to, text:sub(last + 1))
  f:close()
end

describe("the build", function()
  local dir, before

  -- md5 of all that is generated: name -> sum
  local function generated()
    local output, status = shell("rm -rf %s/gen && %s %s/src/ops/gen.lua %s/gen", dir, luajit, dir, dir)
    if status ~= 0 then return nil, output end
    local sums = {}
    for sum, name in must("cd %s/gen && find . -type f | xargs md5sum", dir):gmatch("(%x+)%s+%./([^\n]+)\n") do
      sums[name] = sum
    end
    return sums
  end

  -- The C files and headers that are new or other than before.
  local function changed()
    local now = assert(generated())
    local sources, headers = {}, {}
    for name, sum in pairs(now) do
      if before[name] ~= sum and name:find("%.c$") then sources[#sources + 1] = name end
      if before[name] ~= sum and name:find("%.h$") and not name:find("^cuda/") then headers[#headers + 1] = name end
    end
    table.sort(sources)
    table.sort(headers)
    return sources, headers
  end

  -- A copy of the tree: what is edited as files, the rest as links.
  setup(function()
    dir = must("mktemp -d"):match("%S+")
    must([[mkdir -p %s/src %s/kernels && cp -r src/ops %s/src/ops &&
      for d in src/*; do d=$(basename $d); [ $d = ops ] || ln -s $PWD/src/$d %s/src; done && ln -s $PWD/lua %s/lua &&
      ln -s $PWD/kernels/* %s/kernels && rm %s/kernels/math_float.h && cp kernels/math_float.h %s/kernels]], dir, dir,
      dir, dir, dir, dir, dir, dir)
    before = assert(generated())
  end)
  after_each(function() must("cp -r src/ops %s/src && cp kernels/math_float.h %s/kernels", dir, dir) end)
  teardown(function() os.execute("rm -rf " .. dir) end)

  it("has tables of those levels alone that it is for", function()
    must('%s %s/src/ops/gen.lua %s/own "generic avx2 avx512" "generic avx512"', luajit, dir, dir)
    assert.equal("", (must("cd %s/own && ls kernels | grep _avx2 || true", dir)))
    assert.equal("", (must("cd %s/own && grep -l _avx2 *.c || true", dir)))
    assert.matches("{true, false, true}", must("cat %s/own/levels.h", dir), 1, true)
    -- A level that is not built has the kernels of the one below.
    assert.matches("add_float32_generic, add_float64_generic, add_float16_generic, add_bfloat16_generic}, "
      .. "(const MothLoop[]){add_float32_generic,", must("grep moth_loops_add %s/own/loops.c", dir), 1, true)
  end)

  it("compiles a chunk of loops of each float dtype for a new pointwise op, and no other kernel", function()
    edit(dir .. "/src/ops/activation.lua", "return {\n", [[return {
{ "twice_relu(Tensor self) -> Tensor",
  kind = "pointwise", scalar = "twice_relu", promote = "float", inplace = true,
  grad = { self = "where(gt(self, 0), grad * 2, 0)" },
  ref = "return a > 0 and 2 * a or 0", samples = { "randn(3,4)" }, doc = "Twice relu.",
},
]])
    edit(dir .. "/kernels/math_float.h", "MOTH_FN real m_relu6(", [[
MOTH_FN real m_twice_relu(real x) {
  return x < 0 ? 0 : 2 * x;
}
MOTH_FN real m_relu6(]])
    local sources, headers = changed()
    assert.is_true(#sources <= 15, table.concat(sources, " "))
    local kernels = {}
    for _, name in ipairs(sources) do
      if name:find("^kernels/") then kernels[#kernels + 1] = name:match("^kernels/pointwise_%d+_%w+_") or name end
    end
    assert.equal(6, #kernels, table.concat(kernels, " "))
    for i, name in ipairs(kernels) do assert.equal(kernels[i < 4 and 1 or 4], name) end -- sorted; each at three levels
    -- Only families of ops and kernels include these; layout.h, the two ends of a device's library.
    assert.same({ "layout.h", "moth_ops.h", "ops/activation.h", "unpack/activation.h" }, headers)
  end)

  it("needs no more than a record for a reduction by a simple join", function()
    edit(dir .. "/src/ops/reduce.lua", "return {\n", [[return {
{ "root_mean_square(Tensor self, Dim[]? dim=none, bool keepdim=false) -> Tensor",
  kind = "reduce", out = "self.dtype", map = "square(x)", join = "sum", finish = "sqrt(s0 / count)",
  grad = "unimplemented", none = "a spec", samples = { "randn(3,4)" }, doc = "sqrt(mean(x^2)).",
},
]])
    local sources = changed()
    local text = must("cd %s/gen && cat reduce_loops.h reductions.c cuda/reduce_ops.h cuda/reduce_cases.h", dir)
    assert.matches("static void block_root_mean_square(const stored *a", text, 1, true)
    assert.matches("m_square(LOAD(a[c]))", text, 1, true)
    assert.matches("return m_sqrt_f64(m_div_f64(s0, count));", text, 1, true)
    assert.matches("struct Reduce_root_mean_square", text, 1, true)
    assert.matches("return reduce_of<Reduce_root_mean_square>", text, 1, true)
    for _, name in ipairs(sources) do assert.is_nil(name:match("^kernels/pointwise")) end
  end)

  it("needs no more than a record for a running result by a simple join", function()
    edit(dir .. "/src/ops/reduce.lua", "return {\n", [[return {
{ "largest_square(Tensor self, Dim dim) -> Tensor",
  kind = "scan", out = "self.dtype", map = "square(x)", join = "max",
  grad = "unimplemented", none = "a spec", samples = { "randn(3,4), 1" }, doc = "Largest square so far.",
},
]])
    local sources = changed()
    local text = must("cd %s/gen && cat scan_loops.h reductions.c cuda/reduce_ops.h cuda/scan_cases.h ops_reduce.c",
      dir)
    assert.matches("static void scan_rows_largest_square(void *out", text, 1, true)
    assert.matches("acc = m_join_max((real)m_square(LOAD(a[i])), acc);", text, 1, true)
    assert.matches("struct Scan_largest_square", text, 1, true)
    assert.matches("return scan_of<Scan_largest_square>", text, 1, true)
    assert.matches("moth_reduction_largest_square = {MOTH_SCAN_LARGEST_SQUARE, MOTH_JOIN_MAX, 0, 0}", text, 1, true)
    assert.matches("{[MOTH_CPU] = moth_cpu_scan}", text, 1, true)
    for _, name in ipairs(sources) do assert.is_nil(name:match("^kernels/pointwise")) end
    edit(dir .. "/src/ops/reduce.lua", 'map = "square(x)", join = "max"', 'map = "square(x)", join = "any"')
    local sums, message = generated()
    assert.is_nil(sums)
    assert.matches("src/ops/reduce.lua:%d+: largest_square: there is no moth_cpu_largest_square", message)
  end)

  it("refuses a map or finish that names no formula, with the record's place", function()
    edit(dir .. "/src/ops/reduce.lua", 'join = "sum", finish = "s0 / count"', 'map = "sqaure(x)", join = "sum"')
    local sums, message = generated()
    assert.is_nil(sums)
    assert.matches("src/ops/reduce.lua:%d+: mean: map: .*sqaure", message)
  end)
end)
