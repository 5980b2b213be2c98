"""Trains what gpt.lua has written with PyTorch and compares the losses: python3 gpt.py FILE TOLERANCE"""
import json
import struct
import sys

import torch
import torch.nn.functional as F

DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
raw = open(sys.argv[1], "rb").read()
(n,) = struct.unpack("<Q", raw[:8])
data = bytearray(raw[8 + n :])
t = {}
for name, e in json.loads(raw[8 : 8 + n]).items():
    if name != "__metadata__":
        a, b = e["data_offsets"]
        t[name] = torch.frombuffer(data[a:b], dtype=DTYPES[e["dtype"]]).reshape(e["shape"]).clone()
tokens, losses = t.pop("tokens"), t.pop("losses")
p = {k: v.requires_grad_(True) for k, v in t.items()}
layers = sorted({k.split(".")[1] for k in p if k.startswith("h.")}, key=int)


def norm(x, name):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"])


def lin(x, name):
    return F.linear(x, p[name + ".weight"], p[name + ".bias"])


def forward(idx):
    x = p["wte.weight"][idx] + p["wpe.weight"][: idx.shape[1]]
    B, T, C = x.shape
    for i in layers:
        h = f"h.{i}."
        q, k, v = lin(norm(x, h + "ln_1"), h + "attn.c_attn").view(B, T, 3, 4, C // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + lin(y, h + "attn.c_proj")
        x = x + lin(F.gelu(lin(norm(x, h + "ln_2"), h + "c_fc"), approximate="tanh"), h + "c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


opt = torch.optim.AdamW(p.values(), lr=1e-3, weight_decay=0.1)
worst = 0.0
for step, want in zip(tokens, losses):
    opt.zero_grad()
    loss = F.cross_entropy(forward(step[:, :-1]).flatten(0, 1), step[:, 1:].flatten())
    loss.backward()
    opt.step()
    worst = max(worst, abs(loss.item() - want.item()) / abs(loss.item()))
print(f"{sys.argv[1]}: {len(losses)} losses, greatest relative difference {worst:.3g} (allowed {float(sys.argv[2]):g})")
sys.exit(worst > float(sys.argv[2]))
