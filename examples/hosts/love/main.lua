--- A LÖVE toy that learns to draw digits: it trains between the frames, and you see what it draws.
--
--     love examples/hosts/love                               move the mouse; space: wait; escape: end
--     love examples/hosts/love --steps 300 --picture a.png   without a window
--
-- MNIST's digits where they are ($MOTH_DATA), else those of LÖVE's own font, turned and stretched. The network is a
-- variational autoencoder that is told the digit: it keeps two numbers for how a digit is written. The mouse is them.
local ffi = require "ffi"
local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional

local SIZE, DIGITS, ROWS, LATENT, BATCH = 28, 10, 5, 2, 128
local FRAME = 0.012 -- seconds of a frame for training

-- ---- data ------------------------------------------------------------------------------------------

-- (10, 1, 28, 28): the digits of the font.
local function glyphs()
  local rasterizer = love.font.newTrueTypeRasterizer(22)
  local pixels = moth.zeros(DIGITS, 1, SIZE, SIZE)
  for d = 1, DIGITS do
    local glyph = rasterizer:getGlyphData(tostring(d - 1))
    local w, h = glyph:getDimensions()
    local grey = moth.empty(h, w, 2, { dtype = moth.uint8 }) -- luminance and alpha
    ffi.copy(grey:data(), glyph:getFFIPointer(), h * w * 2)
    local top, left = math.floor((SIZE - h) / 2) + 1, math.floor((SIZE - w) / 2) + 1
    pixels[d][1]:narrow(1, top, h):narrow(2, left, w):copy_(grey:select(3, 2):float() / 255)
  end
  return pixels
end

-- A function that gives a batch: images (BATCH, 784) from 0 to 1, classes (BATCH) from 1 to 10.
local function source()
  for _, split in ipairs { "train", "t10k" } do
    if moth.datasets.MNIST.available(nil, split) then
      local set = moth.datasets.MNIST(nil, { split = split })
      local images, labels = set.images:flatten(2), set.labels
      return function()
        local rows = moth.randint(1, images:size(1) + 1, { BATCH })
        return images:index_select(1, rows):float() / 255, labels:index_select(1, rows)
      end, "MNIST"
    end
  end
  local font = glyphs()
  local straight, spread = moth.tensor { { 1, 0, 0 }, { 0, 1, 0 } }, moth.tensor { 0.15, 0.15, 0.03 }
  return function()
    local labels = moth.randint(1, DIGITS + 1, { BATCH })
    local theta = straight + moth.randn(BATCH, 2, 3) * spread
    local x = F.grid_sample(font:index_select(1, labels), F.affine_grid(theta, { BATCH, 1, SIZE, SIZE },
      { align_corners = false }), { align_corners = false })
    return x:flatten(2), labels
  end, "the font's digits"
end

-- ---- the network -------------------------------------------------------------------------------------

local Writer = nn.class("Writer")
function Writer:__init(hidden)
  self.read = nn.Sequential(nn.Linear(SIZE * SIZE + DIGITS, hidden), nn.ReLU(), nn.Linear(hidden, 2 * LATENT))
  self.write = nn.Sequential(nn.Linear(LATENT + DIGITS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
    nn.Linear(hidden, SIZE * SIZE))
end
-- The negative evidence lower bound of a batch, in nats a picture.
function Writer:loss(x, labels)
  local digit = F.one_hot(labels, DIGITS):float()
  local mean, log_variance = unpack(self.read(moth.cat({ x, digit }, 2)):chunk(2, 2))
  local z = mean + moth.randn_like(mean) * (log_variance * 0.5):exp()
  local drawn = self.write(moth.cat({ z, digit }, 2))
  local miss = F.binary_cross_entropy_with_logits(drawn, x, { reduction = "sum" })
  local divergence = (mean:square() + log_variance:exp() - log_variance - 1):sum() * 0.5
  return (miss + divergence) / x:size(1)
end
-- z (N, LATENT), labels (N) -> pictures (N, 784) from 0 to 1
function Writer:draw(z, labels)
  local picture = self.write(moth.cat({ z, F.one_hot(labels, DIGITS):float() }, 2)):sigmoid()
  return picture
end

-- ---- the toy -----------------------------------------------------------------------------------------

local batch, from, model, opt, canvas, shown
local options = { steps = false, picture = false }
local steps, loss, waiting = 0, nil, false

local function train(seconds)
  local stop = love.timer.getTime() + seconds
  repeat
    opt:zero_grad()
    local l = model:loss(batch())
    l:backward()
    opt:step()
    steps, loss = steps + 1, loss and 0.98 * loss + 0.02 * l:item() or l:item()
  until love.timer.getTime() > stop
end

-- Writes all digits, ROWS times, into the pixels of `canvas`: down goes one of the two numbers, the mouse is added.
local function draw(x, y)
  moth.inference_mode(function()
    local n = ROWS * DIGITS
    local z = moth.zeros(ROWS, DIGITS, LATENT)
    z:select(3, 1):add_(moth.linspace(-1.5, 1.5, ROWS):unsqueeze(2)):add_(x)
    z:select(3, 2):add_(y)
    local labels = moth.arange(1, DIGITS + 1):repeat_(ROWS)
    local pictures = model:draw(z:view(n, LATENT), labels):view(ROWS, DIGITS, SIZE, SIZE)
    local grey = ((1 - pictures:permute(1, 3, 2, 4):reshape(ROWS * SIZE, DIGITS * SIZE, 1)) * 255):to(moth.uint8)
    local rgba = moth.cat({ grey, grey, grey, moth.full_like(grey, 255) }, 3)
    ffi.copy(canvas:getFFIPointer(), rgba:data(), canvas:getSize())
  end)
end

function love.load(words)
  for i = 1, #words, 2 do
    local name = words[i]:match("^%-%-(%w+)$")
    assert(name and options[name] ~= nil and words[i + 1], "usage: love FOLDER [--steps N] [--picture FILE]")
    options[name] = words[i + 1]
  end
  moth.manual_seed(1)
  moth.set_num_threads(1)
  batch, from = source()
  model = Writer(256)
  opt = moth.optim.Adam(model:parameters(), { lr = 2e-3 })
  canvas = love.image.newImageData(DIGITS * SIZE, ROWS * SIZE)
  if love.window then
    shown = love.graphics.newImage(canvas)
    shown:setFilter("linear", "nearest")
    return
  end
  local first
  while steps < tonumber(options.steps) do
    train(0)
    first = first or loss
  end
  draw(0, 0)
  if options.picture then
    local file = assert(io.open(options.picture, "wb"))
    file:write(canvas:encode("png"):getString())
    file:close()
  end
  print(("%s: %d steps, %.0f -> %.0f nats a picture"):format(from, steps, first, loss))
  love.event.quit(0)
end

function love.update()
  if waiting or not love.window then return end
  train(FRAME)
end

function love.draw()
  local w, h = love.graphics.getDimensions()
  local x, y = love.mouse.getPosition()
  draw((x / w - 0.5) * 3, (y / h - 0.5) * 3)
  shown:replacePixels(canvas)
  love.graphics.draw(shown, 0, 0, 0, w / shown:getWidth(), (h - 40) / shown:getHeight())
  love.graphics.print(("%s   step %d   %.1f nats a picture   %d frames a second"):format(from, steps, loss or 0,
    love.timer.getFPS()), 10, h - 28)
end

function love.keypressed(key)
  if key == "escape" then love.event.quit() end
  if key == "space" then waiting = not waiting end
end
