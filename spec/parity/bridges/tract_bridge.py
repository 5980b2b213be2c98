"""Models that moth exports as ONNX files, in tract."""
PACKAGES = "tract==0.23.9 numpy==2.4.6"
MEETS = "models and modules exported at opset 17, each at two sizes"
LIMITS = ("layers that run backward: tract computes `direction = \"reverse\"` forward (see below); it refuses `Loop`, `Pad` of the "
          "mode wrap, and what else is counted")

import numpy as np
import tract

import moth

runs, worst, refused = 0, 0.0, {}
for name, path, inputs, want in moth.exported(17):
    if name in ("gru", "lstm") or name.endswith("_two"):  # a direction is a node; tract runs the second one forward
        continue
    try:
        model = tract.onnx().load(path)
        for i, x in enumerate(inputs):
            model.set_input_fact(i, f"{','.join(map(str, x.shape))},{'i64' if x.dtype == np.int64 else 'f32'}")
        model.analyse()
        got = model.into_model().into_runnable().run(inputs)
        for g, w in zip(got, want, strict=True):
            g = g.to_numpy()
            error = moth.off(g, w)
            moth.expect(error < 1e-4, f"{name}: {g.shape}, not {w.shape}, error {error}")
            worst = max(worst, error)
        runs += 1
    except Exception as error:  # each file is judged by itself
        refused.setdefault(str(error), []).append(name)
for why, names in refused.items():
    print("  refused:", ", ".join(sorted(set(names)))[:200], why[:300].replace("\n", " "))
moth.end(f"{runs} runs, largest error {worst:.1e}; {sum(map(len, refused.values()))} runs refused")
