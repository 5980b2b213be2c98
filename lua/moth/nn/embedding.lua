--- nn.Embedding and nn.EmbeddingBag: rows of the weight for indices, which count from 1.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local functional = require "moth.nn.functional"
local init = require "moth.nn.init_"

local M = {}

-- The fields and the weight (num_embeddings, embedding_dim) of both.
local function begin(self, where, o)
  local n, pad = o.num_embeddings, o.padding_idx
  if pad then
    if pad < 0 then pad = n + 1 + pad end
    if pad < 1 or pad > n then check.fail("[%s] padding_idx %d is beyond the %d rows", where, o.padding_idx, n) end
  end
  if o.max_norm and o.max_norm < 0 then check.fail("[%s] max_norm must not be negative, got %g", where, o.max_norm) end
  self.num_embeddings, self.embedding_dim, self.padding_idx, self.sparse = n, o.embedding_dim, pad, o.sparse
  self.max_norm, self.norm_type, self.scale_grad_by_freq = o.max_norm, o.norm_type, o.scale_grad_by_freq
end

local function fresh(self, o)
  local size = { self.num_embeddings, self.embedding_dim }
  self.weight = Parameter(moth.empty(size, { dtype = o.dtype, device = o.device }))
  self:reset()
end

-- Normal with mean 0 and deviation 1; the padding row is zeros.
local function reset(self)
  init.normal_(self.weight)
  if self.padding_idx then init.zeros_(self.weight:detach():select(1, self.padding_idx)) end
end

-- A module of `cls` around a given weight; it is not copied.
local function pretrained(cls, where, weight, o)
  if B.dim(weight) ~= 2 then check.fail("[%s] expected a matrix, got %s", where, B.format(weight)) end
  local self = rawget(cls, "__blank")(cls, B.size(weight, 1), B.size(weight, 2), o)
  self.weight = Parameter(weight, { requires_grad = not o.freeze })
  return self
end

local function float(x) return x == math.floor(x) and ("%.1f"):format(x) or ("%.14g"):format(x) end

-- What both print behind the sizes.
local function options(self)
  local text = self.padding_idx and (", padding_idx=%d"):format(self.padding_idx) or "" -- a position, from 1
  if self.max_norm then text = text .. ", max_norm=" .. float(self.max_norm) end
  if self.norm_type ~= 2 then text = text .. ", norm_type=" .. float(self.norm_type) end
  if self.scale_grad_by_freq then text = text .. ", scale_grad_by_freq=True" end
  return text
end

local Embedding = class("Embedding", Module)
M.Embedding = Embedding

--- weight (num_embeddings, embedding_dim). Row padding_idx starts as zeros and gets no gradient. max_norm, norm_type,
-- scale_grad_by_freq: see F.embedding. sparse: the gradient of the weight holds the rows read only (see moth.sparse).
Embedding.__init = signature.init("nn.Embedding(size num_embeddings, size embedding_dim, Index padding_idx?, \z
  number max_norm?, number norm_type=2, bool scale_grad_by_freq=false, bool sparse=false, *, device device?, \z
  dtype dtype?)", function(self, o)
  begin(self, "nn.Embedding", o)
  fresh(self, o)
end)
Embedding.reset = reset

--- nn.Embedding.from_pretrained(weight, freeze): an embedding of given rows, which are not copied; freeze: not trained.
Embedding.from_pretrained = signature("nn.Embedding.from_pretrained(Tensor embeddings, bool freeze=true, \z
  Index padding_idx?, number max_norm?, number norm_type=2, bool scale_grad_by_freq=false, bool sparse=false)",
  function(weight, freeze, padding_idx, max_norm, norm_type, by_freq, sparse)
    return pretrained(Embedding, "nn.Embedding.from_pretrained", weight, { freeze = freeze, padding_idx = padding_idx,
      max_norm = max_norm, norm_type = norm_type, scale_grad_by_freq = by_freq, sparse = sparse })
  end)

function Embedding.__blank(cls, n, d, o)
  local self = cls(0, d)
  o.num_embeddings, o.embedding_dim = n, d
  begin(self, "nn.Embedding.from_pretrained", o)
  return self
end

--- index (…) of an integer dtype -> (…, embedding_dim)
function Embedding:forward(index)
  return functional.embedding(index, self.weight, self.padding_idx, self.max_norm, self.norm_type,
    self.scale_grad_by_freq, self.sparse)
end

--- x (…, embedding_dim) -> (…, num_embeddings): products with the rows, as of a tied head
function Embedding:as_linear(x) return B.ops.linear(x, self.weight) end

function Embedding:extra_repr()
  return ("%d, %d%s%s"):format(self.num_embeddings, self.embedding_dim, options(self),
    self.sparse and ", sparse=True" or "")
end

local EmbeddingBag = class("EmbeddingBag", Module)
M.EmbeddingBag = EmbeddingBag

local function begin_bag(self, where, o)
  begin(self, where, o)
  self.mode, self.include_last_offset = o.mode, o.include_last_offset
end

--- Sums, means or maxima of bags of rows; see F.embedding_bag.
EmbeddingBag.__init = signature.init("nn.EmbeddingBag(size num_embeddings, size embedding_dim, number max_norm?, \z
  number norm_type=2, bool scale_grad_by_freq=false, 'mean'|'sum'|'max' mode='mean', bool sparse=false, *, \z
  bool include_last_offset=false, Index padding_idx?, device device?, dtype dtype?)", function(self, o)
  begin_bag(self, "nn.EmbeddingBag", o)
  fresh(self, o)
end)
EmbeddingBag.reset = reset

--- An EmbeddingBag whose rows are those of a matrix (num, dim); freeze: they are not trained.
EmbeddingBag.from_pretrained = signature("nn.EmbeddingBag.from_pretrained(Tensor embeddings, bool freeze=true, \z
  number max_norm?, number norm_type=2, bool scale_grad_by_freq=false, 'mean'|'sum'|'max' mode='mean', \z
  bool sparse=false, bool include_last_offset=false, Index padding_idx?)",
  function(weight, freeze, max_norm, norm_type, by_freq, mode, sparse, last, padding_idx)
    return pretrained(EmbeddingBag, "nn.EmbeddingBag.from_pretrained", weight, { freeze = freeze,
      padding_idx = padding_idx, max_norm = max_norm, norm_type = norm_type, scale_grad_by_freq = by_freq,
      sparse = sparse, mode = mode, include_last_offset = last })
  end)

function EmbeddingBag.__blank(cls, n, d, o)
  local self = cls(0, d)
  o.num_embeddings, o.embedding_dim = n, d
  begin_bag(self, "nn.EmbeddingBag.from_pretrained", o)
  return self
end

--- index (B, n), or a vector with the positions where bags begin -> (B, embedding_dim)
function EmbeddingBag:forward(index, offsets, per_sample_weights)
  return functional.embedding_bag(index, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
    self.mode, self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx)
end

function EmbeddingBag:extra_repr()
  local pad = self.padding_idx
  self.padding_idx = nil
  local text = options(self)
  self.padding_idx = pad
  return ("%d, %d%s, mode='%s'%s"):format(self.num_embeddings, self.embedding_dim, text, self.mode,
    pad and (", padding_idx=%d"):format(pad) or "")
end

return M
