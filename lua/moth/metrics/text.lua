--- Metrics of text: perplexity of a language model, BLEU of translations.
local metric = require "moth.metrics.metric"
local check = require "moth.utils.check"
local each = require "moth.each"
local moth = require "moth"
local define, value = metric.define, metric.value

local M = {}

--- exp of the mean cross entropy: preds are logits (batch, length, vocabulary), target token ids (batch, length), from
-- 1. Targets that are ignore_index do not count.
define(M, "Perplexity", "perplexity", "int ignore_index?", "Tensor preds, Tensor target", {
  states = function()
    return { total = moth.zeros({}, { dtype = moth.float64 }), n = moth.zeros({}, { dtype = moth.float64 }) }
  end,
  measure = function(self, preds, target)
    if preds:dim() ~= 3 or target:dim() ~= 2 or preds:size(1) ~= target:size(1) or preds:size(2) ~= target:size(2) then
      check.fail("[%s] preds must be (batch, length, vocabulary), target (batch, length), got [%s] and [%s]",
        self.__name, table.concat(preds.shape, ", "), table.concat(target.shape, ", "))
    end
    local flat = target:reshape(-1):to(moth.int64)
    local ignored = self.ignore_index or -100
    if preds:dtype() == moth.float16 or preds:dtype() == moth.bfloat16 then preds = preds:float() end -- for the sum
    local loss = moth.F.cross_entropy(preds:reshape(-1, preds:size(3)), flat,
      { reduction = "sum", ignore_index = ignored })
    return { total = loss, n = flat:ne(ignored):sum():to(moth.float64) }
  end,
  result = function(_, s) return value((s.total / s.n):exp()) end,
})

local function words(self, text)
  if type(text) == "table" then return text end
  if type(text) ~= "string" then
    check.fail("[%s] expected a sentence (a string, or a list of its words), got %s", self.__name, type(text))
  end
  local list = {}
  for w in text:gmatch("%S+") do list[#list + 1] = w end
  return list
end

-- How often each sequence of n words is in a sentence: key -> count, for one n.
local function ngrams(list, n)
  local counts = {}
  for i = 1, #list - n + 1 do
    local key = table.concat(list, "\0", i, i + n - 1)
    counts[key] = (counts[key] or 0) + 1
  end
  return counts
end

--- BLEU of a corpus: preds is a list of sentences, target a list with the references of each (a sentence or a list of
-- sentences). Words are separated by spaces; a sentence may be a list of words too. weights: of the n-grams.
-- A corpus without a common n-gram of each length has 0.
define(M, "BLEUScore", "bleu_score", "count n_gram=4, bool smooth=false, number[] weights?",
  "string|list preds, list target", {
    prepare = function(self)
      if self.weights and #self.weights ~= self.n_gram then
        check.fail("[%s] weights: expected %d numbers, got %d", self.__name, self.n_gram, #self.weights)
      end
    end,
    states = function(self)
      local function zeros(...) return moth.zeros({ ... }, { dtype = moth.float64 }) end
      return { hits = zeros(self.n_gram), all = zeros(self.n_gram), length = zeros(), wanted = zeros() }
    end,
    measure = function(self, preds, target)
      if type(preds) == "string" then preds, target = { preds }, { target } end
      if #preds ~= #target then
        check.fail("[%s] expected references for each of %d sentences, got %d", self.__name, #preds, #target)
      end
      local hits, all, length, wanted = {}, {}, 0, 0
      for n = 1, self.n_gram do hits[n], all[n] = 0, 0 end
      for i, pred in ipairs(preds) do
        local said, references, closest = words(self, pred), {}, nil
        local given = type(target[i]) == "table" and target[i] or { target[i] }
        if #given == 0 then check.fail("[%s] sentence %d has no reference", self.__name, i) end
        for k, text in ipairs(given) do
          references[k] = words(self, text)
          local n = #references[k]
          if not closest or math.abs(#said - n) < math.abs(#said - closest) then closest = n end
        end
        length, wanted = length + #said, wanted + closest
        for n = 1, self.n_gram do
          local most = {}
          for _, reference in ipairs(references) do
            for key, count in each(ngrams(reference, n)) do most[key] = math.max(most[key] or 0, count) end
          end
          for key, count in each(ngrams(said, n)) do
            all[n] = all[n] + count
            hits[n] = hits[n] + math.min(count, most[key] or 0)
          end
        end
      end
      local function tensor(v) return moth.tensor(v, { dtype = moth.float64 }) end
      return { hits = tensor(hits), all = tensor(all), length = moth.full({}, length, { dtype = moth.float64 }),
        wanted = moth.full({}, wanted, { dtype = moth.float64 }) }
    end,
    result = function(self, s)
      local hits, all, sum = s.hits:tolist(), s.all:tolist(), 0
      for n = 1, self.n_gram do
        if hits[n] == 0 then return value(moth.zeros({})) end
        local more = self.smooth and n > 1 and 1 or 0
        sum = sum + (self.weights and self.weights[n] or 1 / self.n_gram) * math.log((hits[n] + more) / (all[n] + more))
      end
      local length, wanted = s.length:item(), s.wanted:item()
      return value(moth.full({}, math.exp(sum + (length > wanted and 0 or 1 - wanted / length)),
        { dtype = moth.float64 }))
    end,
  })

return M
