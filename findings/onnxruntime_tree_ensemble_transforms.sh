#!/bin/sh
# TreeEnsemble of ai.onnx.ml 5 takes post_transform as a number; the format says 1 for SOFTMAX and 2 for LOGISTIC. For the
# scores 1 and 0, onnxruntime 1.32.0 gives 0.73 and 0.5 (LOGISTIC) for 1, and 0.73 and 0.27 (SOFTMAX) for 2. The
# older TreeEnsembleRegressor, whose post_transform is a text, gives what the text says.
# Seen on 2026-11-28. Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, checker, helper

said = onnx.defs.get_schema("TreeEnsemble", 5, "ai.onnx.ml").attributes["post_transform"].description
print(said)
assert "'SOFTMAX' (1), 'LOGISTIC' (2)" in said
rows, logistic, softmax = np.array([[-1]], np.float32), [0.7311, 0.5], [0.7311, 0.2689]



def run(model):
    checker.check_model(model)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": rows})[0][0]


def model(node, version):
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)],
                             ir_version=10)


for number, text, seen, older in ((1, "SOFTMAX", logistic, softmax), (2, "LOGISTIC", softmax, logistic)):
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=2, post_transform=number, tree_roots=[0],
        nodes_featureids=[0], nodes_splits=helper.make_tensor("splits", TensorProto.FLOAT, [1], [0.0]),
        nodes_modes=helper.make_tensor("modes", TensorProto.UINT8, [1], [0]), nodes_truenodeids=[0], nodes_trueleafs=[1],
        nodes_falsenodeids=[1], nodes_falseleafs=[1], leaf_targetids=[0, 1],
        leaf_weights=helper.make_tensor("weights", TensorProto.FLOAT, [2], [1.0, 1.0]))
    mine = run(model(node, 5))
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=2, post_transform=text, nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.0, 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0],
        target_nodeids=[1, 2], target_ids=[0, 1], target_weights=[1.0, 1.0])
    old = run(model(node, 3))
    print(number, text, "onnxruntime", onnxruntime.__version__, "TreeEnsemble", mine.tolist(), "TreeEnsembleRegressor", old.tolist())
    assert np.allclose(mine, seen, atol=1e-4) and np.allclose(old, older, atol=1e-4)
print("as seen")
PYTHON
