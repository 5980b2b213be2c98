-- Large products in float32: whole numbers must come out exact whatever library makes them, from shapes on both
-- sides of the limits below which oneDNN is not asked (kernels/cpu/blas.c), and for any number of threads.
local moth = require "moth"
local shapes = {
  { 47, 128, 100 }, { 48, 48, 217 }, { 49, 53, 211 }, { 128, 96, 64 }, { 257, 65, 130 }, { 300, 301, 299 },
}

local function whole(...) return moth.randint(-8, 9, { ... }):to("float32") end

local function check()
  for _, s in ipairs(shapes) do
    local m, n, k = unpack(s)
    for layout = 0, 3 do
      local a = layout % 2 == 0 and whole(m, k) or whole(k, m):t()
      local b = layout < 2 and whole(k, n) or whole(n, k):t()
      local c = whole(m, n)
      local want = moth.mm(a:double(), b:double())
      local name = ("%dx%dx%d, layout %d"):format(m, n, k, layout)
      assert(moth.equal(moth.mm(a, b):double(), want), name)
      assert(moth.equal(moth.addmm(c, a, b, 2, -3):double(), c:double() * 2 - want * 3), name .. ", addmm")
    end
  end
end

describe("products in float32", function()
  it("are exact on whole numbers", function()
    moth.manual_seed(3)
    check()
  end)

  it("have the same bits for any number of threads", function()
    moth.manual_seed(4)
    local a, b = moth.randn(301, 270), moth.randn(270, 333)
    local keep = moth.get_num_threads()
    moth.set_num_threads(1)
    local one = moth.mm(a, b)
    moth.set_num_threads(3)
    local three = moth.mm(a, b)
    moth.set_num_threads(keep)
    assert.is_true(moth.equal(one, three))
  end)

  it("are exact without oneDNN too", function()
    if os.getenv("MOTH_ONEDNN") == "0" then return end
    local luajit = os.getenv("LUAJIT") or "luajit"
    local code = [[
      describe = function(_, f) f() end
      local n = 0
      it = function(_, f) n = n + 1 f() end
      assert = setmetatable({ is_true = assert }, {
        __call = function(_, ok, ...) if not ok then error(...) end return ok, ... end })
      dofile 'spec/kernels/gemm_spec.lua'
      print(n)]]
    local pipe = io.popen(('MOTH_ONEDNN=0 %s -e "%s" 2>&1'):format(luajit, code))
    local out = pipe:read("*a")
    pipe:close()
    assert.are.equal("3\n", out)
  end)
end)
