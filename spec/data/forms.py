# Makes lua/moth/data/forms_data.lua: categories, canonical decompositions, combining classes and lower case of
# Unicode, as the tokenizers package has them (the classes: as python3 has them); and forms_compatible.lua, what
# characters are in NFKD alone. python3 spec/data/forms.py [compatible: that file alone]
import os
import sys
import textwrap
import unicodedata as u

from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()


def words(name, list):
    body = textwrap.wrap(" ".join(list) + " ", 112, break_long_words=False)
    return "M.%s =\n%s\n" % (name, "\n".join('  %s"%s "' % (".. " if i else "", line.strip()) for i, line in enumerate(body)))


def members(prop):
    text = "".join(map(chr, POINTS))
    split = pre_tokenizers.Split(Regex(r"[^\p{%s}]" % prop), "removed")
    return [c for part, _ in split.pre_tokenize_str(text) for c in map(ord, part)]


def categories():
    of = [""] * 0x110000
    for k, name in enumerate(CATEGORIES):
        for c in members(name):
            of[c] = chr(65 + k) if k < 26 else chr(97 + k - 26)
    out, c = [], 0
    while c < 0x110000:
        d = c
        while d < 0x110000 and of[d] == of[c]:
            d += 1
        out.append((of[c] or "-") + (str(d - c) if d - c > 1 else ""))
        c = d
    # Runs in words of about 10.
    return ["".join(out[i : i + 10]) for i in range(0, len(out), 10)]


def decompositions():
    out, last, nfd, nfc = [], 0, normalizers.NFD(), normalizers.NFC()
    for c in POINTS:
        full = nfd.normalize_str(chr(c))
        if full == chr(c) or 0xAC00 <= c < 0xD7A4:
            continue
        back = nfc.normalize_str(full) == chr(c)
        parts = [full] if len(full) == 1 else [nfc.normalize_str(full[:-1]), full[-1]]
        if len(parts[0]) > 1:  # its beginning is no character by itself
            parts, back = list(full), False
        out.append("%d%s%s" % (c - last, "=" if back else "-", ",".join(str(ord(p)) for p in parts)))
        last = c
    return out


def classes():
    out, last = [], 0
    for c in POINTS:
        k = u.combining(chr(c))  # the package may be of an older Unicode: it leaves newer marks where they are
        if k and (k >= 240 or normalizers.NFD().normalize_str(chr(0x345) + chr(c)) != chr(0x345) + chr(c)):
            out.append("%d=%d" % (c - last, k))
            last = c
    return out


def lower():
    out, last, step = [], 0, normalizers.Lowercase()
    for c in POINTS:
        low = step.normalize_str(chr(c))
        if low != chr(c) and len(low) == 1:
            out.append("%d=%d" % (c - last, ord(low) - c))
            last = c
    return out


def compatible():
    out, last, one, all = [], 0, normalizers.NFD(), normalizers.NFKD()
    for c in POINTS:
        full = all.normalize_str(chr(c))
        if full != one.normalize_str(chr(c)):
            out.append("%d-%s" % (c - last, ",".join(str(ord(p)) for p in full)))
            last = c
    return out


here = os.path.dirname(os.path.abspath(__file__))
folder = os.path.join(here, "..", "..", "lua", "moth", "data")
with open(os.path.join(folder, "forms_compatible.lua"), "w") as f:
    f.write("-- Made by spec/data/forms.py of the tokenizers package. What NFKD makes of characters that NFD leaves, or makes\n")
    f.write("-- something else of: distance from the entry before, all the parts.\nlocal M = {}\n\n")
    f.write("M.compatible = [[\n%s\n]]\n" % "\n".join(textwrap.wrap(" ".join(compatible()), 116, break_on_hyphens=False)) + "\nreturn M\n")
if "compatible" in sys.argv:
    sys.exit()
with open(os.path.join(folder, "forms_data.lua"), "w") as f:
    f.write("-- Made by spec/data/forms.py of the tokenizers package. Distances are from the entry before.\nlocal M = {}\n")
    f.write("\n-- the general categories, each a letter of the text\nM.names = \"%s\"\n" % " ".join(CATEGORIES))
    f.write("-- the letter of a category (-: none), and how many code points in a row have it (left out: one)\n")
    f.write(words("categories", categories()))
    f.write("\n-- distance, = (composed again) or -, the parts\n" + words("decompositions", decompositions()))
    f.write("\n-- distance=combining class\n" + words("classes", classes()))
    f.write("\n-- distance=what is added for lower case\n" + words("lower", lower()))
    f.write("\nreturn M\n")
