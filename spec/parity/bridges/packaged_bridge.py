"""ONNX models that ship in Python packages: text in images, voice, pitch, detection, kinds of files."""
PACKAGES = "onnxruntime==1.32.0 numpy==2.4.6"
ALONE = "rapidocr-onnxruntime==1.4.4 silero-vad==6.2.3 nudenet==3.4.2 basic-pitch==0.4.0 magika==1.0.3"
MEETS = ("real, trained models as they are in the packages, on random inputs: a session's values against onnxruntime's, twice, and "
         "whether `moth.onnx.load` makes a program of them without being told sizes")
LIMITS = ("no program, but a session: silero_vad (`If` on the sampling rate, whose branches need other lengths), "
          "ch_PP-OCRv4_rec_infer (its height has to be 48, which the file does not say: `dims`)")

import glob
import json
import os
import site

import numpy as np
import onnxruntime

import moth

KINDS = {"float": "f4", "int64": "i8", "int32": "i4"}
OPEN = {"det": [1, 3, 64, 96], "rec": [1, 3, 48, 160], "cls": [1, 3, 48, 192], "320n": [1, 3, 320, 320]}
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
g, cases, want = np.random.default_rng(0), [], {}
for package in ("rapidocr_onnxruntime", "silero_vad", "nudenet", "basic_pitch", "magika"):
    for path in sorted(glob.glob(f"{site.getsitepackages()[0]}/{package}/**/*.onnx", recursive=True)):
        name = os.path.basename(path)[:-5]
        session = onnxruntime.InferenceSession(path, options)
        sizes = next((v for k, v in OPEN.items() if k in name), None)
        given = {}
        for i in session.get_inputs():
            tall = {"input": [1, 512], "state": [2, 1, 128]}.get(i.name, [1] * 4) if package == "silero_vad" else sizes or [1] * 4
            if name == "silero_vad_16k_sequence":
                tall = [1, 576]
            shape = [n if isinstance(n, int) else tall[k] for k, n in enumerate(i.shape)]
            kind = KINDS[i.type[7:-1]]
            if kind == "i8":
                given[i.name] = np.full(shape, 16000, kind)
            elif kind == "i4":
                given[i.name] = g.integers(0, 256, shape, kind)
            else:
                given[i.name] = (g.standard_normal(shape) * 0.3).astype(kind)
        stem = f"{moth.folder}/{len(cases)}"
        for k, x in enumerate(given.values()):
            np.save(f"{stem}.in{k + 1}.npy", x)
        want[name] = session.run(None, given)
        cases.append({"name": name, "file": path, "stem": stem, "inputs": list(given), "results": len(want[name])})
json.dump(cases, open(moth.folder + "/cases.json", "w"))
said = moth.result("packaged", moth.folder)
worst, programs = 0.0, 0
for case in cases:
    name, told = case["name"], said[case["name"]]
    moth.expect(told["session"] is True, f"{name}: {told['session']}")
    for k, w in enumerate(want[name] if told["session"] is True else []):
        got = np.load(f"{case['stem']}.out{k + 1}.npy")
        error = moth.off(got, w)
        moth.expect(error < 1e-3, f"{name}: result {k + 1} is off by {error}")
        worst = max(worst, error)
    programs += told["program"] is True
    if told["program"] is not True:
        print(f"  no program of {name}: {told['program'][:300]}")
moth.end(f"{len(cases)} models, largest error {worst:.1e}; {programs} load as programs without sizes")
