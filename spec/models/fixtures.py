"""Writes tiny models of transformers with random weights for models_spec.lua, and prints what they give."""
import os

import torch
import transformers as T

folder = os.path.join(os.path.dirname(__file__), "fixtures")
torch.manual_seed(0)
small = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16, initializer_range=0.5)
models = {
    "gpt2": T.GPT2LMHeadModel(T.GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=2, initializer_range=0.5)),
    "llama": T.LlamaForCausalLM(T.LlamaConfig(**small, num_key_value_heads=1)),
    "bert": T.BertModel(T.BertConfig(**small)),
}
ids = torch.tensor([[1, 2, 3, 4, 5]])
for name, model in models.items():
    model.eval().save_pretrained(f"{folder}/{name}")
    for extra in os.listdir(f"{folder}/{name}"):
        if extra not in ("config.json", "model.safetensors"):
            os.remove(f"{folder}/{name}/{extra}")
    with torch.no_grad():
        out = model(ids)
    row = (out.last_hidden_state if name == "bert" else out.logits)[0, -1]
    print(name, [round(x, 6) for x in row.tolist()])
    if name != "bert":
        print(name, "greedy", model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)[0].tolist())
