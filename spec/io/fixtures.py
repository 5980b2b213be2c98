"""Writes the files in spec/io/fixtures by NumPy and PyTorch: python3 spec/io/fixtures.py spec/io/fixtures

spec/io/foreign_spec.lua reads them; they are kept, since the specs run where neither is installed."""
import collections
import io
import json
import os
import pickle
import struct
import sys
import zipfile
import zlib

import numpy as np
import torch

out = sys.argv[1]
os.makedirs(out, exist_ok=True)


def path(name):
    return os.path.join(out, name)


def write(name, content):
    with open(path(name), "wb") as f:
        f.write(content)


# .npy: 2 by 3, the values 0 to 5 (bool: odd ones), in each type and order
for t in ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1"]:
    a = np.arange(6).reshape(2, 3)
    a = a % 2 == 1 if t == "b1" else a.astype(t)
    np.save(path(f"{t}.npy"), a)
np.save(path("big_f4.npy"), np.arange(6, dtype=">f4").reshape(2, 3))
np.save(path("big_i8.npy"), np.arange(6, dtype=">i8").reshape(2, 3))
np.save(path("fortran.npy"), np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3)))
np.save(path("fortran3.npy"), np.asfortranarray(np.arange(24, dtype=">i2").reshape(2, 3, 4)))
np.save(path("scalar.npy"), np.float64(2.5))
np.save(path("empty.npy"), np.zeros((0, 3), "f4"))
for v in [(2, 0), (3, 0)]:
    with open(path(f"version{v[0]}.npy"), "wb") as f:
        np.lib.format.write_array(f, np.arange(3, dtype="i4"), version=v)
# refused: what moth does not have
np.save(path("object.npy"), np.array([1, None], dtype=object), allow_pickle=True)
np.save(path("record.npy"), np.zeros(2, dtype=[("a", "<i4"), ("b", "<f4")]))
np.save(path("text.npy"), np.array(["ab", "c"]))
np.save(path("bytes.npy"), np.array([b"ab", b"c"]))
np.save(path("complex.npy"), np.zeros(2, "c8"))
np.save(path("u4.npy"), np.zeros(2, "u4"))
np.save(path("time.npy"), np.zeros(2, "M8[s]"))

np.savez(path("stored.npz"), w=np.arange(6, dtype="f4").reshape(2, 3), b=np.asfortranarray(np.eye(2)), n=np.int64(3))
np.savez_compressed(path("deflated.npz"), w=np.arange(6, dtype="f4").reshape(2, 3), zeros=np.zeros(1000, "i2"))

# .pt
torch.manual_seed(0)
x = torch.arange(6.0).reshape(2, 3)
every = {
    str(d).split(".")[1]: (torch.arange(6).reshape(2, 3) % 2 == 1 if d == torch.bool else torch.arange(6).reshape(2, 3).to(d))
    for d in [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    ]
}
plain = {
    "every": every,
    "x": x,
    "t": x.t(),
    "row": x[1],
    "step": x.flatten()[::2],
    "expanded": x[0].expand(4, 3),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "empty_view": torch.zeros(0, 3, 2)[..., 1],
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "list": [1, -300, 70000, 2**40, -(2**40), 2**60, True, False, None, "text é", 0.1],
    "tuple": (1, (2, (3,))),
    "size": torch.Size([2, 3]),
    "dtype": torch.float16,
    "device": torch.device("cpu"),
    "keys": {1: "one", "two": 2, 2.5: "half", True: "yes"},
    "ordered": collections.OrderedDict([("z", 1), ("a", 2), ("m", 3)]),
}
torch.save(plain, path("plain.pt"))
unsigned = {d: torch.tensor([[0, 1], [40000, 65535]], dtype=getattr(torch, d)) for d in ("uint16", "uint32", "uint64")}
unsigned["top"] = torch.tensor(2**64 - 1, dtype=torch.uint64)
unsigned["row"] = unsigned["uint16"][1]  # of the same storage
torch.save(unsigned, path("unsigned.pt"))
small = {}
for d in "e4m3fn e5m2 e4m3fnuz e5m2fnuz e8m0fnu".split():
    codes = torch.arange(256, dtype=torch.uint8).view(getattr(torch, "float8_" + d)).reshape(16, 16)
    small[d] = codes
    small[d + " as float"] = codes.float()
    small[d + " row"] = codes[3]  # of the same storage
torch.save(small, path("small.pt"))
coo = torch.sparse_coo_tensor([[0, 2, 0], [1, 3, 1]], [1.0, 2.0, 3.0], (3, 4))
torch.save({"coo": coo, "sorted": coo.coalesce(), "csr": coo.to_dense().to_sparse_csr(), "hybrid": torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 4), (3, 4))},
           path("sparse.pt"))
