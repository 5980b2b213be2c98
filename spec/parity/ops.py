"""moth's ops against PyTorch's op database: values, dtypes, shapes, first and second gradients, errors.

    python3 ops.py DIR [name …]         writes DIR/cases.lua and DIR/cases.bin, which ops.lua runs
    python3 ops_check.py DIR [-v]       compares DIR/results.bin, and prints one table

Without names: all of the database. Differences that are meant stand in reasons.py."""
import math
import os
import pickle
import random
import struct
import sys
import types
import warnings

import torch

warnings.simplefilter("ignore")
try:
    import expecttest  # noqa: F401
except ImportError:  # the database's module asks for it, and does not use it here
    stub = types.ModuleType("expecttest")
    stub.TestCase = object
    stub.assert_expected_inline = None
    sys.modules["expecttest"] = stub

SAMPLES = int(os.environ.get("MOTH_CASES", "40"))  # of an op and a dtype
DTYPES = {
    torch.float64: ("float64", 1e-7), torch.float32: ("float32", 1e-4), torch.float16: ("float16", 1e-2),
    torch.bfloat16: ("bfloat16", 5e-2), torch.int64: ("int64", 0), torch.int32: ("int32", 0),
    torch.int16: ("int16", 0), torch.int8: ("int8", 0), torch.uint8: ("uint8", 0), torch.bool: ("bool", 0),
    torch.complex128: ("complex128", 1e-7), torch.complex64: ("complex64", 1e-4),
}
DERIVED = (torch.float64, torch.complex128)  # those whose gradients are compared
NAMES = {name: dtype for dtype, (name, _) in DTYPES.items()}
# Results that are positions, which moth counts from 1 (counted from 0); -1: all.
POSITIONS = {
    "sort": [1], "topk": [1], "kthvalue": [1], "median": [1], "nanmedian": [1], "mode": [1], "cummax": [1], "cummin": [1],
    "max": [1], "min": [1], "argmax": [0], "argmin": [0], "argsort": [0], "nonzero": [-1], "argwhere": [0],
    "searchsorted": [0], "bucketize": [0], "unique": [1], "unique_consecutive": [1], "tril_indices": [0],
    "triu_indices": [0], "unravel_index": [-1], "nonzero_static": [0],
    "masked.argmax": [0], "masked.argmin": [0],
    **{"nn.functional." + kind + "max_pool%dd" % n: [1] for kind in ("", "adaptive_", "fractional_") for n in (1, 2, 3)},
}
# Samples of values alone: random numbers, uninitialised memory.
RANDOM = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "normal", "uniform",
          "rand_like", "randn_like", "randint_like", "randint", "randn", "rand", "bernoulli", "multinomial", "cauchy",
          "exponential", "geometric", "log_normal", "nn.functional.dropout", "nn.functional.dropout2d",
          "nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
          "nn.functional.rrelu", "svd_lowrank", "pca_lowrank"}


# Of equal elements any may come first, if the sort is not stable: where the dimension stands among the arguments.
TIES = {"sort": 0, "argsort": 0, "msort": None, "topk": 1, "kthvalue": 1, "mode": 0}


# Results that are defined up to signs: their absolute values are compared, of the first columns (rows) that the matrix
# determines. Both sides do this to the results, so that gradients fit, too.
SIGNS = {"linalg.eigh": lambda r: (r[0], r[1].abs()), "linalg.eig": lambda r: (r[0], r[1].abs()),
         "linalg.svd": lambda r: (r[0][..., :r[1].shape[-1]].abs(), r[1], r[2][..., :r[1].shape[-1], :].abs()),
         "svd": lambda r: (r[0][..., :r[1].shape[-1]].abs(), r[1], r[2][..., :r[1].shape[-1]].abs())}
# Ops that read one triangle: their inputs are made symmetric (triangular), as PyTorch's own checks do. Else gradients of
# what is not read would be compared.
def symmetric(given, kwargs):
    given[0] = (given[0] + given[0].mH) / 2


