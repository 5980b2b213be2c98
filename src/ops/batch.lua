-- How a call with batched tensors (moth.func.vmap) becomes a call with a dimension more: a rule that follows from the
-- kind of an op and from its patterns, for src/dispatch/batch_rules.c. A record says `batch` only where these do not tell.
--
--   pointwise  operands are broadcast behind the dimension of the batch
--   front      the dimension stands in front of the dimensions of some arguments, which the op leaves as they are: of
--              all tensors of a view, reduction or scan; of those whose patterns begin with the same *dimensions as the
--              first result's
--   fold       the dimension is folded into the first one, which the op does not look into: of the arguments whose
--              patterns begin with the same name as the first result's
--   matmul     products of batches of matrices
--   random     as vmap's `randomness` says
--   error      the sizes of results depend on elements
--   loop       a call for each element
local M = {}

M.names = { "loop", "pointwise", "front", "fold", "matmul", "random", "error" } -- in the order of MothBatchRule

local by_kind = { pointwise = "pointwise", view = "front", reduce = "front", scan = "front", matmul = "matmul",
  random = "random", window = "fold" }

local function first_word(pattern) return type(pattern) == "string" and pattern:match("^%s*([^%s:]+)") or nil end
local function first_result(op) return first_word(type(op.out) == "table" and op.out[1] or op.out) end

-- The arguments whose patterns begin as the first result's does.
local function alike(op)
  local word, mask = first_result(op), 0
  local of_list = word and op.index[word:match("^%*([%w_]+)$") or ""]
  if of_list then word = first_word((op.dims or {})[of_list.name]) end
  for _, a in ipairs(op.args) do
    if word and first_word((op.dims or {})[a.name]) == word then mask = mask + 2 ^ a.at end
  end
  return mask, word
end

local function all_tensors(op)
  local mask = 0
  for _, a in ipairs(op.args) do
    if a.type == "TENSOR" or a.type == "OPERAND" or a.type == "TENSORS" or (a.type == "INTS" and op.kind == "view") then
      mask = mask + 2 ^ a.at
    end
  end
  return mask
end

--- The rule of an op; for front and fold the mask of the arguments that may have the dimension; for fold the number of
-- dimensions of those arguments, where a pattern tells (0: any).
function M.rule(op)
  local mask, word = alike(op)
  local rule = op.batch or by_kind[op.kind]
  if op.shape == "dynamic" and op.kind ~= "composite" then return "error", 0, 0 end
  if not rule and op.kind ~= "composite" and op.kind ~= "effect" and word and word:find("^%*") then rule = "front" end
  if rule == "front" and (op.batch or op.kind ~= "fused" and not (word and word:find("^%*"))) then
    mask = all_tensors(op)
  end
  if rule == "fold" and (not word or word:find("^%*")) then rule = "loop" end
  local ndim = 0
  for _, a in ipairs(rule == "fold" and op.args or {}) do
    if ndim == 0 and math.floor(mask / 2 ^ a.at) % 2 == 1 then
      local shape = op.dims[a.name]:gsub(":.*", "")
      if not shape:find("*", 1, true) then ndim = select(2, shape:gsub("%S+", "")) end
    end
  end
  return rule or "loop", (rule == "front" or rule == "fold") and mask or 0, ndim
end

return M
