"""Archives of the webdataset package, read by moth.data.WebDataset: the samples, their names and bytes."""
PACKAGES = "webdataset==1.0.2 numpy==2.4.6"
MEETS = ("shards that ShardWriter writes, plain and .tar.gz; names with folders, several dots, capitals, more than 100 bytes, no "
         "Latin letters; tar in the forms ustar, GNU and pax: samples in order, fields, bytes")
LIMITS = "moth writes no archives"

import io
import tarfile

import numpy as np
import webdataset

import moth

g = np.random.default_rng(1)
names = []
for end in ("tar", "tar.gz"):
    opener = {"tar": "shard-%d.tar", "tar.gz": "shard-%d.tar.gz"}[end]
    with webdataset.ShardWriter(f"{moth.folder}/{opener}", maxcount=40, verbose=0) as sink:
        for k in range(100):
            sink.write({"__key__": f"{k:05d}", "bin": g.bytes(k * 7), "cls": str(k).encode(), "seg.PNG": bytes([k])})
    names += [f"{moth.folder}/{opener % i}" for i in range(3)]
members = ["a/b.c/0001.png", "a/b.c/0001.seg.txt", "x.JPG", "x.cls", "x.y.z", "long/" + "n" * 150 + ".bin", "größe/東京.txt", "last.a",
           "last.b.c.d"]
for form, number in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
    path = f"{moth.folder}/form_{form}.tar"
    with tarfile.open(path, "w", format=number) as archive:
        for name in members:
            if form == "ustar" and len(name) > 100:
                continue
            content = g.bytes(20)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    names.append(path)
said = moth.result("webdataset", *names)
samples = fields = 0
for name in names:
    theirs = []
    for sample in webdataset.WebDataset(name, shardshuffle=False, empty_check=False):
        theirs.append({k: v.hex() if isinstance(v, bytes) else v for k, v in sample.items() if k == "__key__" or not k.startswith("__")})
    ours = said[name]
    if not isinstance(ours, list):
        moth.expect(False, f"{name}: {ours}")
        continue
    moth.expect(len(theirs) == len(ours), f"{name}: {len(ours)} samples, not {len(theirs)}")
    for mine, other in zip(ours, theirs):
        samples, fields = samples + 1, fields + len(other) - 1
        moth.expect(mine == other, f"{name}: {str(mine)[:120]}, not {str(other)[:120]}")
moth.end(f"{samples} samples, {fields} fields of {len(names)} archives")
