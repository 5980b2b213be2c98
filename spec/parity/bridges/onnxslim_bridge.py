"""moth's ONNX files made smaller by onnxslim and quantized by onnxruntime's tools, read back by moth."""
PACKAGES = "onnxslim==0.1.98 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 sympy==1.14.0"
MEETS = ("models and modules exported at opset 17, slimmed by onnxslim, and with linear layers quantized by quantize_dynamic: moth's "
         "session on the new files against onnxruntime's on the same")
LIMITS = "what each tool refuses is counted"

import json
import logging
import os

import numpy as np
import onnx
import onnxruntime
import onnxslim
from onnxruntime.quantization import quantize_dynamic

import moth

logging.getLogger().setLevel(logging.ERROR)  # a hint for each file
onnxruntime.set_default_logger_severity(4)
cases, want, refused, done = [], {}, {}, set()
for name, path, inputs, _ in moth.exported(17):
    if name in done:
        continue
    done.add(name)
    for tool in ("slim", "dynamic"):
        out = f"{moth.folder}/{name}.{tool}.onnx"
        try:
            if tool == "slim":
                onnx.save(onnxslim.slim(path), out)
            else:
                quantize_dynamic(path, out)
            session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
            names = [i.name for i in session.get_inputs()]
            if len(names) != len(inputs):  # one that no result needs is gone
                continue
            stem = f"{moth.folder}/{name}.{tool}"
            for k, x in enumerate(inputs):
                np.save(f"{stem}.in{k + 1}.npy", x)
            want[f"{name} {tool}"] = session.run(None, dict(zip(names, inputs)))
            cases.append({"name": f"{name} {tool}", "file": out, "stem": stem, "inputs": names})
        except Exception as error:  # each file is judged by itself
            refused.setdefault(f"{tool}: {error}"[:200], []).append(name)
with open(f"{moth.folder}/cases.json", "w") as f:
    json.dump(cases, f)
said = moth.result("packaged", moth.folder)
worst = 0.0
for case in cases:
    ran = said[case["name"]]["session"]
    moth.expect(ran is True, f"{case['name']}: {ran}")
    if ran is not True:
        continue
    for k, w in enumerate(want[case["name"]]):
        path = f"{case['stem']}.out{k + 1}.npy"
        g = np.load(path) if os.path.exists(path) else np.zeros(0)
        error = moth.off(g, w) if g.shape == w.shape else float("inf")
        moth.expect(error < 1e-3, f"{case['name']}: {g.shape}, not {w.shape}, error {error}")
        worst = max(worst, error)
for why, names in refused.items():
    print("  refused:", ", ".join(names)[:200], why.replace("\n", " "))
moth.end(f"{len(cases)} files, largest error {worst:.1e}; {sum(map(len, refused.values()))} refused by the tools")
