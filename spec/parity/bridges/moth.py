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


def end(figures):
    """Says what differs, or the figures."""
    for what in wrong[:20]:
        print("  differs:", str(what)[:300])
    print(figures if not wrong else f"{len(wrong)} differ; {figures}")
    sys.exit(len(wrong) > 0)
