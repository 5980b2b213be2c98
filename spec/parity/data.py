"""What torchvision, Pillow and tokenizers make of images and texts, for spec/parity/data.lua.

Usage: python3 spec/parity/data.py DIR writes inputs and results as .npy files and cases.json. Packages that are not
installed are left out; their names are printed."""
import json
import os
import random
import sys

import numpy as np
import torch

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
cases = []
random.seed(1)
torch.manual_seed(1)


def save(name, array):
    np.save(os.path.join(folder, name + ".npy"), np.ascontiguousarray(array))
    return name


def images():
    import torchvision.transforms.v2.functional as F
    from torchvision.transforms import InterpolationMode as I

    modes = {"nearest": I.NEAREST, "bilinear": I.BILINEAR, "bicubic": I.BICUBIC}
    for k in range(60):
        c, h, w = random.choice([1, 3]), random.randint(5, 60), random.randint(5, 60)
        x = torch.rand(c, h, w)
        to = [random.randint(2, 70), random.randint(2, 70)]
        angle, factor = random.uniform(-180, 180), random.uniform(0, 2)
        move, scale = [random.randint(-5, 5), random.randint(-5, 5)], random.uniform(0.5, 2)
        shear = [random.uniform(-20, 20), random.uniform(-20, 20)]
        antialias, mode = random.random() < 0.5, random.choice(list(modes))
        fill = random.choice([0, 0.5])
        todo = [
            (f'F.resize(x, {{ {to[0]}, {to[1]} }}, "{mode}", {str(antialias).lower()})',
             F.resize(x, to, modes[mode], antialias=antialias)),
            (f"F.resize(x, {to[0]})", F.resize(x, to[:1], antialias=True)),
            (f'F.rotate(x, {angle}, "bilinear", {fill})', F.rotate(x, angle, I.BILINEAR, fill=fill)),
            (f'F.affine(x, {angle}, {{ {move[0]}, {move[1]} }}, {scale}, {{ {shear[0]}, {shear[1]} }}, "bilinear")',
             F.affine(x, angle, move, scale, shear, I.BILINEAR)),
            (f"moth.transforms.CenterCrop({{ {to[0]}, {to[1]} }})(x)", F.center_crop(x, to)),
            (f"F.adjust_brightness(x, {factor})", F.adjust_brightness(x, factor)),
            (f"F.adjust_contrast(x, {factor})", F.adjust_contrast(x, factor)),
            ("F.pad(x, { 1, 2, 3, 4 }, 0, 'reflect')", F.pad(x, [1, 2, 3, 4], padding_mode="reflect")),
            ("F.pad(x, { 3, 1 }, 0, 'edge')", F.pad(x, [3, 1], padding_mode="edge")),
        ]
        if c == 3:
            todo += [(f"F.adjust_saturation(x, {factor})", F.adjust_saturation(x, factor)),
                     (f"F.adjust_hue(x, {factor / 2 - 0.5})", F.adjust_hue(x, factor / 2 - 0.5)),
                     ("F.to_grayscale(x, 3)", F.rgb_to_grayscale(x, 3))]
        source = save(f"image_{k}", x.numpy())
        for j, (code, y) in enumerate(todo):
            cases.append({"code": code, "x": source, "y": save(f"image_{k}_{j}", y.numpy()), "tolerance": 2e-5})


def files():
    from PIL import Image

    for k in range(12):
        h, w = random.randint(1, 40), random.randint(1, 40)
        array = np.random.default_rng(k).integers(0, 256, (h, w, 3), dtype=np.uint8)
        image = Image.fromarray(array)
        kinds = {"rgb.png": image, "grey.png": image.convert("L"), "palette.png": image.convert("P"),
                 "rgba.png": image.convert("RGBA"), "rgb.jpg": image, "grey.jpg": image.convert("L"),
                 "cmyk.jpg": image.convert("CMYK")}
        for name, value in kinds.items():
            path = os.path.join(folder, f"{k}_{name}")
            value.save(path)
            for mode, channels in (("RGB", 3), ("L", 1)):
                if mode == "L" and name.endswith("jpg") and "grey" not in name:
                    continue  # the file's own luminance is taken
                y = np.asarray(Image.open(path).convert(mode)).reshape(h, w, channels)
                cases.append({"code": f"data.read_image('{path}', {channels}):float()", "x": None,
                              "y": save(f"file_{k}_{name}_{mode}", y.astype(np.float32)), "tolerance": 1})


def texts():
    import tokenizers
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    corpus = ["README.md", "docs/data.md", "src/lua/handle.c"]
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    level = pre_tokenizers.ByteLevel
    kinds = {
        "gpt2": (level(add_prefix_space=False), None, {}),
        "prefix": (level(add_prefix_space=True), None, {}),
        "llama3": (pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                            level(add_prefix_space=False, use_regex=False)]), None, {}),
        "llama2": (None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                   {"byte_fallback": True, "unk_token": "<unk>"}),
    }
    source = open(corpus[0]).read()
    odd = "ab1 \n\r\t'sre!é你🙂\u00a0½٣<|"
    samples = ["", "a<|end|>b <|end|>", "x\u0301 don't DON'T we'LL 1234567 ½ Ⅷ\r\n\r\n  foo   \n"]
    for _ in range(100):
        at = random.randrange(len(source))
        samples.append(source[at:at + random.randrange(200)])
        samples.append("".join(random.choice(odd) for _ in range(random.randrange(30))))
    for name, (pre, normalizer, options) in kinds.items():
        t = Tokenizer(models.BPE(**options))
        special = ["<unk>", "<|end|>"] + ([f"<0x{b:02X}>" for b in range(256)] if options else [])
        if pre:
            t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
        else:
            t.normalizer = normalizer
            t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
        t.train(corpus, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False,
                                            initial_alphabet=level.alphabet() if pre else []))
        path = os.path.join(folder, name + ".json")
        t.save(path)
        for s in samples:
            ids = t.encode(s).ids
            decoded = t.decode(ids, skip_special_tokens=False)
            cases.append({"tokenizer": path, "text": s, "ids": ids, "decoded": decoded})


for part in (images, files, texts):
    try:
        part()
    except ImportError as e:
        print(f"left out: {part.__name__}: {e}")
json.dump(cases, open(os.path.join(folder, "cases.json"), "w"))
