--- nn.Embedding: a row of the weight for each index; indices count from 1.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local functional = require "moth.nn.functional"
local init = require "moth.nn.init_"

local Embedding = class("Embedding", Module)

--- weight (num_embeddings, embedding_dim). Row padding_idx starts as zeros and gets no gradient. sparse: the gradient
-- of the weight holds the rows read only (see moth.row_grad).
Embedding.__init = signature.init("nn.Embedding(size num_embeddings, size embedding_dim, Index padding_idx?, *, \z
  bool sparse=false, device device?, dtype dtype?)", function(self, o)
  local n, pad = o.num_embeddings, o.padding_idx
  if pad then
    if pad < 0 then pad = n + 1 + pad end
    if pad < 1 or pad > n then
      check.fail("[nn.Embedding] padding_idx %d is beyond the %d rows", o.padding_idx, n)
    end
  end
  self.num_embeddings, self.embedding_dim, self.padding_idx, self.sparse = n, o.embedding_dim, pad, o.sparse
  self.weight = Parameter(moth.empty({ n, o.embedding_dim }, { dtype = o.dtype, device = o.device }))
  self:reset()
end)

--- Normal with mean 0 and deviation 1; the padding row is zeros.
function Embedding:reset()
  init.normal_(self.weight)
  if self.padding_idx then init.zeros_(self.weight:detach():select(1, self.padding_idx)) end
end

--- index (…) of an integer dtype -> (…, embedding_dim)
function Embedding:forward(index)
  return functional.embedding(index, self.weight, self.padding_idx, { sparse = self.sparse })
end

function Embedding:extra_repr()
  local pad = self.padding_idx and (", padding_idx=%d"):format(self.padding_idx) or "" -- a position, from 1
  return ("%d, %d%s%s"):format(self.num_embeddings, self.embedding_dim, pad, self.sparse and ", sparse=True" or "")
end

return Embedding
