"""What spec/parity/nn.lua compares with: every module of torch.nn, its text, results and gradients, as JSON."""
import json
import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
r = torch.randn
cases, seen = [], set()
# Not in the list: containers, bases, what is deprecated, what needs several devices, what has a case of its own.
APART = {
    "Module", "Container", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "RNNBase",
    "RNNCellBase", "DataParallel", "NLLLoss2d", "Transformer", "AlphaDropout",
    "CrossMapLRN2d",  # its running sum of channels forgets to let one go
    "FeatureAlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "RReLU", "TripletMarginWithDistanceLoss",
    "TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer", "TransformerDecoderLayer",
}
# Losses: as many of their inputs get gradients.
WANTED = {"MarginRankingLoss": 2, "CosineEmbeddingLoss": 2, "TripletMarginLoss": 3, "MSELoss": 2, "GaussianNLLLoss": 3}


def plain(t):
    kind = "float" if t.is_floating_point() else "bool" if t.dtype == torch.bool else "int"
    return {"shape": list(t.shape), "data": t.detach().reshape(-1).tolist(), "kind": kind}


def flat(result):
    if torch.is_tensor(result):
        return [result]
    return [t for part in result if part is not None for t in flat(part)]


def case(name, args, *inputs, lua=None, calls=None, text=True, **options):
    """A module made with args and options and called with inputs. lua: the arguments there, where dimensions are among
    them; calls: keyword arguments of the call; integers of inputs are positions (1 is added there) but for lengths."""
    calls = calls or {}
    m = getattr(nn, name)(*args, **options)
    seen.add(name)
    leaves = WANTED.get(name, 1) if name.endswith("Loss") else len(inputs)
    inputs = [i.clone().requires_grad_() if i.is_floating_point() and n < leaves else i for n, i in enumerate(inputs)]
    before = None
    if not name.startswith("Lazy"):
        before = {k: plain(v) for k, v in m.state_dict().items()}
    shown = repr(m).replace(", bias=True", "") if "Norm" in name else repr(m)
    shown = shown.replace("affine=False, bias=False", "affine=False")  # of norms it is shown where it says something
    shown = shown.replace("size=[", "size=(").replace("], mode", "), mode") if "psampl" in name else shown
    out = flat(m(inputs[0].log_softmax(2), *inputs[1:], **calls) if name == "CTCLoss" else m(*inputs, **calls))
    if before is None:
        before = {k: plain(v) for k, v in m.state_dict().items()}
    total = sum((o * torch.arange(1, o.numel() + 1).reshape(o.shape)).sum() for o in out if o.requires_grad)
    if torch.is_tensor(total):
        total.backward()
    cases.append({
        "name": name, "args": lua if lua is not None else args,
        "options": {k: plain(v) if torch.is_tensor(v) else v for k, v in options.items()},
        "calls": {k: plain(v) if torch.is_tensor(v) else v for k, v in calls.items()},
        "inputs": [plain(i) for i in inputs], "state": before, "text": shown if text else "",
        "outputs": [plain(o) for o in out],
        "grads": {k: plain(v.grad) for k, v in m.named_parameters() if v.grad is not None},
        "leaves": leaves,
        "input_grads": [plain(i.grad) if i.grad is not None else False for i in inputs],
    })


