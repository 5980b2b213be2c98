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
end
