"""Tokenizers, chat templates and models of the transformers package against moth's."""
PACKAGES = "transformers==5.24.0 torch==2.15.0 tokenizers==0.23.3 jinja2==3.1.6 sentencepiece==0.2.3 protobuf==7.36.2"
MEETS = ("every class of fast tokenizers that can be trained, trained and saved by transformers, on 200 texts: alone and in pairs, with "
         "special tokens and without, batches cut and padded, kinds of tokens, texts decoded; 12 chat templates in the forms of published "
         "ones, most with tools, of ten conversations each; BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, ALBERT, DistilBERT and "
         "ModernBERT with each head")
LIMITS = ("no offsets of tokens into the text; CLIPTokenizer and SeamlessM4TTokenizer change what their tokenizer.json says when they are "
          "made, moth goes by the file; classes that take words with boxes (LayoutLM 2 and 3, UDOP, MarkupLM) were not tried")

import inspect
import json
import os
import random

import torch
import transformers as T
from safetensors.torch import load_file, save_file

import chats as chat_forms
import moth
from texts import CORPUS, texts

T.logging.set_verbosity_error()
T.logging.disable_progress_bar()
random.seed(1)
# Classes that want words with boxes, packages of their own, or a file to begin with.
OTHER = ("LayoutLMv2 LayoutLMv3 LayoutXLM MarkupLM Udop Cpm Parakeet Pegasus RoFormer").split()
sample = texts()


def tokenizers():
    """Each class of tokenizer, trained on the corpus: (name, tokenizer)."""
    for name in dir(T):
        c = getattr(T, name)
        if not (name.endswith("Tokenizer") and inspect.isclass(c) and issubclass(c, T.PreTrainedTokenizerFast)):
            continue
        if name[:-9] in OTHER or c.__name__ != name:
            continue
        yield name, c().train_new_from_iterator(CORPUS, 600, show_progress=False)


want, todo = {}, []
others = sample[1:] + sample[:1]
for name, t in tokenizers():
    folder = os.path.join(moth.folder, name)
    t.save_pretrained(folder)
    if name in ("CLIPTokenizer", "SeamlessM4TTokenizer"):  # which change what their file says
        t = T.PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json", pad_token=t.pad_token)
    raw = t._tokenizer
    ids = [t(s, add_special_tokens=special).input_ids for special in (True, False) for s in sample]
    # As lists: of one pair, transformers leaves out a second text that is empty.
    both = [t(sample, others, add_special_tokens=special, return_token_type_ids=True) for special in (True, False)]
    want[name] = {"ids": ids, "texts": [raw.decode(x, skip_special_tokens=False) for x in ids],
                  "plain": [raw.decode(x, skip_special_tokens=True) for x in ids],
                  "pairs": [x for y in both for x in y.input_ids], "kinds": [x for y in both for x in y.token_type_ids]}
    pad = t.pad_token_id if t.pad_token_id is not None else 0
    if t.pad_token is None:
        t.pad_token = t.convert_ids_to_tokens(0)
    x = t(sample, padding=True, truncation=True, max_length=12, return_attention_mask=True)
    y = t(sample, others, padding=True, truncation=True, max_length=12, return_token_type_ids=True)
    want[name].update(batch=x.input_ids, mask=x.attention_mask, second=y.input_ids, types=y.token_type_ids)
    todo.append({"name": name, "file": folder, "pad": pad, "side": t.padding_side})
chat = T.PreTrainedTokenizerFast(tokenizer_file=moth.folder + "/GPT2Tokenizer/tokenizer.json", bos_token="<s>", eos_token="</s>")
chats, talks = [], []
for name, template in chat_forms.TEMPLATES.items():
    for messages, tools, more in chat_forms.CHATS:
        try:
            text = chat.apply_chat_template(messages, tools=tools, chat_template=template, add_generation_prompt=True,
                                            tokenize=False, **more)
        except Exception:  # the template's own, or of what jinja2 cannot do
            text = None
        talks.append(text)
        chats.append({"template": template, "messages": messages, "variables": {**more, **({"tools": tools} if tools else {})}})

