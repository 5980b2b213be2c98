--- models.VAE: a variational autoencoder of two layers for flat inputs in [0, 1] (Kingma and Welling 2014), with the
-- names of PyTorch's example.
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local F = nn.functional

local VAE = nn.class("VAE")

VAE.__init = signature.init("models.VAE(*, count in_features=784, count hidden=400, count latent=20)", function(self, o)
  self.in_features, self.latent = o.in_features, o.latent
  self.fc1 = nn.Linear(o.in_features, o.hidden)
  self.fc21, self.fc22 = nn.Linear(o.hidden, o.latent), nn.Linear(o.hidden, o.latent)
  self.fc3, self.fc4 = nn.Linear(o.latent, o.hidden), nn.Linear(o.hidden, o.in_features)
end)

--- x (N, in_features) -> mean and logarithm of the variance, (N, latent) each
function VAE:encode(x)
  local h = F.relu(self.fc1(x))
  return self.fc21(h), self.fc22(h)
end
--- A draw from the normal distribution of that mean and variance; in eval mode the mean, so that a program of the model
-- has no random numbers and gives the same everywhere.
function VAE:reparameterize(mu, logvar)
  if not self.training then return mu end
  local std = (logvar * 0.5):exp()
  return mu + moth.randn_like(std) * std
end
--- The logits of the output: (N, latent) -> (N, in_features)
function VAE:decode_logits(z) return self.fc4(F.relu(self.fc3(z))) end
--- (N, latent) -> (N, in_features) in [0, 1]
function VAE:decode(z) return self:decode_logits(z):sigmoid() end

--- x (N, …) -> logits of the reconstruction (N, in_features), mean, logarithm of the variance
function VAE:forward(x)
  check.tensor("models.VAE", "x", x)
  local mu, logvar = self:encode(x:reshape(-1, self.in_features))
  return self:decode_logits(self:reparameterize(mu, logvar)), mu, logvar
end

--- The negative evidence lower bound, summed over the batch: reconstruction and divergence.
function VAE:loss(x, logits, mu, logvar)
  local flat = x:reshape(-1, self.in_features)
  local reconstruction = F.binary_cross_entropy_with_logits(logits, flat, { reduction = "sum" })
  local divergence = (logvar + 1 - mu:square() - logvar:exp()):sum() * -0.5
  return reconstruction + divergence, reconstruction, divergence
end

return VAE
