-- Byte-pair encoding from a tokenizer.json.

local ffi = require "ffi"
local moth = require "moth"
local unicode = require "moth.data.unicode"
local cjson = require "cjson"
local data = moth.data

-- The 256 characters that stand for bytes in a byte-level vocabulary.
local function byte_characters()
  local out, extra = {}, 0
  for b = 0, 255 do
    local plain = b >= 33 and b <= 126 or b >= 161 and b <= 172 or b >= 174
    out[#out + 1] = unicode.char(plain and b or 256 + extra)
    if not plain then extra = extra + 1 end
  end
  return out
end

local function tokenizer(model, fields)
  local path = os.tmpname()
  finally(function() os.remove(path) end)
  fields.model = model
  local f = assert(io.open(path, "w"))
  f:write(cjson.encode(fields))
  f:close()
  return data.Tokenizer(path)
end

local space = unicode.char(0x120) -- stands for a space
local function byte_level(fields)
  local vocab, merges, n = {}, {}, 0
  for _, c in ipairs(byte_characters()) do
    vocab[c] = n
    n = n + 1
  end
  for _, m in ipairs({ "h e", "l l", "he ll", "hell o", space .. " w", "o r", space .. "w or", "l d", "1 2",
    "12 3" }) do
    merges[#merges + 1] = m
    vocab[m:gsub(" ", "")] = n
    n = n + 1
  end
  fields.added_tokens = { { id = n, content = "<|end|>", special = true } }
  return tokenizer({ type = "BPE", vocab = vocab, merges = merges }, fields)
end

local function words(tok, text)
  local out = {}
  for k, id in ipairs(tok:encode(text)) do out[k] = tok:token(id):gsub(space, "_") end
  return table.concat(out, " ")
end

describe("tokenizers #quick", function()
  it("read GPT-2's vocab.json and merges.txt, and folders", function()
    local dir = os.tmpname()
    os.remove(dir)
    os.execute("mkdir " .. dir)
    finally(function() os.execute("rm -r " .. dir) end)
    local vocab = { ["<|endoftext|>"] = 300 }
    for i, c in ipairs(byte_characters()) do vocab[c] = i - 1 end
    vocab.he, vocab.hel = 256, 257
    for name, text in pairs { ["vocab.json"] = cjson.encode(vocab), ["merges.txt"] = "#version: 0.2\nh e\nhe l\n" } do
      local f = assert(io.open(dir .. "/" .. name, "w"))
      f:write(text)
      f:close()
    end
    for _, path in ipairs { dir, dir .. "/vocab.json" } do
      local tok = data.Tokenizer(path)
      local ids = tok:encode "hello<|endoftext|>"
      assert.equal("hel", tok:token(ids[1]))
      assert.equal(301, ids[4])
      assert.equal("hello", tok:decode(ids, true))
    end
    local f = assert(io.open(dir .. "/added_tokens.json", "w"))
    f:write '{"<|user|>":301}'
    f:close()
    assert.same({ 302, 257, 301 }, data.Tokenizer(dir):encode "<|user|>he<|endoftext|>")
    assert.error_matches(function() data.Tokenizer(dir .. "/none") end, "cannot open")
    os.execute(("cd %s && rm vocab.json && touch tokenizer.model"):format(dir))
    assert.error_matches(function() data.Tokenizer(dir) end, "no vocab.json\nHINT: its tokenizer.model is Sentence")
  end)

  it("GPT-2's: words, merges by rank, every byte", function()
    local tok = byte_level { pre_tokenizer = { type = "ByteLevel", add_prefix_space = false } }
    assert.equal("hello _wor ld", words(tok, "hello world"))
    assert.equal("hello ' l l", words(tok, "hello'll"):gsub("ll$", "l l"))
    assert.equal("123 4 5", words(tok, "12345"))
    assert.equal("_ _ _wor", words(tok, "   wor"))
    assert.equal("he <|end|> he", words(tok, "he<|end|>he"))
    local all = {}
    for b = 0, 255 do all[#all + 1] = string.char(b) end
    local text = table.concat(all) .. "naïve 你好 🙂\r\n\t x  "
    assert.equal(text, tok:decode(tok:encode(text)))
    assert.equal("hehe", tok:decode(tok:encode("he<|end|>he"), { skip_special_tokens = true }))
    assert.equal(267, tok:size())
    assert.equal(267, tok:id("<|end|>")) -- the file says 266
    assert.equal("", tok:decode(tok:encode("")))
    local prefixed = byte_level { pre_tokenizer = { type = "ByteLevel", add_prefix_space = true } }
    assert.equal("_wor ld <|end|> _wor", words(prefixed, "world<|end|>wor"))
    assert.equal(#prefixed:encode(" \n"), #prefixed:encode("\n")) -- only a blank stands for the one in front
    assert.equal("", prefixed:decode(prefixed:encode("")))
    local ids, mask = tok({ "hello", "hello world" }, { pad_id = 5 })
    assert.same({ 2, 3 }, ids:size())
    assert.same({ ids[1][1]:item(), 5, 5 }, ids[1]:totable())
    assert.same({ { true, false, false }, { true, true, true } }, mask:totable())
    assert.same({ 2, 2 }, (tok({ "hello", "hello world" }, { max_length = 2 })):size())
    assert.error_matches(function() tok:decode({ 999 }) end, "no token 999; ids are from 1 to 267")
  end)

  it("Llama 3's words: three digits, line breaks, contractions of any case", function()
    local pattern = [[(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*]]
      .. [[|\s*[\r\n]+|\s+(?!\S)|\s+]]
    local tok = byte_level { pre_tokenizer = { type = "Sequence", pretokenizers = {
      { type = "Split", pattern = { Regex = pattern }, behavior = "Isolated" },
      { type = "ByteLevel", add_prefix_space = false, use_regex = false } } } }
    assert.equal("123 123 1", words(tok, "1231231"))
    assert.equal("hello _wor ld", words(tok, "hello world"))
    local text = "DON'T\n\n  x!!\r\n ?"
    assert.equal(text, tok:decode(tok:encode(text)))
    assert.error_matches(function()
      byte_level { pre_tokenizer = { type = "Split", pattern = { Regex = "a+" } } }
    end, "it cuts 'nil', which is not known")
  end)

  it("Llama 2's: spaces as a character, bytes for what is unknown", function()
    local vocab, n = { ["<unk>"] = 0 }, 0
    local function add(token)
      n = n + 1
      vocab[token] = n
    end
    for b = 0, 255 do add(("<0x%02X>"):format(b)) end
    for _, t in ipairs({ "▁", "h", "i", "hi", "▁hi" }) do add(t) end
    local merges = { { "h", "i" }, { "▁", "hi" } }
    local tok = tokenizer({ type = "BPE", vocab = vocab, merges = merges, byte_fallback = true,
      unk_token = "<unk>" }, { normalizer = { type = "Sequence", normalizers = { { type = "Prepend", prepend = "▁" },
      { type = "Replace", pattern = { String = " " }, content = "▁" } } } })
    local ids = tok:encode("hi hié")
    assert.same({ "▁hi", "▁hi", "<0xC3>", "<0xA9>" }, { tok:token(ids[1]), tok:token(ids[2]), tok:token(ids[3]),
      tok:token(ids[4]) })
    assert.equal("hi hié", tok:decode(ids))
  end)

  it("refuses what it does not know", function()
    local other = { type = "Words", vocab = {} }
    assert.error_matches(function() tokenizer(other, {}) end, "its model is 'Words'; BPE, WordPiece, WordLevel and")
    assert.error_matches(function() data.Tokenizer("/nowhere.json") end, "cannot open /nowhere.json")
    for pattern, why in pairs { ["x(+"] = "target of repeat operator", ["[a"] = "premature end of char%-class",
      ["(a"] = "unmatched parenthesis", ["a)"] = "unmatched close parenthesis", ["\\p{Foo}"] = "property name {Foo}",
      ["\\k<x>"] = "undefined name", ["\\"] = "end pattern at escape", [("("):rep(5000)] = "parse depth limit",
      ["\\g<0>"] = "never ending recursion" } do
      local split = { pre_tokenizer = { type = "Split", pattern = { Regex = pattern }, behavior = "Isolated" } }
      assert.error_matches(function() byte_level(split) end, "its pattern .* is not supported: .*" .. why)
    end
  end)

  it("refuses files whose parts are of other kinds, with the place", function()
    local function refused(pattern, model, fields)
      model.type = "BPE"
      assert.error_matches(function() tokenizer(model, fields or {}) end, pattern)
    end
    refused("model.vocab.a: expected a whole number", { vocab = { a = "0" }, merges = {} })
    refused("model.vocab.a: expected a whole number", { vocab = { a = 1e300 }, merges = {} })
    refused("the id 1048576 of 'a' is above", { vocab = { a = 2 ^ 20 }, merges = {} })
    refused("model.merges: expected a list", { vocab = {}, merges = "a b" })
    refused("model.merges%[1%]: expected a text or a list", { vocab = {}, merges = { 7 } })
    refused("merge 1 is of tokens that are not", { vocab = { a = 0 }, merges = { { "a" } } })
    -- An empty token would be found again and again at the same place.
    refused("added_tokens%[1%].content: expected a text that is not empty", { vocab = { a = 0 }, merges = {} },
      { added_tokens = { { id = 1, content = "" } } })
    refused("pre_tokenizer.type: expected a text", { vocab = {}, merges = {} }, { pre_tokenizer = { type = 7 } })
    refused("normalizer.normalizers%[1%]: expected an object", { vocab = {}, merges = {} },
      { normalizer = { type = "Sequence", normalizers = { 5 } } })
    refused("post_processor.special_tokens.x.ids%[1%]", { vocab = {}, merges = {} },
      { post_processor = { type = "TemplateProcessing", special_tokens = { x = { ids = { "y" } } } } })
    -- Fields that are null are not there.
    local tok = tokenizer({ type = "BPE", vocab = { a = 0 }, merges = {}, unk_token = cjson.null },
      { pre_tokenizer = cjson.null })
    assert.same({ 1, 1 }, tok:encode("aa"))
  end)

  -- What the tokenizers package gave (fixtures.py): GPT-2's and Llama 3's words, Llama 2's bytes and spaces, others.
  for _, name in ipairs { "gpt2", "llama3", "llama2", "metaspace", "digits", "gemma", "bert", "unigram" } do
    it("gives the ids of the tokenizers package, as " .. name, function()
      local path = "spec/data/fixtures/tokenizer_" .. name .. ".json"
      local tok = moth.tokenizer.load(path)
      local f = assert(io.open(path, "rb"))
      local cases = cjson.decode(f:read "*a").cases
      f:close()
      for i, case in ipairs(cases) do
        for field, full in pairs { ids = false, full = true } do
          local ids = tok:encode(case.text, { add_special_tokens = full })
          for k = 1, #ids do ids[k] = ids[k] - 1 end
          if case[field] ~= cjson.null then assert.same(case[field], ids, name .. " " .. i) end
        end
        assert.equal(case.back, tok:decode(tok:encode(case.text)), name .. " " .. i)
      end
    end)
  end

  it("gives the ids of the tokenizers package: other steps, patterns, added tokens, decoders", function()
    local f = assert(io.open("spec/data/fixtures/tokenizers_more.json", "rb"))
    local all = cjson.decode(f:read "*a")
    f:close()
    for _, entry in ipairs(all.list) do
      entry.file.model = entry.file.model or all.model
      local tok = data.Tokenizer(entry.file)
      for i, case in ipairs(entry.cases) do
        local ids = tok:encode(case.text)
        for k = 1, #ids do ids[k] = ids[k] - 1 end
        assert.same(case.ids, ids, entry.name .. " " .. i)
        if case.back ~= cjson.null then
          assert.equal(case.back, tok:decode(tok:encode(case.text)), entry.name .. " " .. i)
        end
      end
    end
  end)

  it("gives the texts of the tokenizers package: NFKC, NFKD, Nmt, ByteLevel, SentencePiece's tables", function()
    local charsmap = ""
      .. "AAQAAAAwAAANDQAAAQAAgMwYAgCBBQAACwAAgIEFAAAAAACAgCgCAIstAACiBQAABQAAgISQAgCsCAIAgQUAAAgAAIChBQAAAwAAgBMAAAAS"
      .. "AAAAFQAAABQAAAAXAAAAFgAAABkAAAAYAAAAGwAAABoAAAAdAAAAvLACAB8AAAAeAAAAIQAAACAAAAAjAAAAIgAAACUAAAAkAAAAJwAAACYA"
      .. "AAApAAAAKAAAACsAAAAqAAAALQAAACwAAAAvAAAALgAAADEAAAAwAAAAMwAAADIAAAA1AAAANAAAADcAAAA2AAAAOQAAADgAAAA7AAAAOgAA"
      .. "AD0AAAA8AAAAPwAAAD4AAABBAAAAQAAAAEMAAABCAAAARQAAAEQAAABHAAAARgAAAEkAAABIAAAASwAAAEoAAABNAAAATAAAAE8AAABOAAAA"
      .. "UQAAAFAAAABTAAAAUgAAAFUAAABUAAAAVwAAAFYAAABZAAAAWAAAAFsAAABaAAAAXQAAAFwAAABfAAAAXgAAAGEAAABgAAAAYwAAAGIAAABl"
      .. "AAAAZAAAAGcAAABmAAAAaQAAAGWYAgBrAAAAagAAAG0AAABsAAAAbwAAAG4AAABxAAAAcAAAAHMAAAByAAAAdQAAAHQAAAB3AAAAdgAAAHkA"
      .. "AAB4AAAAewAAAHoAAAB9AAAAfAAAAH8AAAB+AAAAgQAAAIAAAACDAAAAggAAAIUAAACEAAAAhwAAAIYAAACJAAAAiAAAAIsAAACKAAAAjQAA"
      .. "AIwAAACPAAAAjgAAAJEAAACQAAAAkwAAAJIAAACVAAAAlAAAAJcAAACWAAAAmQAAAJgAAACbAAAAmgAAAJ0AAACcAAAAnwAAAJ4AAAChAAAA"
      .. "oAAAAKMAAACiAAAApQAAAKQAAACnAAAApgAAAKkAAACoAAAAqwAAAKoAAACtAAAArAAAAK8AAACuAAAAsQAAALAAAACzAAAAsgAAALUAAAC0"
      .. "AAAAtwAAALYAAAC5AAAAuAAAALsAAAC6AAAAvQAAALwAAAC/AAAAvgAAAMwcAQDAAAAAwwAAAMIAAADFAAAAxAAAAMcAAADGAAAAyQAAAMgA"
      .. "AADLAAAAygAAAM0AAADMAAAAzwAAAM4AAADRAAAA0AAAANMAAADSAAAA1QAAANQAAADXAAAA1gAAANkAAADYAAAA2wAAANoAAADdAAAA3AAA"
      .. "AN8AAADeAAAA4QAAAOAAAADjAAAA7wgBAOUAAADkAAAA5wAAAOYAAADpAAAA6AAAAOsAAADqAAAA7QAAAOwAAADimAEA7gAAAPEAAADwAAAA"
      .. "8wAAAPIAAAD1AAAA9AAAAPcAAAD2AAAA+QAAAPgAAAD7AAAA+gAAAP0AAAD8AAAA/wAAAP4AAAAAIABBAFRNAGZpAMOpAA=="
    for _, case in ipairs { { { type = "NFKC" }, "ﬁ ²½ ｶﾞ ㎏e\204\129", "fi 21⁄2 ガ kgé" },
      { { type = "NFKD" }, "ﬁ ²½ ｶﾞ ㎏é", "fi 21⁄2 カ\227\130\153 kge\204\129" },
      { { type = "Nmt" }, "a\226\128\139\8b\226\128\168\239\187\191c\127\n", "a b  c " },
      { { type = "ByteLevel" }, " é", "\196\160\195\131\194\169" },
      -- Clusters below 6 bytes as a whole, by the shortest beginning that the table has, longer ones by characters.
      { { type = "Precompiled", precompiled_charsmap = charsmap },
        "ﬁn Ａe\204\129\204\129 a\204\129\r\nb™\226\128\139 e\204\129\240\157\133\165x",
        "fin Aé a bTM  e\240\157\133\165x" } } do
      local tok = byte_level { normalizer = case[1], pre_tokenizer = { type = "ByteLevel", add_prefix_space = false } }
      assert.equal(case[3], tok:decode(tok:encode(case[2])))
    end
    for _, damaged in ipairs { "!", "AAAA", charsmap:sub(1, 40) } do
      assert.error_matches(function()
        byte_level { normalizer = { type = "Precompiled", precompiled_charsmap = damaged } }
      end, "precompiled_charsmap of its normalizer Precompiled is damaged")
    end
  end)

  it("cuts at punctuation in each way and into pieces of one length, joins what CTC gives", function()
    local function parts(step)
      local tok = tokenizer({ type = "WordLevel", vocab = { x = 0 } }, { pre_tokenizer = step })
      local out = {}
      function tok.vocab.__index(_, word) out[#out + 1] = word end
      setmetatable(tok.vocab, tok.vocab)
      tok:encode "a,b… (c)é$"
      return out
    end
    assert.same({ "a", "b", " ", "c", "é" }, parts { type = "Punctuation", behavior = "Removed" })
    assert.same({ "a,", "b…", " (", "c)", "é$" }, parts { type = "Punctuation", behavior = "MergedWithPrevious" })
    assert.same({ "a", ",b", "… ", "(c", ")é", "$" }, parts { type = "Punctuation", behavior = "MergedWithNext" })
    assert.same({ "a,b", "… (", "c)é", "$" }, parts { type = "FixedLength", length = 3 })
    local vocab = {}
    for k, token in ipairs { "<pad>", "h", "e", "l", "|", "o" } do vocab[token] = k - 1 end
    local tok = tokenizer({ type = "WordLevel", vocab = vocab }, { decoder = { type = "CTC", pad_token = "<pad>",
      word_delimiter_token = "|", cleanup = true } })
    assert.equal("hello o", tok:decode { 1, 2, 2, 3, 1, 4, 4, 1, 4, 6, 6, 5, 5, 6 })
  end)

  it("a stranger's pattern ends", function()
    local function cut(pattern, text)
      local split = { type = "Split", pattern = { Regex = pattern }, behavior = "Isolated" }
      local tok = byte_level { pre_tokenizer = { type = "Sequence", pretokenizers = { split,
        { type = "ByteLevel", add_prefix_space = false, use_regex = false } } } }
      return tok:encode(text)
    end
    local started = os.clock()
    assert.error_matches(function() cut("(?:a|a)*$", ("a"):rep(40) .. "!") end, "retry%-limit%-in%-match over")
    assert.error_matches(function() cut("(?:ab?)+", ("a"):rep(5e6)) end, "match%-stack limit over")
    assert.error_matches(function() cut("\\s+$|a", (" "):rep(1e5) .. "b") end, "retry%-limit%-in%-search over")
    assert.equal(1e5, #cut("(?:ab?)+", ("a"):rep(1e5)))
    assert.equal(6, #cut("\\w+", "\255a\195b\226\130"))
    assert.equal(1e5, #cut("x*", ("a"):rep(1e5)))
    assert.equal(2, #cut("x*", "12")) -- an empty match cuts what would be one word, but not inside of a character
    assert.equal(1, #cut("x", "12"))
    assert.equal(2, #cut("x*", "é"))
    assert.equal(3e5, #cut("\\s+$|a", (" "):rep(3e5)))
    assert.is_true(os.clock() - started < 4)
  end)

  it("a long word takes no quadratic time, and bytes that are no text come back", function()
    for _, name in ipairs { "gpt2", "llama2" } do
      local tok = moth.tokenizer.load("spec/data/fixtures/tokenizer_" .. name .. ".json")
      local started = os.clock()
      assert.is_true(#tok:encode(("a"):rep(100000)) < 20000)
      assert.is_true(os.clock() - started < 2)
    end
    local tok = moth.tokenizer.load "spec/data/fixtures/tokenizer_llama3.json"
    local bytes, x = {}, 1
    for i = 1, 5000 do
      x = x * 16807 % 2147483647
      bytes[i] = string.char(x % 256)
    end
    local text = table.concat(bytes)
    assert.is_true(tok:decode(tok:encode(text)) == text)
  end)

  it("workers tokenize", function()
    local tok = byte_level { pre_tokenizer = { type = "ByteLevel" } }
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local f = io.open(path, "w")
    f:write("hello world\nhe\nworld 123\n")
    f:close()
    local lines = data.TextLines(path, { transform = function(line)
      return moth.tensor(tok:encode(line), { dtype = moth.int64 })
    end })
    local ids, lengths = data.DataLoader(lines, { batch_size = 3, num_workers = 2, collate_fn = data.pad_collate() })
      :iter()()
    assert.same({ 3, 5 }, ids:size())
    assert.equal("hello world", tok:decode(ids[1]:narrow(1, 1, 3)))
    assert.equal(3, lengths[1]:item())
  end)

  it("cuts and fills up as the file's truncation and padding say", function() -- the ids of tokenizers 0.23
    local function of(truncation, padding)
      local vocab = {}
      for i, w in ipairs { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "f" } do vocab[w] = i - 1 end
      return tokenizer({ type = "WordLevel", vocab = vocab, unk_token = "[UNK]" }, {
        pre_tokenizer = { type = "WhitespaceSplit" }, truncation = truncation, padding = padding,
        post_processor = { type = "TemplateProcessing",
          single = { { SpecialToken = { id = "[CLS]" } }, { Sequence = { id = "A" } },
            { SpecialToken = { id = "[SEP]" } } },
          special_tokens = { ["[CLS]"] = { ids = { 2 } }, ["[SEP]"] = { ids = { 3 } } } } })
    end
    local function ids(tok, ...)
      local out = tok:encode(...)
      for k, id in ipairs(out) do out[k] = id - 1 end
      return out
    end
    local text, whole = "a b c d e f", { whole = true }
    local function cut(o)
      o.strategy, o.stride, o.max_length = o.strategy or "LongestFirst", 0, 4
      return of(o)
    end
    local tok = cut { direction = "Right" }
    assert.same({ 4, 5, 6, 7 }, ids(tok, text))
    assert.same({ 2, 4, 5, 3 }, ids(tok, text, true))
    assert.same({ 4, 5, 6, 7, 8, 9 }, ids(tok, text, whole))
    assert.same({ 4, 5, 6, 7 }, ids(tok, text, false, { enough = 2 }))
    assert.same({ 2, 8, 9, 3 }, ids(cut { direction = "Left", strategy = "OnlyFirst" }, text, true))
    assert.equal(4, tok({ text, "a" }):size(2))
    assert.equal(6, tok({ text, "a" }, { max_length = 9 }):size(2))
    local function filled(o)
      o.pad_id, o.pad_type_id, o.pad_token = 0, 0, "[PAD]"
      return of(nil, o)
    end
    tok = filled { strategy = { Fixed = 5 }, direction = "Left", pad_to_multiple_of = 4 }
    assert.same({ 0, 0, 4, 5, 6, 7, 8, 9 }, ids(tok, text))
    assert.same({ 0, 0, 0, 0, 0, 2, 4, 3 }, ids(tok, "a", true))
    assert.same({ 4 }, ids(tok, "a", whole))
    local batch, mask = tok { "a", "a b" }
    assert.same({ { 1, 1, 1, 1, 1, 1, 1, 5 }, { 1, 1, 1, 1, 1, 1, 5, 6 } }, batch:totable())
    assert.same({ 1, 2 }, mask:to(moth.int64):sum(2):totable())
    assert.is_true(mask[1][8]:item())
    assert.same({ 4, 5, 0, 0 }, ids(filled { strategy = "BatchLongest", pad_to_multiple_of = 4 }, "a b"))
    assert.same({ 4, 5, 6, 7, 8, 9 }, ids(filled { strategy = { Fixed = 3 } }, text))
    assert.same({ 4 }, ids(cut { strategy = "OnlySecond" }, "a"))
    assert.error_matches(function() cut { strategy = "OnlySecond" }:encode(text) end, "6 tokens, at most 4")
    assert.error_matches(function() cut { strategy = "Any" } end, "truncation.strategy = Any is not")
    assert.error_matches(function() filled { strategy = "Longest" } end, "padding.strategy = Longest is not")
    assert.error_matches(function() of({ max_length = 1 }):encode(text, true) end, "less than the 2 special tokens")
  end)

  it("stops where a text has enough ids, and knows its longest token", function()
    local tok = byte_level { pre_tokenizer = { type = "ByteLevel", add_prefix_space = false } }
    assert.equal(#"<|end|>", tok:longest_token())
    local text = ("hello world "):rep(1000)
    local all = tok:encode(text)
    local some = tok:encode(text, false, { enough = 10 })
    assert.is_true(#some > 10 and #some < 20)
    for i, id in ipairs(some) do assert.equal(all[i], id) end
    assert.same(all, tok:encode(text, false, { enough = #all }))
    assert.same(all, tok:encode(text)) -- it is not remembered
    for _, unit in ipairs { "l", "he", "hello", "\0", "\255", "é" } do -- one word, which is not made into tokens
      local word = unit:rep(20000)
      local whole = tok:encode(word)
      assert.is_true(#tok:encode(word, false, { enough = 10 }) > 10)
      assert.same(whole, tok:encode(word, false, { enough = #whole }))
    end
  end)

  it("bounds the number of tokens from below", function()
    local fewest = require "moth.data.fewest"
    local tok = byte_level { pre_tokenizer = { type = "ByteLevel", add_prefix_space = false } }
    local function bound(text, most)
      return fewest(tok, ffi.cast("const uint8_t *", text), #text, most or math.huge)
    end
    assert.equal(0, bound "")
    assert.equal(11, bound(("l"):rep(100), 10))
    local generator, parts = 12345, { "l", "hello", "he", " wor", "\0", "\200", "é", " ", "ello", "hell" }
    for _ = 1, 300 do
      local text = {}
      for k = 1, 20 do
        generator = (generator * 1103515245 + 12345) % 2 ^ 31
        text[k] = parts[math.floor(generator / 2 ^ 31 * #parts) + 1]
      end
      text = table.concat(text)
      local n = #tok:encode(text)
      assert.is_true(bound(text) <= n and bound(text) >= n / 4, text)
    end
  end)
end)
