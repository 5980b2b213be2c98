"""Random programs of views, in-place ops, no_grad and backward, run by PyTorch: what spec/parity/programs.lua runs again.

Usage: python3 spec/parity/programs.py FILE FIRST COUNT writes a program a line, as JSON: its steps, each with what every
tensor holds after it, its gradient, and whether the step was an error."""
import json
import math
import random
import sys
import warnings

import torch

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)

NOUGHT = 1e-9  # what rounding leaves of 0 is not positive
SHAPES = [(2, 3), (3,), (1, 3), (2, 1), (2, 3, 2), (4,), (), (3, 3)]

# Each takes a tensor, another one, a dimension and a small number; those that give none write to the first.
VIEWS = {
    "narrow": lambda t, u, d, k: t.narrow(d, k, 1),
    "select": lambda t, u, d, k: t.select(d, k),
    "transpose": lambda t, u, d, k: t.transpose(d, 0),
    "unsqueeze": lambda t, u, d, k: t.unsqueeze(d),
    "squeeze": lambda t, u, d, k: t.squeeze(d),
    "expand": lambda t, u, d, k: t.expand(2, *t.shape),
    "diagonal": lambda t, u, d, k: t.diagonal(k - 1),
    "every_second": lambda t, u, d, k: t[k % 2::2],
    "detach": lambda t, u, d, k: t.detach(),
    "view": lambda t, u, d, k: t.view(-1),
}
OPS = {
    "tanh": lambda t, u, d, k: t.tanh(),
    "sin": lambda t, u, d, k: t.sin(),
    "relu": lambda t, u, d, k: t.relu(),
    "sigmoid": lambda t, u, d, k: t.sigmoid(),
    "square": lambda t, u, d, k: t.square(),
    "clone": lambda t, u, d, k: t.clone(),
    "sum": lambda t, u, d, k: t.sum(d),
    "mean": lambda t, u, d, k: t.mean(),
    "amax": lambda t, u, d, k: t.amax(d),
    "max": lambda t, u, d, k: t.max(d)[0],
    "logsumexp": lambda t, u, d, k: t.logsumexp(d),
    "softmax": lambda t, u, d, k: t.softmax(d),
    "cumsum": lambda t, u, d, k: t.cumsum(d),
    "cumprod": lambda t, u, d, k: t.cumprod(d),
    "flip": lambda t, u, d, k: t.flip(d),
    "tril": lambda t, u, d, k: t.tril(),
    "var": lambda t, u, d, k: t.var(d, correction=0),
    "positive": lambda t, u, d, k: t[t > NOUGHT],
    "index_select": lambda t, u, d, k: t.index_select(d, torch.tensor([k, 0, k])),
    "times": lambda t, u, d, k: t * (k - 0.5),
    "power": lambda t, u, d, k: t ** (k + 2),
    "add": lambda t, u, d, k: t + u,
    "sub": lambda t, u, d, k: t - u,
    "mul": lambda t, u, d, k: t * u,
    "div": lambda t, u, d, k: t / (u * u + 1),
    "matmul": lambda t, u, d, k: t @ u,
    "maximum": lambda t, u, d, k: torch.maximum(t, u),
    "cat": lambda t, u, d, k: torch.cat([t, u]),
    "stack": lambda t, u, d, k: torch.stack([t, u]),
    "where": lambda t, u, d, k: torch.where(t > NOUGHT, t, u),
}


def assign(t, at, value):
    t[at] = value


WRITES = {
    "tanh_": lambda t, u, d, k: t.tanh_(),
    "zero_": lambda t, u, d, k: t.zero_(),
    "relu_": lambda t, u, d, k: t.relu_(),
    "times_": lambda t, u, d, k: t.mul_(k - 0.5),
    "masked_fill_": lambda t, u, d, k: t.masked_fill_(t.detach() > NOUGHT, k),
    "index_add_": lambda t, u, d, k: t.index_add_(d, torch.tensor([0]), torch.ones_like(t.narrow(d, 0, 1))),
    "set_number": lambda t, u, d, k: assign(t, 0, k),
    "set_tensor": lambda t, u, d, k: assign(t, -1, u),
    "set_slice": lambda t, u, d, k: assign(t, slice(0, 1), u),
    "add_": lambda t, u, d, k: t.add_(u),
    "mul_": lambda t, u, d, k: t.mul_(u),
    "copy_": lambda t, u, d, k: t.copy_(u),
    "addcmul_": lambda t, u, d, k: t.addcmul_(u, u, value=0.5),
    "lerp_": lambda t, u, d, k: t.lerp_(u, 0.3),
}
# By a key of the step's own (random_key).
KEYED_OPS = {
    "index": lambda t, u, key: t[key],
    "index_of_square": lambda t, u, key: (t * t)[key],
}
KEYED_WRITES = {
    "set_places": lambda t, u, key: assign(t, key, fitting(t, u, key)),
    "set_places_number": lambda t, u, key: assign(t, key, 0.5),
    "set_places_any": lambda t, u, key: assign(t, key, u),
    "add_places": lambda t, u, key: t.index_put_(key, fitting(t, u, key), accumulate=True),
}
KEYED = {**KEYED_OPS, **KEYED_WRITES}
ALL = {**VIEWS, **OPS, **WRITES}


def fitting(t, u, key):
    shape = t.detach()[key].shape
    return wave(shape, 0.4) * u.sum()


