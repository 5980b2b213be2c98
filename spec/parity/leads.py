"""Which kinds of calls take the time of the lab's step: moth's profile (leads.lua) and PyTorch's: python3 leads.py FILE"""
import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile

KINDS = {
    "products": ("linear", "addmm", "mm", "matmul", "addmmbackward", "linearbackward"),
    "optimizer": ("adam", "optimizer.step#adam", "add_", "mul_", "addcmul_", "addcdiv_", "lerp_", "sqrt", "_foreach"),
    "relu": ("relu", "threshold_backward", "clamp_min"),
    "loss": ("cross_entropy", "log_softmax", "nll_loss", "_log_softmax", "softmax"),
}


def kind(name):
    name = name.lower().split("::")[-1]
    for k, words in KINDS.items():
        if any(name.startswith(w) or name.lstrip("_").startswith(w.lstrip("_")) for w in words):
            return k
    return "other"


def shares(rows):
    """Of self times, without what only waits for or wraps other calls."""
    out = {}
    for name, own in rows:
        out[kind(name)] = out.get(kind(name), 0) + own
    total = sum(out.values())
    return {k: v / total for k, v in out.items()}


ours = shares([(r[0], r[1]) for r in json.load(open(sys.argv[1]))])
torch.set_num_threads(1)
nn = torch.nn
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))


def step():
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()


for _ in range(10):
    step()
with profile(activities=[ProfilerActivity.CPU]) as prof:
    for _ in range(100):
        step()
theirs = shares([(e.key, e.self_cpu_time_total) for e in prof.key_averages()])
for name, s in ("moth", ours), ("PyTorch", theirs):
    print(f"{name:8}", ", ".join(f"{k} {100 * v:.0f} %" for k, v in sorted(s.items(), key=lambda kv: -kv[1])))
lead = [max((k for k in s if k != "other"), key=lambda k: s[k]) for s in (ours, theirs)]
heavy = [sorted((k for k in s if k != "other"), key=lambda k: -s[k])[:2] for s in (ours, theirs)]
assert lead[0] == lead[1], f"moth: {lead[0]} lead; PyTorch: {lead[1]}"
assert set(heavy[0]) == set(heavy[1]), f"moth: {heavy[0]}; PyTorch: {heavy[1]}"
print(f"{sys.argv[1]}: the same kinds of calls lead: {', '.join(heavy[0])}")
