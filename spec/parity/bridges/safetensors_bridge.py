"""Files of the safetensors package: tensors of every dtype both ways, bit for bit; damaged headers, which both refuse."""
PACKAGES = "safetensors==0.8.0 numpy==2.4.6 torch==2.15.0"
MEETS = "tensors of all dtypes, five shapes, both ways, bit for bit; metadata; damaged headers, which both refuse"
LIMITS = "float6, whose bits the format does not place, is refused, with the tensor's name; small floats are read, and not written"

import json
import os
import struct

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

import moth

SHAPES = [(), (0, 3), (5,), (2, 3), (3, 1, 4)]
BOTH = "float32 float64 float16 bfloat16 int8 uint8 int16 int32 int64 uint16 uint32 uint64 complex64 bool".split()
ONE_WAY = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split()
BITS = "F4 F6_E2M3 F6_E3M2 F8_E8M0".split()  # dtypes of the format that PyTorch has no tensors of, or no names for

g = torch.Generator().manual_seed(1)


def random(name, shape):
    d = getattr(torch, name)
    n = torch.Size(shape).numel()
    raw = torch.randint(0, 256, (n * d.itemsize,), generator=g, dtype=torch.uint8)
    return (raw > 127 if name == "bool" else raw.view(d)).reshape(shape).clone()


def bits(t):
    return str(t.dtype), tuple(t.shape), t.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def by_hand(header, size):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + bytes(size)


there = {f"{n}.{k}": random(n, s) for n in BOTH for k, s in enumerate(SHAPES)}
there["名前 \"x\"\n"] = torch.ones(2)
save_file(there, moth.folder + "/theirs.safetensors", {"format": "pt", "a": "ü \n"})
for n in ONE_WAY:
    save_file({f"w.{n}": random(n, (256,)).view(getattr(torch, n))}, f"{moth.folder}/{n}.safetensors")


def entry(a, b, shape=None, dtype="F32"):
    return {"dtype": dtype, "shape": shape if shape is not None else [(b - a) // 4], "data_offsets": [a, b]}


damaged = {
    "gap": by_hand({"a": entry(0, 8), "b": entry(12, 20)}, 20), "overlap": by_hand({"a": entry(0, 8), "b": entry(4, 12)}, 12),
    "short": by_hand({"a": entry(0, 8)}, 4), "long": by_hand({"a": entry(0, 8)}, 16),
    "size": by_hand({"a": entry(0, 8, [3])}, 8), "begins late": by_hand({"a": entry(4, 8)}, 8),
    "backwards": by_hand({"a": entry(8, 0, [0])}, 8), "no array": by_hand({"a": {"dtype": "F32", "shape": [1]}}, 4),
    "unknown dtype": by_hand({"a": entry(0, 8, [2], "F31")}, 8), "list": by_hand(b"[]", 0),
    "negative": by_hand({"a": entry(0, 8, [-2])}, 8), "fraction": by_hand({"a": entry(0, 8, [2.5])}, 8),
    "metadata of numbers": by_hand({"__metadata__": {"a": 1}, "b": entry(0, 8)}, 8),
    "overflow": by_hand({"a": entry(0, 8, [2**32, 2**32, 2])}, 8),
    "no header": b"\0" * 4, "header too long": struct.pack("<Q", 1 << 40) + b"{}",
}
# The format disallows names that occur twice; the package takes the last one. Moth refuses.
strict = {
    "twice": by_hand(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],'
                     b'"data_offsets":[0,4]}}', 4)}
both_read = {"empty": by_hand({}, 0), "spaces behind": by_hand(json.dumps({"a": entry(0, 8)}).encode() + b"   ", 8),
             "no order": by_hand({"b": entry(8, 16), "a": entry(0, 8)}, 16),
             "empty tensors": by_hand({"a": entry(0, 0, [0]), "b": entry(0, 8), "c": entry(8, 8, [3, 0])}, 8)}
for name, text in {**damaged, **strict, **both_read}.items():
    open(f"{moth.folder}/hand {name}.safetensors", "wb").write(text)
for name in BITS:
    open(f"{moth.folder}/{name}.safetensors", "wb").write(by_hand({f"w.{name}": entry(0, 12, [16 if name != "F8_E8M0" else 12], name)}, 12))

names = [*ONE_WAY, *BITS, *(f"hand {n}" for n in {**damaged, **strict, **both_read})]
said = moth.result("safetensors", moth.folder, *names)
back = load_file(moth.folder + "/ours.safetensors")
for name, t in there.items():
    moth.expect(name in back and bits(back[name]) == bits(t), name)
with safe_open(moth.folder + "/ours.safetensors", "pt") as f:
    moth.expect(f.metadata() == {"format": "pt", "a": "ü \n"}, f.metadata())
numbers, refused = 0, 0
for name in ONE_WAY + BITS:
    got = said[name]
    if isinstance(got, str):
        refused += 1
        moth.expect(f"w.{name}" in got, f"{name}: the tensor is not named: {got}")
    elif name in ONE_WAY:
        numbers += 1
        want = load_file(f"{moth.folder}/{name}.safetensors")[f"w.{name}"].float()
        same = torch.load(f"{moth.folder}/{name}.pt")[f"w.{name}"].float()
        moth.expect(torch.equal(want.nan_to_num(777), same.nan_to_num(777)), name)
    else:  # scales: zeros are 2^-127
        numbers += 1
        same = torch.load(f"{moth.folder}/{name}.pt")[f"w.{name}"].double()
        moth.expect(name == "F8_E8M0" and bool((same == 2.0**-127).all()), f"{name}: {same}")
agree = 0
for name in [*damaged, *both_read]:
    path = f"{moth.folder}/hand {name}.safetensors"
    try:
        with safe_open(path, "np") as f:
            theirs = len(f.keys())
    except SafetensorError as e:
        theirs = str(e)
    ours = said["hand " + name]
    agree += isinstance(theirs, str) == isinstance(ours, str)
    moth.expect(isinstance(theirs, str) == isinstance(ours, str), f"{name}: theirs {theirs}; ours {ours}")
moth.expect("twice" in said["hand twice"], said["hand twice"])
moth.end(f"{len(there)} tensors of {len(BOTH)} dtypes both ways; {numbers} dtypes read as numbers, {refused} refused by "
         f"name; {agree} of {len(damaged) + len(both_read)} headers made by hand are judged alike")
