"""Where moth meets the programs of others: make bridges (BRIDGE="numpy gguf" for some).

Usage: run.py BUILD [NAME…]. Makes a venv in BUILD/bridges, installs what each bridge pins, runs it, and writes its row of
the table in docs/bridges.md. A bridge is NAME_bridge.py, with NAME_bridge.lua for moth's part; it begins with these
constants:

    PACKAGES   what pip installs, with versions
    MEETS      what is compared
    LIMITS     what does not meet, and why
    ALONE      packages that are installed without what they need, for the files in them (may be left out)

Its last line on stdout is the row's figures. It ends with an error where something differs."""
import ast
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "../../../docs/bridges.md")
BEGIN, END = "<!-- the table: make bridges -->", "<!-- its end -->"


def constants(name):
    tree = ast.parse(open(os.path.join(HERE, name + "_bridge.py")).read())
    return {s.targets[0].id: ast.literal_eval(s.value) for s in tree.body
            if isinstance(s, ast.Assign) and getattr(s.targets[0], "id", "") in ("PACKAGES", "MEETS", "LIMITS", "ALONE")}


def row(name, figures):
    c = constants(name)
    versions = ", ".join(p.replace("==", " ") for p in (c["PACKAGES"] + " " + c.get("ALONE", "")).split())
    return f"| {name} | {versions} | {c['MEETS']} | {figures} | {c['LIMITS'] or 'nothing found'} |"


def write(rows):
    text = open(PAGE).read()
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    lines = {line.split(" | ")[0][2:]: line for line in old.strip().split("\n")[2:]}
    lines.update(rows)
    table = ["| with | versions | what meets | figures | what does not, and why |", "|---|---|---|---|---|"]
    there = [k for k in sorted(lines) if os.path.exists(os.path.join(HERE, k + "_bridge.py"))]
    open(PAGE, "w").write(head + BEGIN + "\n" + "\n".join(table + [lines[k] for k in there]) + "\n" + END + tail)


def main(build, names):
    build = os.path.abspath(build)
    venv = os.path.join(build, "bridges", "venv")
    if not os.path.exists(venv + "/bin/python"):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    every = sorted(f[:-10] for f in os.listdir(HERE) if f.endswith("_bridge.py"))
    unknown = [n for n in names if n not in every]
    if unknown:
        sys.exit(f"bridges: there is no {', '.join(unknown)}; there are {', '.join(every)}")
    rows, failed = {}, []
    for name in names or every:
        for key, options in (("PACKAGES", []), ("ALONE", ["--no-deps"])):
            packages = constants(name).get(key, "").split()
            if packages:
                pip = [venv + "/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
                subprocess.run([*pip, *options, *packages], check=True)
        folder = os.path.join(build, "bridges", name)
        os.makedirs(folder, exist_ok=True)
        environment = dict(os.environ, MOTH_PROGRAM=os.path.join(build, "moth"), PYTHONWARNINGS="ignore")
        done = subprocess.run([venv + "/bin/python", os.path.join(HERE, name + "_bridge.py"), folder], env=environment,
                              stdout=subprocess.PIPE, text=True)
        said = done.stdout.strip().split("\n")
        print(f"{name}: {said[-1]}" if done.returncode == 0 else "\n".join(said + [f"{name}: FAILED"]), flush=True)
        if done.returncode == 0:
            rows[name] = row(name, said[-1])
        else:
            failed.append(name)
    write(rows)
    sys.exit(f"bridges: {', '.join(failed)} failed" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