HEADS = {"": None, "ForSequenceClassification": 3, "ForTokenClassification": 5, "ForQuestionAnswering": 2, "ForMaskedLM": None}
SIZES = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
             max_position_embeddings=40, pad_token_id=1)
FAMILIES = {
    "Bert": [{}, {"type_vocab_size": 3, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}, {"tie_word_embeddings": False}],
    "Roberta": [{}, {"type_vocab_size": 1}], "XLMRoberta": [{}], "Camembert": [{"hidden_act": "relu"}],
    "Electra": [{"embedding_size": 16}, {"embedding_size": 32}],
    "Albert": [{"embedding_size": 16}, {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}],
    "DistilBert": [{}], "ModernBert": [{"local_attention": 6, "global_attn_every_n_layers": 2, "num_hidden_layers": 3,
                                        "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}]}
ids = torch.randint(2, 61, (3, 11))
mask = torch.tensor([[1] * 11, [1] * 7 + [0] * 4, [1] * 2 + [0] * 9])
ids[mask == 0] = 1
types = torch.tensor([[0] * 5 + [1] * 6] * 3)
models, tensors, wanted = [], {"ids": ids, "mask": mask, "types": types}, {}
for family, forms in FAMILIES.items():
    for k, form in enumerate(forms):
        for head, labels in HEADS.items():
            if not hasattr(T, family + (head or "Model")):
                continue
            names = dict(SIZES, **form)
            if family == "DistilBert":
                names = dict(vocab_size=61, dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=40, pad_token_id=1)
            if labels:
                names["num_labels"] = labels
            torch.manual_seed(len(models))
            net = getattr(T, family + (head or "Model"))(getattr(T, family + "Config")(**names)).eval()
            for p in net.parameters():
                torch.nn.init.normal_(p, 0.1, 0.3)
            net.tie_weights()
            name = f"{family}{k}{head}"
            net.save_pretrained(os.path.join(moth.folder, name))
            typed = family not in ("DistilBert", "ModernBert") and form.get("type_vocab_size") != 1
            with torch.no_grad():
                y = net(ids, attention_mask=mask, **({"token_type_ids": types} if typed else {}))
            y = [v for v in y.to_tuple() if v is not None]
            wanted[name] = y[:1] if head != "ForQuestionAnswering" and head else y
            models.append({"name": name, "typed": typed, "class": "ModernBERT" if family == "ModernBert" else "BERT"})
save_file(tensors, moth.folder + "/inputs.safetensors")
json.dump(models, open(moth.folder + "/models.json", "w"))
json.dump(chats, open(moth.folder + "/chats.json", "w"))
json.dump({"texts": sample, "cases": todo, "whole": True}, open(moth.folder + "/cases.json", "w"))
said = moth.result("tokenizers", moth.folder)
compared = 0
for name in want:
    got = said[name]
    if "error" in got:
        moth.expect(False, f"{name}: {got['error']}")
        continue
    compared += moth.lists(name, got, want[name], sample)
got = moth.result("transformers", moth.folder)
names = [f"{n} {k}" for n in chat_forms.TEMPLATES for k in range(len(chat_forms.CHATS))]
for name, theirs, ours in zip(names, talks, got["chats"]):
    moth.expect(theirs == ours if theirs is not None else ours is False, f"{name}: {theirs!r} against {ours!r}")
largest, values = 0, load_file(moth.folder + "/outputs.safetensors")
for name, y in wanted.items():
    if name in got["models"]:
        moth.expect(False, f"{name}: {got['models'][name]}")
        continue
    for i, v in enumerate(y):
        ours = values[f"{name}.{i + 1}"]
        if len(v.shape) == 3:  # what stands at padding is free
            v, ours = v[mask == 1], ours[mask == 1]
        elif "Question" in name:
            v, ours = v[mask == 1], ours[mask == 1]
        error = moth.off(ours.numpy(), v.numpy())
        largest = max(largest, error)
        moth.expect(error < 1e-3, f"{name}: result {i + 1} is off by {error}")
moth.end(f"{len(want)} classes of tokenizers, {compared} lists, texts and batches; {len(talks)} texts of chats; {len(wanted)} models, "
         f"largest error {largest:.1e}")
