# Makes spec/llm/fixtures: a GPT-2, a Llama of 3.1's form and one of each family like it, tiny and with random weights, and
# what transformers gives of them; quantized blocks and what the gguf package makes of them. Run spec/data/fixtures.py
# first. python3 spec/llm/fixtures.py
import json
import os
import shutil

import gguf
import numpy
import torch
import transformers as T

here = os.path.dirname(os.path.abspath(__file__))
prompt = "It is the moon"
torch.manual_seed(0)


def save(name, model, tokenizer, template=None):
    folder = os.path.join(here, "fixtures", name)
    model.eval().save_pretrained(folder)
    data = json.load(open(os.path.join(here, "..", "data", "fixtures", tokenizer)))
    del data["cases"]
    json.dump(data, open(os.path.join(folder, "tokenizer.json"), "w"), ensure_ascii=False)
    tok = T.PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
    config = {"chat_template": template} if template else {}
    json.dump(config, open(os.path.join(folder, "tokenizer_config.json"), "w"))
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    ids = torch.tensor([tok.encode(prompt)])
    with torch.no_grad():
        logits = model(ids).logits[0, -1]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, eos_token_id=None,
                         pad_token_id=0)[0].tolist()
    json.dump({"prompt": prompt, "ids": ids[0].tolist(), "logits": [round(x, 6) for x in logits.tolist()], "out": out,
               "text": tok.decode(out[ids.shape[1]:])}, open(os.path.join(folder, "want.json"), "w"), ensure_ascii=False)


save("gpt2", T.GPT2LMHeadModel(T.GPT2Config(vocab_size=420, n_positions=128, n_embd=16, n_layer=2, n_head=2, initializer_range=0.6,
                                            bos_token_id=0, eos_token_id=0)), "tokenizer_gpt2.json")
save("llama", T.LlamaForCausalLM(T.LlamaConfig(
    vocab_size=420, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, tie_word_embeddings=True, rope_theta=5000.0, initializer_range=0.6, bos_token_id=0, eos_token_id=1,
    rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 32})), "tokenizer_llama3.json",
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")


def family(name, kind, number, **fields):
    torch.manual_seed(number)
    sizes = dict(vocab_size=31, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.4, pad_token_id=0, bos_token_id=0,
                 eos_token_id=1)
    config = getattr(T, kind + ("TextConfig" if kind == "Gemma3" else "Config"))(**{**sizes, **fields})
    config._attn_implementation = "eager"
    model = getattr(T, kind + "ForCausalLM")(config).eval()
    for n, p in model.named_parameters():
        if p.dim() == 1:
            torch.nn.init.normal_(p, 1.0 if "norm" in n and "Gemma" not in kind else 0.0, 0.3)
    folder = os.path.join(here, "fixtures", "families", name)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    ids = torch.randint(0, 31, (1, 24))
    with torch.no_grad():
        logits = model(ids).logits[0, -1]
    out = model.generate(ids[:, :9], attention_mask=torch.ones(1, 9), max_new_tokens=24, do_sample=False, eos_token_id=None)
    json.dump({"ids": ids[0].tolist(), "logits": [round(x, 6) for x in logits.tolist()], "out": out[0].tolist()},
              open(os.path.join(folder, "want.json"), "w"))


family("mistral", "Mistral", 1, sliding_window=7, head_dim=8)
family("qwen2", "Qwen2", 2)
family("qwen2_window", "Qwen2", 3, use_sliding_window=True, sliding_window=6, max_window_layers=1)
family("qwen3", "Qwen3", 4, head_dim=6, tie_word_embeddings=True)
family("gemma", "Gemma", 5, head_dim=8)
family("gemma2", "Gemma2", 6, head_dim=8, sliding_window=6, query_pre_attn_scalar=8, attn_logit_softcapping=5.0,
       final_logit_softcapping=3.0)
family("gemma3", "Gemma3", 7, head_dim=8, sliding_window=6, query_pre_attn_scalar=8,
       layer_types=["sliding_attention", "full_attention"])
family("phi3", "Phi3", 8, original_max_position_embeddings=32,
       rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5, short_factor=[1.5],
                            long_factor=[2.0]))
family("yarn", "Llama", 9, rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=4.0,
                                                original_max_position_embeddings=16))


def templates():  # what transformers' jinja2 makes of the templates in jinja.json (null: it raises)
    from transformers.utils.chat_template_utils import _compile_jinja_template
    path = os.path.join(here, "fixtures", "jinja.json")
    data = json.load(open(path))
    for case in data["cases"]:
        variables = {"messages": data["chats"].get(case[1], []), "add_generation_prompt": True, "bos_token": "<s>",
                     "eos_token": "</s>"}
        try:
            case[2] = _compile_jinja_template(case[0]).render(**json.loads(json.dumps(variables, sort_keys=True)))
        except Exception:
            case[2] = None
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in data["cases"])
    open(path, "w").write('{"chats": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(data["chats"], ensure_ascii=False), lines))


def blocks():
    random = numpy.random.default_rng(0)
    path = os.path.join(here, "fixtures", "blocks.gguf")
    writer, scales = gguf.GGUFWriter(path, "blocks"), {"Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208],
        "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": [], "IQ1_M": []}
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
            "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
        kind = getattr(gguf.GGMLQuantizationType, name)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        rows = random.integers(0, 256, (2 * 256 // elements, size), dtype=numpy.uint8)
        for at in scales.get(name, [0, 2] if name[-1] in "1K" else [0]):
            rows[:, at:at + 2] = random.normal(0, 1, (len(rows), 1)).astype(numpy.float16).view(numpy.uint8)
        rows = rows.reshape(2, -1)
        writer.add_tensor(name, rows, raw_dtype=kind)
        writer.add_tensor(name + ".want", gguf.quants.dequantize(rows, kind).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pieces():  # a SentencePiece vocabulary with scores, and what the sentencepiece package gives
    import sentencepiece
    base = os.path.join(here, "fixtures", "pieces")
    random, alphabet = numpy.random.default_rng(1), ["a", "b", " ", "  ", "the", "é", "\n", "漢", "🙂", "=", "local x", "\t", "7", "…"]
    texts = ["".join(random.choice(alphabet, 40)) for _ in range(60)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([x.replace("\n", " ") for x in texts]), model_prefix=base, vocab_size=320, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98,
        allow_whitespace_only_pieces=True, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_file=base + ".model")
    writer, ids = gguf.GGUFWriter(base + ".gguf", "llama"), range(sp.vocab_size())
    writer.add_tokenizer_model("llama")
    writer.add_token_list([sp.id_to_piece(i) for i in ids])
    writer.add_token_scores([sp.get_score(i) for i in ids])
    writer.add_token_types([2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in ids])
    writer.add_bos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    json.dump([[x, sp.encode(x)] for x in texts[:30] + ["", " ", "aaaaaaa", "naïve Straße"]],
              open(base + ".json", "w"), ensure_ascii=False)
    os.remove(base + ".model")
    os.remove(base + ".vocab")


blocks()
pieces()
shutil.rmtree(os.path.join(here, "fixtures", "__pycache__"), ignore_errors=True)
