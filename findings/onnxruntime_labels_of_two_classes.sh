#!/bin/sh
# An ONNX TreeEnsembleClassifier with the labels 10 and 20, a tree whose leaves have weights for both classes (0.8 and 0.2;
# 0.2 and 0.8), and rows for each leaf: the format says that the label is that of the top class, so 10 and 20, as ONNX's own
# reference gives. onnxruntime 1.32.0 gives 1 for both rows, with the right scores beside them: neither a label of the
# model nor the larger score; with texts as labels it gives the second one for both.
# Seen on 2026-11-28. Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator

rows = np.array([[-1], [1]], np.float32)


def model(**labels):
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.0, 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], class_treeids=[0, 0, 0, 0],
        class_nodeids=[1, 1, 2, 2], class_ids=[0, 1, 0, 1], class_weights=[0.8, 0.2, 0.2, 0.8], **labels)
    kind = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1])],
                              [helper.make_tensor_value_info("label", kind, ["N"]),
                               helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 2])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
                             ir_version=8)
    checker.check_model(made)
    return made


for labels, seen, reference in (({"classlabels_int64s": [10, 20]}, [1, 1], [10, 20]),
                                ({"classlabels_strings": ["no", "yes"]}, ["yes", "yes"], ["no", "yes"])):
    made = model(**labels)
    label, scores = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": rows})
    told = list(ReferenceEvaluator(made).run(None, {"x": rows})[0])
    print(labels, "onnxruntime", onnxruntime.__version__, label.tolist(), scores.tolist(), "; reference", [str(v) for v in told])
    assert label.tolist() == seen and told == reference
    assert np.allclose(scores, [[0.8, 0.2], [0.2, 0.8]])
print("as seen")
PYTHON
