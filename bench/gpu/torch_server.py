"""PyTorch's side of bench/gpu/measure.lua: one process that answers commands on stdin, one line each.

    torch_server.py TARGET QUEUED   seconds of a repetition; steps of a row whose host time is measured
    prepare ROW ARGUMENTS           sets a row up, finds the count of steps; answers "ok"
    run                             runs the row once; answers the seconds of one step
    clear                           forgets the row; answers "ok"
An answer "error ..." says what went wrong. Times are CUDA events around the steps, on a machine without a GPU the
clock; for host rows the clock until the steps are queued.
"""
import gc
import sys
import time

import torch

F = torch.nn.functional
gpu = torch.cuda.is_available()
device = torch.device("cuda" if gpu else "cpu")
target, queued = float(sys.argv[1]), int(sys.argv[2])


def random(shape, dtype):
    return torch.randn(shape, device=device).to(getattr(torch, dtype))


def copy(n):
    a, b = random(int(n), "float32"), torch.empty(int(n), device=device)
    return lambda: b.copy_(a)


def pointwise(f, operands):
    def build(dtype, n):
        a = [random(int(n), dtype) for _ in range(operands)]
        return lambda: f(*a)
    return build


def total(dtype, side, dim):
    a, dim = torch.rand(int(side), int(side), device=device).to(getattr(torch, dtype)), int(dim)
    return (lambda: a.sum(dim - 1)) if dim else lambda: a.sum()


def softmax(dtype, r, c):
    a = random((int(r), int(c)), dtype)
    return lambda: torch.softmax(a, 1)


def cross_entropy(both):
    def build(dtype, r, c):
        a = random((int(r), int(c)), dtype).requires_grad_(both)
        labels = torch.randint(0, int(c), (int(r),), device=device)

        def step():
            a.grad = None
            loss = F.cross_entropy(a, labels)
            if both:
                loss.backward()
        return step
    return build


def mm(kind, size):
    a, b = (random((int(size), int(size)), "bfloat16" if kind == "bfloat16" else "float32") for _ in range(2))

    def step():
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        torch.mm(a, b)
    return step


def linear(m, k, o):
    x, w, b = (random(s, "bfloat16") for s in ((int(m), int(k)), (int(o), int(k)), (int(o),)))
    return lambda: F.linear(x, w, b)


def adamw(layers, d, vocabulary, positions):
    d = int(d)
    shapes = [(int(vocabulary), d), (int(positions), d), (d,), (d,)]
    for _ in range(int(layers)):
        shapes += [(d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,), (d,), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    parameters = [random(s, "float32").requires_grad_() for s in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True).step


def tiny(grad):
    a, b = random((2, 3), "float32").requires_grad_(grad == "1"), random((2, 3), "float32")
    return lambda: a + b


def lab(graph):
    nn = torch.nn
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(),
                        nn.Dropout(0.2), nn.Linear(256, 10)).to(device)
    graph = graph == "1"
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=graph and gpu)
    criterion = nn.CrossEntropyLoss()
    x, labels = random((64, 784), "float32"), torch.randint(0, 10, (64,), device=device)

    def step():
        optimizer.zero_grad()
        criterion(net(x), labels).backward()
        optimizer.step()
    if not graph or not gpu:
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        criterion(net(x), labels).backward()
        optimizer.step()
    return captured.replay


rows = {
    "copy": copy,
    "add": pointwise(torch.add, 2),
    "exp": pointwise(torch.exp, 1),
    "gelu": pointwise(F.gelu, 1),
    "sum": total,
    "softmax": softmax,
    "cross_entropy": cross_entropy(False),
    "cross_entropy_both": cross_entropy(True),
    "mm": mm,
    "linear": linear,
    "adamw": adamw,
    "tiny": tiny,
    "lab": lab,
}


def synchronize():
    if gpu:
        torch.cuda.synchronize()


def device_seconds(step, n):
    if not gpu:
        start = time.perf_counter()
        for _ in range(n):
            step()
        return time.perf_counter() - start
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    a.record()
    for _ in range(n):
        step()
    b.record()
    b.synchronize()
    return a.elapsed_time(b) * 1e-3


def host_seconds(step, n):
    synchronize()
    start = time.perf_counter()
    for _ in range(n):
        step()
    took = time.perf_counter() - start
    synchronize()
    return took


def say(what):
    print(" ".join(str(what).split()), flush=True)


def main():
    step, count, timed = None, 1, device_seconds
    say("torch " + torch.__version__ + (" on " + torch.cuda.get_device_name() if gpu else " on the CPU"))
    for line in sys.stdin:
        word = line.split()
        try:
            if word[0] == "prepare":
                step, count = rows[word[1]](*word[2:]), 1
                timed = host_seconds if word[1] == "tiny" else device_seconds
                device_seconds(step, 3)
                if timed is host_seconds:
                    count = queued
                else:
                    while (took := device_seconds(step, count)) < target / 2:
                        count = max(count + 1, int(count * min(10, target / max(took, 1e-9))))
                say("ok")
            elif word[0] == "run":
                say(repr(timed(step, count) / count))
            else:
                step = None
                gc.collect()
                if gpu:
                    torch.cuda.empty_cache()
                say("ok")
        except Exception as e:  # whatever a row does, the next one is tried
            say("error " + type(e).__name__ + ": " + str(e)[:200])


main()
