"""Tokenizers of the tokenizers package: ids and texts of every kind of model and of the steps around it."""
PACKAGES = "tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2"
MEETS = ("BPE, Unigram, WordPiece and WordLevel trained on a corpus of several scripts, with each normalizer, pre-tokenizer, "
         "decoder and post-processor, truncation and padding: ids, and texts decoded from them, of 200 texts each, alone and in pairs")
LIMITS = "UnicodeScripts is refused by name; moth gives no offsets into the text"

import io
import json
import random

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P, processors,
                        trainers)

import moth
from texts import CORPUS, texts

random.seed(1)
SPECIAL = ["<unk>", "<|end|>", "[CLS]", "[SEP]", "<pad>"]


def made(kind, normalizer=None, pre=None, decoder=None, post=None, after=None, **options):
    if kind == "BPE":
        t = Tokenizer(models.BPE(unk_token=options.pop("unk", "<unk>"), **options))
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, show_progress=False, min_frequency=2,
                                      initial_alphabet=P.ByteLevel.alphabet() if isinstance(pre, P.ByteLevel) else [],
                                      continuing_subword_prefix=options.get("continuing_subword_prefix", ""),
                                      end_of_word_suffix=options.get("end_of_word_suffix", ""))
    elif kind == "Unigram":
        t = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    elif kind == "WordPiece":
        t = Tokenizer(models.WordPiece(unk_token="<unk>", **options))
        trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=SPECIAL, show_progress=False)
    else:
        t = Tokenizer(models.WordLevel(unk_token="<unk>"))
        trainer = trainers.WordLevelTrainer(vocab_size=700, special_tokens=SPECIAL, show_progress=False)
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    if decoder:
        t.decoder = decoder
    if post:
        t.post_processor = post
    t.train_from_iterator(CORPUS, trainer)
    t.add_special_tokens([AddedToken("[MASK]", lstrip=True, rstrip=True, normalized=False)])
    t.add_tokens([AddedToken("jumps", single_word=True), AddedToken("straße", normalized=True)])
    if after:
        after(t)
    return t


BL = P.ByteLevel(add_prefix_space=False)
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
template = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
W = P.Whitespace()
cases = {
    "BPE, bytes": lambda: made("BPE", None, BL, decoders.ByteLevel()),
    "BPE, bytes, prefix": lambda: made("BPE", None, P.ByteLevel(add_prefix_space=True), decoders.ByteLevel(), processors.ByteLevel()),
    "BPE, Llama 3": lambda: made("BPE", None, P.Sequence([P.Split(Regex(LLAMA), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]),
                                 decoders.ByteLevel(), template),
    "BPE, Llama 2": lambda: made("BPE", N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None,
                                 decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
                                 byte_fallback=True, fuse_unk=True),
    "BPE, characters": lambda: made("BPE", None, W),
    "BPE, fused unknown": lambda: made("BPE", None, W, fuse_unk=True),
    "BPE, no unknown": lambda: made("BPE", None, W, unk=None),
    "BPE, suffix": lambda: made("BPE", N.Lowercase(), W, decoders.BPEDecoder(suffix="</w>"), end_of_word_suffix="</w>"),
    "BPE, prefix inside": lambda: made("BPE", None, W, decoders.WordPiece("##", False), continuing_subword_prefix="##"),
    "Unigram, Metaspace": lambda: made("Unigram", None, P.Metaspace(), decoders.Metaspace(), template),
    "Unigram, NFKC": lambda: made("Unigram", N.NFKC(), P.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first")),
    "Unigram, XLNet": lambda: made("Unigram", N.Sequence([N.Replace("``", '"'), N.NFKD(), N.StripAccents(), N.Lowercase()]),
                                   P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), decoders.Metaspace()),
    "WordPiece, BERT": lambda: made("WordPiece", N.BertNormalizer(), P.BertPreTokenizer(), decoders.WordPiece(),
                                    processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))),
    "WordPiece, cased": lambda: made("WordPiece", N.BertNormalizer(lowercase=False, strip_accents=True, handle_chinese_chars=False), P.BertPreTokenizer(),
                                     decoders.WordPiece(cleanup=False), max_input_chars_per_word=10),
    "WordLevel": lambda: made("WordLevel", None, W),
    "WordLevel, lower": lambda: made("WordLevel", N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents(), N.Strip()]), P.Sequence([P.WhitespaceSplit(), P.Digits(individual_digits=True)])),
    "RoBERTa": lambda: made("BPE", None, BL, decoders.ByteLevel(), processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))),
    "truncated": lambda: made("BPE", None, BL, decoders.ByteLevel(), template, lambda t: t.enable_truncation(8)),
    "truncated, left": lambda: made("BPE", None, BL, decoders.ByteLevel(), template, lambda t: t.enable_truncation(9, direction="left", stride=2)),
    "padded": lambda: made("BPE", None, BL, decoders.ByteLevel(), template, lambda t: t.enable_padding(pad_id=4, pad_token="<pad>", length=12)),
    "padded, left": lambda: made("BPE", None, BL, decoders.ByteLevel(), None, lambda t: (t.enable_padding(direction="left", pad_id=4, pad_token="<pad>", pad_to_multiple_of=8), t.enable_truncation(20))),
}
for name, n in {"NFC": N.NFC(), "NFD": N.NFD(), "NFKC": N.NFKC(), "NFKD": N.NFKD(), "Nmt": N.Nmt(), "ByteLevel": N.ByteLevel(),
                "Replace": N.Replace(Regex(r"\s+"), " "), "Strip left": N.Strip(True, False)}.items():
    cases["normalizer " + name] = lambda n=n: made("WordPiece", n, W, decoders.WordPiece())
