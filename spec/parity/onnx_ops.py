"""Runs the files of spec/parity/onnx_ops.lua by onnxruntime and compares with moth's results: onnx_ops.py FOLDER"""
import sys

import numpy as np
import onnxruntime

folder = sys.argv[1]
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
wrong, names, refused = {}, set(), {}
for line in open(f"{folder}/list.txt"):
    name = line.strip()
    op = name.rsplit(".", 1)[0]
    names.add(op)
    try:
        session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options)
        inputs = {v.name: np.load(f"{folder}/{name}.in{i + 1}.npy") for i, v in enumerate(session.get_inputs())}
        results = session.run(None, inputs)
    except Exception as error:  # some operators are not there for some types
        refused[op] = str(error).split("\n")[0][:160]
        continue
    for i, got in enumerate(results):
        want = np.load(f"{folder}/{name}.out{i + 1}.npy")
        if got.shape != want.shape or not np.allclose(got.astype("f8"), want.astype("f8"), 1e-3, 1e-4, equal_nan=True):
            wrong[op] = f"result {i + 1} differs: {got.dtype} {got.shape}, moth's {want.dtype} {want.shape}"
for op, why in sorted(wrong.items()):
    print(f"onnx op {op}: {why}")
for op, why in sorted(refused.items()):
    print(f"onnx op {op}: onnxruntime does not run it: {why}")
same = len(names - set(wrong) - set(refused))
print(f"onnx ops: {same} of {len(names)} agree with onnxruntime, {len(wrong)} differ, {len(refused)} it does not run")
sys.exit(bool(wrong))