def triangular(at):
    def fn(given, kwargs):
        given[at] = given[at].triu() if kwargs.get("upper") else given[at].tril()
    return fn


PREPARED = {"linalg.eigh": symmetric, "linalg.cholesky": symmetric, "linalg.cholesky_ex": symmetric,
            "linalg.eigvalsh": symmetric, "linalg.matrix_sqrth": symmetric,
            "cholesky_solve": triangular(1), "cholesky_inverse": triangular(0)}
# Samples that are arguments of a function of PyTorch's database, which ops.lua has under the same name.
FUNCTIONS = {"linalg.pinv.singular", "linalg.lstsq.grad_oriented", "normal.in_place"}
LARGE = 100000  # elements: samples with more are left out
# Errors for arguments that share memory, which samples do not after they were written to a file.
SHARED = ("unsupported operation", "single memory location")


def is_random(name, sample):
    """Whether the values of a result are random numbers."""
    if name.startswith("nn.functional.fractional_max_pool"):
        return sample.kwargs.get("_random_samples") is None
    if name == "nn.functional.scaled_dot_product_attention":
        return sample.kwargs.get("dropout_p", 0) > 0
    if name == "nn.functional.multi_head_attention_forward":
        return sample.args[9] > 0
    return name in RANDOM


def key_of_moth(key):
    """A key of __getitem__ with positions from 1."""
    if isinstance(key, tuple):
        return tuple(key_of_moth(k) for k in key)
    if isinstance(key, list):
        return key_of_moth(torch.tensor(key))
    if torch.is_tensor(key) and key.dtype != torch.bool:
        return torch.where(key >= 0, key + 1, key)
    return key + 1 if isinstance(key, int) and not isinstance(key, bool) and key >= 0 else key


class Writer:
    def __init__(self, directory):
        self.lua = open(os.path.join(directory, "cases.lua"), "w")
        self.bin = open(os.path.join(directory, "cases.bin"), "wb")
        self.count = 0
        self.lua.write("local case, T, dtype, complex = ...\n")

    def tensor(self, t):
        strided = t.detach().resolve_conj().resolve_neg()
        contiguous = strided.contiguous()
        raw = (contiguous.view(torch.int16) if t.dtype == torch.bfloat16 else contiguous).numpy().tobytes()
        at = self.bin.tell()
        self.bin.write(raw)
        order = sorted(range(t.dim()), key=lambda d: -strided.stride(d))
        return 'T(%d, %d, "%s", {%s}, %s, {%s})' % (
            at, len(raw), DTYPES[t.dtype][0], ", ".join(map(str, t.shape)), "true" if t.requires_grad else "false",
            ", ".join(str(d + 1) for d in order) if not strided.is_contiguous() else "")

    def slice(self, v):  # positions from 1, both ends included
        if v.start is None and v.stop is None and v.step is None:
            return "{}"
        start, stop = v.start or 0, -1 if v.stop is None else v.stop - 1 if v.stop <= 0 else v.stop
        return "{%d, %d, %d}" % (start + (start >= 0), stop, v.step or 1)

    def value(self, v):
        if v is None:
            return "nil"
        if torch.is_tensor(v):
            if v.layout == torch.sparse_csr and v.dim() == 2 and v.dtype in DTYPES:
                parts = [v.crow_indices() + 1, v.col_indices() + 1, v.values().detach()]
                return "moth.sparse_csr_tensor(%s, {%s})" % (", ".join(map(self.tensor, parts)), ", ".join(map(str, v.shape)))
            if v.dtype not in DTYPES or v.layout != torch.strided:
                raise NotImplementedError("a tensor of %s, %s" % (v.dtype, v.layout))
            return self.tensor(v)
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, complex):
            return "complex(%s, %s)" % (self.value(v.real), self.value(v.imag))
        if isinstance(v, slice):
            return self.slice(v)
        if v is Ellipsis:
            return '"..."'
        if isinstance(v, (int, float)):
            if isinstance(v, float):
                if math.isnan(v):
                    return "0/0"
                if math.isinf(v):
                    return "math.huge" if v > 0 else "-math.huge"
                return "%.17g" % v
            return "%d" % v if abs(v) < 2 ** 53 else "%dLL" % v if abs(v) < 2 ** 63 else "%.17g" % v
        if isinstance(v, str):
            return '"%s"' % v
        if isinstance(v, (list, tuple)) and any(x is None for x in v) and any(torch.is_tensor(x) for x in v):
            raise NotImplementedError("a list with None among tensors")
        if isinstance(v, (list, tuple)):  # a size that is None: -1
            sizes = any(x is None for x in v) and not any(torch.is_tensor(x) or isinstance(x, slice) for x in v)
            return "{%s}" % ", ".join("-1" if x is None and sizes else self.value(x) for x in v)
        if isinstance(v, torch.dtype):
            if v not in DTYPES:
                raise NotImplementedError(str(v))
            return 'dtype "%s"' % DTYPES[v][0]
        raise NotImplementedError("an argument that is a %s" % type(v).__name__)

    def case(self, number, name, args, kwargs):
        if kwargs.get("layout", torch.strided) not in (None, torch.strided):
            raise NotImplementedError("the layout " + str(kwargs["layout"]))
        if name == "__getitem__":
            args = [args[0], key_of_moth(args[1] if isinstance(args[1], tuple) else (args[1],))]
        kw = {k: v for k, v in kwargs.items() if k not in ("device", "layout", "pin_memory", "memory_format") and v is not None}
        text = "case(%d, \"%s\", {%s}, %d, {%s})\n" % (
            number, name, ", ".join("[%d] = %s" % (i + 1, self.value(a)) for i, a in enumerate(args)), len(args),
            ", ".join('["%s"] = %s' % (k, self.value(v)) for k, v in kw.items()))
        self.lua.write(text)


