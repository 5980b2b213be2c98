"""Writes models by PyTorch's ONNX exporter, with PyTorch's results, in the form of onnx_cases.py: onnx_torch.py FOLDER.
Each is written for fixed sizes and with a first dimension that is open."""
import logging
import os
import sys
import warnings

import torch
from onnx import numpy_helper
from torch import nn

f = nn.functional
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
torch.manual_seed(0)
folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        else:
            return x - 1


class Loop(nn.Module):
    def forward(self, x):
        i = 0
        while bool(x.sum() < 100) and i < 50:
            x = x * 2 + 1
            i += 1
        return x


x, v, ids = torch.randn(2, 4, 8, 8), torch.randn(3, 5), torch.randint(0, 10, (2, 6))
at = torch.tensor([[0], [1], [2]])
cases = {
    "conv": (nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
                           nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                           nn.Linear(8, 3)), (x,)),
    "up": (nn.Sequential(nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), nn.PReLU(3)), (x,)),
    "lstm": (nn.LSTM(5, 7, 2, bidirectional=True, batch_first=True), (torch.randn(2, 6, 5),)),
    "gru": (nn.GRU(5, 7, 2, batch_first=True), (torch.randn(2, 6, 5),)),
    "rnn": (nn.RNN(5, 7, nonlinearity="relu"), (torch.randn(6, 2, 5),)),
    "mha": (nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(2, 5, 8),) * 3),
    "embed": (nn.Sequential(nn.Embedding(10, 4), nn.LayerNorm(4)), (ids,)),
    "pools": (Of(lambda x: (f.max_pool2d(x, 3, 2, 1), f.avg_pool2d(x, 2), f.adaptive_max_pool2d(x, 2),
                            f.max_pool2d(x, 3, 2, 1, ceil_mode=True))), (x,)),
    "interpolate": (Of(lambda x: (f.interpolate(x, scale_factor=2), f.interpolate(x, size=(11, 13), mode="bilinear"),
                                  f.interpolate(x, scale_factor=1.7, mode="bicubic"),
                                  f.interpolate(x, size=(4, 5), mode="bilinear", align_corners=True))), (x,)),
    "norms": (Of(lambda x: (f.group_norm(x, 2), f.instance_norm(x), f.layer_norm(x, (8, 8)), f.normalize(x, dim=1),
                            f.local_response_norm(x, 3))), (x,)),
    "index": (Of(lambda x: (x[:, 1:3], x[..., ::2], x[:, -1], x.flip(1), x.roll(1, 2), x[[0, 1, 0]],
                            x.index_select(2, torch.tensor([0, 3])), torch.where(x > 0, x, -x),
                            x.masked_fill(x > 1, 0.))), (x,)),
    "reduce": (Of(lambda x: (x.sum(1), x.mean((2, 3), keepdim=True), x.amax(1), x.max(2)[0], x.argmax(1), x.std(1),
                             x.var((1, 2)), x.norm(dim=1), x.prod(3), x.cumsum(1), x.softmax(1), x.log_softmax(-1),
                             x.logsumexp(1), (x > 0).any(1), (x > 0).all(1), x.topk(2, 1)[0], x.sort(1)[1])), (x,)),
    "shape": (Of(lambda x: (x.view(x.size(0), -1), x.reshape(-1, x.shape[-1]), x.permute(0, 2, 3, 1), x.unsqueeze(1),
                            torch.cat([x, x], 1), torch.stack([x, x]), x.chunk(2, 1)[1], x.split(3, 1)[1],
                            x.repeat(1, 2, 1, 1), f.pad(x, (1, 2, 3, 4)), f.pad(x, (1, 1, 2, 0), mode="reflect"),
                            x.unfold(2, 3, 2), x.tril(), x.diagonal(dim1=2, dim2=3))), (x,)),
    "math": (Of(lambda a: (a.exp(), a.abs().log(), a.sin(), a.erf(), a.sigmoid(), a.round(), a.sign(), a % 2,
                           a.clamp(-1, 1), a.pow(2), a.abs().rsqrt(), f.gelu(a), f.gelu(a, approximate="tanh"),
                           f.silu(a), f.elu(a), f.softplus(a), f.mish(a), a.atan(), torch.maximum(a, -a))), (v,)),
    "products": (Of(lambda a: (torch.einsum("ij,kj->ik", a, a), torch.bmm(a[None], a.t()[None]), a @ a.t())), (v,)),
    "arange": (Of(lambda i: (torch.arange(i.size(1)) + i, torch.zeros(i.size(0), 3) + 1, torch.ones_like(i),
                             torch.full((i.size(1),), 2.5), f.one_hot(i, 10))), (ids,)),
    "attention": (Of(lambda q: f.scaled_dot_product_attention(q, q, q, is_causal=True)), (torch.randn(2, 2, 5, 4),)),
    "scatter": (Of(lambda a: (a.scatter(1, at, 9.), a.scatter_add(1, at, torch.ones(3, 1)))), (v,)),
    "loss": (Of(lambda a: f.cross_entropy(a, torch.tensor([0, 1, 2]))), (v,)),
    "branch": (torch.jit.script(Branch()), (v,)),
    "loop": (torch.jit.script(Loop()), (v.abs(),)),
}


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [t for part in value for t in flat(part)]


with open(f"{folder}/list.txt", "w") as listing:
    for name, (model, args) in cases.items():
        model = model.eval()
        with torch.no_grad():
            want = flat(model(*args))
        for kind in ("fixed", "open"):
            path = f"{folder}/torch_{name}_{kind}"
            inputs = [f"in{i}" for i in range(len(args))]
            axes = {n: {0: "batch"} for n in inputs} if kind == "open" else None
            torch.onnx.export(model, args, path + ".onnx", dynamo=False, opset_version=17, input_names=inputs,
                              dynamic_axes=axes)
            for what, values in (("in", args), ("out", want)):
                for i, value in enumerate(values):
                    with open(f"{path}.{what}{i + 1}", "wb") as file:
                        file.write(numpy_helper.from_array(value.numpy()).SerializeToString())
            listing.write(f"torch_{name}_{kind} 1e-3 1e-4 {','.join(['tensor'] * len(args))}; "
                          f"{','.join(['tensor'] * len(want))};\n")
            listing.flush()
