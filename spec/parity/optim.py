"""Optimizers against PyTorch, in both directions: `make DIR` writes the parameters of 20 steps for many sets of options, and
state dicts by torch.save; `check DIR` loads the state dicts that spec/parity/optim.lua wrote."""
import json
import sys
import warnings

import torch

warnings.simplefilter("ignore")
SHAPES, STEPS = [(3, 4), (5,), ()], 20

CASES = [
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {}), ("Adam", {"amsgrad": True, "weight_decay": 0.1}), ("Adam", {"lr": 0.1, "betas": [0.5, 0.9], "maximize": True}),
    ("Adam", {"decoupled_weight_decay": True, "weight_decay": 0.1, "lr": 0.01}),
    ("AdamW", {"lr": 0.01}), ("AdamW", {"lr": 0.1, "amsgrad": True, "weight_decay": 0.2, "eps": 1e-3}),
    ("Adagrad", {}), ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-4}),
    ("Adadelta", {}), ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {}), ("Adamax", {"lr": 0.1, "betas": [0.7, 0.8], "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}), ("NAdam", {"lr": 0.05, "betas": [0.7, 0.8], "weight_decay": 0.1, "momentum_decay": 0.01}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {}), ("RAdam", {"lr": 0.05, "betas": [0.7, 0.9], "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"lr": 0.05, "betas": [0.9, 0.8], "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RMSprop", {}), ("RMSprop", {"lr": 0.05, "alpha": 0.9, "momentum": 0.9}), ("RMSprop", {"lr": 0.05, "centered": True}),
    ("RMSprop", {"lr": 0.02, "centered": True, "momentum": 0.5, "weight_decay": 0.1, "maximize": True}),
    ("Rprop", {}), ("Rprop", {"lr": 0.1, "etas": [0.6, 1.3], "step_sizes": [0.01, 0.2], "maximize": True}),
    ("ASGD", {}), ("ASGD", {"lr": 0.1, "lambd": 0.01, "alpha": 0.5, "t0": 5, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {}), ("Adafactor", {"lr": 0.1, "beta2_decay": -0.5, "d": 1.5, "weight_decay": 0.1, "maximize": True}),
    ("Muon", {"lr": 0.1}), ("Muon", {"lr": 0.1, "nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}),
    ("LBFGS", {}), ("LBFGS", {"lr": 0.5, "max_iter": 4, "history_size": 3}),
    ("LBFGS", {"line_search_fn": "strong_wolfe"}), ("LBFGS", {"lr": 2, "line_search_fn": "strong_wolfe", "max_iter": 3}),
]


def parameters(name, dtype):
    shapes = [(3, 4), (5, 2)] if name == "Muon" else SHAPES
    out = []
    for i, shape in enumerate(shapes):
        n = torch.Size(shape).numel()
        out.append(torch.nn.Parameter(torch.sin(1.7 * torch.arange(n, dtype=torch.float64) + i).reshape(shape).to(dtype)))
    return out


def gradient(p, i, t):
    """Of step t (from 1) for parameter i: waves, some exactly 0, and something of the parameter."""
    k = torch.arange(p.numel(), dtype=torch.float64).reshape(p.shape)
    g = torch.cos(0.9 * k + 1.3 * t + i).to(p.dtype)
    return torch.where((k + t) % 7 == 0, torch.zeros_like(g), g) + 0.125 * p.detach()


def loss_of(params):
    """Something for LBFGS to minimise."""
    return sum(((p * (i + 1) - 0.5) ** 4).sum() + ((p - 0.3) ** 2).sum() for i, p in enumerate(params))


def advance(o, params, t):
    if type(o).__name__ == "LBFGS":
        def closure():
            o.zero_grad()
            loss = loss_of(params)
            loss.backward()
            return loss
        o.step(closure)
    else:
        for i, p in enumerate(params):
            p.grad = gradient(p, i, t)
        if t == 4:
            params[-1].grad = None  # one that takes fewer steps
        o.step()


def run(name, options, dtype, save=None):
    params, rows = parameters(name, dtype), []
    o = getattr(torch.optim, name)(params, **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
    for t in range(1, STEPS + 1):
        if save and t == STEPS // 2 + 1:
            torch.save({"optimizer": o.state_dict(), "params": [p.data for p in params]}, save)
        advance(o, params, t)
        rows.append([x for p in params for x in p.detach().reshape(-1).tolist()])
    return rows


def schedules():
    """The rates and momenta of two groups over 25 steps."""
    L = torch.optim.lr_scheduler
    makes = {
        "StepLR": lambda o: L.StepLR(o, 4, 0.5), "MultiStepLR": lambda o: L.MultiStepLR(o, [2, 5, 9], gamma=0.3),
        "ConstantLR": lambda o: L.ConstantLR(o, 0.25, 6), "LinearLR": lambda o: L.LinearLR(o, 0.1, 0.8, 7),
        "ExponentialLR": lambda o: L.ExponentialLR(o, 0.9), "CosineAnnealingLR": lambda o: L.CosineAnnealingLR(o, 8, 0.01),
        "Warm": lambda o: L.CosineAnnealingWarmRestarts(o, 4, 2, 0.001), "PolynomialLR": lambda o: L.PolynomialLR(o, 12, 2.0),
        "LambdaLR": lambda o: L.LambdaLR(o, [lambda e: 0.95**e, lambda e: 1 / (1 + e)]),
        "MultiplicativeLR": lambda o: L.MultiplicativeLR(o, lambda e: 0.9 + 0.01 * e),
        "CyclicLR": lambda o: L.CyclicLR(o, 0.01, 0.2, 4, 6), "Cyclic2": lambda o: L.CyclicLR(o, 0.01, [0.2, 0.5], 3, mode="triangular2"),
        "CyclicExp": lambda o: L.CyclicLR(o, [0.01, 0.02], 0.2, 5, mode="exp_range", gamma=0.97, cycle_momentum=False),
        "CyclicFn": lambda o: L.CyclicLR(o, 0.01, 0.2, 5, scale_fn=lambda c: 1 / (5 ** (c * 0.1)), scale_mode="iterations"),
        "OneCycleLR": lambda o: L.OneCycleLR(o, 0.5, 26), "OneCycle3": lambda o: L.OneCycleLR(o, [0.5, 1.0], epochs=2, steps_per_epoch=13, three_phase=True, anneal_strategy="linear"),
        "Chained": lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 3), L.ExponentialLR(o, 0.9)]),
        "Chained2": lambda o: L.ChainedScheduler([L.LinearLR(o, 0.2, 1.0, 5), L.CosineAnnealingLR(o, 6, 0.01), L.StepLR(o, 7)]),
        "Sequential": lambda o: L.SequentialLR(o, [L.ConstantLR(o, 0.1, 2), L.ExponentialLR(o, 0.9), L.CosineAnnealingLR(o, 9)], [2, 10]),
        "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, 6), "SWALinear": lambda o: torch.optim.swa_utils.SWALR(o, [0.05, 0.2], 0, "linear"),
        "Plateau": lambda o: L.ReduceLROnPlateau(o, "max", factor=0.3, patience=1, threshold=0.01, threshold_mode="abs", cooldown=2, min_lr=[0.001, 0.01]),
    }
    out = {}
    for name, of in makes.items():
        o = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]}, {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.02}], lr=0.1, momentum=0.5)
        s, rows = of(o), []
        for t in range(25):
            rows.append([x for g in o.param_groups for x in (g["lr"], g["momentum"])])
            o.step()
            s.step((t * 7) % 5) if name == "Plateau" else s.step()
        out[name] = rows
    return out


