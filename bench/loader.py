"""PyTorch's side of bench/loader.lua: a row of torch_server.py."""
import torch
from torch.utils.data import DataLoader, Dataset

N = 20000


class Small(Dataset):
    def __init__(self):
        self.x = torch.randint(0, 256, (N, 28, 28), dtype=torch.uint8)
        self.y = torch.randint(0, 10, (N,))

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.x[i].float().div_(255).sub_(0.28).div_(0.35), self.y[i]


def loader(workers):
    data = Small()

    def run(n):
        for _ in range(n):
            count = 0
            for x, _ in DataLoader(data, batch_size=64, shuffle=True, num_workers=workers):
                count += x.shape[0]
            assert count == N
    return run
