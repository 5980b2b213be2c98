--- The part of moth.vision that makes features for detectors: a pyramid over the stages of a network, and batch norms
-- whose statistics stay.
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local M = {}

local Frozen = nn.class("vision.FrozenBatchNorm2d")
--- A batch norm whose weight, bias and statistics are constants (buffers): x (N, C, H, W) -> the same shape.
M.FrozenBatchNorm2d = Frozen
Frozen.__init = signature.init("vision.FrozenBatchNorm2d(count num_features, number eps=1e-5)", function(self, o)
  self.eps = o.eps
  for name, value in require "moth.each" { weight = 1, bias = 0, running_mean = 0, running_var = 1 } do
    self:register_buffer(name, moth.full({ o.num_features }, value))
  end
  -- Files of batch norms have a count of batches, too.
  self:register_load_state_dict_pre_hook(function(_, values, prefix) values[prefix .. "num_batches_tracked"] = nil end)
end)
function Frozen:forward(x)
  local scale = self.weight * (self.running_var + self.eps):rsqrt()
  return x * scale:view(1, -1, 1, 1) + (self.bias - self.running_mean * scale):view(1, -1, 1, 1)
end

local Pyramid = nn.class("vision.FeaturePyramidNetwork")
--- A pyramid of features of one width (Lin et al. 2017): a list of maps, the finest first -> a list of maps of
-- out_channels, each with what the coarser ones see. extra = "p6p7": two maps more, each half
-- as large as the one before (RetinaNet's).
M.FeaturePyramidNetwork = Pyramid
Pyramid.__init = signature.init("vision.FeaturePyramidNetwork(int[] in_channels_list, count out_channels, *, \z
  string extra?)", function(self, o)
  if o.extra and o.extra ~= "p6p7" then
    check.fail("[vision.FeaturePyramidNetwork] extra must be 'p6p7', got '%s'", o.extra)
  end
  local inner, layers = {}, {}
  for i, channels in ipairs(o.in_channels_list) do
    inner[i] = nn.Sequential(nn.Conv2d(channels, o.out_channels, 1))
    layers[i] = nn.Sequential(nn.Conv2d(o.out_channels, o.out_channels, 3, { padding = 1 }))
  end
  self.inner_blocks, self.layer_blocks = nn.ModuleList(inner), nn.ModuleList(layers)
  if o.extra then
    local function half() return nn.Conv2d(o.out_channels, o.out_channels, 3, { stride = 2, padding = 1 }) end
    self.extra_blocks = nn.Sequential { { "p6", half() }, { "p7", half() } }
  end
  for _, m in self:named_modules() do
    if m.__name == "Conv2d" then
      nn.init.kaiming_uniform_(m.weight, { a = 1 })
      nn.init.zeros_(m.bias)
    end
  end
end)
function Pyramid:forward(maps)
  local n, out = #self.inner_blocks, {}
  if type(maps) ~= "table" or #maps ~= n then
    check.fail("[vision.FeaturePyramidNetwork] expected a list of %d maps, got %s", n,
      type(maps) == "table" and #maps or type(maps))
  end
  local above
  for i = n, 1, -1 do
    local x = self.inner_blocks[i](maps[i])
    if above then x = x + nn.functional.interpolate(above, { x:size(3), x:size(4) }, { mode = "nearest" }) end
    above, out[i] = x, self.layer_blocks[i](x)
  end
  if self.extra_blocks then
    out[n + 1] = self.extra_blocks[1](out[n])
    out[n + 2] = self.extra_blocks[2](moth.relu(out[n + 1]))
  end
  return out
end
return M