line, image, volume = r(2, 4, 9), r(2, 4, 7, 8), r(2, 4, 5, 6, 7)
for d, x in ((1, line), (2, image), (3, volume)):
    n = f"{d}d"
    case("Conv" + n, [4, 6, 3], x)
    case("Conv" + n, [4, 6, 3, 2, 1, 1, 2, False], x)
    case("Conv" + n, [4, 4, 2], x[0], dilation=2, padding="same")
    for mode in ("reflect", "replicate", "circular"):
        case("Conv" + n, [4, 2, 3], x, padding=1, padding_mode=mode)
    case("ConvTranspose" + n, [4, 6, 3], x)
    case("ConvTranspose" + n, [4, 6, 3, 2, 1, 1, 2, False], x[0])
    case("ConvTranspose" + n, [4, 2, 2], x, dilation=2)
    case("LazyConv" + n, [6, 3], x, text=False)
    case("LazyConvTranspose" + n, [6, 3], x, text=False)
    case("MaxPool" + n, [3], x)
    case("MaxPool" + n, [3, 2, 1], x, ceil_mode=True)
    case("MaxPool" + n, [2], x, return_indices=True)
    case("AvgPool" + n, [3], x)
    case("AvgPool" + n, [3, 2, 1], x, ceil_mode=True, count_include_pad=False)
    if d > 1:
        case("AvgPool" + n, [2], x[0], divisor_override=3)
    for size in (1, 3) if d == 1 else (1, [3] * d):
        case("AdaptiveAvgPool" + n, [size], x, text=size == 1)
        case("AdaptiveMaxPool" + n, [size], x, return_indices=True, text=size == 1)
    case("LPPool" + n, [2, 2], x.abs())
    case("LPPool" + n, [3, 3, 2], x.abs(), ceil_mode=True)
    whole = x[..., :4, :6, :6] if d == 3 else x[..., :6, :8] if d == 2 else x[..., :8]
    case("MaxUnpool" + n, [2], *getattr(nn, "MaxPool" + n)(2, return_indices=True)(whole))
    y, at = getattr(nn, "MaxPool" + n)(2, return_indices=True)(x)
    case("MaxUnpool" + n, [2], y, at, calls={"output_size": list(x.shape)})
    case("BatchNorm" + n, [4], x)
    case("BatchNorm" + n, [4], x, momentum=0.3, eps=1e-3, bias=False)
    case("BatchNorm" + n, [4], x, affine=False, track_running_stats=False)
    case("LazyBatchNorm" + n, [], x, text=False)
    case("InstanceNorm" + n, [4], x)
    case("InstanceNorm" + n, [4], x, affine=True, track_running_stats=True)
    case("LazyInstanceNorm" + n, [], x, affine=True, text=False)
    for kind in ("ReflectionPad", "ReplicationPad", "CircularPad", "ZeroPad"):
        case(kind + n, [2], x)
        case(kind + n, [[1, 2] * d], x, text=kind != "ZeroPad")
    case("ConstantPad" + n, [2, 1.5], x)
case("BatchNorm1d", [4], r(5, 4))
case("SyncBatchNorm", [4], image)
case("SyncBatchNorm", [4, 1e-3, 0.2, False], r(5, 4))
case("LinearCrossEntropyLoss", [5, 10], r(3, 5), torch.tensor([2, 0, 9]), bias=True)
case("LinearCrossEntropyLoss", [5, 10], r(3, 5), torch.randint(10, (3, 4, 2)), out_features=[4, 2], label_smoothing=0.1, text=False)
for d in (2, 3):
    x = (image, volume)[d - 2]
    u = torch.rand(2, 4, d)
    case(f"FractionalMaxPool{d}d", [2], x, output_size=[3] * d, return_indices=True, _random_samples=u)
    case(f"FractionalMaxPool{d}d", [2], x, output_ratio=[0.6] * d, _random_samples=u)
case("Fold", [[5, 6], [2, 3]], r(2, 12, 16), text=False)
case("Unfold", [[2, 3]], image, dilation=1, padding=1, stride=2, text=False)
case("Bilinear", [3, 4, 5], r(2, 6, 3), r(2, 6, 4))
case("Linear", [4, 5, False], r(2, 3, 4))
case("LazyLinear", [5], r(3, 4), text=False)
case("Identity", [], image)
case("Flatten", [], image, text=False)
case("Unflatten", [1, [2, 2]], image, lua=[2, [2, 2]], text=False)
case("ChannelShuffle", [2], image)
case("PixelShuffle", [2], image)
case("PixelUnshuffle", [2], r(2, 3, 4, 6))
case("LocalResponseNorm", [3], image)
case("LocalResponseNorm", [2, 0.5, 0.6, 2.0], image)
case("LayerNorm", [[7, 8]], image)
case("LayerNorm", [8], image, bias=False)
case("RMSNorm", [8], image)
case("GroupNorm", [2, 4], image)
case("GroupNorm", [2, 4], image, bias=False)
for name, args in (("ReLU", []), ("ReLU6", []), ("LeakyReLU", [0.2]), ("ELU", [0.7]), ("CELU", [0.7]), ("SELU", []), ("GELU", []),
                   ("GELU", ["tanh"]), ("SiLU", []), ("Mish", []), ("Softplus", [2, 1]), ("Softsign", []), ("Tanh", []),
                   ("Sigmoid", []), ("LogSigmoid", []), ("Hardtanh", [-0.5, 0.7]), ("Hardsigmoid", []), ("Hardswish", []),
                   ("Hardshrink", [0.3]), ("Softshrink", [0.3]), ("Tanhshrink", []), ("Threshold", [0.1, -2]), ("PReLU", [4])):
    case(name, args, image * 2, text=name not in ("Softplus", "Threshold", "Hardtanh"))
