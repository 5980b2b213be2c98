"""Models that moth exports, in onnxruntime, after ONNX's checker and its strict inference of shapes."""
PACKAGES = "onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6"
MEETS = ("models and modules at opsets 17 to 23, each at two sizes: the checker, shape inference in strict mode, whose shapes are "
         "those that come out, and the values; files of an opset newer than moth knows, read where the operator did not change")
LIMITS = "`make parity` compares more: all ops that can be written, ONNX's node cases, files of PyTorch's exporters"

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, shape_inference

import moth

options = onnxruntime.SessionOptions()
options.log_severity_level = 3
runs, worst, inferred = 0, 0.0, {}
for opset in (17, 18, 20, 21, 23):
    for name, path, inputs, want in moth.exported(opset):
        try:
            if (name, opset) not in inferred:
                model = onnx.load(path)
                onnx.checker.check_model(model, full_check=True)
                made = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
                inferred[name, opset] = [[d.dim_value if d.HasField("dim_value") else None for d in v.type.tensor_type.shape.dim]
                                         for v in made.graph.output]
            session = onnxruntime.InferenceSession(path, options)
            got = session.run(None, {v.name: x for v, x in zip(session.get_inputs(), inputs, strict=True)})
            for g, w, shape in zip(got, want, inferred[name, opset], strict=True):
                error = moth.off(g, w)
                moth.expect(g.dtype == w.dtype and error < 1e-4, f"{name}, opset {opset}: {g.dtype} {g.shape} {error}")
                fits = len(shape) == g.ndim and all(s in (None, n) for s, n in zip(shape, g.shape))
                moth.expect(fits, f"{name}, opset {opset}: {g.shape}, inferred {shape}")
                worst = max(worst, error)
            runs += 1
        except Exception as error:  # each file is judged by itself
            moth.expect(False, f"{name}, opset {opset}: {str(error)[:200]}")

# An opset beyond those that are known.
newest, files = onnx.defs.onnx_opset_version(), []
for k, op in enumerate(("Relu", "Softmax", "MatMul", "Add")):
    n = 2 if op in ("MatMul", "Add") else 1
    values = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [4, 4]) for i in range(n)]
    graph = helper.make_graph([helper.make_node(op, [v.name for v in values], ["y"])], "g", values,
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])])
    for version in (newest, newest + 3):
        files.append(f"{op} {version}")
        made = helper.make_model(graph, ir_version=10)
        made.opset_import[0].version = version
        open(f"{moth.folder}/new {op} {version}.onnx", "wb").write(made.SerializeToString())
said = moth.result("onnxruntime", moth.folder, *files)
for name in files:
    moth.expect(said[name] is True or name.split()[1] in said[name], f"{name}: {said[name]}")
read = sum(said[name] is True for name in files)
moth.end(f"{runs} runs, largest error {worst:.1e}; {len(inferred)} files checked and inferred; {read} of {len(files)} files of opsets "
         f"{newest} and {newest + 3} read")
