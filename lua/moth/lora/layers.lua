--- The layers of moth.lora: a frozen layer and a product of two small matrices that is added to it.
--
-- scaling is alpha / r, or alpha / sqrt(r) of rank-stabilized LoRA. The names of the parameters are PEFT's.
local class = require "moth.class"
local moth = require "moth"
local nn = moth.nn

local M = {}

-- The dtype of what is trained beside a layer: floats of its weight, float32 beside a quantized one.
local function like(base)
  local w = base.weight
  local floats = moth.is_tensor(w) and w:is_floating_point()
  return { dtype = floats and w:dtype() or moth.float32, device = moth.is_tensor(w) and w:device() or nil }
end

local LoRA = nn.class "LoRALayer"

--- o: r, alpha, dropout, rslora.
local function begin(self, base, o)
  self.base_layer, self.r, self.alpha, self.rslora = base, o.r, o.alpha, o.rslora or false
  self.scaling = o.alpha / (self.rslora and math.sqrt(o.r) or o.r)
  self.lora_dropout = o.dropout > 0 and nn.Dropout(o.dropout) or nn.Identity()
end

--- Adds the product to the weight of the layer below, or to a copy of it where others use it, and gives this layer.
function LoRA:merged(is_shared)
  local base = self.base_layer
  moth.no_grad(function()
    local delta = self:delta()
    if is_shared then base.weight = nn.Parameter(base.weight:clone(), base.weight:requires_grad()) end
    base.weight:copy_((base.weight:to(delta:dtype()) + delta):to(base.weight:dtype()))
  end)
  return base
end
--- What a conversion of the model's dtype says.
function LoRA:extra_repr() return ("r=%d, alpha=%g"):format(self.r, self.alpha) end

local Linear = nn.class("LoRALinear", LoRA)
M.Linear = Linear
--- Around nn.Linear, or a layer that is like it (quantization.BlockLinear).
function Linear:__init(base, o)
  begin(self, base, o)
  local at = like(base)
  self.lora_A = nn.Linear(base.in_features, o.r, { bias = false, dtype = at.dtype, device = at.device })
  self.lora_B = nn.Linear(o.r, base.out_features, { bias = false, dtype = at.dtype, device = at.device })
  nn.init.zeros_(self.lora_B.weight)
end
function Linear:forward(x)
  local y = self.base_layer(x)
  local z = self.lora_dropout(x:to(self.lora_A.weight:dtype()))
  return y + (self.lora_B(self.lora_A(z)) * self.scaling):to(y:dtype())
end
--- What is added to the weight.
function Linear:delta() return self.lora_B.weight:matmul(self.lora_A.weight) * self.scaling end

local Embedding = nn.class("LoRAEmbedding", LoRA)
M.Embedding = Embedding
--- Around nn.Embedding.
function Embedding:__init(base, o)
  begin(self, base, o)
  local at = like(base)
  self.lora_embedding_A = nn.Parameter(moth.zeros({ o.r, base.num_embeddings }, at))
  self.lora_embedding_B = nn.Parameter(moth.randn({ base.embedding_dim, o.r }, at))
end
function Embedding:forward(ids)
  local base = self.base_layer
  local rows = moth.F.embedding(ids, self.lora_embedding_A:t(), base.padding_idx)
  return base(ids) + rows:matmul(self.lora_embedding_B:t()) * self.scaling
end
--- What is added to the weight.
function Embedding:delta() return self.lora_embedding_B:matmul(self.lora_embedding_A):t() * self.scaling end

--- Whether a module is one of these.
function M.is(m) return class.is_a(m, LoRA) end

return M
