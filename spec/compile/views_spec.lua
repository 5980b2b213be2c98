-- Writes through views of inputs, compiled: what they give and what the inputs hold afterwards is eager's, to the bit
-- (complex products: but the last one, which depends on strides). The views are of any geometry and of other dtypes
-- (complex numbers and their parts); inputs are views themselves, or share memory. A sample of all combinations:
-- MOTH_EVERY=1 runs them all.
local moth = require "moth"
local S = require "compile.support"
local toolchain = require "moth.utils.toolchain"
local compile = moth.compile

local function whole() return moth.randn(4, 6) end
local function complex() return moth.complex(whole(), whole()) end
local inputs = {
  function() return whole() end,
  function() return whole():t() end,
  function() local b = moth.randn(8, 12) return b[{ { 1, 8, 2 }, { 1, 12, 2 } }], b end,
  function() local b = moth.randn(7, 9) return b:narrow(1, 2, 4):narrow(2, 3, 6), b end,
  function() local b = moth.randn(40) return b:narrow(1, 5, 24):view(4, 6), b end,
  function() local b = moth.randn(4, 3, 6) return b:select(2, 2), b end,
  function() local b = moth.randn(6, 6) return b:narrow(1, 1, 4), b:narrow(1, 2, 4) end,
  function() local b = whole() return b, b end,
  function() local b = whole() return b, b:t() end,
  function() local b = moth.randn(4, 6, 2) return moth.view_as_complex(b), b end,
  function() local b = moth.randn(4, 6, 2) return b, moth.view_as_complex(b) end,
  function() local b = moth.randn(6, 4, 2) return moth.view_as_complex(b):t(), b end,
  function() local b = moth.randn(5, 6, 2) return moth.view_as_complex(b:narrow(1, 2, 4)), b end,
  function() local b = moth.randn(49) return moth.view_as_complex(b:narrow(1, 1, 48):view(4, 6, 2)), b end,
  function() local a = whole() return moth.polar(a:abs(), a), a end,
  function() local z = complex() return z:real(), z end,
  function() local z = complex() return z:imag(), z end,
  function() local z = complex() return moth.view_as_real(z), z end,
  function() local b = whole() return b:detach(), b end,
}
local views = {
  function(x) return x end,
  function(x) return x:select(1, 2) end,
  function(x) return x:select(2, 1) end,
  function(x) return x:transpose(1, 2) end,
  function(x) return x[{ { 1, x:size(1), 2 } }] end,
  function(x) return x[{ {}, { 1, x:size(2), 2 } }] end,
  function(x) return x:narrow(1, 2, 2) end,
  function(x) return x:narrow(2, 2, 2):transpose(1, 2) end,
  function(x) return x:unsqueeze(1) end,
  function(x) return x:diagonal() end,
  function(x) return x:is_contiguous() and x:view(-1) or x:detach() end,
  function(x) return x:is_complex() and x:real() or x:detach() end,
  function(x) return x:is_complex() and x:imag() or x:select(1, 1) end,
  function(x) return x:is_complex() and moth.view_as_real(x) or x:t() end,
  function(x)
    if x:is_complex() or not x:is_contiguous() then return x end
    return moth.view_as_complex(x:view(-1, 2))
  end,
  function(x) return x:as_strided({ 2, 2 }, { 2, 1 }, x:storage_offset() + 1) end,
  function(x) return x:as_strided({ 2 }, { 2 }) end,
  function(x) return x:select(2, 2):narrow(1, 1, 2) end,
}
local writes = {
  function(v) v:add_(1) end,
  function(v) v:mul_(v) end,
  function(v) v:zero_() end,
  function(v) v:copy_(v * 2 + 1) end,
  function(v) v:copy_(moth.ones(1)) end,
  function(v) v:addcmul_(v * 1, v * 2, { value = 0.5 }) end,
  function(v) if v:is_complex() then v:mul_(2) else v:uniform_() end end,
  function(v) v[{ 1 }] = 5 end,
  function(v) v[{ { 1, 1 } }]:add_(2) end,
  function(v) if v:is_complex() then v:neg_() else v:masked_fill_(v:gt(0), 2) end end,
  function(v) v:index_add_(1, moth.tensor { 1, 1 }, v:narrow(1, 1, 2) * 2) end,
  function(v, x) v:sub_(x:sum()) end,
}
local uses = {
  function(_, v) return v * 2 end,
  function(_, v) return v:narrow(1, 1, 1) * 2 end,
  function(x, v) return v:sum() + x:sum(), v end,
  function(x, v) return v, x end,
  function(_, v) return v:unsqueeze(1):transpose(1, 2) end,
  function(x) return x:transpose(1, 2):select(1, 1) + 1 end,
  function(x, v, _, write, view)
    write(v, x)
    return view(x) * 1
  end,
  function(x, _, y) return (y or x) * 2 end,
  function(x, v) return v:detach() + 1, x:detach() end,
}

