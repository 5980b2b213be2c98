"""PyTorch's side of bench/ops.lua: calls that it describes, timed. A line of JSON on stdin, a line on stdout.

{"op": name, "args": [...], "grad": [numbers of arguments], "seconds": s} prepares: a tensor among the arguments is
{"file": raw bytes, "dtype": name, "shape": [...]}; {"code": text, "names": [[name, tensor], ...]} evaluates text instead. Answers {"shape": of
the first result} or {"error": text}. {"run": true} runs it once more; answers the seconds of one call, of the processor for
one thread. {"threads": n} sets their number."""
import json
import sys
import time

import numpy as np
import torch

F = torch.nn.functional
clock = time.perf_counter

# What PyTorch spells otherwise.
OTHER = {
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "scale": lambda a, b: a * b, "to_copy": lambda a, *o: a.clone(), "contiguous": lambda a: a.contiguous(),
    "repeat": lambda a, *n: a.repeat(*n), "embedding": lambda w, i: F.embedding(i, w), "rms_norm": None,
    "batch_norm": None, "unfold": None, "shift_left": torch.bitwise_left_shift, "shift_right": torch.bitwise_right_shift,
    "special_entr": torch.special.entr, "resize": None, "view_as_complex": torch.view_as_complex,
    "erfinv": torch.erfinv, "cumprod": torch.cumprod, "native_cumprod": torch.cumprod,
    "native_cdist": lambda a, b, p=2.0: torch.cdist(a, b, p), "native_pdist": lambda a, p=2.0: torch.pdist(a, p),
    "native_grid_sample": lambda x, g, mode, padding, corners=False, *o: F.grid_sample(x, g, mode, padding, corners),
}
SPACES = [torch, F, torch.special, torch.linalg, torch.fft, torch._C._nn, torch.ops.aten]


def find(name):
    if name in OTHER:
        return OTHER[name]
    for prefix, space in (("special_", torch.special), ("linalg_", torch.linalg), ("fft_", torch.fft)):
        if name.startswith(prefix) and hasattr(space, name[len(prefix):]):
            return getattr(space, name[len(prefix):])
    for space in SPACES:
        if hasattr(space, name):
            return getattr(space, name)
    if hasattr(torch.Tensor, name):
        return getattr(torch.Tensor, name)
    return None


def value(v):
    if v == {}:  # how an empty list arrives
        return []
    if isinstance(v, dict) and "file" in v:
        dtype = getattr(torch, v["dtype"])
        raw = torch.from_numpy(np.fromfile(v["file"], dtype=np.uint8))
        return raw.view(dtype).reshape(list(v["shape"])).clone() if raw.numel() else torch.empty(list(v["shape"]), dtype=dtype)
    if isinstance(v, dict) and "number" in v:
        return float(v["number"])
    if isinstance(v, dict) and "dtype" in v:
        return getattr(torch, v["dtype"])
    if isinstance(v, list):
        return [value(x) for x in v]
    return v


def first(y):
    return y[0] if isinstance(y, (tuple, list)) else y


def prepare(q):
    if "code" in q:
        names = {k: value(v) for k, v in q["names"]}
        args = list(names.values())
        for i in q["grad"]:
            args[i].requires_grad_(True)
        call = eval("lambda: " + q["code"], {"torch": torch, "F": F, **names})
    else:
        fn, args = find(q["op"]), [value(v) for v in q["args"]]
        if fn is None:
            raise LookupError("no counterpart")
        for i in q["grad"]:
            args[i].requires_grad_(True)
        call = lambda: fn(*args)  # noqa: E731
    y = first(call())
    if q["grad"]:
        g, inputs = torch.randn_like(y), [args[i] for i in q["grad"]]
        done = lambda: torch.autograd.grad(y, inputs, g, retain_graph=True, allow_unused=True)  # noqa: E731
        done()
    else:
        done = call
    n = 1
    done()
    while True:
        start = clock()
        for _ in range(n):
            done()
        took = clock() - start
        if took >= q["seconds"] / 2 or n > 1 << 20:
            break
        n = max(n + 1, int(n * min(10, q["seconds"] / max(took, 1e-9))))
    return done, n, list(y.shape) if torch.is_tensor(y) else []


def main():
    global clock
    done, n = None, 1
    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        q = json.loads(line)
        try:
            if "threads" in q:
                torch.set_num_threads(q["threads"])
                clock = time.thread_time if q["threads"] == 1 else time.perf_counter
                answer = {}
            elif "run" in q:
                done()
                start = clock()
                for _ in range(n):
                    done()
                answer = {"seconds": (clock() - start) / n}
            else:
                done, n, shape = prepare(q)
                answer = {"shape": shape}
        except Exception as e:  # a row without a counterpart
            answer = {"error": f"{type(e).__name__}: {e}"[:200]}
        print(json.dumps(answer), flush=True)


main()
