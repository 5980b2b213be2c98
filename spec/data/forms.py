# Makes lua/moth/data/forms_data.lua: canonical decompositions, combining classes, lower case, and categories of Unicode, as
# python3 has them. python3 spec/data/forms.py
import os
import sys
import textwrap
import unicodedata as u

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def words(name, list):
    body = textwrap.wrap(" ".join(list) + " ", 112, break_long_words=False)
    return "M.%s =\n%s\n" % (name, "\n".join('  %s"%s "' % (".. " if i else "", line.strip()) for i, line in enumerate(body)))


def ranges(keep):
    out, last, start = [], 0, None
    for c in list(range(0x110000)) + [0x110001]:
        yes = c < 0x110000 and not 0xD800 <= c < 0xE000 and keep(chr(c))
        if yes and start is None:
            start = c
        elif not yes and start is not None:
            out.append("%d" % (start - last) + ("+%d" % (c - 1 - start) if c - 1 > start else ""))
            last, start = c - 1, None
    return out


def decompositions():
    out, last = [], 0
    for c in POINTS:
        d = u.decomposition(chr(c))
        if not d or d[0] == "<":
            continue
        parts = [int(x, 16) for x in d.split()]
        back = u.normalize("NFC", "".join(map(chr, parts))) == chr(c)
        out.append("%d%s%s" % (c - last, "=" if back else "-", ",".join(map(str, parts))))
        last = c
    return out


def classes():
    out, last = [], 0
    for c in POINTS:
        k = u.combining(chr(c))
        if k:
            out.append("%d=%d" % (c - last, k))
            last = c
    return out


def lower():
    out, last, step = [], 0, None
    for c in POINTS:
        low = chr(c).lower()
        if low != chr(c) and len(low) == 1:
            out.append("%d=%d" % (c - last, ord(low) - c))
            last = c
    return out


here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "..", "..", "lua", "moth", "data", "forms_data.lua"), "w") as f:
    f.write("-- Made by spec/data/forms.py of Unicode %s. Distances are from the entry before.\n" % u.unidata_version)
    f.write("local M = {}\n\n-- distance, = (composed again) or -, the parts\n" + words("decompositions", decompositions()))
    f.write("\n-- distance=combining class\n" + words("classes", classes()))
    f.write("\n-- distance=what is added for lower case\n" + words("lower", lower()))
    f.write("\n-- ranges: distance+length less one\n" + words("marks", ranges(lambda c: u.category(c) == "Mn")))
    f.write("\n" + words("punctuation", ranges(lambda c: u.category(c)[0] == "P")))
    f.write("\n" + words("control", ranges(lambda c: u.category(c) in ("Cc", "Cf", "Co"))))
    f.write("\nreturn M\n")
