--- models.swin_t, swin_s, swin_b: attention inside windows that are shifted from block to block (Liu et al. 2021), with
-- torchvision's names; swin_v2_t, _s, _b: with cosines, and norms after the branches (Liu et al. 2022).
local moth = require "moth"
local each = require "moth.each"
local nn = require "moth.nn"
local blocks = require "moth.models.blocks"
local signature = require "moth.utils.signature"

-- Of each pair of places of a window, which of its (2w - 1)^2 distances it has, from 0, as in torchvision's files.
local function distances(w)
  local at = moth.arange(0, w * w, { dtype = moth.int64 })
  local y, x = at:floor_divide(w), at % w
  local dy, dx = y:unsqueeze(2) - y + (w - 1), x:unsqueeze(2) - x + (w - 1)
  return (dy * (2 * w - 1) + dx):flatten()
end

local Attention = nn.class("Swin.WindowAttention")
function Attention:__init(dim, heads, window, shift, v2)
  self.heads, self.window, self.shift, self.v2 = heads, window, shift, v2
  self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
  if v2 then
    self.logit_scale = nn.Parameter(moth.full({ heads, 1, 1 }, math.log(10)))
    self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, heads, { bias = false }))
    -- Distances from -8 to 8 in place of those of the window, and their logarithms.
    local d = moth.arange(1 - window, window, { dtype = moth.get_default_dtype() }) / (window - 1) * 8
    local log = d:sign() * (d:abs() + 1):log2() / 3
    local n = 2 * window - 1
    self:register_buffer("relative_coords_table", moth.stack({ log:unsqueeze(2):expand(n, n), log:expand(n, n) }, 3)
      :unsqueeze(1))
    nn.init.zeros_(self.qkv.bias:narrow(1, dim + 1, dim))
  else
    self.relative_position_bias_table = nn.Parameter(moth.zeros((2 * window - 1) ^ 2, heads))
    nn.init.trunc_normal_(self.relative_position_bias_table, { std = 0.02 })
  end
  self:register_buffer("relative_position_index", distances(window))
end

-- The bias of each head and pair of places: (1, heads, w * w, w * w).
function Attention:bias()
  local n = self.window ^ 2
  local table = self.v2 and self.cpb_mlp(self.relative_coords_table):view(-1, self.heads)
    or self.relative_position_bias_table
  local bias = table:index_select(1, self.relative_position_index + 1):view(n, n, self.heads):permute(3, 1, 2)
  return (self.v2 and bias:sigmoid() * 16 or bias):unsqueeze(1)
end

-- Places of a shifted image that were not neighbours do not see each other: (windows, 1, w * w, w * w) of 0 and -100.
local function mask_of(h, w, window, shift, like)
  local regions = moth.zeros({ h, w }, { device = like:device(), dtype = like:dtype() })
  local count = 0
  local function spans(size, by)
    if by == 0 then return { { 1, size } } end
    return { { 1, size - window }, { size - window + 1, window - by }, { size - by + 1, by } }
  end
  for _, rows in ipairs(spans(h, shift[1])) do
    for _, columns in ipairs(spans(w, shift[2])) do
      if rows[2] > 0 and columns[2] > 0 then
        regions:narrow(1, rows[1], rows[2]):narrow(2, columns[1], columns[2]):fill_(count)
      end
      count = count + 1
    end
  end
  regions = regions:view(h / window, window, w / window, window):permute(1, 3, 2, 4):reshape(-1, window * window)
  return regions:unsqueeze(2):ne(regions:unsqueeze(3)):to(like:dtype()):mul(-100):unsqueeze(2)
end

--- x (N, H, W, C) -> the same shape
function Attention:forward(x)
  local n, h, w, c, window = x:size(1), x:size(2), x:size(3), x:size(4), self.window
  local down, right = (window - h % window) % window, (window - w % window) % window
  x = nn.functional.pad(x, { 0, 0, 0, right, 0, down })
  local ph, pw = h + down, w + right
  local shift = { window < ph and self.shift or 0, window < pw and self.shift or 0 }
  local shifted = shift[1] + shift[2] > 0
  if shifted then x = x:roll({ -shift[1], -shift[2] }, { 2, 3 }) end
  local windows, places, width = (ph / window) * (pw / window), window * window, c / self.heads
  x = x:view(n, ph / window, window, pw / window, window, c):permute(1, 2, 4, 3, 5, 6):reshape(-1, places, c)
  local qkv
  if self.v2 then -- keys without a bias
    local bias = self.qkv.bias:clone()
    bias:narrow(1, c + 1, c):zero_()
    qkv = nn.functional.linear(x, self.qkv.weight, bias)
  else
    qkv = self.qkv(x)
  end
  qkv = qkv:view(-1, places, 3, self.heads, width):permute(3, 1, 4, 2, 5)
  local q, k, v = qkv[1], qkv[2], qkv[3]
  local scores
  if self.v2 then
    scores = nn.functional.normalize(q, { dim = -1 }):matmul(nn.functional.normalize(k, { dim = -1 }):transpose(-2, -1))
      * self.logit_scale:clamp_max(math.log(100)):exp()
  else
    scores = (q * width ^ -0.5):matmul(k:transpose(-2, -1))
  end
  local bias = self:bias() -- with the mask first: it is smaller than the scores of all images
  if shifted then bias = bias + mask_of(ph, pw, window, shift, x) end
  scores = (scores:view(n, windows, self.heads, places, places) + bias):view(-1, self.heads, places, places)
  x = self.proj(scores:softmax(-1):matmul(v):transpose(2, 3):reshape(-1, places, c))
  x = x:view(n, ph / window, pw / window, window, window, c):permute(1, 2, 4, 3, 5, 6):reshape(n, ph, pw, c)
  if shifted then x = x:roll({ shift[1], shift[2] }, { 2, 3 }) end
  return x:narrow(2, 1, h):narrow(3, 1, w)
