#!/bin/sh
# ONNX's ReduceL1, ReduceLogSum and ReduceLogSumExp with the attribute axes (opsets up to 17): OpenVINO 2026.4.1 reduces all
# dimensions, whatever the axes are, without a word: of a 3 x 4 tensor and axes = [1] it gives one number instead of three.
# ReduceSum's other kin (L2, SumSquare, Mean, Max, Min, Prod) are right, and so are these three at opset 18, where the axes
# are an input.
# Seen on 2026-11-28. Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, checker, helper, numpy_helper

path, x = sys.argv[1] + "/x.onnx", np.arange(12, dtype="f4").reshape(3, 4) / 10
core = openvino.Core()
print("OpenVINO", importlib.metadata.version("openvino"))
for op in "L1 LogSum LogSumExp L2 SumSquare Mean Max Min Prod".split():
    for opset in (13, 17, 18):
        axes = [numpy_helper.from_array(np.array([1]), "axes")] if opset == 18 else []
        node = helper.make_node("Reduce" + op, ["x", "axes"] if axes else ["x"], ["y"], keepdims=0,
                                **({} if axes else {"axes": [1]}))
        graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])], axes)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
        checker.check_model(path, full_check=True)
        want = onnxruntime.InferenceSession(path).run(None, {"x": x})[0]
        got = core.compile_model(path, "CPU")(x)[0]
        wrong = op in ("L1", "LogSum", "LogSumExp") and opset < 18
        print("Reduce" + op, "opset", opset, got.tolist(), "onnxruntime", want.tolist())
        assert want.shape == (3,) and got.shape == (() if wrong else (3,))
        assert wrong or np.allclose(got, want, rtol=1e-2)
print("as seen")
PYTHON
