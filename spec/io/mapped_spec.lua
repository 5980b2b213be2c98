-- Tensors that lie in the file they were loaded from: safetensors, moth's own checkpoints, PyTorch's .pt.
local moth = require "moth"
local B = require "moth_lua"

local dtypes = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool",
  "uint16", "uint32", "uint64", "complex64" }

local function bytes_of(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read "*a"
  f:close()
  return s
end

local function write(path, s)
  local f = assert(io.open(path, "wb"))
  f:write(s)
  f:close()
end

local function temporary(suffix)
  local base = os.tmpname()
  finally(function() os.remove(base) os.remove(base .. suffix) end)
  return base .. suffix
end

-- Large enough to be mapped, with an odd number of bytes before most tensors.
local function every_dtype()
  local t = { pad = moth.arange(70001):to(moth.int8), none = moth.zeros(0, 3), one = moth.tensor(5) }
  for i, name in ipairs(dtypes) do
    t["a" .. i] = (moth.arange(1031 + i) % 7):to(name)
    t["b" .. i] = moth.tensor({ 1 }):to(name)
    t["c" .. i] = moth.zeros(0):to(name)
  end
  return t
end

local function same(expected, got)
  for name, t in pairs(expected) do
    assert.equal(t:dtype(), got[name]:dtype(), name)
    assert.same(t:size(), got[name]:size(), name)
    assert.is_true(moth.equal(t, got[name]), name)
  end
end

describe("files that tensors lie in #quick", function()
  it("give every dtype, odd sizes, empty tensors, at any alignment", function()
    local tensors = every_dtype()
    local path = temporary ".safetensors"
    moth.save_safetensors(tensors, path)
    same(tensors, (moth.load_safetensors(path)))
    same(tensors, (moth.load_safetensors(path, { mmap = false })))
    same(tensors, (moth.load_safetensors(path, "cpu")))
    same(tensors, moth.load(path))
    for name, t in pairs(moth.load_safetensors(path)) do -- computes as any other
      if name:find "^a" and not (t:dtype() == moth.bool or t:dtype().name:find "^uint[136]") then
        same({ x = tensors[name] + tensors[name] }, { x = t + t })
      end
    end
    tensors.d = moth.complex(moth.randn(4), moth.randn(4)):to(moth.complex128)
    for _, digest in ipairs { "crc32", "sha256" } do
      moth.save(tensors, path, { digest = digest })
      same(tensors, moth.load(path))
      same(tensors, moth.load(path, { mmap = false }))
    end
    for i, name in ipairs(dtypes) do
      if name:find "^uint[136]" then tensors["a" .. i], tensors["b" .. i], tensors["c" .. i] = nil, nil, nil end
    end
    local pt = temporary ".pt"
    moth.save(tensors, pt)
    same(tensors, moth.load(pt))
    same(tensors, moth.load(pt, { mmap = false }))
  end)

  it("are not read before, and never written", function()
    local big = moth.arange(1000000):to(moth.float64)
    for _, suffix in ipairs { ".safetensors", ".moth", ".pt" } do
      local path = temporary(suffix)
      local put = suffix == ".safetensors" and moth.save_safetensors or moth.save
      put({ x = big, y = big + 1 }, path)
      local content = bytes_of(path)
      collectgarbage()
      local before = moth.memory.stats().live
      local a, b, copied = moth.load(path), moth.load(path), moth.load(path, { mmap = false })
      assert.is_true(moth.memory.stats().live - before < 2.5 * 8e6) -- of the copies alone
      a.x:mul_(2)
      a.y[1] = 77
      assert.is_true(moth.equal(big, b.x))
      assert.is_true(moth.equal(big * 2, a.x))
      assert.equal(77, a.y[1]:item())
      assert.is_true(content == bytes_of(path))
      a.x:requires_grad_() -- takes part in training
      ;(a.x * 3):sum():backward()
      assert.equal(3, a.x.grad[5]:item())
      put({ x = moth.zeros(5) }, path) -- saving over a loaded file leaves what was loaded
      assert.is_true(moth.equal(big, b.x))
      assert.same({ 5 }, moth.load(path).x:size())
      put({ x = b.x, y = b.y }, path) -- what lies in a file, into another of that name
      local c = moth.load(path)
      os.remove(path)
      assert.is_true(moth.equal(big + 1, c.y))
      assert.is_true(moth.equal(big + 1, copied.y))
      local y = c.y:narrow(1, 3, 4)
      c, a, b = nil, nil, nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      assert.same(big:narrow(1, 4, 4):totable(), y:totable()) -- a view keeps the mapping
    end
  end)

  it("are refused when they are damaged or cut, by either digest", function()
    local value = { x = moth.arange(600000):to(moth.float32), y = moth.ones(70000):to(moth.int8), z = "text" }
    local function refused(path, message)
      local ok, err = pcall(moth.load, path)
      assert.is_false(ok)
      assert.matches(message, err)
      assert.is_true(err:find(path, 1, true) ~= nil, err)
    end
    for _, case in ipairs { { ".moth", "crc32" }, { ".moth", "sha256" }, { ".pt" } } do
      local path = temporary(case[1])
      moth.save(value, path, case[2] and { digest = case[2] } or nil)
      local s = bytes_of(path)
      assert.is_true(#s > 2 ^ 21)
      local last = case[2] and #s or #s - 2000 -- behind that is the archive's directory
      for _, at in ipairs { 5000, 2 ^ 20 - 1, 2 ^ 20, 2 ^ 20 + 1, 2 ^ 20 + 2, 2 ^ 21 + 77, last } do
        write(path, s:sub(1, at - 1) .. string.char((s:byte(at) + 64) % 256) .. s:sub(at + 1))
        refused(path, case[2] and "checksum mismatch, the file is damaged" or "does not have its checksum")
      end
      local from, to = s:sub(1, 2 ^ 20), s:sub(2 ^ 20 + 1, 2 ^ 21) -- two blocks in the other order
      if case[2] == "crc32" then
        write(path, from:sub(1, 4096) .. to:sub(1, 4096) .. from:sub(8193) .. from:sub(4097, 8192)
          .. s:sub(2 ^ 20 + 4097))
        refused(path, "checksum mismatch")
      end
      for _, n in ipairs { 0, 1, 8, 100, 70000, 2 ^ 20, #s - 1 } do
        write(path, s:sub(1, n))
        assert.is_false((pcall(moth.load, path)), n)
        if n == 0 or n >= 70000 then assert.is_false((pcall(moth.load_safetensors, path)), n) end
      end
      write(path, s .. "x")
      assert.is_false((pcall(moth.load, path)))
    end
    assert.error_matches(function() moth.save(value, temporary ".moth", { digest = "md5" }) end, "digest")
  end)

  it("seal what other versions wrote as they did", function()
    local path = temporary ".moth"
    moth.save({ x = moth.ones(3) }, path, { digest = "sha256" })
    local s = bytes_of(path)
    local digits = s:match '"moth.sha256":"(%x+)"'
    local blank = s:gsub(digits, ("0"):rep(64))
    assert.equal(digits, B.sha256(blank))
    moth.save({ x = moth.ones(300, 1000) }, path)
    s = bytes_of(path)
    digits = s:match '"moth.crc32":"(%x+)"'
    blank = s:gsub(digits, ("0"):rep(64))
    local sums = {}
    for at = 1, #blank, 2 ^ 20 do
      local crc = B.crc32(blank:sub(at, at + 2 ^ 20 - 1))
      for k = 0, 3 do sums[#sums + 1] = string.char(math.floor(crc / 256 ^ k) % 256) end
    end
    assert.equal(digits, B.sha256(table.concat(sums)))
  end)
end)
