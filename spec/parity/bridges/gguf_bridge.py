"""Files of gguf-py, llama.cpp's: blocks of every type both ways, metadata of every type."""
PACKAGES = "gguf==0.19.0 numpy==2.4.6"
MEETS = ("blocks of random bytes of each type, as numbers against gguf's `dequantize` and as they are, bit for bit; floats made "
         "Q8_0 and Q4_0 by moth against gguf's `quantize`; metadata of each kind; big-endian files, which are refused")
LIMITS = "types without a `dequantize` in gguf-py (Q8_1, Q8_K, Q1_0): refused by name"

import gguf
import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type

import moth

g = np.random.default_rng(1)
PLAIN = {"F32": "f4", "F16": "f2", "F64": "f8", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}
metadata = {"a.u8": ("uint8", 255), "a.i8": ("int8", -128), "a.u16": ("uint16", 65535), "a.i16": ("int16", -32768),
            "a.u32": ("uint32", 2**32 - 1), "a.i32": ("int32", -2**31), "a.u64": ("uint64", 2**53), "a.i64": ("int64", -2**53),
            "a.f32": ("float32", 0.5), "a.f64": ("float64", 1e300), "a.bool": ("bool", True), "a.text": ("string", "ü\n\0 x")}
lists = {"l.text": ["a", "", "ü"], "l.int": [1, -2, 3], "l.float": [0.5, 1.5], "l.bool": [True, False]}


def file(path, kinds, **options):
    w = gguf.GGUFWriter(path, "llama", **options)
    for key, (kind, value) in metadata.items():
        getattr(w, "add_" + kind)(key, value)
    for key, value in lists.items():
        w.add_array(key, value)
    for kind, a in kinds.items():
        w.add_tensor("t." + kind, a, raw_dtype=None if kind in PLAIN else Type[kind])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


blocks, refused, alone = {}, 0, []
for kind in Type:
    if kind.name in PLAIN:
        blocks[kind.name] = g.integers(0, 256, (2, 3, 8), dtype=np.uint8).view(PLAIN[kind.name])
        continue
    elements, size = GGML_QUANT_SIZES[kind]
    a = g.integers(0, 256, (2, 3, 2 * size), dtype=np.uint8)
    file(f"{moth.folder}/one_{kind.name}.gguf", {kind.name: a})
    alone.append(kind.name)
    blocks[kind.name] = a
floats = g.standard_normal((4, 64)).astype("f4")
floats[1, :32], floats[2, :3] = 0, [1e-9, -1e-9, 5]
np.save(moth.folder + "/floats.npy", floats)
file(moth.folder + "/big.gguf", {"F32": floats}, endianess=gguf.GGUFEndian.BIG)
said = moth.result("gguf", moth.folder, *alone)
known = [k for k in alone if said["types"][k] is True]
refused = [k for k in alone if k not in known]
for k in refused:
    moth.expect(f"t.{k}" in said["types"][k] and k in said["types"][k], f"{k}: {said['types'][k]}")
for k in known:
    want = quants.dequantize(blocks[k], Type[k])
    got = np.load(f"{moth.folder}/{k}.npy")
    moth.expect(got.shape == want.shape and np.array_equal(got, want, equal_nan=True),
                f"{k}: {got.shape} {np.nanmax(np.abs(got - want)) if got.shape == want.shape else want.shape}")
file(moth.folder + "/theirs.gguf", {k: blocks[k] for k in [*PLAIN, *known]})
again = moth.result("gguf", moth.folder)
r = gguf.GGUFReader(moth.folder + "/ours.gguf")
back = {t.name: t for t in r.tensors}
for k in [*PLAIN, *known]:
    t = back["t." + k]
    moth.expect(t.tensor_type == Type[k] and t.data.tobytes() == blocks[k].tobytes(), f"back {k}: {t.tensor_type}")
for k, (kind, v) in metadata.items():
    moth.expect(r.fields[k].contents() == v, f"{k}: {r.fields[k].contents()!r}, not {v!r}")
for k, v in lists.items():
    moth.expect(r.fields[k].contents() == v, f"{k}: {r.fields[k].contents()!r}, not {v!r}")
for k in ("Q8_0", "Q4_0"):
    t = {t.name: t for t in gguf.GGUFReader(f"{moth.folder}/made_{k}.gguf").tensors}["x"]
    moth.expect(t.data.tobytes() == quants.quantize(floats, Type[k]).tobytes(), f"made {k}")
moth.expect("big-endian" in again["big"], again["big"])
moth.end(f"{len(known)} types of blocks and {len(PLAIN)} of numbers both ways, {len(metadata) + len(lists)} values; "
         f"{len(refused)} types refused: {', '.join(refused)}")
