# Makes spec/llm/fixtures: a GPT-2 and a Llama of 3.1's form, tiny and with random weights, and what transformers gives of
# them. Run spec/data/fixtures.py first. python3 spec/llm/fixtures.py
import json
import os
import shutil

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
shutil.rmtree(os.path.join(here, "fixtures", "__pycache__"), ignore_errors=True)
