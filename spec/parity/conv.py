"""Computes what conv.lua has written with PyTorch and compares: python3 conv.py FILE TOLERANCE"""
import json
import struct
import sys

import torch

F = torch.nn.functional
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


def run(kind, x, m):
    pair = [m[i : i + 2] for i in range(0, len(m), 2)]
    if kind == "conv":
        return F.conv2d(*x, pair[0], pair[1], pair[2], m[6])
    if kind == "back":
        return F.conv_transpose2d(*x, pair[0], pair[1], m[7:9], m[6], pair[2])
    if kind == "max":
        return F.max_pool2d(*x, pair[0], pair[1], pair[2], 1, bool(m[6]))
    if kind == "avg":
        return F.avg_pool2d(*x, pair[0], pair[1], pair[2], bool(m[6]), bool(m[7]))
    return (F.adaptive_avg_pool2d if kind == "adaptive_avg" else F.adaptive_max_pool2d)(*x, m)


t = load(sys.argv[1])
tolerance = float(sys.argv[2])
worst, where, cases = 0.0, "", 0
for name in [k[:-5] for k in t if k.endswith(".meta")]:
    kind = name.rstrip("0123456789")
    x = []
    while f"{name}.x{len(x) + 1}" in t:
        x.append(t[f"{name}.x{len(x) + 1}"].requires_grad_(True))
    y = run(kind, x, [int(v) for v in t[name + ".meta"]])
    y.backward(t[name + ".g"])
    got = {"y": y.detach(), **{f"d{i + 1}": v.grad for i, v in enumerate(x)}}
    for k, v in got.items():
        if v.shape != t[f"{name}.{k}"].shape:
            sys.exit(f"{name}.{k}: shape {list(t[f'{name}.{k}'].shape)}, PyTorch's {list(v.shape)}")
        if v.numel():
            d = ((v - t[f"{name}.{k}"]).abs() / (1 + v.abs())).max().item()
            if not d <= worst:
                worst, where = d, f"{name}.{k}"
    cases += 1
print(f"{sys.argv[1]}: {cases} cases, greatest difference {worst:.3g} in {where} (allowed {tolerance:g})")
sys.exit(not worst <= tolerance)