def flat(result):
    if result is None:
        return []
    if torch.is_tensor(result):
        return [result]
    if isinstance(result, (list, tuple)):
        return [t for part in result for t in flat(part)]
    kinds = {float: torch.float64, complex: torch.complex128}
    return [torch.tensor(result, dtype=kinds.get(type(result)))]


def leaves(v):
    if torch.is_tensor(v):
        return [v]
    if isinstance(v, (list, tuple)):
        return [t for part in v for t in leaves(part)]
    return []


def weights(t, fn):
    k = torch.arange(1, t.numel() + 1, dtype=torch.float64)
    w = fn(k)
    return (torch.complex(w, 1 / k) if t.is_complex() else w).reshape(t.shape).to(t.dtype)


def weighted(t, fn):
    total = (t * weights(t, fn)).sum()
    return total.real if t.is_complex() else total


def inexact(t):
    return t.is_floating_point() or t.is_complex()


def clone(v):
    if torch.is_tensor(v) and v.layout != torch.strided:
        return v.detach().clone()  # gradients are compared by dense tensors
    if torch.is_tensor(v):
        return v.detach().clone(memory_format=torch.preserve_format).requires_grad_(v.requires_grad)
    if isinstance(v, (list, tuple)):
        return type(v)(clone(x) for x in v) if not isinstance(v, torch.Size) else v
    return v


