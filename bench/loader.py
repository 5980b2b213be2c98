"""PyTorch's side of bench/loader.lua: prints the samples per second of each epoch. Usage: loader.py WORKERS EPOCHS"""
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
x = torch.randint(0, 256, (20000, 28, 28), dtype=torch.uint8)
y = torch.randint(0, 10, (20000,))


class Small(Dataset):
    def __len__(self):
        return 20000

    def __getitem__(self, i):
        return x[i].float().div_(255).sub_(0.28).div_(0.35), y[i]


for _ in range(int(sys.argv[2])):
    start, n = time.time(), 0
    for a, b in DataLoader(Small(), batch_size=64, shuffle=True, num_workers=int(sys.argv[1])):
        n += a.shape[0]
    print(n / (time.time() - start), flush=True)
