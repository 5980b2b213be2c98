--- Words as pieces of a vocabulary: WordPiece (BERT) takes the longest that fits, Unigram (Kudo 2018) those whose
-- probabilities have the largest product, by Viterbi's algorithm. Both append ids to a list.
local check = require "moth.utils.check"

local M = {}

-- Bytes of the character at i.
local function size_at(s, i)
  local b = s:byte(i)
  local n = b < 0xc2 and 1 or b < 0xe0 and 2 or b < 0xf0 and 3 or b < 0xf5 and 4 or 1
  return math.min(n, #s - i + 1)
end

function M.WordPiece(tok, ids, word)
  local starts, i = {}, 1 -- where characters begin, and the end
  while i <= #word do
    starts[#starts + 1] = i
    i = i + size_at(word, i)
  end
  local count, at = #starts, 1
  starts[count + 1] = #word + 1
  local found = {}
  while at <= count and count <= tok.longest do
    local id, stop
    for k = count + 1, at + 1, -1 do
      id = tok.vocab[(at > 1 and tok.prefix or "") .. word:sub(starts[at], starts[k] - 1)]
      if id then
        stop = k
        break
      end
    end
    if not id then break end
    found[#found + 1], at = id, stop
  end
  if at <= count then found = { tok.unk } end
  for _, id in ipairs(found) do ids[#ids + 1] = id end
end

--- A word that is there, or the unknown one; nothing where there is none.
function M.WordLevel(tok, ids, word) ids[1] = tok.vocab[word] or tok.unk end

--- Reads the vocabulary of a Unigram model: { token, logarithm of its probability } in the order of ids.
function M.read_unigram(tok, model, value)
  local least = math.huge
  tok.scores, tok.longest = {}, 1
  for i, entry in ipairs(model.vocab) do
    local token, score = type(entry) == "table" and entry[1], type(entry) == "table" and entry[2]
    if type(token) ~= "string" or type(score) ~= "number" then
      check.fail("[data.Tokenizer] %s: piece %d is no text with a score", tok.path, i)
    end
    tok.vocab[token], tok.tokens[i], tok.scores[i] = i, token, score
    least, tok.longest = math.min(least, score), math.max(tok.longest, #token)
  end
  local unk = value(model.unk_id)
  tok.unk, tok.byte_fallback = unk and unk + 1, value(model.byte_fallback) -- by its id: a text may stand there twice
  tok.unk_token = unk and tok.tokens[unk + 1]
  tok.unk_score = least - 10
end

function M.Unigram(tok, ids, word)
  local n, best, from, by, i = #word, { [1] = 0 }, {}, {}, 1
  while i <= n do
    local size, single = size_at(word, i), false
    local j = i
    while j <= n and j - i < tok.longest do
      j = j + size_at(word, j)
      local id = tok.vocab[word:sub(i, j - 1)]
      if id then
        local score = best[i] + tok.scores[id]
        if not best[j] or score > best[j] then best[j], from[j], by[j] = score, i, id end
        single = single or j == i + size
      end
    end
    if not single then
      local score = best[i] + tok.unk_score
      if not best[i + size] or score > best[i + size] then
        best[i + size], from[i + size], by[i + size] = score, i, tok.unk or 0
      end
    end
    i = i + size
  end
  local parts, at = {}, n + 1
  while at > 1 do
    local start, id = from[at], by[at]
    if id == (tok.unk or 0) then -- neighbours that are unknown are one
      while start > 1 and by[start] == id do start = from[start] end
    end
    parts[#parts + 1], at = { id, start, at - 1 }, start
  end
  for k = #parts, 1, -1 do
    local id, first, last = unpack(parts[k])
    if id == 0 then
      check.fail("[data.Tokenizer] %s: its Unigram model has no unknown piece, and none of its pieces are in %q",
        tok.path, word:sub(first, last))
    end
    local own = id == tok.unk and tok.vocab[word:sub(first, last)]
    if id == tok.unk and tok.byte_fallback and not own then
      for c = first, last do ids[#ids + 1] = tok.byte_ids[word:byte(c)] end
    else
      ids[#ids + 1] = own or id
    end
  end
end

return M
