"""PyTorch: files of state dicts of all kinds, optimizers, schedules, gradient scalers, signatures."""
PACKAGES = "torch==2.15.0 numpy==2.4.6"
MEETS = ("files of torch.save, back by moth.save, bit for bit: all dtypes, views of one storage, tied weights, parameters and tensors with "
         "attributes, sparse COO and CSR; every optimizer, Muon too, for 20 steps in float32 and float64, state dicts both ways; every "
         "schedule, from a state in its midst, too; `GradScaler` over infinities, state dicts both ways; the signatures of modules, "
         "functions, optimizers; `torch.nn`'s classes by name")
LIMITS = ("refused by name: quantized, nested and meta tensors, CSC, BSR and BSC, complex32, float4, bits; classes of tensors and objects of "
          "one's own, whole modules, NumPy's values, TorchScript and torch.export's .pt2, files of before 1.6; float8 becomes bfloat16")

import collections
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import torch
from torch import nn

import moth

warnings.simplefilter("ignore")
g = torch.Generator().manual_seed(1)


def path(name):
    return os.path.join(moth.folder, name)


def random(name, shape):
    d = getattr(torch, name)
    raw = torch.randint(0, 256, (torch.Size(shape).numel() * d.itemsize,), generator=g, dtype=torch.uint8)
    return (raw > 127 if name == "bool" else raw.view(d)).reshape(shape).clone()


class Own(torch.Tensor):
    pass


class Options:
    pass


# ---- files -----------------------------------------------------------------------------------------------------------
SAME = ("float32 float64 float16 bfloat16 int8 uint8 int16 int32 int64 bool uint16 uint32 uint64 complex64 complex128").split()
SMALL = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
base = torch.arange(12.0).reshape(3, 4)
coo = torch.sparse_coo_tensor([[0, 2, 0], [1, 3, 1]], [1.0, 2.0, 3.0], (3, 4))
tagged = nn.Parameter(base.clone())
tagged.tag = "a"
marked = base.clone()
marked.tag = {"b": 1}
net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
net[2].weight = net[0].weight
files = {
    "dtypes": {f"{n}.{k}": random(n, s) for n in SAME for k, s in enumerate([(), (0, 3), (5,), (2, 3), (3, 1, 4)])},
    "small": {n: random(n, (256,)) for n in SMALL},
    "views": {"whole": base, "row": base[1], "turned": base.t(), "steps": base[:, ::2], "flat": base.view(-1)[3:7], "wide": base[:1, :1].expand(3, 4)},
    "sparse": {"coo": coo, "sorted": coo.coalesce(), "hybrid": torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 4), (3, 4)),
               "csr": base.to_sparse_csr()},
    "attributes": {"parameter": tagged, "tensor": marked, "buffer": nn.Buffer(torch.ones(2)), "frozen": nn.Parameter(torch.ones(2), requires_grad=False)},
    "tied": net.state_dict(),
    "plain": {"a": [1, -300, 2**40, 0.1, True, "é"], "b": {"x": {"y": torch.ones(1)}}, "step": torch.tensor(3.0)},
}
refused = {
    "qint8": torch.quantize_per_tensor(base, 0.1, 3, torch.qint8), "quint8": torch.quantize_per_tensor(base, 0.1, 3, torch.quint8),
    "channels": torch.quantize_per_channel(base, torch.ones(3), torch.zeros(3), 0, torch.qint8),
    "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "jagged": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "meta": torch.empty(2, device="meta"), "csc": base.to_sparse_csc(), "bsr": torch.ones(4, 4).to_sparse_bsr((2, 2)),
    "complex32": torch.zeros(2, dtype=torch.complex32), "float4": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "bits": torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
    "own": base.as_subclass(Own), "options": Options(), "module": nn.Linear(2, 2), "numpy": np.float32(1.5),
    "defaultdict": collections.defaultdict(int),
}
SAYS = {"qint8": "quantized", "quint8": "quantized", "channels": "quantized", "nested": "nested", "jagged": "nested", "meta": "meta",
        "csc": "sparse_csc", "bsr": "sparse_bsr", "complex32": "complex32", "float4": "float4", "bits": "bits8", "conjugate": "conj",
        "own": "Own", "options": "Options", "module": "Linear", "numpy": "NumPy", "defaultdict": "defaultdict", "script": "TorchScript",
        "program": "torch.export", "legacy": "old format"}
for name, value in {**files, **refused}.items():
    torch.save(value, path(name + ".pt"))
torch.save({"a": base}, path("legacy.pt"), _use_new_zipfile_serialization=False)
torch.jit.save(torch.jit.trace(nn.Linear(3, 2), torch.ones(2, 3)), path("script.pt"))
torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.ones(2, 3),)), path("program.pt2"))
os.replace(path("program.pt2"), path("program.pt"))

# ---- gradient scalers: some steps overflow ----------------------------------------------------------------------------
OVER = [2, 3, 9, 17, 18, 19]