torch.save({"csc": coo.to_dense().to_sparse_csc()}, path("sparse_csc.pt"))
tagged = {"parameter": torch.nn.Parameter(torch.ones(2)), "tensor": torch.ones(3), "buffer": torch.nn.Buffer(torch.ones(4))}
tagged["parameter"].tag = tagged["tensor"].tag = ("a", 1)
torch.save(tagged, path("attributes.pt"))
torch.save({"x": torch.ones(2, dtype=torch.complex64).conj()}, path("conj.pt"))
torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),)), path("program.pt2"))
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model(torch.randn(5, 3)).sum().backward()
optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path("checkpoint.pt"))
torch.save(x, path("tensor.pt"), pickle_protocol=4)
torch.save(x, path("legacy.pt"), _use_new_zipfile_serialization=False)


# the same with deflated members, and without padding
def again(name, source, method, change=lambda n, b: (n, b)):
    with zipfile.ZipFile(path(source)) as z, zipfile.ZipFile(path(name), "w", method) as o:
        for i in z.infolist():
            n, b = change(i.filename, z.read(i))
            if b is not None:
                o.writestr(zipfile.ZipInfo(n), b, method)


again("deflated.pt", "plain.pt", zipfile.ZIP_DEFLATED)
again("big_endian.pt", "tensor.pt", 0, lambda n, b: (n, b"big" if n.endswith("byteorder") else b))
again("missing.pt", "tensor.pt", 0, lambda n, b: (n, None if n.endswith("data/0") else b))
again("short.pt", "tensor.pt", 0, lambda n, b: (n, b[:-4] if n.endswith("data/0") else b))


# hostile: what pickles could do, each must be refused by name; and what is not plain
class Call:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def hostile(name, obj, protocol=2, raw=None, method=zipfile.ZIP_STORED):
    content = raw if raw is not None else pickle.dumps(obj, protocol)
    with zipfile.ZipFile(path(name), "w") as z:
        z.writestr(zipfile.ZipInfo("a/data.pkl"), content, method)
        z.writestr(zipfile.ZipInfo("a/byteorder"), b"little")


hostile("system.pt", Call(os.system, ("touch moth_was_here",)))
hostile("eval4.pt", Call(eval, ("1",)), 4)
hostile("hidden.pt", {"w": [1, {"deep": Call(exec, ("1",))}]})
import torch.hub

hostile("torch_load.pt", Call(torch.hub.load, ("a/b", "c")))
hostile("instance.pt", Call(collections.deque, ([1],)))
hostile("set.pt", {1, 2})
hostile("numpy.pt", np.float64(0.5))
hostile("huge_integer.pt", 2**70)
cycle = []
cycle.append(cycle)
hostile("cycle.pt", cycle)
deep = 1
for _ in range(200):
    deep = [deep]
hostile("deep.pt", deep)
wide = [1]  # 2^40 values, if tables that are held twice were copied
for _ in range(40):
    wide = [wide, wide]
hostile("bomb.pt", wide)
# long texts that are compared again and again: quadratic time, if nothing is done
text = b"X" + (1 << 20).to_bytes(4, "little") + b"x" * (1 << 20) + b"q\x00"
hostile("strings.pt", None, raw=b"\x80\x02" + text + b"0](" + b"h\x00" * 400000 + b"e.", method=zipfile.ZIP_DEFLATED)
one = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nh\x00X\x03\x00\x00\x00cpuK\x00tQ"
hostile("keys.pt", None, raw=b"\x80\x02" + text + b"0](" + one * 2 + b"e.", method=zipfile.ZIP_DEFLATED)
hostile("values.pt", None, raw=b"\x80\x02(" + b"N" * 3000000 + b"t.", method=zipfile.ZIP_DEFLATED)
hostile("protocol0.pt", None, raw=pickle.dumps({"a": 1}, 0))
hostile("long4.pt", None, raw=b"\x80\x02\x8b\xff\xff\xff\x7f" + b"1" * 20 + b".")
hostile("string.pt", None, raw=b"\x80\x02X\xff\xff\xff\xffabc.")
hostile("memo.pt", None, raw=b"\x80\x02Nr\xff\xff\xff\xff.")
hostile("inst.pt", None, raw=b"\x80\x02(S'true'\nios\nsystem\n.")
hostile("newobj.pt", None, raw=b"\x80\x02ctorch\nSize\n)\x81.")
hostile("stack.pt", None, raw=b"\x80\x020000.")
hostile("rest.pt", None, raw=b"\x80\x02N.N.")
reach = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ%sK\x02K\x02\x86%s\x89ccollections\nOrderedDict\n)RtR."
)
hostile("reach_offset.pt", None, raw=reach % (b"K\x01", b"K\x02K\x01\x86"))
hostile("reach_stride.pt", None, raw=reach % (b"K\x00", b"\x8a\x08" + b"\xff" * 7 + b"\x7fK\x01\x86"))
hostile("reach_negative.pt", None, raw=reach % (b"K\x00", b"J\xff\xff\xff\xffK\x01\x86"))
with zipfile.ZipFile(path("names.zip"), "w") as z:
    z.writestr(zipfile.ZipInfo("../evil.npy"), open(path("f4.npy"), "rb").read())
