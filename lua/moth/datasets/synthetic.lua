--- datasets.Synthetic: made-up 28x28 images in ten classes, for machines without data and network.
--
-- Each class is a smooth random pattern. An image is its class's pattern, moved by up to five pixels, mixed
-- with a fainter one of another class, with its own contrast and noise. A small MLP gets above 90 %, a nearest
-- class mean does not. Bits depend on the seed alone; training and test images differ, their patterns do not.
local moth = require "moth"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local ImageDataset = require "moth.datasets.images"

local SIZE, CLASSES, CELLS, SHIFT = 28, 10, 9, 5
local MOVES = (2 * SHIFT + 1) ^ 2

-- (SIZE + 2 SHIFT, CELLS): linear interpolation from a coarse grid.
local function interpolation()
  local n, rows = SIZE + 2 * SHIFT, {}
  for i = 1, n do
    local at = (i - 1) / (n - 1) * (CELLS - 1)
    rows[i] = {}
    for j = 1, CELLS do rows[i][j] = math.max(0, 1 - math.abs(at - (j - 1))) end
  end
  return moth.tensor(rows)
end

-- float (CLASSES * MOVES, SIZE, SIZE): every pattern at every shift, in 0..1.
local function bank(generator)
  local up, out = interpolation(), {}
  for _ = 1, CLASSES do
    local coarse = moth.rand({ CELLS, CELLS }, { generator = generator }):square()
    local large = up:matmul(coarse):matmul(up:t())
    large = large / large:amax()
    for dy = 1, 2 * SHIFT + 1 do
      for dx = 1, 2 * SHIFT + 1 do out[#out + 1] = large:narrow(1, dy, SIZE):narrow(2, dx, SIZE) end
    end
  end
  return moth.stack(out)
end

local Synthetic = class("Synthetic", ImageDataset)

--- n: 8000, or 2000 for testing
Synthetic.__init = signature.init("datasets.Synthetic(*, bool train=true, count n?, size seed=1, callable transform?, \z
  callable target_transform?)", function(self, o)
  local train, seed = o.train, o.seed
  local n = o.n or train and 8000 or 2000
  local patterns = bank(moth.Generator(seed))
  local g = moth.Generator(seed * 2 + (train and 1000003 or 2000003))
  local function draw(low, high, shape) return moth.rand(shape, { generator = g }) * (high - low) + low end
  local function pick(classes) -- a pattern of each class, at a random shift
    local move = moth.randint(0, MOVES, { n }, { generator = g })
    return patterns:index_select(1, (classes - 1) * MOVES + move + 1)
  end
  local labels = moth.randint(1, CLASSES + 1, { n }, { generator = g })
  local others = moth.randint(1, CLASSES + 1, { n }, { generator = g })
  local x = pick(labels) * draw(0.5, 1, { n, 1, 1 }) + pick(others) * draw(0, 0.5, { n, 1, 1 })
  x = x + draw(-0.4, 0.4, { n, SIZE, SIZE })
  local names = {}
  for i = 1, CLASSES do names[i] = "pattern " .. i end
  self.train, self.note = train, "synthetic: made up by moth, not real data"
  ImageDataset.__init(self, (x:clamp(0, 1) * 255):to(moth.uint8), labels, { transform = o.transform,
    target_transform = o.target_transform, classes = names })
end)

return Synthetic