def averages():
    """Means of a model with a batch norm over six steps of SGD, and its statistics by update_bn."""
    swa, out = torch.optim.swa_utils, {}
    wave = lambda *shape, at=0.0: torch.sin(1.7 * torch.arange(torch.Size(shape).numel()) + at).reshape(shape)
    data = [wave(8, 3, at=i) for i in range(5)]
    for name, options in {"swa": {}, "ema": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.8)},
                          "ema_buffers": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.8), "use_buffers": True},
                          "own": {"avg_fn": lambda mean, new, n: 0.5 * mean + 0.5 * new}}.items():
        model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(wave(*p.shape, at=i))
        mean, o = swa.AveragedModel(model, **options), torch.optim.SGD(model.parameters(), lr=0.01)
        for t in range(6):
            o.zero_grad()
            model(data[t % 5]).square().sum().backward()
            o.step()
            mean.update_parameters(model)
        states = [x.double().reshape(-1).tolist() for x in mean.state_dict().values()]
        swa.update_bn(data, mean)
        mean.eval()
        out[name] = {"names": list(mean.state_dict()), "states": states, "after": mean(data[0]).reshape(-1).tolist()}
    return out


def make(folder):
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        name_of = str(dtype).split(".")[1]
        cases = [{"name": n, "options": o, "rows": run(n, o, dtype, f"{folder}/{name_of}_{k + 1}.pt")}
                 for k, (n, o) in enumerate(CASES)]
        with open(f"{folder}/{name_of}.json", "w") as f:
            json.dump(cases, f)
    with open(f"{folder}/schedules.json", "w") as f:
        json.dump({"schedules": schedules(), "averages": averages()}, f)


def check(folder):
    """Continues from moth's state dicts; the parameters at the end must be those of PyTorch alone."""
    failed = n = 0
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        name_of = str(dtype).split(".")[1]
        with open(f"{folder}/{name_of}.json") as f:
            cases = json.load(f)
        for k, case in enumerate(cases):
            name = case["name"]
            saved = torch.load(f"{folder}/moth_{name_of}_{k + 1}.pt", weights_only=True)
            params = parameters(name, dtype)
            o = getattr(torch.optim, name)(params)
            o.load_state_dict(saved["optimizer"])
            for p, value in zip(params, saved["params"]):
                p.data.copy_(value)
            for t in range(STEPS // 2 + 1, STEPS + 1):
                advance(o, params, t)
            got = torch.tensor([x for p in params for x in p.detach().reshape(-1).tolist()])
            want = torch.tensor(case["rows"][-1])
            limit = 2e-2 if name == "Muon" else 1e-10 if dtype == torch.float64 else 1e-4 if name == "LBFGS" else 1e-5
            n += 1
            if not torch.allclose(got, want, rtol=limit, atol=limit):
                failed += 1
                print(f"{name} {case['options']} {name_of}: PyTorch continues moth's state otherwise, by {(got - want).abs().max()}")
    print(f"optim: {n} state dicts of moth in PyTorch, {failed} differ")
    sys.exit(failed > 0)


{"make": make, "check": check}[sys.argv[1]](sys.argv[2])