def random_key(r, shape, masks_and_tensors):
    """Entries that programs.lua reads, too: numbers, slices, masks, index tensors that broadcast, ellipsis, new axes."""
    key, d = [], 0
    broadcast = r.choice([[], [1], [2], [3], [2, 2], [1, 3]])
    while d < len(shape):
        left = shape[d:]
        kind = r.choices(["number", "slice", "all", "tensor", "mask", "new", "end"], [2, 2, 2, 5, 3, 0.5, 1])[0]
        if left[0] == 0 and kind in ("number", "slice", "tensor"):
            kind = "all"
        if masks_and_tensors and kind not in ("tensor", "mask", "end"):
            continue
        if kind == "end":
            break
        if kind == "new":
            key.append({"new": True})
            continue
        if kind == "number":
            key.append({"number": r.randrange(-left[0], left[0])})
        elif kind == "slice":
            first = r.randrange(left[0])
            key.append({"slice": [first, r.randrange(first, left[0]) + 1, r.randrange(1, 3)]})
        elif kind == "all":
            key.append({"all": True})
        elif kind == "tensor":
            own = [r.choice([s, s, 1]) for s in broadcast[r.randrange(len(broadcast) + 1) if r.random() < 0.2 else 0:]]
            key.append({"tensor": [r.randrange(-left[0], left[0]) for _ in range(math.prod(own))], "shape": own})
        else:
            own = left[:r.randrange(1, 3)]
            n = math.prod(own)
            true = r.sample(range(n), min(n, broadcast[0])) if len(broadcast) == 1 else \
                [i for i in range(n) if r.random() < 0.5]
            key.append({"mask": [int(i in true) for i in range(n)], "shape": list(own)})
            d += len(own) - 1
        d += 1
    if d == len(shape) and r.random() < 0.1 and not masks_and_tensors:
        key.insert(r.randrange(len(key) + 1), {"rest": True})
    return key


def plain_key(key):
    forms = {
        "number": lambda x, e: x, "slice": lambda x, e: slice(*x), "all": lambda x, e: slice(None), "new": lambda x, e: None,
        "rest": lambda x, e: ..., "tensor": lambda x, e: torch.tensor(x, dtype=torch.int64).reshape(e["shape"]),
        "mask": lambda x, e: torch.tensor(x, dtype=torch.bool).reshape(e["shape"]),
    }
    return tuple(forms[next(iter(e))](e[next(iter(e))], e) for e in key)



def wave(shape, phase):
    n = math.prod(shape)
    return torch.tensor([math.sin(1.7 * i + phase) for i in range(n)]).reshape(shape).clone()


def loss(t):
    return (t * torch.tensor([math.cos(0.9 * i) for i in range(t.numel())]).reshape(t.shape)).sum()


def plain(t):
    return {"shape": list(t.shape), "data": [str(x) for x in t.detach().reshape(-1).tolist()],
            "requires_grad": t.requires_grad}


def run(step, tensors):
    t, u = tensors[step["t"]], tensors[step["u"]]
    if step["op"] == "backward":
        return loss(t).backward(retain_graph=step["k"] > 0)
    if step["op"] == "grad":
        grad = torch.autograd.grad(loss(t), u, create_graph=True, allow_unused=True)[0]
        return None if grad is None else grad * 1  # its own memory: it may be an expanded view
    if step["op"] == "all":
        return sum(loss(x) for x in tensors if x.requires_grad).backward()
    with torch.set_grad_enabled(not step["no_grad"]):
        if (step["op"] in WRITES or step["op"] in KEYED_WRITES) and step["t"] != step["u"]:
            u = u * 1  # where a source overlaps what is written in part, PyTorch's result depends on the order
        if step["op"] in KEYED:
            return KEYED[step["op"]](t, u, plain_key(step["key"]))
        return ALL[step["op"]](t, u, step["d"], step["k"])


def program(seed):
    r = random.Random(seed)
    tensors, steps = [], []
    leaves = [{"shape": r.choice(SHAPES), "requires_grad": r.random() < 0.75} for _ in range(r.randrange(1, 4))]
    for i, leaf in enumerate(leaves):
        tensors.append(wave(leaf["shape"], i + 0.5).requires_grad_(leaf["requires_grad"]))
    length = r.randrange(4, 24)
    for i in range(length + 1):
        kind = r.choices([VIEWS, OPS, WRITES, KEYED_OPS, KEYED_WRITES, ["backward", "grad"]], [3, 4, 3, 1, 1, 1.5])[0]
        t = r.randrange(len(tensors)) if r.random() < 0.5 else len(tensors) - 1 - r.randrange(min(3, len(tensors)))
        step = {"op": "all" if i == length else r.choice(list(kind)), "t": t, "u": r.randrange(len(tensors)),
                "d": r.randrange(-1, max(1, tensors[t].dim())), "k": r.randrange(0, 3),
                "no_grad": kind in (WRITES, KEYED_WRITES) and r.random() < 0.1}
        if step["op"] in KEYED:
            step["key"] = random_key(r, list(tensors[t].shape), step["op"] == "add_places")
        if step["op"] == "grad":
            step["u"] = r.randrange(len(leaves))
        steps.append(step)
        try:
            made = run(step, tensors)
            if step["op"] not in WRITES and step["op"] not in KEYED_WRITES and made is not None:
                tensors.append(made)
                step["makes"] = True
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as e:
            step["error"] = str(e).split("\n")[0]
            if step["op"] in ("backward", "grad", "all"):
                break  # which gradients are there by then is left open
        step["tensors"] = [plain(x) for x in tensors]
        step["gradients"] = [plain(x.grad) if x.grad is not None else False for x in tensors[:len(leaves)]]
    return {"seed": seed, "leaves": leaves, "steps": steps}


if __name__ == "__main__":
    path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with open(path, "w") as file:
        for seed in range(first, first + count):
            file.write(json.dumps(program(seed)) + "\n")
