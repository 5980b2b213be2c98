#!/bin/sh
# A reduction of an ONNX file, converted by pnnx 20261020 for ncnn, which has no batch dimension: the axis is not moved, and
# the dimension behind it is reduced. A mean over the last dimension, 3 of [1,2,3,4], becomes one over axis 3 of [2,3,4],
# which is not there: nothing is reduced. Axis 1 becomes axis 1 of [2,3,4].
# Seen on 2026-11-28 (ncnn 1.0.20261020). Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ncnn==1.0.20261020 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --no-deps pnnx==20261020 # the program alone; its package's needs torch
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import os
import site
import subprocess

import ncnn
import numpy as np
import onnx
from onnx import TensorProto, helper

pnnx = os.path.join(site.getsitepackages()[0], "pnnx", "pnnx")
x = np.arange(24, dtype="f4").reshape(2, 3, 4)
for axis in (1, 2, 3):
    sizes = [1 if d == axis else n for d, n in enumerate((1, 2, 3, 4))]
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[axis], keepdims=1)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 3, 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, "m.onnx")
    subprocess.run([pnnx, "m.onnx", "inputshape=[1,2,3,4]f32", "fp16=0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    net = ncnn.Net()
    assert net.load_param("m.ncnn.param") == 0 and net.load_model("m.ncnn.bin") == 0
    extractor, given = net.create_extractor(), ncnn.Mat(x).clone()
    extractor.input("in0", given)
    status, y = extractor.extract("out0")
    print("axis", axis, "of [1,2,3,4]: expected", sizes[1:], "got", list(np.array(y).shape))
    further = x.mean(axis=axis, keepdims=True) if axis < 3 else x
    assert status == 0 and np.allclose(np.array(y), further)
print("as seen")
PYTHON
