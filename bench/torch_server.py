"""PyTorch's side of bench/run.lua: one process that answers commands on stdin, one line each.

    prepare ROW SIZE THREADS SECONDS CORE   sets a row up on this core or on "any", finds the count that takes
                                            SECONDS; answers "ok"
    run                                     runs the row once; answers the seconds of one iteration
Anything else ends it. Times are time.perf_counter (with BENCH_CLOCK=cpu: of the processor) around a plain Python loop.

    torch_server.py peak ROW           prints the most MB of tensors at a time, in setting up and three iterations
The training steps of bench/training.lua are rows, too: torch_training.py.
"""
import gc
import math
import os
import resource
import sys
import time

import loader
import torch
import torch_training

F = torch.nn.functional
all_cores = os.sched_getaffinity(0)


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
            loss = criterion(net(x), labels)
            loss.backward()
            optimizer.step()
            loss.item()
    return run


def layer_norm(backward):
    def build(_):
        x = torch.randn(4096, 1024, requires_grad=backward)
        w = torch.rand(1024, requires_grad=backward)
        b = torch.randn(1024, requires_grad=backward)
        y = F.layer_norm(x, (1024,), w, b)
        g = torch.randn(4096, 1024)

        def run(times):
            for _ in range(times):
                if backward:
                    x.grad = w.grad = b.grad = None
                    y.backward(g, retain_graph=True)
                else:
                    F.layer_norm(x, (1024,), w, b)
        return run
    return build


attention_shapes = [(16, 8, 128, 32), (4, 8, 512, 64), (2, 8, 1024, 64), (1, 2, 4096, 64)]


def attention(backward):
    def build(at):
        q, k, v = (torch.randn(attention_shapes[at - 1], requires_grad=backward) for _ in range(3))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        g = torch.randn_like(y)

        def run(times):
            for _ in range(times):
                if backward:
                    q.grad = k.grad = v.grad = None
                    y.backward(g, retain_graph=True)
                else:
                    F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return run
    return build


def adamw(count):
    ps = [torch.randn(64, 64, requires_grad=True) for _ in range(count)]
    for p in ps:
        p.grad = torch.randn(64, 64)
    optimizer = torch.optim.AdamW(ps, lr=1e-3, fused=True)

    def run(n):
        for _ in range(n):
            optimizer.step()
    return run


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        nn = torch.nn
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    def __init__(self, vocabulary, layers, heads, width, context):
        super().__init__()
        nn = torch.nn
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * layers) if "proj" in name or "out" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = F.linear(self.ln_f(self.h(x)), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt_step(_):
    net = GPT(65, 4, 8, 256, 128)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    x, y = torch.randint(0, 65, (16, 128)), torch.randint(0, 65, (16, 128))

    def run(n):
        for _ in range(n):
            loss = net(x, y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1)
            optimizer.step()
            loss.item()
    return run


rows = {
    "layer_norm": layer_norm(False),
    "layer_norm_backward": layer_norm(True),
    "dropout": matrix(lambda a: F.dropout(a, 0.2)),
    "attention": attention(False),
    "attention_backward": attention(True),
    "topk": matrix(lambda a: torch.topk(a, 32, 1)),
    "adamw": adamw,
    "gpt_step": gpt_step,
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
sys.modules.setdefault("torch_server", sys.modules[__name__])
rows.update(torch_training.rows())
rows["loader"] = loader.loader


def processor_time():
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(r.ru_utime + r.ru_stime for r in both)


now = processor_time if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter


def seconds(run, n):
    start = now()
    run(n)
    return now() - start


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
            os.sched_setaffinity(0, all_cores if word[5] == "any" else {int(word[5])})
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


def peak(row):
    """From the profiler's notes of what was allocated and freed."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        rows[row](0)(3)
    events = [e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        live += e.nbytes()
        most = max(most, live)
    print(most / 2**20)


if sys.argv[1:2] == ["peak"]:
    peak(sys.argv[2])
else:
    main()
