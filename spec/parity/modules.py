"""What spec/parity/modules.lua compares with: PyTorch's modules, losses, optimizers and schedules, as JSON."""
import json
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as L

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def plain(t):
    return {"shape": list(t.shape), "data": t.detach().reshape(-1).tolist()}


def flat(result):
    """Results of a module as a list: those of an LSTM hold a pair."""
    if torch.is_tensor(result):
        return [result]
    return [t for part in result for t in flat(part)]


modules = {}


def module(name, m, *inputs, **options):
    outputs = flat(m(*inputs, **options))
    ramps = [torch.arange(1, o.numel() + 1).reshape(o.shape) for o in outputs]
    sum((o * r).sum() for o, r in zip(outputs, ramps)).backward()
    modules[name] = {
        "state": {k: plain(v) for k, v in m.state_dict().items()},
        "inputs": [plain(i) for i in inputs],
        "outputs": [plain(o) for o in outputs],
        "grads": {k: plain(v.grad) for k, v in m.named_parameters()},
    }


src, tgt = torch.randn(5, 3, 8), torch.randn(4, 3, 8)
mask = nn.Transformer.generate_square_subsequent_mask(4)
module("enc", nn.TransformerEncoderLayer(8, 2, 16, dropout=0), src)
module("enc_gelu", nn.TransformerEncoderLayer(8, 2, 16, dropout=0, activation="gelu", norm_first=True), src)
module("dec", nn.TransformerDecoderLayer(8, 2, 16, dropout=0), tgt, src, tgt_mask=mask)
module("full", nn.Transformer(8, 2, 2, 2, 16, dropout=0), src, tgt, tgt_mask=mask)
for kind in ("LSTM", "GRU", "RNN"):
    module(kind, getattr(nn, kind)(8, 6, 2, bidirectional=True), src)
    module(kind + "Cell", getattr(nn, kind + "Cell")(8, 6), src[0])

functions = {}


def function(name, result, *inputs):
    functions[name] = {"inputs": [plain(i) for i in inputs], "out": plain(result)}


x, small = torch.randn(2, 4, 5, 6), torch.randn(1, 2, 4, 6)
a, b = torch.randn(4, 5), torch.randn(4, 5)
p, q = torch.rand(4, 5), torch.rand(4, 5)
y = torch.tensor([1.0, -1, 1, -1])
function("bilinear", F.interpolate(x, size=(9, 4), mode="bilinear"), x)
function("bilinear_ac", F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True), x)
function("nearest", F.interpolate(x, scale_factor=2), x)
function("nearest2", F.interpolate(x, size=(3, 11)), x)
function("area", F.interpolate(x, size=(3, 4), mode="area"), x)
function("shuffle", F.pixel_shuffle(x, 2), x)
function("unshuffle", F.pixel_unshuffle(small, 2), small)
function("smooth", F.smooth_l1_loss(a, b, beta=0.5), a, b)
function("huber", F.huber_loss(a, b, delta=0.7), a, b)
function("kl", F.kl_div(a, q, reduction="batchmean"), a, q)
function("kll", F.kl_div(a, b, log_target=True), a, b)
function("bce", F.binary_cross_entropy(p, q), p, q)
function("triplet", F.triplet_margin_loss(a, b, p, swap=True), a, b, p)
function("cosine", F.cosine_similarity(a, b), a, b)
function("cosemb", F.cosine_embedding_loss(a, b, y, margin=0.1), a, b, y)
function("ranking", F.margin_ranking_loss(a[:, 0], b[:, 0], y, margin=0.1), a[:, 0], b[:, 0], y)
function("hinge", F.hinge_embedding_loss(a[:, 0], y), a[:, 0], y)
function("soft", F.soft_margin_loss(a[:, 0], y), a[:, 0], y)
function("poisson", F.poisson_nll_loss(a, q * 3, full=True), a, q * 3)
function("gaussian", F.gaussian_nll_loss(a, b, q, full=True), a, b, q)
function("pdist", F.pairwise_distance(a, b), a, b)
function("cdist", torch.cdist(a, b), a, b)
function("cumprod", a.cumprod(1), a)
function("hardshrink", F.hardshrink(a), a)
function("softshrink", F.softshrink(a), a)
function("tanhshrink", F.tanhshrink(a), a)


def trained(make):
    w = nn.Parameter(torch.linspace(-0.9, 1, 7))
    optimizer, rows = make([w]), []
    for _ in range(6):
        optimizer.zero_grad()
        ((w * torch.linspace(1, 3, 7)).sin() ** 2).sum().backward()
        optimizer.step()
        rows.append(w.detach().tolist())
    return rows


def rows_alone(make):
    """Of an embedding whose gradients have the rows that were read."""
    e = nn.Embedding(6, 3, sparse=True)
    e.weight.data = torch.linspace(-0.9, 1, 18).reshape(6, 3)
    optimizer, rows = make(e.parameters()), []
    for t in range(20):
        optimizer.zero_grad()
        (e(torch.tensor([t % 6, (2 * t) % 6, t % 6])).sin() * torch.linspace(1, 3, 3)).sum().backward()
        optimizer.step()
        rows.append(e.weight.detach().reshape(-1).tolist())
    return rows


def rates(make, metrics=None):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule, rows = make(optimizer), [optimizer.param_groups[0]["lr"]]
    for i in range(12):
        optimizer.step()
        schedule.step(metrics[i]) if metrics else schedule.step()
        rows.append(optimizer.param_groups[0]["lr"])
    return rows


O = torch.optim
optimizers = {
    "RMSprop": trained(O.RMSprop),
    "RMSprop_c": trained(lambda w: O.RMSprop(w, lr=0.01, centered=True, momentum=0.9, weight_decay=0.1)),
    "Adagrad": trained(lambda w: O.Adagrad(w, lr=0.1, lr_decay=0.1, weight_decay=0.01)),
}
sparse = {
    "SparseAdam": rows_alone(O.SparseAdam),
    "SparseAdam_o": rows_alone(lambda w: O.SparseAdam(w, lr=0.1, betas=(0.7, 0.9), eps=1e-3, maximize=True)),
    "SGD": rows_alone(lambda w: O.SGD(w, lr=0.1)),
    "Adagrad": rows_alone(lambda w: O.Adagrad(w, lr=0.1)),
}
losses = [1, 0.9, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.8, 0.8, 0.8, 0.8]
schedules = {
    "poly": rates(lambda o: L.PolynomialLR(o, total_iters=7, power=2)),
    "restarts": rates(lambda o: L.CosineAnnealingWarmRestarts(o, 3, 2)),
    "one": rates(lambda o: L.OneCycleLR(o, 1.0, total_steps=13)),
    "onel": rates(lambda o: L.OneCycleLR(o, 1.0, total_steps=13, anneal_strategy="linear")),
    "plateau": rates(lambda o: L.ReduceLROnPlateau(o, patience=2, factor=0.5, cooldown=1), losses),
}
with open(sys.argv[1], "w") as f:
    json.dump({"modules": modules, "functions": functions, "optim": optimizers, "sparse": sparse, "sched": schedules}, f)
