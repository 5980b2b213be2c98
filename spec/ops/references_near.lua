-- Naive float64 references of the ops in src/ops/near.lua, as spec/ops/references.lua, which includes them. t: the
-- helpers of that file.
return function(M, t)
  local new = t.new

  function M.pdist(a)
    local n, m, out = a.self.shape[1], a.self.shape[2], {}
    for i = 0, n - 1 do
      for j = i + 1, n - 1 do
        local s = 0
        for k = 1, m do
          local d = math.abs(a.self.data[i * m + k] - a.self.data[j * m + k])
          if a.p == math.huge then s = math.max(s, d) else s = s + (a.p == 0 and (d ~= 0 and 1 or 0) or d ^ a.p) end
        end
        out[#out + 1] = (a.p == math.huge or a.p == 0) and s or s ^ (1 / a.p)
      end
    end
    return { shape = { #out }, data = out }
  end

  function M.bag_max(a)
    local rows, bags, width = #a.index.data, #a.starts.data, a.weight.shape[2]
    local out, from = new { bags, width }, new { bags, width }
    for b = 1, bags do
      for d = 1, width do
        local best, row = nil, nil
        for i = a.starts.data[b], b < bags and a.starts.data[b + 1] - 1 or rows do
          local v = a.weight.data[(a.index.data[i] - 1) * width + d]
          if best == nil or v > best then best, row = v, a.index.data[i] end
        end
        out.data[(b - 1) * width + d], from.data[(b - 1) * width + d] = best or 0, row or 1
      end
    end
    return out, from
  end

  -- ---- images at places ------------------------------------------------------------------------------

  local cubic = { { 0, -0.75, 1.5, -0.75 }, { 1, 0, -2.25, 1.25 }, { 0, 0.75, 1.5, -1.25 }, { 0, 0, -0.75, 0.75 } }
  local linear = { { 1, -1 }, { 0, 1 } }

  -- The derivative of order o of a polynomial of x.
  local function polynomial(c, x, o)
    local sum = 0
    for i = o, #c - 1 do
      local factor = c[i + 1] * x ^ (i - o)
      for k = 0, o - 1 do factor = factor * (i - k) end
      sum = sum + factor
    end
    return sum
  end
  local function reflect(x, low, high)
    local turn = 1
    if high <= low then return 0, 0 end
    while x < low or x > high do
      x = x < low and 2 * low - x or 2 * high - x
      turn = -turn
    end
    return x, turn
  end

  -- Taps { position, weight } along a dimension of n elements.
  local function taps_of(a, x, n, order)
    local corners = a.align_corners
    local at = corners and (x + 1) * (n - 1) / 2 or ((x + 1) * n - 1) / 2
    local scale = ((corners and n - 1 or n) / 2) ^ order
    local function pad(p)
      local turn = 1
      if a.padding_mode == "zeros" then return p, 1 end
      if a.padding_mode == "reflection" then
        if corners then p, turn = reflect(p, 0, n - 1) else p, turn = reflect(p, -0.5, n - 0.5) end
      end
      if p <= 0 or p >= n - 1 then turn = 0 end
      return math.max(0, math.min(n - 1, p)), turn
    end
    local out = {}
    if a.mode == "bicubic" then
      local first = math.floor(at)
      for k = 1, 4 do out[k] = { (pad(first + k - 2)), polynomial(cubic[k], at - first, order) * scale } end
      return out
    end
    local p, turn = pad(at)
    local power = order == 0 and 1 or turn ^ order
    if a.mode == "nearest" then
      local low = math.floor(p)
      local up = p - low > 0.5 or p - low == 0.5 and low % 2 == 1
      return { { up and low + 1 or low, order == 0 and 1 or 0 } }
    end
    local first = math.floor(p)
    for k = 1, 2 do out[k] = { first + k - 1, polynomial(linear[k], p - first, order) * scale * power } end
    return out
  end

  -- fn(image, place, element, weight) for all elements that are read; more: one more derivative along that dimension.
  local function visit(a, image, more, fn)
    local sizes, n = { unpack(image, 3) }, #image - 2
    local orders = { a.order_x, a.order_y, a.order_z }
    local points = #a.grid.data / n / image[1]
    for b = 0, image[1] - 1 do
      for p = 0, points - 1 do
        local function walk(k, element, weight) -- k counts the image's dimensions from the first
          if k > n then return fn(b, p, element, weight) end
          local d = n - k + 1 -- of the place
          local x = a.grid.data[(b * points + p) * n + d]
          for _, tap in ipairs(taps_of(a, x, sizes[k], orders[d] + (more == d and 1 or 0))) do
            if tap[1] >= 0 and tap[1] <= sizes[k] - 1 then
              walk(k + 1, element * sizes[k] + tap[1], weight * tap[2])
            end
          end
        end
        walk(1, 0, 1)
      end
    end
    return points
  end
  local function product(list, from)
    local n = 1
    for i = from or 1, #list do n = n * list[i] end
    return n
  end
  local function shape_of(a, image)
    local out = { image[1], image[2] }
    for d = 2, #a.grid.shape - 1 do out[#out + 1] = a.grid.shape[d] end
    return out
  end

  function M.grid_sample(a)
    local image = a.input.shape
    local channels, plane, points = image[2], product(image, 3), product(a.grid.shape) / (#image - 2) / image[1]
    local out = new(shape_of(a, image))
    visit(a, image, nil, function(b, p, element, weight)
      for c = 0, channels - 1 do
        local at = (b * channels + c) * points + p + 1
        out.data[at] = out.data[at] + weight * a.input.data[(b * channels + c) * plane + element + 1]
      end
    end)
    return out
  end
  function M.grid_sample_input(a)
    local image = a.size
    local channels, plane, points = image[2], product(image, 3), product(a.grid.shape) / (#image - 2) / image[1]
    local out = new { unpack(image) }
    visit(a, image, nil, function(b, p, element, weight)
      for c = 0, channels - 1 do
        local at = (b * channels + c) * plane + element + 1
        out.data[at] = out.data[at] + weight * a.grad_output.data[(b * channels + c) * points + p + 1]
      end
    end)
    return out
  end
  function M.grid_sample_places(a)
    local image = a.input.shape
    local n, channels, plane = #image - 2, image[2], product(image, 3)
    local points, out = product(a.grid.shape) / n / image[1], new { unpack(a.grid.shape) }
    for d = 1, n do
      visit(a, image, d, function(b, p, element, weight)
        local at = (b * points + p) * n + d
        for c = 0, channels - 1 do
          out.data[at] = out.data[at] + weight * a.input.data[(b * channels + c) * plane + element + 1]
            * a.grad_output.data[(b * channels + c) * points + p + 1]
        end
      end)
    end
    return out
  end
end
