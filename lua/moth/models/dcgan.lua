--- models.DCGANGenerator and models.DCGANDiscriminator: convolutional adversarial networks (Radford et al. 2016) for
-- images of 64 x 64 or 32 x 32, with the names of PyTorch's example.
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

-- Normal with deviation 0.02, as in the paper.
local function reset(self)
  for _, m in self:named_modules() do
    if m.__name == "Conv2d" or m.__name == "ConvTranspose2d" then
      nn.init.normal_(m.weight, 0, 0.02)
    elseif m.__name == "BatchNorm2d" then
      nn.init.normal_(m.weight, 1, 0.02)
      nn.init.zeros_(m.bias)
    end
  end
end

local function doublings(where, size)
  if size ~= 64 and size ~= 32 then check.fail("[%s] image_size must be 32 or 64, got %d", where, size) end
  return size == 64 and 3 or 2
end

local Generator = nn.class("DCGANGenerator")
Generator.__init = signature.init("models.DCGANGenerator(*, count latent=100, count channels=64, \z
  count out_channels=3, count image_size=64)", function(self, o)
  local n = doublings("models.DCGANGenerator", o.image_size)
  local c = o.channels * 2 ^ n
  local list = { nn.ConvTranspose2d(o.latent, c, 4, { bias = false }), nn.BatchNorm2d(c), nn.ReLU() }
  local function add(...)
    for _, m in ipairs { ... } do list[#list + 1] = m end
  end
  for _ = 1, n do
    add(nn.ConvTranspose2d(c, c / 2, 4, { stride = 2, padding = 1, bias = false }), nn.BatchNorm2d(c / 2), nn.ReLU())
    c = c / 2
  end
  add(nn.ConvTranspose2d(c, o.out_channels, 4, { stride = 2, padding = 1, bias = false }), nn.Tanh())
  self.main, self.latent = nn.Sequential(list), o.latent
  reset(self)
end)
--- z (N, latent) or (N, latent, 1, 1) -> images (N, out_channels, size, size) in [-1, 1]
function Generator:forward(z)
  check.tensor("models.DCGANGenerator", "z", z)
  return self.main(z:reshape(-1, self.latent, 1, 1))
end

local Discriminator = nn.class("DCGANDiscriminator")
Discriminator.__init = signature.init("models.DCGANDiscriminator(*, count channels=64, count in_channels=3, \z
  count image_size=64)", function(self, o)
  local n = doublings("models.DCGANDiscriminator", o.image_size)
  local c = o.channels
  local list = { nn.Conv2d(o.in_channels, c, 4, { stride = 2, padding = 1, bias = false }), nn.LeakyReLU(0.2) }
  local function add(...)
    for _, m in ipairs { ... } do list[#list + 1] = m end
  end
  for _ = 1, n do
    add(nn.Conv2d(c, 2 * c, 4, { stride = 2, padding = 1, bias = false }), nn.BatchNorm2d(2 * c), nn.LeakyReLU(0.2))
    c = 2 * c
  end
  add(nn.Conv2d(c, 1, 4, { bias = false }))
  self.main = nn.Sequential(list)
  reset(self)
end)
--- images (N, in_channels, size, size) -> logits (N) that they are real
function Discriminator:forward(x) return self.main(x):reshape(-1) end

return { DCGANGenerator = Generator, DCGANDiscriminator = Discriminator }
