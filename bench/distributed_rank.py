"""One rank of bench/distributed.lua in PyTorch: see distributed_rank.lua."""
import os
import time

begun = time.perf_counter()
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
before = time.perf_counter()
dist.init_process_group("gloo")
dist.barrier()
joined = time.perf_counter() - before


def say(name, value):
    if rank == 0:
        print(f"{name}\t{value}", flush=True)


say("init", joined)
say("start", time.perf_counter() - begun)
if os.environ.get("ONLY") == "init":
    dist.destroy_process_group()
    raise SystemExit


def timed(n, fn):
    fn()
    fn()
    times = []
    for _ in range(n):
        dist.barrier()
        t = time.perf_counter()
        fn()
        times.append(time.perf_counter() - t)
    times.sort()
    return times[(n - 1) // 2], times[0]


def once(fn):
    dist.barrier()
    t = time.perf_counter()
    fn()
    return time.perf_counter() - t


def hidden():
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(9)))
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    x = torch.randn(512, 512)
    buckets = [torch.ones(2**18) for _ in range(9)]

    def step():
        ddp(x).sum().backward()

    def step_alone():
        with ddp.no_sync():
            step()

    def send():
        for b in buckets:
            dist.all_reduce(b)

    for _ in range(3):
        step()
    times = [(once(step_alone), once(step), once(send)) for _ in range(25)]
    alone, both, sent = (min(t) for t in zip(*times))
    say("step alone", alone)
    say("step with", both)
    say("communication", sent)
    say("hidden share", 1 - (both - alone) / sent)


if os.environ.get("ONLY") == "hidden":
    hidden()
    dist.destroy_process_group()
    raise SystemExit

for name, size in (("4 KB", 4096), ("1 MB", 2**20), ("25 MB", 25 * 2**20)):
    t = torch.ones(size // 4)
    cpu = time.process_time()
    n = 15 if size > 2**21 else 100

    def call():
        dist.all_reduce(t)
        t.fill_(1)

    middle, best = timed(n, call)
    say("all_reduce " + name, middle)
    say("best all_reduce " + name, best)
    say("cpu all_reduce " + name, (time.process_time() - cpu) / (n + 2) / size * 2**30)

model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
                      nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Dropout(0.25),
                      nn.Linear(128, 10)).to(memory_format=torch.channels_last)
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3, fused=True)
x = torch.rand(64, 1, 28, 28).to(memory_format=torch.channels_last)
labels = torch.randint(0, 10, (64,))


def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(x), labels).backward()
    optimizer.step()


say("CNN step", timed(15, step)[0])
dist.destroy_process_group()