end

local Block = nn.class("Swin.Block")
function Block:__init(dim, heads, window, shift, p, v2)
  self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim, heads, window, shift, v2)
  self.norm2 = nn.LayerNorm(dim)
  self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0), nn.Linear(4 * dim, dim), nn.Dropout(0))
  self.stochastic_depth, self.v2 = blocks.StochasticDepth(p), v2
end
function Block:forward(x)
  local drop = self.stochastic_depth
  if self.v2 then
    x = x + drop(self.norm1(self.attn(x)))
    return x + drop(self.norm2(self.mlp(x)))
  end
  x = x + drop(self.attn(self.norm1(x)))
  return x + drop(self.mlp(self.norm2(x)))
end

local Merging = nn.class("Swin.PatchMerging")
function Merging:__init(dim, v2)
  self.reduction = nn.Linear(4 * dim, 2 * dim, { bias = false })
  self.norm, self.v2 = nn.LayerNorm(v2 and 2 * dim or 4 * dim), v2
end
--- x (N, H, W, C) -> (N, H / 2, W / 2, 2 C), odd sizes made even by zeros
function Merging:forward(x)
  x = nn.functional.pad(x, { 0, 0, 0, x:size(3) % 2, 0, x:size(2) % 2 })
  local n, h, w, c = x:size(1), x:size(2) / 2, x:size(3) / 2, x:size(4)
  -- (column, row) of each pair of two are the outer parts of the channels.
  x = x:view(n, h, 2, w, 2, c):permute(1, 2, 4, 5, 3, 6):reshape(n, h, w, 4 * c)
  return self.v2 and self.norm(self.reduction(x)) or self.reduction(self.norm(x))
end

local Swin = nn.class("SwinTransformer")
function Swin:__init(dim, depths, heads, window, v2, o)
  local total, done = -1, 0
  for _, n in ipairs(depths) do total = total + n end
  local list = { nn.Sequential(nn.Conv2d(o.in_channels, dim, 4, { stride = 4 }), blocks.Permute { 1, 3, 4, 2 },
    nn.LayerNorm(dim)) }
  for i, n in ipairs(depths) do
    local stage = {}
    for k = 1, n do
      stage[k] = Block(dim, heads[i], window, k % 2 == 0 and math.floor(window / 2) or 0,
        o.stochastic_depth_prob * done / total, v2)
      done = done + 1
    end
    list[#list + 1] = nn.Sequential(stage)
    if i < #depths then
      list[#list + 1] = Merging(dim, v2)
      dim = 2 * dim
    end
  end
  self.features, self.norm, self.head = nn.Sequential(list), nn.LayerNorm(dim), nn.Linear(dim, o.num_classes)
  for _, m in self:named_modules() do
    if m.__name == "Linear" then
      nn.init.trunc_normal_(m.weight, { std = 0.02 })
      if m.bias then nn.init.zeros_(m.bias) end
    end
  end
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function Swin:forward(x) return self.head(self.norm(self.features(x)):mean { 2, 3 }) end

local t, s = { 2, 2, 6, 2 }, { 2, 2, 18, 2 }
local small, large = { 3, 6, 12, 24 }, { 4, 8, 16, 32 }
local M = {}
for size, of in each { t = { 96, t, small, 7, 0.2 }, s = { 96, s, small, 7, 0.3 }, b = { 128, s, large, 7, 0.5 },
  v2_t = { 96, t, small, 8, 0.2 }, v2_s = { 96, s, small, 8, 0.3 }, v2_b = { 128, s, large, 8, 0.5 } } do
  local name, v2 = "swin_" .. size, size:sub(1, 2) == "v2"
  --- A Swin transformer (Liu et al. 2021; v2: 2022) of this size: images (N, in_channels, H, W) -> scores (N,
  -- num_classes). stochastic_depth_prob: of the last block.
  M[name] = signature(("models.%s(*, count num_classes=1000, count in_channels=3, number stochastic_depth_prob=%g)")
    :format(name, of[5]), function(num_classes, in_channels, stochastic_depth_prob)
      return Swin(of[1], of[2], of[3], of[4], v2, { num_classes = num_classes, in_channels = in_channels,
        stochastic_depth_prob = stochastic_depth_prob })
    end)
end
return M
