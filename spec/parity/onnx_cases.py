"""Writes the node cases of ONNX as files: onnx_cases.py FOLDER. For each a line of FOLDER/list.txt: name, tolerances,
kinds of the inputs, kinds of the results; its model and values are FOLDER/NAME.onnx, NAME.in1, NAME.out1, ..."""
import os
import sys
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

warnings.filterwarnings("ignore")
folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)


def message(value, info):
    """The message of a value, and its kind."""
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        kind = {onnx.TensorProto: "tensor", onnx.SequenceProto: "sequence", onnx.OptionalProto: "optional"}[type(value)]
        return value, kind
    kind = info.type.WhichOneof("value")
    if kind == "optional_type":
        inner = info.type.optional_type.elem_type.WhichOneof("value")
        if value is not None:
            return (numpy_helper.from_list(value), "sequence") if inner == "sequence_type" else \
                (numpy_helper.from_array(np.asarray(value)), "tensor")
        return numpy_helper.from_optional(None, dtype=onnx.OptionalProto.TENSOR), "optional"
    if kind == "sequence_type" or isinstance(value, list):
        return numpy_helper.from_list([np.asarray(v) for v in value]), "sequence"
    return numpy_helper.from_array(np.asarray(value)), "tensor"


with open(f"{folder}/list.txt", "w") as listing:
    for case in collect_testcases(None):
        with open(f"{folder}/{case.name}.onnx", "wb") as file:
            file.write(case.model.SerializeToString())
        graph = case.model.graph
        inputs, outputs = case.data_sets[0]
        kinds = {"in": [], "out": []}
        for values, infos, what in ((inputs, graph.input, "in"), (outputs, graph.output, "out")):
            for i, value in enumerate(values):
                made, kind = message(value, infos[i])
                kinds[what].append(kind)
                with open(f"{folder}/{case.name}.{what}{i + 1}", "wb") as file:
                    file.write(made.SerializeToString())
        listing.write(f"{case.name} {case.rtol} {case.atol} {','.join(kinds['in'])}; {','.join(kinds['out'])};\n")