def scaled(scaler, w, o, steps):
    rows = []
    for t in steps:
        o.zero_grad()
        scaler.scale((w * w).sum()).backward()
        if t in OVER:
            w.grad[0] = float("inf")
        if t % 4 == 0:
            scaler.unscale_(o)
            nn.utils.clip_grad_norm_([w], 0.5)
        scaler.step(o)
        scaler.update()
        rows.append([scaler.get_scale(), *w.detach().tolist()])
    return rows


w = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
o = torch.optim.SGD([w], lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
rows = scaled(scaler, w, o, range(12))
torch.save({"scaler": scaler.state_dict(), "optimizer": o.state_dict(), "w": w.detach().clone()}, path("scaler.pt"))
rows += scaled(scaler, w, o, range(12, 24))

json.dump({"files": [*files], "refused": [*refused, "script", "program", "legacy"], "over": OVER,
           "classes": [n for n in dir(nn) if isinstance(getattr(nn, n), type) and issubclass(getattr(nn, n), nn.Module)]}, open(path("cases.json"), "w"))
said = moth.result("pytorch", moth.folder)


def bits(t):
    if t.layout != torch.strided:
        return t.layout, t.to_dense().flatten().tolist(), t.layout == torch.sparse_coo and t.is_coalesced()
    return t.dtype, tuple(t.shape), t.requires_grad, t.contiguous().detach().flatten().view(torch.uint8).numpy().tobytes()


tensors = 0
for name, value in files.items():
    back = torch.load(path(name + ".moth.pt"))
    if name == "plain":
        moth.expect(back["a"][:5] == value["a"][:5] and back["a"][-1] == "é" and back["b"]["x"]["y"].item() == 1, back)
        continue
    moth.expect(set(back) == set(value), f"{name}: {set(back) ^ set(value)}")
    for k, t in value.items():
        tensors += 1
        if name == "small":
            moth.expect(torch.equal(back[k].float().nan_to_num(777), t.float().nan_to_num(777)), k)
        else:
            moth.expect(bits(back[k]) == bits(t), f"{name} {k}: {back[k]} {t}")
for name in ("views", "tied"):
    back, value = torch.load(path(name + ".moth.pt")), files[name]
    for a in value:
        for b in value:
            alike = [x[a].untyped_storage().data_ptr() == x[b].untyped_storage().data_ptr() for x in (back, value)]
            moth.expect(alike[0] == alike[1], f"{name}: {a} and {b} share {alike}")
for name, part in SAYS.items():
    moth.expect(part in said["refused"].get(name, "read"), f"{name}: {said['refused'].get(name, 'read')}")
moth.expect(np.allclose(said["rows"], rows, rtol=1e-6) and np.allclose(said["rest"], rows[12:], rtol=1e-6), "GradScaler")
saved = torch.load(path("scaler.moth.pt"))
o.load_state_dict(saved["optimizer"])
scaler.load_state_dict(saved["scaler"])
w.data.copy_(saved["w"])
moth.expect(np.allclose(scaled(scaler, w, o, range(12, 24)), rows[12:], rtol=1e-6), "GradScaler from moth's state")
OLD = {"Container", "NLLLoss2d", "Module"}
moth.expect(set(said["missing"]) <= OLD, set(said["missing"]) - OLD)

# ---- what make parity has --------------------------------------------------------------------------------------------
PARITY = os.path.join(moth.HERE, "..")


def parity(*steps):
    """The last lines that programs of spec/parity print, run one after the other."""
    lines = []
    for program, *args in steps:
        runner = sys.executable if program.endswith(".py") else os.environ["MOTH_PROGRAM"]
        done = subprocess.run([runner, os.path.join(PARITY, program), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines += done.stdout.strip().split("\n")[-1:]
        moth.expect(done.returncode == 0, f"{program}: {done.stdout[-300:]}")
    return lines


os.makedirs(path("optim"), exist_ok=True)
optim = parity(("optim.py", "make", path("optim")), ("optim.lua", path("optim")), ("optim.py", "check", path("optim")))
schedules = parity(("schedules.py", path("schedules.json")), ("schedules.lua", path("schedules.json")))
listed = subprocess.run([os.environ["MOTH_PROGRAM"], os.path.join(PARITY, "signatures.lua")], stdout=subprocess.PIPE).stdout
signatures = subprocess.run([sys.executable, os.path.join(PARITY, "signatures.py")], input=listed, stdout=subprocess.PIPE)
moth.expect(signatures.returncode == 0, signatures.stdout.decode()[-300:])
modules = parity(("modules.py", path("modules.json")), ("modules.lua", path("modules.json")))
texts = [optim[-2], optim[-1], schedules[-1], signatures.stdout.decode().strip().split("\n")[-1], modules[-1]]
moth.end(f"{tensors} tensors there and back, {len(SAYS)} files refused by name; " + "; ".join(t for t in texts if t))
