"""Training steps of bench/training.lua in PyTorch: each function takes nothing and returns step(). Convolutional networks
are in the layout that is the faster one of PyTorch's two here (channels_last), optimizers are fused."""
import torch

nn = torch.nn
F = torch.nn.functional


def adam(net, **options):
    return torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, **options)


def classifier(net, x, classes=10):
    optimizer = adam(net)
    labels = torch.randint(0, classes, (x.shape[0],))

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def mlp():
    return classifier(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(),
                                    nn.Dropout(0.2), nn.Linear(256, 10)), torch.rand(64, 784))


def cnn():
    return classifier(nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                    nn.Linear(3136, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10)),
                      torch.rand(64, 1, 28, 28))


def recurrent(kind, inputs, hidden, batch, time):
    def make():
        net = getattr(nn, kind.upper())(inputs, hidden, 2, batch_first=True)
        x = torch.randn(batch, time, inputs, requires_grad=True)
        g = torch.randn(batch, time, hidden)

        def step():
            net.zero_grad()
            x.grad = None
            y, _ = net(x)
            y.backward(g)
            return 0
        return step
    return make


class Basic(nn.Module):
    def __init__(self, c, k, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k)
        self.conv2, self.bn2 = nn.Conv2d(k, k, 3, 1, 1, bias=False), nn.BatchNorm2d(k)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Identity()
        if stride != 1 or c != k:
            self.down = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.down(x))


def resnet18():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for k, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Basic(c, k, stride), Basic(k, k, 1)]
        c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def resnet(batch, size):
    def make():
        net = resnet18().to(memory_format=torch.channels_last)
        return classifier(net, torch.randn(batch, 3, size, size).contiguous(memory_format=torch.channels_last))
    return make


class Encoder(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, size, patch, layers, heads, width):
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(Encoder(width, heads) for _ in range(layers)))
        self.ln, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 10)

    def forward(self, x):
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.ln(self.layers(x))[:, 0])


def vit():
    return classifier(ViT(64, 8, 6, 6, 384), torch.randn(8, 3, 64, 64))


def gpt():
    from torch_server import gpt_step
    run = gpt_step(0)
    return lambda: run(1)


def decode(rows, count=16):
    def make():
        from torch_server import GPT
        net = GPT(50257, 12, 12, 768, 1024).eval()
        prompt = torch.randint(0, 50257, (rows, 16))

        def block(layer, x, cache, past):
            b, t, c = x.shape
            qkv = layer.c_attn(layer.ln_1(x)).view(b, t, 3, layer.heads, c // layer.heads).permute(2, 0, 3, 1, 4)
            cache[:, :, :, past:past + t] = qkv[1:]
            k, v = cache[:, :, :, :past + t]
            y = F.scaled_dot_product_attention(qkv[0], k, v, is_causal=past == 0)
            x = x + layer.out(y.transpose(1, 2).reshape(b, t, c))
            return x + layer.c_proj(F.gelu(layer.c_fc(layer.ln_2(x)), approximate="tanh"))

        @torch.inference_mode()
        def step():
            caches = [torch.empty(2, rows, 12, 16 + count, 64) for _ in net.h]
            ids, new, past = prompt, prompt, 0
            for _ in range(count):
                x = net.wte(new) + net.wpe(torch.arange(past, past + new.shape[1]))
                for layer, cache in zip(net.h, caches):
                    x = block(layer, x, cache, past)
                past += new.shape[1]
                new = F.linear(net.ln_f(x[:, -1:]), net.wte.weight).argmax(-1)
                ids = torch.cat((ids, new), 1)
            return ids.shape[1]
        return step
    return make


def dcgan():
    c, latent, batch = 32, 100, 32

    def up(k, j, stride, pad):
        return nn.ConvTranspose2d(k, j, 4, stride, pad, bias=False)

    def down(j, k):
        return nn.Conv2d(j, k, 4, 2, 1, bias=False)
    g = nn.Sequential(up(latent, 4 * c, 1, 0), nn.BatchNorm2d(4 * c), nn.ReLU(True), up(4 * c, 2 * c, 2, 1),
                      nn.BatchNorm2d(2 * c), nn.ReLU(True), up(2 * c, c, 2, 1), nn.BatchNorm2d(c), nn.ReLU(True),
                      up(c, 3, 2, 1), nn.Tanh()).to(memory_format=torch.channels_last)
    d = nn.Sequential(down(3, c), nn.LeakyReLU(0.2, True), down(c, 2 * c), nn.BatchNorm2d(2 * c),
                      nn.LeakyReLU(0.2, True), down(2 * c, 4 * c), nn.BatchNorm2d(4 * c), nn.LeakyReLU(0.2, True),
                      nn.Conv2d(4 * c, 1, 4, bias=False), nn.Flatten(0)).to(memory_format=torch.channels_last)
    og, od = adam(g, betas=(0.5, 0.999)), adam(d, betas=(0.5, 0.999))
    real = (torch.rand(batch, 3, 32, 32) * 2 - 1).contiguous(memory_format=torch.channels_last)
    ones, zeros = torch.ones(batch), torch.zeros(batch)
    bce = F.binary_cross_entropy_with_logits

    def step():
        drawn = g(torch.randn(batch, latent, 1, 1))
        od.zero_grad()
        loss = bce(d(real), ones * 0.9) + bce(d(drawn.detach()), zeros)
        loss.backward()
        od.step()
        og.zero_grad()
        bce(d(drawn), ones).backward()
        og.step()
        return loss.item()
    return step


steps = {"mlp": mlp, "cnn": cnn, "resnet_32": resnet(32, 32), "resnet_224": resnet(4, 224), "vit": vit, "gpt": gpt,
         "dcgan": dcgan, "decode_1": decode(1), "decode_8": decode(8)}
for kind in ("lstm", "gru"):
    for shape in ((128, 256, 16, 32), (32, 64, 16, 32), (32, 128, 32, 64), (512, 512, 32, 32)):
        steps["_".join(map(str, (kind, *shape)))] = recurrent(kind, *shape)


def rows():
    def row(make):
        def build(_):
            step = make()

            def run(n):
                for _ in range(n):
                    step()
            return run
        return build
    return {"step_" + name: row(make) for name, make in steps.items()}
