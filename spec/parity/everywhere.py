"""Runs STEM.onnx of spec/parity/everywhere.lua by onnxruntime; prints the largest error: everywhere.py STEM"""
import sys

import numpy as np
import onnx
import onnxruntime

stem = sys.argv[1]
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
worst = 0.0
try:
    onnx.checker.check_model(f"{stem}.onnx")
    session = onnxruntime.InferenceSession(f"{stem}.onnx", options)
    inputs = {v.name: np.load(f"{stem}.in{i + 1}.npy") for i, v in enumerate(session.get_inputs())}
    for i, got in enumerate(session.run(None, inputs)):
        want = np.load(f"{stem}.out{i + 1}.npy")
        if got.shape != want.shape or got.dtype != want.dtype:
            raise ValueError(f"result {i + 1}: {got.dtype} {got.shape}, moth's {want.dtype} {want.shape}")
        error = float(np.abs(got.astype("f8") - want).max(initial=0) / np.abs(want).max(initial=1e-30))
        worst = error if not error <= worst else worst
    print(f"{worst:.3g}")
except Exception as error:  # the table has a line for it
    print(str(error).split("\n")[0][:200])