local function one(n)
  local index = n
  local function draw(list)
    local k = index % #list + 1
    index = math.floor(index / #list)
    return list[k], k
  end
  local view, a = draw(views)
  local write, b = draw(writes)
  local use, c = draw(uses)
  local input, d = draw(inputs)
  return function(x, y)
    local v = view(x)
    write(v, x)
    return use(x, v, y, write, view)
  end, input, ("view %d, write %d, use %d, input %d"):format(a, b, c, d)
end

local function check(n, options)
  local f, input, text = one(n)
  local compiled = compile(f, options)
  for call = 1, 3 do
    local function make()
      moth.manual_seed(n + call)
      return { input() }
    end
    local want, got = S.outcome(f, make), S.outcome(compiled, make)
    if want:find("^%[") and got:find("^%[") then return end -- such a view cannot be made
    local close = options.backend == "inductor" or want:find("complex", 1, true)
    if want ~= got and not (close and S.is_close(want, got)) then
      error(("%s, call %d, %s: compiled and eager differ:\n%s\n--- eager:\n%s"):format(tostring(options.backend), call,
        text, got:sub(1, 900), want:sub(1, 900)), 0)
    end
  end
end

local every = tonumber(os.getenv "MOTH_EVERY") or 97

describe("compile: writes through views of inputs", function()
  for i, backend in ipairs { "eager", "blocks", "aot_eager", "inductor" } do
    it("are eager's: " .. backend, function()
      if backend == "inductor" and not toolchain.cc() then return end
      local step = backend == "inductor" and every * 20 or every
      for n = i, #views * #writes * #uses * #inputs, step do
        check(n, { backend = backend, dynamic = n % 3 == 0 or nil })
        if n % 64 == 0 then compile.reset() end
      end
    end)
  end

  it("are compiled where the view is not row-major, and not run call by call", function()
    local aot = require "moth.compile.aot"
    local f = compile(function(x)
      local v = x:select(2, 1)
      v:add_(1)
      return v:narrow(1, 1, 2) * 2
    end, { backend = "blocks" })
    for _, make in ipairs { function() return moth.ones(5, 4) end, function() return moth.ones(4, 5):t() end } do
      local before, x = aot.counters.fallbacks, make()
      assert.same({ 4, 4 }, f(x):totable())
      assert.equal(25, x:sum():item())
      assert.equal(before, aot.counters.fallbacks)
    end
  end)
end)

describe("compile: as_strided", function()
  it("counts from the beginning of a storage, wherever an input begins in it", function()
    local fs = {
      function(x) return x:narrow(1, 3, 4):as_strided({ 2 }, { 1 }, 4) + 1 end,
      function(x) return x:narrow(1, 3, 4):as_strided({ 2 }, { 1 }) + 1 end,
      function(x) return (x * 2):narrow(1, 3, 4):as_strided({ 2 }, { 1 }, 1) * 2 end,
    }
    for _, backend in ipairs { "blocks", "aot_eager", "inductor" } do
      for _, f in ipairs(fs) do
        for _, grad in ipairs { false, true } do
          local compiled = compile(f, { backend = backend })
          for _, at in ipairs { 5, 5, 7, 5 } do
            local function make()
              moth.manual_seed(1)
              local base = moth.randn(20):requires_grad_(grad)
              return { base:narrow(1, at, 8), base }
            end
            assert.equal(S.outcome(f, make), S.outcome(compiled, make))
          end
        end
      end
    end
  end)
end)

describe("compile: complex inputs", function()
  local function rotate(x, at)
    local z = moth.view_as_complex(x:unflatten(-1, { -1, 2 }))
    return moth.view_as_real(z * at):flatten(-2)
  end
  local cases = {
    function() return function(z) return z:conj() * z end, { moth.view_as_complex(moth.tensor { { 3.0, 4.0 } }) } end,
    function()
      local at = moth.polar(moth.ones(5, 4), moth.arange(20):float():view(5, 4))
      return rotate, { moth.randn(2, 5, 8), at }
    end,
    function() return rotate, { moth.randn(2, 5, 8):requires_grad_(true), complex()[{ { 1, 1 }, { 1, 4 } }] } end,
    function()
      local b = moth.randn(49):requires_grad_(true)
      return function(z) return moth.view_as_real(z * z) end,
        { moth.view_as_complex(b:narrow(1, 1, 48):view(4, 6, 2)) }
    end,
    function() return function(a) return a * 2, moth.view_as_complex(a:contiguous()) end,
      { moth.view_as_real(complex()) } end,
  }

  for _, checked in ipairs { false, true } do
    it("are what they are where their memory is that of floats" .. (checked and ", checked" or ""), function()
      compile.config.check = checked
      local ok, e = pcall(function()
        for _, backend in ipairs { "eager", "blocks", "aot_eager", "inductor" } do
          for _, case in ipairs(cases) do
            local f = case()
            local compiled = compile(f, { backend = backend })
            for _ = 1, 2 do
              local function make() moth.manual_seed(4) return (select(2, case())) end
              local want, got = S.outcome(f, make), S.outcome(compiled, make)
              if not S.is_close(want, got) then assert.equal(want, got) end
            end
          end
        end
      end)
      compile.config.check = false
      assert.is_true(ok, e)
    end)
  end
end)
