--- A variational autoencoder of small pictures, discs and frames of any place and size; at the end it draws new ones.
--
--     moth examples/vae.lua [--steps 600] [--samples samples.png] [--curve vae.svg] [--checkpoint vae.mth]
local moth = require "moth"
local training = require "moth.examples.training"
local shapes = require "moth.examples.shapes"
local o = training.options { steps = 600, batch = 64, latent = 8, lr = 2e-3, samples = "" }
moth.manual_seed(1)

local SIZE = 16
local model = moth.models.VAE { in_features = SIZE * SIZE, hidden = 128, latent = o.latent }
local opt = moth.optim.Adam(model:parameters(), { lr = o.lr })
local reconstruction, divergence
local first, last = training.run(o, { model = model, opt = opt }, function()
  local x = shapes.batch(o.batch, SIZE)
  opt:zero_grad()
  local loss, r, d = model:loss(x, model(x))
  loss:backward()
  opt:step()
  reconstruction, divergence = r:item() / o.batch, d:item() / o.batch
  return loss:item() / o.batch
end)
print(("bound %.1f -> %.1f nats a picture: reconstruction %.1f, divergence %.1f"):format(first, last, reconstruction,
  divergence))
if o.samples ~= "" then
  local drawn = moth.no_grad(function() return model:decode(moth.randn(32, o.latent)):view(32, 1, SIZE, SIZE) end)
  moth.plot.images(drawn, { nrow = 8 }):save(o.samples)
  print("samples: " .. o.samples)
end
