-- The code generator as it is installed: kernels of the loop IR printed as C, compiled here, and compared with the ops.
local c = require "moth.codegen.c"
local cast = require "moth.codegen.cast"
local cuda = require "moth.codegen.cuda"
local dtypes = require "moth.codegen.dtypes"
local formulas = require "moth.codegen.formulas"
local ir = require "moth.codegen.ir"
local texts = require "moth.codegen.texts"
local moth = require "moth"
local ffi = require "ffi"

local reader = formulas.reader(function(name) return texts[name] end)

local libraries = {} -- one that is collected is closed

-- The loops of kernels for a dtype, compiled: name -> function.
local function compiled(kernels, dtype)
  local base = os.tmpname()
  local f = assert(io.open(base .. ".c", "w"))
  f:write(c.file(kernels, dtypes[dtype], reader, texts))
  f:close()
  local pipe = io.popen(("{ unset LD_PRELOAD; cc -std=gnu17 -O2 -Wall -Wextra -fPIC -shared -ffp-contract=off \z
    -fno-math-errno -o %s.so %s.c; } 2>&1"):format(base, base))
  local output = pipe:read("*a")
  pipe:close()
  assert.equal("", output)
  local library = ffi.load(base .. ".so")
  libraries[#libraries + 1] = library
  local list = {}
  for _, k in ipairs(kernels) do
    pcall(ffi.cdef, ("void %s(char **p, const int64_t *s, int64_t n, const double *k);"):format(k.name))
    list[k.name] = library[k.name]
  end
  os.execute(("rm -f %s %s.c %s.so"):format(base, base, base))
  return list
end

-- Runs a loop: out, then inputs; numbers. Strides in bytes.
local function run(loop, n, out, out_stride, inputs, strides, params)
  local p, s = ffi.new("char *[?]", #inputs + 1), ffi.new("int64_t[?]", #inputs + 1)
  p[0], s[0] = ffi.cast("char *", out:data()), out_stride
  for i, t in ipairs(inputs) do p[i], s[i] = ffi.cast("char *", t:data()), strides[i] end
  loop(p, s, n, ffi.new("double[?]", math.max(1, #(params or {})), params or {}))
end

describe("the code generator", function()
  it("prints a kernel of several formulas, whatever way its operands lie", function()
    local x, w = ir.load(1), ir.load(2)
    local line = ir.apply("add", ir.const("1.0"), x, ir.param(0))
    local k = { name = "fused_line", place = "a spec", inputs = { "element", "element" }, nparams = 1, out = "element",
      value = ir.apply("mul", ir.apply("tanh", line), ir.apply("sigmoid", w)) }
    local loop = compiled({ k }, "float32").fused_line
    for _, n in ipairs { 0, 1, 3, 1025, 300001 } do
      local a, b = moth.randn(n), moth.randn(n)
      local out = moth.empty(n)
      run(loop, n, out, 4, { a, b }, { 4, 4 }, { 2 })
      assert.is_true(moth.allclose(out, (a * 2 + 1):tanh() * b:sigmoid(), 1e-6, 1e-7))
    end
    local a, b, out = moth.randn(40), moth.randn(1), moth.full({ 20 }, 7)
    run(loop, 10, out, 8, { a, b }, { 16, 0 }, { -1 })
    local expected = (1 - a[{ { 1, 37, 4 } }]):tanh() * b:sigmoid()
    assert.is_true(moth.allclose(out[{ { 1, 19, 2 } }], expected, 1e-6, 1e-7))
    assert.is_true(out[{ { 2, 20, 2 } }]:eq(7):all():item())
  end)

  it("prints masks as bytes, and integers with their own formulas", function()
    local k = { name = "fused_where", place = "a spec", inputs = { "mask", "element" }, nparams = 0, out = "element",
      value = ir.apply("where", ir.load(1), ir.apply("div_floor", ir.load(2), ir.const("3")), ir.const("-1")) }
    local big = { name = "fused_big", place = "a spec", inputs = { "element" }, nparams = 1, out = "mask",
      value = ir.apply("gt", ir.load(1), ir.param(0)) }
    local loops = compiled({ k, big }, "int32")
    local x = moth.arange(-50, 50, 1, { dtype = moth.int32 })
    local mask, out, over = x:gt(-20), moth.empty(100, { dtype = moth.int32 }), moth.empty(100, { dtype = moth.bool })
    run(loops.fused_where, 100, out, 4, { mask, x }, { 1, 4 })
    assert.same(moth.where(mask, x:floor_divide(3), -1):totable(), out:totable())
    local number = ffi.new("union { int64_t i; double d; }")
    number.i = 12
    run(loops.fused_big, 100, over, 1, { x }, { 4 }, { number.d })
    assert.same(x:gt(12):totable(), over:totable())
  end)

  it("takes only the formulas that a kernel uses, under names of the dtype", function()
    local text = reader.text({ "m_sigmoid" }, dtypes.float64, {})
    assert.matches("MOTH_FN double m_sigmoid_f64(double x)", text, 1, true)
    assert.matches("m_exp_clamp__f64", text, 1, true)
    for _, no in ipairs { "%f[%w]real%f[%W]", "MOTH_REAL", "m_tanh", "m_digamma", "#" } do
      assert.is_nil(text:match(no), no)
    end
    assert.has_error(function() reader.text({ "m_tnah" }, dtypes.float32, {}) end,
      "there is no m_tnah for float32 in kernels/math*.h")
    assert.is_false(reader.has("m_exp", dtypes.int8.kind))
    -- Formulas that a file has are not printed again; those of bits are printed once for all dtypes.
    local done = {}
    assert.matches("m_f32_bits", reader.text({ "m_exp" }, dtypes.float32, done), 1, true)
    assert.equal("", reader.text({ "m_exp" }, dtypes.float16, done))
    assert.is_nil(reader.text({ "m_exp" }, dtypes.float64, done):match("\nMOTH_FN unsigned m_f32_bits"))
  end)

  it("knows each function of math*.h for each kind of number", function()
    local counted = 0
    for kind, d in ipairs { dtypes.float32, dtypes.float64, dtypes.int32, dtypes.uint8, dtypes.bool } do
      local all = reader.of(kind)
      local names = {}
      for i, def in ipairs(all.list) do names[i] = def.name end
      local text = reader.text(names, d, {})
      assert.equal(select(2, text:gsub("{", "")), select(2, text:gsub("}", "")))
      counted = counted + #names
    end
    assert.is_true(counted > 400)
  end)

  it("prints conversions that round once, from one description for C and CUDA", function()
    local text, names = cast.c(dtypes.float16)
    assert.same({ "copy_from_float32", "copy_from_float64", "copy_same" }, { names[1], names[2], names[3] })
    assert.matches("o[i] = (uint16_t)(m_f64_to_f16(m_i64_to_odd(a[i])));", text, 1, true)
    text = cast.cuda(dtypes.float16)
    assert.matches("operator()(double x) const { return (uint16_t)(m_f64_to_f16(x)); }", text, 1, true)
    assert.matches("operator()(float x) const { return (uint16_t)(f16_store((float)x)); }", text, 1, true)
    assert.matches("(uint16_t x) const { return (int8_t)(m_from_f32(f16_load(x))); }", cast.cuda(dtypes.int8), 1, true)
    assert.matches("operator()(float x) const { return (uint8_t)(x != 0); }", cast.cuda(dtypes.bool), 1, true)
  end)

  it("prints the same kernels for CUDA", function()
    local k = { name = "fused", place = "a spec", inputs = { "element", "mask" }, nparams = 1, out = "element",
      value = ir.apply("where", ir.load(2), ir.apply("exp", ir.load(1)), ir.param(0)) }
    local text = cuda.launch(k, dtypes.bfloat16, "fused_bfloat16", reader)
    assert.matches("uint16_t operator()(uint16_t a1, uint8_t a2) const", text, 1, true)
    assert.matches("m_f32_to_bf16(m_where_f32(a2, m_exp_f32(m_bf16_to_f32(a1)), k0))", text, 1, true)
    assert.matches("f.k0 = (float)p->params[0].d;", text, 1, true)
  end)
end)
