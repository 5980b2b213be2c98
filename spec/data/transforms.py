"""Writes spec/data/fixtures/transforms.lua: what torchvision's functions of images and boxes give, for
spec/data/transforms_spec.lua. Run: python spec/data/transforms.py (torch 2.15, torchvision 0.29)."""
import os

import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional._geometry import _get_perspective_coeffs


def image(channels, height, width):
    i = torch.arange(channels * height * width)
    return ((i * i * 7 + i * 13) % 251).to(torch.uint8).view(channels, height, width)


def lua(v):
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, (list, tuple)):
        return "{ " + ", ".join(lua(x) for x in v) + " }"
    if isinstance(v, str):
        return '"%s"' % v
    return "nil" if v is None else str(v) if isinstance(v, int) else "%.10g" % v


lines = []


def shown(y):
    if y.dtype == torch.uint8:
        return '"' + "".join("%02x" % v for v in y.flatten().tolist()) + '"'
    return lua([round(v, 6) for v in y.flatten().tolist()])


def case(name, x, args, y, kind="u"):
    if isinstance(y, tuple):
        y = torch.stack(y)
    shape = lua(list(x.shape))
    lines.append('  { "%s", "%s", %s, { %s }, %d, %s, %s },' % (
        name, kind, shape, ", ".join(lua(a) for a in args), len(args), lua(list(y.shape)), shown(y)))


def both(name, args, fn, *images):
    for x in images:
        case(name, x, args, fn(x))
    x = images[0].float() / 255
    case(name, x, args, fn(x), "f")


c, g, small = image(3, 4, 5), image(1, 5, 4), image(1, 3, 4)
for f in (0.3, 1.7):
    both("adjust_brightness", [f], lambda x: F.adjust_brightness(x, f), c, g)
    both("adjust_contrast", [f], lambda x: F.adjust_contrast(x, f), c, g)
    both("adjust_saturation", [f], lambda x: F.adjust_saturation(x, f), c, g)
    both("adjust_sharpness", [f], lambda x: F.adjust_sharpness(x, f), c, g)
both("adjust_hue", [0.3], lambda x: F.adjust_hue(x, 0.3), c, g)
both("adjust_hue", [-0.11], lambda x: F.adjust_hue(x, -0.11), c)
both("adjust_gamma", [2.2, 1.1], lambda x: F.adjust_gamma(x, 2.2, 1.1), c)
both("invert", [], F.invert, c)
both("autocontrast", [], F.autocontrast, c, g)
both("equalize", [], F.equalize, image(1, 20, 30))
both("posterize", [3], lambda x: F.posterize(x, 3), c)
case("solarize", c, [128], F.solarize(c, 128))
both("to_grayscale", [3], lambda x: F.to_grayscale(x, 3), c, g)
both("permute_channels", [[3, 1, 2]], lambda x: F.permute_channels(x, [2, 0, 1]), c)
both("gaussian_blur", [[3, 5], [0.8, 1.5]], lambda x: F.gaussian_blur(x, [3, 5], [0.8, 1.5]), image(1, 6, 5))
for q in (30, 90):
    case("jpeg", image(3, 9, 10), [q], F.jpeg(image(3, 9, 10), q))
    case("jpeg", image(1, 9, 10), [q], F.jpeg(image(1, 9, 10), q))
for dtype in ("float32", "int16", "int32", "int64"):
    case("to_dtype", small, [dtype, True], F.to_dtype(small, getattr(torch, dtype), scale=True))
case("to_dtype", small / 255, ["uint8", True], F.to_dtype(small / 255, torch.uint8, scale=True), "f")
for m in ("nearest", "bilinear"):
    for fill in (None, 99):
        both("rotate", [40, m, fill], lambda x: F.rotate(x, 40, Mode(m), fill=fill), g)
        case("rotate", g, [-75, m, fill, True], F.rotate(g, -75, Mode(m), True, fill=fill))
        case("rotate", g, [20, m, fill, False, [1, 2]], F.rotate(g, 20, Mode(m), False, [1, 2], fill))
        both("affine", [10, [1, 0], 1.5, [5, -8], m, fill],
             lambda x: F.affine(x, 10, [1, 0], 1.5, [5, -8], Mode(m), fill), g)
        case("affine", g, [0, [0, 0], 1, [17, 0], m, fill, [0, 0]],
             F.affine(g, 0, [0, 0], 1, [17, 0], Mode(m), fill, [0, 0]))
        start, end = [[0, 0], [7, 0], [7, 8], [0, 8]], [[1, 2], [6, 0], [7, 7], [0, 6]]
        both("perspective", [start, end, m, fill], lambda x: F.perspective(x, start, end, Mode(m), fill),
             image(1, 9, 8))
