"""The other side of bench/llm.lua: reads a command a line, prints seconds or a reason that begins with "none"."""
import sys
import time

state = {}


def model():
    if "model" not in state:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        torch.manual_seed(1)
        state["model"] = GPT2LMHeadModel(GPT2Config()).eval()
    return state["model"]


def decode(threads, batch, prompt, tokens):
    import torch
    torch.set_num_threads(int(threads))
    m = model()
    with torch.no_grad():
        y = torch.randint(0, 50257, (int(batch), int(prompt)))
        out = m(y, use_cache=True, logits_to_keep=1)
        y = out.logits[:, -1].argmax(-1, keepdim=True)
        begun = time.perf_counter()
        for _ in range(int(tokens)):
            out = m(y, past_key_values=out.past_key_values, use_cache=True)
            y = out.logits[:, -1].argmax(-1, keepdim=True)
        return time.perf_counter() - begun


def encode(path, text):
    from tokenizers import Tokenizer
    t, s = Tokenizer.from_file(path), open(text, newline="").read()
    begun = time.perf_counter()
    t.encode(s, add_special_tokens=False)
    return time.perf_counter() - begun


for line in sys.stdin:
    name, *words = line.split()
    try:
        print({"decode": decode, "encode": encode}[name](*words), flush=True)
    except Exception as e:  # a package that is not there
        print("none", str(e).split("\n")[0], flush=True)