def packed(t):
    t = t if t.layout == torch.strided else t.to_dense()
    if t.dtype not in DTYPES or t.layout != torch.strided:
        raise NotImplementedError("a result of %s" % t.dtype)
    t = t.resolve_conj().resolve_neg().contiguous()
    return DTYPES[t.dtype][0], (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy()


def unpacked(p):
    t = torch.from_numpy(p[1])
    return t.view(torch.bfloat16) if p[0] == "bfloat16" else t


def run(op, sample):
    """Results, gradients, second gradients (None where there are none)."""
    given, kwargs = [clone(sample.input)] + [clone(a) for a in sample.args], {k: clone(v) for k, v in sample.kwargs.items()}
    names = sorted(k for k, v in kwargs.items() if leaves(v))
    inputs = [t for a in given + [kwargs[k] for k in names] for t in leaves(a) if t.requires_grad]
    if op.name in PREPARED:
        PREPARED[op.name](given, kwargs)
    results = flat(SIGNS.get(op.name, lambda r: r)(op(*given, **kwargs)))
    first = second = None
    floats = [r for r in results if inexact(r) and r.requires_grad]
    if inputs and floats:
        try:
            loss = sum(weighted(r, torch.cos) for r in floats)
            first = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
            if any(g is not None and g.requires_grad for g in first):
                again = sum(weighted(g, torch.sin) for g in first if g is not None and g.requires_grad)
                try:
                    second = torch.autograd.grad(again, inputs, allow_unused=True)
                except RuntimeError:
                    second = None
        except RuntimeError:
            first = None
    zero = [torch.zeros_like(t) for t in inputs]
    first = first and [g if g is not None else z for g, z in zip(first, zero)]
    second = second and [g if g is not None else z for g, z in zip(second, zero)]
    def plain(list_):
        return list_ and [packed(torch.zeros(t.shape, dtype=t.dtype) if t._is_zerotensor() else t.detach()) for t in list_]

    return plain(results), plain(first), plain(second)


def upcast(v):
    """v with wider floats."""
    if torch.is_tensor(v):
        wide = torch.complex128 if v.is_complex() else torch.float64
        return v.detach().to(wide) if inexact(v) else v
    if isinstance(v, (list, tuple)) and not isinstance(v, torch.Size):
        return type(v)(upcast(x) for x in v)
    return v


def exact(op, sample):
    """PyTorch's results in float64, by which both results in a smaller dtype are judged. None where there are none."""
    try:
        torch.manual_seed(1)
        args, kwargs = [upcast(a) for a in [sample.input] + list(sample.args)], dict(sample.kwargs)
        kwargs = {k: upcast(v) for k, v in kwargs.items()}
        if op.name in PREPARED:
            PREPARED[op.name](args, kwargs)
        results = op(*args, **kwargs)
        return [packed(t.detach()) for t in flat(SIGNS.get(op.name, lambda r: r)(results))]
    except Exception:
        return None


def ties(op, sample):
    """Input and dimension of a sort that may change equal elements around."""
    if op.name not in TIES or sample.kwargs.get("stable"):
        return None
    place = TIES[op.name]
    dim = sample.kwargs.get("dim")
    if dim is None and place is not None and len(sample.args) > place:
        dim = sample.args[place]
    return packed(sample.input.detach()), -1 if dim is None else dim


def database(wanted):
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if not wanted or op.name in wanted:
            yield op


def extra(name):
    """Samples beside the database's: without elements, 0-dim, with NaN and infinities, with other strides."""
    nan, inf = math.nan, math.inf
    f = lambda *a, **k: torch.tensor(*a, dtype=torch.float64, **k)
    e, z = torch.zeros(0, dtype=torch.float64), torch.zeros(0, 3, dtype=torch.float64)
    odd = f([[1, nan, -inf, inf, 0, -0.0, 2, 2]])
    t = torch.arange(12, dtype=torch.float64).reshape(3, 4).t() / 7 - 0.5
    return {
        "cummax": [(z, 0), (z, 1), (odd, 1), (t, 0), (f(2.0), 0)], "cummin": [(z, 1), (odd, 1), (t, 1), (f(2.0), 0)],
        "logcumsumexp": [(z, 0), (odd, 1), (t, 0), (f([-inf, -inf, 1.0]), 0), (f(2.0), 0)],
        "mode": [(t, 0), (f(3.0),), (f([3, 1, 1, 3, 2]),)], "msort": [(odd.t(),), (z,)],
        "quantile": [(odd, 0.5), (t, 0.3, 0), (t, f([0.1, 1.0]), 1, True), (f(2.0), 0.5), (f([inf, 1.0]), 0.0)],
        "nanquantile": [(odd, 0.5), (f([nan, nan]), 0.5), (t, 0.3, 0)], "nansum": [(odd,), (e,), (odd, 1, True)],
        "nanmean": [(odd,), (e,), (odd, 1)], "nanmedian": [(odd,), (odd, 1), (t, 0), (f([nan, nan]),), (f([nan, nan]), 0)],
        "histc": [(e,), (t, 5), (t, 5, -1, 1), (f([1.0, 1.0]), 4)], "cov": [(t,), (f([1.0, 2.0]),), (torch.zeros(2, 0).double(),)],
        "corrcoef": [(t,), (odd,)], "unfold": [(t, 0, 2, 1), (t, 1, 3, 1), (f(2.0), 0, 1, 1), (z, 1, 2, 1)],
        "take": [(t, torch.tensor([[0, -1], [5, 2]]))], "diag_embed": [(z,), (t, 1), (t, -1, 0, 2)],
        "rot90": [(t,), (t, 3), (t, -1), (z, 1)], "kron": [(z, t), (t, f(2.0)), (f([1.0, 2]), t)],
        "trapezoid": [(e,), (z,), (t,), (t, f([1.0, 2, 4]))], "cumulative_trapezoid": [(z,), (t,), (f([1.0]),)],
        "heaviside": [(odd, f(0.5))], "fmax": [(odd, odd.flip(1)), (e, f(1.0))], "fmin": [(odd, odd.flip(1))],
        "copysign": [(odd, -odd), (odd, odd.flip(1)), (odd, -1.0)], "signbit": [(odd,), (-odd,)], "hypot": [(odd, odd.flip(1))],
        "xlogy": [(odd, odd.flip(1)), (f([0.0, 0.0]), f([0.0, -1.0]))], "sinc": [(odd,), (e,)], "erfinv": [(f([1.0, -1, 2, nan, 0]),)],
        "logaddexp2": [(odd, odd), (odd, odd.flip(1))], "clamp": [(odd, f(-1.0), f(1.5)), (odd, None, odd.flip(1)), (t, t + 1, t - 1)],
        "select_scatter": [(t, f([1.0, 2, 3]), 0, 1)], "diagonal_scatter": [(t, f([1.0, 2, 3]))],
        "index_fill": [(t, 1, torch.tensor([0, -1]), 2.0), (z, 1, torch.tensor([0]), 2.0)],
        "renorm": [(t, 2, 0, 0.5), (t, 1, 1, 1.0)], "dist": [(e, e), (odd, odd), (t, t * 2, 0)],
        "scatter_reduce": [(t, 0, torch.tensor([[0, 0, 3], [0, 1, 3]]), t * 2, r) for r in ("sum", "prod", "mean", "amax", "amin")],
        "frexp": [(odd,), (f([5e-324, -3.0, 1e308]),)], "gradient": [(t,)], "block_diag": [(t, z)],
        "inner": [(t, t), (z, z)], "addr": [(torch.zeros(0, 3).double(), e, f([1.0, 2, 3]))],
        "searchsorted": [(f([1.0, 3, 3, nan]), f([nan, 3, inf, -inf])), (e, f([1.0]))], "bucketize": [(odd, f([0.0, 1.0]))],
        "unique_consecutive": [(e,), (odd,), (f([nan, nan]),)], "igamma": [(f([0, 1, 2, inf, -1, 5]), f([0, 0, inf, 1, 1, 5]))],
        "igammac": [(f([0, 1, 2, inf, -1, 5]), f([0, 0, inf, 1, 1, 5]))], "i0": [(odd,)], "special.i0e": [(odd,)],
        "special.i1": [(odd,)], "special.i1e": [(odd,)], "special.erfcx": [(odd,)], "special.entr": [(odd,)],
        "special.log_ndtr": [(odd,)], "special.ndtri": [(f([0, 1, -1, 2, nan, 0.5]),)], "special.zeta": [(odd + 2, odd.flip(1))],
        "special.xlog1py": [(odd, odd.flip(1))], "special.airy_ai": [(odd,)], "special.bessel_j1": [(odd,)],
        "special.bessel_y0": [(odd,)], "special.modified_bessel_k0": [(odd,)], "tensor_split": [(t, 3), (e, 2)],
        "cross": [(torch.zeros(0, 3), torch.zeros(0, 3))], "unique": [(e,), (f([2.0, 1, 2]),)], "float_power": [(odd, 2), (t, f(0.5))],
    }.get(name, [])


def make(directory, wanted):
    os.makedirs(directory, exist_ok=True)
    out, expected = Writer(directory), []
    for op in database(wanted):
        full = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
        if not op.supported_dtypes("cpu"):
            expected.append({"op": op.name, "name": full, "dtype": "none", "skip": "not on a CPU"})
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            grad = dtype in DERIVED and op.supports_autograd
            torch.manual_seed(1)
            random.seed(1)
            try:
                samples = op.sample_inputs("cpu", dtype, requires_grad=grad)
                if dtype == torch.float64 and extra(op.name):
                    from torch.testing._internal.opinfo.core import SampleInput
                    more = [[a.clone().requires_grad_(grad) if torch.is_tensor(a) and a.is_floating_point() else a for a in args]
                            for args in extra(op.name)]
                    samples = [SampleInput(args[0], args=tuple(args[1:])) for args in more] + list(samples)
                for k, sample in enumerate(samples):
                    if k >= (SAMPLES if dtype in DERIVED else max(4, SAMPLES // 4)):
                        break
                    entry = {"op": op.name, "name": full, "dtype": dtype}
                    if sum(t.numel() for a in (sample.input, sample.args, list(sample.kwargs.values())) for t in leaves(a)) > LARGE:
                        continue
                    try:
                        torch.manual_seed(1)
                        entry["want"] = run(op, sample)
                        if dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64):
                            entry["exact"] = exact(op, sample)
                        entry["random"], entry["ties"] = is_random(op.name, sample), ties(op, sample)
                        entry["inverse"] = bool(sample.kwargs.get("return_inverse"))
                        entry["text"] = " ".join(str(sample).split())[:220]
                        kwargs = dict(sample.kwargs)
                        out.case(len(expected), full if full in FUNCTIONS else op.name, [sample.input] + list(sample.args), kwargs)
                    except NotImplementedError as e:
                        entry = {"op": op.name, "name": full, "dtype": dtype, "skip": str(e)}
                    except Exception as e:  # PyTorch's own refusals
                        entry = {"op": op.name, "name": full, "dtype": dtype, "skip": "PyTorch: " + str(e)[:100]}
                    expected.append(entry)
            except Exception as e:
                expected.append({"op": op.name, "name": full, "dtype": dtype, "skip": "samples: " + str(e)[:100]})
        if op.error_inputs_func is not None:
            try:
                for error in op.error_inputs("cpu"):
                    sample = error.sample_input
                    if any(text in str(error.error_regex) for text in SHARED):
                        continue
                    entry = {"op": op.name, "name": full, "dtype": "error", "error": str(error.error_regex),
                             "text": " ".join(str(sample).split())[:220]}
                    try:
                        out.case(len(expected), op.name, [sample.input] + list(sample.args), sample.kwargs)
                    except Exception as e:
                        entry = {"op": op.name, "name": full, "dtype": "error", "skip": str(e)[:100]}
                    expected.append(entry)
            except Exception:
                pass
    pickle.dump(expected, open(os.path.join(directory, "expected.pkl"), "wb"))


if __name__ == "__main__":
    make(sys.argv[1], set(sys.argv[2:]))
