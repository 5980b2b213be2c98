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


def conv(dtype, n, c, side, k, window, stride, both):
    n, c, side, k, window, stride, both = map(int, (n, c, side, k, window, stride, both))
    x, w = random((n, c, side, side), dtype), random((k, c, window, window), dtype)
    x.requires_grad_(bool(both))
    w.requires_grad_(bool(both))
    grad = torch.randn_like(F.conv2d(x, w, None, stride, (window - 1) // 2)) if both else None

    def step():
        x.grad = w.grad = None
        y = F.conv2d(x, w, None, stride, (window - 1) // 2)
        if both:
            y.backward(grad)
    return step


def attention(dtype, b, h, t, d, both, beside):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    both = both == "1"
    q, k, v = (random((int(b), int(h), int(t), int(d)), dtype).requires_grad_(both) for _ in range(3))
    grad = torch.randn_like(q)
    every = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]

    def step():
        q.grad = k.grad = v.grad = None
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION] if beside == "cudnn" else every):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if both:
            y.backward(grad)
    return step


class Block(torch.nn.Module):
    def __init__(self, heads, d):
        super().__init__()
        nn = torch.nn
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.c_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    def __init__(self, vocabulary, layers, heads, d, positions):
        super().__init__()
        nn = torch.nn
        self.wte, self.wpe = nn.Embedding(vocabulary, d), nn.Embedding(positions, d)
        self.h = nn.ModuleList(Block(heads, d) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            h = block(h)
        logits = F.linear(self.ln_f(h), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


def gpt(vocabulary, layers, heads, d, positions, batch, how):
    vocabulary, positions, batch = int(vocabulary), int(positions), int(batch)
    model = GPT(vocabulary, int(layers), int(heads), int(d), positions).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, fused=True)
    if how == "compiled":
        model = torch.compile(model)
    x, y = (torch.randint(0, vocabulary, (batch, positions), device=device) for _ in range(2))

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
    return step


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
    "conv": conv,
    "attention": attention,
    "gpt": gpt,
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
