--- models.ViT, and vit_b_16, vit_b_32, vit_l_16: a transformer over patches of an image (Dosovitskiy et al. 2021), with
-- torchvision's names.
local moth = require "moth"
local each = require "moth.each"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local Block = nn.class("ViT.EncoderBlock")
function Block:__init(o)
  self.ln_1 = nn.LayerNorm(o.hidden_dim, { eps = 1e-6 })
  self.self_attention = nn.MultiheadAttention(o.hidden_dim, o.num_heads, { dropout = o.attention_dropout,
    batch_first = true })
  self.dropout = nn.Dropout(o.dropout)
  self.ln_2 = nn.LayerNorm(o.hidden_dim, { eps = 1e-6 })
  self.mlp = nn.Sequential(nn.Linear(o.hidden_dim, o.mlp_dim), nn.GELU(), nn.Dropout(o.dropout),
    nn.Linear(o.mlp_dim, o.hidden_dim), nn.Dropout(o.dropout))
end
function Block:forward(x)
  local y = self.ln_1(x)
  y = x + self.dropout((self.self_attention(y, y, y, { need_weights = false })))
  return y + self.mlp(self.ln_2(y))
end

local Encoder = nn.class("ViT.Encoder")
function Encoder:__init(o, length)
  self.pos_embedding = nn.Parameter(moth.randn(1, length, o.hidden_dim) * 0.02)
  self.dropout = nn.Dropout(o.dropout)
  local list = {}
  for i = 1, o.num_layers do list[i] = { "encoder_layer_" .. i - 1, Block(o) } end
  self.layers = nn.Sequential(list)
  self.ln = nn.LayerNorm(o.hidden_dim, { eps = 1e-6 })
end
function Encoder:forward(x) return self.ln(self.layers(self.dropout(x + self.pos_embedding))) end

local ViT = nn.class("ViT")

ViT.__init = signature.init("models.ViT(*, count image_size=224, count patch_size=16, count num_layers=12, \z
  count num_heads=12, count hidden_dim=768, count mlp_dim=3072, number dropout=0, number attention_dropout=0, \z
  count num_classes, count in_channels=3)", function(self, o)
  if o.image_size % o.patch_size ~= 0 then
    check.fail("[models.ViT] image_size (%d) must be a multiple of patch_size (%d)", o.image_size, o.patch_size)
  end
  self.image_size = o.image_size
  self.conv_proj = nn.Conv2d(o.in_channels, o.hidden_dim, o.patch_size, { stride = o.patch_size })
  self.class_token = nn.Parameter(moth.zeros(1, 1, o.hidden_dim))
  self.encoder = Encoder(o, (o.image_size / o.patch_size) ^ 2 + 1)
  self.heads = nn.Sequential { { "head", nn.Linear(o.hidden_dim, o.num_classes) } }
  nn.init.normal_(self.conv_proj.weight, 0, math.sqrt(1 / (o.in_channels * o.patch_size ^ 2)))
  nn.init.zeros_(self.conv_proj.bias)
  nn.init.zeros_(self.heads[1].weight)
  nn.init.zeros_(self.heads[1].bias)
end)

--- x (N, 3, image_size, image_size) -> scores (N, num_classes)
function ViT:forward(x)
  check.tensor("models.ViT", "x", x)
  local n, h, w = x:size(1), x:size(3), x:size(4)
  if h ~= self.image_size or w ~= self.image_size then
    check.fail("[models.ViT] expected images of %d x %d, got %d x %d", self.image_size, self.image_size, h, w)
  end
  local patches = moth.flatten(self.conv_proj(x), 3):transpose(2, 3)
  local tokens = moth.cat({ self.class_token:expand(n, -1, -1), patches }, 2)
  return self.heads(self.encoder(tokens):select(2, 1))
end

local M = { ViT = ViT }
for name, of in each { vit_b_16 = { 16, 12, 12, 768, 3072 }, vit_b_32 = { 32, 12, 12, 768, 3072 },
  vit_l_16 = { 16, 24, 16, 1024, 4096 } } do
  --- A ViT of this size (base, large) and patch: images (N, 3, image_size, image_size) -> scores (N, num_classes).
  M[name] = signature(("models.%s(*, count num_classes=1000, count image_size=224, number dropout=0)"):format(name),
    function(num_classes, image_size, dropout)
      return ViT { patch_size = of[1], num_layers = of[2], num_heads = of[3], hidden_dim = of[4], mlp_dim = of[5],
        num_classes = num_classes, image_size = image_size, dropout = dropout }
    end)
end
return M
