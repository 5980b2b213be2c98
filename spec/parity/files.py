"""Files of NumPy's and PyTorch's, there and back: python3 files.py make DIR; luajit files.lua DIR; python3 files.py check DIR

Elements are random bits, NaNs of all kinds among them, and are compared as bits."""
import collections
import json
import struct
import sys

import numpy as np
import torch

mode, folder = sys.argv[1], sys.argv[2]
DTYPES = "float32 float64 float16 bfloat16 int8 uint8 int16 int32 int64 bool".split()
SAFE = dict(zip(DTYPES, "F32 F64 F16 BF16 I8 U8 I16 I32 I64 BOOL".split()))
SHAPES = [(), (0, 3), (5,), (2, 3), (3, 1, 4), (1, 2, 1, 2, 1, 2)]


def make():
    g = torch.Generator().manual_seed(1)
    out = {}
    for name in DTYPES:
        d = getattr(torch, name)
        for k, shape in enumerate(SHAPES):
            n = int(np.prod(shape))
            raw = torch.randint(0, 256, (n * d.itemsize,), generator=g, dtype=torch.uint8)
            out[f"{name}_{k}"] = (raw > 127 if name == "bool" else raw.view(d)).reshape(shape).clone()
    return out


def bits(t):
    return (str(t.dtype), tuple(t.shape), t.contiguous().flatten().view(torch.uint8).numpy().tobytes())


def load_safetensors(path):
    raw = open(path, "rb").read()
    (n,) = struct.unpack("<Q", raw[:8])
    out = {}
    for name, e in json.loads(raw[8 : 8 + n]).items():
        if name != "__metadata__":
            a, b = e["data_offsets"]
            dtype = getattr(torch, next(k for k, v in SAFE.items() if v == e["dtype"]))
            data = torch.frombuffer(bytearray(raw[8 + n + a : 8 + n + b]), dtype=torch.uint8) if b > a else torch.empty(0, dtype=torch.uint8)
            out[name] = data.view(dtype).reshape(e["shape"])
    return out


tensors = make()
numpy = {k: v.numpy() for k, v in tensors.items() if not k.startswith("bfloat16")}
if mode == "make":
    # The same under three protocols, as a module's state dict, and with views: every second column, transposed.
    for protocol in (2, 4, 5):
        torch.save(tensors, f"{folder}/p{protocol}.pt", pickle_protocol=protocol)
    wide = {k: torch.empty(*v.shape, 2, dtype=v.dtype) for k, v in tensors.items()}
    for k, v in tensors.items():
        wide[k][..., 1] = v
    torch.save(collections.OrderedDict((k, wide[k][..., 1]) for k in wide), f"{folder}/views.pt")
    np.savez(f"{folder}/stored.npz", **numpy)
    np.savez_compressed(f"{folder}/deflated.npz", **{k: np.array(v, order="F") for k, v in numpy.items()})
    np.savez(f"{folder}/big.npz", **{k: v.astype(v.dtype.newbyteorder(">")) for k, v in numpy.items() if "float" not in k})
    if "safetensors" in sys.modules or __import__("importlib.util").util.find_spec("safetensors"):
        from safetensors.torch import save_file

        save_file({k: v.contiguous() for k, v in tensors.items()}, f"{folder}/hf.safetensors", {"format": "pt"})
else:
    bad, n = [], 0
    for source in sys.argv[3:]:
        back = load_safetensors(f"{folder}/{source}.moth")
        for k in back:
            n += 1
            if bits(back[k]) != bits(tensors[k]):
                bad.append(f"{source}: {k}")
        if len(back) < (len(tensors) if ".pt" in source or "safetensors" in source else len(numpy) // 2):
            bad.append(f"{source}: only {len(back)} tensors")
    for k, v in numpy.items():
        n += 1
        a = np.load(f"{folder}/{k}.npy")
        if a.dtype != v.dtype or a.shape != v.shape or a.tobytes() != v.tobytes():
            bad.append(f"{k}.npy")
    print(f"files: {n} tensors there and back, {len(bad)} differ {bad[:5]}")
    sys.exit(len(bad) > 0 or n == 0)
