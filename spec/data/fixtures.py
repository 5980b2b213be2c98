# Makes spec/data/fixtures/*.json: small tokenizers of Hugging Face's tokenizers, and the ids that they give for texts.
# python3 spec/data/fixtures.py
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
code = "local function add(a, b)\n  return a + b -- it's 1234567\nend\r\n\tx = { 1, 22, 333 }\n\n\n"
prose = "It is the tide’s hour — the moon lies fair; I'll go, they've gone, he'd said \"No!\" in 1867. Élan, naïveté, Straße. "
world = "Ελλάδα, Москва, 東京都, 서울, हिन्दी, العربية ½ ² Ⅷ １２３ 👩‍👩‍👧 🇩🇪 🙂🙂 DON'T I'M  \u3000 \u00a0x\u2028y "
texts = [code, prose, world, " ", "  a", "", "a\n \nb", "'S 'ſ 'Re x'll", "<|end|> a<|end|>", "12345678 12", "a" * 700,
         "\U0001ec70\u1c89\ua7cb\u0897 \U00031350", code * 3 + prose,
         "e\u0301 A\u030a a\u0302\u0323 a\u0323\u0302 \u1112\u1161\u11ab \u212b \u0958 x\u0300\u0315\u0316, İSTANBUL don't [x] 東京 a\u00adb"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
corpus = [code * 5, prose * 5, world * 3, ("a" * 40 + " ") * 20]


def trained(t, **o):
    t.train_from_iterator(corpus, trainers.BpeTrainer(show_progress=False, **o))
    return t


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    return trained(t, vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"])


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    trained(t, vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|begin|>", "<|end|>"])
    t.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", t.token_to_id("<|begin|>"))])
    return t


def llama2():
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    bytes_ = ["<0x%02X>" % i for i in range(256)]
    trained(t, vocab_size=520, special_tokens=["<unk>", "<s>", "<|end|>"] + bytes_, limit_alphabet=60)
    o = json.loads(t.to_str())
    o["model"].update(byte_fallback=True, fuse_unk=True)
    o["added_tokens"] = [a for a in o["added_tokens"] if not a["content"].startswith("<0x")]
    o["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(o))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    return t


def metaspace():
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    return trained(t, vocab_size=200, special_tokens=["<unk>", "<|end|>"], limit_alphabet=60)


def digits():  # as SmolLM's, with Qwen's normalizer
    t = gpt2()
    o = json.loads(t.to_str())
    o["normalizer"] = {"type": "NFC"}
    o["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                                o["pre_tokenizer"]]}
    return Tokenizer.from_str(json.dumps(o))


def gemma():
    o = json.loads(llama2().to_str())
    o["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    o["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    o["decoder"]["decoders"].pop()
    return Tokenizer.from_str(json.dumps(o))


def bert():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(show_progress=False, vocab_size=260, limit_alphabet=70, special_tokens=[
        "[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(corpus, trainers.UnigramTrainer(show_progress=False, vocab_size=180, unk_token="<unk>",
                                                          special_tokens=["<unk>", "</s>"]))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return t


# What the other files leave out, a list; most have the same model.
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
CASES = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
MANY = ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
HAN = r"[\p{Han}]+|[\p{L}&&[^\p{Han}]]+|(?<=\d)\d|\b'\w++|\S{2,}?(?=\s)|.|\n"


def plain(pre, norm=None, alphabet=True, **o):
    """A byte-level tokenizer of few merges, or one of characters."""
    t = Tokenizer.from_str(BASE) if alphabet else Tokenizer(models.BPE(**o))
    t.pre_tokenizer = pre
    if norm:
        t.normalizer = norm
    if alphabet:
        return t
    suffix = {k: v for k, v in o.items() if k == "end_of_word_suffix"}
    return trained(t, vocab_size=110, limit_alphabet=60, special_tokens=["<unk>"], **suffix)


BASE = trained(Tokenizer(models.BPE()), vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
BASE.decoder = decoders.ByteLevel()
BASE = BASE.to_str()


def split(pattern, how="isolated", invert=False):
    return pre_tokenizers.Split(pattern, how, invert=invert)


def after(*steps):
    return pre_tokenizers.Sequence(list(steps) + [BYTES])


def words_of(pre, norm=None, cls=models.WordLevel, trainer=trainers.WordLevelTrainer, **o):
    t = Tokenizer(cls(unk_token="[UNK]"))
    t.pre_tokenizer = pre
    if norm:
        t.normalizer = norm
    t.train_from_iterator(corpus, trainer(show_progress=False, vocab_size=130, special_tokens=["[UNK]"], **o))
    return t


def with_added(t):
    t.add_tokens([AddedToken("<|end|>", lstrip=True, rstrip=True, normalized=False), AddedToken("tide", normalized=True),
                  AddedToken("to", single_word=True), AddedToken("It", single_word=True), AddedToken("aa", normalized=False),
                  AddedToken("aaaa", normalized=False), AddedToken("RE", normalized=True)])
    return t


def more():
    yield "gpt-4o", plain(after(split(Regex(CASES))))
    yield "deepseek", plain(after(*[split(Regex(r)) for r in MANY]))
    yield "classes", plain(after(split(Regex(HAN))))
    for how in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        yield how, plain(after(split(Regex(r"\s+|[,.]"), how)))
        yield how + " inverted", plain(after(split(Regex(r"\s+|[,.]"), how, True)))
        yield how + " text", plain(after(split(" ", how)))
    yield "falcon", plain(pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(),
                                                   pre_tokenizers.Digits(False), split(Regex("[0-9][0-9][0-9]"))]))
    yield "added", with_added(plain(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Lowercase()))
    yield "underscores", plain(pre_tokenizers.Metaspace("_"), alphabet=False, unk_token="<unk>")
    yield "suffix", plain(pre_tokenizers.WhitespaceSplit(), alphabet=False, unk_token="<unk>", end_of_word_suffix="</w>")
    yield "nothing unknown", plain(pre_tokenizers.Punctuation(), normalizers.Replace(Regex("a{2,}"), "A"), alphabet=False)
    yield "words", words_of(pre_tokenizers.Whitespace(), normalizers.Strip())
    yield "cased", words_of(pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(strip_accents=False), models.WordPiece,
                            trainers.WordPieceTrainer, limit_alphabet=60)


with open(os.path.join(here, "tokenizers_more.json"), "w") as f:
    out = {"model": json.loads(BASE)["model"], "list": []}
    for name, t in more():
        if name == "cased":
            t.decoder = decoders.WordPiece()
        if name == "suffix":
            t.decoder = decoders.BPEDecoder()
        if name == "underscores":
            t.decoder = decoders.Metaspace("_")
        o = {"name": name, "file": json.loads(t.to_str()), "cases": []}
        if o["file"]["model"] == out["model"]:
            del o["file"]["model"]  # that of the whole list
        for x in texts[:12] + texts[13:]:
            ids = t.encode(x[:160], add_special_tokens=False).ids
            o["cases"].append({"text": x[:160], "ids": ids, "back": None if name == "added" else t.decode(ids, skip_special_tokens=False)})
        out["list"].append(o)
    json.dump(out, f, ensure_ascii=False)

for make in (digits, gemma, bert, unigram, gpt2, llama3, llama2, metaspace):
    t = make()
    name = os.path.join(here, "tokenizer_" + make.__name__ + ".json")
    o = json.loads(t.to_str())
    cases = [{"text": x, "ids": t.encode(x, add_special_tokens=False).ids,
              "back": t.decode(t.encode(x, add_special_tokens=False).ids, skip_special_tokens=False),
              "full": t.encode(x).ids if len(x) < 50 else None} for x in texts]
    o["cases"] = cases
    json.dump(o, open(name, "w"), ensure_ascii=False)
