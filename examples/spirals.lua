--- Three spirals that no line separates, learned by a small network; its picture of the plane after 20, 50 and 300
-- steps goes to a PNG file. It is the picture on the front page.
--
--     moth examples/spirals.lua [docs/spirals.png]
local moth = require "moth"
local nn, optim, plot = moth.nn, moth.optim, moth.plot

local path = moth.cli({ { "[FILE]", "the picture", "spirals.png" } }).file
local side, each, classes = 240, 90, 3
moth.manual_seed(3)

-- ---- the data: (270, 2) points, (270) labels ---------------------------------------------------------

local points, labels = {}, {}
for c = 1, classes do
  local r = moth.linspace(0.05, 1, each)
  local angle = r * 4.6 + 2 * math.pi * c / classes + moth.randn(each) * 0.16
  points[c] = moth.stack({ r * angle:cos(), r * angle:sin() }, 2)
  labels[c] = moth.full({ each }, c, { dtype = moth.int64 })
end
local x, y = moth.cat(points), moth.cat(labels)

-- ---- the picture ---------------------------------------------------------------------------------------

local colours = moth.tensor { { 0.90, 0.36, 0.30 }, { 0.16, 0.55, 0.80 }, { 0.98, 0.75, 0.25 } }
local axis = moth.linspace(-1.1, 1.1, side)
local plane = moth.stack({ axis:expand(side, side), -axis:unsqueeze(2):expand(side, side) }, 3):reshape(-1, 2)

-- (3, side, side): the colour of each pixel's class, paler where the network is less sure, and the points.
local function picture(model)
  local p = moth.no_grad(function() return model(plane):softmax(2) end)
  local sure = ((p:amax(2, true) - 1 / classes) * 6):round() / 6 -- in steps, for a small file
  local picked = colours:index_select(1, p:argmax(2))
  local image = 1 - (1 - picked) * (0.15 + 0.75 * sure)
  local pixel = 2.2 / side
  for c = 1, classes do
    local distance = moth.full({ side * side }, 9)
    for i = 1, each do
      distance = distance:minimum((plane - points[c][i]):square():sum(2))
    end
    image[distance:lt((3 * pixel) ^ 2)] = moth.ones(3)
    image[distance:lt((2 * pixel) ^ 2)] = colours[c] * 0.75
  end
  return image:view(side, side, 3):permute(3, 1, 2)
end

-- ---- training ------------------------------------------------------------------------------------------

local model = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, classes))
local opt = optim.Adam(model:parameters(), { lr = 1e-2 })
local pictures = {}
for step = 1, 300 do
  opt:zero_grad()
  local out = model(x)
  local loss = nn.functional.cross_entropy(out, y)
  loss:backward()
  opt:step()
  if step == 20 or step == 50 or step == 300 then
    local right = out:argmax(2):eq(y):sum():item()
    print(("step %3d  loss %.4f  %d of %d points right"):format(step, loss:item(), right, y:numel()))
    pictures[#pictures + 1] = picture(model)
  end
end
plot.save_image(plot.make_grid(moth.stack(pictures), { nrow = 3, padding = 4, pad_value = 1 }), path)
print("written: " .. path)
