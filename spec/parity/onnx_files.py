"""Checks the files of spec/parity/onnx_files.lua and compares onnxruntime's results with moth's: onnx_files.py FOLDER OPSET"""
import sys

import numpy as np
import onnx
import onnxruntime

folder, opset = sys.argv[1:3]
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
same = wrong = 0
for line in open(f"{folder}/list.txt"):
    name, run, *rest = line.split()
    worst = "not exported: " + " ".join(rest)
    if run != "0":
        path = f"{folder}/{name}.onnx"
        try:
            onnx.checker.check_model(onnx.load(path), full_check=True)
            session = onnxruntime.InferenceSession(path, options)
            inputs = {v.name: np.load(f"{folder}/{name}.{run}.in{i + 1}.npy")
                      for i, v in enumerate(session.get_inputs())}
            worst = 0.0
            for i, got in enumerate(session.run(None, inputs)):
                want = np.load(f"{folder}/{name}.{run}.out{i + 1}.npy")
                if got.shape != want.shape or got.dtype != want.dtype:
                    raise ValueError(f"result {i + 1}: {got.dtype} {got.shape}, moth's {want.dtype} {want.shape}")
                off = np.abs(got.astype("f8") - want) / (1e-2 + np.abs(want))
                worst = max(worst, float(off.max(initial=0)))
        except Exception as error:  # each file is judged by itself
            worst = str(error).split("\n")[0][:200]
    if isinstance(worst, float) and worst < 1e-4:
        same += 1
    else:
        wrong += 1
        print(f"onnx opset {opset}: {name}, run {run}: {worst}")
print(f"onnx opset {opset}: {same} runs agree with onnxruntime, {wrong} differ")
sys.exit(wrong > 0)
