"""torch.compile on the cases of bench/generated.lua: lines "name seconds", of the processor."""
import re
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

only, threads, dropout = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(threads)
COLUMNS = 1024
w, b = torch.randn(COLUMNS), torch.randn(COLUMNS)


def bias_relu_backward(g, y):
    d = g * (y > 0)
    return d, d.sum(0)


def adamw(p, g, m, v):
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.mul_(0.999).addcdiv_(m, v.sqrt().add_(1e-8), value=-0.001)


def norm_gelu(x):
    return F.gelu(F.layer_norm(x, (COLUMNS,), w, b))


KERNELS = [
    ("chain", 1, lambda x: (x * 2 + 1).tanh() * x.sigmoid() - x * x / 2),
    ("relu_sum", 1, lambda x: (x * 2 + 1).relu().sum()),
    ("softmax", 1, lambda x: F.softmax(x, 1)),
    ("norm_gelu", 1, norm_gelu),
    ("norm_gelu_dropout", 1, lambda x: F.dropout(norm_gelu(x), 0.1)),
    ("bias_relu_backward", 2, bias_relu_backward),
    ("adamw", 4, adamw),
]


def perceptron():
    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Dropout(dropout), nn.Linear(1024, 1024), nn.ReLU(),
                          nn.Linear(1024, 10))
    x, y = torch.randn(256, 784), torch.randint(0, 10, (256,))
    return model, lambda: F.cross_entropy(model(x), y)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(dropout)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.attn(self.ln_1(x)).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(n, t, c)))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh")))


def gpt():
    wte, wpe = nn.Embedding(1000, 256), nn.Embedding(128, 256)
    blocks, norm, drop = nn.Sequential(*[Block(256, 4) for _ in range(4)]), nn.LayerNorm(256), nn.Dropout(dropout)
    model = nn.ModuleList([wte, wpe, blocks, norm])
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, 0, 0.02)
    ids = torch.randint(0, 1000, (4, 128))

    def loss():
        x = norm(blocks(drop(wte(ids) + wpe(torch.arange(128)))))
        return F.cross_entropy(F.linear(x, wte.weight).view(-1, 1000), ids.view(-1))
    return model, loss


def vit():
    patches = nn.Conv2d(3, 192, 8, stride=8)
    encoder = nn.Sequential(*[nn.TransformerEncoderLayer(192, 3, 768, dropout, "gelu", batch_first=True,
                                                         norm_first=True) for _ in range(4)])
    norm, head = nn.LayerNorm(192), nn.Linear(192, 10)
    x, y = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
    return nn.ModuleList([patches, encoder, norm, head]), lambda: F.cross_entropy(
        head(norm(encoder(patches(x).flatten(2).transpose(1, 2))).mean(1)), y)


def resnet():
    def block(c):
        return nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
                             nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c))
    stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
    blocks, head = nn.ModuleList([block(32) for _ in range(3)]), nn.Linear(32, 10)
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def loss():
        h = stem(x)
        for one in blocks:
            h = (one(h) + h).relu()
        return F.cross_entropy(head(h.mean((2, 3))), y)
    return nn.ModuleList([stem, blocks, head]), loss


def seconds(f, runs):
    for _ in range(4):
        f()
    best = 1e9
    for _ in range(21):
        start = time.process_time()
        for _ in range(runs):
            f()
        best = min(best, (time.process_time() - start) / runs)
    return best


for rows in (256, 4096):
    for name, count, fn in KERNELS:
        if re.search(only, f"{name}_{rows}"):
            torch._dynamo.reset()
            args, fast = [torch.rand(rows, COLUMNS) for _ in range(count)], torch.compile(fn, dynamic=False)
            with torch.no_grad():
                print(f"{name}_{rows}", seconds(lambda: fast(*args), 20 if rows == 256 else 3), flush=True)
for name, make in (("mlp", perceptron), ("gpt", gpt), ("vit", vit), ("resnet", resnet)):
    if re.search(only, f"step_{name}"):
        torch._dynamo.reset()
        model, loss = make()
        optimizer, fast = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), torch.compile(loss)

        def step():
            optimizer.zero_grad()
            fast().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1)
            optimizer.step()
        print(f"step_{name}", seconds(step, 1), flush=True)
