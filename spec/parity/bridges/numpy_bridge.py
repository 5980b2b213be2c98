"""Files of NumPy: .npy and .npz of every dtype, orders of bytes and of dimensions, both ways, bit for bit."""
PACKAGES = "numpy==2.4.6"
MEETS = (".npy and .npz of all dtypes that moth has, little- and big-endian, rows or columns first, with 0 dimensions, with 0 "
         "elements, versions 1 to 3 of the format, both ways, bit for bit")
LIMITS = ("objects (pickles), structured arrays, texts, dates, long double: refused, with the array's name; moth writes .npy "
          "alone")

import datetime

import numpy as np

import moth

DTYPES = "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ?".split() + ["c8", "c16"]
SHAPES = [(), (0,), (3, 0, 2), (1,), (7,), (3, 5), (2, 3, 4), (1, 2, 1, 3, 1)]
g = np.random.default_rng(1)
want, files = {}, []
for d in DTYPES:
    for k, shape in enumerate(SHAPES):
        raw = g.integers(0, 256, int(np.prod(shape)) * np.dtype(d).itemsize, dtype=np.uint8)
        a = (raw > 127).reshape(shape) if d == "?" else raw.view(d).reshape(shape)
        for order in "CF":
            for bytes_of in "<>":
                name = f"{d.replace('?', 'bool')}_{k}_{order}_{'little' if bytes_of == '<' else 'big'}"
                b = np.asarray(a.astype(a.dtype.newbyteorder(bytes_of)) if np.dtype(d).itemsize > 1 else a, order=order)
                # bits, not values: astype keeps those of NaN only without a change of type
                want[name] = b
                np.save(f"{moth.folder}/{name}.npy", b)
np.savez(moth.folder + "/stored.npz", **want)
np.savez_compressed(moth.folder + "/deflated.npz", **want)
for version in ((1, 0), (2, 0), (3, 0)):
    name = f"version_{version[0]}"
    want[name] = g.standard_normal((3, 4))
    with open(f"{moth.folder}/{name}.npy", "wb") as f:
        np.lib.format.write_array(f, want[name], version)
many = {f"arr.{k}/x y": np.full((k % 3, 2), k, np.int32) for k in range(3000)}
np.savez(moth.folder + "/many.npz", **many)

refuses = {
    "object": np.array([{"a": 1}, None], dtype=object), "structured": np.zeros(3, dtype=[("x", "f4"), ("y", "i4")]),
    "text": np.array(["ab", "c"]), "bytes": np.array([b"ab", b"c"]), "date": np.array([datetime.datetime(2020, 1, 1)], "M8[s]"),
    "span": np.array([3], "m8[s]"), "long": np.zeros(2, np.longdouble), "void": np.zeros(2, "V5"),
    "structured_0": np.zeros((), dtype=[("x", "f4")]), "nested": np.zeros(2, dtype=[("a", [("b", "i2")], (2,))]),
}
for name, a in refuses.items():
    np.save(f"{moth.folder}/no_{name}.npy", a, allow_pickle=True)
    np.savez(f"{moth.folder}/no_{name}.npz", fine=np.ones(2), **{"bad_" + name: a})

names = [*want]
open(moth.folder + "/names.txt", "w").write("\n".join([*names]))
said = moth.result("numpy", moth.folder, *refuses)
n = 0


def same(a, b, what):
    global n
    n += 1
    b = b.astype(b.dtype.newbyteorder("=")) if b.dtype.byteorder not in "=|" else b
    moth.expect(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == np.ascontiguousarray(b).reshape(b.shape).tobytes(),
                f"{what}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}")


for name in names:
    same(np.load(f"{moth.folder}/back_{name}.npy"), want[name], name)
for kind in ("stored", "deflated"):
    for name in names:
        if not name.startswith("version"):
            same(np.load(f"{moth.folder}/{kind}_{name}.npy"), want[name], f"{kind} {name}")
moth.expect(said["many"] == len(many), said["many"])
for name in refuses:
    moth.expect("npy" in said["no_" + name + ".npy"], f"{name}: {said['no_' + name + '.npy']}")
    moth.expect("bad_" + name in said["no_" + name + ".npz"], f"{name}: {said['no_' + name + '.npz']}")
    print("   ", said["no_" + name + ".npz"])
moth.end(f"{n} arrays both ways; {2 * len(refuses)} files refused by name")
