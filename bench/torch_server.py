"""PyTorch's side of bench/run.lua: one process that answers commands on stdin, one line each.

    prepare ROW SIZE THREADS SECONDS   sets a row up, finds the count that takes SECONDS; answers "ok"
    run                                runs the row once; answers the seconds of one iteration
Anything else ends it. Times are time.perf_counter around a plain Python loop.
"""
import gc
import sys
import time

import torch

F = torch.nn.functional


def tiny(grad):
    a = torch.randn(2, 3, requires_grad=grad)
    b = torch.randn(2, 3)

    def run(n):
        for _ in range(n):
            a + b
    return run


def chain(forward):
    x = torch.ones(3, 3, requires_grad=True)
    one = torch.ones(3, 3)

    def make():
        y = x
        for _ in range(100):
            y = y * x
        return y

    def both(n):
        for _ in range(n):
            x.grad = None
            make().backward(one)

    y = make()

    def backward(n):
        for _ in range(n):
            x.grad = None
            y.backward(one, retain_graph=True)
    return both if forward else backward


def pointwise(f):
    def build(size):
        a = torch.randn(size)
        b = torch.randn(size)
        if f is torch.add:
            def run(n):
                for _ in range(n):
                    torch.add(a, b)
        else:
            def run(n):
                for _ in range(n):
                    f(a)
        return run
    return build


def matrix(f):
    def build(_):
        a = torch.randn(4096, 1024)

        def run(n):
            for _ in range(n):
                f(a)
        return run
    return build


def gemm(size):
    a = torch.randn(size, size)
    b = torch.randn(size, size)

    def run(n):
        for _ in range(n):
            torch.mm(a, b)
    return run


def step(_):
    nn = torch.nn
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(),
                        nn.Dropout(0.2), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    x = torch.rand(64, 784)
    labels = torch.randint(0, 10, (64,))

    def run(n):
        for _ in range(n):
            optimizer.zero_grad()
            criterion(net(x), labels).backward()
            optimizer.step()
    return run


conv_shapes = [(64, 1, 28, 32, 3), (64, 32, 14, 64, 3), (8, 64, 56, 64, 3), (8, 256, 14, 256, 3), (8, 256, 28, 128, 1)]


def conv(backward):
    def build(at):
        n, c, size, k, kernel = conv_shapes[at - 1]
        x = torch.randn(n, c, size, size, requires_grad=backward)
        w = torch.randn(k, c, kernel, kernel, requires_grad=backward)
        pad = (kernel - 1) // 2
        y = F.conv2d(x, w, None, 1, pad)
        g = torch.randn_like(y)

        def run(times):
            for _ in range(times):
                if backward:
                    x.grad = w.grad = None
                    y.backward(g, retain_graph=True)
                else:
                    F.conv2d(x, w, None, 1, pad)
        return run
    return build


def max_pool(_):
    x = torch.randn(64, 32, 28, 28)

    def run(n):
        for _ in range(n):
            F.max_pool2d(x, 2)
    return run


def cnn_step(_):
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
                        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Dropout(0.25),
                        nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    x = torch.rand(64, 1, 28, 28)
    labels = torch.randint(0, 10, (64,))

    def run(n):
        for _ in range(n):
            optimizer.zero_grad()
            criterion(net(x), labels).backward()
            optimizer.step()
    return run


rows = {
    "tiny": lambda _: tiny(False),
    "tiny_grad": lambda _: tiny(True),
    "chain": lambda _: chain(True),
    "chain_backward": lambda _: chain(False),
    "add": pointwise(torch.add),
    "exp": pointwise(torch.exp),
    "tanh": pointwise(torch.tanh),
    "gelu": pointwise(F.gelu),
    "sum": matrix(torch.sum),
    "softmax": matrix(lambda a: torch.softmax(a, 1)),
    "gemm": gemm,
    "step": step,
    "conv": conv(False),
    "conv_backward": conv(True),
    "max_pool": max_pool,
    "cnn_step": cnn_step,
}


def seconds(run, n):
    start = time.perf_counter()
    run(n)
    return time.perf_counter() - start


def say(what):
    print(what, flush=True)


def main():
    run, count = None, 1
    say("torch " + torch.__version__)
    for line in sys.stdin:
        word = line.split()
        if word and word[0] == "prepare":
            run = None
            gc.collect()
            torch.set_num_threads(int(word[3]))
            run, count, target = rows[word[1]](int(word[2])), 1, float(word[4])
            run(2)
            while (took := seconds(run, count)) < target / 2:
                count = max(count + 1, int(count * min(10, target / max(took, 1e-9))))
            say("ok")
        elif word and word[0] == "run":
            run(1)
            took = seconds(run, count) / count
            if torch.get_num_threads() > 1:
                time.sleep(0.01)  # its threads spin for a while; they must not take the others' cores
            say(repr(took))
        else:
            break


main()
