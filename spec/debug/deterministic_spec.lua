-- use_deterministic_algorithms(true): what may give other bits in each run is named.
local moth = require "moth"
local tl = moth.kernel.lang
local child = require "child"

local sums = moth.kernel.jit(function(x, out, B)
  local i = tl.program_id(0) * B + tl.arange(0, B)
  tl.atomic_add(out + i % 2, tl.load(x + i))
end, { constexpr = { "B" }, name = "sums" })

local function output(env, code)
  return (child("local moth = require 'moth'\n" .. code, { env = env }))
end

describe("use_deterministic_algorithms(true)", function()
  after_each(function() require("moth_lua").cuda.deterministic(true, true) end)

  it("refuses kernels whose programs add floats in any order, by their name #M455", function()
    local x, out = moth.ones(64), moth.zeros(2)
    moth.use_deterministic_algorithms(true)
    for _ = 1, 2 do
      local ok, message = pcall(function() sums { 4 }(x, out, 16) end)
      assert.is_false(ok)
      assert.matches("deterministic_spec.lua:%d+: %[kernel sums%] is not deterministic.-atomic_add of float32.-"
        .. "warn_only = true", message)
    end
    assert.equal(0, out:sum():item())
    sums { 4 }(x:long(), out:long(), 16) -- sums of integers do not depend on the order
    sums { 1 }(x, out, 64) -- one program
    assert.equal(64, out:sum():item())
    moth.use_deterministic_algorithms(false)
    sums { 4 }(x, out, 16)
    assert.equal(128, out:sum():item())
    assert.is_false(moth.is_deterministic_algorithms_warn_only_enabled())
  end)

  it("refuses ops that are defined as such, on the devices that they name #M455", function()
    local op = moth.library.define("determinism::sums(Tensor self) -> Tensor", {
      impl = function(x) return x:sum() end, shape = function() return {} end,
      nondeterministic = { cuda = "atomic sums; use sum()" },
    })
    local always = moth.library.define("determinism::always(Tensor self) -> Tensor", {
      impl = function(x) return x:exp() end, fake = function(x) return x end,
      nondeterministic = "its order is the clock's",
    })
    moth.use_deterministic_algorithms(true)
    assert.equal(3, op(moth.ones(3)):item())
    assert.error_matches(function() always(moth.ones(3)) end,
      "%[determinism::always%] is not deterministic.-the clock's")
    moth.use_deterministic_algorithms(false)
    assert.equal(1, always(moth.zeros(3)):size(1) - 2)
    moth.library.undefine(op)
    moth.library.undefine(always)
    assert.error_matches(function()
      moth.library.define("determinism::x(Tensor self) -> Tensor", { nondeterministic = { gpu = "why" } })
    end, "texts by device")
  end)

  it("with warn_only warns, once for each line #M455", function()
    local text = output("", [[
      local tl = moth.kernel.lang
      local k = moth.kernel.jit(function(x) tl.atomic_add(x, 1.5) end, { name = "k" })
      local x = moth.zeros(1)
      moth.use_deterministic_algorithms(true, { warn_only = true })
      print(moth.is_deterministic_algorithms_warn_only_enabled())
      for _ = 1, 3 do k{ 4 }(x) end
      k{ 4 }(x)
      print(x:item())]])
    assert.equal(2, select(2, text:gsub("warning: [^\n]+:%d+: %[kernel k%] is not deterministic", "")), text)
    assert.matches("^true\n", text)
    assert.matches("\n24\n$", text)
  end)

  it("asks for a workspace of cuBLAS's with which runs are the same #M456", function()
    local code = "local use = moth.use_deterministic_algorithms print(pcall(use, true)) print(pcall(use, false))"
    assert.equal("true\ntrue\n", output("CUBLAS_WORKSPACE_CONFIG=:16:8", code))
    assert.equal("true\ntrue\n", output("CUBLAS_WORKSPACE_CONFIG=", code))
    assert.matches("^false\t[^\n]*CUBLAS_WORKSPACE_CONFIG=:0:0 lets cuBLAS give other bits[^\n]+:4096:8[^\n]+\ntrue\n",
      output("CUBLAS_WORKSPACE_CONFIG=:0:0", code))
    assert.matches("warning: CUBLAS_WORKSPACE_CONFIG=:0:0", output("CUBLAS_WORKSPACE_CONFIG=:0:0",
      "moth.use_deterministic_algorithms(true, { warn_only = true })"), 1, true)
  end)
end)