case("rotate", c, [30, "nearest", [1, 2, 3]], F.rotate(c, 30, fill=[1, 2, 3]))
displacement = torch.sin(torch.arange(40.0)).mul(0.4).view(1, 5, 4, 2)
for m in ("nearest", "bilinear"):
    both("elastic", [m, 7], lambda x: F.elastic(x, displacement, Mode(m), 7), g)
for m in ("nearest", "nearest-exact", "bilinear", "bicubic", "lanczos"):
    for antialias in (True, False):
        if antialias or m != "lanczos":
            for size in ([3, 7], [8, 2]):
                both("resize", [size, m, antialias], lambda x: F.resize(x, size, Mode(m), antialias=antialias), g)
case("resize", c, [[3], "bilinear", True, 4], F.resize(c, [3], max_size=4))
for mode in ("constant", "edge", "reflect", "symmetric"):
    case("pad", small, [[1, 2, 3, 0], 0, mode], F.pad(small, [1, 2, 3, 0], 0, mode))
case("pad", c, [[1, 0], [7, 8, 9]], F.pad(c, [1, 0], [7, 8, 9]))
case("crop", small, [0, 3, 3, 4], F.crop(small, -1, 2, 3, 4))
case("center_crop", c, [[2, 2]], F.center_crop(c, [2, 2]))
case("five_crop", small, [[2, 2]], F.five_crop(small, [2, 2]))
case("ten_crop", small, [[2, 2], True], F.ten_crop(small, [2, 2], True))

boxes = []
H, W = 48, 64
corners = torch.tensor([[5.2, 6.9, 20.4, 17.3], [40.0, 30.5, 70.0, 50.0], [33.3, 1.0, 35.1, 2.5]])
coefficients = _get_perspective_coeffs([[0, 0], [63, 0], [63, 47], [0, 47]], [[3, 2], [59, 1], [61, 44], [1, 46]])
for dtype in ("float32", "int64"):
    for fmt in ("XYXY", "XYWH", "CXCYWH"):
        x = F.convert_bounding_box_format(corners.to(getattr(torch, dtype)), "XYXY", fmt)

        def wrapped():
            return tv_tensors.BoundingBoxes(x.clone(), format=fmt, canvas_size=(H, W), dtype=x.dtype)

        def box(name, args, y):
            y = y.as_subclass(torch.Tensor)
            boxes.append('  { "%s", "%s", "%s", %s, { %s }, %d, %s },' % (
                name, dtype, fmt, lua(x.flatten().tolist()), ", ".join(lua(a) for a in args), len(args),
                lua([round(v, 5) for v in y.flatten().tolist()])))

        box("hflip", [], F.hflip(wrapped()))
        box("vflip", [], F.vflip(wrapped()))
        box("crop", [4, 6, 20, 40], F.crop(wrapped(), 3, 5, 20, 40))
        box("pad", [[1, 2, 3, 4]], F.pad(wrapped(), [1, 2, 3, 4]))
        box("resize", [31, 97], F.resize(wrapped(), [31, 97]))
        box("rotate", [30, [3, 5], False], F.rotate(wrapped(), 30, center=[3.0, 5.0]))
        box("affine", [20, [3, -4], 1.3, [5, -8]], F.affine(wrapped(), 20, [3, -4], 1.3, [5.0, -8.0]))
        box("perspective", [coefficients], F.perspective(wrapped(), None, None, coefficients=coefficients))
        for new in ("XYXY", "XYWH", "CXCYWH"):
            box("convert", [new], F.convert_bounding_box_format(wrapped(), new_format=new))
        box("clamp", [], F.clamp_bounding_boxes(wrapped()))

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures", "transforms.lua")
with open(path, "w", encoding="ascii") as f:
    f.write("-- Written by spec/data/transforms.py: torchvision's values of functions of images and boxes.\n")
    f.write("-- luacheck: ignore 631\n-- { name, u (bytes) or f (those / 255), shape, arguments, how many, shape, values }\n")
    f.write("local images = {\n" + "\n".join(lines) + "\n}\n")
    f.write("-- { name, dtype, format, boxes, arguments, how many, values }\n")
    f.write("local boxes = {\n" + "\n".join(boxes) + "\n}\n\nreturn { images = images, boxes = boxes }\n")
print(len(lines), len(boxes))
