--- Layers whose weight stays in the blocks of a GGUF type: models.load puts them in for the quantized tensors of a
-- .gguf file, whose bytes they map, and moth.quantization.quantize_blocks for floats.
--
-- The state dict has weight (uint8: rows of blocks), bias, and block_type, the type's number in GGUF files. Activations
-- are rounded to int8 where nothing is to be differentiated; else the weight is made floats for the call.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local class = require "moth.class"
local Module = require "moth.nn.module"
local signature = require "moth.utils.signature"
local state_dict = require "moth.nn.state_dict"

local M = {}

local types = B.gguf_blocks() -- name -> { number, elements, bytes }

local function elements(name, bytes) return bytes / types[name].bytes * types[name].elements end

--- Whether a tensor of a GGUF file, of this type there, is rows of blocks; and the elements of its rows.
function M.is(t, name) return types[name] ~= nil and t:dtype() == moth.uint8 end
function M.columns(t, name)
  local n = t:size(t:dim())
  return M.is(t, name) and elements(name, n) or n
end

--- The type's number in GGUF files.
function M.number(name) return types[name].number end

local function begin(self, weight, kind)
  local where = self.__name
  local t = types[kind]
  if not t then check.fail("[%s] type '%s' is not known as one of blocks", where, tostring(kind)) end
  if weight:dtype() ~= moth.uint8 or weight:dim() ~= 2 or weight:size(2) % t.bytes ~= 0 then
    check.fail("[%s] weight: expected uint8 (rows, bytes) of blocks of %d bytes (%s), got %s %s", where, t.bytes, kind,
      weight:dtype().name, tostring(weight:size()))
  end
  self.type, self.training = kind, false
  self:register_buffer("weight", B.detach(weight, false)) -- no view: another's may be assigned
  self:register_buffer("block_type", moth.tensor(t.number, { dtype = moth.int64 }))
  state_dict.register(self, "load_state_dict_post", function()
    local number = self.block_type:item()
    if number == t.number then return end
    self.block_type:fill_(t.number)
    check.fail("[%s] the state dict has blocks of GGUF's type %d, the layer those of %s (%d)", where, number, kind,
      t.number)
  end)
end

local function floats(self, dtype) return moth.unpack_blocks(self.weight, self.type, dtype) end

local function product(self, x, bias)
  if x:requires_grad() and moth.is_grad_enabled() then return moth.linear(x, floats(self, x:dtype()), bias) end
  return moth.linear_blocks(x, self.weight, self.type, bias)
end

local Linear = class("BlockLinear", Module)
M.BlockLinear = Linear
Linear.__quantized = true

--- weight: uint8 (out_features, bytes of a row); bias (out_features) or nil.
Linear.__init = signature.init("quantization.BlockLinear(Tensor weight, string type, Tensor bias?)", function(self, o)
  begin(self, o.weight, o.type)
  self.out_features, self.in_features = o.weight:size(1), elements(o.type, o.weight:size(2))
  if o.bias then self:register_buffer("bias", B.detach(o.bias, false)) end
end)

--- x (…, in_features) -> (…, out_features)
function Linear:forward(x) return product(self, x, self.bias) end

--- The weight in floats, (out_features, in_features).
function Linear:dequantized(dtype) return floats(self, dtype) end

--- The bytes of the weight in a file.
function Linear:bytes() return self.weight:numel() end

function Linear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s, %s"):format(self.in_features, self.out_features,
    self.bias and "True" or "False", self.type)
end

local Embedding = class("BlockEmbedding", Module)
M.BlockEmbedding = Embedding
Embedding.__quantized = true

--- weight: uint8 (num_embeddings, bytes of a row). Rows are float32, or of the dtype that the module was brought to.
Embedding.__init = signature.init("quantization.BlockEmbedding(Tensor weight, string type)", function(self, o)
  begin(self, o.weight, o.type)
  self.num_embeddings, self.embedding_dim = o.weight:size(1), elements(o.type, o.weight:size(2))
  self:register_buffer("like", moth.zeros(0), { persistent = false })
end)

--- index (…) of an integer dtype -> (…, embedding_dim)
function Embedding:forward(index) return moth.embedding_blocks(self.weight, self.type, index, self.like:dtype()) end

--- x (…, embedding_dim) -> (…, num_embeddings): products with the rows, as of a tied head
function Embedding:as_linear(x) return product(self, x) end

Embedding.dequantized, Embedding.bytes = Linear.dequantized, Linear.bytes

function Embedding:extra_repr() return ("%d, %d, %s"):format(self.num_embeddings, self.embedding_dim, self.type) end

--- { path of a weight = type } of such layers of a model.
function M.types(model)
  local out = {}
  for path, m in model:named_modules() do
    local kind = getmetatable(m)
    if kind == Linear or kind == Embedding then out[path == "" and "weight" or path .. ".weight"] = m.type end
  end
  return out
end

--- Puts such layers in the places of a model's nn.Linear and nn.Embedding, for which blocks(path, layer) gives the
-- rows of uint8, the type and the bias (left out: the layer's); nil leaves a layer as it is. Layers of classes that
-- were made of those stay, too.
function M.replace(model, blocks)
  for path, m in model:named_modules() do
    for name, child in m:named_children() do
      local kind = getmetatable(child)
      if kind == moth.nn.Linear or kind == moth.nn.Embedding then
        local weight, of, bias = blocks(path == "" and name or path .. "." .. name, child)
        if weight then
          m[name] = kind == moth.nn.Linear and Linear(weight, of, bias or child.bias) or Embedding(weight, of)
        end
      end
    end
  end
  return model
end

--- The same model with blocks of Q8_0 or Q4_0 in place of the floats of its nn.Linear and nn.Embedding layers whose
-- rows are whole blocks of 32; others stay, with a warning. keep: patterns of paths that stay as they are. The floats
-- of a layer go before the next is made. Errors: no layer can be made blocks.
M.quantize_blocks = signature("quantization.quantize_blocks(Module model, string type='Q8_0', *, string[] keep?)",
function(model, kind, keep)
  if kind ~= "Q8_0" and kind ~= "Q4_0" then -- before anything is changed
    check.fail("[quantization.quantize_blocks] type '%s' cannot be made; there are Q8_0 and Q4_0", kind)
  end
  local gguf = require "moth.io.gguf"
  local made, odd = 0, {}
  moth.no_grad(M.replace, model, function(path, layer)
    for _, pattern in ipairs(keep or {}) do
      if path:find(pattern) then return nil end
    end
    if layer.weight:size(2) % 32 == 0 then
      made = made + 1
      return gguf.blocks(layer.weight:detach(), kind, path), kind
    end
    odd[#odd + 1] = ("%s (rows of %d)"):format(path, layer.weight:size(2))
  end)
  if made == 0 then
    check.fail("[quantization.quantize_blocks] the model has no nn.Linear or nn.Embedding whose rows are multiples of "
      .. "32%s", #odd > 0 and ", as " .. odd[1] or "")
  elseif #odd > 0 then
    check.warn("[quantization.quantize_blocks] %d of %d layers stay floats, as their rows are no multiples of 32: %s%s",
      #odd, #odd + made, odd[1], #odd > 1 and ", …" or "")
  end
  return model
end)

return M