with zipfile.ZipFile(path("absolute.zip"), "w") as z:
    z.writestr(zipfile.ZipInfo("/evil.npy"), open(path("f4.npy"), "rb").read())
link = zipfile.ZipInfo("link.npy")
link.create_system, link.external_attr = 3, 0o120777 << 16
with zipfile.ZipFile(path("link.zip"), "w") as z:
    z.writestr(link, b"/etc/passwd")
with zipfile.ZipFile(path("other.zip"), "w") as z:
    z.writestr(zipfile.ZipInfo("readme.txt"), b"hello")
script = torch.jit.script(torch.nn.Linear(1, 1))
b = io.BytesIO()
torch.jit.save(script, b)
with zipfile.ZipFile(b) as z, zipfile.ZipFile(path("script.pt"), "w", zipfile.ZIP_DEFLATED) as o:
    for i in z.infolist():
        if "debug_pkl" not in i.filename:
            o.writestr(zipfile.ZipInfo(i.filename), z.read(i), zipfile.ZIP_DEFLATED)
# one member of 2 MB of zeros in 2 KB
with zipfile.ZipFile(b := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr(zipfile.ZipInfo("a.npy"), b"\0" * (2 << 20), zipfile.ZIP_DEFLATED)
write("bomb.zip", b.getvalue())


# zip64 as archives of more than 4 GB have it: sizes and places in extra fields, an end record of its own
def zip64(name, members):
    body, directory = b"", b""
    for n, content in members:
        n, crc, size = n.encode(), zlib.crc32(content), len(content)
        at = len(body)
        extra = struct.pack("<HHQQ", 1, 16, size, size)
        body += struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 0, crc, M, M, len(n), len(extra)) + n + extra + content
        extra = struct.pack("<HHQQQ", 1, 24, size, size, at)
        head = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 45, 45, 0, 0, 0, 0, crc, M, M, len(n), len(extra), 0, 0, 0, 0, M)
        directory += head + n + extra
    count, at = len(members), len(body)
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, len(directory), at)
    locator = struct.pack("<IIQI", 0x07064B50, 0, at + len(directory), 1)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, M, M, 0)
    write(name, body + directory + end64 + locator + end)
    with zipfile.ZipFile(path(name)) as z:
        assert z.testzip() is None and len(z.namelist()) == count


M = 0xFFFFFFFF
zip64("zip64.npz", [("w.npy", open(path("f4.npy"), "rb").read()), ("n.npy", open(path("scalar.npy"), "rb").read())])


# safetensors with other metadata, and a dtype that moth does not have

def safetensors(name, header, data):
    text = json.dumps(header).encode()
    write(name, struct.pack("<Q", len(text)) + text + data)


safetensors(
    "hf.safetensors",
    {
        "__metadata__": {"format": "pt", "sha256": "of something else", "tree": "none"},
        "model.embed.weight": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "model.mask": {"dtype": "BOOL", "shape": [3], "data_offsets": [8, 11]},
    },
    torch.tensor([1, 2, 3, 4], dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes() + b"\0\1\2",
)
safetensors("f8.safetensors", {"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}, b"\0\0")


# The state of an optimizer after three steps, with its parameters and those after two more.

w = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
b = torch.nn.Parameter(torch.tensor([[0.5]]))
adam = torch.optim.Adam([{"params": [w]}, {"params": [b], "lr": 0.25}], lr=0.125, amsgrad=True, weight_decay=0.1)
for t in range(1, 6):
    w.grad, b.grad = torch.tensor([t, -1.0, 1.0 / t]), torch.tensor([[t - 2.0]])
    if t == 4:
        torch.save({"state": adam.state_dict(), "w": w.data.clone(), "b": b.data.clone()}, path("adam.pt"))
    adam.step()
multistep = torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD([w], lr=1.0), [2, 5, 5], gamma=0.5)
for t in range(4):
    multistep.optimizer.step()
    multistep.step()
torch.save(multistep.state_dict(), path("multistep.pt"))
print("adam.pt: after two more steps", w.tolist(), b.tolist())
