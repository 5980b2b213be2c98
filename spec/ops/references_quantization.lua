--- Naive float64 references of quantised ops, as spec/ops/references.lua, which includes them. t: the helpers of that
-- file.
local bit = require "bit"

return function(M, t)
  local new = t.new

  -- The layout that kernels/cpu/int8.h describes, element by element.
  function M.pack_int8(a)
    local shape, groups = a.weight.shape, a.groups or 1
    local n, c, kh, kw = shape[1] / groups, shape[2], shape[3] or 1, shape[4] or 1
    local segments, run = kh, c * kw
    if a.apart then segments, run = kh * kw, c end
    local length, columns = math.ceil(run / 4) * 4, math.ceil(n / 16) * 16
    local out = new { groups * columns * (segments * length + 4) }
    for g = 0, groups - 1 do
      for j = 0, columns - 1 do
        local width = math.min(64, columns - math.floor(j / 64) * 64)
        local base = groups * columns * 4 + (g * columns + math.floor(j / 64) * 64) * segments * length
        local sum = 0
        for s = 0, segments - 1 do
          for k = 0, length - 1 do
            local channel, y, x = k % c, s, math.floor(k / c)
            if a.apart then y, x = math.floor(s / kw), s % kw end
            local w = j < n and k < run and a.weight.data[(((g * n + j) * c + channel) * kh + y) * kw + x + 1] or 0
            local all = s * length + k
            out.data[base + math.floor(all / 4) * 4 * width + 4 * (j % 64) + all % 4 + 1] = w % 256
            sum = sum + w
          end
        end
        for i = 0, 3 do
          out.data[(g * columns + j) * 4 + i + 1] = bit.band(bit.rshift(sum, 8 * i), 255)
        end
      end
    end
    return out
  end

  function M.embedding_int8(a)
    local scaled = new(a.weight.shape)
    local width = a.weight.shape[2]
    for i, w in ipairs(a.weight.data) do scaled.data[i] = w * a.scale.data[math.floor((i - 1) / width) + 1] end
    return M.embedding { weight = scaled, index = a.index }
  end

  -- Blocks, byte by byte: those types that the samples have.
  local function half(b, at)
    local h = b[at] + 256 * b[at + 1]
    local e, m, sign = math.floor(h / 1024) % 32, h % 1024, h >= 32768 and -1 or 1
    return sign * (e == 0 and m * 2 ^ -24 or (1024 + m) * 2 ^ (e - 25))
  end
  local function low(x) return x % 16 end
  local function high(x) return math.floor(x / 16) end
  local block_types = {
    Q4_0 = { 18, function(b, put)
      for i = 0, 31 do put(half(b, 1) * ((i < 16 and low or high)(b[3 + i % 16]) - 8)) end
    end },
    Q8_0 = { 34, function(b, put)
      for i = 0, 31 do put(half(b, 1) * (b[3 + i] < 128 and b[3 + i] or b[3 + i] - 256)) end
    end },
    Q4_K = { 144, function(b, put)
      for k = 0, 7 do
        local s, m = b[5 + k], b[9 + k]
        if k < 4 then
          s, m = s % 64, m % 64
        else
          s, m = low(m) + 16 * math.floor(b[1 + k] / 64), high(m) + 16 * math.floor(b[5 + k] / 64)
        end
        for i = 0, 31 do
          local q = (k % 2 == 0 and low or high)(b[17 + math.floor(k / 2) * 32 + i])
          put(half(b, 1) * s * q - half(b, 3) * m)
        end
      end
    end },
    Q3_K = { 110, function(b, put)
      for i = 0, 255 do
        local k = math.floor(i / 16)
        local four = (k < 8 and low or high)(b[97 + k % 8])
        local scale = four + 16 * bit.band(bit.rshift(b[105 + k % 4], 2 * math.floor(k / 4)), 3) - 32
        local q = bit.band(bit.rshift(b[33 + math.floor(i / 128) * 32 + i % 32], math.floor(i % 128 / 32) * 2), 3)
        local third = bit.band(bit.rshift(b[1 + i % 32], math.floor(i / 32)), 1)
        put(half(b, 109) * scale * (q - (third == 1 and 0 or 4)))
      end
    end },
  }

  function M.unpack_blocks(a)
    local size, unpack_block = unpack(block_types[a.type])
    local data, shape = {}, {}
    for at = 0, #a.weight.data - 1, size do
      local b = {}
      for i = 1, size do b[i] = a.weight.data[at + i] end
      unpack_block(b, function(x) data[#data + 1] = x end)
    end
    for i, n in ipairs(a.weight.shape) do shape[i] = n end
    shape[#shape] = shape[#shape] / size * (a.type:find "_K$" and 256 or 32)
    local out = new(shape)
    out.data = data
    return out
  end

  function M.embedding_blocks(a)
    return M.embedding { weight = M.unpack_blocks(a), index = a.index }
  end
end
