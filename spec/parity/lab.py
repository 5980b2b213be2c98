"""Trains what lab.lua has written with PyTorch and compares the losses: python3 lab.py FILE TOLERANCE"""
import json
import struct
import sys

import torch

DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}


def load(path):
    raw = open(path, "rb").read()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + n])
    data = bytearray(raw[8 + n :])
    out = {}
    for name, e in header.items():
        if name != "__metadata__":
            a, b = e["data_offsets"]
            out[name] = torch.frombuffer(data[a:b], dtype=DTYPES[e["dtype"]]).reshape(e["shape"]).clone()
    return out


t = load(sys.argv[1])
tolerance = float(sys.argv[2])
nn = torch.nn
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
net = net.to(t["p1"].dtype)
with torch.no_grad():
    for i, p in enumerate(net.parameters()):
        p.copy_(t[f"p{i + 1}"])
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
worst = 0.0
for i in range(t["x"].shape[0]):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(t["x"][i]), t["y"][i])
    loss.backward()
    opt.step()
    worst = max(worst, abs(loss.item() - t["losses"][i].item()) / abs(loss.item()))
print(f"{sys.argv[1]}: 100 losses, greatest relative difference {worst:.3g} (allowed {tolerance:g})")
sys.exit(worst > tolerance)
