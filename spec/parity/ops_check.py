"""The second half of ops.py: the results of ops.lua against those of PyTorch.

    python3 ops_check.py DIR [-v]

Ends with a table of the differences by their reasons (reasons.py), and with status 1 where one has none."""
import collections
import math
import os
import pickle
import sys

import torch

from ops import DTYPES, NAMES, POSITIONS, unpacked
import reasons


def results_of(directory):
    data = open(os.path.join(directory, "results.bin"), "rb").read()
    at, out = 0, {}

    def line():
        nonlocal at
        end = data.index(b"\n", at)
        text = data[at:end].decode("utf-8", "replace")
        at = end + 1
        return text

    def tensors():
        nonlocal at
        n = int(line())
        if n < 0:
            return None
        found = []
        for _ in range(n):
            words = line().split()
            dtype, shape = words[0], [int(w) for w in words[2:]]
            size = int(words[1])
            raw = data[at:at + size]
            at += size + 1
            if dtype not in NAMES:
                found.append(dtype)
                continue
            kind = NAMES[dtype]
            if size == 0:
                t = torch.empty(shape, dtype=kind)
            else:
                t = torch.frombuffer(bytearray(raw), dtype=kind).reshape(shape)
            found.append(t)
        return found

    while at < len(data):
        head = line().split(" ", 2)
        if head[1] == "error":
            out[int(head[0])] = ("error", head[2].replace("\\n", "\n"))
        else:
            out[int(head[0])] = ("ok", tensors(), tensors(), head[2] if len(head) > 2 else "", tensors())
    return out


def both_wide(got, want):
    """Two tensors as float64, parts of complex numbers apart; a part of a NaN counts nothing."""
    if not got.is_complex() and not want.is_complex():
        return got.to(torch.float64), want.to(torch.float64)
    a, b = got.to(torch.complex128), want.to(torch.complex128)
    unknown = a.isnan() & b.isnan()
    return [torch.view_as_real(x.masked_fill(unknown, 0)) for x in (a, b)]


def close(a, b, tolerance):
    return torch.allclose(a, b, rtol=max(tolerance, 1e-12), atol=tolerance, equal_nan=True)


def differs(got, want, tolerance):
    if isinstance(got, str):
        return "a %s" % got
    if list(got.shape) != list(want.shape):
        return "shape %s, PyTorch %s" % (list(got.shape), list(want.shape))
    a, b = both_wide(got, want)
    if not close(a, b, tolerance):
        off = (a - b).abs()
        wrong = ~close_each(a, b, tolerance)
        return "values off by %.3g; got %s, PyTorch %s" % (
            off[off == off].max().item() if (off == off).any() else math.nan, a[wrong][:6].tolist(), b[wrong][:6].tolist())
    return None


def nearer(got, want, exact, tolerance):
    """Whether moth's result in a small dtype is as near to float64's as PyTorch's: both are rounded on the way."""
    kinds = {t is not None and (t.is_complex(), t.is_floating_point(), t.shape) for t in (got, want, exact)}
    if len(kinds) > 1 or False in kinds or not (want.is_floating_point() or want.is_complex()):
        return False
    a, e = both_wide(got, exact)
    b, _ = both_wide(want, exact)
    finite = a.isfinite() & b.isfinite() & e.isfinite()
    same = (a == e) | (a == b) | (a.isnan() & e.isnan())
    # beyond the dtype's range: what float64 still has may be an infinity in either
    large = torch.finfo(want.dtype).max
    same |= (e.abs() >= large * 0.99) | (~b.isfinite() & close_each(a, e, tolerance))
    if not (finite | same).all():
        return False
    a, b, e = [torch.where(finite, x, 0) for x in (a, b, e)]
    limit = torch.maximum((b - e).abs().amax() if b.numel() else torch.tensor(0.0), torch.tensor(0.0))
    return bool((((a - e).abs() <= limit) | close_each(a, e, tolerance)).all())


def close_each(a, b, tolerance):
    return torch.isclose(a, b, rtol=max(tolerance, 1e-12), atol=tolerance, equal_nan=True)


def same_elements(got, want, given):
    """Whether two lists of positions (from 0) take equal elements of an input along a dimension."""
    t, dim = unpacked(given[0]), given[1]
    if t.dim() == 0:
        t = t.reshape(1)
    got, want = [(x if x.dim() == t.dim() else x.unsqueeze(dim)).long() for x in (got, want)]
    if got.shape != want.shape or (got < 0).any() or (got >= t.shape[dim]).any():
        return False
    a, b = t.gather(dim, got), t.gather(dim, want)
    return bool(((a == b) | (a != a) & (b != b)).all())


