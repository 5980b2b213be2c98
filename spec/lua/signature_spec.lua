-- The reader of arguments for functions made in Lua: by position, by name, mixed, and what is wrong with a call.
local moth = require "moth"
local signature = require "moth.utils.signature"
local check = require "moth.utils.check"

local function echo(text)
  return signature(text, function(...) return { n = select("#", ...), ... } end)
end

local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
  assert.matches("signature_spec%.lua:%d+:", message)
end

describe("signature", function()
  local f = echo("f(Tensor x, count n, Dim dim=1, *, bool keep=false, dtype dtype?)")
  local x = moth.zeros(2)

  it("takes arguments by position, by name, and both", function()
    assert.same({ n = 5, x, 3, 1, false }, f(x, 3))
    assert.same({ n = 5, x, 3, 2, true }, f(x, 3, 2, { keep = true }))
    assert.same({ n = 5, x, 3, -1, false, moth.int8 }, f(x, { n = 3, dim = -1, dtype = moth.int8 }))
    assert.same({ n = 5, x, 3, 1, false }, f{ x = x, n = 3 })
    assert.same({ n = 5, x, 3, 2, true }, f{ x, 3, dim = 2, keep = true })
    assert.same({ n = 5, x, 3, 1, false }, f(x, 3, nil))
    assert.same({ n = 5, x, 3, 1, true }, f(x, 3, nil, { keep = true }))
  end)

  it("says what is wrong, where it was called", function()
    fails("%[f%] unknown option 'keeep'; did you mean 'keep'%?; f%(Tensor x", f, x, 3, { keeep = true })
    fails("%[f%] argument 'n' is missing", f, x)
    fails("%[f%] argument 'n': expected an integer of at least 1, got nil", f, x, nil, 2)
    fails("%[f%] argument 'n': expected an integer of at least 1, got 0", f, x, 0)
    fails("%[f%] argument 'n': expected an integer of at least 1, got the string 'a'", f, x, "a")
    fails("%[f%] argument 'n' is given twice", f, x, 3, { n = 4 })
    fails("%[f%] argument 'x': expected a tensor, got table", f, { { 1 } }, 3)
    fails("expected a module, got the class Linear", moth.quantization.convert, moth.nn.Linear)
    fails("expected a list, got a module %(Linear%)", moth.quantization.fuse_modules, moth.nn.Linear(1, 1),
      moth.nn.Linear(1, 1))
    fails("%[f%] too many arguments", f, x, 3, 1, true)
    fails("%[f%] argument 'dtype': expected a dtype", f, x, 3, { dtype = "flaot" })
  end)

  it("takes a list with names behind it", function()
    local cat = echo("cat(Tensor[] tensors, Dim dim=1)")
    local y = moth.ones(2)
    assert.same({ n = 2, { x, y }, 1 }, cat{ x, y })
    assert.same({ n = 2, { x, y }, 2 }, cat{ x, y, dim = 2 })
    assert.same({ n = 2, { x, y }, 2 }, cat({ x, y }, 2))
    assert.same({ n = 2, {}, 1 }, cat{})
    fails("element 2", cat, { x, 3 })
    fails("unknown option 'dmi'; did you mean 'dim'", cat, { x, dmi = 2 })
  end)

  it("takes several values as a list", function()
    local g = echo("g(Tensor... tensors, *, 'ij'|'xy' indexing='ij')")
    assert.same({ n = 2, { x, x }, "ij" }, g(x, x))
    assert.same({ n = 2, { x, x }, "xy" }, g(x, x, { indexing = "xy" }))
    assert.same({ n = 2, { x, x }, "xy" }, g({ x, x }, { indexing = "xy" }))
    fails("expected 'ij' or 'xy', got the string 'yx'", g, x, { indexing = "yx" })
    local h = echo("h(size... sizes, *, bool flag=false)")
    assert.same({ n = 2, { 2, 3 }, true }, h(2, 3, { flag = true }))
    assert.same({ n = 2, { 2, 3 }, true }, h{ 2, 3, flag = true })
  end)

  it("gives defaults by position as by name", function()
    local g = echo("g(Tensor x, bool on=true, bool off=false, number|false m=0.1, int k?, *, string s='a', dtype d?)")
    assert.same({ n = 7, x, true, false, 0.1, nil, "a" }, g(x))
    assert.same({ n = 7, x, false, true, false, nil, "a" }, g(x, false, true, false))
    assert.same({ n = 7, x, false, true, false, nil, "a" }, g{ x, false, true, m = false })
    assert.same({ n = 7, x, true, false, 0.1, 2, "b" }, g(x, nil, nil, nil, 2, { s = "b" }))
    fails("argument 'on': expected true or false, got 0", g, x, 0)
  end)

  it("tells its parameters", function()
    local name, list = signature.parameters(echo("f(Tensor x, number|false m=0.1, *, bool on=true, dtype dtype?)"))
    assert.equal("f", name)
    assert.same({ name = "m", type = "number|false", default = 0.1, optional = true, named_only = false }, list[2])
    assert.same({ name = "dtype", type = "dtype", optional = true, named_only = true }, list[4])
    assert.is_false(list[1].optional)
  end)

  it("gives constructors a table", function()
    local C = require "moth.class"("C")
    C.__init = signature.init("C(count a, int|int[] k=1, *, bool bias=true)", function(self, o)
      self.a, self.k, self.bias = o.a, o.k, o.bias
    end)
    local c = C(2, { 1, 2 }, { bias = false })
    assert.same({ 2, { 1, 2 }, false }, { c.a, c.k, c.bias })
    assert.equal(7, C{ a = 7 }.a)
    assert.equal("C(count a, int|int[] k=1, *, bool bias=true)", signature.of(C.__init))
  end)
end)

