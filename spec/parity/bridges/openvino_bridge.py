"""Models that moth exports as ONNX files, in OpenVINO on the CPU."""
PACKAGES = "openvino==2026.4.1 numpy==2.4.6"
MEETS = "models and modules exported at opset 17, each at two sizes, in float32 on the CPU"
LIMITS = ("`logsumexp` along a dimension: OpenVINO reduces all (see below; opset 18 is right); `nn.Upsample` by `bicubic`: its "
          "`compile_model` does not return (left out); it refuses `Pad` of the mode wrap")

import numpy as np
import openvino

import moth

core = openvino.Core()
core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
runs, worst, refused = 0, 0.0, {}
compiled = {}
for name, path, inputs, want in moth.exported(17):
    if name == "module_Upsample_bicubic":  # compile_model does not return
        continue
    try:
        if path not in compiled:
            compiled[path] = core.compile_model(path, "CPU")
        model = compiled[path]
        got = model({i: x for i, x in enumerate(inputs)})
        for i, w in enumerate(want):
            if name == "several" and i == 13:  # logsumexp along a dimension
                continue
            error = moth.off(got[i].reshape(w.shape) if w.size == got[i].size == 1 else got[i], w)
            moth.expect(error < 1e-4, f"{name}: {got[i].shape}, not {w.shape}, error {error}")
            worst = max(worst, error)
        runs += 1
    except Exception as error:  # each file is judged by itself
        refused.setdefault(str(error), []).append(name)
for why, names in refused.items():
    print("  refused:", ", ".join(sorted(set(names)))[:200], why[:300].replace("\n", " "))
moth.end(f"{runs} runs, largest error {worst:.1e}; {sum(map(len, refused.values()))} runs refused")
