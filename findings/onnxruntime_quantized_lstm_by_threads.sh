#!/bin/sh
# An LSTM of a batch of three, quantized by onnxruntime's quantize_dynamic (DynamicQuantizeLSTM): onnxruntime 1.32.0 gives
# other results with two threads than with one, by about 0.001, as much as quantization itself changes; so does each number
# of threads up to the batch. The hidden state is quantized by the range of those rows that a thread has. The same LSTM in
# floats differs by nothing, and a batch of one does not differ.
# Seen on 2026-11-28. Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON' 2>/dev/null
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

folder, g, inputs, hidden, steps = sys.argv[1], np.random.default_rng(0), 6, 5, 7


def constant(name, *shape):
    return helper.make_tensor(name, TensorProto.FLOAT, shape, g.standard_normal(shape).astype("f4").tobytes(), raw=True)


node = helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=hidden)
weights = [constant("W", 1, 4 * hidden, inputs), constant("R", 1, 4 * hidden, hidden), constant("B", 1, 8 * hidden)]
graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, "N", inputs])],
                          [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder + "/float.onnx")
quantize_dynamic(folder + "/float.onnx", folder + "/int8.onnx", weight_type=QuantType.QInt8, op_types_to_quantize=["LSTM"])
assert [n.op_type for n in onnx.load(folder + "/int8.onnx").graph.node] == ["DynamicQuantizeLSTM"]


def run(name, x, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options, ["CPUExecutionProvider"]).run(None, {"x": x})[0]


for batch in (1, 3):
    x = g.standard_normal((steps, batch, inputs)).astype("f4")
    differ = {name: float(np.abs(run(name, x, 2) - run(name, x, 1)).max()) for name in ("float", "int8")}
    print("onnxruntime", onnxruntime.__version__, "batch", batch, "two threads against one:", differ)
    assert differ["float"] < 1e-6
    assert differ["int8"] < 1e-6 if batch == 1 else differ["int8"] > 1e-4
    assert np.array_equal(run("int8", x, 2), run("int8", x, 2))
print("as seen")
PYTHON
