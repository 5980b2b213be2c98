"""Models that moth exports as ONNX files, in ncnn, by way of pnnx."""
PACKAGES = "ncnn==1.0.20261020 onnxruntime==1.32.0 numpy==2.4.6"
ALONE = "pnnx==20261020"
MEETS = "models and modules of one sample (batch 1) exported at opset 17, converted by pnnx for one size, in float32 on the CPU"
LIMITS = ("pnnx reduces one dimension further (see below): RMSNorm; other values or sizes of GLU, LocalResponseNorm and what has time before "
          "the batch; GRU, LSTM, RNN, thresholds and bicubic Upsample are refused, or end ncnn's process")

import collections
import os
import site
import subprocess
import sys

import numpy as np
import onnxruntime

import moth

# Of the modules, which stand behind the models: each takes a while.
MODULES = ("Conv1d Conv3d ConvTranspose2d GELU SiLU Softmax Linear LSTM_plain GRU_plain RNN_plain MultiheadAttention TransformerEncoderLayer "
           "Upsample_bicubic PixelUnshuffle Conv2d_reflect MaxPool2d LogSoftmax Hardsigmoid CELU ELU").split()
# In a process of its own, which ncnn may end.
RUN = """
import sys
import ncnn
import numpy as np

stem, inputs, outputs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
net = ncnn.Net()
for key in dir(net.opt):
    if key.startswith("use_") and ("fp16" in key or "bf16" in key):
        setattr(net.opt, key, False)
assert net.load_param(stem + ".ncnn.param") == 0 and net.load_model(stem + ".ncnn.bin") == 0
extractor, held = net.create_extractor(), []
for i in range(inputs):
    x = np.ascontiguousarray(np.load(f"{stem}.{i}.npy"))
    held.append(ncnn.Mat(x).clone())  # its own: layers write into their inputs, and a Mat does not hold the array
    extractor.input(f"in{i}", held[-1])
for i in range(outputs):
    status, y = extractor.extract(f"out{i}")
    assert status == 0
    np.save(f"{stem}.out{i}.npy", np.array(y))
"""
pnnx = os.path.join(site.getsitepackages()[0], "pnnx", "pnnx")  # the program itself: its package's needs torch
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
runs, worst, out = 0, 0.0, collections.defaultdict(list)
done = set()
for name, path, inputs, want in moth.exported(17):
    if name in done or (name.startswith("module_") and name[7:] not in MODULES) or any(x.ndim == 0 or x.dtype != np.float32 for x in inputs):
        continue
    done.add(name)
    session = onnxruntime.InferenceSession(path, options)
    inputs = [x[:1] for x in inputs]  # of one sample: ncnn has no batches
    try:
        want = session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs)})
    except Exception:  # a first dimension that is no batch
        done.discard(name)
        continue
    stem = path[:-5]
    shapes = ",".join(f"[{','.join(map(str, x.shape))}]f32" for x in inputs)
    try:
        made = subprocess.run([pnnx, path, "inputshape=" + shapes, "fp16=0"], cwd=moth.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    except subprocess.TimeoutExpired:
        out["pnnx does not return"].append(name)
        continue
    if made.returncode != 0 or not os.path.exists(stem + ".ncnn.param"):
        out["pnnx ends without a model"].append(name)
        continue
    for i, x in enumerate(inputs):
        np.save(f"{stem}.{i}.npy", x[0])
    ran = subprocess.run([sys.executable, "-c", RUN, stem, str(len(inputs)), str(len(want))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if ran.returncode != 0:
        out["ncnn ends" if ran.returncode < 0 else "ncnn refuses it"].append(name)
        continue
    results = [np.load(f"{stem}.out{i}.npy") for i in range(len(want))]
    error = max(moth.off(y.reshape(w.shape), w) if y.size == w.size else float("inf") for y, w in zip(results, want))
    if error > 1e-3:
        out["other values"].append(f"{name} ({error:.1e})")
        continue
    worst = max(worst, error)
    runs += 1
for why, names in out.items():
    print(f"  {why}:", ", ".join(names))
moth.expect(runs >= 40, f"only {runs} models")
moth.end(f"{runs} of {len(done)} models, largest error {worst:.1e}")
