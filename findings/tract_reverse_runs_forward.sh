#!/bin/sh
# ONNX's RNN, GRU and LSTM with direction = "reverse": tract 0.23.9 computes them forward, without a word; the values are
# those of the same weights with direction = "forward", and not onnxruntime's. direction = "bidirectional", whose second half
# runs backward, is right.
# Seen on 2026-11-28. Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tract==0.23.9 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
import tract
from onnx import TensorProto, checker, helper, numpy_helper

g, hidden, inputs, steps = np.random.default_rng(0), 4, 3, 5


def random(*shape):
    return (g.standard_normal(shape) * 0.5).astype("f4")


x = random(steps, 1, inputs)
for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    all_weights = random(2, gates * hidden, inputs), random(2, gates * hidden, hidden), random(2, 2 * gates * hidden)
    results = {}
    for direction, n in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
        node = helper.make_node(op, ["x", "W", "R", "B"], ["y"], hidden_size=hidden, direction=direction)
        weights = [numpy_helper.from_array(w[:n], name) for w, name in zip(all_weights, "WRB")]
        graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, [steps, n, 1, hidden])], weights)
        path = f"{sys.argv[1]}/{op}_{direction}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        checker.check_model(path, full_check=True)
        results[direction] = (tract.onnx().load(path).into_model().into_runnable().run([x])[0].to_numpy(),
                              onnxruntime.InferenceSession(path).run(None, {"x": x})[0])
    off = {d: float(np.abs(a - b).max()) for d, (a, b) in results.items()}
    same = np.allclose(results["reverse"][0], results["forward"][0], atol=1e-5)
    print(op, "tract", tract.version(), "against onnxruntime:", off, "; reverse as forward:", same)
    assert same and off["reverse"] > 0.05 and off["forward"] < 1e-5 and off["bidirectional"] < 1e-5
print("as seen")
PYTHON
