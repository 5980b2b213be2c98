--- Two networks against each other: one draws pictures of 32 x 32 out of noise, one tells them from those of discs and
-- frames (DCGAN).
--
--     moth examples/dcgan.lua [--steps 400] [--samples samples.png] [--curve gan.svg] [--checkpoint gan.mth]
local moth = require "moth"
local training = require "moth.examples.training"
local shapes = require "moth.examples.shapes"
local bce = moth.nn.functional.binary_cross_entropy_with_logits
local o = training.options { steps = 400, batch = 16, channels = 8, latent = 16, lr = 1e-3, samples = "" }
moth.manual_seed(1)

local G = moth.models.DCGANGenerator { latent = o.latent, channels = o.channels, out_channels = 1, image_size = 32 }
local D = moth.models.DCGANDiscriminator { channels = o.channels, in_channels = 1, image_size = 32 }
local og = moth.optim.Adam(G:parameters(), { lr = o.lr, betas = { 0.5, 0.999 } })
local od = moth.optim.Adam(D:parameters(), { lr = o.lr, betas = { 0.5, 0.999 } })
local ones, zeros = moth.ones(o.batch), moth.zeros(o.batch)
local of_real, of_drawn = 0, 0
training.run(o, { G = G, D = D, og = og, od = od }, function()
  local real = shapes.batch(o.batch, 32) * 2 - 1
  local drawn = G(moth.randn(o.batch, o.latent))
  od:zero_grad()
  local a, b = D(real), D(drawn:detach())
  local loss = bce(a, ones * 0.9) + bce(b, zeros) -- real ones are told with less than certainty
  loss:backward()
  od:step()
  og:zero_grad()
  local fooled = bce(D(drawn), ones)
  fooled:backward()
  og:step()
  of_real, of_drawn = a:sigmoid():mean():item(), b:sigmoid():mean():item()
  return loss:item()
end)
print(("the second network takes real ones for real with %.2f, drawn ones with %.2f"):format(of_real, of_drawn))
if o.samples ~= "" then
  G:eval()
  local drawn = moth.no_grad(function() return (G(moth.randn(32, o.latent)) + 1) / 2 end)
  moth.plot.images(drawn, { nrow = 8 }):save(o.samples)
  print("samples: " .. o.samples)
end
