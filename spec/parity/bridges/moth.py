"""What the bridges share: moth's program, and the count of what differs."""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
folder = sys.argv[1]
wrong = []


def run(name, *args):
    """Runs NAME_bridge.lua by moth; its output."""
    done = subprocess.run([os.environ["MOTH_PROGRAM"], os.path.join(HERE, name + "_bridge.lua"), *map(str, args)],
                          stdout=subprocess.PIPE, encoding="utf-8", errors="replace")
    if done.returncode != 0:
        print(done.stdout)
        sys.exit(f"{name}_bridge.lua ended with {done.returncode}")
    return done.stdout


def result(name, *args):
    """The same; its last line as JSON."""
    return json.loads(run(name, *args).strip().split("\n")[-1])


def expect(holds, what):
    if not holds:
        wrong.append(what)


def lists(name, got, want, inputs):
    """Compares lists of results by what they are of; how many there were."""
    for what in want:
        bad = [(inputs[i % len(inputs)], a, b) for i, (a, b) in enumerate(zip(got[what], want[what])) if a != b and not (a == {} and b == [])]
        expect(not bad and len(got[what]) == len(want[what]), f"{name}: {what} of {len(bad)}: {bad[:1]}")
    return sum(map(len, want.values()))


def end(figures):
    """Says what differs, or the figures."""
    for what in wrong[:20]:
        print("  differs:", str(what)[:300])
    print(figures if not wrong else f"{len(wrong)} differ; {figures}")
    sys.exit(len(wrong) > 0)


def exported(opset):
    """Runs of the models and modules that spec/parity/onnx_files.lua exports: (name, path, inputs, results)."""
    import numpy as np

    done = subprocess.run([os.environ["MOTH_PROGRAM"], os.path.join(HERE, "../onnx_files.lua"), folder, str(opset)])
    if done.returncode != 0:
        sys.exit(f"onnx_files.lua ended with {done.returncode}")
    for line in open(f"{folder}/list.txt"):
        name, run, *counts = line.split()
        if run == "0":
            expect(False, f"{name}: not exported: {' '.join(counts)}")
            continue
        n, m = map(int, counts)
        stem = f"{folder}/{name}.{run}"
        yield (name, f"{folder}/{name}.onnx", [np.load(f"{stem}.in{i + 1}.npy") for i in range(n)],
               [np.load(f"{stem}.out{i + 1}.npy") for i in range(m)])


def off(got, want):
    """The largest error, of sizes from 0.01 on; infinity where shapes differ."""
    import numpy as np

    got = np.asarray(got)
    if got.shape != want.shape:
        return float("inf")
    return float((np.abs(got.astype("f8") - want) / (1e-2 + np.abs(want))).max(initial=0))
