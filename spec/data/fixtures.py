# Makes spec/data/fixtures/*.json: small tokenizers of Hugging Face's tokenizers, and the ids that they give for texts.
# python3 spec/data/fixtures.py
import json
import os

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

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


for make in (digits, gemma, bert, unigram, gpt2, llama3, llama2, metaspace):
    t = make()
    name = os.path.join(here, "tokenizer_" + make.__name__ + ".json")
    o = json.loads(t.to_str())
    cases = [{"text": x, "ids": t.encode(x, add_special_tokens=False).ids,
              "back": t.decode(t.encode(x, add_special_tokens=False).ids, skip_special_tokens=False),
              "full": t.encode(x).ids if len(x) < 50 else None} for x in texts]
    o["cases"] = cases
    json.dump(o, open(name, "w"), ensure_ascii=False)
