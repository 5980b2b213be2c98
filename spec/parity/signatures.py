# Compares the signatures of moth (spec/parity/signatures.lua prints them) with PyTorch's: the order of what comes by
# position, names, defaults. What moth has beyond PyTorch must be given by name; what PyTorch has given up is left out.
# Usage: luajit spec/parity/signatures.lua | python3 spec/parity/signatures.py
import inspect
import re
import sys

import torch
import torch.utils.data.distributed

GIVEN_UP = {"size_average", "reduce", "_stacklevel", "self", "foreach"}
# PyTorch's own texts, where inspect finds none; and places of its own.
TEXTS = {
    "nn.RNN": "(input_size, hidden_size, num_layers=1, nonlinearity='tanh', bias=True, batch_first=False, dropout=0.0, "
              "bidirectional=False, device=None, dtype=None)",
    "nn.LSTM": "(input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False, "
               "proj_size=0, device=None, dtype=None)",
    "nn.functional.max_pool1d": "(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
                                "return_indices=False)",
    "nn.functional.adaptive_max_pool2d": "(input, output_size, return_indices=False)",
    "nn.functional.conv_tbc": "(input, weight, bias, pad=0)",
    "nn.functional.native_channel_shuffle": "(input, groups)",
    "nn.functional.threshold_": "(input, threshold, value)",
    "nn.functional.rrelu_": "(input, lower=1/8, upper=1/3, training=False)",
    "nn.functional.gelu": "(input, approximate='none')",
}
TEXTS["nn.GRU"] = TEXTS["nn.LSTM"]
TEXTS["nn.functional.max_pool2d"] = TEXTS["nn.functional.max_pool1d"]
# moth's own: names, or defaults that differ with a reason.
OWN = {"generator", "ignore_mismatched_sizes"}
# Options of all optimizers, whether PyTorch's has them or not: a program may change the optimizer and keep them.
OF_ALL = {"foreach", "fused", "differentiable"}
DEFAULTS = {
    "nn.functional.softmax dim", "nn.functional.softmin dim", "nn.Softmax dim", "nn.Softmin dim", "nn.LogSoftmax dim",
    "nn.utils.fuse_conv_bn_weights conv_b", "nn.utils.fuse_conv_bn_weights bn_w", "nn.utils.fuse_conv_bn_weights bn_b",
    "nn.utils.fuse_linear_bn_weights linear_b", "nn.utils.fuse_linear_bn_weights bn_w",
    "nn.utils.fuse_linear_bn_weights bn_b", "nn.functional.one_hot num_classes", "nn.utils.pad_sequence batch_first", "utils.data.BatchSampler drop_last",
    "utils.data.DataLoader batch_size", "utils.data.DataLoader prefetch_factor",
    "optim.Muon adjust_lr_fn", "nn.utils.weight_norm dim",
    *("nn.functional.multi_head_attention_forward " + n for n in ("in_proj_weight", "in_proj_bias", "bias_k", "bias_v",
                                                                  "out_proj_bias")), "utils.data.DistributedSampler num_replicas", "utils.data.DistributedSampler rank",
}
# What moth has and PyTorch has not, by name only: decoupled_weight_decay, the option that state dicts carry.
MORE = {"optim.AdamW decoupled_weight_decay", "optim.Adagrad capturable", "utils.data.DataLoader seed"}


def theirs(place):
    if place in TEXTS:
        text = TEXTS[place]
    else:
        at = torch
        for part in place.split("."):
            at = getattr(at, part, None)
        if place == "nn.utils.pad_sequence":
            at = torch.nn.utils.rnn.pad_sequence
        if place == "utils.data.DistributedSampler":
            at = torch.utils.data.distributed.DistributedSampler
        if at is None:
            return None
        try:
            return inspect.signature(at.__init__ if inspect.isclass(at) else at).parameters
        except ValueError:
            name = place.split(".")[-1]
            text = re.match(r"\s*" + name + r"(\(.*?\))", at.__doc__ or "", re.S).group(1)
    scope = {}
    exec("def f" + text + ": pass", scope)
    return inspect.signature(scope["f"]).parameters


def value(p):
    d = p.default
    if d is inspect.Parameter.empty:
        return "required"
    if inspect.isfunction(d):
        return d.__name__
    return d


def same(ours, kind, theirs):
    if ours == "required" or theirs == "required":
        return ours == theirs
    if ours == "nil":
        return theirs is None or isinstance(theirs, (tuple, torch.Generator))
    if isinstance(theirs, bool) or theirs is None:
        return ours == str(bool(theirs)).lower() and (theirs is not None or kind == "bool")
    if isinstance(theirs, str):
        return ours == theirs
    return abs(float(ours) - (float(theirs) + (kind in ("Dim", "Index") and theirs >= 0))) < 1e-9


bad = seen = 0
for line in sys.stdin:
    place, *parameters = line.rstrip("\n").split("\t")
    found = theirs(place)
    if found is None:
        continue
    seen += 1
    errors, variadic = [], any(p.kind == p.VAR_POSITIONAL for p in found.values())
    want = [p for p in found.values() if p.name not in GIVEN_UP and p.kind == p.POSITIONAL_OR_KEYWORD]
    if variadic:
        want = []
    by_position = [p.split(" ") for p in parameters if p.endswith(" position")]
    for i, (name, kind, default, _) in enumerate(by_position):
        if name in OWN and i >= len(want) or variadic:
            continue
        if i >= len(want) or want[i].name != name:
            errors.append(f"position {i + 1} is {name}, PyTorch's {want[i].name if i < len(want) else 'none'}")
            break
    for name, kind, default, _ in (p.rsplit(" ", 3) for p in parameters):
        if name in OWN or variadic or place.startswith("optim.") and name in OF_ALL:
            continue
        if f"{place} {name}" in MORE:
            continue
        if name not in found:
            errors.append(f"PyTorch has no {name}")
        elif f"{place} {name}" not in DEFAULTS and not same(default, kind, value(found[name])):
            errors.append(f"{name} is {default} by default, PyTorch's {value(found[name])}")
    for e in errors:
        bad += 1
        print(f"{place}: {e}")
print(f"{seen} signatures, {bad} differences")
sys.exit(bad > 0 or seen < 100)