describe("signature's functions", function()
  local x = moth.zeros(2)

  it("refuse lists with holes or names, and take 64-bit integers", function()
    local f = echo("f(int[] list, int n=1)")
    fails("hole: it has element 3", f, { [1] = 1, [3] = 2 }, 1)
    fails("a list has no named fields %('k'%)", f, { 1, 2, k = 3 }, 1)
    assert.same({ n = 2, { 1, 2 }, 3 }, f({ 1LL, 2 }, 3ULL))
    fails("beyond 2%^53", f, {}, 2 ^ 60)
    fails("expected an integer, got cdata", f, {}, 2LL ^ 60)
    fails("expected a path", echo("g(path p)"), "a\0b")
  end)

  it("call the function with the same values from the short way and the long one", function()
    local f = echo("f(Tensor x, int|int[] n=2, bool b?, *, string s='t')")
    assert.same({ n = 4, x, 2, nil, "t" }, f(x))
    assert.same({ n = 4, x, 2, nil, "t" }, f(x, nil))
    assert.same({ n = 4, x, { 1 }, nil, "t" }, f(x, { 1 }))
    assert.same({ n = 4, x, 5, false, "t" }, f(x, 5, false))
    assert.same({ n = 4, x, 5, false, "u" }, f(x, 5, false, { s = "u" }))
    fails("too many arguments", f, x, 5, false, 1)
    fails("argument 'x' is missing", f)
  end)

  it("lend their name to the errors of what they call", function()
    fails("%[other%]", signature.alias("other", moth.diff), x, "no")
    fails("%[concat%].*; concat%(", moth.concat, { x, x }, "no")
    fails("%[vstack%] sizes", moth.vstack, moth.zeros(2, 3), moth.zeros(2, 4))
  end)
end)

describe("check.suggest", function()
  it("finds the name that was meant", function()
    local names = { "Linear", "CrossEntropyLoss", "arange", "permute", "relu", "float64" }
    for typo, name in pairs{
      Liner = "Linear", arrange = "arange", permutate = "permute", CrossEntropy = "CrossEntropyLoss",
      flaot64 = "float64", rleu = "relu", reLU = "relu" } do
      assert.equal(("; did you mean '%s'?"):format(name), check.suggest(typo, names))
    end
    assert.equal("", check.suggest("xyzzy", names))
  end)
end)
