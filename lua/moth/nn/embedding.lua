--- nn.Embedding: a row of the weight for each index; indices count from 1.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local functional = require "moth.nn.functional"
local init = require "moth.nn.init_"

local Embedding = class("Embedding", Module)

--- @tparam int num_embeddings @tparam int embedding_dim
-- @tparam[opt] table o padding_idx (this row starts as zeros and gets no gradient), sparse (false: the gradient of the
-- weight holds the rows read only, see moth.row_grad), dtype, device
-- weight (num_embeddings, embedding_dim)
function Embedding:__init(num_embeddings, embedding_dim, o)
  o = check.options("nn.Embedding", o, "padding_idx sparse dtype device")
  self.num_embeddings = check.integer("nn.Embedding", "num_embeddings", num_embeddings)
  self.embedding_dim = check.integer("nn.Embedding", "embedding_dim", embedding_dim)
  local pad = o.padding_idx
  if pad then
    if pad < 0 then pad = num_embeddings + 1 + pad end
    check.integer("nn.Embedding", "padding_idx", pad, 1)
    if pad > num_embeddings then
      check.fail("nn.Embedding: padding_idx %d is beyond the %d rows", pad, num_embeddings)
    end
    self.padding_idx = pad
  end
  self.weight = Parameter(moth.empty({ num_embeddings, embedding_dim }, { dtype = o.dtype, device = o.device }))
  self.sparse = o.sparse == true
  self:reset()
end

--- Normal with mean 0 and deviation 1; the padding row is zeros.
function Embedding:reset()
  init.normal_(self.weight)
  if self.padding_idx then init.zeros_(self.weight:detach():select(1, self.padding_idx)) end
end

--- index (…) of an integer dtype -> (…, embedding_dim)
function Embedding:forward(index)
  return functional.embedding(index, self.weight, { padding_idx = self.padding_idx, sparse = self.sparse })
end

function Embedding:extra_repr()
  local pad = self.padding_idx and (", padding_idx=%d"):format(self.padding_idx - 1) or "" -- PyTorch's listing
  return ("%d, %d%s%s"):format(self.num_embeddings, self.embedding_dim, pad, self.sparse and ", sparse=True" or "")
end

return Embedding