for name, p in {"Punctuation removed": P.Punctuation("removed"), "Punctuation previous": P.Punctuation("merged_with_previous"),
                "Punctuation next": P.Punctuation("merged_with_next"), "Punctuation contiguous": P.Punctuation("contiguous"),
                "Punctuation": P.Punctuation(), "Digits": P.Digits(), "UnicodeScripts": P.UnicodeScripts(), "CharDelimiter": P.CharDelimiterSplit("e"),
                "FixedLength": P.FixedLength(5), "Whitespace": W, "WhitespaceSplit": P.WhitespaceSplit(),
                "Split inverted": P.Split(Regex(r"\w+"), "removed", invert=True), "Split previous": P.Split("a", "merged_with_previous"),
                "Split next": P.Split(Regex("[aeiou]"), "merged_with_next"), "Split contiguous": P.Split(Regex("[^ ]"), "contiguous")}.items():
    cases["pre_tokenizer " + name] = lambda p=p: made("BPE", None, p)
for name, d in {"CTC": decoders.CTC(), "ByteLevel": decoders.ByteLevel(), "Strip": decoders.Strip("a", 1, 0), "Replace": decoders.Replace("a", "b"),
                "Fuse": decoders.Fuse(), "WordPiece": decoders.WordPiece(), "BPE": decoders.BPEDecoder()}.items():
    cases["decoder " + name] = lambda d=d: made("BPE", None, W, d)

# The tables of characters that SentencePiece writes: those of T5, XLM-R, ALBERT and their like.
for rule in ("nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf", "nfkc"):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=out, vocab_size=400, minloglevel=2,
                                             normalization_rule_name=rule, hard_vocab_limit=False)
    charsmap = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue()).normalizer_spec.precompiled_charsmap
    cases["normalizer Precompiled " + rule] = lambda c=charsmap: made("Unigram", N.Sequence([N.Precompiled(c), N.Replace(Regex(" {2,}"), " ")]),
                                                                     P.Metaspace(), decoders.Metaspace(), template)

sample = texts()
todo, want = [], {}
for k, (name, make) in enumerate(cases.items()):
    t = make()
    t.save(f"{moth.folder}/{k}.json")
    todo.append({"name": name, "file": f"{moth.folder}/{k}.json"})
    encoded = [t.encode(s, add_special_tokens=special) for special in (True, False) for s in sample]
    want[name] = {"ids": [e.ids for e in encoded], "texts": [t.decode(e.ids, skip_special_tokens=False) for e in encoded],
                  "plain": [t.decode(e.ids, skip_special_tokens=True) for e in encoded]}
    encoded = [t.encode(s, sample[(i + 1) % 200], add_special_tokens=special) for special in (True, False) for i, s in enumerate(sample)]
    want[name].update(pairs=[e.ids for e in encoded], kinds=[e.type_ids for e in encoded])
json.dump({"texts": sample, "cases": todo}, open(moth.folder + "/cases.json", "w"))
said = moth.result("tokenizers", moth.folder)
compared, refused = 0, []
for name in cases:
    got = said[name]
    if "error" in got:
        refused.append(name)
        print(f"  {name}: {got['error']}")
        moth.expect(name.split(" ")[-1] in got["error"], f"{name}: {got['error']}")
        continue
    compared += moth.lists(name, got, want[name], sample)
moth.end(f"{len(cases) - len(refused)} tokenizers, {compared} lists and texts; {len(refused)} refused")
