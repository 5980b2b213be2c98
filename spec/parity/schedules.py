"""What spec/parity/schedules.lua compares with: the rates (and momenta) of every schedule of PyTorch over 20 steps of two
groups, and its state dict after 7 steps, as JSON. A schedule is a tree: kind, options, and parts of which it is made."""
import json
import sys
import warnings

import torch
from torch.optim import lr_scheduler as L
from torch.optim.swa_utils import SWALR

warnings.simplefilter("ignore")
STEPS, AT = 20, 7
LAMBDAS = {"wave": lambda e: 1 + 0.5 * (e % 3), "fall": lambda e: 0.9**e, "ratio": lambda e: 0.95 if e % 2 else 1.1}
METRICS = [1, 0.9, 0.95, 0.95, 0.95, 0.95, 0.8, 0.8, 0.81, 0.82, 0.83, 0.7, 0.7, 0.71, 0.71, 0.71, 0.71, 0.71, 0.6, 0.6]


def s(kind, *parts, **options):
    return {"kind": kind, "options": options, "parts": list(parts)}


warm, decay = s("LinearLR", start_factor=0.1, total_iters=4), s("ExponentialLR", gamma=0.9)
CASES = [
    s("StepLR", step_size=3), s("StepLR", step_size=4, gamma=0.5),
    s("MultiStepLR", milestones=[2, 5, 5, 11], gamma=0.3),
    decay,
    s("ConstantLR"), s("ConstantLR", factor=0.25, total_iters=9),
    s("LinearLR"), s("LinearLR", start_factor=0.2, end_factor=0.7, total_iters=8),
    s("PolynomialLR"), s("PolynomialLR", total_iters=11, power=2.5),
    s("CosineAnnealingLR", T_max=6), s("CosineAnnealingLR", T_max=25, eta_min=0.01),
    s("CosineAnnealingWarmRestarts", T_0=3), s("CosineAnnealingWarmRestarts", T_0=2, T_mult=3, eta_min=0.02),
    s("LambdaLR", lr_lambda="fall"), s("LambdaLR", lr_lambda=["wave", "fall"]),
    s("MultiplicativeLR", lr_lambda="ratio"),
    s("OneCycleLR", max_lr=1.0, total_steps=22), s("OneCycleLR", max_lr=[1.0, 0.5], epochs=3, steps_per_epoch=8, three_phase=True),
    s("OneCycleLR", max_lr=0.7, total_steps=21, pct_start=0.4, anneal_strategy="linear", cycle_momentum=False, div_factor=5, final_div_factor=50),
    s("OneCycleLR", max_lr=1.0, total_steps=25, base_momentum=0.7, max_momentum=0.9),
    s("CyclicLR", base_lr=0.01, max_lr=0.3, step_size_up=3), s("CyclicLR", base_lr=0.01, max_lr=0.3, step_size_up=3, step_size_down=5, mode="triangular2"),
    s("CyclicLR", base_lr=[0.01, 0.02], max_lr=[0.3, 0.1], step_size_up=4, mode="exp_range", gamma=0.97, cycle_momentum=False),
    s("CyclicLR", base_lr=0.05, max_lr=0.3, step_size_up=4, base_momentum=0.6, max_momentum=0.8),
    s("ReduceLROnPlateau"), s("ReduceLROnPlateau", patience=1, factor=0.5, cooldown=1),
    s("ReduceLROnPlateau", mode="max", patience=2, threshold=0.05, threshold_mode="abs", min_lr=[0.01, 0.002]),
    s("SequentialLR", warm, decay, milestones=[4]),
    s("SequentialLR", s("ConstantLR", factor=0.3, total_iters=20), s("CosineAnnealingLR", T_max=5), s("StepLR", step_size=2), milestones=[3, 9]),
    s("ChainedScheduler", s("ConstantLR", factor=0.5, total_iters=3), decay),
    s("ChainedScheduler", s("LinearLR", start_factor=0.5, total_iters=6), s("MultiStepLR", milestones=[4, 10], gamma=0.5), decay),
    s("SWALR", swa_lr=0.03, anneal_epochs=5), s("SWALR", swa_lr=[0.03, 0.2], anneal_epochs=8, anneal_strategy="linear"),
]


def make(case, o):
    options = dict(case["options"])
    if "lr_lambda" in options:
        names = options["lr_lambda"]
        options["lr_lambda"] = LAMBDAS[names] if isinstance(names, str) else [LAMBDAS[n] for n in names]
    if case["parts"]:
        parts = [make(p, o) for p in case["parts"]]
        if case["kind"] == "ChainedScheduler":
            return L.ChainedScheduler(parts, optimizer=o)
        return L.SequentialLR(o, parts, **options)
    return (SWALR if case["kind"] == "SWALR" else getattr(L, case["kind"]))(o, **options)


def plain(v):
    """The state as JSON has it: without functions and objects."""
    if isinstance(v, dict):
        return {str(k): plain(x) for k, x in v.items() if plain(x) is not None}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v if plain(x) is not None]
    return v if isinstance(v, (int, float, str, bool)) and v not in (float("inf"), -float("inf")) else None


for case in CASES:
    w = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    o = torch.optim.SGD([{"params": w[:1]}, {"params": w[1:], "lr": 0.4}], lr=0.1, momentum=0.9)
    schedule, rows = make(case, o), []
    for i in range(STEPS + 1):
        rows.append([[g["lr"], g["momentum"]] for g in o.param_groups])
        if i == AT:
            case["state"] = plain(schedule.state_dict())
        o.step()
        if i < STEPS:
            schedule.step(*([METRICS[i]] if case["kind"] == "ReduceLROnPlateau" else []))
    case["rows"] = rows
with open(sys.argv[1], "w") as f:
    json.dump({"at": AT, "metrics": METRICS, "cases": CASES}, f)
