"""Exported models beside onnxruntime, one row, one thread, in turn (see bench/RESULTS.md).

    python3 bench/inference.py [--moth=build/moth] [--folder=/tmp/inference] [--rounds=9] [--how=session,plan,edge] [model ...]

Each way runs in a process of its own; a round gives each of them some runs, in turn. Times are of the process, in ms: the median
of a round's runs, and then of the rounds; ratios are medians of the ratios within a round. Memory is the peak of the process
above that of one that has only started.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

MODELS = ["mobilenet_v2", "resnet18", "resnet50", "unet", "bert"]


def peak():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM:"))


def serve(folder, name):
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    began = peak()
    session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 999, given.shape) if "int" in given.type else rng.standard_normal(given.shape).astype("float32")
    for _ in range(3):
        session.run(None, {given.name: x})
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.thread_time()
            session.run(None, {given.name: x})
            times.append((time.thread_time() - start) * 1e3)
        print(f"{statistics.median(times):.4f} {peak() - began:.1f}", flush=True)


class Worker:
    def __init__(self, command):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.child.stdout.readline()
        assert line.strip() == "ready", (command, line)
        self.peak = 0

    def time(self, n):
        self.child.stdin.write(f"{n}\n")
        self.child.stdin.flush()
        ms, self.peak = map(float, self.child.stdout.readline().split())
        return ms

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--moth", default="build/moth")
    p.add_argument("--folder", default="/tmp/inference")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--how", default="session,plan,edge")
    p.add_argument("--serve")
    p.add_argument("models", nargs="*")
    o = p.parse_args()
    if o.serve:
        return serve(o.folder, o.serve)
    hows = o.how.split(",")
    names = o.models or MODELS
    os.makedirs(o.folder, exist_ok=True)
    moths = o.moth.split(",")
    missing = [n for n in names if not os.path.exists(f"{o.folder}/{n}.onnx")]
    if missing:
        subprocess.run([moths[0], "bench/inference.lua", "export", o.folder, *missing], check=True)
    ways = [(how + (f" {m}" if len(moths) > 1 else ""), m, how) for m in moths for how in hows]
    print("load", os.getloadavg()[0])
    print("| model | onnxruntime ms | " + " | ".join(w[0] for w in ways) + " | peak MB: onnxruntime, " + ", ".join(w[0] for w in ways) + " |")
    print("|---" * (3 + len(ways)) + "|")
    for name in names:
        workers = [Worker([sys.executable, __file__, "--folder", o.folder, "--serve", name])]
        workers += [Worker([m, "bench/inference.lua", "run", o.folder, name, how]) for _, m, how in ways]
        n = max(2, int(60 / workers[0].time(3)))
        rounds = [[w.time(n) for w in workers] for _ in range(o.rounds)]
        cells = [f"{statistics.median(r[0] for r in rounds):.2f}"]
        for i in range(1, len(workers)):
            ratio = statistics.median(r[i] / r[0] for r in rounds)
            cells.append(f"{statistics.median(r[i] for r in rounds):.2f} ({ratio:.2f})")
        print(f"| {name} | " + " | ".join(cells) + " | " + ", ".join(f"{w.peak:.0f}" for w in workers) + " |", flush=True)
        for w in workers:
            w.close()


if __name__ == "__main__":
    main()