for name in ("Softmax", "LogSoftmax", "Softmin"):
    case(name, [1], image, lua=[2])
case("Softmax2d", [], image)
case("GLU", [1], image, lua=[2], text=False)
case("Upsample", [], image, scale_factor=2, mode="bilinear", align_corners=True)
case("Upsample", [], volume, scale_factor=(2.0, 1.5, 1.0), mode="trilinear")
case("Upsample", [[5, 11]], image, mode="bicubic")
case("UpsamplingNearest2d", [], image, scale_factor=2)
case("UpsamplingBilinear2d", [[5, 9]], image)
ix = torch.tensor([[1, 2, 4], [4, 3, 1]])
case("Embedding", [6, 3], ix)
case("Embedding", [6, 3], ix, padding_idx=4, lua=[6, 3, 5], text=False)
case("Embedding", [6, 3], ix, max_norm=1.0, scale_grad_by_freq=True)
case("Embedding", [6, 3], ix, max_norm=1.0, norm_type=1.0)
for mode in ("sum", "mean", "max"):
    case("EmbeddingBag", [6, 3], ix, mode=mode)
    case("EmbeddingBag", [6, 3], ix.reshape(-1), torch.tensor([0, 2, 2, 5]), mode=mode)
case("EmbeddingBag", [6, 3], ix.reshape(-1), torch.tensor([0, 2, 6]), mode="sum", include_last_offset=True)
case("EmbeddingBag", [6, 3], ix, calls={"per_sample_weights": torch.rand(2, 3)}, mode="sum")
case("EmbeddingBag", [6, 3], ix, max_norm=1.0, scale_grad_by_freq=True, mode="mean")
case("CosineSimilarity", [1], r(4, 5), r(4, 5), lua=[2], text=False)
case("PairwiseDistance", [], r(4, 5), r(4, 5), text=False)
# losses
a, b, c, y1 = r(4, 5), r(4, 5), r(4, 5), torch.tensor([1.0, -1, 1, -1])
k, w = torch.tensor([1, 0, 4, 2]), torch.rand(5)
for red in ("mean", "sum", "none"):
    for name, inputs, options in (
        ("CrossEntropyLoss", (a, k), {}), ("CrossEntropyLoss", (a, k), {"weight": w, "label_smoothing": 0.1}),
        ("CrossEntropyLoss", (a, b.softmax(1)), {"weight": w, "label_smoothing": 0.1}),
        ("CrossEntropyLoss", (a[0], b[0].softmax(0)), {}), ("CrossEntropyLoss", (a[0], k[0]), {}),
        ("CrossEntropyLoss", (r(2, 5, 3, 2), r(2, 5, 3, 2).softmax(1)), {"weight": w}),
        ("CrossEntropyLoss", (r(2, 5, 3, 2), torch.randint(5, (2, 3, 2))), {"weight": w}),
        ("NLLLoss", (a.log_softmax(1), k), {"weight": w}), ("NLLLoss", (r(2, 5, 3, 2), torch.randint(5, (2, 3, 2))), {}),
        ("MSELoss", (a, b), {}), ("L1Loss", (a, b), {}), ("SmoothL1Loss", (a, b), {"beta": 0.5}), ("HuberLoss", (a, b), {"delta": 0.5}),
        ("BCELoss", (a.sigmoid(), b.sigmoid()), {"weight": w}),
        ("BCEWithLogitsLoss", (a, b.sigmoid()), {"weight": w, "pos_weight": w + 1}),
        ("KLDivLoss", (a, b.softmax(1)), {}), ("KLDivLoss", (a, b), {"log_target": True}),
        ("SoftMarginLoss", (a[:, 0], y1), {}), ("HingeEmbeddingLoss", (a[:, 0], y1), {"margin": 0.5}),
        ("PoissonNLLLoss", (a, b.abs() * 3), {"full": True}), ("PoissonNLLLoss", (a.abs(), b.abs()), {"log_input": False}),
        ("GaussianNLLLoss", (a, b, c.abs()), {"full": True}), ("MarginRankingLoss", (a[:, 0], b[:, 0], y1), {"margin": 0.1}),
        ("CosineEmbeddingLoss", (a, b, y1), {"margin": 0.1}), ("TripletMarginLoss", (a, b, c), {"swap": True, "margin": 0.5}),
        ("MultiMarginLoss", (a, k), {"weight": w}), ("MultiMarginLoss", (a, k), {"p": 2, "margin": 0.5}),
        ("MultiLabelSoftMarginLoss", (a, (b > 0).double()), {"weight": w}),
    ):
        case(name, [], *inputs, reduction=red, text=False, **options)
