-- Pairs of texts, and tokens that a model's own vocabulary has not: the ids of tokenizers 0.23.
local moth = require "moth"

local words = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "f" }
local vocab = {}
for i, w in ipairs(words) do vocab[w] = i - 1 end

local function from_0(ids)
  local out = {}
  for k, id in ipairs(ids) do out[k] = id - 1 end
  return out
end

local function item(name, kind)
  if name:find "^%[" then return { SpecialToken = { id = name, type_id = kind } } end
  return { Sequence = { id = name, type_id = kind } }
end
local template = { type = "TemplateProcessing", single = { item("[CLS]", 0), item("A", 0), item("[SEP]", 0) },
  pair = { item("[CLS]", 0), item("A", 0), item("[SEP]", 0), item("B", 1), item("[SEP]", 1) },
  special_tokens = { ["[CLS]"] = { ids = { 2 } }, ["[SEP]"] = { ids = { 3 } } } }

local function of(post, truncation, padding)
  return moth.data.Tokenizer { model = { type = "WordLevel", vocab = vocab, unk_token = "[UNK]" },
    pre_tokenizer = { type = "WhitespaceSplit" }, post_processor = post, truncation = truncation, padding = padding }
end

local A, B = "a b c d e", "f a b"

describe("data.Tokenizer", function()
  it("joins pairs of texts as the file says, with the kinds of their tokens", function()
    local function pair(post, special)
      local ids, kinds = of(post):encode(A, special, { pair = B })
      return { table.concat(from_0(ids), " "), table.concat(from_0(kinds), " ") }
    end
    local bert, roberta = { type = "BertProcessing", sep = { "[SEP]", 3 }, cls = { "[CLS]", 2 } }, {}
    for k, v in pairs(bert) do roberta[k] = v end
    roberta.type = "RobertaProcessing"
    local plain = { "4 5 6 7 8 9 4 5", "0 0 0 0 0 1 1 1" }
    for _, post in ipairs { template, bert } do
      assert.same({ "2 4 5 6 7 8 3 9 4 5 3", "0 0 0 0 0 0 0 1 1 1 1" }, pair(post, true))
      assert.same(plain, pair(post, false))
    end
    assert.same({ "2 4 5 6 7 8 3 3 9 4 5 3", "0 0 0 0 0 0 0 0 0 0 0 0" }, pair(roberta, true))
    assert.same({ plain[1], "0 0 0 0 0 0 0 0" }, pair(roberta, false))
    assert.same(plain, pair(nil, true))
    assert.same({ 3, 5, 4 }, (of(template):encode("a", true))) -- one text as before
    assert.is_nil(select(2, of(template):encode("a", true)))
    assert.same({ "2 3 3", "0 0 1" }, (function()
      local ids, kinds = of(template):encode("", true, { pair = "" })
      return { table.concat(from_0(ids), " "), table.concat(from_0(kinds), " ") }
    end)())
  end)

  it("cuts pairs: the longer first, the first or the second; from each side", function()
    for line in ([[
      LongestFirst Right 6 | 2 4 5 3 9 3 | 2 9 3 4 5 3
      LongestFirst Right 8 | 2 4 5 6 3 9 4 3 | 2 9 4 3 4 5 6 3
      LongestFirst Right 9 | 2 4 5 6 3 9 4 5 3 | 2 9 4 5 3 4 5 6 3
      LongestFirst Left 6 | 2 7 8 3 5 3 | 2 5 3 7 8 3
      LongestFirst Left 8 | 2 6 7 8 3 4 5 3 | 2 4 5 3 6 7 8 3
      OnlyFirst Right 8 | 2 4 5 3 9 4 5 3 |
      OnlyFirst Left 9 | 2 6 7 8 3 9 4 5 3 | 2 5 3 4 5 6 7 8 3
      OnlySecond Right 9 | 2 4 5 6 7 8 3 9 3 | 2 9 4 5 3 4 5 6 3
      OnlySecond Left 8 | | 2 9 4 5 3 7 8 3
      OnlySecond Left 9 | 2 4 5 6 7 8 3 5 3 | 2 9 4 5 3 6 7 8 3]]):gmatch "[^\n]+" do
      local strategy, direction, most, first, second = line:match "(%a+) (%a+) (%d) |(.-)|(.*)"
      local tok = of(template, { strategy = strategy, direction = direction, max_length = tonumber(most), stride = 0 })
      for k, want in ipairs { first, second } do
        local ok, ids = pcall(tok.encode, tok, k == 1 and A or B, true, { pair = k == 1 and B or A })
        if want:find "%d" then
          assert.equal(want:match "^%s*(.-)%s*$", table.concat(from_0(ids), " "), line)
        else
          assert.is_false(ok, line)
          assert.matches("which is too short to be cut so far; %d tokens, at most %d", ids)
        end
      end
    end
  end)

  it("makes batches with special tokens, and of pairs", function()
    local tok = of(template)
    local ids, mask, kinds = tok({ A, "a" }, { add_special_tokens = true, max_length = 5 })
    assert.same({ { 3, 5, 6, 7, 4 }, { 3, 5, 4, 1, 1 } }, ids:totable())
    assert.same({ 5, 3 }, mask:to(moth.int64):sum(2):totable())
    assert.is_nil(kinds)
    ids, mask, kinds = tok({ A, "a" }, { add_special_tokens = true, pairs = { B, "b" }, max_length = 9, pad_id = 7,
      padding_side = "left" })
    assert.same({ { 3, 5, 6, 7, 4, 10, 5, 6, 4 }, { 7, 7, 7, 7, 3, 5, 4, 6, 4 } }, ids:totable())
    assert.same({ { 1, 1, 1, 1, 1, 2, 2, 2, 2 }, { 1, 1, 1, 1, 1, 1, 1, 2, 2 } }, kinds:totable())
    assert.same({ 9, 5 }, mask:to(moth.int64):sum(2):totable())
    assert.same({ { 5, 6 } }, (tok("a b c", { max_length = 2 })):totable())
    assert.error_matches(function() tok({ "a", "b" }, { pairs = { "a" } }) end, "2 texts, but 1 pairs")
    assert.error_matches(function() tok("a", { add_special_tokens = true, max_length = 1 }) end,
      "max_length, 1, is less than the 2 special tokens")
    local filled = of(template, nil, { strategy = { Fixed = 6 }, direction = "Left", pad_id = 0 })
    local list, types = filled:encode("a", true, { pair = "b" })
    assert.same({ 0, 2, 4, 3, 5, 3 }, from_0(list))
    assert.same({ 0, 0, 0, 0, 1, 1 }, from_0(types))
  end)

  local function ids_of(model, added, text)
    local list = {}
    for i, content in ipairs(added) do
      list[i] = { id = 100 + i, content = content, single_word = content:find "^%a" ~= nil, normalized = false }
    end
    local tok = moth.data.Tokenizer { model = model, added_tokens = list, normalizer = { type = "NFKC" } }
    return table.concat(from_0(tok:encode(text)), " "), tok
  end

  it("a model finds only what its own vocabulary has", function()
    local own = { ["<unk>"] = 0, a = 1, b = 2, c = 3, ["##b"] = 4, ["##c"] = 5, ["##d"] = 6, x = 7, d = 8, ab = 9 }
    local added = { "abc", "z", "<x>" }
    local piece = { type = "WordPiece", vocab = own, unk_token = "<unk>" }
    local ids, tok = ids_of(piece, added, "abcd")
    assert.equal("9 5 6", ids)
    assert.equal(102, tok:id "abc")
    assert.equal("abc", tok:token(102))
    assert.equal("101", (ids_of(piece, added, "abc")))
    for kind, want in pairs { WordPiece = "0", WordLevel = "0" } do
      assert.equal(want, (ids_of({ type = kind, vocab = own, unk_token = "<unk>" }, added, "＜ｘ＞")))
    end
    for _, whole in ipairs { true, false } do
      local bpe = { type = "BPE", vocab = own, merges = { "a b" }, unk_token = "<unk>", ignore_merges = whole }
      assert.equal("0 7 0", (ids_of(bpe, added, "＜ｘ＞")))
      assert.equal("0 9 3", (ids_of(bpe, added, "zabc")))
    end
  end)

  it("Unigram goes by the id of its unknown piece, whatever stands there", function()
    local pieces = { { "<unk>", 0 }, { "<pad>", 0 }, { "a", -3 }, { "b", -3.5 }, { "<", -5 }, { ">", -5 }, { "p", -5 },
      { "d", -5 }, { "ab", -8 } }
    local model = { type = "Unigram", vocab = pieces, unk_id = 0 }
    assert.equal("1 2", (ids_of(model, {}, "<pad>a")))
    assert.equal("2 0 3", (ids_of(model, {}, "a<unk>zz<unk>b"))) -- neighbours are one
    assert.equal("2 3 0", (ids_of(model, {}, "abz")))
    pieces[1] = { "a", 0 } -- a text that stands there twice: the second one's id and score
    assert.equal("2 3 0", (ids_of(model, {}, "abz")))
    model.unk_id = nil
    assert.equal("2 3", (ids_of(model, {}, "ab")))
    assert.error_matches(function() ids_of(model, {}, "az") end, "no unknown piece, and none of its pieces are in")
  end)
end)
