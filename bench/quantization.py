"""Times in ms of PyTorch's dynamic int8 linear, 1024x1024, one thread, by rows: the faster of two engines."""
import time

import torch

torch.set_num_threads(1)
linear = torch.nn.Sequential(torch.nn.Linear(1024, 1024))
best = {}
for engine in ("fbgemm", "x86"):
    torch.backends.quantized.engine = engine
    model = torch.ao.quantization.quantize_dynamic(linear, {torch.nn.Linear}, dtype=torch.qint8)
    with torch.no_grad():
        for rows in (1, 16, 128, 1024):
            x = torch.randn(rows, 1024)
            model(x)
            for _ in range(max(30, 4000 // rows)):
                start = time.process_time()
                model(x)
                best[rows] = min(best.get(rows, 1e9), time.process_time() - start)
for rows, seconds in best.items():
    print(rows, "%.4f" % (seconds * 1e3))
