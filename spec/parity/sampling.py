"""What spec/parity/sampling.lua compares with: interpolate, grid_sample and affine_grid with all their modes, as JSON."""
import json
import sys

import torch
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
out = []


def plain(t):
    return {"shape": list(t.shape), "data": t.detach().reshape(-1).tolist()}


def case(call, y, *inputs):
    """call: the same in Lua, of a and b."""
    (y * torch.arange(1, y.numel() + 1).reshape(y.shape)).sum().backward()
    out.append({"call": call, "y": plain(y), "inputs": [plain(i) for i in inputs], "grads": [plain(i.grad) for i in inputs]})


def leaf(*s):
    return torch.randn(*s).requires_grad_()


for corners in (True, False):
    c = str(corners).lower()
    for mode in ("bilinear", "nearest", "bicubic"):
        for pad in ("zeros", "border", "reflection"):
            call = f"F.grid_sample(a, b, '{mode}', '{pad}', {c})"
            x, g = leaf(2, 3, 5, 4), (torch.rand(2, 3, 6, 2) * 3 - 1.5).requires_grad_()
            case(call, F.grid_sample(x, g, mode, pad, corners), x, g)
            if mode != "bicubic":
                x, g = leaf(2, 3, 5, 4, 3), (torch.rand(2, 2, 3, 6, 3) * 3 - 1.5).requires_grad_()
                case(call, F.grid_sample(x, g, mode, pad, corners), x, g)
    t = leaf(2, 2, 3)
    case(f"F.affine_grid(a, {{2, 3, 4, 5}}, {c})", F.affine_grid(t, [2, 3, 4, 5], corners), t)
    t = leaf(2, 3, 4)
    case(f"F.affine_grid(a, {{2, 3, 4, 5, 2}}, {c})", F.affine_grid(t, [2, 3, 4, 5, 2], corners), t)


def lua(options):
    def text(v):
        return f"'{v}'" if isinstance(v, str) else "{" + str(v)[1:-1] + "}" if isinstance(v, list) else str(v).lower()

    return "{ " + ", ".join(f"{k} = {text(v)}" for k, v in options.items()) + " }"


modes = [("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 1), ("nearest-exact", 2), ("nearest-exact", 3),
         ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3), ("area", 1), ("area", 2), ("area", 3)]
for mode, dims in modes:
    smooth = "linear" in mode or mode == "bicubic"
    for how in ({"size": [7, 4, 9][:dims]}, {"scale_factor": 1.7}, {"scale_factor": 0.6},
                {"scale_factor": 1.7, "recompute_scale_factor": True}):
        for corners in (None, True) if smooth else (None,):
            for antialias in (False, True) if mode in ("bilinear", "bicubic") else (False,):
                x, options = leaf(2, 3, *[6, 5, 7][:dims]), dict(how, mode=mode)
                if corners:
                    options["align_corners"] = True
                if antialias:
                    options["antialias"] = True
                case(f"F.interpolate(a, {lua(options)})", F.interpolate(x, **options), x)
with open(sys.argv[1], "w") as f:
    json.dump(out, f)