def compare(entry, got):
    """None, or the difference. A second value: "rounding" or "ties", where moth's result is as right as PyTorch's."""
    if got[0] == "error" and got[1].startswith("moth has no "):
        return got[1]
    if "error" in entry:
        return None if got[0] == "error" else "no error where PyTorch says: " + entry["error"][:120]
    if got[0] == "error":
        return "refused: " + got[1]
    want, first, second = [part and [unpacked(p) for p in part] for part in entry["want"]]
    wide = entry.get("exact") and [unpacked(p) for p in entry["exact"]]
    tolerance = DTYPES[entry["dtype"]][1]
    if len(got[1]) != len(want):
        return "%d results, PyTorch %d" % (len(got[1]), len(want))
    positions = POSITIONS.get(entry["op"], [])
    if entry["op"].startswith("unique") and not entry["inverse"]:
        positions = []
    for k, (a, b) in enumerate(zip(got[1], want)):
        is_position = torch.is_tensor(a) and (k in positions or -1 in positions) and not a.dtype.is_floating_point
        if is_position:
            a = torch.where(a > 0, a - 1, a) if entry["op"] == "nonzero_static" else a - 1
        if entry["random"]:
            if not torch.is_tensor(a) or list(a.shape) != list(b.shape):
                return "result %d: shape" % (k + 1)
        else:
            what = differs(a, b, max(tolerance, DTYPES[b.dtype][1]))
            if what and is_position and entry["ties"] and same_elements(a, b, entry["ties"]):
                what = None
            if what and wide and len(wide) == len(want) and torch.is_tensor(a) and nearer(
                    a, b, wide[k], max(tolerance, DTYPES[b.dtype][1])):
                what = None
            if what:
                return "result %d: %s" % (k + 1, what)
        if a.dtype != b.dtype:
            return "result %d: dtype %s, PyTorch %s" % (k + 1, a.dtype, b.dtype)
    if entry["random"]:
        return None
    for what, mine, theirs in (("gradient", got[2], first), ("second gradient", got[4], second)):
        if theirs is None:
            continue
        if mine is None and not got[3] and not any(t.any() for t in theirs):
            continue  # not recorded, as the result does not depend on the inputs
        if mine is None:
            return "no %s: %s" % (what, got[3])
        for k, (a, b) in enumerate(zip(mine, theirs)):
            wrong = differs(a, b, tolerance * 10)
            if wrong and list(a.shape) == list(b.shape):
                x, y = both_wide(a, b)
                # the other way round is a difference
                if x.isfinite().all() and close(torch.where(y.isfinite(), x, 0), torch.where(y.isfinite(), y, 0), tolerance * 10):
                    return "%s %d: finite where PyTorch's is not; got %s, PyTorch %s" % (
                        what, k + 1, x.flatten()[:6].tolist(), y.flatten()[:6].tolist())
            if wrong:
                return "%s %d: %s" % (what, k + 1, wrong)
    return None


def check(directory, verbose):
    expected = pickle.load(open(os.path.join(directory, "expected.pkl"), "rb"))
    got, table, notes = results_of(directory), {}, {}
    causes, unexplained, agree_all = collections.Counter(), 0, 0
    for number, entry in enumerate(expected):
        row = table.setdefault(entry["name"], [0, 0, 0])  # agree, explained, unexplained
        what = "not run: " + entry["skip"] if "skip" in entry else compare(entry, got.get(number, ("error", "the run ended before")))
        cause = what and reasons.of(entry, what)
        row[2 if what and not cause else 1 if what else 0] += 1
        if cause:
            causes[cause] += 1
        if what and (verbose or not cause):
            dtype = str(entry["dtype"]).replace("torch.", "")
            notes.setdefault(entry["name"], []).append("%s%s: %s\n      %s" % (
                "" if cause else "UNEXPLAINED ", dtype, what, entry.get("text", "")))
    for name in sorted(table):
        if verbose or table[name][2]:
            print("%-50s %5d agree %5d explained %5d unexplained" % (name, *table[name]))
            for note in notes.get(name, [])[: 400 if verbose else 3]:
                print("    " + note)
    total = [sum(row[k] for row in table.values()) for k in range(3)]
    names = {}
    for entry in expected:
        names.setdefault(entry["op"], []).append(entry["name"])
    there = {op for op, full in names.items() if any(table[f][0] for f in full)}
    print("\nSamples that differ, by the reason:")
    for cause, n in causes.most_common():
        print("%6d  %s" % (n, cause))
    print("\nNames of PyTorch that moth has not:")
    unknown = 0
    for name in sorted(set(names) - there):
        why = reasons.MISSING.get(name)
        unknown += why is None
        print("%-55s %s" % (name, why or "UNEXPLAINED"))
    stale = []
    if len(names) > 600:  # a run of all
        stale = ["no sample is of the reason: " + r.why for r in reasons.REASONS if not causes[r.why]]
        stale += ["is there: " + name for name in reasons.MISSING if name in there]
    for line in stale:
        print("STALE in reasons.py, " + line)
    print("\n%d names of PyTorch's, %d of them are there; samples: %d agree, %d differ for a reason, %d UNEXPLAINED"
          % (len(names), len(there), *total))
    return 1 if total[2] or unknown or stale else 0


if __name__ == "__main__":
    sys.exit(check(sys.argv[1], "-v" in sys.argv))