case("KLDivLoss", [], a, b.softmax(1), reduction="batchmean", text=False)
labels = torch.tensor([[3, 0, -1, 1, 4], [0, 1, 2, 3, 4], [-1, 0, 0, 0, 0], [2, -1, 0, 0, 0]])
case("MultiLabelMarginLoss", [], a, labels, text=False)
case("AdaptiveLogSoftmaxWithLoss", [8, 20, [4, 10]], r(6, 8), torch.tensor([0, 3, 4, 9, 10, 19]), div_value=2.0)
case("AdaptiveLogSoftmaxWithLoss", [8, 20, [4, 10]], r(8), torch.tensor(11), div_value=2.0, head_bias=True)
lp = r(7, 3, 5)
# Of logits: as the derivative by log-probabilities PyTorch gives that by the logits.
t2 = torch.tensor([[1, 2, 2, 3], [4, 1, 0, 0], [2, 0, 0, 0]])
for red in ("mean", "sum", "none"):
    lengths = {"input_lengths": torch.tensor([7, 6, 5]), "target_lengths": torch.tensor([4, 2, 1])}
    case("CTCLoss", [], lp, t2, calls=lengths, reduction=red, text=False)
    case("CTCLoss", [], lp, torch.tensor([1, 2, 2, 3, 4, 1, 2]), calls=lengths, reduction=red, text=False)
    short = {"input_lengths": torch.tensor([7, 6, 0]), "target_lengths": torch.tensor([4, 2, 1])}
    case("CTCLoss", [], lp, t2, calls=short, reduction=red, zero_infinity=True, text=False)
    case("CTCLoss", [3], lp, torch.tensor([[1, 2, 2, 4], [4, 1, 0, 0], [2, 0, 0, 0]]), calls=lengths, lua=[4], reduction=red, text=False)
# recurrent and attention
s = r(6, 3, 4)
for name in ("RNN", "LSTM", "GRU"):
    h = r(2, 3, 5)
    state = (h, r(2, 3, 5)) if name == "LSTM" else h
    case(name, [4, 5], s)
    case(name, [4, 5, 2], s)
    case(name, [4, 5], s.transpose(0, 1), batch_first=True, bidirectional=True)
    case(name, [4, 5], s[:, 0], bias=False)
    case(name + "Cell", [4, 5], s[0])
case("RNN", [4, 5], s, nonlinearity="relu")
case("LSTM", [4, 5, 2], s, proj_size=3)
case("LSTM", [4, 5, 2], s, proj_size=3, bidirectional=True)
q, kk, v = r(5, 3, 8), r(6, 3, 8), r(6, 3, 8)
pad = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [False] * 5 + [True]])
causal = torch.ones(5, 6, dtype=torch.bool).triu(2)
for options in ({}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True, "bias": False}):
    for calls in ({}, {"average_attn_weights": False, "key_padding_mask": pad}, {"need_weights": False, "attn_mask": causal},
                  {"attn_mask": torch.zeros(5, 6).masked_fill(causal, -1.5), "key_padding_mask": torch.zeros(3, 6).masked_fill(pad, -2.0)}):
        case("MultiheadAttention", [8, 2], q, kk, v, calls=calls, text=False, **options)
case("MultiheadAttention", [8, 2], q, r(6, 3, 4), r(6, 3, 7), kdim=4, vdim=7, text=False)
case("MultiheadAttention", [8, 2], q.transpose(0, 1), kk.transpose(0, 1), v.transpose(0, 1), batch_first=True, text=False)
case("MultiheadAttention", [8, 2], q[:, 0], kk[:, 0], v[:, 0], text=False)

missing = {n for n in dir(nn) if isinstance(getattr(nn, n), type) and issubclass(getattr(nn, n), nn.Module)} - seen - APART
print("modules of torch.nn without a case:", *sorted(missing)) if missing else None
with open(sys.argv[1], "w") as f:
    json.dump(cases, f)
