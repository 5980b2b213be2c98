--- What several networks of images are built of: convolution, norm and activation in a row; squeeze and excitation;
-- stochastic depth; how their weights begin. Called by the files of models beside it, for their torchvision names.
local moth = require "moth"
local nn = require "moth.nn"
local M = {}

--- A number of channels that `by` divides, and that is not 10 % smaller.
function M.divisible(v, by)
  by = by or 8
  local out = math.max(by, math.floor(v + by / 2) - math.floor(v + by / 2) % by)
  return out < 0.9 * v and out + by or out
end

--- Conv2d without bias, BatchNorm2d, and an activation (a class of nn; false: none). o: stride, groups, norm (options
-- of the BatchNorm2d).
function M.conv_norm(from, to, kernel, activation, o)
  o = o or {}
  return nn.Sequential { nn.Conv2d(from, to, kernel, { stride = o.stride, padding = (kernel - 1) / 2, groups = o.groups,
    bias = false }), nn.BatchNorm2d(to, o.norm), activation and activation() or nil }
end

local Excitation = nn.class("models.SqueezeExcitation")
--- Channels weighed by their means (Hu et al. 2018): x (N, C, H, W) -> the same shape.
M.SqueezeExcitation = Excitation
function Excitation:__init(channels, squeezed, activation, scale)
  self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
  self.activation, self.scale_activation = (activation or nn.ReLU)(), (scale or nn.Sigmoid)()
end
function Excitation:forward(x)
  return x * self.scale_activation(self.fc2(self.activation(self.fc1(x:mean({ 3, 4 }, { keepdim = true })))))
end

local Depth = nn.class("models.StochasticDepth")
--- Drops the branch of whole samples with probability p while training (Huang et al. 2016), and divides by 1 - p.
M.StochasticDepth = Depth
function Depth:__init(p) self.p = p end
function Depth:forward(x)
  if not self.training or self.p == 0 then return x end
  local shape = { x:size(1) }
  for i = 2, x:dim() do shape[i] = 1 end
  local kept = moth.empty(shape, { dtype = x:dtype(), device = x:device() }):bernoulli_(1 - self.p)
  return x * (self.p < 1 and kept / (1 - self.p) or kept)
end
function Depth:extra_repr() return "p=" .. self.p end

local Permute = nn.class("models.Permute")
--- x:permute(dims)
M.Permute = Permute
function Permute:__init(dims) self.dims = dims end
function Permute:forward(x) return x:permute(self.dims) end

--- Weights of convolutions by He's rule over what comes out, of Linear by `linear`(weight), biases 0.
function M.start(net, linear)
  for _, m in net:named_modules() do
    if m.__name == "Conv2d" then
      nn.init.kaiming_normal_(m.weight, { mode = "fan_out" })
      if m.bias then nn.init.zeros_(m.bias) end
    elseif m.__name == "Linear" then
      linear(m.weight)
      if m.bias then nn.init.zeros_(m.bias) end
    end
  end
end

--- A normal distribution for weights of Linear: a function for `start`.
function M.normal(std)
  return function(weight) nn.init.normal_(weight, 0, std) end
end

return M
